//! The effect of the time on the order of a queue.

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::{LockerOptions, Queue, QueueTables, QueueTime, RemoteLocker};

fn queue(model: &Model, process: &Process) -> Queue {
    let options = LockerOptions::default().service(process.name());
    Queue::new(&cassandra(model, process), &options, QueueTables::default()).unwrap()
}

/// The lock is held. `a` comes, and half a second later `b`, whose machine's clock is one second
/// behind. Returns the order in which they get the lock.
fn order(seed: u64, by_service: bool) -> Vec<String> {
    let (machine, model) = world(seed);
    let processes = ["holder", "a", "b"].map(|name| machine.process(name));
    processes[2].set_wall_skew(-1_000);
    // As on servers of their own: of the three clocks one is that of b.
    let replicas = processes.each_ref().map(|process| {
        let options = TimeOptions::default().interval(ms(100));
        let replica =
            TimeReplica::new(&cassandra(&model, process), TimeTable::default(), options).unwrap();
        let config = replica.clone();
        process.runtime().spawn("keep", async move { drop(config.keep(|_| {}).await) }).detach();
        replica
    });
    let [holder, a, b] = [0, 1, 2].map(|at| {
        let queue = queue(&model, &processes[at]);
        if by_service { queue.with_time(Arc::new(replicas[at].clone())) } else { queue }
    });
    let runtime = machine.world().runtime();
    let order = Mutex::new(Vec::new());
    machine.run(async {
        runtime.sleep(ms(1_000)).await;
        let held = holder.lock("jobs").await.unwrap();
        let wait = async |queue: &Queue, after_ms: u64| {
            runtime.sleep(ms(after_ms)).await;
            let guard = queue.lock("jobs").await.unwrap();
            order.lock().unwrap().push(guard.owner().to_owned());
            guard.release().await.unwrap();
        };
        let release = async {
            runtime.sleep(ms(10_000)).await;
            held.release().await.unwrap();
        };
        futures_util::join!(wait(&a, 2_000), wait(&b, 2_500), release);
    });
    order.into_inner().unwrap()
}

#[test]
fn by_local_clocks_a_later_client_with_a_clock_that_is_behind_is_first() {
    for seed in 0..20 {
        assert_eq!(order(seed, false), ["b", "a"], "seed {seed}");
    }
}

#[test]
fn by_the_time_service_the_client_that_came_first_is_first_whatever_the_clocks() {
    for seed in 0..20 {
        assert_eq!(order(seed, true), ["a", "b"], "seed {seed}");
    }
}

/// A time source that fails repeatedly; then it answers, or it refuses for good.
struct Silent {
    answers: Mutex<Vec<Result<u64>>>,
}

impl QueueTime for Silent {
    fn now_us(&self) -> BoxFuture<'_, Result<u64>> {
        let mut answers = self.answers.lock().unwrap();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        Box::pin(ready(answer))
    }
}

async fn places(model: &Model) -> Vec<String> {
    let key = vec![(Ident::new("key"), Value::from("jobs"))];
    let columns = vec![Ident::new("column1")];
    let read = Action::First { columns, limit: 10 };
    match model.execute(Statement::new(Ident::new("lock_queue"), key, read)).await {
        Ok(Answer::Rows(rows)) => {
            let places = rows.iter().filter_map(|row| row.text(&Ident::new("column1")));
            places.map(str::to_owned).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn not_now() -> Result<u64> {
    let endpoints = vec!["a:1".into()];
    Err(Error::Unreachable {
        endpoints,
        waited: MINUTE,
        last: "connection refused".into(),
        answered: false,
    })
}

/// The local clock is available, and is not used.
#[test]
fn without_the_time_there_is_no_place_and_no_lock_until_it_is_told() {
    let (machine, model) = world(1);
    let process = machine.process("a");
    let mut answers = vec![not_now(); 5];
    answers.push(Ok(77));
    let queue = queue(&model, &process);
    let later = queue.clone().with_time(Arc::new(Silent { answers: Mutex::new(answers) }));
    let never = queue.with_time(Arc::new(Silent { answers: Mutex::new(vec![not_now()]) }));
    machine.run(async {
        let error = never.lock_within("jobs", ms(20_000)).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let says = "no time for a place in the queue: no server could be reached";
        assert!(error.to_string().contains(says), "{error}");
        let tried = never.try_lock("jobs").await.unwrap_err();
        assert!(matches!(tried, Error::Unreachable { .. }), "{tried:?}");
        assert_eq!(places(&model).await, [""; 0]);

        let guard = later.lock("jobs").await.unwrap();
        let places = places(&model).await;
        assert!(
            places.len() == 1 && places[0].starts_with("00000000000000000077hf1:"),
            "{places:?}"
        );
        guard.release().await.unwrap();
    });
}

#[test]
fn a_time_service_that_refuses_ends_the_wait() {
    let (machine, model) = world(1);
    let process = machine.process("a");
    let answers = Mutex::new(vec![Err(Error::invalid("the cell has no time".into()))]);
    let queue = queue(&model, &process).with_time(Arc::new(Silent { answers }));
    machine.run(async {
        let error = queue.lock("jobs").await.unwrap_err();
        assert!(error.to_string().contains("refused: the cell has no time"), "{error}");
    });
}
