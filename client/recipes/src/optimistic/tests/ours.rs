//! The recipe's client beside a worker of the article; one client of the recipe, and two.

use super::*;
use crate::model::Odds;

const TTL: Duration = secs(30);
const SKEW: Duration = secs(10);

/// Counts how often both, ours, theirs and none get the token when an attempt and a worker meet
/// like this.
fn meet_in_all(plans: impl Iterator<Item = Vec<Before>>) -> [usize; 4] {
    let mut ends = [0; 4];
    for plan in plans {
        let (machine, model) = world(1);
        machine.run(async {
            let old = SeedWorker::new(&machine, "old");
            let meeting = Meeting::new(&machine, &model, old, &plan);
            let runtime = machine.process("ours").runtime();
            let cassandra = Cassandra::on(Arc::new(Met(meeting.clone())), runtime.clone());
            let tokens = on(&cassandra, "ours", TTL, SKEW);
            let attempted = tokens.attempt("foo").advance().await;
            let theirs = meeting.other.lock().await.finish(&model).await;
            let is_safe = |started| runtime.clock.now() < tokens.base.timing.safe_until(started);
            let ours = matches!(attempted, Ok(Reached::Hold { started }) if is_safe(started));
            let at = match (ours, theirs) {
                (true, true) => 0,
                (true, false) => 1,
                (false, true) => 2,
                (false, false) => 3,
            };
            ends[at] += 1;
        });
    }
    ends
}

#[test]
fn in_no_order_of_their_statements_are_ours_and_an_old_client_in() {
    let ends = meet_in_all(orders(2, 3));
    println!("both, ours, theirs, nobody: {ends:?}");
    assert!(ends[0] == 0 && ends[1..].iter().all(|end| *end > 0), "{ends:?}");
}

/// `ours` stalls once for longer than its row stands, at any statement.
#[test]
fn nor_is_an_old_client_in_beside_ours_that_stalled_for_its_ttl() {
    let at = |statement: usize, steps| {
        let mut plan = vec![Before::default(); 2];
        plan[statement] = Before { stall: TTL + SKEW, steps, lost: false };
        plan
    };
    let ends =
        meet_in_all((0..2).flat_map(|statement| (0..=3).map(move |steps| at(statement, steps))));
    println!("both, ours, theirs, nobody: {ends:?}");
    assert!(ends[0] == 0 && ends[2] > 2, "{ends:?}");
}

/// `ours` stalls between its write and its read and finds only another client's row: it checks the
/// owner.
#[test]
fn one_row_that_is_somebody_elses_is_no_lock() {
    let (machine, model) = world(1);
    machine.run(async {
        let plan = [Before::default(), Before { stall: TTL + SKEW, steps: 2, lost: false }];
        let meeting = Meeting::new(&machine, &model, SeedWorker::new(&machine, "old"), &plan);
        let cassandra = Cassandra::on(Arc::new(Met(meeting)), machine.process("ours").runtime());
        let mut attempt = on(&cassandra, "ours", TTL, SKEW).attempt("foo");
        let attempted = attempt.advance().await.unwrap();
        let Reached::TryAgain { owner, .. } = attempted else { panic!("{attempted:?}") };
        assert_eq!(owner.as_deref(), Some("old"));
    });
}

/// Its row still stands when it finds itself alone, but not for a whole TTL more.
#[test]
fn a_hold_counts_from_before_its_row_was_written() {
    let (machine, model) = world(1);
    machine.run(async {
        let plan = [Before::default(), Before { stall: TTL * 5 / 6, steps: 0, lost: false }];
        let meeting = Meeting::new(&machine, &model, SeedWorker::new(&machine, "old"), &plan);
        let runtime = machine.process("ours").runtime();
        let cassandra = Cassandra::on(Arc::new(Met(meeting)), runtime.clone());
        let began = runtime.clock.now();
        let attempted = on(&cassandra, "ours", TTL, SKEW).attempt("foo").advance().await;
        assert_eq!(attempted, Ok(Reached::Hold { started: began }));
    });
}

#[test]
fn a_free_lock_takes_two_statements_and_one_to_give_back_and_a_waiter_writes_once() {
    let (machine, model) = world(1);
    let [a, b] =
        ["a", "b"].map(|name| locker(&model, &machine.process(name), name, secs(180), secs(60)));
    machine.run(async {
        let before = a.base.cassandra.statements().sent;
        let held = a.lock("foo").await.unwrap();
        assert_eq!((held.owner(), a.base.cassandra.statements().sent - before), ("a", 2));
        let mut waiter = b.attempt("foo");
        let mut asked = Vec::new();
        for _ in 0..3 {
            let before = b.base.cassandra.statements().sent;
            let attempted = waiter.advance().await.unwrap();
            assert!(matches!(attempted, Reached::TryAgain { .. }), "{attempted:?}");
            asked.push(b.base.cassandra.statements().sent - before);
        }
        assert_eq!(asked, [3, 1, 1], "a write, a look, the delete; after that a look");
        assert_eq!(TOKENS.names(&model).await.len(), 1);
        let before = a.base.cassandra.statements().sent;
        held.release().await.unwrap();
        assert_eq!(a.base.cassandra.statements().sent - before, 1);
        assert!(matches!(waiter.advance().await, Ok(Reached::Hold { .. })));
    });
}

#[test]
fn a_holders_row_is_renewed_and_ends_with_a_holder_that_dies() {
    let (machine, model) = world(2);
    let (a, runtime) = (machine.process("a"), machine.world().runtime());
    let [first, next] =
        [&a, &machine.process("b")].map(|process| locker(&model, process, "x", TTL, SKEW));
    machine.run(async {
        let held = first.lock("foo").await.unwrap();
        runtime.sleep(secs(100)).await;
        assert!(held.is_safe());
        assert!(next.try_lock("foo").await.unwrap().is_none());
        a.kill();
        runtime.sleep(secs(31)).await;
        assert!(next.try_lock("foo").await.unwrap().is_some());
    });
}

/// Its write has no answer, and then another client's row is there: what this attempt left would keep
/// all out for a TTL.
#[test]
fn what_an_attempt_left_is_taken_back_as_soon_as_somebody_else_is_seen() {
    let (machine, model) = world(3);
    machine.run(async {
        let plan = [Before::default(), Before { lost: true, ..Before::default() }];
        let meeting = Meeting::new(&machine, &model, SeedWorker::new(&machine, "old"), &plan);
        let cassandra = Cassandra::on(Arc::new(Met(meeting)), machine.process("ours").runtime());
        let mut attempt = on(&cassandra, "ours", TTL, SKEW).attempt("foo");
        attempt.look_first = true;
        // A look, and a write whose answer is lost.
        assert!(attempt.advance().await.is_err());
        model.execute(TOKENS.put("other", 1_000, 1)).await.unwrap();
        assert!(matches!(attempt.advance().await, Ok(Reached::TryAgain { .. })));
        assert_eq!(TOKENS.names(&model).await, ["other"]);
    });
}

/// Writes of unknown outcome arrive late: the deletes that were sent after them win.
#[test]
fn what_is_given_up_leaves_nothing_even_if_its_writes_arrive_late() {
    for seed in 0..100 {
        let (machine, model) = world(seed);
        let tokens = locker(&model, &machine.process("a"), "a", secs(180), secs(60));
        model.set_odds(Odds { late: 400, request_lost: 100, ..Odds::default() });
        let runtime = machine.world().runtime();
        machine.run(async {
            let wait = Duration::from_millis(seed * 40);
            drop(runtime.timeout(wait, tokens.lock("foo")).await);
            runtime.sleep(secs(10)).await;
            model.set_odds(Odds::default());
            runtime.sleep(secs(20)).await;
            assert_eq!(TOKENS.names(&model).await, [""; 0], "seed {seed}");
        });
    }
}
