//! A client of any [`RemoteLocker`] that writes down what it asks, is told and believes, as
//! [`crate::scribe`] does for the native client.
//!
//! Not every locker gives tokens. What the judge reads as one is the instant at which the grant was
//! told, on the clock that all of a run's clients read: a lock that is held by one at a time is told
//! to one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::compat::{Patience, RemoteGuard, RemoteLocker};
use holdfast::{Error, GuardState};
use holdfast_seams::Seams;

use crate::history::{Asked, ClientId, Recorder, What};
use crate::scribe::cause;

/// How often a holder looks at its guard.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One client, and what it writes down.
#[derive(Clone)]
pub struct RemoteScribe {
    locker: Arc<dyn RemoteLocker>,
    id: ClientId,
    recorder: Recorder,
    next_request: Arc<AtomicU64>,
}

/// A hold, and who writes down what becomes of it.
#[derive(Debug)]
pub struct RemoteHeld {
    guard: RemoteGuard,
    scribe: RemoteScribe,
    token: u64,
}

impl RemoteScribe {
    /// Writes down what `locker` does as client `id`.
    pub fn of(locker: Arc<dyn RemoteLocker>, id: ClientId, recorder: Recorder) -> Self {
        Self { locker, id, recorder, next_request: Arc::new(AtomicU64::new(1)) }
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    /// Asks for the lock.
    ///
    /// # Errors
    ///
    /// As the locker's `acquire`.
    pub async fn acquire(&self, name: &str, patience: Patience) -> Result<RemoteHeld, Error> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let within = match patience {
            Patience::Endless | Patience::None => None,
            Patience::AtMost(limit) | Patience::NoneButAnswer(limit) => Some(limit),
        };
        let wait = matches!(patience, Patience::Endless | Patience::AtMost(_));
        let within_ms = within.map(|within| self.recorder.ms_of(within));
        let items = vec![Asked::exclusive(name)];
        self.write(What::Acquire { request, items, any: None, wait, within_ms });
        match self.locker.acquire(name, patience).await {
            Ok(guard) => Ok(self.granted(request, name, guard)),
            Err(error) => {
                self.write(match &error {
                    Error::NotGranted { .. } => What::Denied { request },
                    Error::Refused { .. } => What::Refused { request, reason: error.to_string() },
                    _ => What::Unknown { request },
                });
                Err(error)
            }
        }
    }

    fn granted(&self, request: u64, name: &str, guard: RemoteGuard) -> RemoteHeld {
        let token = self.recorder.now_ns();
        let (names, values) = (vec![name.to_owned()], Vec::new());
        self.write(What::Granted { request, token, names, values });
        let held = RemoteHeld { guard, scribe: self.clone(), token };
        held.note();
        held
    }

    /// Acquires, holds for `length` and gives back, again and again, until `until` says so.
    pub async fn work(&self, names: &[&str], length: Duration, until: impl Fn() -> bool) {
        let seams = Seams::system();
        // Not all at the same one first.
        let mut turn = usize::try_from(self.id.0).unwrap_or_default();
        while !until() {
            let name = names[turn % names.len()];
            turn += 1;
            if let Ok(held) = self.acquire(name, Patience::AtMost(Duration::from_secs(20))).await {
                held.keep(length).await;
                let _ = held.release().await;
            }
            seams.sleep(Duration::from_millis(10)).await;
        }
    }
}

impl std::fmt::Debug for RemoteScribe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteScribe").field("id", &self.id).finish_non_exhaustive()
    }
}

impl RemoteHeld {
    /// The guard itself.
    pub fn guard(&self) -> &RemoteGuard {
        &self.guard
    }

    /// Writes down what the guard says now, and says whether it is safe.
    pub fn note(&self) -> bool {
        let (token, scribe) = (self.token, &self.scribe);
        let state = *self.guard.state().borrow();
        match state {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                let until_ns = scribe.recorder.ns_of(safe_until);
                scribe.write(What::SafeGrant { token, until_ns });
            }
            GuardState::Lost(reason) => scribe.write(What::Lost { token, cause: cause(reason) }),
            GuardState::Released => {}
        }
        let at_ns = scribe.recorder.now_ns();
        let safe = self.guard.is_safe();
        let names = vec![self.guard.lock_id().to_owned()];
        scribe.recorder.write_at(at_ns, scribe.id, What::IsSafe { token, safe, names });
        safe
    }

    /// Holds for so long, looking now and then.
    pub async fn keep(&self, length: Duration) {
        let seams = Seams::system();
        let until = seams.clock.now() + length;
        while seams.clock.now() < until && self.note() {
            let left = until.saturating_since(seams.clock.now());
            seams.sleep(left.min(LOOK_EVERY)).await;
        }
    }

    /// Gives it back and waits for the answer.
    ///
    /// # Errors
    ///
    /// As the guard's `release`.
    pub async fn release(self) -> Result<(), Error> {
        let token = self.token;
        self.note();
        self.scribe.write(What::Release { token, names: Vec::new() });
        let answer = self.guard.release().await;
        self.scribe.write(match &answer {
            Ok(()) => What::Released { token, names: Vec::new() },
            Err(Error::Lost { reason }) => What::Lost { token, cause: cause(*reason) },
            Err(_) => What::ReleaseUnknown { token },
        });
        answer
    }
}
