//! Compares the tables with the native store, and reports every difference. It changes nothing.
//!
//! The two are not read at one instant, and rows end. So a lock that differs is read again a little
//! later, on both sides, and only what differs then is reported. While a client still writes, or
//! claims an import, harmless differences appear; with all writers stopped, and before any claim,
//! there are none.

mod compare;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join;
use futures_util::{StreamExt, stream};
use holdfast_runtime::{Instant, Runtime};
use tokio::sync::mpsc;

use crate::import::Fault;
use crate::layout::{LockRows, Raw};
use crate::plan::{LockPlan, Rules, plan};
use crate::scan::{MESSAGES_WAITING, Range, Scan, ScanError, ScanMessage};
pub use compare::{Difference, LINE_COMPARED, NativeLock, Party, compare};

/// The pause before the second read: an import ends up to a second after its row.
const PAUSE: Duration = Duration::from_secs(3);
/// Locks that are read again: if more differ, the instant of the read is not the cause.
const LOOKED_AT_AGAIN: usize = 1_000;
/// Locks whose native state is read at once.
const ASKED_AT_ONCE: usize = 32;

/// The native store, as a comparison reads it.
pub trait NativeStore {
    /// Reads one lock; `None`: it has no holder, no waiter, and no value.
    fn lock(&self, name: &str) -> impl Future<Output = Result<Option<NativeLock>, Fault>>;

    /// Names of locks with a holder or a waiter, below the prefix and after the position `after`;
    /// and the position of the next page, if there is one.
    fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Future<Output = Result<(Vec<String>, Option<String>), Fault>>;
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Locks that have something to import, or something imported.
    pub locks: u64,
    /// How many of them differ.
    pub differing: u64,
}

/// Why a comparison ended early. The differences that were reported are valid.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The tables could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The store could not be read.
    #[error("the store was not read: {0}")]
    Native(#[from] Fault),
}

/// Compares all locks below the rules' prefix: those with rows, then those with an import and no
/// rows.
///
/// # Errors
///
/// [`VerifyError`].
pub async fn verify(
    scan: &Scan,
    native: &impl NativeStore,
    rules: &Rules,
    (ranges, reads_at_once): (&[Range], usize),
    runtime: &Runtime,
    tell: &mut impl FnMut(&str, &Difference),
) -> Result<Verified, VerifyError> {
    let sides = Sides { scan, native, rules, runtime, again: AtomicUsize::new(0) };
    let mut verified = sides.compare_rows(ranges, reads_at_once, tell).await?;
    sides.compare_native(&mut verified, tell).await?;
    Ok(verified)
}

/// Compares only the locks that have rows.
pub(crate) async fn verify_rows(
    scan: &Scan,
    native: &impl NativeStore,
    rules: &Rules,
    (ranges, reads_at_once): (&[Range], usize),
    runtime: &Runtime,
    tell: &mut impl FnMut(&str, &Difference),
) -> Result<Verified, VerifyError> {
    let sides = Sides { scan, native, rules, runtime, again: AtomicUsize::new(0) };
    sides.compare_rows(ranges, reads_at_once, tell).await
}

struct Sides<'a, N> {
    scan: &'a Scan,
    native: &'a N,
    rules: &'a Rules,
    runtime: &'a Runtime,
    /// Locks that were read again.
    again: AtomicUsize,
}

/// A lock and its differences.
type Compared = (String, Vec<Difference>);

impl<N: NativeStore> Sides<'_, N> {
    async fn compare_rows(
        &self,
        ranges: &[Range],
        reads_at_once: usize,
        tell: &mut impl FnMut(&str, &Difference),
    ) -> Result<Verified, VerifyError> {
        let mut verified = Verified::default();
        let (send, news) = mpsc::channel(MESSAGES_WAITING);
        let scanned = self.scan.run(ranges, reads_at_once, send);
        let coming = stream::unfold(news, async |mut news| Some((news.recv().await?, news)));
        let locks = coming.flat_map(|news| {
            stream::iter(match news {
                ScanMessage::Locks { locks, read_at, .. } => {
                    locks.into_iter().map(|rows| (rows, read_at)).collect()
                }
                ScanMessage::Done { .. } => Vec::new(),
            })
        });
        let compared = locks
            .map(|(rows, read_at)| self.compare_lock(rows, read_at))
            .buffer_unordered(ASKED_AT_ONCE);
        let comparing = async {
            let mut compared = pin!(compared);
            while let Some(compared) = compared.next().await {
                count(compared?, &mut verified, tell);
            }
            Ok(())
        };
        try_join(async { scanned.await.map_err(VerifyError::from) }, comparing).await?;
        Ok(verified)
    }

    /// Compares one lock with rows; `None` if it is outside of the prefix, or has nothing to
    /// import.
    async fn compare_lock(
        &self,
        rows: LockRows,
        read_at: Instant,
    ) -> Result<Option<Compared>, VerifyError> {
        let key = rows.lock.clone();
        let Some(planned) = plan(rows, self.rules).filter(|plan| !plan.rows.is_empty()) else {
            return Ok(None);
        };
        let name = key.to_string();
        let differences = self.compare_with_native(&planned, &name, read_at).await?;
        if differences.is_empty() || !self.may_look_again() {
            return Ok(Some((name, differences)));
        }
        self.runtime.sleep(PAUSE).await;
        let planned = self.planned(&key).await?;
        let differences = self.compare_with_native(&planned, &name, self.now()).await?;
        Ok(Some((name, differences)))
    }

    async fn compare_with_native(
        &self,
        planned: &LockPlan,
        name: &str,
        read_at: Instant,
    ) -> Result<Vec<Difference>, VerifyError> {
        let native = self.native.lock(name).await?;
        Ok(compare(planned, native.as_ref(), self.now().saturating_since(read_at)))
    }

    fn now(&self) -> Instant {
        self.runtime.clock.now()
    }

    fn may_look_again(&self) -> bool {
        self.again.fetch_add(1, Ordering::Relaxed) < LOOKED_AT_AGAIN
    }

    /// The lock's plan by its rows now.
    async fn planned(&self, key: &Raw) -> Result<LockPlan, VerifyError> {
        let rows = self.scan.lock(key).await?;
        Ok(rows.and_then(|rows| plan(rows, self.rules)).unwrap_or_default())
    }

    async fn compare_native(
        &self,
        verified: &mut Verified,
        tell: &mut impl FnMut(&str, &Difference),
    ) -> Result<(), VerifyError> {
        let mut after = None;
        loop {
            let (names, next) = self.native.names(&self.rules.prefix, after.as_deref()).await?;
            let compared = stream::iter(names).map(|name| self.compare_name(name));
            let mut compared = pin!(compared.buffer_unordered(ASKED_AT_ONCE));
            while let Some(compared) = compared.next().await {
                count(compared?, verified, tell);
            }
            if next.is_none() {
                return Ok(());
            }
            after = next;
        }
    }

    /// Compares one lock without rows; `None` if it has rows, which were compared before, or no
    /// import.
    async fn compare_name(&self, name: String) -> Result<Option<Compared>, VerifyError> {
        let key = Raw::Text(name.clone());
        let mut again = false;
        loop {
            if self.scan.lock(&key).await?.is_some() {
                return Ok(None);
            }
            let native = self.native.lock(&name).await?;
            let differences = compare(&LockPlan::default(), native.as_ref(), Duration::ZERO);
            if differences.is_empty() {
                return Ok(None);
            }
            if again || !self.may_look_again() {
                return Ok(Some((name, differences)));
            }
            again = true;
            self.runtime.sleep(PAUSE).await;
        }
    }
}

fn count(
    compared: Option<Compared>,
    verified: &mut Verified,
    tell: &mut impl FnMut(&str, &Difference),
) {
    let Some((name, differences)) = compared else { return };
    verified.locks += 1;
    verified.differing += u64::from(!differences.is_empty());
    for difference in &differences {
        tell(&name, difference);
    }
}
