//! Where the article stops, each demonstrated with its own steps on the model; and that it lets no two
//! workers in.

use super::*;
use crate::seed_clients::SeedClient as _;

/// "Example where nobody gets the lock", unchanged, again and again.
#[test]
fn two_in_step_never_get_it() {
    let (machine, model) = world(1);
    machine.run(async {
        for round in 0..300 {
            let [mut a, mut b] =
                ["a", "b"].map(|name| SeedWorker::new(&machine, &format!("{name}-{round}")));
            while a.had().is_none() || b.had().is_none() {
                a.step(&model).await;
                b.step(&model).await;
            }
            assert_eq!([a.had(), b.had()], [Some(false); 2], "round {round}");
        }
    });
}

#[test]
fn in_no_order_of_their_statements_are_two_of_the_seeds_workers_in() {
    let mut ends = [0; 3];
    for plan in orders(3, 3) {
        let (machine, model) = world(1);
        machine.run(async {
            let [mut a, mut b] = ["a", "b"].map(|name| SeedWorker::new(&machine, name));
            for before in plan {
                for _ in 0..before.steps {
                    b.step(&model).await;
                }
                a.step(&model).await;
            }
            let had = [a.finish(&model).await, b.finish(&model).await];
            ends[had.iter().filter(|had| **had).count()] += 1;
        });
    }
    println!("nobody, one, both: {ends:?}");
    assert!(ends[0] > 0 && ends[1] > 0 && ends[2] == 0, "{ends:?}");
}

/// "Other processes will not be able to acquire this lock ever", it says of its second table; here that holds for an
/// attempt, too.
#[test]
fn a_worker_that_dies_keeps_everybody_out_for_ever() {
    for dies_after in [1, 2] {
        let (machine, model) = world(1);
        machine.run(async {
            let mut dead = SeedWorker::new(&machine, "dead");
            for _ in 0..dies_after {
                dead.step(&model).await;
            }
            machine.world().runtime().sleep(secs(1_000_000)).await;
            assert!(!SeedWorker::new(&machine, "next").finish(&model).await, "{dies_after}");
        });
    }
}

/// A write without an answer, which the article does not mention: its loop draws the next session.
#[test]
fn a_write_whose_answer_is_lost_keeps_its_own_worker_out_for_ever() {
    let (machine, model) = world(1);
    machine.run(async {
        // The worker takes the write for not applied.
        SeedWorker::new(&machine, "a-0").step(&model).await;
        for attempt in 1..300 {
            let mut worker = SeedWorker::new(&machine, &format!("a-{attempt}"));
            assert!(!worker.finish(&model).await, "attempt {attempt}");
        }
    });
}

/// The delete goes through a coordinator that is a second behind the one that wrote.
#[test]
fn a_row_that_is_deleted_by_a_clock_behind_stays_for_ever() {
    let (machine, model) = world(1);
    machine.run(async {
        let mut held = SeedWorker::new(&machine, "a").ahead(1_000);
        assert!(held.finish(&model).await);
        held.ahead(0).release(&model).await;
        machine.world().runtime().sleep(secs(1_000_000)).await;
        assert!(!SeedWorker::new(&machine, "b").finish(&model).await);
    });
}
