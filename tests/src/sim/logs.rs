//! How much of their logs nodes keep, and whether that is enough for the members that receive snapshots.
//!
//! - Entries that the newest snapshot covers and that exceed `max_log_bytes` are purged within [`PURGED_WITHIN`], whatever other members do
//!   (I27).
//! - While a snapshot travels, the log behind it stays, as long as that is no more than `max_log_bytes`: its member would otherwise need
//!   another snapshot, and so on (I31). This is checked when the answer to the last of its chunks arrives: the leader has waited for it
//!   until then.
//!
//! Both checks know what is promised (`server/replication/src/raft/log_keeper.rs`), and nothing of how it is done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use holdfast_runtime::{Clock, Instant};
use holdfast_server::consensus::Consensus as _;
use holdfast_server::raft::{Replica, ReplicaConfig};
use holdfast_server::storage::{LogMirror, LogStore};

use super::node::Parts;

/// How long a purge may take on a node that works: the keeper looks five times a second, the streams of
/// members that lag end, and the purge is committed. A member to which openraft sent a probe and that answers
/// nothing holds it up until its connection is found dead, up to ten seconds later (seed 920000331): the
/// probe has no entries, so its stream does not end at the floor, and openraft counts the entries behind it
/// as in use.
const PURGED_WITHIN: Duration = Duration::from_secs(15);
/// More bytes than that are purged in any case.
const WORTH_A_PURGE: u64 = 64 << 10;
/// A leader that a quorum answered this recently has a quorum.
const QUORUM_WITHIN_MS: u64 = 1_000;

/// Checks all logs.
pub(super) struct Logs {
    clock: Arc<dyn Clock>,
    max_bytes: u64,
    /// The number of bytes below which a purge need not be made.
    batch: u64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    nodes: BTreeMap<u64, Node>,
    /// Some log was larger than its limit.
    limit_reached: bool,
    broken: Vec<String>,
}

/// The log of one process.
struct Node {
    process: u64,
    log: Arc<LogStore>,
    replica: Weak<Replica>,
    /// Since when a purge is due, and up to where the log was purged then.
    due: Option<(Instant, Option<u64>)>,
    /// The size of the log up to its last entry at each look, bytes, counted from an arbitrary start.
    grown: BTreeMap<u64, u64>,
}

impl Logs {
    pub(super) fn new(clock: Arc<dyn Clock>, config: &ReplicaConfig) -> Self {
        let between = config.snapshot_log_bytes.min(config.max_log_bytes / 8);
        let batch = (between / 4).clamp(1, WORTH_A_PURGE);
        Self { clock, max_bytes: config.max_log_bytes, batch, seen: Mutex::default() }
    }

    /// Looks at a node whose process runs. `is_well`: neither the process nor its disk is held up. A leader that no quorum answers learns
    /// nothing of what is under way to the members, and its log hardly grows.
    pub(super) fn look(&self, id: u64, process: u64, parts: &Parts, is_well: bool) {
        let mut seen = self.lock();
        let anew = || Node {
            process,
            log: Arc::clone(&parts.log),
            replica: Arc::downgrade(&parts.replica),
            due: None,
            grown: BTreeMap::new(),
        };
        let node = seen.nodes.entry(id).or_insert_with(anew);
        if node.process != process {
            *node = anew();
        }
        node.grow();
        let is_well = is_well && node.has_a_quorum_if_it_leads();
        let snapshot = parts.snapshots.newest().and_then(|newest| newest.last);
        let snapshot = snapshot.map(|last| last.index);
        let (due, purged, bytes) =
            parts.log.look(|log| (self.due(log, snapshot), purged(log), log.bytes()));
        let now = self.clock.now();
        node.due = match node.due {
            _ if !due || !is_well => None,
            Some((since, before)) if before == purged => Some((since, before)),
            _ => Some((now, purged)),
        };
        let late = node.due.is_some_and(|(since, _)| now.saturating_since(since) > PURGED_WITHIN);
        seen.limit_reached |= bytes > self.max_bytes;
        if late {
            let max = self.max_bytes;
            seen.wrong(format!(
                "I27: node {id} keeps {bytes} bytes of its log, {max} at most (max_log_bytes), and \
                 has purged nothing for {PURGED_WITHIN:?}, with a snapshot up to {snapshot:?}"
            ));
        }
    }

    /// Whether so much of the log is superfluous that it has to be purged.
    fn due(&self, log: &LogMirror, snapshot: Option<u64>) -> bool {
        let upto = log.last_beyond(self.max_bytes).zip(snapshot);
        upto.is_some_and(|(beyond, snapshot)| {
            log.bytes() - log.bytes_after(Some(beyond.min(snapshot))) >= self.batch
        })
    }

    /// `leader` learns that `member` has a snapshot that ends at `upto`.
    pub(super) fn arrived(&self, leader: u64, member: u64, upto: u64) {
        let mut seen = self.lock();
        let Some(node) = seen.nodes.get(&leader).filter(|node| node.leads()) else { return };
        let purged = node.log.look(purged);
        let Some(behind) = node.bytes_behind(upto) else { return };
        if purged.is_some_and(|purged| purged > upto) && behind <= self.max_bytes {
            seen.wrong(format!(
                "I31: node {member} has the snapshot up to {upto} that node {leader} sent it, and \
                 lacks the log behind it, which is purged up to {purged:?}: {behind} bytes at most"
            ));
        }
    }

    /// Whether some log was larger than its limit for a while.
    pub(super) fn limit_reached(&self) -> bool {
        self.lock().limit_reached
    }

    pub(super) fn broken(&self) -> Vec<String> {
        self.lock().broken.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn purged(log: &LogMirror) -> Option<u64> {
    log.purged().map(|purged| purged.index)
}

impl Seen {
    fn wrong(&mut self, what: String) {
        // One message of each kind is enough.
        let kind = what.split(':').next().unwrap_or_default();
        if !self.broken.iter().any(|broken| broken.starts_with(kind)) {
            self.broken.push(what);
        }
    }
}

impl Node {
    fn leads(&self) -> bool {
        self.replica.upgrade().is_some_and(|replica| replica.role().borrow().tenure().is_some())
    }

    fn has_a_quorum_if_it_leads(&self) -> bool {
        let Some(replica) = self.replica.upgrade() else { return false };
        if replica.role().borrow().tenure().is_none() {
            return true;
        }
        replica.status().millis_since_quorum.is_some_and(|millis| millis <= QUORUM_WITHIN_MS)
    }

    /// Records how large the log is.
    fn grow(&mut self) {
        let newest = self.grown.last_key_value().map(|(index, bytes)| (*index, *bytes));
        let (last, purged, since) = self.log.look(|log| {
            let last = log.last().map_or(0, |last| last.index);
            let since = newest.map(|(index, _)| log.bytes_after(Some(index)));
            (last, purged(log), since)
        });
        match newest.zip(since) {
            Some(((index, _), _)) if index == last => {}
            Some(((index, bytes), since))
                if index < last && purged.is_none_or(|to| to <= index) =>
            {
                self.grown.insert(last, bytes + since);
            }
            // The log was truncated, or purged beyond what was observed.
            _ => self.grown = BTreeMap::from([(last, 0)]),
        }
    }

    /// An upper bound of the bytes of the log behind `index`; `None`: unknown.
    fn bytes_behind(&self, index: u64) -> Option<u64> {
        let (_, before) = self.grown.range(..=index).next_back()?;
        let (last, newest) = self.grown.last_key_value()?;
        let since = self.log.look(|log| {
            purged(log).is_none_or(|to| to <= *last).then(|| log.bytes_after(Some(*last)))
        });
        Some(newest.saturating_sub(*before) + since?)
    }
}
