//! Acquires a lock in whichever of the two stores serves its scope.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_runtime::{Runtime, select};

use crate::fallback::{Fallback, PATIENCE};
use crate::locker::{
    NativeTerms, Publishes, RemoteGuard, RemoteLocker, Wait, acquire_natively, lead_natively,
};
use holdfast::Client;

use crate::{Error, RefusalReason, Result};

/// How often a waiting call checks whether the native store serves its lock. The check reads only what this process
/// knows and sends nothing.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The native store, as a locker that falls back sees it.
pub(crate) trait NativeStore: RemoteLocker {
    /// Acquires `lock_id`. If the terms name its scope, the store grants it only while it knows the scope and has authority over
    /// it: one that was restored from a backup may have lost it, while Cassandra serves the names. A note is refused
    /// ([`refuses_note`]) while a member is of a release that knows none, or has not told its release.
    fn acquire_on<'a>(
        &'a self,
        terms: NativeTerms<'a>,
        lock_id: &'a str,
        wait: Wait,
    ) -> BoxFuture<'a, Result<RemoteGuard>>;

    /// Whether the store may hand out `lock_id` now, as far as this process knows: a server answers, knows the scope
    /// and has authority over it.
    fn serves(&self, scope: &str, lock_id: &str) -> bool;

    /// The id of its cluster, in hexadecimal digits; `None` while it is unknown.
    fn cluster(&self) -> Option<String>;

    /// Stands for the election of that name, and publishes the value once elected.
    fn lead<'a>(
        &'a self,
        terms: NativeTerms<'a>,
        elected: (&'a str, String),
        wait: Wait,
    ) -> BoxFuture<'a, Result<(RemoteGuard, Arc<dyn Publishes>)>>;

    /// Returns the name and the value of an election's present leader.
    fn leader<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<(String, String)>>>;

    /// Takes so many numbers of a sequence.
    fn take_numbers<'a>(
        &'a self,
        name: &'a str,
        count: NonZeroU32,
    ) -> BoxFuture<'a, Result<RangeInclusive<u64>>>;
}

impl NativeStore for Client {
    fn acquire_on<'a>(
        &'a self,
        terms: NativeTerms<'a>,
        lock_id: &'a str,
        wait: Wait,
    ) -> BoxFuture<'a, Result<RemoteGuard>> {
        Box::pin(acquire_natively(self, terms, lock_id, wait))
    }

    fn serves(&self, scope: &str, lock_id: &str) -> bool {
        self.serves_in_scope(scope, lock_id)
    }

    fn cluster(&self) -> Option<String> {
        let id = Client::cluster(self)?;
        let mut text = String::new();
        for byte in id {
            // Infallible: writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }

    fn lead<'a>(
        &'a self,
        terms: NativeTerms<'a>,
        elected: (&'a str, String),
        wait: Wait,
    ) -> BoxFuture<'a, Result<(RemoteGuard, Arc<dyn Publishes>)>> {
        Box::pin(lead_natively(self, terms, elected, wait))
    }

    fn leader<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<(String, String)>>> {
        Box::pin(async move {
            let leader = self.election(name).leader().await?;
            let shown = |leader: holdfast::Leader| {
                let value = String::from_utf8_lossy(&leader.value).into_owned();
                (leader.holder.label, value)
            };
            Ok(leader.map(shown))
        })
    }

    fn take_numbers<'a>(
        &'a self,
        name: &'a str,
        count: NonZeroU32,
    ) -> BoxFuture<'a, Result<RangeInclusive<u64>>> {
        Box::pin(async move { self.sequence(name).take(count).await })
    }
}

/// Whether a request may have been refused for its note alone: a server of a release before 0.4 finds nothing in such a request, and
/// a leader of this one takes none while it has a member of such a release.
pub(super) fn refuses_note(error: &Error) -> bool {
    use RefusalReason::{Invalid, Unsupported};
    matches!(error, Error::Refused { reason: Invalid | Unsupported, .. })
}

/// Both stores, for one acquire.
pub(super) struct FailoverAcquire<'a> {
    pub(super) native: &'a dyn NativeStore,
    pub(super) fallback: &'a Fallback,
    pub(super) runtime: &'a Runtime,
}

impl FailoverAcquire<'_> {
    /// Acquires the lock from the store that grants first: at most one of them may grant it. The native request keeps
    /// its place in the queue all the while; Cassandra receives requests only while the native store does not serve the
    /// name. A grant of the other store is given back.
    pub(super) async fn acquire(
        &self,
        lock_id: &str,
        wait: impl Fn() -> Wait,
    ) -> Result<RemoteGuard> {
        let in_cassandra = self.in_cassandra(lock_id, &wait);
        let natively = self.natively(lock_id, &wait);
        select! {
            guard = natively => guard,
            guard = in_cassandra => guard,
        }
    }

    /// Retries after a lost session while the caller waits: it wants the lock, not a place in the queue. A retryable
    /// error of a store that does not serve the name is not final either.
    async fn natively(&self, lock_id: &str, wait: &impl Fn() -> Wait) -> Result<RemoteGuard> {
        let terms = NativeTerms { scope: Some(self.fallback.scope()), note: None };
        loop {
            let error = match self.native.acquire_on(terms, lock_id, wait()).await {
                Ok(guard) => return Ok(guard),
                Err(error) => error,
            };
            let lost = matches!(error, Error::SessionLost { .. }) && wait().waits();
            let is_last_word = !lost && (self.serves(lock_id) || !error.may_retry());
            if is_last_word || wait().is_over() {
                return Err(error);
            }
            self.runtime.sleep(LOOK_EVERY).await;
        }
    }

    async fn in_cassandra(&self, lock_id: &str, wait: &impl Fn() -> Wait) -> Result<RemoteGuard> {
        loop {
            self.native_is(false, lock_id).await;
            select! {
                guard = self.fallback.acquire(lock_id, wait()) => return guard,
                () = self.native_is(true, lock_id) => {}
            }
        }
    }

    fn serves(&self, lock_id: &str) -> bool {
        self.native.serves(self.fallback.scope(), lock_id)
    }

    /// Completes once the native store has served the name (or has not) without interruption for
    /// [`PATIENCE`].
    async fn native_is(&self, serving: bool, lock_id: &str) {
        let mut since = None;
        loop {
            let now = self.runtime.clock.now();
            let is_so = self.serves(lock_id) == serving;
            let began = *since.get_or_insert(now);
            if !is_so {
                since = None;
            } else if now.saturating_since(began) >= PATIENCE {
                return;
            }
            self.runtime.sleep(LOOK_EVERY).await;
        }
    }
}
