//! The recipe's client beside a thread of the article, in every order of their statements.

use super::*;
use crate::seed_clients::SeedClient as _;

/// The statements of listing 3, from the first look at the main row to the write into it.
const OUR_STATEMENTS: u32 = 5;
/// The steps of an old thread that send a statement, if it gets the lock.
const THEIR_STEPS: u32 = 6;

const TTL: Duration = secs(30);
const SKEW: Duration = secs(10);

/// How an attempt of the recipe and an old thread end when they meet like this; the thread's remaining steps come last.
fn meet(plan: &[Before], other: fn(SeedThread) -> SeedThread) -> (bool, Verdict) {
    let (machine, model) = world(1);
    machine.run(async {
        let meeting = Meeting::new(&machine, &model, other(SeedThread::new(&machine, "old")), plan);
        let runtime = machine.process("ours").runtime();
        let shadow =
            on(&Cassandra::on(Arc::new(Met(meeting.clone())), runtime.clone()), "ours", TTL, SKEW);
        let mut attempt = shadow.attempt("foo");
        let attempted = attempt.advance().await;
        let theirs = meeting.other.lock().await.finish(&model).await;
        let is_safe = |started| runtime.clock.now() < shadow.base.timing.safe_until(started);
        let ours = matches!(attempted, Ok(Reached::Hold { started }) if is_safe(started));
        (ours, theirs)
    })
}

/// Counts how often both, ours, theirs and none got the lock.
fn meet_in_all(
    plans: impl Iterator<Item = Vec<Before>>,
    other: fn(SeedThread) -> SeedThread,
) -> [usize; 4] {
    let mut ends = [0; 4];
    for plan in plans {
        let at = match meet(&plan, other) {
            (true, Verdict::Success) => 0,
            (true, _) => 1,
            (false, Verdict::Success) => 2,
            (false, _) => 3,
        };
        ends[at] += 1;
    }
    ends
}

#[test]
fn in_no_order_of_their_statements_are_ours_and_an_old_client_in_however_step_10_is_read() {
    let readings: [fn(SeedThread) -> SeedThread; 2] = [|thread| thread, SeedThread::literal];
    for (reading, other) in readings.into_iter().enumerate() {
        let ends = meet_in_all(orders(OUR_STATEMENTS, THEIR_STEPS), other);
        println!("reading {reading}: both, ours, theirs, nobody: {ends:?}");
        let [both, ours, theirs, nobody] = ends;
        assert_eq!(both, 0, "{ends:?}");
        assert!(ours > 20 && theirs > 20 && nobody > 20, "{ends:?}");
    }
}

/// `ours` stalls once for longer than its cells stand, at any statement, and the old thread makes some steps before it
/// goes on.
#[test]
fn nor_is_an_old_client_in_beside_ours_that_stalled_for_its_ttl() {
    let at = |statement: usize, steps| {
        let mut plan = vec![Before::default(); 5];
        plan[statement] = Before { stall: TTL + SKEW, steps, lost: false };
        plan
    };
    let plans = || (0..5).flat_map(move |statement| (0..=6).map(move |steps| at(statement, steps)));
    let readings: [fn(SeedThread) -> SeedThread; 2] = [|thread| thread, SeedThread::literal];
    for other in readings {
        let ends = meet_in_all(plans(), other);
        println!("both, ours, theirs, nobody: {ends:?}");
        assert!(ends[0] == 0 && ends[2] > 5, "{ends:?}");
    }
}

/// `ours` stalls so long between its write and its look that the one cell there is another client's: it checks the owner.
#[test]
fn one_cell_that_is_somebody_elses_is_no_lock() {
    let (machine, model) = world(1);
    machine.run(async {
        let mut plan = [Before::default(); 5];
        plan[2] = Before { stall: TTL + SKEW, steps: 2, lost: false };
        let meeting = Meeting::new(&machine, &model, SeedThread::new(&machine, "old"), &plan);
        let cassandra = Cassandra::on(Arc::new(Met(meeting)), machine.process("ours").runtime());
        let attempted = on(&cassandra, "ours", TTL, SKEW).attempt("foo").advance().await;
        let Ok(Reached::TryAgain { owner, .. }) = attempted else { panic!("{attempted:?}") };
        assert_eq!(owner.as_deref(), Some("old"));
    });
}

/// A flaw of the old client, beside this recipe as among old clients: it goes through steps 1 to 10, stalls for its TTL,
/// and goes on.
#[test]
fn a_violation_that_is_known_an_old_client_that_stalls_for_its_ttl_goes_in_beside_ours() {
    let (machine, model) = world(1);
    let shadow = locker(&model, &machine.process("ours"), "ours", secs(180), secs(60));
    machine.run(async {
        let mut old = SeedThread::new(&machine, "old").with_ttl(60);
        old.steps(4, &model).await;
        assert!(shadow.try_lock("foo").await.unwrap().is_none(), "not as long as its cell stands");
        machine.world().runtime().sleep(secs(61)).await;
        let guard = shadow.try_lock("foo").await.unwrap().unwrap();
        assert_eq!(old.finish(&model).await, Verdict::Success);
        assert!(guard.is_safe());
    });
}

/// An old client whose cell in the shadow row is hidden under its own delete takes the one of
/// `ours` for its own.
#[test]
fn a_violation_that_is_known_an_old_client_whose_cell_is_hidden_by_clocks_goes_in_beside_ours() {
    // Its steps 1 and 7 before the first statement of `ours`, 8 and 10 before the look at the main row, 11 and 12 at the
    // end.
    let mut plan = [Before::default(); 5];
    plan[0].steps = 2;
    plan[3].steps = 2;
    let (machine, model) = world(1);
    machine.run(async {
        let mut old = SeedThread::new(&machine, "old").ahead(1_000);
        model.execute(SHADOW.put("other", 1, 1)).await.unwrap();
        assert_eq!(old.finish(&model).await, Verdict::ConcurrentAttempt);
        model.execute(SHADOW.erase("other", 2)).await.unwrap();

        let meeting = Meeting::new(&machine, &model, old.ahead(0).again(), &plan);
        let cassandra =
            Cassandra::on(Arc::new(Met(meeting.clone())), machine.process("ours").runtime());
        let mut attempt = on(&cassandra, "ours", TTL, SKEW).attempt("foo");
        assert!(matches!(attempt.advance().await, Ok(Reached::Hold { .. })));
        assert_eq!(meeting.other.lock().await.finish(&model).await, Verdict::Success);
    });
}

/// Long after step 11, and after renewals: a client that goes by what its step 1 saw finds the holder's cell in the
/// shadow row.
#[test]
fn who_looked_before_we_were_in_is_kept_out_for_as_long_as_we_hold() {
    let (machine, model) = world(1);
    let shadow = locker(&model, &machine.process("ours"), "ours", TTL, SKEW);
    let runtime = machine.world().runtime();
    machine.run(async {
        let mut old = SeedThread::new(&machine, "old").literal();
        old.step(&model).await;
        let guard = shadow.lock("foo").await.unwrap();
        runtime.sleep(TTL * 3).await;
        assert!(guard.is_safe());
        assert_eq!(old.finish(&model).await, Verdict::ConcurrentAttempt);
        let next = SeedThread::new(&machine, "next").finish(&model).await;
        assert_eq!(next, Verdict::AnotherThreadIsOwner);
        guard.release().await.unwrap();
        assert_eq!(old.again().finish(&model).await, Verdict::Success);
        assert!(shadow.try_lock("foo").await.unwrap().is_none());
    });
}
