//! A lock in whichever of the two stores serves its scope.

use std::fmt::Write as _;
use std::time::Duration;

use holdfast_seams::{Seams, select};

use crate::compat::fallback::Fallback;
use crate::compat::locker::{Patience, RemoteGuard, RemoteLocker};
use crate::{Client, Error, Result};

/// How often it is looked at whether the native store serves a lock that is waited for: a look at what this process
/// knows, which asks nobody.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The native store, as a locker that falls back sees it.
pub(crate) trait NativeStore: RemoteLocker {
    /// Whether it may hand out `lock_id` now, as far as is known: a server is being talked to, and has authority over
    /// the scope of the name, if that is in one.
    fn serves(&self, lock_id: &str) -> bool;

    /// The id of the cluster that it is, in hexadecimal digits; `None` while that is not known.
    fn cluster(&self) -> Option<String>;
}

impl NativeStore for Client {
    fn serves(&self, lock_id: &str) -> bool {
        self.session().serves(lock_id)
    }

    fn cluster(&self) -> Option<String> {
        let id = self.session().cluster()?;
        let mut text = String::new();
        for byte in id {
            // Infallible: a String takes whatever is written to it.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }
}

/// Both stores, for one acquire.
pub(super) struct Either<'a> {
    pub(super) native: &'a dyn NativeStore,
    pub(super) fallback: &'a Fallback,
    pub(super) seams: &'a Seams,
}

impl Either<'_> {
    /// Acquires from the one that grants first: at most one of them may. The native place in line is kept all the while;
    /// Cassandra is asked only while the native store does not serve the name. What the other one
    /// grants meanwhile is given back.
    pub(super) async fn acquire(
        &self,
        lock_id: &str,
        patience: impl Fn() -> Patience,
    ) -> Result<RemoteGuard> {
        let in_cassandra = self.in_cassandra(lock_id, &patience);
        let natively = self.natively(lock_id, &patience);
        select! {
            guard = natively => guard,
            guard = in_cassandra => guard,
        }
    }

    /// Over sessions that are lost, too: who waits wants the lock, not a place in line. What a store says that does not
    /// serve the name is not the last word, either.
    async fn natively(
        &self,
        lock_id: &str,
        patience: &impl Fn() -> Patience,
    ) -> Result<RemoteGuard> {
        loop {
            let error = match self.native.acquire(lock_id, patience()).await {
                Ok(guard) => return Ok(guard),
                Err(error) => error,
            };
            let lost = matches!(error, Error::SessionLost { .. }) && patience().waits();
            let is_last_word = !lost && (self.native.serves(lock_id) || !error.may_retry());
            if is_last_word || patience().is_over() {
                return Err(error);
            }
            self.seams.sleep(LOOK_EVERY).await;
        }
    }

    async fn in_cassandra(
        &self,
        lock_id: &str,
        patience: &impl Fn() -> Patience,
    ) -> Result<RemoteGuard> {
        loop {
            self.native_is(false, lock_id).await;
            select! {
                guard = self.fallback.acquire(lock_id, patience()) => return guard,
                () = self.native_is(true, lock_id) => {}
            }
        }
    }

    /// Ends when the native store has served the name, or has not, for as long as it may be silent.
    async fn native_is(&self, serving: bool, lock_id: &str) {
        let mut since = None;
        loop {
            let now = self.seams.clock.now();
            let is_so = self.native.serves(lock_id) == serving;
            let began = *since.get_or_insert(now);
            if !is_so {
                since = None;
            } else if now.saturating_since(began) >= Fallback::patience() {
                return;
            }
            self.seams.sleep(LOOK_EVERY).await;
        }
    }
}
