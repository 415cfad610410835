//! One client of the recipe, and two.

use super::*;
use crate::model::Odds;
use crate::queue::{Queue, QueueTables};
use crate::statement::{Action, Ident, Statement, Value};

fn usual(model: &Model, process: &Process) -> Shadow {
    locker(model, process, &process.name(), secs(180), secs(60))
}

/// How many statements `act` sends.
async fn sent(shadow: &Shadow, act: impl Future<Output = ()>) -> u64 {
    let before = shadow.base.cassandra.statements().sent;
    act.await;
    shadow.base.cassandra.statements().sent - before
}

#[test]
fn a_free_lock_takes_five_statements_and_two_to_give_back_and_a_look_at_one_that_is_held_is_one() {
    let (machine, model) = world(1);
    let [a, b] = ["a", "b"].map(|name| usual(&model, &machine.process(name)));
    machine.run(async {
        let mut held = None;
        let acquired = sent(&a, async { held = Some(a.lock("foo").await.unwrap()) }).await;
        let tried = sent(&b, async {
            assert!(b.try_lock("foo").await.unwrap().is_none());
        });
        assert_eq!((acquired, tried.await), (5, 1));
        assert_eq!((MAIN.names(&model).await.len(), SHADOW.names(&model).await.len()), (1, 1));
        let released = sent(&a, async { held.unwrap().release().await.unwrap() }).await;
        assert_eq!(released, 2);
        machine.world().runtime().sleep(secs(10)).await;
        assert_eq!((MAIN.names(&model).await.len(), SHADOW.names(&model).await.len()), (0, 0));
    });
}

/// The reported owner and the pause: the three results and both back-offs of listing 4.
#[test]
fn a_holder_and_a_client_that_tries_are_told_apart_and_waited_for_as_in_listing_4() {
    let (machine, model) = world(2);
    let shadow = usual(&model, &machine.process("ours"));
    let mut attempt = shadow.attempt("foo");
    machine.run(async {
        model.execute(MAIN.put("holder", 1_000, 1)).await.unwrap();
        let mut longest = Duration::ZERO;
        for _ in 0..40 {
            let Ok(Reached::TryAgain { owner, after }) = attempt.advance().await else { panic!() };
            assert_eq!(owner.as_deref(), Some("holder"));
            longest = longest.max(after);
        }
        assert!((OWNER_PAUSE_MAX * 3 / 4..=OWNER_PAUSE_MAX).contains(&longest), "{longest:?}");

        model.execute(MAIN.erase("holder", 2)).await.unwrap();
        model.execute(SHADOW.put("other", 1_000, 3)).await.unwrap();
        let mut shares = 0.0_f64;
        for try_number in 1..=40 {
            let Ok(Reached::TryAgain { owner, after }) = attempt.advance().await else { panic!() };
            assert_eq!(owner.as_deref(), Some("other"));
            let share = after.as_secs_f64() / (CONCURRENT_PAUSE_STEP * try_number).as_secs_f64();
            assert!(share <= 1.0, "try {try_number}: {after:?}");
            shares = shares.max(share);
        }
        assert!(shares > 0.75, "{shares}");
        assert_eq!(SHADOW.names(&model).await, ["other"], "it leaves nothing behind");

        model.execute(SHADOW.erase("other", 4)).await.unwrap();
        assert!(matches!(attempt.advance().await, Ok(Reached::Hold { .. })));
    });
}

/// Steps 3 and 4: the answer to step 11 is lost, and the same attempt finds its own cell.
#[test]
fn a_step_that_is_repeated_by_one_attempt_finds_its_own_cell_and_is_in() {
    let (machine, model) = world(3);
    machine.run(async {
        let mut plan = [Before::default(); 5];
        plan[4].lost = true;
        let old = SeedThread::new(&machine, "old");
        let meeting = Meeting::new(&machine, &model, old, &plan);
        let process = machine.process("ours");
        let cassandra = Cassandra::on(Arc::new(Met(meeting.clone())), process.runtime());
        let mut attempt = on(&cassandra, "ours", secs(180), secs(60)).attempt("foo");
        assert!(attempt.advance().await.is_err());
        assert_eq!(MAIN.names(&model).await, [attempt.cells.owner.as_str()]);
        assert!(matches!(attempt.advance().await, Ok(Reached::Hold { .. })));
        // Another attempt of the same process is another thread.
        let mut other = on(&cassandra, "ours", secs(180), secs(60)).attempt("foo");
        assert!(matches!(other.advance().await, Ok(Reached::TryAgain { .. })));
    });
}

/// The look at the shadow row has no answer, and then another client has the lock: what this attempt left would keep all
/// out after that client's release.
#[test]
fn what_an_attempt_left_is_taken_back_as_soon_as_somebody_else_is_seen() {
    let (machine, model) = world(4);
    machine.run(async {
        let mut plan = [Before::default(); 5];
        plan[2].lost = true;
        let meeting = Meeting::new(&machine, &model, SeedThread::new(&machine, "old"), &plan);
        let cassandra = Cassandra::on(Arc::new(Met(meeting)), machine.process("ours").runtime());
        let mut attempt = on(&cassandra, "ours", secs(180), secs(60)).attempt("foo");
        assert!(attempt.advance().await.is_err());
        assert_eq!(SHADOW.names(&model).await, [attempt.cells.owner.as_str()]);
        model.execute(MAIN.put("holder", 1_000, 1)).await.unwrap();
        assert!(matches!(attempt.advance().await, Ok(Reached::TryAgain { .. })));
        assert_eq!(SHADOW.names(&model).await, [""; 0]);
    });
}

/// The answer to the second delete is lost, and the lock task deletes once more: that is a release
/// like any other.
#[test]
fn a_release_whose_answer_is_lost_half_way_is_a_release() {
    let (machine, model) = world(6);
    machine.run(async {
        let mut plan = [Before::default(); 7];
        plan[6].lost = true;
        let meeting = Meeting::new(&machine, &model, SeedThread::new(&machine, "old"), &plan);
        let cassandra = Cassandra::on(Arc::new(Met(meeting)), machine.process("ours").runtime());
        let shadow = on(&cassandra, "ours", secs(180), secs(60));
        let released = shadow.lock("foo").await.unwrap().release().await;
        assert!(released.is_ok(), "{released:?}");
        assert_eq!(shadow.base.cassandra.statements().sent, 9);
    });
}

/// Rows of foreign clients may hold anything.
#[test]
fn a_cell_whose_name_is_no_text_is_somebody_elses() {
    let (machine, model) = world(7);
    let shadow = usual(&model, &machine.process("ours"));
    let key = vec![(Ident::new("key"), Value::from("foo")), (Ident::new("column1"), 7.into())];
    let action = Action::Put { cells: Vec::new(), ttl_s: 100, at_us: 1 };
    machine.run(async {
        model.execute(Statement::new(Ident::new("lock_shadow"), key, action)).await.unwrap();
        let attempted = shadow.attempt("foo").advance().await;
        let Ok(Reached::TryAgain { owner, .. }) = attempted else { panic!("{attempted:?}") };
        assert_eq!(owner.as_deref(), Some("somebody without a name"));
    });
}

#[test]
fn who_waits_looks_twice_a_second_and_writes_nothing() {
    let (machine, model) = world(8);
    let [a, b] = ["a", "b"].map(|name| usual(&model, &machine.process(name)));
    let runtime = machine.world().runtime();
    machine.run(async {
        let held = a.lock("foo").await.unwrap();
        assert!(b.lock_within("foo", secs(60)).await.is_err());
        let looks = b.base.cassandra.statements().sent;
        assert!((75..=150).contains(&looks), "{looks}");
        runtime.sleep(secs(10)).await;
        assert_eq!(SHADOW.names(&model).await.len(), 1);
        held.release().await.unwrap();
    });
}

/// Writes of unknown outcome arrive late: the deletes that were sent after them win.
#[test]
fn what_is_given_up_leaves_nothing_even_if_its_writes_arrive_late() {
    for seed in 0..100 {
        let (machine, model) = world(seed);
        let shadow = usual(&model, &machine.process("a"));
        model.set_odds(Odds { late: 400, request_lost: 100, ..Odds::default() });
        let runtime = machine.world().runtime();
        machine.run(async {
            let wait = Duration::from_millis(seed * 40);
            drop(runtime.timeout(wait, shadow.lock("foo")).await);
            runtime.sleep(secs(10)).await;
            model.set_odds(Odds::default());
            runtime.sleep(secs(20)).await;
            let left = (MAIN.names(&model).await, SHADOW.names(&model).await);
            assert_eq!(left, (Vec::new(), Vec::new()), "seed {seed}");
        });
    }
}

/// Both cells stand for longer than a TTL, and both end with a holder that dies.
#[test]
fn the_cells_of_a_holder_are_renewed_together_and_end_together() {
    let (machine, model) = world(5);
    let (a, runtime) = (machine.process("a"), machine.world().runtime());
    let [first, next] =
        [&a, &machine.process("b")].map(|process| locker(&model, process, "x", secs(30), secs(10)));
    machine.run(async {
        let held = first.lock("foo").await.unwrap();
        runtime.sleep(secs(100)).await;
        assert!(held.is_safe());
        let there = [MAIN.names(&model).await.len(), SHADOW.names(&model).await.len()];
        assert_eq!(there, [1, 1]);
        a.kill();
        assert!(next.try_lock("foo").await.unwrap().is_none());
        runtime.sleep(secs(31)).await;
        assert!(next.try_lock("foo").await.unwrap().is_some());
    });
}

/// The longest run of holds of one of two clients that hold the lock for a quarter of a second and
/// return at once.
fn longest_run(seed: u64, make: fn(&Model, &Process) -> Arc<dyn RemoteLocker>) -> usize {
    let (machine, model) = world(seed);
    let runtime = machine.world().runtime();
    let holds = std::sync::Mutex::new(Vec::new());
    let work = async |name: &'static str| {
        let locker = make(&model, &machine.process(name));
        while holds.lock().unwrap().len() < 200 {
            let guard = locker.lock("foo").await.unwrap();
            holds.lock().unwrap().push(name);
            runtime.sleep(Duration::from_millis(250)).await;
            guard.release().await.unwrap();
        }
    };
    machine.run(async { futures_util::join!(work("a"), work("b")) });
    let holds = holds.into_inner().unwrap();
    holds.chunk_by(|before, after| before == after).map(<[_]>::len).max().unwrap_or(0)
}

/// "First a large pack of actions is done by the first thread, then by the second": the thesis' finding, and its remedy.
#[test]
fn two_clients_that_come_again_and_again_have_a_shadowed_lock_in_bursts_and_a_queued_one_in_turn() {
    let shadow = |model: &Model, process: &Process| -> Arc<dyn RemoteLocker> {
        Arc::new(usual(model, process))
    };
    let queue = |model: &Model, process: &Process| -> Arc<dyn RemoteLocker> {
        let options = LockerOptions::default();
        Arc::new(Queue::new(&cassandra(model, process), &options, QueueTables::default()).unwrap())
    };
    let runs: Vec<_> = (0..3).map(|seed| longest_run(seed, shadow)).collect();
    let turns: Vec<_> = (0..3).map(|seed| longest_run(seed, queue)).collect();
    println!("longest run of 200 holds by two: shadow {runs:?}, queue {turns:?}");
    assert!(runs.iter().all(|run| *run >= 8), "{runs:?}");
    assert!(turns.iter().all(|run| *run <= 2), "{turns:?}");
}
