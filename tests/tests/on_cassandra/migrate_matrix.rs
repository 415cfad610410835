//! The rolling move of 20 workers under load, to the native store, to the native store with fallback on Cassandra, and back, on three real
//! Cassandra nodes and three real servers, while something is killed with SIGKILL at every step: a worker, the migrate tool, the server's
//! leader, or a Cassandra node. Every run writes a history, which the judge of all runs checks.
//!
//! A run is a whole round trip, so that each of its steps is a cell of the matrix, and each step begins with the state that the steps
//! before it left. In `tests/run` there is one: a worker is killed at one drawn step and a Cassandra node at another, which take 20 to 30 s
//! each; at every other step the tool or the leader, drawn anew. `tests/run full` runs each fault at every step three times, and once more beside
//! old clients, which hold a lock for a hundredth of the time: a tool that looks for them may well see none.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::{Admin, Client, Error};
use holdfast_recipes::{Locker, LockerMode, LockerOptions, ModesTable, ScopeModes, Stage};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Stage as Nodes;
use holdfast_tests::cluster::Cluster;
use holdfast_tests::draw::Draw;
use holdfast_tests::fallback;
use holdfast_tests::legacy;
use holdfast_tests::moving::{Move, migrate};
use holdfast_tests::program::Ended;
use holdfast_tests::python::Python;
use holdfast_tests::recipe::{LockProcess, Party, Recipe, Times, WORK};
use holdfast_tests::remote::RemoteScribe;
use nix::sys::signal::Signal;
use tokio::sync::Mutex;

/// Workers, of which one is a process of its own while a worker is to be killed.
const WORKERS: u64 = 20;
/// The first client of a process of its own.
const VICTIM: u64 = 1_000;
/// The first client of the old ones.
const OLD: u64 = 2_000;
/// Two clients at a time, which hold a lock for 10 ms and then do not want one for a second on average.
const OLD_WORK: [&str; 4] = ["work", "2", "10", "2000"];
/// How long they work beside the others, where the scope is back.
const OLD_AGAIN_FOR: Duration = Duration::from_secs(10);
/// Rows and leases: a dead worker is out of the way after so long.
const TIMES: Times = Times { ttl: Duration::from_secs(21), skew: Duration::from_secs(7) };
/// Longer than a step takes, with a dead worker in its way.
const STEP_LIMIT: Duration = Duration::from_mins(3);

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Worker,
    Tool,
    Leader,
    Node,
}

const FAULTS: [Fault; 4] = [Fault::Worker, Fault::Tool, Fault::Leader, Fault::Node];

/// A step of the round trip: the modes of the workers before and after it, and how the scope follows.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    from: LockerMode,
    to: LockerMode,
    command: &'static [&'static str],
    stage: Stage,
}

const STEPS: [Step; 7] = [
    Step {
        name: "to both",
        from: LockerMode::Cassandra,
        to: LockerMode::Both,
        command: &["cutover", "--to", "both"],
        stage: Stage::Both,
    },
    // The rows of an old client are imported. The workers stay.
    Step {
        name: "import",
        from: LockerMode::Both,
        to: LockerMode::Both,
        command: &["cutover", "--writers-stopped"],
        stage: Stage::Native,
    },
    Step {
        name: "to native",
        from: LockerMode::Both,
        to: LockerMode::Native,
        command: &["cutover", "--writers-stopped"],
        stage: Stage::Native,
    },
    Step {
        name: "to fallback",
        from: LockerMode::Native,
        to: LockerMode::Fallback,
        command: &["cutover", "--to", "fallback"],
        stage: Stage::Fallback,
    },
    Step {
        name: "back to native",
        from: LockerMode::Fallback,
        to: LockerMode::Native,
        command: &["rollback", "--to", "native"],
        stage: Stage::Native,
    },
    Step {
        name: "back to both",
        from: LockerMode::Native,
        to: LockerMode::Both,
        command: &["rollback", "--to", "both"],
        stage: Stage::Both,
    },
    Step {
        name: "back to cassandra",
        from: LockerMode::Both,
        to: LockerMode::Cassandra,
        command: &["rollback"],
        stage: Stage::Cassandra,
    },
];

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

/// One round trip.
struct Trip<'a> {
    stage: &'a Nodes,
    party: &'a Party<'a>,
    cluster: Mutex<Cluster>,
    endpoints: String,
    scope: String,
    modes: ScopeModes,
    admin: Admin,
    names: Vec<String>,
    /// Runs old clients, if there are any.
    python: Option<&'a Python>,
}

impl Trip<'_> {
    /// Clients that know only the recipe.
    async fn old(&self, id: u64) -> Option<LockProcess> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let (task, script) = ([&OLD_WORK[..], &names].concat(), legacy::script("client.py"));
        let mut old = self.party.foreign(self.python?.program(), &script, id, &task);
        old.says("ready").await;
        Some(old)
    }

    /// However often the tool looks, and whatever it sees: the operator has to say that old clients are stopped.
    async fn stays_while_old_clients_may_write(&self) {
        let line = ["--scope", &self.scope, "--from", "lease", "--wait", "10s"];
        let ended = migrate(self.stage, &self.endpoints, "cutover", &line).end(STEP_LIMIT).await;
        assert!(ended.code == Some(122) && ended.err.contains("--writers-stopped"), "{ended:?}");
        assert_eq!(self.modes.view().await.unwrap().stage, Stage::Both);
    }

    /// A worker: as far as locks are concerned a process of its own, with a row of its own.
    async fn worker(&self, id: u64) -> (Locker, RemoteScribe) {
        let service = format!("client-{id}");
        let row = LockerOptions::default().service(&service).ttl(TIMES.ttl).max_skew(TIMES.skew);
        let client = Client::connect(self.endpoints.split(',')).await.unwrap();
        let lease = self.party.locker(&service);
        let falls_back = fallback::options(&row);
        let locker = Locker::builder(&self.stage.cassandra(), &self.scope, lease).row(row);
        let locker = locker.native(client).fallback(falls_back);
        let locker = locker.start(LockerMode::Cassandra).await.unwrap();
        (locker.clone(), self.party.scribe(Arc::new(locker), id))
    }

    /// All steps, while all workers work.
    async fn make(&self, faults: &[Fault], draw: &mut Draw) {
        let entering = (1..=WORKERS).map(|id| self.worker(id));
        let (lockers, clients): (Vec<_>, Vec<_>) = join_all(entering).await.into_iter().unzip();
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let stop = AtomicBool::new(false);
        let is_over = || stop.load(Ordering::Relaxed);
        let working = clients.iter().map(|client| client.work(&names, WORK, is_over));
        let moving = async {
            let mut old = self.old(OLD).await;
            for (number, (step, fault)) in (0..).zip(STEPS.iter().zip(faults)) {
                if step.command.contains(&"--writers-stopped")
                    && let Some(old) = old.take()
                {
                    self.stays_while_old_clients_may_write().await;
                    old.end().await;
                }
                let clock = Runtime::system().clock;
                let began = clock.now();
                if step.to == LockerMode::Fallback {
                    self.until_done(|| self.admin.set_scope(&self.scope)).await;
                }
                let after = Duration::from_millis(draw.between(100, 1_500));
                self.step(step, *fault, after, number, &lockers).await;
                let took = clock.now().saturating_since(began);
                println!("{}, {fault:?} killed after {after:?}: made in {took:?}", step.name);
                if step.from == LockerMode::Fallback {
                    self.until_done(|| self.admin.remove_scope(&self.scope)).await;
                }
            }
            if let Some(old) = self.old(OLD + 100).await {
                sleep(OLD_AGAIN_FOR).await;
                old.end().await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(join_all(working), moving);
    }

    /// A change of the scope, which may be repeated. The leader refuses it until a server that was killed a moment ago has reported which
    /// commands it knows, and while workers have the scope in Cassandra.
    async fn until_done<T>(&self, change: impl AsyncFn() -> Result<T, Error>) {
        let clock = Runtime::system().clock;
        let until = clock.now() + STEP_LIMIT;
        while let Err(error) = change().await {
            assert!(clock.now() < until, "{error}");
            sleep(Duration::from_millis(300)).await;
        }
    }

    /// A step, with a kill in the middle of it; at its end every process is there.
    async fn step(
        &self,
        step: &Step,
        fault: Fault,
        after: Duration,
        number: u64,
        lockers: &[Locker],
    ) {
        let victim = match fault {
            Fault::Worker => Some(self.victim(step.from, VICTIM + number).await),
            Fault::Tool | Fault::Leader | Fault::Node => None,
        };
        let changing = async {
            for locker in lockers {
                self.change(locker, step.to).await;
            }
        };
        let striking = async {
            sleep(after).await;
            match (fault, victim) {
                (Fault::Worker, Some(victim)) => victim.signal(Signal::SIGKILL),
                (Fault::Leader, _) => self.kill_the_leader().await,
                (Fault::Node, _) => {
                    self.stage.nodes().kill(2).await;
                    sleep(Duration::from_secs(2)).await;
                    self.stage.nodes().restart(2).await;
                }
                (Fault::Worker | Fault::Tool, _) => {}
            }
        };
        let killed = (fault == Fault::Tool).then_some(after);
        tokio::join!(changing, striking, self.follow(step, killed));
        let view = self.modes.view().await.unwrap();
        assert_eq!(view.stage, step.stage, "{}: {view:?}", step.name);
    }

    /// A worker that is a process of its own.
    async fn victim(&self, mode: LockerMode, id: u64) -> LockProcess {
        let place = ["work-in", mode.as_str(), &self.endpoints, &self.scope];
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let mut victim = self.party.process(id, &[&place[..], &names].concat());
        victim.says("ready").await;
        victim
    }

    /// Changes the mode as soon as the stage admits it.
    async fn change(&self, locker: &Locker, mode: LockerMode) {
        let changed = async {
            while locker.set_mode(mode).await.is_err() {
                sleep(Duration::from_millis(300)).await;
            }
        };
        let runtime = Runtime::system();
        assert!(runtime.timeout(STEP_LIMIT, changed).await.is_ok(), "{mode}: {:?}", locker.mode());
    }

    async fn kill_the_leader(&self) {
        let mut cluster = self.cluster.lock().await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        sleep(Duration::from_secs(2)).await;
        cluster.start_node(leader);
    }

    /// Runs the tool until it reports that the step is made; kills it once, if it is to be killed.
    async fn follow(&self, step: &Step, killed: Option<Duration>) {
        let (command, to) = step.command.split_first().unwrap();
        // If the workers stay, there is nothing to wait for.
        let wait = if step.from == step.to { "0" } else { "20s" };
        let line = ["--scope", &self.scope, "--from", "lease", "--wait", wait];
        let line = [&line[..], to].concat();
        let start = || migrate(self.stage, &self.endpoints, command, &line);
        if let Some(after) = killed {
            let tool = start();
            sleep(after).await;
            tool.signal(Signal::SIGKILL);
            tool.end(Duration::from_secs(10)).await;
        }
        let clock = Runtime::system().clock;
        let until = clock.now() + STEP_LIMIT;
        loop {
            let ended = start().end(STEP_LIMIT).await;
            // The scope has the stage; the workers follow in the next step.
            let is_made = ended.code == Some(0) || self.is_there(step, &ended).await;
            if is_made {
                return;
            }
            assert!(clock.now() < until, "{}: {ended:?}", step.name);
            // Something is in the way, or a node did not answer: both pass.
            assert!(matches!(ended.code, Some(122 | 123)), "{}: {ended:?}", step.name);
        }
    }

    async fn is_there(&self, step: &Step, ended: &Ended) -> bool {
        let stays = step.from == step.to && ended.code == Some(122);
        stays && self.modes.view().await.unwrap().stage == step.stage
    }
}

/// One round trip, with a fault for each step.
async fn round_trip(faults: &[Fault], seed: u64, python: Option<&Python>) {
    println!("{faults:?}, seed {seed}");
    let Move { stage, cluster } = Move::set_with_fallback("matrix").await;
    let party = Party::new(&stage, Recipe::Lease, TIMES);
    let scope = format!("m{seed}/");
    let modes = ScopeModes::new(&stage.cassandra(), &scope, ModesTable::default()).unwrap();
    let left = format!(
        "INSERT INTO \"{}\".leases (name, owner) VALUES ('{scope}left', 'old') USING TTL 900",
        stage.keyspace()
    );
    stage.query(&left).await;
    let names = ["a", "b", "c", "d"].map(|name| format!("{scope}{name}")).to_vec();
    let endpoints = cluster.endpoints();
    let cluster = Mutex::new(cluster);
    let builder = Client::builder().endpoints(endpoints.split(','));
    let admin = builder.admin(Duration::from_secs(20)).unwrap();
    let trip = Trip {
        stage: &stage,
        party: &party,
        cluster,
        endpoints,
        scope,
        modes,
        admin,
        names,
        python,
    };
    trip.make(faults, &mut Draw::new(seed)).await;

    let view = trip.modes.view().await.unwrap();
    assert_eq!((view.stage, view.turn), (Stage::Cassandra, 6), "each step was made once");
    let reader = Client::builder().endpoints(trip.endpoints.split(',')).reader().unwrap();
    let left = reader.inspect(&format!("{}left", trip.scope)).await.unwrap().unwrap();
    assert!(left.holders[0].is_imported && left.holders[0].label == "old", "{left:?}");
    drop(trip);
    let (report, records) = party.judge_and_keep();
    let (to_us, to_them) = legacy::passed(&records, OLD);
    println!("{to_us} times from an old client to ours, {to_them} back: {report}");
    assert!(report.tally.safe_holds > 100, "{report}");
    assert!(python.is_none() || (to_us >= 4 && to_them >= 4), "{to_us} {to_them} {report}");
}

fn fresh() -> u64 {
    Runtime::system().clock.wall_ms()
}

/// One step with a dead worker, one with a dead node, the others with a dead tool or leader.
fn drawn(draw: &mut Draw) -> [Fault; STEPS.len()] {
    let mut faults = STEPS.map(|_| draw.one_of(&[Fault::Tool, Fault::Leader]).unwrap());
    let steps = STEPS.len() as u64;
    let worker = draw.below(steps);
    let node = (worker + draw.between(1, steps - 1)) % steps;
    for (step, fault) in [(worker, Fault::Worker), (node, Fault::Node)] {
        faults[usize::try_from(step).unwrap()] = fault;
    }
    faults
}

/// A fresh cell of each row.
#[tokio::test]
async fn workers_move_there_and_back_while_something_is_killed_at_every_step() {
    let seed = fresh();
    round_trip(&drawn(&mut Draw::new(seed)), seed, None).await;
}

#[tokio::test]
#[ignore = "long: every fault at every step, three times, 35 minutes"]
async fn workers_move_there_and_back_whatever_is_killed_at_every_step() {
    for _ in 0..3 {
        for fault in FAULTS {
            round_trip(&[fault; STEPS.len()], fresh(), None).await;
        }
    }
}

#[tokio::test]
#[ignore = "long: every fault at every step, beside old clients, 15 minutes"]
async fn workers_move_there_and_back_beside_old_clients_that_hold_a_hundredth_of_the_time() {
    let python = legacy::python(env!("CARGO_TARGET_TMPDIR"), "migrate_matrix");
    for fault in FAULTS {
        round_trip(&[fault; STEPS.len()], fresh(), Some(&python)).await;
    }
}
