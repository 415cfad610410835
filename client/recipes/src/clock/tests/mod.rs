//! The time service on the model of its table.

mod access;
mod asked;
mod belief;
mod flaws;
mod order;

use std::cell::Cell as Counter;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_runtime::Rng;
use holdfast_runtime::simulated::{Machine, Process};

use super::*;
use crate::Cassandra;
use crate::RefusalReason;
use crate::database::{Answer, Database};
use crate::model::{Model, Odds};
use crate::statement::{Action, Statement, Value};
use crate::test_support::{cassandra, world};

const MINUTE: Duration = Duration::from_mins(1);

const fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

fn replica(model: &Model, process: &Process) -> TimeReplica {
    TimeReplica::new(&cassandra(model, process), TimeTable::default(), TimeOptions::default())
        .unwrap()
}

/// A replica that keeps the time going while its process runs.
fn kept(model: &Model, process: &Process) -> TimeReplica {
    let kept = replica(model, process);
    let config = kept.clone();
    process.runtime().spawn("keep", async move { drop(config.keep(|_| {}).await) }).detach();
    kept
}

fn cell(action: Action) -> Statement {
    let key = vec![(Ident::new("name"), Value::from("GlobalTime"))];
    Statement::new(Ident::new("global_time"), key, action)
}

fn put(value: Value, at_us: i64) -> Statement {
    cell(Action::Put { cells: vec![(Ident::new("value"), Some(value))], ttl_s: 0, at_us })
}

/// Listing 8, step 2, and the article's answer: "it is enough to return the current value of the cell".
async fn old_answer(model: &Model) -> Option<i64> {
    let columns = vec![Ident::new("value")];
    match model.execute(cell(Action::First { columns, limit: 1 })).await {
        Ok(Answer::Rows(rows)) => rows.first()?.long(&Ident::new("value")),
        _ => None,
    }
}

/// Listing 8, unchanged.
async fn old_update(model: &Model, process: &Process) {
    // Step 1.
    let local_time = i64::try_from(process.runtime().clock.wall_ms()).unwrap() * 1_000;
    // Step 2.
    let global_time = old_answer(model).await.unwrap_or(0);
    // Steps 3 and 4.
    if local_time > global_time {
        let _ = model.execute(put(Value::Long(local_time), local_time)).await;
    }
}

/// An old replica, with an update every 500 ms while its process runs.
fn old_replica(model: &Model, process: &Process) {
    let (model, old) = (model.clone(), process.clone());
    let updating = async move {
        loop {
            old_update(&model, &old).await;
            old.runtime().sleep(ms(500)).await;
        }
    };
    process.runtime().spawn("old", updating).detach();
}

fn below(process: &Process, number: u64) -> u64 {
    Rng::next_u64(process) % number
}

/// Askers of any of the replicas, for a while; each answer is compared with the largest answer that any
/// asker had before the question.
struct Askers {
    replicas: Mutex<Vec<(Process, TimeReplica)>>,
    largest: Counter<u64>,
    answers: Counter<usize>,
}

impl Askers {
    fn new() -> Self {
        let replicas = Mutex::new(Vec::new());
        Self { replicas, largest: Counter::new(0), answers: Counter::new(0) }
    }

    fn begin(&self, model: &Model, process: Process) {
        let replica = kept(model, &process);
        self.replicas.lock().unwrap().push((process, replica));
    }

    async fn ask_on(&self, asker: &Process, seed: u64) {
        let runtime = asker.runtime();
        let until = runtime.clock.now() + MINUTE * 2;
        while runtime.clock.now() < until {
            let (process, replica) = {
                let replicas = self.replicas.lock().unwrap();
                let at = usize::try_from(below(asker, replicas.len() as u64)).unwrap();
                replicas[at].clone()
            };
            let floor = self.largest.get();
            // A replica that is paused or dead does not answer.
            let answer = runtime.timeout(ms(3_000), replica.now_us()).await;
            if let (Ok(Ok(answer)), true) = (answer, process.is_alive()) {
                assert!(answer >= floor, "seed {seed}: {answer} after {floor}");
                self.largest.set(answer.max(self.largest.get()));
                self.answers.set(self.answers.get() + 1);
            }
            runtime.sleep(ms(below(asker, 400))).await;
        }
    }

    /// Replicas stall, die and are replaced by new ones with other clocks.
    async fn disturb(&self, machine: &Machine, model: &Model) {
        let world = machine.world();
        for turn in 0..20 {
            world.runtime().sleep(ms(2_000 + below(&world, 4_000))).await;
            let at = usize::try_from(below(&world, 3)).unwrap();
            let process = self.replicas.lock().unwrap()[at].0.clone();
            match below(&world, 4) {
                0 => process.pause(),
                1 => process.resume(),
                2 => process.set_wall_skew(skew(&world)),
                _ => {
                    process.kill();
                    let next = machine.process(&format!("replica-{turn}"));
                    next.set_wall_skew(skew(&world));
                    let replica = kept(model, &next);
                    self.replicas.lock().unwrap()[at] = (next, replica);
                }
            }
        }
    }
}

/// Up to 40 s, either way.
fn skew(world: &Process) -> i64 {
    i64::try_from(below(world, 80_000)).unwrap() - 40_000
}

/// Three replicas with clocks that differ and jump stall, die and are replaced, while statements get
/// lost or come late; five askers ask any of them for two minutes. Returns the number of answers.
fn live(seed: u64, beside_old_ones: bool) -> usize {
    let (machine, model) = world(seed);
    model.set_odds(Odds { answer_lost: 40, request_lost: 150, late: 60, unavailable: 20 });
    let askers = Askers::new();
    for name in ["a", "b", "c"] {
        let process = machine.process(name);
        process.set_wall_skew(skew(&machine.world()));
        process.set_rate(i32::try_from(below(&machine.world(), 2_000)).unwrap() - 1_000);
        askers.begin(&model, process);
    }
    for name in ["old-1", "old-2"] {
        if beside_old_ones {
            let process = machine.process(name);
            process.set_wall_skew(skew(&machine.world()));
            old_replica(&model, &process);
        }
    }
    let who: Vec<_> = (0..5).map(|nth| machine.process(&format!("asker-{nth}"))).collect();
    machine.run(async {
        let asking = join_all(who.iter().map(|asker| askers.ask_on(asker, seed)));
        futures_util::join!(asking, askers.disturb(&machine, &model));
    });
    askers.answers.get()
}

#[test]
fn no_answer_is_less_than_one_given_before_the_question() {
    let answers: usize = (0..60).map(|seed| live(seed, false)).sum();
    assert!(answers > 8_000, "{answers} answers");
}

#[test]
fn beside_old_replicas_no_answer_of_ours_is_less_than_one_before() {
    let answers: usize = (100..140).map(|seed| live(seed, true)).sum();
    assert!(answers > 5_000, "{answers} answers");
}

/// No replica stalls: the time is that of the fastest running clock, at most an update and an answer
/// behind it.
#[test]
fn the_time_is_the_largest_of_the_replicas_clocks() {
    let (machine, model) = world(1);
    let processes = [0, 3_000, -5_000].map(|skew| {
        let process = machine.process("replica");
        process.set_wall_skew(skew);
        process
    });
    let replicas = processes.each_ref().map(|process| kept(&model, process));
    let clock = machine.world().runtime().clock;
    machine.run(async {
        clock.sleep_until(clock.now() + MINUTE).await;
        for replica in &replicas {
            let largest = (clock.wall_ms() + 3_000) * 1_000;
            let answer = replica.now_us().await.unwrap();
            assert!((largest - 1_000_000..=largest + 500_000).contains(&answer), "{answer}");
        }
    });
}

/// Four questions at the same time, and one alone: a read each, once the value is known to be settled.
#[test]
fn an_answer_is_one_read_that_those_who_ask_together_share() {
    let (machine, model) = world(2);
    let process = machine.process("replica");
    let replica = replica(&model, &process);
    machine.run(async {
        replica.update().await.unwrap();
        let before = model.arrived();
        let answers = join_all((0..4).map(|_| replica.now_us())).await;
        assert_eq!(answers.iter().filter(|answer| **answer == answers[0]).count(), 4);
        assert_eq!(model.arrived() - before, 1);
        replica.now_us().await.unwrap();
        assert_eq!(model.arrived() - before, 2);
    });
}

/// The second replica writes the first one's value once more, and then knows it as settled.
#[test]
fn what_a_replica_did_not_write_is_settled_before_it_is_answered() {
    let (machine, model) = world(3);
    let (first, second) = (machine.process("a"), machine.process("b"));
    let (first, second) = (replica(&model, &first), replica(&model, &second));
    machine.run(async {
        let written = first.update().await.unwrap().time_us.unwrap();
        let before = model.arrived();
        assert_eq!(second.now_us().await.unwrap(), written);
        assert_eq!(second.now_us().await.unwrap(), written);
        assert_eq!(model.arrived() - before, 3, "a read and a write, and a read");
    });
}

#[test]
fn a_cell_with_what_is_no_time_is_refused_by_name() {
    let wrong = [
        (Value::from("noon\u{1b}"), "Text(\\\""),
        (Value::Long(-1), "has -1, which is no time"),
        (Value::Long(0), "has 0, which is no time"),
        (Value::Long(i64::MAX), "9223372036854775807"),
    ];
    for (value, says) in wrong {
        let (machine, model) = world(7);
        let process = machine.process("a");
        let replica = replica(&model, &process);
        let runtime = machine.world().runtime();
        machine.run(async {
            model.execute(put(value, 1)).await.unwrap();
            runtime.sleep(ms(10_000)).await;
            let kept = runtime.timeout(MINUTE, replica.keep(|_| {})).await.unwrap();
            for error in [kept, replica.now_us().await.unwrap_err()] {
                let invalid =
                    matches!(error, Error::Refused { reason: RefusalReason::Invalid, .. });
                let error = error.to_string();
                assert!(invalid && error.contains(says), "{error}");
                assert!(error.contains("table global_time: \"GlobalTime\" has"), "{error}");
                assert!(!error.contains('\u{1b}'), "{error:?}");
            }
        });
    }
}

#[test]
fn an_interval_out_of_bounds_is_refused() {
    let (machine, model) = world(1);
    let cassandra = cassandra(&model, &machine.process("a"));
    for (interval, fits) in [(9, false), (10, true), (60_000, true), (60_001, false)] {
        let options = TimeOptions::default().interval(ms(interval));
        let made = TimeReplica::new(&cassandra, TimeTable::default(), options);
        assert_eq!(made.is_ok(), fits, "{interval} ms");
        if let Err(error) = made {
            assert!(error.to_string().contains("an interval is 10ms to 60s"), "{error}");
        }
    }
}
