//! The replicated log as openraft wants it, over [`LogStore`].
//!
//! Reads come from memory. Writes are queued in order to one writer thread, which calls back when
//! they are durable. Votes are awaited. Appends are not: openraft counts this node's own
//! acknowledgement only from the callback. Truncation and purge need no answer, because nothing
//! after them is acknowledged before them.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use holdfast_mutants::mutant;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::oneshot;

use super::disk_times::DiskTimes;
use super::types::{Entry, LogId, Types, Vote};
use super::wire::{
    entry_of, log_id_from_stored, log_id_to_stored, record_of, vote_from_stored, vote_to_stored,
};
use crate::storage::LogStore;

/// Most payload bytes read for one append to a follower.
///
/// With [`MAX_BATCH_BYTES`](super::proposer::MAX_BATCH_BYTES) a message stays below the peers'
/// message cap by a wide margin.
const APPEND_BYTES: usize = 1 << 20;

#[derive(Clone)]
pub(super) struct Log {
    store: Arc<LogStore>,
    times: Option<Arc<DiskTimes>>,
}

impl Log {
    pub(super) fn over(store: Arc<LogStore>) -> Self {
        Self { store, times: None }
    }

    /// Measures how long appends take.
    pub(super) fn timed(self, times: Arc<DiskTimes>) -> Self {
        Self { times: Some(times), ..self }
    }

    fn read(&self, range: Range<u64>, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let records = self.store.entries(range, max_bytes);
        records.into_iter().map(|record| entry_of(record).map_err(io::Error::other)).collect()
    }

    /// Waits until everything submitted before is durable, by saving the current vote once more.
    ///
    /// Correct only while openraft and the state machine share one thread: between reading the vote
    /// and submitting it nothing else may submit a higher one, because saving the lower one then
    /// would be a misuse of the log, which ends the node. There is no await in between. Before
    /// openraft gets a runtime of several threads, the log store needs a flush of its own.
    pub(super) async fn settle(&mut self) -> io::Result<()> {
        match self.read_vote().await? {
            Some(vote) => self.save_vote(&vote).await,
            None => Ok(()),
        }
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.read(plain(&range), usize::MAX)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        self.store.vote().map(vote_from_stored).transpose().map_err(io::Error::other)
    }

    /// Returns no entries if the one at `start` was purged. A replication stream that openraft has
    /// replaced continues until it notices, and the entries it needs may be purged meanwhile. The
    /// member would refuse entries after a gap, and an assertion of openraft's would fail. Without
    /// entries the stream sends none.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        let mut entries = self.read(start..end, APPEND_BYTES)?;
        if entries.first().is_some_and(|first| first.log_id.index != start) {
            entries.clear();
        }
        Ok(entries)
    }
}

fn plain(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        Ok(LogState {
            last_purged_log_id: self.store.purged().map(log_id_from_stored),
            last_log_id: self.store.last().map(log_id_from_stored),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    /// I20: answered only when both the log and the guard file hold it.
    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (tell, told) = oneshot::channel();
        let done = Box::new(move |result| {
            // The caller is gone: the node stops.
            let _ = tell.send(result);
        });
        self.store.save_vote(vote_to_stored(vote), done).map_err(io::Error::other)?;
        told.await.unwrap_or_else(|_| Err(io::Error::other("the log's storage has stopped")))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries.into_iter().map(|entry| record_of(&entry)).collect();
        if mutant!(AppendAcknowledgedEarly) {
            callback.io_completed(Ok(()));
            return self.store.append(records, unawaited()).map_err(io::Error::other);
        }
        let measured = self.times.as_ref().map(|times| (Arc::clone(times), times.begin()));
        let done = Box::new(move |result| {
            if let Some((times, number)) = measured {
                times.end(number);
            }
            callback.io_completed(result);
        });
        self.store.append(records, done).map_err(io::Error::other)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.store.truncate_after(last.map(|id| id.index), unawaited()).map_err(io::Error::other)
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.store.purge(log_id_to_stored(&upto), unawaited()).map_err(io::Error::other)
    }
}

/// Storage reports a failure itself and fails everything queued behind it.
fn unawaited() -> crate::storage::Done {
    Box::new(|_| ())
}
