//! A native store as a locker sees one: one holder for each lock, a lease that keepalives renew, and rising tokens.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::simulated::{Machine, Process};
use holdfast_runtime::{Clock, Instant, Rng, Runtime, select};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::secs;
use crate::locker::{Held, NativeTerms, Publishes, RemoteGuard, RemoteLocker, Wait};
use crate::modes::failover_acquire;
use crate::{Error, FencingToken, GuardState, LostReason, RefusalReason, Result};
use holdfast_guard::Safety;
use holdfast_guard::Span;

const TTL: Duration = secs(10);

/// Cheap to clone; all clones share their state.
#[derive(Clone)]
pub(super) struct NativeStore {
    world: Process,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// For each lock the token of its holder, and the deadline by the store's clock.
    held: BTreeMap<String, (u64, Instant)>,
    token: u64,
    /// The store answers no request.
    down: bool,
    /// Of each election its leader's name and value, and the token that it holds.
    values: BTreeMap<String, (u64, String, String)>,
    /// The last number of each sequence.
    numbers: BTreeMap<String, u64>,
    /// What the requests that it took said for people.
    notes: Vec<Option<String>>,
    /// It refuses notes, as before 0.4.
    is_older: bool,
}

impl NativeStore {
    pub(super) fn new(machine: &Machine) -> Self {
        Self { world: machine.world(), state: Arc::default() }
    }

    pub(super) fn locker(&self, process: &Process) -> NativeLike {
        self.locker_of(process, "c1")
    }

    /// A locker that reports that cluster.
    pub(super) fn locker_of(&self, process: &Process, cluster: &'static str) -> NativeLike {
        NativeLike { store: self.clone(), process: process.clone(), cluster }
    }

    /// Stops answering all requests, or resumes.
    pub(super) fn set_down(&self, down: bool) {
        self.state.lock().unwrap().down = down;
    }

    /// Refuses notes from now on, as a release before 0.4 does, or none.
    pub(super) fn set_older(&self, is_older: bool) {
        self.state.lock().unwrap().is_older = is_older;
    }

    /// What the requests since the last call said for people.
    pub(super) fn notes(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.state.lock().unwrap().notes)
    }

    /// Takes the note of a request, or refuses it.
    fn note(&self, note: Option<&str>) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.is_older && note.is_some() {
            let (reason, message) = (RefusalReason::Unsupported, "no notes".to_owned());
            return Err(Error::Refused { reason, message, limit: None, retry_after: None });
        }
        state.notes.push(note.map(str::to_owned));
        Ok(())
    }

    /// Ends a hold in the store without a message to its holder.
    pub(super) fn forget(&self, name: &str) {
        self.state.lock().unwrap().held.remove(name);
    }

    pub(super) fn is_held(&self, name: &str) -> bool {
        let now = self.world.runtime().clock.now();
        self.state.lock().unwrap().held.get(name).is_some_and(|(_, until)| now < *until)
    }

    /// The holder of the lock, if it has said something.
    fn leader(&self, name: &str) -> Option<(String, String)> {
        let now = self.world.runtime().clock.now();
        let state = self.state.lock().unwrap();
        let (holder, until) = state.held.get(name)?;
        let (token, leader, value) = state.values.get(name)?;
        (token == holder && now < *until).then(|| (leader.clone(), value.clone()))
    }

    /// The last number that was given out.
    pub(super) fn last_number(&self, name: &str) -> u64 {
        self.state.lock().unwrap().numbers.get(name).copied().unwrap_or(0)
    }

    /// The next number is `at`.
    pub(super) fn begin_numbers(&self, name: &str, at: u64) {
        self.state.lock().unwrap().numbers.insert(name.to_owned(), at - 1);
    }

    /// Takes up to 40 ms, for one direction.
    async fn travel(&self) {
        let length = Duration::from_micros(Rng::next_u64(&self.world) % 40_000);
        self.world.runtime().sleep(length).await;
    }

    /// Waits while the store is down.
    async fn reach(&self) {
        self.travel().await;
        while self.state.lock().unwrap().down {
            self.world.runtime().sleep(Duration::from_millis(100)).await;
        }
    }

    /// The token, if the lock is free.
    async fn take(&self, name: &str) -> Option<u64> {
        self.reach().await;
        let now = self.world.runtime().clock.now();
        let taken = {
            let mut state = self.state.lock().unwrap();
            let free = state.held.get(name).is_none_or(|(_, until)| *until <= now);
            free.then(|| {
                state.token += 1;
                let token = state.token;
                state.held.insert(name.to_owned(), (token, now + TTL));
                token
            })
        };
        self.travel().await;
        taken
    }

    async fn keep_alive(&self, name: &str, token: u64) -> bool {
        self.reach().await;
        let now = self.world.runtime().clock.now();
        let kept = match self.state.lock().unwrap().held.get_mut(name) {
            Some((held, until)) if *held == token && now < *until => {
                *until = now + TTL;
                true
            }
            _ => false,
        };
        self.travel().await;
        kept
    }

    async fn give_back(&self, name: &str, token: u64) -> bool {
        self.reach().await;
        let mut state = self.state.lock().unwrap();
        let held = state.held.get(name).is_some_and(|(held, _)| *held == token);
        if held {
            state.held.remove(name);
        }
        held
    }
}

/// The store as one process uses it.
pub(super) struct NativeLike {
    store: NativeStore,
    process: Process,
    cluster: &'static str,
}

fn safe_until(sent: Instant) -> Instant {
    sent + TTL * 9 / 10
}

impl NativeLike {
    /// Polls, unlike the real store.
    async fn wait(&self, name: &str, waits: bool) -> Option<Hold> {
        let runtime = self.process.runtime();
        loop {
            let sent = runtime.clock.now();
            // The store's side gives back the lock of a request that no caller awaits any more.
            let (answer, answered) = tokio::sync::oneshot::channel();
            let (store, lock) = (self.store.clone(), name.to_owned());
            let asking = async move {
                let token = store.take(&lock).await;
                if let Err(Some(token)) = answer.send(token) {
                    store.give_back(&lock, token).await;
                }
            };
            self.store.world.runtime().spawn("take", asking).detach();
            if let Ok(Some(token)) = answered.await {
                let hold = Hold::new(self, name, token, sent);
                if hold.is_some() {
                    return hold;
                }
            } else if !waits {
                return None;
            }
            runtime.sleep(Duration::from_millis(200)).await;
        }
    }
}

impl failover_acquire::NativeStore for NativeLike {
    fn acquire_on<'a>(
        &'a self,
        terms: NativeTerms<'a>,
        lock_id: &'a str,
        wait: Wait,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            self.store.note(terms.note)?;
            self.acquire(lock_id, wait).await
        })
    }

    fn serves(&self, _scope: &str, _lock_id: &str) -> bool {
        !self.store.state.lock().unwrap().down
    }

    fn cluster(&self) -> Option<String> {
        Some(self.cluster.to_owned())
    }

    fn lead<'a>(
        &'a self,
        terms: NativeTerms<'a>,
        (name, value): (&'a str, String),
        wait: Wait,
    ) -> BoxFuture<'a, Result<(RemoteGuard, Arc<dyn Publishes>)>> {
        Box::pin(async move {
            let guard = self.acquire_on(terms, name, wait).await?;
            let token = guard.token().unwrap().get();
            let published = Value {
                store: self.store.clone(),
                name: name.to_owned(),
                leader: self.process.name(),
                token,
            };
            published.publish(Some(value)).await?;
            Ok((guard, Arc::new(published) as Arc<dyn Publishes>))
        })
    }

    fn leader<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<(String, String)>>> {
        Box::pin(async move {
            self.store.reach().await;
            Ok(self.store.leader(name))
        })
    }

    fn take_numbers<'a>(
        &'a self,
        name: &'a str,
        count: NonZeroU32,
    ) -> BoxFuture<'a, Result<RangeInclusive<u64>>> {
        Box::pin(async move {
            self.store.reach().await;
            let first = self.store.last_number(name) + 1;
            let last = first + u64::from(count.get()) - 1;
            self.store.begin_numbers(name, last + 1);
            self.store.travel().await;
            Ok(first..=last)
        })
    }
}

/// The value of an election's leader.
struct Value {
    store: NativeStore,
    name: String,
    leader: String,
    token: u64,
}

impl Publishes for Value {
    fn publish(&self, value: Option<String>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.store.reach().await;
            let published = (self.token, self.leader.clone(), value.unwrap_or_default());
            self.store.state.lock().unwrap().values.insert(self.name.clone(), published);
            Ok(())
        })
    }
}

impl RemoteLocker for NativeLike {
    fn acquire<'a>(&'a self, lock_id: &'a str, wait: Wait) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(async move {
            let runtime = self.process.runtime();
            let limit = wait.limit(secs(10)).unwrap_or(secs(1_000_000));
            let wait = self.wait(lock_id, wait.waits());
            let Ok(Some(hold)) = runtime.timeout(limit, wait).await else {
                let names = vec![lock_id.to_owned()];
                return Err(Error::NotGranted { names, holders: Vec::new(), waited: None });
            };
            Ok(RemoteGuard::new(lock_id, &self.process.name(), Box::new(hold)))
        })
    }
}

struct Hold {
    safety: Arc<Safety>,
    store: NativeStore,
    runtime: Runtime,
    name: String,
    token: u64,
    _renewing: DropGuard,
}

impl Hold {
    fn new(of: &NativeLike, name: &str, token: u64, sent: Instant) -> Option<Self> {
        let (store, runtime) = (of.store.clone(), of.process.runtime());
        let span = Span::new(safe_until(sent));
        let alive = span.is_alive(&*runtime.clock);
        let safety = alive.then(|| Safety::within(span).map(Arc::new)).flatten()?;
        let over = CancellationToken::new();
        let renewing =
            renew(store.clone(), runtime.clone(), safety.clone(), name.to_owned(), token);
        let until = over.clone();
        let renewing = async move {
            select! {
                () = until.cancelled() => {}
                () = renewing => {}
            }
        };
        runtime.spawn("renew", renewing).detach();
        let name = name.to_owned();
        Some(Self { safety, store, runtime, name, token, _renewing: over.drop_guard() })
    }
}

async fn renew(
    store: NativeStore,
    runtime: Runtime,
    safety: Arc<Safety>,
    name: String,
    token: u64,
) {
    while safety.is_safe(&*runtime.clock) {
        runtime.sleep(TTL / 4).await;
        let sent = runtime.clock.now();
        match runtime.timeout(TTL, store.keep_alive(&name, token)).await {
            Ok(true) => {
                safety.extend(safe_until(sent), &*runtime.clock);
                safety.publish(false);
            }
            Ok(false) => safety.end(GuardState::Lost(LostReason::SessionExpired)),
            Err(_) => {}
        }
    }
    safety.end(GuardState::Lost(LostReason::DeadlinePassed));
}

impl Held for Hold {
    fn safety(&self) -> &Safety {
        &self.safety
    }

    fn clock(&self) -> &dyn Clock {
        &*self.runtime.clock
    }

    fn token(&self) -> Option<FencingToken> {
        Some(FencingToken::from_raw(self.token))
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn release(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let lost = self.safety.lost_reason();
            self.safety.end(GuardState::Released);
            let (store, name, token) = (self.store.clone(), self.name.clone(), self.token);
            let released = self.runtime.timeout(secs(5), store.give_back(&name, token)).await;
            match (lost, released) {
                (Some(reason), _) => Err(Error::Lost { reason }),
                (None, Ok(true)) => Ok(()),
                (None, Ok(false)) => Err(Error::Lost { reason: LostReason::Revoked }),
                (None, Err(_)) => Err(Error::OutcomeUnknown { what: "a release", waited: secs(5) }),
            }
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.safety.end(GuardState::Released);
        let (store, name, token) = (self.store.clone(), self.name.clone(), self.token);
        let giving_back = async move {
            store.give_back(&name, token).await;
        };
        self.store.world.runtime().spawn("give back", giving_back).detach();
    }
}
