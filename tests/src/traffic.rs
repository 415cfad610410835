//! Many clients of the real library that work on a few names until they have to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_runtime::{Runtime, Task};
use tokio::sync::watch;

use crate::draw::Draw;
use crate::history::{Asked, Change, ClientId, Recorder};
use crate::resource::Resources;
// Traffic is made of these.
pub use crate::scribe::{Held, Scribe, Wish};

/// The number of clients and their work.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a thing of its own that requests say or do not"
)]
pub struct Plan {
    /// The number of clients.
    pub clients: u64,
    /// The first one's id; the others follow.
    pub first: u64,
    /// The number of names that they share.
    pub names: u64,
    /// Their lease.
    pub ttl: Duration,
    /// Longest hold.
    pub hold: Duration,
    /// The limit of a waiting call.
    pub within: Duration,
    /// The random seed of the run; the same seed makes the same choices per client.
    pub seed: u64,
    /// The kinds of their requests.
    pub mix: Mix,
    /// A third of [`Mix::Everything`] are requests for permits of a few more names.
    pub permits: bool,
    /// A third of [`Mix::Everything`] have a head start.
    pub head_starts: bool,
    /// Some requests for any of several names need two of them.
    pub floors: bool,
    /// A quarter of [`Mix::Everything`] have bounds of the hold.
    pub bounds: bool,
    /// Some requests for permits name no limit: an operator sets it.
    pub kept_limits: bool,
    /// The resources that holders write to under their tokens, if any.
    pub resources: Option<Resources>,
}

/// The kinds of requests that clients make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// One lock at a time, exclusive.
    Exclusive,
    /// Every kind: shared and exclusive, one and several, all and any, releases of a part, values
    /// set, cleared and confirmed.
    Everything,
}

impl Mix {
    /// The number of locks whose limit an operator sets.
    pub const KEPT: u64 = 2;

    /// Names by number.
    pub fn name(number: u64) -> String {
        format!("traffic/{number}")
    }

    /// Locks whose limit an operator sets, by number.
    pub fn kept(number: u64) -> String {
        format!("traffic/kept-{number}")
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            clients: 100,
            first: 1,
            names: 8,
            ttl: Duration::from_secs(10),
            hold: Duration::from_millis(20),
            within: Duration::from_secs(30),
            seed: 1,
            mix: Mix::Exclusive,
            permits: false,
            head_starts: false,
            floors: false,
            bounds: false,
            kept_limits: false,
            resources: None,
        }
    }
}

/// Clients at work.
#[derive(Debug)]
pub struct Traffic {
    stop: watch::Sender<bool>,
    working: Vec<(Task, Arc<AtomicBool>)>,
    grants: Arc<AtomicU64>,
    runtime: Runtime,
}

impl Traffic {
    /// Connects all clients and sets them to work.
    pub async fn start(plan: &Plan, endpoints: &str, recorder: &Recorder) -> Self {
        let mut scribes = Vec::new();
        for number in 0..plan.clients {
            let id = ClientId(plan.first + number);
            let scribe = Scribe::connect(endpoints, plan.ttl, id, recorder.clone()).await;
            scribes.push(scribe.unwrap_or_else(|error| panic!("{id} cannot connect: {error}")));
        }
        Self::of(plan, scribes)
    }

    /// Sets connected clients to work.
    pub fn of(plan: &Plan, scribes: Vec<Scribe>) -> Self {
        let runtime = Runtime::system();
        let (stop, stopped) = watch::channel(false);
        let grants = Arc::new(AtomicU64::new(0));
        let mut working = Vec::new();
        for (number, scribe) in (0..).zip(scribes) {
            let worker = Worker::new(scribe, plan, number, &grants, &stopped);
            let done = Arc::new(AtomicBool::new(false));
            let end = done.clone();
            let task = runtime.spawn("traffic", async move {
                let scribe = worker.scribe.clone();
                worker.work().await;
                scribe.close().await;
                end.store(true, Ordering::Release);
            });
            working.push((task, done));
        }
        Self { stop, working, grants, runtime }
    }

    /// How many grants there were so far.
    pub fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Waits for so many grants from now on: the store serves.
    pub async fn more_grants(&self, count: u64, within: Duration) {
        let wanted = self.grants() + count;
        let give_up = self.runtime.clock.now() + within;
        while self.grants() < wanted {
            assert!(
                self.runtime.clock.now() < give_up,
                "{} of {count} grants within {within:?}",
                count - (wanted - self.grants())
            );
            self.runtime.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets every client finish its work and close its session; all must within `limit`.
    pub async fn finish(self, limit: Duration) {
        self.stop.send_replace(true);
        let give_up = self.runtime.clock.now() + limit;
        for (number, (_, done)) in self.working.iter().enumerate() {
            while !done.load(Ordering::Acquire) {
                assert!(
                    self.runtime.clock.now() < give_up,
                    "client {number} of the traffic did not finish within {limit:?}"
                );
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// One client at work, or one of several tasks of a client.
#[derive(Debug)]
pub struct Worker {
    scribe: Scribe,
    plan: Plan,
    draw: Draw,
    grants: Arc<AtomicU64>,
    stopped: watch::Receiver<bool>,
}

/// A write to a resource, which may be sent several times.
#[derive(Debug)]
pub struct Write {
    resources: Resources,
    client: ClientId,
    token: u64,
    name: String,
    runtime: Runtime,
}

impl Write {
    /// The writes under a hold: to the resource behind each of these locks.
    pub fn all(
        plan: &Plan,
        runtime: &Runtime,
        (client, token): (ClientId, u64),
        names: Vec<String>,
    ) -> Vec<Self> {
        let Some(resources) = &plan.resources else { return Vec::new() };
        let of = |name| Self {
            resources: resources.clone(),
            client,
            token,
            name,
            runtime: runtime.clone(),
        };
        names.into_iter().map(of).collect()
    }

    /// Arrives at once. The resource decides whether it takes the write, and records that.
    pub fn now(&self) {
        let _ = self.resources.write(self.client, &self.name, self.token);
    }

    /// Arrives after so long, whatever happened to the hold.
    async fn after(self, delay: Duration) {
        self.runtime.sleep(delay).await;
        self.now();
    }
}

/// How a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Planned,
    None,
    Short,
}

impl Worker {
    /// Worker `number` of a plan: it asks for locks through `scribe`, and counts its grants, until
    /// it has to stop.
    pub fn new(
        scribe: Scribe,
        plan: &Plan,
        number: u64,
        grants: &Arc<AtomicU64>,
        stopped: &watch::Receiver<bool>,
    ) -> Self {
        Self {
            scribe,
            plan: plan.clone(),
            draw: Draw::new(plan.seed.wrapping_mul(1_000_003).wrapping_add(number)),
            grants: grants.clone(),
            stopped: stopped.clone(),
        }
    }

    /// Asks, holds and releases until it has to stop. The session stays open.
    pub async fn work(mut self) {
        while !*self.stopped.borrow() {
            match self.ask().await {
                Some(held) => self.hold(held).await,
                // A refusal must not become a busy loop.
                None => self.pause(20).await,
            }
        }
    }

    async fn ask(&mut self) -> Option<Held> {
        let (wish, wait) = match self.plan.mix {
            Mix::Exclusive => (Wish::exclusive(&self.name()), self.wait()),
            Mix::Everything => self.wish(),
        };
        match wait {
            Limit::Planned => self.scribe.acquire(&wish, self.plan.within).await.ok(),
            Limit::None => self.scribe.attempt(&wish).await.ok(),
            Limit::Short => {
                let wait = Duration::from_millis(self.draw.below(50));
                self.scribe.acquire_or_drop(&wish, wait).await
            }
        }
    }

    fn wait(&mut self) -> Limit {
        match self.draw.below(10) {
            0 => Limit::None,
            1 => Limit::Short,
            _ => Limit::Planned,
        }
    }

    fn wish(&mut self) -> (Wish, Limit) {
        let (wish, wait) = self.ranked_wish();
        if !self.plan.bounds || self.draw.below(4) > 0 {
            return (wish, wait);
        }
        let hold_ms = u64::try_from(self.plan.hold.as_millis()).unwrap_or(u64::MAX);
        let least_ms = if wish.is_exclusive() { self.draw.below(2 * hold_ms) } else { 0 };
        let most_ms = least_ms.max(1) + self.draw.below(2 * hold_ms);
        (wish.bound(if self.draw.below(2) == 0 { most_ms } else { 0 }, least_ms), wait)
    }

    /// With a head start up to the longest waits.
    fn ranked_wish(&mut self) -> (Wish, Limit) {
        let (wish, wait) = self.plain_wish();
        if !self.plan.head_starts || self.draw.below(3) > 0 {
            return (wish, wait);
        }
        let head_start_ms = [50, 500, 5_000][usize::try_from(self.draw.below(3)).unwrap_or(0)];
        (wish.ahead(head_start_ms), wait)
    }

    fn plain_wish(&mut self) -> (Wish, Limit) {
        let wait = self.wait();
        if self.plan.permits && self.draw.below(3) == 0 {
            return (self.permits(), wait);
        }
        if self.plan.kept_limits && self.draw.below(4) == 0 {
            return (self.permits_of_a_kept_limit(), wait);
        }
        match self.draw.below(10) {
            0..=2 => (Wish::exclusive(&self.name()), wait),
            3..=4 => (Wish::shared(&self.name()), wait),
            5..=6 => (Wish::all(self.several()), wait),
            // A minimum of 0 never waits, so a request with a minimum of 1 always does.
            7..=8 => {
                let wait = if wait == Limit::None { Limit::Planned } else { wait };
                let min = if self.plan.floors { 1 + self.draw.below(2) } else { 1 };
                (Wish::any(u32::try_from(min).unwrap_or(1), self.several()), wait)
            }
            _ => (Wish::any(0, self.several()), Limit::None),
        }
    }

    /// Each of these names has a limit of its own.
    fn permits(&mut self) -> Wish {
        let number = self.draw.below(2);
        let limit = 3 + 2 * number;
        let count = 1 + self.draw.below(limit);
        let of = |number: u64| u32::try_from(number).unwrap_or(1);
        Wish::permits(&format!("traffic/pool-{number}"), of(count), of(limit))
    }

    fn permits_of_a_kept_limit(&mut self) -> Wish {
        let count = u32::try_from(1 + self.draw.below(4)).unwrap_or(1);
        Wish::permits(&Mix::kept(self.draw.below(Mix::KEPT)), count, 0)
    }

    fn name(&mut self) -> String {
        Mix::name(self.draw.below(self.plan.names))
    }

    /// Two to four names, a third of them shared.
    fn several(&mut self) -> Vec<Asked> {
        let first = self.draw.below(self.plan.names);
        let count = 2 + self.draw.below(3);
        let step = 1 + self.draw.below(self.plan.names / 4);
        let name = |number: u64| Mix::name((first + number * step) % self.plan.names);
        let names: Vec<String> = (0..count).map(name).collect();
        names.into_iter().map(|name| Asked::read_if(self.draw.below(3) == 0, name)).collect()
    }

    async fn hold(&mut self, held: Held) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let longest = u64::try_from(self.plan.hold.as_millis()).unwrap_or(u64::MAX);
        let length = Duration::from_millis(self.draw.below(longest + 1));
        let under = (self.scribe.id(), held.token());
        let writes = Write::all(&self.plan, self.scribe.runtime(), under, held.alone());
        writes.iter().for_each(Write::now);
        held.keep(length).await;
        // A client that was paused meanwhile does not check before it writes on: the resource
        // decides.
        writes.iter().for_each(Write::now);
        if self.plan.mix == Mix::Everything {
            self.use_values(&held).await;
            self.give_back_some(&held, length).await;
        }
        if self.draw.below(8) == 0 {
            // A failed look is recorded as a look without an answer.
            let _ = self.scribe.inspect(held.guard().name()).await;
        }
        for late in writes {
            let delay = Duration::from_millis(self.draw.below(2 * longest + 1));
            self.scribe.runtime().spawn("late write", late.after(delay)).detach();
        }
        if self.draw.below(8) == 0 {
            held.drop_guard();
        } else {
            let _ = held.release().await;
        }
    }

    /// Changes the values of some of the locks that are held exclusively.
    async fn use_values(&mut self, held: &Held) {
        for name in held.alone() {
            let change = match self.draw.below(8) {
                0 => Change::Clear,
                1 => Change::Confirm,
                2..=4 => Change::Set(format!("{} {}", held.token(), self.draw.below(1_000_000))),
                _ => continue,
            };
            // A failed change is recorded as such.
            let _ = held.change_value(&name, change).await;
        }
    }

    /// Half of the time releases all but the first of several names, and keeps that one.
    async fn give_back_some(&mut self, held: &Held, length: Duration) {
        let rest: Vec<String> = held.guard().names().skip(1).map(str::to_owned).collect();
        if rest.is_empty() || self.draw.below(2) == 0 {
            return;
        }
        let _ = held.release_names(&rest).await;
        held.keep(length).await;
    }

    async fn pause(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(1 + self.draw.below(longest_ms));
        self.scribe.runtime().sleep(length).await;
    }
}
