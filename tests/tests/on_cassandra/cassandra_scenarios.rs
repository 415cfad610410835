//! The scenarios of the thesis (§5.5) and of the Scylla article on three real Cassandra nodes, by every recipe at the same time: each on
//! its own tables, with a history of its own, which the judge of all runs checks.
//!
//! Figures are in `docs/cassandra.md`; here time is bounded only where the fault would be an endless wait.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::Wait;
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{BAKERY, LEASE, QUEUE, Stage, TOKENS};
use holdfast_tests::recipe::{
    LockProcess, Party, Recipe, Times, WORK, each_under_load, longest_pause, robbed,
};
use holdfast_tests::remote::RemoteScribe;
use nix::sys::signal::Signal;
use tokio::sync::Barrier;

const TTL: Duration = Times::SHORT.ttl;
/// This long after its holder is gone a waiter has the lock: a TTL ends on a whole second, a housekeeper sweeps every 1.5, a waiter looks
/// every two, and the machine is busy.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(9 + 9);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

/// One keyspace for all tests of this file, whose locks have names of their own: making tables takes three nodes longer than most of the
/// tests.
async fn set() -> Stage {
    Stage::set("scenarios", &[LEASE, QUEUE, TOKENS, BAKERY]).await
}

/// Runs `scenario` with each party at the same time, then judges each.
async fn with_each(stage: &Stage, scenario: impl AsyncFn(&Party<'_>)) {
    let parties = Party::of_each(stage, Times::SHORT);
    join_all(parties.iter().map(|party| scenario(party))).await;
    for party in parties {
        let recipe = party.recipe();
        let (report, records) = party.judge_and_keep();
        println!("{recipe:?}: {report}");
        assert_eq!(robbed(&records), None, "{recipe:?}");
        assert!(report.tally.safe_holds > 0, "{recipe:?}: {report}");
    }
}

#[tokio::test]
async fn one_lock_is_held_by_one_of_twelve_at_a_time() {
    let stage = set().await;
    let load = (12, &["twelve"][..], 15);
    each_under_load(&stage, Times::SHORT, load, async |_| sleep(secs(6)).await).await;
}

#[tokio::test]
async fn several_locks_are_held_by_several_at_a_time() {
    let stage = set().await;
    let load = (8, &["several/a", "several/b", "several/c", "several/d"][..], 40);
    each_under_load(&stage, Times::SHORT, load, async |_| sleep(secs(5)).await).await;
}

/// Over two TTLs the lock is renewed, and no other client gets it. A holder without an answer for half a TTL gives up; one of three holds
/// has to last that long.
#[tokio::test]
async fn a_lock_is_renewed_for_as_long_as_it_is_held() {
    let stage = set().await;
    with_each(&stage, async |party| {
        let client = party.client(1);
        for _ in 1..=3 {
            if is_kept_over_two_ttls(party, &client).await {
                return;
            }
        }
        panic!("{:?}: three holds were lost", party.recipe());
    })
    .await;
}

async fn is_kept_over_two_ttls(party: &Party<'_>, client: &RemoteScribe) -> bool {
    let held = client.acquire("kept", Wait::Forever).await.unwrap();
    let other = party.client(2);
    for _ in 0..=2 * TTL.as_secs() {
        held.keep(secs(1)).await;
        let had = other.acquire("kept", Wait::No).await;
        let (is_safe, is_had) = (held.guard().is_safe(), had.is_ok());
        if let Ok(had) = had {
            let _ = had.release().await;
        }
        assert!(!(is_safe && is_had), "{:?}: two have it", party.recipe());
        if !is_safe {
            let _ = held.release().await;
            return false;
        }
    }
    held.release().await.is_ok() && other.acquire("kept", Wait::AtMost(secs(20))).await.is_ok()
}

/// The holder is killed with SIGKILL, together with the first waiter.
#[tokio::test]
async fn the_lock_of_a_killed_process_passes_over_a_killed_waiter_after_its_ttl_and_not_before() {
    let stage = set().await;
    with_each(&stage, async |party| {
        let mut holder = party.process(100, &["hold", "killed"]);
        holder.says("held").await;
        let waiter = party.process(101, &["hold", "killed"]);
        waiter.waits().await;
        waiter.signal(Signal::SIGKILL);
        holder.signal(Signal::SIGKILL);
        let killed = Runtime::system().clock.now();

        let next = party.client(1);
        let held = next.acquire("killed", Wait::AtMost(secs(40))).await.unwrap();
        let took = Runtime::system().clock.now().saturating_since(killed);
        held.release().await.unwrap();
        // It held: its last renewal was no older than half a TTL, the time for which a hold is safe without a renewal.
        assert!(took > secs(4) && took < TAKEN_OVER_WITHIN, "{:?}: {took:?}", party.recipe());
    })
    .await;
}

/// Stop-the-world: the holder is frozen past its lease, another client gets the lock, and the holder knows that as soon as it wakes; it
/// deletes only its own rows then.
#[tokio::test]
async fn a_holder_that_was_frozen_past_its_term_finds_it_lost() {
    let stage = set().await;
    with_each(&stage, async |party| {
        let mut holder = party.process(100, &["hold", "frozen"]);
        holder.says("held").await;
        holder.signal(Signal::SIGSTOP);
        let next = party.client(1).acquire("frozen", Wait::AtMost(secs(40))).await.unwrap();
        holder.signal(Signal::SIGCONT);
        holder.says("lost").await;
        // If the frozen client released rows that are not its own, this client loses the lock, or a third one has it as well.
        next.keep(secs(3)).await;
        if let Ok(had) = party.client(2).acquire("frozen", Wait::No).await {
            had.release().await.unwrap();
        }
        let _ = next.release().await;
    })
    .await;
}

/// Deadlock: each client wants two of three locks, in an order of its own, and has the first when it asks for the second. A wait with a
/// limit ends, the client releases the lock that it has, and after pauses of different lengths every client succeeds.
#[tokio::test]
async fn who_gives_back_what_he_has_when_a_wait_ends_is_not_stuck_for_ever() {
    const PAIRS: [[&str; 2]; 3] = [["two/a", "two/b"], ["two/b", "two/c"], ["two/c", "two/a"]];
    let stage = set().await;
    with_each(&stage, async |party| {
        let firsts = Barrier::new(PAIRS.len());
        let both = async |id: u64, [first, second]: [&str; 2]| {
            let client = party.client(id);
            for attempt in 1..=8 {
                let first = client.acquire(first, Wait::AtMost(secs(20))).await.unwrap();
                if attempt == 1 {
                    firsts.wait().await;
                }
                let had = client.acquire(second, Wait::AtMost(secs(2))).await;
                first.release().await.unwrap();
                if let Ok(second) = had {
                    return second.release().await.unwrap();
                }
                sleep(secs(2 * (id - 1))).await;
            }
            panic!("{:?}: client {id} never had both", party.recipe());
        };
        join_all((1..).zip(PAIRS).map(|(id, pair)| both(id, pair))).await;
    })
    .await;
}

/// Starvation: eight clients go on until each has had the one lock, by queue and bakery three times. Only these promise an order; with the
/// other recipes chance gives each client a turn, and the test bounds the time.
#[tokio::test]
async fn each_of_eight_at_one_lock_has_its_turn() {
    const WITHIN: Duration = secs(90);
    let stage = set().await;
    with_each(&stage, async |party| {
        let has_an_order = matches!(party.recipe(), Recipe::Queue | Recipe::Bakery);
        let turns = if has_an_order { 3 } else { 1 };
        let had: [AtomicUsize; 8] = Default::default();
        let clock = Runtime::system().clock;
        let began = clock.now();
        let starved = || had.iter().any(|had| had.load(Ordering::Relaxed) < turns);
        let work = async |(id, own): (u64, &AtomicUsize)| {
            let client = party.client(id);
            while starved() && clock.now().saturating_since(began) < WITHIN {
                if let Ok(held) = client.acquire("eight", Wait::AtMost(secs(10))).await {
                    own.fetch_add(1, Ordering::Relaxed);
                    held.keep(WORK).await;
                    let _ = held.release().await;
                }
                // A client does other things between its turns.
                sleep(WORK).await;
            }
        };
        join_all((1..).zip(&had).map(work)).await;
        let took = clock.now().saturating_since(began);
        println!("{:?}: turns {had:?} within {took:?}", party.recipe());
        assert!(!starved(), "{:?}: {had:?} within {took:?}", party.recipe());
    })
    .await;
}

/// Redeployment: every worker's process is replaced, one after the other, while all work. One of them does not end when asked and is
/// killed.
#[tokio::test]
async fn all_workers_replaced_under_load_leave_nothing_locked() {
    const NAMES: [&str; 4] = ["work", "redeployed/a", "redeployed/b", "redeployed/c"];
    const WORKERS: u64 = 4;
    let stage = set().await;
    with_each(&stage, async |party| {
        let started = async |id: u64| {
            let mut worker = party.process(id, &NAMES);
            worker.says("ready").await;
            worker
        };
        let mut workers: Vec<LockProcess> = join_all((1..=WORKERS).map(started)).await;
        for id in 1..=WORKERS {
            sleep(secs(1)).await;
            let old = workers.remove(0);
            if id == 2 {
                old.signal(Signal::SIGKILL);
            } else {
                old.end().await;
            }
            workers.push(started(10 + id).await);
        }
        // The locks of the killed process are free by then.
        sleep(TTL + secs(2)).await;
        for worker in workers {
            worker.end().await;
        }
        let (pause, name) = longest_pause(&party.history_of_processes()).unwrap();
        println!("{:?}: longest pause {pause:?}, of {name}", party.recipe());
        assert!(
            pause < TAKEN_OVER_WITHIN,
            "{:?}: {name} was not had for {pause:?}",
            party.recipe()
        );
        let next = party.locker("next");
        for name in &NAMES[1..] {
            assert!(next.try_lock(name).await.unwrap().is_some(), "{name} is still locked");
        }
    })
    .await;
}
