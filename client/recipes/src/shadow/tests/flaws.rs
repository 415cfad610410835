//! What the article leaves open, each demonstrated with its own steps on the model.

use super::*;
use crate::seed_clients::SeedClient as _;

/// "If there are no cells in the main table": no step reads them after step 1. `a` pauses after it, and `b` goes through.
#[test]
fn to_the_letter_of_step_10_a_thread_goes_in_beside_one_that_went_through_meanwhile() {
    let through = |a: fn(SeedThread) -> SeedThread| {
        let (machine, model) = world(1);
        machine.run(async {
            let mut a = a(SeedThread::new(&machine, "a"));
            a.step(&model).await;
            let b = SeedThread::new(&machine, "b").finish(&model).await;
            (a.finish(&model).await, b)
        })
    };
    assert_eq!(through(SeedThread::literal), (Verdict::Success, Verdict::Success));
    assert_eq!(through(|a| a), (Verdict::ConcurrentAttempt, Verdict::Success));
}

/// In how many orders of two threads' steps both get the lock, and in how many one does.
fn two_in(read: fn(SeedThread) -> SeedThread) -> (usize, usize) {
    let (mut both, mut one) = (0, 0);
    for plan in orders(7, 7) {
        let (machine, model) = world(1);
        machine.run(async {
            let [mut a, mut b] = ["a", "b"].map(|id| read(SeedThread::new(&machine, id)));
            for before in plan {
                b.steps(before.steps, &model).await;
                a.step(&model).await;
            }
            let verdicts = [a.finish(&model).await, b.finish(&model).await];
            match verdicts.iter().filter(|verdict| **verdict == Verdict::Success).count() {
                2 => both += 1,
                1 => one += 1,
                _ => {}
            }
        });
    }
    (both, one)
}

/// Every order of two attempts' steps: what the thesis does not prove, for two threads that neither stall nor share an
/// id.
#[test]
fn in_no_order_of_their_steps_are_two_of_the_seeds_threads_in_if_step_10_reads_again() {
    let (both, one) = two_in(|thread| thread);
    println!("read again: {both} orders let both in, {one} one");
    assert!(both == 0 && one > 1_000, "{both} {one}");
    let (both, one) = two_in(SeedThread::literal);
    println!("to the letter: {both} orders let both in, {one} one");
    assert!(both > 0 && one > 1_000, "{both} {one}");
}

/// "If there is one cell" does not check the owner. `a` deletes its cell by a clock that is ahead by a second, and writes
/// it again by a right one.
#[test]
fn a_thread_whose_cell_is_hidden_takes_somebody_elses_for_its_own() {
    let (machine, model) = world(1);
    machine.run(async {
        let mut b = SeedThread::new(&machine, "b");
        b.steps(2, &model).await;
        let mut a = SeedThread::new(&machine, "a").ahead(1_000);
        assert_eq!(a.finish(&model).await, Verdict::ConcurrentAttempt);
        b.steps(2, &model).await;

        let mut a = a.ahead(0).again();
        a.steps(2, &model).await;
        assert_eq!(SHADOW.names(&model).await, ["b"], "a has written it, and had the answer");
        assert_eq!(a.finish(&model).await, Verdict::Success);
        assert_eq!(b.finish(&model).await, Verdict::Success, "b goes in beside a");
    });
}

/// The same in the main row: no thread sees a holder that had the lock before.
#[test]
fn a_holder_whose_cell_is_hidden_under_its_last_release_is_seen_by_nobody() {
    let (machine, model) = world(1);
    machine.run(async {
        let mut a = SeedThread::new(&machine, "a");
        assert_eq!(a.finish(&model).await, Verdict::Success);
        let a = a.ahead(1_000);
        a.release(&model).await;
        assert_eq!(a.ahead(0).again().finish(&model).await, Verdict::Success);
        assert_eq!(MAIN.names(&model).await, [""; 0], "it has the lock");
        assert_eq!(SeedThread::new(&machine, "b").finish(&model).await, Verdict::Success);
    });
}

/// Steps 3 and 4, for two processes whose threads have one id, or one thread that acquires twice.
#[test]
fn who_is_called_as_the_holder_is_in_beside_it_and_frees_it_for_all() {
    let (machine, model) = world(1);
    machine.run(async {
        let [mut first, mut second] =
            ["worker-1", "worker-1"].map(|id| SeedThread::new(&machine, id));
        assert_eq!(first.finish(&model).await, Verdict::Success);
        assert_eq!(second.finish(&model).await, Verdict::Success, "both are in");
        second.release(&model).await;
        let third = SeedThread::new(&machine, "worker-2").finish(&model).await;
        assert_eq!(third, Verdict::Success, "and one more beside the first");
    });
}

/// §4 of the thesis has no lease.
#[test]
fn a_thread_that_dies_keeps_everybody_out_for_ever() {
    for (dies_after, then) in [(2, Verdict::ConcurrentAttempt), (5, Verdict::AnotherThreadIsOwner)]
    {
        let (machine, model) = world(1);
        machine.run(async {
            SeedThread::new(&machine, "dead").steps(dies_after, &model).await;
            machine.world().runtime().sleep(secs(1_000_000)).await;
            assert_eq!(SeedThread::new(&machine, "b").finish(&model).await, then);
        });
    }
}

/// The lease of the thesis' §5.3, which is a TTL and nothing else. `a` stalls for it between steps 10 and 11.
#[test]
fn with_a_ttl_and_nothing_else_a_thread_that_stalls_for_it_goes_in_beside_the_next() {
    let (machine, model) = world(1);
    machine.run(async {
        let [mut a, mut b] = ["a", "b"].map(|id| SeedThread::new(&machine, id).with_ttl(60));
        a.steps(4, &model).await;
        machine.world().runtime().sleep(secs(61)).await;
        assert_eq!(b.finish(&model).await, Verdict::Success);
        assert_eq!(a.finish(&model).await, Verdict::Success);
    });
}

/// Two that always come at once.
#[test]
fn two_in_step_never_get_it() {
    let (machine, model) = world(1);
    machine.run(async {
        for round in 0..300 {
            let [mut a, mut b] = ["a", "b"].map(|id| SeedThread::new(&machine, id));
            while a.verdict().is_none() || b.verdict().is_none() {
                a.step(&model).await;
                b.step(&model).await;
            }
            assert_eq!(
                [a.verdict(), b.verdict()],
                [Some(Verdict::ConcurrentAttempt); 2],
                "{round}"
            );
        }
    });
}
