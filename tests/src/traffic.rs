//! Clients of the real library that hold, wait, give up and release, and write all of it down.
//!
//! [`Scribe`] wraps one client of the library: what it does goes into the history before it is
//! done, what it is told after. [`Traffic`] is many of them at work on a few names until told to
//! stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast::{Client, Error, Guard, GuardState, LostReason};
use holdfast_seams::{Seams, Task};
use tokio::sync::watch;

use crate::history::{ClientId, LostCause, Recorder, What};

/// One client of the library, and what it writes down.
#[derive(Clone)]
pub struct Scribe {
    client: Client,
    id: ClientId,
    recorder: Recorder,
    seams: Seams,
    next_request: Arc<AtomicU64>,
}

/// A hold, and who writes down what becomes of it.
#[derive(Debug)]
pub struct Held {
    guard: Guard,
    scribe: Scribe,
}

impl std::fmt::Debug for Scribe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scribe").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Scribe {
    /// Connects a client with this lease.
    ///
    /// # Errors
    ///
    /// As the library's `connect`.
    pub async fn connect(
        endpoints: &str,
        ttl: Duration,
        id: ClientId,
        recorder: Recorder,
    ) -> Result<Self, Error> {
        let client = Client::builder().endpoints(endpoints)?.ttl(ttl).connect().await?;
        Ok(Self::of(client, id, recorder, Seams::system()))
    }

    /// Writes down what `client` does, which lives on these seams.
    pub fn of(client: Client, id: ClientId, recorder: Recorder, seams: Seams) -> Self {
        Self { client, id, recorder, seams, next_request: Arc::new(AtomicU64::new(1)) }
    }

    /// The library's client itself.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    fn asks(&self, name: &str, wait: bool, within: Option<Duration>) -> u64 {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let within_ms = within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.write(What::Acquire { request, name: name.into(), wait, within_ms });
        request
    }

    fn answered(&self, request: u64, answer: Result<Guard, Error>) -> Result<Held, Error> {
        match answer {
            Ok(guard) => {
                self.write(What::Granted { request, token: guard.token().get() });
                let held = Held { guard, scribe: self.clone() };
                held.note();
                Ok(held)
            }
            Err(error) => {
                self.write(what_error(request, &error));
                Err(error)
            }
        }
    }

    /// Asks for `name` and waits for it at most so long.
    ///
    /// # Errors
    ///
    /// As the library's `lock`.
    pub async fn lock(&self, name: &str, within: Duration) -> Result<Held, Error> {
        let request = self.asks(name, true, Some(within));
        let mut place = self.client.lock(name).wait(within).enqueue();
        if let Some(place) = place.next().await {
            self.write(What::Queued { request, place: place.place, index: None });
        }
        let answer = place.await;
        self.answered(request, answer)
    }

    /// Asks for `name` and does not wait.
    ///
    /// # Errors
    ///
    /// As the library's `try_lock`.
    pub async fn try_lock(&self, name: &str) -> Result<Held, Error> {
        let request = self.asks(name, false, None);
        let answer = self.client.try_lock(name).await;
        self.answered(request, answer)
    }

    /// Asks for `name`, and drops the call if it is not granted within `patience`.
    pub async fn lock_or_drop(&self, name: &str, patience: Duration) -> Option<Held> {
        let request = self.asks(name, true, None);
        // Boxed, so that it can be dropped after the cancel was written down.
        let mut acquire = Box::pin(std::future::IntoFuture::into_future(self.client.lock(name)));
        let answer = self.seams.timeout(patience, &mut acquire).await;
        if let Ok(answer) = answer {
            return self.answered(request, answer).ok();
        }
        self.write(What::Cancel { request });
        drop(acquire);
        self.write(What::Unknown { request });
        None
    }

    /// Ends the session.
    pub async fn close(&self) {
        self.write(What::Close);
        let _ = self.client.close().await;
    }

    /// Looks at `name`.
    ///
    /// # Errors
    ///
    /// As the library's `inspect`.
    pub async fn inspect(&self, name: &str) -> Result<(), Error> {
        let read = self.next_request.fetch_add(1, Ordering::Relaxed);
        self.write(What::Read { read, name: name.into() });
        let shown = self.client.inspect(name).await?;
        let token =
            shown.as_ref().and_then(|shown| shown.holders.first()).map(|holder| holder.token.get());
        let waiting = shown.map_or(0, |shown| shown.waiting);
        self.write(What::ReadDone { read, token, waiting });
        Ok(())
    }
}

impl Held {
    /// The grant's token.
    pub fn token(&self) -> u64 {
        self.guard.token().get()
    }

    /// The library's guard itself.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Writes down what the guard says now, and says whether it is safe.
    pub fn note(&self) -> bool {
        let token = self.token();
        let state = *self.guard.state().borrow();
        match state {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                let until_ns =
                    u64::try_from(safe_until.since_origin().as_nanos()).unwrap_or(u64::MAX);
                self.scribe.write(What::Safe { until_ns });
            }
            GuardState::Lost(reason) => {
                self.scribe.write(What::Lost { token, cause: cause(reason) });
            }
            GuardState::Released => {}
        }
        let at_ns = self.scribe.recorder.now_ns();
        let safe = self.guard.is_safe();
        self.scribe.recorder.write_at(at_ns, self.scribe.id, What::IsSafe { token, safe });
        safe
    }

    /// Holds for so long, looking now and then.
    pub async fn keep(&self, length: Duration) {
        let seams = &self.scribe.seams;
        let until = seams.clock.now() + length;
        while seams.clock.now() < until && self.note() {
            let left = until.saturating_since(seams.clock.now());
            seams.sleep(left.min(Duration::from_millis(100))).await;
        }
        self.note();
    }

    /// Gives the lock back and waits for the answer.
    ///
    /// # Errors
    ///
    /// As the library's `release`.
    pub async fn release(self) -> Result<(), Error> {
        let token = self.token();
        self.note();
        self.scribe.write(What::Release { token });
        let answer = self.guard.release().await;
        self.scribe.write(match &answer {
            Ok(()) => What::Released { token },
            Err(Error::Lost { reason }) => What::Lost { token, cause: cause(*reason) },
            Err(_) => What::ReleaseUnknown { token },
        });
        answer
    }

    /// Drops the guard, which releases without waiting.
    pub fn drop_guard(self) {
        let token = self.token();
        self.scribe.write(What::Release { token });
        drop(self.guard);
        self.scribe.write(What::ReleaseUnknown { token });
    }
}

fn what_error(request: u64, error: &Error) -> What {
    match error {
        Error::NotGranted { .. } => What::Denied { request },
        Error::Refused { reason, .. } => {
            What::Refused { request, reason: format!("{reason:?}").to_lowercase() }
        }
        Error::SessionLost { .. } => What::SessionLost { request },
        _ => What::Unknown { request },
    }
}

fn cause(reason: LostReason) -> LostCause {
    match reason {
        LostReason::SessionExpired => LostCause::Expired,
        LostReason::SessionClosed => LostCause::Closed,
        LostReason::Revoked => LostCause::Gone,
        _ => LostCause::Deadline,
    }
}

/// How many clients do what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many clients.
    pub clients: u64,
    /// The first one's id; the others follow.
    pub first: u64,
    /// How many names they share.
    pub names: u64,
    /// Their lease.
    pub ttl: Duration,
    /// Longest hold.
    pub hold: Duration,
    /// The limit of a waiting call.
    pub within: Duration,
    /// What the run draws from; the same seed makes the same choices per client.
    pub seed: u64,
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
        }
    }
}

/// Clients at work.
#[derive(Debug)]
pub struct Traffic {
    stop: watch::Sender<bool>,
    working: Vec<(Task, Arc<AtomicBool>)>,
    grants: Arc<AtomicU64>,
    seams: Seams,
}

impl Traffic {
    /// Connects all clients and sets them to work.
    pub async fn start(plan: &Plan, endpoints: &str, recorder: &Recorder) -> Self {
        let seams = Seams::system();
        let (stop, stopped) = watch::channel(false);
        let grants = Arc::new(AtomicU64::new(0));
        let mut working = Vec::new();
        for number in 0..plan.clients {
            let id = ClientId(plan.first + number);
            let scribe = Scribe::connect(endpoints, plan.ttl, id, recorder.clone()).await;
            let worker = Worker {
                scribe: scribe.unwrap_or_else(|error| panic!("{id} cannot connect: {error}")),
                plan: plan.clone(),
                draw: Draw(plan.seed.wrapping_mul(1_000_003).wrapping_add(number)),
                grants: grants.clone(),
                stopped: stopped.clone(),
            };
            let done = Arc::new(AtomicBool::new(false));
            let end = done.clone();
            let task = seams.spawn("traffic", async move {
                worker.work().await;
                end.store(true, Ordering::Release);
            });
            working.push((task, done));
        }
        Self { stop, working, grants, seams }
    }

    /// How many grants there were so far.
    pub fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Waits for so many grants from now on: the store serves.
    pub async fn more_grants(&self, count: u64, within: Duration) {
        let wanted = self.grants() + count;
        let give_up = self.seams.clock.now() + within;
        while self.grants() < wanted {
            assert!(
                self.seams.clock.now() < give_up,
                "{} of {count} grants within {within:?}",
                count - (wanted - self.grants())
            );
            self.seams.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Lets every client finish what it is at and close its session; all must within `limit`.
    pub async fn finish(self, limit: Duration) {
        self.stop.send_replace(true);
        let give_up = self.seams.clock.now() + limit;
        for (number, (_, done)) in self.working.iter().enumerate() {
            while !done.load(Ordering::Acquire) {
                assert!(
                    self.seams.clock.now() < give_up,
                    "client {number} of the traffic did not finish within {limit:?}"
                );
                self.seams.sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

struct Worker {
    scribe: Scribe,
    plan: Plan,
    draw: Draw,
    grants: Arc<AtomicU64>,
    stopped: watch::Receiver<bool>,
}

impl Worker {
    async fn work(mut self) {
        while !*self.stopped.borrow() {
            let name = format!("traffic/{}", self.draw.below(self.plan.names));
            let held = match self.draw.below(10) {
                0 => self.scribe.try_lock(&name).await.ok(),
                1 => {
                    let patience = Duration::from_millis(self.draw.below(50));
                    self.scribe.lock_or_drop(&name, patience).await
                }
                _ => self.scribe.lock(&name, self.plan.within).await.ok(),
            };
            match held {
                Some(held) => self.hold(held).await,
                // A refusal must not become a busy loop.
                None => self.pause(20).await,
            }
        }
        self.scribe.close().await;
    }

    async fn hold(&mut self, held: Held) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let longest = u64::try_from(self.plan.hold.as_millis()).unwrap_or(u64::MAX);
        held.keep(Duration::from_millis(self.draw.below(longest + 1))).await;
        if self.draw.below(8) == 0 {
            // A look that fails is a look without an answer.
            let _ = self.scribe.inspect(held.guard().name()).await;
        }
        if self.draw.below(8) == 0 {
            held.drop_guard();
        } else {
            let _ = held.release().await;
        }
    }

    async fn pause(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(1 + self.draw.below(longest_ms));
        Seams::system().sleep(length).await;
    }
}

/// Small numbers from a seed (SplitMix64): a run's choices can be repeated.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}
