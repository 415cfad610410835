//! Many tokens at once.

use std::sync::Mutex;

use super::*;
use crate::Error;
use crate::locker::Wait;
use crate::model::Odds;

fn two(seed: u64) -> (Machine, Model, [Process; 2], [Tokens; 2]) {
    let (machine, model) = world(seed);
    let processes = ["a", "b"].map(|name| machine.process(name));
    let lockers = [usual(&model, &processes[0]), usual(&model, &processes[1])];
    (machine, model, processes, lockers)
}

/// "Try to lock a bunch of keys, and then process the keys that were successfully locked."
#[test]
fn a_batch_gets_what_is_free_at_once_and_comes_back_for_the_rest() {
    let (machine, model, _processes, [a, b]) = two(1);
    let world = machine.world().runtime();
    machine.run(async {
        let held = a.lock("2").await.unwrap();
        let mut batch = b.batch(["3", "1", "2", "1"]);
        let began = world.clock.now();
        let bunch = batch.next().await.unwrap().unwrap();
        assert_eq!(bunch.tokens(), ["1", "3"]);
        assert!(world.clock.now().saturating_since(began) < secs(1), "it waited for 2");
        assert_eq!(session_of(&model, "1"), session_of(&model, "3"), "one session");
        assert_eq!(sessions(&model), 2);
        assert!(bunch.is_safe());
        bunch.release().await.unwrap();

        assert_eq!(batch.left().collect::<Vec<_>>(), ["2"]);
        let none = batch.next_with(Wait::No).await.unwrap_err();
        assert_eq!(none.to_string(), "2 is not granted: held by a");
        let releasing = async {
            world.sleep(secs(30)).await;
            held.release().await.unwrap();
        };
        let (bunch, ()) = futures_util::join!(batch.next(), releasing);
        let bunch = bunch.unwrap().unwrap();
        assert_eq!(bunch.tokens(), ["2"]);
        bunch.release().await.unwrap();
        assert!(batch.next().await.unwrap().is_none());
        assert_eq!(sessions(&model), 0);
    });
}

/// "In case of high conflict batches": eight workers, the same forty tokens, all faults of the model.
/// Each worker works on each token once, one worker at a time; none holds a token while it waits.
#[test]
fn batches_of_the_same_tokens_all_come_to_their_end_and_meet_on_no_token() {
    for seed in 0..6 {
        let (machine, model) = world(seed);
        let odds = Odds { answer_lost: 60, request_lost: 30, late: 30, unavailable: 30 };
        model.set_odds(odds);
        let inside = Mutex::new(std::collections::BTreeMap::<String, usize>::new());
        let processes: Vec<Process> = (0..8).map(|at| machine.process(&format!("w{at}"))).collect();
        keep_house(&model, &machine.process("housekeeper"), GRACE);
        let work = async |process: &Process| {
            let tokens = usual(&model, process);
            let mut batch = tokens.batch((0..40).map(|number| format!("t{number:02}")));
            let mut done = 0;
            while let Some(bunch) = batch.next().await.unwrap() {
                for token in bunch.tokens() {
                    let others = inside.lock().unwrap().insert(token.clone(), 1);
                    assert_eq!(others, None, "seed {seed}: two work on {token}");
                }
                process.runtime().sleep(Duration::from_millis(200)).await;
                for token in bunch.tokens() {
                    inside.lock().unwrap().remove(token);
                }
                assert!(bunch.is_safe(), "seed {seed}");
                done += bunch.tokens().len();
                drop(bunch.release().await);
            }
            assert_eq!(done, 40, "seed {seed}");
        };
        machine.run(futures_util::future::join_all(processes.iter().map(work)));
    }
}

/// Thousands of tokens with slow answers: the session beats before the batch is done.
#[test]
fn a_large_batch_beats_while_it_is_taken() {
    let (machine, model) = world(1);
    let process = machine.process("a");
    let tokens = locker(&model, &process, "a", secs(6), Duration::ZERO);
    let world = machine.world().runtime();
    machine.run(async {
        // 2,000 tokens at 16 at once, each 80 ms, twice: more than two terms.
        let mut batch = tokens.batch((0..2_000).map(|number| format!("t{number:04}")));
        let mut beats = std::collections::BTreeSet::new();
        let taking = batch.next();
        let mut taking = std::pin::pin!(taking);
        let bunch = loop {
            if let Some(session) = session_of(&model, "t0000") {
                let row = row_of(&model, &session).unwrap();
                beats.insert(row.time_ms(&Ident::new("timestamp")));
            }
            let waited = world.timeout(Duration::from_millis(100), &mut taking).await;
            if let Ok(bunch) = waited {
                break bunch.unwrap().unwrap();
            }
        };
        assert!(beats.len() > 4, "{} beats", beats.len());
        assert!(bunch.is_safe());
        assert_eq!((bunch.tokens().len(), sessions(&model)), (2_000, 1));
    });
}

/// The tokens are lost together, and may be put back.
#[test]
fn a_bunch_whose_session_was_ended_is_lost_and_its_tokens_can_have_another_turn() {
    let (machine, model, [_, b], [_, tokens]) = two(1);
    keep_house(&model, &machine.process("housekeeper"), GRACE);
    let world = machine.world().runtime();
    machine.run(async {
        let mut batch = tokens.batch(["1", "2"]);
        let bunch = batch.next().await.unwrap().unwrap();
        b.pause();
        world.sleep(secs(400)).await;
        b.resume();
        assert!(!bunch.is_safe());
        let undone = bunch.tokens().to_vec();
        assert!(matches!(bunch.release().await, Err(Error::Lost { .. })));
        batch.put_back(undone);
        let bunch = batch.next().await.unwrap().unwrap();
        assert_eq!(bunch.tokens(), ["1", "2"]);
        assert!(bunch.is_safe());
    });
}

#[test]
fn a_batch_of_nothing_is_over() {
    let (machine, model, _processes, [a, _]) = two(1);
    machine.run(async {
        let mut batch = a.batch(Vec::<String>::new());
        assert!(batch.next().await.unwrap().is_none());
        assert_eq!(model.arrived(), 0);
    });
}
