//! Compares the tables with the native store, and tells every difference. Changes nothing.
//!
//! The two are not read at one instant, and rows end: what differs is read once more, on both sides, a
//! little later, and only what differs then is told. While somebody still writes, or claims what was
//! imported, there are differences that mean no harm; with the writers stopped, and before anybody claims,
//! there is none.

mod compare;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join;
use futures_util::{StreamExt, stream};
use holdfast_seams::Seams;
use tokio::sync::mpsc;

use crate::import::Fault;
use crate::layout::{LockRows, Raw};
use crate::plan::{LockPlan, Rules, plan};
use crate::scan::{News, Range, Scan, ScanError};
pub use compare::{Difference, LINE_COMPARED, NativeLock, Party, compare};

/// How long what differs is let alone: an import ends up to a second after its row.
const PAUSE: Duration = Duration::from_secs(3);
/// Locks that are read once more: if more differ, it is no matter of an instant.
const LOOKED_AT_AGAIN: usize = 1_000;
/// Locks that are asked for natively at once.
const ASKED_AT_ONCE: usize = 32;
/// News that wait to be compared.
const NEWS_WAITING: usize = 4;

/// The native store, as it is compared.
pub trait NativeStore {
    /// One lock; `None`: nobody has it, waits for it, or left a value.
    fn lock(&self, name: &str) -> impl Future<Output = Result<Option<NativeLock>, Fault>>;

    /// Names of locks, below the prefix and after that name, that somebody has or waits for; and after
    /// which name there are more.
    fn names(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Future<Output = Result<(Vec<String>, Option<String>), Fault>>;
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Locks that have something to import, or something imported.
    pub locks: u64,
    /// Those of them that differ.
    pub differing: u64,
}

/// Why a comparison ended before its end. What was told is so.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The tables could not be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The store was not read.
    #[error("the store was not read: {0}")]
    Native(#[from] Fault),
}

/// Compares all locks below the rules' prefix: those that have rows, then those that have something
/// imported and no rows.
///
/// # Errors
///
/// [`VerifyError`].
pub async fn verify(
    scan: &Scan,
    native: &impl NativeStore,
    rules: &Rules,
    (ranges, reads_at_once): (&[Range], usize),
    seams: &Seams,
    tell: &mut impl FnMut(&str, &Difference),
) -> Result<Verified, VerifyError> {
    let sides = Sides { scan, native, rules, seams, again: AtomicUsize::new(0) };
    let mut verified = Verified::default();
    sides.read_and_compare(ranges, reads_at_once, &mut verified, tell).await?;
    sides.compare_native(&mut verified, tell).await?;
    Ok(verified)
}

/// Compares only the locks that have rows.
///
/// # Errors
///
/// [`VerifyError`].
pub async fn verify_rows(
    scan: &Scan,
    native: &impl NativeStore,
    rules: &Rules,
    (ranges, reads_at_once): (&[Range], usize),
    seams: &Seams,
    tell: &mut impl FnMut(&str, &Difference),
) -> Result<Verified, VerifyError> {
    let sides = Sides { scan, native, rules, seams, again: AtomicUsize::new(0) };
    let mut verified = Verified::default();
    sides.read_and_compare(ranges, reads_at_once, &mut verified, tell).await?;
    Ok(verified)
}

struct Sides<'a, N> {
    scan: &'a Scan,
    native: &'a N,
    rules: &'a Rules,
    seams: &'a Seams,
    /// Locks that were read once more.
    again: AtomicUsize,
}

/// A lock with what differs of it.
type Compared = (String, Vec<Difference>);

impl<N: NativeStore> Sides<'_, N> {
    async fn read_and_compare(
        &self,
        ranges: &[Range],
        reads_at_once: usize,
        verified: &mut Verified,
        tell: &mut impl FnMut(&str, &Difference),
    ) -> Result<(), VerifyError> {
        let (send, news) = mpsc::channel(NEWS_WAITING);
        let scanned = self.scan.run(ranges, reads_at_once, send);
        let reading = async { scanned.await.map_err(VerifyError::from) };
        try_join(reading, self.compare_rows(news, verified, tell)).await?;
        Ok(())
    }

    async fn compare_rows(
        &self,
        news: mpsc::Receiver<News>,
        verified: &mut Verified,
        tell: &mut impl FnMut(&str, &Difference),
    ) -> Result<(), VerifyError> {
        let coming = stream::unfold(news, async |mut news| Some((news.recv().await?, news)));
        let locks = coming.flat_map(|news| match news {
            News::Locks { locks, .. } => stream::iter(locks),
            News::Done { .. } => stream::iter(Vec::new()),
        });
        let compared = locks.map(|rows| self.compare_lock(rows)).buffer_unordered(ASKED_AT_ONCE);
        let mut compared = pin!(compared);
        while let Some(compared) = compared.next().await {
            count(compared?, verified, tell);
        }
        Ok(())
    }

    /// `None` for a lock outside of the prefix, or with nothing to import.
    async fn compare_lock(&self, rows: LockRows) -> Result<Option<Compared>, VerifyError> {
        let key = rows.lock.clone();
        let Some(planned) = plan(rows, self.rules).filter(|plan| !plan.rows.is_empty()) else {
            return Ok(None);
        };
        let name = key.to_string();
        let differences = compare(&planned, self.native.lock(&name).await?.as_ref());
        if differences.is_empty() || !self.may_look_again() {
            return Ok(Some((name, differences)));
        }
        self.seams.sleep(PAUSE).await;
        let planned = self.planned(&key).await?;
        let differences = compare(&planned, self.native.lock(&name).await?.as_ref());
        Ok(Some((name, differences)))
    }

    fn may_look_again(&self) -> bool {
        self.again.fetch_add(1, Ordering::Relaxed) < LOOKED_AT_AGAIN
    }

    /// What is planned of a lock now.
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

    /// `None` for a lock that has rows, which was compared before, or has nothing imported.
    async fn compare_name(&self, name: String) -> Result<Option<Compared>, VerifyError> {
        let key = Raw::Text(name.clone());
        let mut again = false;
        loop {
            if self.scan.lock(&key).await?.is_some() {
                return Ok(None);
            }
            let native = self.native.lock(&name).await?;
            let differences = compare(&LockPlan::default(), native.as_ref());
            if differences.is_empty() {
                return Ok(None);
            }
            if again || !self.may_look_again() {
                return Ok(Some((name, differences)));
            }
            again = true;
            self.seams.sleep(PAUSE).await;
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
