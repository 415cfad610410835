//! What a scope is tied to, and which rows belong to which process.

use super::*;
use crate::Error;
use crate::LockerBuilder;
use crate::model::{Fate, Odds};
use crate::owner::Writer;
use crate::queue::{Queue, QueueTables};
use crate::statement::{Action, Ident, Statement, Value};
use futures_util::join;
use holdfast_mutants::{Mutant, while_armed};

impl World {
    fn builder(&self, process: &Process, recipe: impl RemoteLocker + 'static) -> LockerBuilder {
        Locker::builder(&self.cassandra(process), "", recipe)
            .native_like(Arc::new(self.native.locker(process)))
            .row(self.options(process))
    }

    fn queue(&self, process: &Process) -> Queue {
        let options = self.options(process);
        Queue::new(&self.cassandra(process), &options, QueueTables::default()).unwrap()
    }

    /// The owner in the row of the lease.
    async fn owner(&self, lock: &str) -> String {
        let key = vec![(Ident::new("name"), Value::from(lock))];
        let action = Action::SelectSerial { columns: vec![Ident::new("owner")] };
        let cassandra = self.cassandra(&self.machine.world());
        let row = cassandra.tables().read(Statement::new(Ident::new("leases"), key, action)).await;
        row.unwrap().unwrap().text(&Ident::new("owner")).unwrap().to_owned()
    }
}

/// One process locks by leases, the other by the queue: how many hold the lock at once?
fn holders_on_two_recipes() -> (usize, Option<Error>) {
    let world = World::new(1);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let first = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let held = first.lock("jobs").await.unwrap();
        match world.builder(&b, world.queue(&b)).start(LockerMode::Cassandra).await {
            Err(error) => (1, Some(error)),
            Ok(second) => {
                let other = second.try_lock("jobs").await.unwrap();
                (usize::from(held.is_safe()) + usize::from(other.is_some()), None)
            }
        }
    })
}

/// The two recipes do not exclude each other in Cassandra. The error of the second process names
/// what the scope is tied to.
#[test]
fn a_scope_has_one_recipe_and_who_comes_by_another_is_refused_by_name() {
    let (holders, refused) = holders_on_two_recipes();
    assert_eq!(holders, 1);
    let refused = refused.unwrap().to_string();
    let says = "is tied to the recipe \"lease model.leases\" in table locker_modes, and this is \
                \"queue model.lock_main model.lock_queue\"";
    assert!(refused.contains(says), "{refused}");

    let (holders, _) = while_armed(Mutant::TiesNotCompared, holders_on_two_recipes);
    assert_eq!(holders, 2, "without the rule");
}

#[test]
fn so_are_tables_of_another_name_and_a_table_that_is_set_free_may_be_taken_by_another() {
    let world = World::new(2);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        let first = world.locker(&a, LockerMode::Cassandra).await.unwrap();
        let table = LeaseTable::named("others", "name", "owner", "value");
        let lease = || Lease::new(&world.cassandra(&b), &world.options(&b), table.clone()).unwrap();
        let refused = world.builder(&b, lease()).start(LockerMode::Both).await.unwrap_err();
        assert!(refused.to_string().contains("and this is \"lease model.others\""), "{refused}");
        drop(first);
        world.sleep(secs(1)).await;
        let key = vec![(Ident::new("scope"), Value::from("*"))];
        let cells = vec![(Ident::new("recipe"), None)];
        let action = Action::UpdateIf { cells, ttl_s: None, only_if: Vec::new() };
        world.model.apply(&Statement::new(Ident::new("locker_modes"), key, action));
        world.builder(&b, lease()).start(LockerMode::Both).await.unwrap();
        let view = world.scope().view().await.unwrap();
        assert_eq!(view.recipe.as_deref(), Some("lease model.others"));
    });
}

/// Two clusters on one scope: a native lock of one does not exclude clients of the other.
#[test]
fn no_native_guard_of_another_cluster_than_the_scopes_is_handed_out() {
    for mode in [LockerMode::Both, LockerMode::Native] {
        let world = World::new(3);
        let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
        world.machine.run(async {
            world.move_to(Stage::Native).await;
            let first = world.locker(&a, mode).await.unwrap();
            assert_eq!(world.scope().view().await.unwrap().cluster, None, "nobody locks yet");
            first.lock("other").await.unwrap().release().await.unwrap();
            assert_eq!(world.scope().view().await.unwrap().cluster.as_deref(), Some("c1"));
            let elsewhere = NativeStore::new(&world.machine);
            let second = Locker::builder(&world.cassandra(&b), "", world.old(&b))
                .native_like(Arc::new(elsewhere.locker_of(&b, "c2")))
                .row(world.options(&b))
                .start(mode)
                .await
                .unwrap();
            let refused = second.lock("jobs").await.unwrap_err().to_string();
            let says = "is tied to the cluster \"c1\" in table locker_modes, and this is \"c2\"";
            assert!(refused.contains(says), "{refused}");
            world.sleep(secs(2)).await;
            assert!(!elsewhere.is_held("jobs"), "it was given back");
            assert!(is_free(&first).await, "on both sides");
        });
    }
}

/// A process requests the tie once and keeps the answer: after that a native lock needs no Cassandra. Without an answer the
/// process hands out no guard.
#[test]
fn the_first_native_guard_of_a_scope_waits_for_its_tie_and_later_ones_ask_nothing() {
    let world = World::new(4);
    let [a, b] = ["a", "b"].map(|name| world.machine.process(name));
    world.machine.run(async {
        world.move_to(Stage::Native).await;
        let locker = world.locker(&a, LockerMode::Native).await.unwrap();
        let is_tie: fn(&Statement) -> bool = |one| {
            matches!(&one.action, Action::UpdateIf { cells, .. } if cells[0].0.as_str() == "cluster")
        };
        world.model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
        let began = world.machine.now();
        let refused = locker.lock_within("jobs", secs(3)).await.unwrap_err();
        assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
        assert_eq!(world.since(began), secs(3));
        world.model.set_odds(Odds::default());
        // It is tried again, for as long as the caller waits.
        world.model.choose(is_tie, Fate::RequestLost);
        let held = locker.lock("jobs").await.unwrap();
        assert!(world.model.nothing_is_chosen());
        let asked = world.model.arrived();
        let _second = locker.lock("other").await.unwrap();
        let other = world.locker(&b, LockerMode::Native).await.unwrap();
        let entered = world.model.arrived();
        let _third = other.lock("third").await.unwrap();
        assert_eq!(world.model.arrived(), entered, "what it read when it entered is enough");
        assert!(entered > asked && held.is_safe());
    });
}

/// A plain client of the recipe, and a second `Locker`, with the same service name in the same process.
#[test]
fn rows_of_a_registered_process_are_known_by_their_writer_and_not_by_a_service_name() {
    let world = World::new(5);
    let a = world.machine.process("a");
    world.machine.run(async {
        let plain = world.old(&a);
        let locker = Locker::builder(&world.cassandra(&a), "", plain.clone())
            .row(world.options(&a))
            .start(LockerMode::Cassandra)
            .await
            .unwrap();
        let [_mine, _plain] =
            [locker.lock("mine").await.unwrap(), plain.lock("plain").await.unwrap()];
        let view = world.scope().view().await.unwrap();
        let writer = view.processes[0].writer.clone();
        assert!(writer.is_some() && view.processes[0].service == "a");
        assert_eq!(Writer::of(&world.owner("mine").await), writer);
        let other = Writer::of(&world.owner("plain").await);
        assert!(other.is_some() && other != writer, "the locker it was made from is another one");
    });
}

/// A process enters by a write whose answer takes 25 s, of which 18.7 s are certain, and hears nothing more: is it in?
fn enters_by_a_row_of_which_nothing_is_certain_any_more() -> bool {
    let world = World::new(6);
    let a = world.machine.process("a");
    let is_row: fn(&Statement) -> bool = |one| matches!(&one.action, Action::UpdateIf { cells, .. } if cells[0].0.as_str() == "mode");
    world.machine.run(async {
        world.model.choose(is_row, Fate::Slowly(secs(25)));
        let starting = Locker::builder(&world.cassandra(&a), "", world.old(&a))
            .row(world.options(&a).answer_limit(secs(60)))
            .start(LockerMode::Cassandra);
        let losing = async {
            world.sleep(secs(20)).await;
            world.model.set_odds(Odds { request_lost: 1_000, ..Odds::default() });
        };
        let (started, ()) = join!(in_time(&a, secs(29), starting), losing);
        assert!(world.model.nothing_is_chosen());
        started.is_some_and(|locker| locker.is_ok())
    })
}

/// Rule 1 of the modes, I24. The row ends a second later for everybody else.
#[test]
fn a_row_whose_answer_came_too_late_covers_nothing() {
    assert!(!enters_by_a_row_of_which_nothing_is_certain_any_more());
    let armed = Mutant::LapsedModeRowCounts;
    assert!(while_armed(armed, enters_by_a_row_of_which_nothing_is_certain_any_more));
}
