//! One client of the real library that records what it does, receives and believes.
//!
//! A [`Scribe`] records an action before it, and an answer after it.

mod watching;

use std::collections::BTreeMap;
use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast::{
    Acquire, Client, Error, Guard, GuardState, GuardStates, LockItem, LostReason, Mode, TryAcquire,
    Value,
};
use holdfast_runtime::{Instant, Runtime};

use crate::history::{Asked, Change, ClientId, Holding, LostCause, Permits, Recorder, Shown, What};

/// One client of the library and its recorder.
#[derive(Clone)]
pub struct Scribe {
    client: Client,
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    next_request: Arc<AtomicU64>,
    /// Its holds that were not lost when it last looked, by token.
    holds: Arc<Mutex<BTreeMap<u64, GuardStates>>>,
}

/// A hold, with the recorder of its fate.
#[derive(Debug)]
pub struct Held {
    guard: Guard,
    scribe: Scribe,
}

/// What one request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The locks, each once.
    pub items: Vec<Asked>,
    /// `None`: all of them. Otherwise those that are free; the request waits for at least so many.
    pub any: Option<u32>,
}

impl Wish {
    /// One lock, exclusive.
    pub fn exclusive(name: &str) -> Self {
        Self { items: vec![Asked::exclusive(name)], any: None }
    }

    /// One lock, shared with others.
    pub fn shared(name: &str) -> Self {
        Self { items: vec![Asked::shared(name)], any: None }
    }

    /// Some permits of a lock.
    pub fn permits(name: &str, count: u32, limit: u32) -> Self {
        Self { items: vec![Asked::permits(name, count, limit)], any: None }
    }

    /// All of these, or nothing.
    pub fn all(items: Vec<Asked>) -> Self {
        Self { items, any: None }
    }

    /// Those of these that are free; waits until it has `min`.
    pub fn any(min: u32, items: Vec<Asked>) -> Self {
        Self { items, any: Some(min) }
    }

    /// The same with a head start.
    #[must_use]
    pub fn ahead(self, head_start_ms: u64) -> Self {
        let items = self.items.into_iter().map(|item| item.ahead(head_start_ms)).collect();
        Self { items, ..self }
    }

    /// The same with bounds of the hold, milliseconds; 0: none.
    #[must_use]
    pub fn bound(self, max_hold_ms: u64, hold_at_least_ms: u64) -> Self {
        let bound = |item: Asked| item.bound(max_hold_ms, hold_at_least_ms);
        Self { items: self.items.into_iter().map(bound).collect(), ..self }
    }

    /// Whether every lock of it is asked for exclusively.
    pub fn is_exclusive(&self) -> bool {
        self.items.iter().all(|item| !item.shared)
    }

    fn longest_ms(&self, of: impl Fn(&Asked) -> u64) -> Duration {
        Duration::from_millis(self.items.iter().map(of).max().unwrap_or(0))
    }

    fn max_hold(&self) -> Duration {
        self.longest_ms(|item| item.max_hold_ms)
    }

    fn hold_at_least(&self) -> Duration {
        self.longest_ms(|item| item.hold_at_least_ms)
    }

    fn head_start(&self) -> Duration {
        self.longest_ms(|item| item.head_start_ms)
    }

    /// The library's request for it.
    fn waiting(&self, client: &Client) -> Acquire {
        let acquire = match (self.any, self.items.as_slice()) {
            (Some(min @ 2..), _) => client.any_of(self.items()).at_least(min),
            (Some(_), _) => client.any_of(self.items()),
            (None, [Asked { name, permits: Some(Permits { count, limit }), .. }]) => {
                client.semaphore(name, limit_of(*limit)).permits(*count)
            }
            (None, [one]) if one.shared => client.lock(&one.name).shared(),
            (None, [one]) => client.lock(&one.name),
            (None, _) => client.lock_all(self.items()),
        };
        let acquire = acquire.head_start(self.head_start());
        acquire.max_hold(self.max_hold()).hold_at_least(self.hold_at_least())
    }

    /// The library's request that does not wait.
    fn attempt(&self, client: &Client) -> TryAcquire {
        let attempt = match (self.any, self.items.as_slice()) {
            (Some(_), _) => client.try_any_of(self.items()),
            (None, [Asked { name, permits: Some(Permits { count, limit }), .. }]) => {
                client.semaphore(name, limit_of(*limit)).try_permits(*count)
            }
            (None, [one]) if one.shared => client.try_lock(&one.name).shared(),
            (None, [one]) => client.try_lock(&one.name),
            (None, _) => client.try_lock_all(self.items()),
        };
        let attempt = attempt.head_start(self.head_start());
        attempt.max_hold(self.max_hold()).hold_at_least(self.hold_at_least())
    }

    fn items(&self) -> impl Iterator<Item = LockItem> {
        self.items.iter().map(|item| match item.permits {
            Some(Permits { count, limit }) => LockItem::permits(&item.name, count, limit_of(limit)),
            None if item.shared => LockItem::shared(&item.name),
            None => LockItem::exclusive(&item.name),
        })
    }
}

/// The limit that a request names; `None`: the one that was kept for good.
fn limit_of(limit: u32) -> Option<u32> {
    (limit > 0).then_some(limit)
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
        let client = Client::builder().endpoints(endpoints.split(',')).ttl(ttl).connect().await?;
        Ok(Self::of(client, id, recorder, Runtime::system()))
    }

    /// Records what `client` does, which runs on this runtime.
    pub fn of(client: Client, id: ClientId, recorder: Recorder, runtime: Runtime) -> Self {
        let next_request = Arc::new(AtomicU64::new(1));
        Self { client, id, recorder, runtime, next_request, holds: Arc::default() }
    }

    /// Records that the client's session is open with this lease: from here on the judge knows what
    /// the store owes it, and when it has to be over.
    pub fn opened(&self, ttl: Duration) {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.write(What::Opened { ttl_ms });
    }

    /// The runtime that it runs on.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The id under which it records.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// The library's client itself.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    fn next_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    fn asks(&self, wish: &Wish, wait: bool, within: Option<Duration>) -> u64 {
        let request = self.next_request();
        let within_ms = within.map(|within| self.recorder.ms_of(within));
        let (items, any) = (wish.items.clone(), wish.any);
        self.write(What::Acquire { request, items, any, wait, within_ms });
        request
    }

    fn holds(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, GuardStates>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records which holds were lost since the last look. A session's deadline counts for each of its holds in the eyes of the judge, and
    /// one that an operator has taken away is no more of them, whatever its own task is busy with.
    fn note_losses(&self) {
        self.holds().retain(|&token, states| match states.now() {
            GuardState::Lost(reason) => {
                self.write(What::Lost { token, cause: cause(reason) });
                false
            }
            GuardState::Held { .. } | GuardState::Jeopardy { .. } => true,
            GuardState::Released => false,
        });
    }

    fn answered(&self, request: u64, answer: Result<Guard, Error>) -> Result<Held, Error> {
        match answer {
            Ok(guard) => {
                let names = names(&guard);
                let values =
                    names.iter().filter_map(|name| Some(shown(name, &guard.lock(name).value()?)));
                let values = values.collect();
                self.write(What::Granted { request, token: guard.token().get(), names, values });
                self.holds().insert(guard.token().get(), guard.states());
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

    /// Asks for these locks and waits at most so long.
    ///
    /// # Errors
    ///
    /// As the library's `Acquire`.
    pub async fn acquire(&self, wish: &Wish, within: Duration) -> Result<Held, Error> {
        let request = self.asks(wish, true, Some(within));
        let mut place = wish.waiting(&self.client).wait(within).enqueue();
        if let Some(place) = place.next().await {
            self.write(What::Queued { request, place: place.place, index: None });
        }
        let answer = place.await;
        self.answered(request, answer)
    }

    /// Asks for these locks and does not wait.
    ///
    /// # Errors
    ///
    /// As the library's `Acquire`.
    pub async fn attempt(&self, wish: &Wish) -> Result<Held, Error> {
        let request = self.asks(wish, false, None);
        let answer = wish.attempt(&self.client).await;
        self.answered(request, answer)
    }

    /// Asks for these locks, and drops the call if it is not granted within `wait`.
    pub async fn acquire_or_drop(&self, wish: &Wish, wait: Duration) -> Option<Held> {
        let request = self.asks(wish, true, None);
        // Boxed, so that it can be dropped after the cancel was recorded.
        let mut acquire = Box::pin(wish.waiting(&self.client).into_future());
        let answer = self.runtime.timeout(wait, &mut acquire).await;
        if let Ok(answer) = answer {
            return self.answered(request, answer).ok();
        }
        self.write(What::Cancel { request });
        drop(acquire);
        self.write(What::Unknown { request });
        None
    }

    /// Asks for the lock `name` exclusively and waits at most so long.
    ///
    /// # Errors
    ///
    /// As the library's `lock`.
    pub async fn lock(&self, name: &str, within: Duration) -> Result<Held, Error> {
        self.acquire(&Wish::exclusive(name), within).await
    }

    /// Asks for the lock `name` exclusively and does not wait.
    ///
    /// # Errors
    ///
    /// As the library's `try_lock`.
    pub async fn try_lock(&self, name: &str) -> Result<Held, Error> {
        self.attempt(&Wish::exclusive(name)).await
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
        let read = self.next_request();
        self.write(What::Read { read, name: name.into() });
        let lock = self.client.reader().inspect(name).await?;
        let holders = lock.iter().flat_map(|lock| &lock.holders).map(|holder| Holding {
            token: holder.token.get(),
            shared: holder.mode != Mode::Exclusive,
        });
        let holders = holders.collect();
        let value = lock.as_ref().and_then(|lock| lock.value.as_ref());
        let value = value.map(|value| shown(name, value));
        let closed = lock.as_ref().and_then(|lock| Some(lock.closed.as_ref()?.token.get()));
        let frozen = lock.as_ref().is_some_and(|lock| lock.frozen.is_some());
        let waiting = lock.map_or(0, |lock| lock.waiting);
        self.write(What::ReadDone { read, holders, value, waiting, closed, frozen });
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

    /// The names that are held exclusively.
    pub fn alone(&self) -> Vec<String> {
        let alone = |name: &String| self.guard.lock(name).mode() == Some(Mode::Exclusive);
        names(&self.guard).into_iter().filter(alone).collect()
    }

    /// Records the guard's state now; returns whether it is safe.
    pub fn note(&self) -> bool {
        self.scribe.note_losses();
        let token = self.token();
        let state = self.guard.state();
        match state {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                let until_ns = self.scribe.recorder.ns_of(safe_until);
                self.scribe.write(What::Safe { until_ns });
            }
            GuardState::Lost(reason) => {
                self.scribe.write(What::Lost { token, cause: cause(reason) });
            }
            GuardState::Released => {}
        }
        let at_ns = self.scribe.recorder.now_ns();
        let safe = self.guard.is_safe();
        let look = What::IsSafe { token, safe, names: names(&self.guard) };
        self.scribe.recorder.write_at(at_ns, self.scribe.id, look);
        safe
    }

    /// Holds for so long, checking now and then, and at the very instant of the safe deadline.
    pub async fn keep(&self, length: Duration) {
        let clock = &self.scribe.runtime.clock;
        let until = clock.now() + length;
        while clock.now() < until && self.note() {
            let next = until.min(clock.now() + Duration::from_millis(100));
            let deadline = self.safe_until().filter(|deadline| *deadline > clock.now());
            clock.sleep_until(deadline.map_or(next, |deadline| deadline.min(next))).await;
        }
        self.note();
    }

    fn safe_until(&self) -> Option<Instant> {
        match self.guard.state() {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                Some(safe_until)
            }
            GuardState::Lost(_) | GuardState::Released => None,
        }
    }

    /// Changes the value of `name`, one of those held.
    ///
    /// # Errors
    ///
    /// As the library's `set_value`.
    pub async fn change_value(&self, name: &str, change: Change) -> Result<(), Error> {
        let request = self.scribe.next_request();
        let (token, said) = (self.token(), change.clone());
        self.scribe.write(What::SetValue { request, token, name: name.into(), change: said });
        let answer = match change {
            Change::Set(value) => self.guard.lock(name).set_value(value).await,
            Change::Clear => self.guard.lock(name).clear_value().await,
            Change::Confirm => self.guard.lock(name).confirm_value().await,
        };
        self.scribe.write(match &answer {
            Ok(()) => What::ValueSet { request },
            // Both mean that the value is unchanged.
            Err(Error::Lost { .. }) => What::Refused { request, reason: "lost".into() },
            Err(error) => what_error(request, error),
        });
        answer
    }

    /// Releases some of the names and waits for the answer.
    ///
    /// # Errors
    ///
    /// As the library's `release_names`.
    pub async fn release_names(&self, names: &[String]) -> Result<(), Error> {
        let token = self.token();
        self.note();
        self.scribe.write(What::Release { token, names: names.to_vec() });
        let answer = self.guard.release_names(names).await;
        self.scribe.write(what_released(token, names, &answer));
        answer
    }

    /// Releases everything and waits for the answer.
    ///
    /// # Errors
    ///
    /// As the library's `release`.
    pub async fn release(self) -> Result<(), Error> {
        let token = self.token();
        self.note();
        self.scribe.write(What::Release { token, names: Vec::new() });
        self.scribe.holds().remove(&token);
        let answer = self.guard.release().await;
        self.scribe.write(what_released(token, &[], &answer));
        answer
    }

    /// Drops the guard, which releases without waiting.
    pub fn drop_guard(self) {
        let token = self.token();
        self.scribe.note_losses();
        self.scribe.holds().remove(&token);
        self.scribe.write(What::Release { token, names: Vec::new() });
        drop(self.guard);
        self.scribe.write(What::ReleaseUnknown { token });
    }
}

fn names(guard: &Guard) -> Vec<String> {
    guard.names().map(str::to_owned).collect()
}

fn shown(name: &str, value: &Value) -> Shown {
    Shown {
        name: name.into(),
        value: String::from_utf8_lossy(&value.bytes).into_owned(),
        token: value.token.get(),
        suspect: value.is_suspect,
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

fn what_released(token: u64, names: &[String], answer: &Result<(), Error>) -> What {
    match answer {
        Ok(()) => What::Released { token, names: names.to_vec() },
        Err(Error::Lost { reason }) => What::Lost { token, cause: cause(*reason) },
        Err(_) => What::ReleaseUnknown { token },
    }
}

/// A guard's reason, in the terms of histories.
pub(crate) fn cause(reason: LostReason) -> LostCause {
    match reason {
        LostReason::SessionExpired => LostCause::Expired,
        LostReason::SessionClosed => LostCause::Closed,
        LostReason::Revoked => LostCause::Gone,
        LostReason::SessionRevoked | LostReason::Forced => LostCause::TakenAway,
        LostReason::HeldTooLong => LostCause::TooLong,
        _ => LostCause::Deadline,
    }
}
