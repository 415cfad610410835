//! A client of any [`RemoteLocker`] that records what it asks, receives and believes, as [`crate::scribe`] does for the native client. See
//! [`crate::term`] for what the judge reads as a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast::{Error, FencingToken, GuardState};
use holdfast_recipes::{RemoteGuard, RemoteLocker, Wait};
use holdfast_runtime::Runtime;

use crate::history::{Asked, ClientId, Recorder, What};
use crate::term::{Held, Term};

/// One client and its recorder.
#[derive(Clone)]
pub struct RemoteScribe {
    locker: Arc<dyn RemoteLocker>,
    id: ClientId,
    recorder: Recorder,
    runtime: Runtime,
    /// The number that the judge reads as the token of a name, if every grant has a fencing token.
    fenced: Option<fn(FencingToken, &str) -> u64>,
    next_request: Arc<AtomicU64>,
}

/// A hold.
pub type RemoteHeld = Held<RemoteGuard>;

impl RemoteScribe {
    /// Records what `locker` does as client `id`.
    pub fn of(locker: Arc<dyn RemoteLocker>, id: ClientId, recorder: Recorder) -> Self {
        let (runtime, next_request) = (Runtime::system(), Arc::new(AtomicU64::new(1)));
        Self { locker, id, recorder, runtime, fenced: None, next_request }
    }

    /// The same for a client on another runtime.
    #[must_use]
    pub fn on(self, runtime: Runtime) -> Self {
        Self { runtime, ..self }
    }

    /// The same client through another locker.
    #[must_use]
    pub fn through(&self, locker: Arc<dyn RemoteLocker>) -> Self {
        Self { locker, ..self.clone() }
    }

    /// The same for locks that all have fencing tokens; `judged` returns what the judge reads as the token of a name.
    #[must_use]
    pub fn fenced(self, judged: fn(FencingToken, &str) -> u64) -> Self {
        Self { fenced: Some(judged), ..self }
    }

    fn write(&self, what: What) {
        self.recorder.write(self.id, what);
    }

    /// Asks for the lock.
    ///
    /// # Errors
    ///
    /// As the locker's `acquire`.
    pub async fn acquire(&self, name: &str, wait: Wait) -> Result<RemoteHeld, Error> {
        self.acquire_by(name, wait, self.locker.acquire(name, wait)).await
    }

    /// Asks for the lock by `ask`.
    ///
    /// # Errors
    ///
    /// As `ask`.
    pub async fn acquire_by<T: Term>(
        &self,
        name: &str,
        wait: Wait,
        ask: impl Future<Output = Result<T, Error>>,
    ) -> Result<Held<T>, Error> {
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let within = match wait {
            Wait::Forever | Wait::No => None,
            Wait::AtMost(limit) | Wait::NoAnsweredWithin(limit) => Some(limit),
        };
        let waits = matches!(wait, Wait::Forever | Wait::AtMost(_));
        let within_ms = within.map(|within| self.recorder.ms_of(within));
        let items = vec![Asked::exclusive(name)];
        self.write(What::Acquire { request, items, any: None, wait: waits, within_ms });
        match ask.await {
            Ok(guard) => {
                let judged = self.fenced.zip(guard.token());
                let judged = judged.map(|(judged, token)| judged(token, name));
                let token = judged.unwrap_or_else(|| self.recorder.now_ns());
                let of = (self.id, request);
                Ok(Held::granted_under(token, guard, (&self.recorder, &self.runtime), of))
            }
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

    /// Acquires, holds for `length` and releases, again and again, until `until` returns true.
    pub async fn work(&self, names: &[&str], length: Duration, until: impl Fn() -> bool) {
        let runtime = &self.runtime;
        // Not every client begins with the same name.
        let mut turn = usize::try_from(self.id.0).unwrap_or_default();
        while !until() {
            let name = names[turn % names.len()];
            turn += 1;
            if let Ok(held) = self.acquire(name, Wait::AtMost(Duration::from_secs(20))).await {
                held.keep(length).await;
                let _ = held.release().await;
            }
            runtime.sleep(Duration::from_millis(10)).await;
        }
    }
}

impl std::fmt::Debug for RemoteScribe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteScribe").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Term for RemoteGuard {
    fn name(&self) -> String {
        self.name().to_owned()
    }

    fn state(&self) -> GuardState {
        self.state()
    }

    fn is_safe(&self) -> bool {
        self.is_safe()
    }

    fn token(&self) -> Option<FencingToken> {
        self.token()
    }
}

impl Held<RemoteGuard> {
    /// The guard itself.
    pub fn guard(&self) -> &RemoteGuard {
        self.had()
    }

    /// Releases the lock and waits for the answer.
    ///
    /// # Errors
    ///
    /// As the guard's `release`.
    pub async fn release(self) -> Result<(), Error> {
        self.give_back(RemoteGuard::release).await
    }
}
