//! One switch at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_keyspace::authority::{Authority, AuthorityRow, Buckets, Change, ClusterTag, Mode};
use holdfast_runtime::select;

use super::*;
use crate::locker::{RemoteGuard, RemoteLocker, Wait};
use crate::model::Fate;
use crate::{Error, GuardState, LostReason};
use holdfast_mutants::{Mutant, while_armed};

/// Longer than the time between two reads of the row.
const SLOWLY: Duration = Duration::from_millis(1_500);

/// The mode, epoch and beat of a scope's row.
fn row(world: &World, scope: &str) -> (String, i64, i64) {
    let [epoch, beat] = longs(world, scope, &["epoch", "beat"].map(Ident::new));
    let mode = Ident::new("mode");
    (read(world, scope, std::slice::from_ref(&mode)).text(&mode).unwrap().to_owned(), epoch, beat)
}

fn longs(world: &World, scope: &str, columns: &[Ident; 2]) -> [i64; 2] {
    let row = read(world, scope, columns);
    columns.each_ref().map(|column| row.long(column).unwrap())
}

fn read(world: &World, scope: &str, columns: &[Ident]) -> crate::database::Row {
    let key = vec![(Ident::new("scope"), Value::from(scope))];
    let look = Action::SelectSerial { columns: columns.to_vec() };
    let look = Statement::new(Ident::new("authority"), key, look);
    let crate::database::Answer::Read(Some(row)) = world.model.apply(&look) else {
        panic!("there is no row")
    };
    row
}

/// Overwrites the row, with the durations of this world.
fn set_row(world: &World, scope: &str, mode: &str, epoch: i64) {
    world.write_row(scope, mode, epoch, world.durations);
}

fn epoch_of(guard: &RemoteGuard) -> u64 {
    guard.token().unwrap().epoch()
}

/// A world with that random seed, and a process that falls back.
fn world(seed: u64) -> (Arc<World>, Process) {
    let world = Arc::new(World::new(seed));
    let process = world.machine.process("one");
    (world, process)
}

async fn fallback(world: &World, process: &Process) -> Locker {
    world.open_the_last_stage().await;
    world.locker(process, "a/", LockerMode::Fallback).await.unwrap()
}

#[test]
fn a_scope_whose_servers_are_gone_is_served_by_cassandra_after_w_and_comes_back_by_itself() {
    let (world, process) = world(1);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        let runtime = world.machine.world().runtime();
        let native = locker.lock("a/1").await.unwrap();
        let first = native.token();
        assert_eq!(epoch_of(&native), 1);
        world.kill_servers();
        let died = runtime.clock.now();

        let guard = locker.lock("a/1").await.unwrap();
        let taken = runtime.clock.now().saturating_since(died);
        assert!(!native.is_safe(), "its authority is over");
        assert_eq!((epoch_of(&guard), row(&world, "a/").0.as_str()), (2, "cassandra"));
        assert!((W..W * 2).contains(&taken), "{taken:?}");
        assert_eq!(guard.ttl(), world.durations.hold(), "as long as one read covers it");
        runtime.sleep(secs(60)).await;
        assert!(guard.is_safe(), "it is read and renewed for as long as nobody else serves");
        let second = guard.token();
        guard.release().await.unwrap();

        world.elect(1);
        let mut last = locker.lock("a/1").await.unwrap();
        while epoch_of(&last) == 2 {
            last.release().await.unwrap();
            runtime.sleep(secs(1)).await;
            last = locker.lock("a/1").await.unwrap();
        }
        assert_eq!((epoch_of(&last), row(&world, "a/").0.as_str()), (4, "native"));
        assert!(first < second && second < last.token());
    });
}

#[test]
fn while_the_native_store_serves_nobody_reads_the_row() {
    let (world, process) = world(2);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        world.machine.world().runtime().sleep(secs(5)).await;
        // Bumps of both scopes are the only statements; a reader would add one each V/3.
        let before = world.model.arrived();
        let guard = locker.lock("a/1").await.unwrap();
        let waits = locker.lock_within("a/1", secs(30));
        assert!(matches!(waits.await, Err(Error::NotGranted { .. })));
        drop(guard);

        let asked = world.model.arrived() - before;
        let bumps = 2 * usize::try_from(secs(30).as_millis() / (W / 4).as_millis()).unwrap();
        assert!(asked <= bumps + 4, "{asked} statements, {bumps} bumps");
    });
}

/// The servers and Cassandra are well; one process reaches only Cassandra.
#[test]
fn who_alone_cannot_reach_the_servers_waits_and_takes_nothing_over() {
    let (world, process) = world(3);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        world.cluster.set_cut(true);
        let waited = locker.lock_within("a/1", secs(60)).await;

        let error = waited.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. } | Error::NotGranted { .. }), "{error}");
        assert_eq!((row(&world, "a/").0.as_str(), row(&world, "a/").1), ("native", 1));
    });
}

#[test]
fn a_hold_is_safe_no_longer_than_v_after_the_last_read_that_was_answered() {
    let (world, process) = world(4);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        let runtime = world.machine.world().runtime();
        world.kill_servers();
        let guard = locker.lock("a/1").await.unwrap();
        let nothing = crate::model::Odds { request_lost: 1_000, ..Default::default() };
        world.model.set_odds(nothing);
        let last = runtime.clock.now();

        let reason = guard.lost().await;

        let held = runtime.clock.now().saturating_since(last);
        assert_eq!(reason, LostReason::DeadlinePassed);
        assert!(held <= world.durations.hold(), "{held:?}");
        assert!(held > world.durations.hold() / 3, "{held:?}");
    });
}

/// Another process leads the scope on, and a read shows it in time.
#[test]
fn a_hold_under_another_epoch_is_lost_at_the_next_read() {
    let (world, process) = world(5);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        world.kill_servers();
        let guard = locker.lock("a/1").await.unwrap();
        set_row(&world, "a/", "draining", 3);
        world.machine.world().runtime().sleep(V / 2).await;
        assert!(guard.is_safe(), "it drains: a holder goes on");
        let denied = locker.try_lock_within("a/2", V / 2).await;
        assert!(denied.is_err(), "and nobody new enters: {denied:?}");
        set_row(&world, "a/", "cassandra", 4);

        assert_eq!(guard.lost().await, LostReason::AuthorityPassed);
        assert!(matches!(guard.state(), GuardState::Lost(_)));
    });
}

/// A drain may take as long as it likes, as far as holders are concerned.
#[test]
fn who_only_holds_takes_nothing_over() {
    let (world, process) = world(16);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        world.kill_servers();
        let guard = locker.lock("a/1").await.unwrap();
        set_row(&world, "a/", "draining", 3);
        world.machine.world().runtime().sleep(W * 3).await;

        assert!(guard.is_safe());
        assert_eq!(row(&world, "a/"), ("draining".to_owned(), 3, 0));
    });
}

/// `BeatCompared` and `EpochCompared` of the model: a change that is applied late finds another row. W and V change
/// only together with a beat, unless an operator writes them by hand.
#[test]
fn a_change_of_the_row_asks_for_all_of_it() {
    let (world, process) = world(17);
    world.machine.run(async {
        world.kill_servers();
        set_row(&world, "a/", "native", 3);
        let runtime = process.runtime();
        let tables = world.cassandra(&process).tables().clone();
        let authority = Authority::new(tables, runtime.clock.clone(), "a/");
        let durations = world.durations;
        let cluster = None;
        let buckets = Buckets::default();
        let there =
            AuthorityRow { mode: Mode::Native, epoch: 3, beat: 0, durations, cluster, buckets };
        let to = AuthorityRow { mode: Mode::Cassandra, epoch: 4, ..there };
        let of = |w, v| AuthorityRow { durations: Durations::new(w, v).unwrap(), ..there };
        for other in [
            AuthorityRow { mode: Mode::Draining, ..there },
            AuthorityRow { epoch: 2, ..there },
            AuthorityRow { beat: 1, ..there },
            AuthorityRow { buckets: Buckets::OF_NEW_SCOPES, ..there },
            of(W * 2, V),
            of(W, V / 2),
            AuthorityRow { cluster: ClusterTag::new(&[7; 16]), ..there },
        ] {
            assert_eq!(authority.change(other, to).await, Ok(Change::Otherwise), "{other}");
        }
        assert!(matches!(authority.change(there, to).await, Ok(Change::Done { .. })));
        assert_eq!(row(&world, "a/").1, 4);
    });
}

/// Whatever the former servers had: the row determines how long it has to stay unchanged, and how long a hold lasts.
#[test]
fn w_and_v_are_what_the_row_says() {
    let (world, process) = world(18);
    world.machine.run(async {
        world.kill_servers();
        world.write_row("a/", "native", 3, Durations::new(secs(20), secs(2)).unwrap());
        let options = FallbackOptions::default();
        let fallback = Fallback::new(&world.cassandra(&process), "a/", &options).unwrap();
        let runtime = process.runtime();
        let began = runtime.clock.now();

        let guard = fallback.acquire("a/1", Wait::Forever).await.unwrap();
        let taken = runtime.clock.now().saturating_since(began);
        assert!((secs(20)..secs(22)).contains(&taken), "{taken:?}");
        assert_eq!(guard.ttl(), Duration::from_millis(1_800));
        let columns = ["take_over_ms", "hold_ms"].map(Ident::new);
        assert_eq!(longs(&world, "a/", &columns), [20_000, 2_000], "they are kept");
    });
}

/// A process that assumed other durations could take over too early, or hold for too long.
#[test]
fn a_row_without_w_and_v_is_not_taken_over_and_it_says_what_is_missing() {
    let (world, process) = world(19);
    world.machine.run(async {
        world.kill_servers();
        let cells =
            [("mode", Value::from("native")), ("epoch", Value::from(3)), ("beat", Value::from(0))];
        let cells = cells.map(|(name, value)| (Ident::new(name), Some(value))).into();
        let key = vec![(Ident::new("scope"), Value::from("c/"))];
        let made = Action::InsertIfAbsent { cells, ttl_s: None };
        world.model.apply(&Statement::new(Ident::new("authority"), key, made));
        let options = FallbackOptions::default();
        let fallback = Fallback::new(&world.cassandra(&process), "c/", &options).unwrap();

        let error = fallback.lock_within("c/1", secs(60)).await.unwrap_err();
        let error = error.to_string();
        assert!(error.contains("the row of scope \"c/\" has no take_over_ms"), "{error}");
        assert_eq!(row(&world, "c/"), ("native".to_owned(), 3, 0));
    });
}

#[test]
fn nobody_takes_over_a_scope_that_is_prepared_or_retired_or_has_no_row() {
    for (mode, says) in [("preparing", "prepared"), ("retired", "no fallback any more")] {
        let (world, process) = world(6);
        world.machine.run(async {
            let locker = fallback(&world, &process).await;
            world.kill_servers();
            set_row(&world, "a/", mode, 1);
            let error = locker.lock_within("a/1", secs(60)).await.unwrap_err();
            // Which of the two stores answers first is random.
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
            assert_eq!(row(&world, "a/"), (mode.to_owned(), 1, 0));
            let options = FallbackOptions::default();
            let fallback = Fallback::new(&world.cassandra(&process), "a/", &options);
            let error = fallback.unwrap().lock_within("a/1", secs(20)).await.unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        });
    }
    let (world, process) = world(7);
    world.machine.run(async {
        let options = FallbackOptions::default();
        let fallback = Fallback::new(&world.cassandra(&process), "c/", &options).unwrap();
        let error = fallback.lock_within("c/1", secs(60)).await.unwrap_err();
        assert!(error.to_string().contains("no row in the table authority"), "{error}");
    });
}

/// While the token is drawn, another owner gets the lease: for example because its cell was deleted by hand.
#[test]
fn a_token_counts_only_if_the_lease_was_held_before_and_after_it_was_drawn() {
    static DRAWS: AtomicUsize = AtomicUsize::new(0);
    let (world, process) = world(8);
    world.machine.run(async {
        world.kill_servers();
        set_row(&world, "a/", "cassandra", 2);
        let options = FallbackOptions::default();
        let fallback = Fallback::new(&world.cassandra(&process), "a/", &options).unwrap();
        world.model.choose(
            |statement| {
                let draws = statement.table.as_str() == "fences"
                    && matches!(statement.action, Action::UpdateIf { .. });
                DRAWS.fetch_add(usize::from(draws), Ordering::Relaxed);
                draws
            },
            Fate::Slowly(secs(2)),
        );
        let runtime = world.machine.world().runtime();
        let stealing = async {
            runtime.sleep(secs(1)).await;
            let mut key = fallback.partition_of("a/1", Buckets::default());
            key.push((Ident::new("name"), Value::from("a/1")));
            let stolen = vec![(Ident::new("owner"), Some(Value::from("somebody")))];
            let steal = Action::UpdateIf { cells: stolen, ttl_s: None, only_if: Vec::new() };
            let steal = Statement::new(Ident::new("fallback_leases"), key, steal);
            world.model.apply(&steal.partitioned_by(2));
        };
        let (tried, ()) =
            tokio::join!(fallback.acquire("a/1", Wait::NoAnsweredWithin(secs(9))), stealing);

        assert!(matches!(tried, Err(Error::NotGranted { .. })), "{tried:?}");
        assert!(DRAWS.load(Ordering::Relaxed) > 0, "a token was drawn");
    });
}

/// A change to `cassandra` that was never made gets no answer.
#[test]
fn a_take_over_without_an_answer_gives_nothing() {
    let (world, process) = world(13);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        let runtime = world.machine.world().runtime();
        world.kill_servers();
        let died = runtime.clock.now();
        world.model.choose(
            |lwt| {
                lwt.table.as_str() == "authority" && matches!(lwt.action, Action::UpdateIf { .. })
            },
            Fate::RequestLost,
        );

        let guard = locker.lock("a/1").await.unwrap();

        let taken = runtime.clock.now().saturating_since(died);
        assert_eq!((row(&world, "a/").0.as_str(), epoch_of(&guard)), ("cassandra", 2));
        assert!(taken >= W * 2, "W begins anew: {taken:?}");
    });
}

/// The read was under way when the hold began: it may show an earlier state.
#[test]
fn a_read_that_began_before_the_lock_was_held_does_not_lengthen_its_hold() {
    let (world, process) = world(14);
    world.machine.run(async {
        world.kill_servers();
        set_row(&world, "a/", "cassandra", 2);
        let options = FallbackOptions::default();
        let fallback = Fallback::new(&world.cassandra(&process), "a/", &options).unwrap();
        let (runtime, began) = (process.runtime(), process.runtime().clock.now());
        // The token takes as long as the time between two reads, and the second read takes long, too.
        world.model.choose(
            |lwt| lwt.table.as_str() == "fences" && matches!(lwt.action, Action::UpdateIf { .. }),
            Fate::Slowly(Duration::from_millis(1_300)),
        );
        let slow_read = async {
            runtime.sleep(Duration::from_millis(600)).await;
            world.model.choose(
                |read| read.table.as_str() == "authority",
                Fate::Slowly(Duration::from_millis(1_100)),
            );
        };
        let (guard, ()) = tokio::join!(fallback.acquire("a/1", Wait::Forever), slow_read);
        let guard = guard.unwrap();
        assert!(world.model.nothing_is_chosen(), "the read is under way");
        let nothing = crate::model::Odds { request_lost: 1_000, ..Default::default() };
        world.model.set_odds(nothing);
        let _ = guard.lost().await;

        let held = runtime.clock.now().saturating_since(began);
        let least = world.durations.hold();
        let latest = least + Duration::from_millis(200);
        assert!((least..latest).contains(&held), "{held:?}, not {least:?}");
    });
}

/// Every read of the row takes longer than the time between two. If a process did not wait longer for the next one, it would
/// abandon and repeat them forever, and keep the nodes busy.
#[test]
fn a_row_that_is_answered_slowly_is_waited_for() {
    let (world, process) = world(16);
    world.machine.run(async {
        world.kill_servers();
        set_row(&world, "a/", "cassandra", 2);
        let options = FallbackOptions::default();
        let fallback = Fallback::new(&world.cassandra(&process), "a/", &options).unwrap();
        let always_slow = async {
            loop {
                world.model.choose(|read| read.table.as_str() == "authority", Fate::Slowly(SLOWLY));
                process.runtime().sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(world.durations.read_every() < SLOWLY);
        select! {
            guard = fallback.acquire("a/1", Wait::AtMost(secs(30))) => {
                assert!(guard.unwrap().is_safe());
            }
            () = always_slow => {}
        }
    });
}

/// An attempt gives its lease up, without an answer, and starts again; then the delete is applied.
#[test]
fn a_late_delete_of_a_lease_that_was_given_up_does_not_hit_the_next_one() {
    let (world, process) = world(15);
    world.machine.run(async {
        world.kill_servers();
        set_row(&world, "a/", "cassandra", 2);
        let options = FallbackOptions::default();
        let new =
            |process: &Process| Fallback::new(&world.cassandra(process), "a/", &options).unwrap();
        let runtime = process.runtime();
        world.model.choose(
            |lwt| lwt.table.as_str() == "fences" && matches!(lwt.action, Action::UpdateIf { .. }),
            Fate::RequestLost,
        );
        let switching = async {
            runtime.sleep(secs(1)).await;
            assert!(world.model.nothing_is_chosen(), "the lease is had, and the draw under way");
            set_row(&world, "a/", "draining", 3);
            world
                .model
                .choose(|lwt| matches!(lwt.action, Action::DeleteIf { .. }), Fate::Late(secs(4)));
            runtime.sleep(secs(4)).await;
            assert!(world.model.nothing_is_chosen(), "it was given up");
            set_row(&world, "a/", "cassandra", 4);
        };
        let one = new(&process);
        let (guard, ()) = tokio::join!(one.acquire("a/1", Wait::Forever), switching);
        let guard = guard.unwrap();
        let other = new(&world.machine.process("other"));
        let tried = other.lock_within("a/1", secs(10)).await;

        assert!(guard.is_safe());
        assert!(matches!(tried, Err(Error::NotGranted { .. })), "{tried:?}");
    });
}

#[test]
fn each_of_the_rules_of_reading_is_missed_when_it_is_broken() {
    let cases: [(Mutant, fn()); 2] = [
        (Mutant::UnknownTakeOverCounts, a_take_over_without_an_answer_gives_nothing),
        (
            Mutant::ReadBeforeHoldCounts,
            a_read_that_began_before_the_lock_was_held_does_not_lengthen_its_hold,
        ),
    ];
    for (mutant, test) in cases {
        let run = while_armed(mutant, || std::panic::catch_unwind(test));
        assert!(run.is_err(), "nothing showed that {mutant} was armed");
    }
}

#[test]
fn a_try_says_whether_somebody_holds_it_there_too() {
    let (world, process) = world(9);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        let other = world.machine.process("other");
        let other = world.locker(&other, "a/", LockerMode::Fallback).await.unwrap();
        world.kill_servers();
        let guard = locker.lock("a/1").await.unwrap();

        assert!(other.try_lock("a/1").await.unwrap().is_none());
        guard.release().await.unwrap();
        assert!(other.try_lock("a/1").await.unwrap().is_some());
    });
}

/// In `native` a process respects the authority too, and merely waits while others lock in
/// Cassandra.
#[test]
fn a_process_in_native_waits_while_the_scope_is_cassandras() {
    let (world, process) = world(10);
    world.machine.run(async {
        let locker = fallback(&world, &process).await;
        let other = world.machine.process("other");
        let native = world.locker(&other, "a/", LockerMode::Native).await.unwrap();
        let held = native.lock("a/1").await.unwrap();
        world.kill_servers();
        let guard = locker.lock("a/1").await.unwrap();
        assert!(!held.is_safe() && guard.is_safe());
        drop(held);

        world.elect(0);
        let waiting = native.lock_within("a/1", secs(2)).await;
        assert!(waiting.is_err() && guard.is_safe(), "{waiting:?}");
        guard.release().await.unwrap();
        let later = native.lock_within("a/1", secs(60)).await.unwrap();
        assert!(epoch_of(&later) >= 4);
    });
}

#[test]
fn a_process_goes_between_native_and_fallback_without_losing_what_it_holds() {
    let (world, process) = world(11);
    world.machine.run(async {
        world.open_the_last_stage().await;
        let locker = world.locker(&process, "a/", LockerMode::Native).await.unwrap();
        let held = locker.lock("a/1").await.unwrap();
        locker.set_mode(LockerMode::Fallback).await.unwrap();
        let fallen = locker.lock("a/2").await.unwrap();
        assert!(held.is_safe() && fallen.is_safe());

        let scope = world.scope("a/");
        let refused = scope.go_back().await.unwrap_err();
        assert!(refused.to_string().contains("(fallback)"), "{refused}");
        let back = locker.set_mode(LockerMode::Native);
        let runtime = world.machine.world().runtime();
        assert!(runtime.timeout(secs(5), back).await.is_err(), "a guard of the old mode is there");
        assert_eq!(locker.mode(), Some(LockerMode::Native), "and new ones are of the next");
        drop(fallen);
        locker.set_mode(LockerMode::Native).await.unwrap();
        assert!(held.is_safe());
        assert_eq!(scope.go_back().await, Ok(Stage::Native));
        assert!(world.locker(&process, "a/", LockerMode::Fallback).await.is_err());
    });
}

#[test]
fn a_scope_of_all_names_and_a_process_in_both_have_no_fallback() {
    let (world, process) = world(12);
    world.machine.run(async {
        world.open_the_last_stage().await;
        let all = world.locker(&process, "", LockerMode::Fallback).await.unwrap_err();
        assert!(matches!(all, Error::InvalidConfig { .. }), "{all}");
        let both = world.locker(&process, "a/", LockerMode::Both).await.unwrap_err();
        assert!(both.to_string().contains("is at fallback"), "{both}");
    });
}

/// B8. All who hold in an epoch look for a lease where the row says; after the number of partitions has changed it lies elsewhere.
#[test]
fn a_lease_lies_in_the_partition_that_the_row_of_its_epoch_says() {
    let (world, process) = world(31);
    world.machine.run(async {
        world.kill_servers();
        let other = world.machine.process("other");
        let [one, two] = [&process, &other].map(|process| {
            Fallback::new(&world.cassandra(process), "a/", &FallbackOptions::default()).unwrap()
        });
        let is_owned_in = |buckets| {
            let mut key = one.partition_of("a/1", buckets);
            key.push((Ident::new("name"), Value::from("a/1")));
            let columns = vec![Ident::new("owner")];
            let look = Statement::new(
                Ident::new("fallback_leases"),
                key,
                Action::SelectSerial { columns },
            );
            let read = world.model.apply(&look.partitioned_by(2));
            matches!(read, crate::database::Answer::Read(Some(row)) if row.text(&Ident::new("owner")).is_some())
        };
        let (few, many) = (Buckets::default(), Buckets::OF_NEW_SCOPES);
        assert_ne!(few.of("a/1"), many.of("a/1"));
        for (mode, epoch, there, elsewhere) in
            [("cassandra", 4, few, many), ("cassandra/256", 6, many, few)]
        {
            set_row(&world, "a/", mode, epoch);
            // What was read before it counts for V, which is what a drain waits for.
            world.machine.world().runtime().sleep(world.durations.v()).await;
            let guard = one.acquire("a/1", Wait::NoAnsweredWithin(secs(60))).await.unwrap();
            assert_eq!((is_owned_in(there), is_owned_in(elsewhere)), (true, false), "{mode}");
            let tried = two.acquire("a/1", Wait::NoAnsweredWithin(secs(9))).await;
            assert!(matches!(tried, Err(Error::NotGranted { .. })), "{mode}: {tried:?}");
            guard.release().await.unwrap();
        }
    });
}
