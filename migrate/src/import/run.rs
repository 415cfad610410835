//! Turns the scan's [`ScanMessage`] into requests, sends them at a bounded pace, and counts the answers.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use holdfast::{ImportGroup, ImportOutcome};
use holdfast_runtime::{Instant, Runtime};
use tokio::sync::mpsc;

use super::{Fault, Importer, Request};
use crate::layout::LockRows;
use crate::plan::{Rules, plan};
use crate::scan::ScanMessage;

/// Pauses before a request without an answer is sent again: long enough for a new leader.
const PAUSES: [Duration; 7] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(15),
];
/// Refused rows that are kept by name.
const REFUSED_SHOWN: usize = 10;

/// An import under way.
#[derive(Debug)]
pub struct Import<I> {
    importer: I,
    rules: Rules,
    pace: Pace,
    /// Requests that may be under way at once.
    at_once: usize,
    runtime: Runtime,
}

/// What an import reports while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportReport {
    /// An earlier run has done some of the ranges.
    Resumed {
        /// How many.
        ranges: usize,
        /// How many it had done so long ago that they are read again.
        stale: usize,
    },
    /// The store has answered more rows.
    Rows {
        /// How many.
        number: usize,
    },
    /// One more range is done: all its rows are imported, or counted with the reason why not.
    Range {
        /// Its number.
        index: usize,
    },
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Rows whose owners hold their lock now.
    pub imported: u64,
    /// Rows whose owners are in the queue now.
    pub queued: u64,
    /// Rows of an earlier import that still stand.
    pub already_there: u64,
    /// Rows that ended between their read and their turn.
    pub over: u64,
    /// Findings of the plan, which are not sent; `plan` shows them with their reasons.
    pub left_out: u64,
    /// Rows that the store refused.
    pub refused: u64,
    /// The first refused rows: lock, owner, and reason.
    pub refusals: Vec<(String, String, String)>,
}

/// Why an import ended early. What was imported stands, and the import can be begun again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The store did not answer, after several attempts.
    #[error(
        "the store did not say what became of {rows} rows, {attempts} times: {last}; begin again \
         when it answers, what is there is not imported twice"
    )]
    NoAnswer {
        /// How many rows the request had.
        rows: usize,
        /// How often they were sent.
        attempts: usize,
        /// The last fault.
        last: String,
    },
    /// The store refuses a whole request.
    #[error("the store refuses the import: {0}")]
    Refused(String),
    /// The receiver of the progress failed.
    #[error("{0}")]
    Progress(String),
}

/// The outcome of one [`ScanMessage`].
enum Outcome {
    Sent { range: usize, sum: Sum },
    RangeEnd { range: usize, news: u64 },
}

/// How many [`ScanMessage`] of a range are done, and how many there are, once known.
#[derive(Default)]
struct RangeProgress {
    done: u64,
    of: Option<u64>,
}

impl<I: Importer> Import<I> {
    /// Creates an import. Nothing is sent yet.
    pub fn new(importer: I, rules: Rules, pace: Pace, at_once: usize, runtime: Runtime) -> Self {
        Self { importer, rules, pace, at_once: at_once.max(1), runtime }
    }

    /// Imports the locks of all `news` until the channel closes. The requests of one [`ScanMessage`] are
    /// sent one after the other; those of several at once, because no lock is in two of them.
    ///
    /// Dropping the future may leave requests whose outcome is open; beginning again is harmless.
    ///
    /// # Errors
    ///
    /// [`SendError`]; ranges that were reported to `progress` are done. An error of `progress` ends the
    /// import, which can be begun again.
    pub async fn run(
        &self,
        news: mpsc::Receiver<ScanMessage>,
        progress: &mut impl FnMut(ImportReport) -> Result<(), String>,
    ) -> Result<Sum, SendError> {
        let coming = stream::unfold(news, async |mut news| Some((news.recv().await?, news)));
        let mut working = pin!(coming.map(|news| self.one(news)).buffer_unordered(self.at_once));
        let mut all = Sum::default();
        let mut ranges: BTreeMap<usize, RangeProgress> = BTreeMap::new();
        while let Some(outcome) = working.next().await {
            let range = match outcome? {
                Outcome::RangeEnd { range, news } => {
                    ranges.entry(range).or_default().of = Some(news);
                    range
                }
                Outcome::Sent { range, sum } => {
                    ranges.entry(range).or_default().done += 1;
                    let number = sum.rows();
                    progress(ImportReport::Rows { number }).map_err(SendError::Progress)?;
                    all.add(sum);
                    range
                }
            };
            if ranges.get(&range).is_some_and(|told| told.of == Some(told.done)) {
                ranges.remove(&range);
                progress(ImportReport::Range { index: range }).map_err(SendError::Progress)?;
            }
        }
        Ok(all)
    }

    async fn one(&self, news: ScanMessage) -> Result<Outcome, SendError> {
        match news {
            ScanMessage::Done { range, news } => Ok(Outcome::RangeEnd { range, news }),
            ScanMessage::Locks { range, locks, read_at } => {
                let sum = self.send_all(locks, read_at).await?;
                Ok(Outcome::Sent { range, sum })
            }
        }
    }

    async fn send_all(&self, locks: Vec<LockRows>, read_at: Instant) -> Result<Sum, SendError> {
        let plans: Vec<_> = locks.into_iter().filter_map(|rows| plan(rows, &self.rules)).collect();
        let left_out: usize = plans.iter().map(|plan| plan.findings.len()).sum();
        let mut sum = Sum { left_out: count(left_out), ..Sum::default() };
        for request in Request::of(plans.into_iter().map(|plan| plan.rows).collect()) {
            self.pace.wait(request.rows(), &self.runtime).await;
            sum.add(self.send(&request, read_at).await?);
        }
        Ok(sum)
    }

    /// Sends a request until it is answered; each attempt with the time that is left by then.
    async fn send(&self, request: &Request, read_at: Instant) -> Result<Sum, SendError> {
        let mut pauses = PAUSES.iter();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let passed = self.runtime.clock.now().saturating_since(read_at);
            let (groups, over) = request.groups(passed);
            let mut sum = Sum { over: count(over), ..Sum::default() };
            if groups.is_empty() {
                return Ok(sum);
            }
            let last = match self.importer.import(&groups).await {
                Ok(outcomes) => match sum.count_outcomes(groups, outcomes) {
                    Ok(()) => return Ok(sum),
                    Err(last) => last,
                },
                Err(Fault::Refused(message)) => return Err(SendError::Refused(message)),
                Err(Fault::Unknown(last)) => last,
            };
            let Some(pause) = pauses.next() else {
                return Err(SendError::NoAnswer { rows: request.rows(), attempts, last });
            };
            self.runtime.sleep(*pause).await;
        }
    }
}

impl Sum {
    fn rows(&self) -> usize {
        let Self { imported, queued, already_there, over, refused, .. } = self;
        usize::try_from(imported + queued + already_there + over + refused).unwrap_or(usize::MAX)
    }

    fn add(&mut self, other: Self) {
        self.imported += other.imported;
        self.queued += other.queued;
        self.already_there += other.already_there;
        self.over += other.over;
        self.left_out += other.left_out;
        self.refused += other.refused;
        let room = REFUSED_SHOWN.saturating_sub(self.refusals.len());
        self.refusals.extend(other.refusals.into_iter().take(room));
    }

    /// Counts the outcomes, if there is exactly one for each row.
    fn count_outcomes(
        &mut self,
        groups: Vec<ImportGroup>,
        outcomes: Vec<Vec<ImportOutcome>>,
    ) -> Result<(), String> {
        let rows = groups.iter().map(|group| group.rows.len());
        if !rows.eq(outcomes.iter().map(Vec::len)) {
            return Err("the answers are not as many as the rows".into());
        }
        for (ImportGroup { owner, rows, .. }, outcomes) in groups.into_iter().zip(outcomes) {
            for (row, outcome) in rows.into_iter().zip(outcomes) {
                match outcome {
                    ImportOutcome::Held { .. } => self.imported += 1,
                    ImportOutcome::Queued { .. } => self.queued += 1,
                    ImportOutcome::Known => self.already_there += 1,
                    ImportOutcome::Refused { message, .. } => {
                        self.count_refusal(row.name, &owner, message);
                    }
                    other => {
                        let why = format!("an answer of a newer release: {other:?}");
                        self.count_refusal(row.name, &owner, why);
                    }
                }
            }
        }
        Ok(())
    }

    fn count_refusal(&mut self, lock: String, owner: &str, why: String) {
        self.refused += 1;
        if self.refusals.len() < REFUSED_SHOWN {
            self.refusals.push((lock, owner.to_owned(), why));
        }
    }
}

/// A rate that all clones share. Unused time is not saved up.
#[derive(Clone, Debug)]
pub struct Pace {
    rows_per_s: Option<NonZeroU32>,
    free_at: Arc<Mutex<Instant>>,
}

impl Pace {
    /// At most this many rows per second; `None`: no limit.
    pub fn new(rows_per_s: Option<NonZeroU32>) -> Self {
        let free_at = Arc::new(Mutex::new(Instant::from_origin(Duration::ZERO)));
        Self { rows_per_s, free_at }
    }

    /// Waits until this many rows may be sent; callers are served in the order of their calls.
    /// Dropping the future does not return the rows to the budget.
    async fn wait(&self, rows: usize, runtime: &Runtime) {
        let now = runtime.clock.now();
        let from = self.take(rows, now);
        if from > now {
            runtime.clock.sleep_until(from).await;
        }
    }

    /// The instant at which this many rows may be sent: after the rows before them have had their
    /// time.
    fn take(&self, rows: usize, now: Instant) -> Instant {
        let Some(rows_per_s) = self.rows_per_s else { return now };
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let from = now.max(*free_at);
        *free_at = from + Duration::from_secs(1) * rows / rows_per_s.get();
        from
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_at_their_rate_and_idle_time_is_not_saved_up() {
        let pace = Pace::new(NonZeroU32::new(1_000));
        let at = |ms| Instant::from_origin(Duration::from_millis(ms));

        assert_eq!(pace.take(500, at(0)), at(0));
        assert_eq!(pace.take(100, at(1)), at(500));
        assert_eq!(pace.take(1, at(2)), at(600));
        assert_eq!(pace.take(10, at(9_000)), at(9_000));
        assert_eq!(pace.take(10, at(9_000)), at(9_010));
        assert_eq!(Pace::new(None).take(usize::MAX, at(5)), at(5));
    }
}
