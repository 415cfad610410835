use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::super::{Machine, Process, current};
const SECOND: Duration = Duration::from_secs(1);

/// Counts every tenth of a second until it is dropped.
fn ticks(process: &Process) -> Arc<AtomicU64> {
    let (runtime, count) = (process.runtime(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&count);
    let tick = async move {
        loop {
            runtime.sleep(SECOND / 10).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    process.runtime().spawn("tick", tick).detach();
    count
}

/// Keeps a value until the task is dropped.
async fn keep<T>(something: T) {
    std::future::pending::<()>().await;
    drop(something);
}

fn wait(machine: &Machine, length: Duration) {
    let runtime = machine.world().runtime();
    machine.run(async move { runtime.sleep(length).await });
}

/// Ten tasks that communicate over channels, a watch among them, and sleep for random times.
fn busy_life(seed: u64) -> (u64, Vec<u64>) {
    let machine = Machine::new(seed);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (news, _) = watch::channel(0);
    let (tell, mut told) = mpsc::channel(4);
    for number in 0..10_u64 {
        let process = machine.process("talker");
        let (runtime, tell, mut news) = (process.runtime(), tell.clone(), news.subscribe());
        let talk = async move {
            while news.changed().await.is_ok() {
                runtime.sleep(Duration::from_micros(runtime.rng.next_u64() % 1_000)).await;
                let _ = tell.send(number).await;
            }
        };
        process.runtime().spawn("talk", talk).detach();
    }
    let (runtime, into) = (machine.world().runtime(), Arc::clone(&heard));
    machine.run(async move {
        for round in 1..20 {
            news.send_replace(round);
            for _ in 0..10 {
                let number = told.recv().await.unwrap();
                into.lock().unwrap().push(number);
            }
            runtime.sleep(SECOND).await;
        }
    });
    let order = heard.lock().unwrap().clone();
    (machine.digest(), order)
}

/// tokio's watch channel wakes its receivers in a random order; the run must not depend on it.
#[test]
fn the_same_seed_is_the_same_run_step_by_step() {
    let (digest, order) = busy_life(7);

    for _ in 0..20 {
        assert_eq!(busy_life(7), (digest, order.clone()));
    }
    assert_ne!(busy_life(8).1, order);
}

#[test]
fn a_paused_process_does_nothing_and_its_clock_goes_on() {
    let machine = Machine::new(1);
    let process = machine.process("node");
    let count = ticks(&process);
    let before = process.runtime().clock.now();

    wait(&machine, SECOND);
    process.pause();
    let at_pause = count.load(Ordering::Relaxed);
    wait(&machine, 5 * SECOND);
    let paused = count.load(Ordering::Relaxed);
    process.resume();
    wait(&machine, SECOND);

    assert!((9..=10).contains(&at_pause), "{at_pause} ticks in a second");
    assert_eq!(paused, at_pause);
    assert!(count.load(Ordering::Relaxed) >= at_pause + 10);
    assert_eq!(process.runtime().clock.now().saturating_since(before), 7 * SECOND);
}

/// A task that it starts while it is dropped never runs either.
#[test]
fn a_killed_process_is_dropped_where_it_stands_and_never_runs_again() {
    struct TellsEnd(Process, Arc<AtomicU64>);
    impl Drop for TellsEnd {
        fn drop(&mut self) {
            let own = current().is_some_and(|process| process.name() == self.0.name());
            self.1.fetch_add(u64::from(own), Ordering::Relaxed);
            let late = Arc::clone(&self.1);
            let task = async move {
                late.fetch_add(100, Ordering::Relaxed);
            };
            self.0.runtime().spawn("late", task).detach();
        }
    }
    let machine = Machine::new(1);
    let process = machine.process("node");
    let (count, ends) = (ticks(&process), Arc::new(AtomicU64::new(0)));
    let held = TellsEnd(process.clone(), Arc::clone(&ends));
    process.runtime().spawn("held", keep(held)).detach();
    wait(&machine, SECOND);

    process.kill();
    let at_kill = count.load(Ordering::Relaxed);
    wait(&machine, 5 * SECOND);

    assert!(!process.is_alive());
    assert_eq!(count.load(Ordering::Relaxed), at_kill);
    assert_eq!(ends.load(Ordering::Relaxed), 1);
}

#[test]
fn a_process_may_kill_itself() {
    let machine = Machine::new(1);
    let process = machine.process("node");
    let count = ticks(&process);
    let (runtime, itself) = (process.runtime(), process.clone());
    let end = async move {
        runtime.sleep(SECOND).await;
        itself.kill();
        runtime.sleep(SECOND).await;
    };
    process.runtime().spawn("end", end).detach();

    wait(&machine, 5 * SECOND);

    assert!(!process.is_alive());
    assert!(count.load(Ordering::Relaxed) <= 10);
}

/// Waits that have begun already move with the clock.
#[test]
fn a_clock_that_runs_fast_is_ahead_and_wakes_early() {
    let machine = Machine::new(1);
    let (usual, fast) = (machine.process("usual"), machine.process("fast"));
    let (slow_count, fast_count) = (ticks(&usual), ticks(&fast));
    let before = fast.runtime().clock.now();

    fast.set_rate(500_000);
    wait(&machine, 10 * SECOND);

    let passed = fast.runtime().clock.now().saturating_since(before);
    assert_eq!(passed, 15 * SECOND);
    assert!(slow_count.load(Ordering::Relaxed) <= 100);
    assert!((148..=150).contains(&fast_count.load(Ordering::Relaxed)));
}

#[test]
fn a_local_deadline_can_be_told_on_the_worlds_clock() {
    let machine = Machine::new(1);
    let (world, process) = (machine.world().runtime(), machine.process("slow"));
    process.set_rate(-100_000);
    let (runtime, before) = (process.runtime(), world.clock.now());
    let deadline = runtime.clock.now() + 9 * SECOND;
    let expected = process.on_the_worlds_clock(deadline);

    machine.run(async move { runtime.clock.sleep_until(deadline).await });

    assert_eq!(world.clock.now(), expected);
    assert_eq!(expected, before + 10 * SECOND);
}

#[test]
fn an_aborted_task_is_dropped_and_counts_as_finished() {
    let machine = Machine::new(1);
    let process = machine.process("node");
    let ended = Arc::new(());
    let held = Arc::clone(&ended);
    let task = process.runtime().spawn("held", keep(held));
    wait(&machine, SECOND);
    assert!(!task.is_finished());

    drop(task);
    wait(&machine, SECOND);

    assert_eq!(Arc::strong_count(&ended), 1);
}

#[test]
#[should_panic(expected = "nothing can ever happen again")]
fn a_life_in_which_nothing_can_happen_ends() {
    Machine::new(1).run(std::future::pending::<()>());
}

#[test]
fn a_process_sees_time_pass_between_two_looks_if_looks_take_any() {
    let machine = Machine::new(1);
    let (process, world) = (machine.process("a"), machine.world());
    let runtime = process.runtime();
    let look = || runtime.clock.now();
    assert_eq!(look(), look());
    machine.set_look_takes(Duration::from_micros(3));
    let began = look();
    assert_eq!(look().saturating_since(began), Duration::from_micros(3));
    let clock = world.runtime().clock;
    assert_eq!(clock.now(), clock.now());
    // A timer that became due meanwhile is late, but not lost.
    let until = look() + Duration::from_micros(10);
    for _ in 0..10 {
        let _ = look();
    }
    machine.run(runtime.clock.sleep_until(until));
    assert!(look() > until);
}
