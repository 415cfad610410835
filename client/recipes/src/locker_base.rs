//! What every locker on Cassandra stands on: its session, its lengths of time, and the name under which it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_keyspace::shared::Shared;
use holdfast_runtime::{Clock, Instant, Runtime};

use super::cassandra::{Cassandra, LockerOptions, recipe_on};
use super::database::Fault;
use super::lock_task::Attempt;
use super::locker::{OnCassandra, RemoteGuard, RemoteLocker, Wait};
use super::owner::{OwnerId, OwnerPool, Signature, Writer};
use super::recipe::Recipe;
use super::row_timing::RowTiming;
use super::statement::Ident;
use super::turns::Turn;
use crate::{Error, Result, check_lock_name};
use holdfast_guard::Backoff;

/// What all attempts of a locker share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LockerBase {
    pub(crate) cassandra: Cassandra,
    pub(crate) timing: RowTiming,
    /// How long a call that does not wait may take to get an answer.
    pub(crate) answer_limit: Duration,
    pub(crate) signature: Signature,
    /// The timestamps of the cells that it writes without LWT.
    pub(crate) stamps: Arc<Stamps>,
    /// The ids that its attempts by plain writes use again.
    pub(crate) owners: Arc<OwnerPool>,
    /// Its waiters, by lock.
    pub(crate) turns: Arc<Shared<String, Turn>>,
}

impl LockerBase {
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig) if TTL and skew make no sense together.
    pub(crate) fn new(cassandra: &Cassandra, options: &LockerOptions) -> Result<Self> {
        let runtime = cassandra.runtime();
        Ok(Self {
            cassandra: cassandra.clone(),
            timing: options.timing()?,
            answer_limit: options.answer_limit,
            signature: Signature::draw(&options.service, &*runtime.rng),
            stamps: Arc::new(Stamps::micros(runtime.clock.clone())),
            owners: Arc::default(),
            turns: Arc::default(),
        })
    }

    /// The same, writing as that writer.
    pub(crate) fn written_by(&self, writer: &Writer) -> Self {
        let signature = self.signature.of_writer(writer);
        Self { signature, owners: Arc::default(), ..self.clone() }
    }

    /// A locker of `recipe` on these tables, as a [`Locker`](super::Locker) builds on it.
    pub(crate) fn built_on(
        &self,
        recipe: Recipe,
        tables: &[&Ident],
        locker: impl RemoteLocker + 'static,
    ) -> OnCassandra {
        let tables: Vec<&str> = tables.iter().map(|table| table.as_str()).collect();
        let recipe = recipe_on(recipe.family(), &self.cassandra.tables().keyspace(), &tables);
        OnCassandra { locker: Arc::new(locker), recipe, elections: None }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.cassandra.runtime()
    }

    pub(crate) fn now(&self) -> Instant {
        self.runtime().clock.now()
    }

    /// Draws the owner id of a new attempt.
    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId::draw(&self.signature, &*self.runtime().rng)
    }

    /// # Errors
    ///
    /// As of [`RemoteLocker::acquire`].
    pub(crate) async fn acquire<A: Attempt>(
        &self,
        lock_id: &str,
        wait: Wait,
        attempt: impl FnOnce() -> A,
    ) -> Result<RemoteGuard> {
        check_lock_name(lock_id)?;
        self.hold(lock_id, wait, attempt(), Arc::default()).await
    }

    /// The retries of a call that may take as long as one that does not wait.
    pub(crate) fn tries(&self) -> Tries<'_> {
        Tries::new(&self.cassandra, self.answer_limit, Duration::from_secs(2))
    }
}

/// The retries of one call without an answer.
pub(crate) struct Tries<'a> {
    cassandra: &'a Cassandra,
    began: Instant,
    limit: Duration,
    pauses: Backoff,
    /// Why the last try had no answer; `None` before the first has ended.
    trouble: Option<String>,
}

impl<'a> Tries<'a> {
    /// `limit` bounds them, `pause_max` the pause between two.
    pub(crate) fn new(cassandra: &'a Cassandra, limit: Duration, pause_max: Duration) -> Self {
        let began = cassandra.runtime().clock.now();
        Self { cassandra, began, limit, pauses: Backoff::new(pause_max), trouble: None }
    }

    /// Tries until `call` has an answer, and pauses in between.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) when the limit has passed,
    /// [`Error::Refused`](crate::Error::Refused) if a retry would be refused too.
    pub(crate) async fn until_answered<T, F>(&mut self, call: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let runtime = self.cassandra.runtime();
        loop {
            let fault = match call().await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            let is_over = runtime.clock.now().saturating_since(self.began) >= self.limit;
            if is_over || matches!(fault, Fault::Refused(_)) {
                return Err(self.cassandra.failed(fault, self.began));
            }
            self.trouble = Some(fault.to_string());
            runtime.sleep(self.pauses.next(&*runtime.rng)).await;
        }
    }

    /// The error of a caller that waits no longer, whatever a try that is under way comes to.
    pub(crate) fn given_up(&self) -> Error {
        let trouble = self.trouble.clone().unwrap_or_else(|| "no answer yet".to_owned());
        self.cassandra.unreachable(self.began, trouble)
    }
}

/// Rising timestamps, which order the writes of one process: each is above the one before, whatever the clock does. No timestamp is compared with
/// another process's: no two processes write the same cell.
pub(crate) struct Stamps {
    clock: Arc<dyn Clock>,
    /// The number of timestamps in a millisecond.
    per_ms: u64,
    last: AtomicU64,
}

impl Stamps {
    /// In microseconds, as a write carries them: a delete that is sent after a write wins over it.
    pub(crate) fn micros(clock: Arc<dyn Clock>) -> Self {
        Self { clock, per_ms: 1_000, last: AtomicU64::new(0) }
    }

    /// In milliseconds, as a column of type `timestamp` has them.
    pub(crate) fn millis(clock: Arc<dyn Clock>) -> Self {
        Self { clock, per_ms: 1, last: AtomicU64::new(0) }
    }

    pub(crate) fn next(&self) -> i64 {
        let now = self.clock.wall_ms().saturating_mul(self.per_ms);
        let drawn = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            Some(now.max(last.saturating_add(1)))
        });
        let last = drawn.unwrap_or_else(|last| last);
        i64::try_from(now.max(last.saturating_add(1))).unwrap_or(i64::MAX)
    }
}
