//! One simulated run: processes that fall back and processes that know only the native store compete for locks of two
//! scopes, while servers die, are deposed without knowing it, stall and are cut off, and Cassandra loses answers. Each
//! leader has its own settings for W and V.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::*;
use crate::FencingToken;
use crate::locker::{RemoteGuard, RemoteLocker, Wait};
use crate::model::Odds;

const LENGTH: Duration = secs(400);
const NAMES: [&str; 3] = ["a/1", "a/2", "b/1"];
const PROCESSES: usize = 5;

/// The outcome of some runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) lives: usize,
    pub(super) native: usize,
    pub(super) in_cassandra: usize,
    pub(super) lost: usize,
    pub(super) epochs: usize,
}

/// Checks every guard that is handed out. A guard becomes safe only here, and an unsafe guard stays unsafe. So two
/// guards that are safe at one instant are detected when the later one is handed out.
#[derive(Default)]
struct Judge {
    guards: Mutex<Vec<Weak<RemoteGuard>>>,
    /// The highest safe token of each name.
    highest: Mutex<BTreeMap<String, FencingToken>>,
    seen: Mutex<Seen>,
    /// The first violation.
    wrong: Mutex<Option<String>>,
}

impl Judge {
    fn granted(&self, guard: &Arc<RemoteGuard>, cluster: &Cluster) {
        if !guard.is_safe() {
            self.seen.lock().unwrap().lost += 1;
            return;
        }
        let name = guard.name();
        let token = guard.token().unwrap();
        let mut guards = self.guards.lock().unwrap();
        guards.retain(|other| other.strong_count() > 0);
        for other in guards.iter().filter_map(Weak::upgrade) {
            if other.name() == name && other.is_safe() && guard.is_safe() {
                let tokens = [other, guard.clone()].map(|one| one.token().unwrap());
                let tokens = tokens.map(|token| (token.epoch(), token.get() & 0xffff_ffff_ffff));
                self.is_wrong(format!("two safe under {tokens:?} (epoch, number): {guard:?}"));
            }
        }
        guards.push(Arc::downgrade(guard));
        let before = self.highest.lock().unwrap().insert(name.to_owned(), token);
        if before >= Some(token) && guard.is_safe() {
            self.is_wrong(format!("{token} is safe after {before:?}: {guard:?}"));
        }
        let epoch = u64::from(cluster.epoch(&name[..2]));
        let mut seen = self.seen.lock().unwrap();
        *(if token.epoch() > epoch { &mut seen.in_cassandra } else { &mut seen.native }) += 1;
    }

    fn is_wrong(&self, what: String) {
        self.wrong.lock().unwrap().get_or_insert(what);
    }
}

struct Life {
    world: World,
    judge: Judge,
}

impl Life {
    fn start(self: &Arc<Self>, process: &Process) {
        let (life, here) = (self.clone(), process.clone());
        let living = async move {
            for scope in SCOPES {
                let (life, here) = (life.clone(), here.clone());
                let runtime = here.runtime();
                runtime.spawn("work", async move { life.live(scope, here).await }).detach();
            }
        };
        process.runtime().spawn("life", living).detach();
    }

    /// Three of four processes fall back; the others know only the native store.
    async fn live(&self, scope: &str, process: Process) {
        let locker: Arc<dyn RemoteLocker> = if below(&process, 4) == 0 {
            Arc::new(self.world.client(&process))
        } else {
            loop {
                match self.world.locker(&process, scope, LockerMode::Fallback).await {
                    Ok(locker) => break Arc::new(locker),
                    Err(_) => process.runtime().sleep(secs(1)).await,
                }
            }
        };
        let names: Vec<_> = NAMES.iter().filter(|name| name.starts_with(scope)).collect();
        loop {
            let name = names[usize::try_from(below(&process, names.len() as u64)).unwrap()];
            let wait = match below(&process, 4) {
                0 => Wait::No,
                1 => Wait::AtMost(secs(below(&process, 20))),
                _ => Wait::Forever,
            };
            if let Ok(guard) = locker.acquire(name, wait).await {
                self.hold(&process, guard).await;
            }
            process.runtime().sleep(Duration::from_millis(below(&process, 1_000))).await;
        }
    }

    /// Holds the lock mostly for a short time, sometimes until it is lost.
    async fn hold(&self, process: &Process, guard: RemoteGuard) {
        let guard = Arc::new(guard);
        self.judge.granted(&guard, &self.world.cluster);
        let long = below(process, 5) == 0;
        let length = Duration::from_millis(below(process, if long { 40_000 } else { 2_000 }));
        let runtime = process.runtime();
        let until = runtime.clock.now() + length;
        while runtime.clock.now() < until && guard.is_safe() {
            runtime.sleep(Duration::from_millis(100)).await;
        }
        if !guard.is_safe() {
            self.judge.seen.lock().unwrap().lost += 1;
        }
        match Arc::try_unwrap(guard) {
            Ok(guard) if below(process, 3) > 0 => drop(guard.release().await),
            guard => drop(guard),
        }
    }

    /// Injects one fault after another.
    async fn torment(self: &Arc<Self>) {
        let world = self.world.machine.world();
        let runtime = world.runtime();
        let process = || self.world.machine.process("worker");
        let mut alive: Vec<Process> = (0..PROCESSES).map(|_| process()).collect();
        for process in &alive {
            self.start(process);
        }
        // In most runs the processes take a while to think.
        self.world.machine.set_look_takes(Duration::from_micros(below(&world, 4)));
        let end = runtime.clock.now() + LENGTH;
        while runtime.clock.now() < end && self.judge.wrong.lock().unwrap().is_none() {
            runtime.sleep(Duration::from_millis(below(&world, 8_000))).await;
            let at = usize::try_from(below(&world, PROCESSES as u64)).unwrap();
            let some_time = Duration::from_millis(below(&world, 15_000));
            match below(&world, 14) {
                kind @ 9.. => self.trouble_servers(kind, at % 2, some_time).await,
                kind @ 4.. => self.trouble_tables(kind, some_time).await,
                0 => {
                    alive[at].kill();
                    alive[at] = process();
                    self.start(&alive[at]);
                }
                1 => {
                    alive[at].pause();
                    runtime.sleep(some_time).await;
                    alive[at].resume();
                }
                // Half a per cent either way for clients, which the leases allow for; four per cent for servers, which
                // the authority allows for.
                2 => alive[at].set_rate(i32::try_from(below(&world, 10_000)).unwrap() - 5_000),
                _ => {
                    let faster_by = i32::try_from(below(&world, 80_000)).unwrap() - 40_000;
                    self.world.cluster.server(at % 2).set_rate(faster_by);
                }
            }
        }
        self.world.model.set_odds(Odds::default());
        self.world.model.set_slow(0);
    }

    async fn trouble_tables(&self, kind: u64, some_time: Duration) {
        let (world, model) = (self.world.machine.world(), &self.world.model);
        match kind {
            4 => {
                let node = usize::try_from(below(&world, 3)).unwrap();
                model.set_skew(node, i64::try_from(below(&world, 3_000)).unwrap());
            }
            5 => model.set_slow(below(&world, 600)),
            6 | 7 => model.set_odds(Odds {
                answer_lost: below(&world, 200),
                request_lost: below(&world, 100),
                late: below(&world, 150),
                unavailable: below(&world, 100),
            }),
            _ => {
                let nothing = Odds { answer_lost: 500, request_lost: 500, ..Odds::default() };
                model.set_odds(nothing);
                world.runtime().sleep(some_time).await;
                model.set_odds(Odds::default());
            }
        }
    }

    async fn trouble_servers(self: &Arc<Self>, kind: u64, at: usize, some_time: Duration) {
        let (world, cluster) = (self.world.machine.world(), &self.world.cluster);
        let runtime = world.runtime();
        match kind {
            9 => self.elect_another(Duration::from_millis(below(&world, 9_000))),
            10 => {
                self.world.kill_servers();
                runtime.sleep(some_time * 2).await;
                self.world.elect(at);
            }
            11 => {
                cluster.set_cut(true);
                runtime.sleep(some_time * 2).await;
                cluster.set_cut(false);
            }
            12 => {
                let leader = cluster.server(cluster.leader());
                leader.pause();
                runtime.sleep(some_time).await;
                leader.resume();
            }
            _ => {
                self.world.model.set_odds(Odds::default());
                self.world.model.set_slow(0);
            }
        }
    }

    /// Elects the other server; the former leader learns it a while later.
    fn elect_another(self: &Arc<Self>, later: Duration) {
        let cluster = &self.world.cluster;
        self.world.elect(1 - cluster.leader());
        let (life, runtime) = (self.clone(), self.world.machine.world().runtime());
        let learning = async move {
            let runtime = life.world.machine.world().runtime();
            runtime.sleep(later).await;
            life.world.cluster.depose_others();
        };
        runtime.spawn("learning", learning).detach();
    }

    /// After the faults: the native store serves both scopes again, and a new client gets each lock
    /// from it.
    async fn heal(&self) -> std::result::Result<(), String> {
        let runtime = self.world.machine.world().runtime();
        self.world.cluster.depose_others();
        runtime.sleep(secs(120)).await;
        let client = self.world.client(&self.world.machine.process("newcomer"));
        for name in NAMES {
            let guard = client.lock_within(name, secs(400)).await;
            let tell = || self.world.cluster.tell(name);
            let guard =
                guard.map_err(|error| format!("{name} is not served: {error}; {}", tell()))?;
            self.judge.granted(&Arc::new(guard), &self.world.cluster);
        }
        Ok(())
    }
}

/// Does one run. The error is the violation that it found.
pub(super) fn live(seed: u64, all: &mut Seen) -> std::result::Result<(), String> {
    let life =
        Arc::new(Life { world: World::of_differing_settings(seed), judge: Judge::default() });
    let machine = &life.world.machine;
    let healed = machine.run(async {
        life.world.open_the_last_stage().await;
        life.torment().await;
        life.heal().await
    });
    let counts = *life.judge.seen.lock().unwrap();
    all.lives += 1;
    all.native += counts.native;
    all.in_cassandra += counts.in_cassandra;
    all.lost += counts.lost;
    all.epochs +=
        SCOPES.map(|scope| usize::from(life.world.cluster.epoch(scope))).iter().sum::<usize>();
    match life.judge.wrong.lock().unwrap().take() {
        Some(wrong) => Err(wrong),
        None => healed,
    }
}
