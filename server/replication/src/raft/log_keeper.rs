//! Decides, in place of openraft, when a snapshot is made and how much of the log is kept.
//!
//! The log is kept for members that lag, because sending it is cheaper than sending the table. It
//! is kept for a member that is being sent a snapshot, because without the entries after it the
//! member would need another snapshot, for ever. It never grows beyond [`Rules::max_bytes`],
//! whatever a member does.
//!
//! # When a snapshot is made
//!
//! Writing one costs in proportion to the table, and applying the log again after a restart costs
//! in proportion to the log. So both are compared in bytes: a snapshot is *wanted* once the log
//! after the newest one has half as many bytes as the table, and at least [`Rules::floor`]. It is
//! made at the member's next *turn*. The turns of different members are at different indices, so
//! that they do not all write and sync at the same time; they follow from the index alone, and so
//! stay apart when members restart, or take over a snapshot of the leader's. Turns come at least as
//! often as a snapshot is wanted, so twice the wanted bytes are the most.
//!
//! # Invariants
//!
//! - No entry above the newest snapshot is purged (I30; the log store refuses it, too).
//! - Once a snapshot is finished and what lies below it purged, at most `max_bytes` of the log is
//!   kept, and less than [`Rules::batch`] more. Between two snapshots at most a quarter of `max_bytes` is logged, plus what is logged
//!   while one is written. So the log stays within `max_bytes` as long as a snapshot is written
//!   before three more quarters come.
//! - A follower that would prevent this is cut off from the log and gets a snapshot ([`Sending`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::{Instant, Runtime};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

use super::handler::Raft;
use super::machine::off_runtime;
use super::sending::Sending;
use super::types::LogId;
use crate::storage::{LogMirror, LogStore, ReplicaStore};

/// Time between two checks, if little is applied meanwhile.
const EVERY: Duration = Duration::from_millis(200);
/// A snapshot that was requested and did not come within this time is requested again: the machine
/// postpones one that might not fit on the disk.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Most bytes of the log that are worth a purge of their own.
const WORTH_A_PURGE: u64 = 64 << 10;
/// Most entries that are purged at once: the thread that runs Raft frees their memory, and serves
/// nobody meanwhile, for about 10 ms. Five steps a second are more than any log grows by.
const PURGED_AT_ONCE: u64 = 8_192;

/// The rules by which the log is kept. Bytes are those of [`LogMirror::bytes`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Bytes of the log between two snapshots, at least; within what `max_bytes` allows.
    pub(super) floor: u64,
    /// Entries kept below the newest snapshot in any case.
    pub(super) kept: u64,
    /// Most bytes of the log that are kept.
    pub(super) max_bytes: u64,
}

impl Rules {
    /// How many bytes of the log are kept for a member that lags and gets no snapshot now.
    ///
    /// Up to twice the size of the table: beyond that, sending the table costs less. Three times
    /// what was logged during the last transfer: a member that has just got a snapshot lacks that
    /// much, and must not be cut off again before it had twice as long to catch up. A sixteenth of
    /// the bound in any case, so that a restart needs no snapshot.
    fn hold(&self, table_bytes: u64, logged_meanwhile: u64) -> u64 {
        let table = table_bytes.saturating_mul(2);
        let transfer = logged_meanwhile.saturating_mul(3);
        (self.max_bytes / 16).max(table).max(transfer).min(self.max_bytes)
    }

    /// Bytes of the log after which a snapshot is wanted. Twice as many are the most between two
    /// snapshots, and a quarter of the bound.
    fn wanted(&self, table_bytes: u64) -> u64 {
        self.floor.max(table_bytes / 2).min(self.max_bytes / 8).max(1)
    }

    /// Least number of bytes to purge: fewer are not worth the commit.
    fn batch(&self) -> u64 {
        (self.wanted(0) / 4).clamp(1, WORTH_A_PURGE)
    }

    /// Entries after which the log is looked at again, however soon they come.
    fn look_after(&self) -> u64 {
        (self.wanted(0) / 2_048).clamp(1, 1_000)
    }
}

/// The input of a decision, apart from the log itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Situation {
    /// This node's position among the members, counted from 0 in the order of their ids.
    pub(super) rank: u64,
    /// How many members there are.
    pub(super) members: u64,
    /// The last entry applied.
    pub(super) applied: u64,
    /// The last entry in the newest snapshot.
    pub(super) snapshot: Option<u64>,
    /// The size of the newest snapshot, bytes.
    pub(super) table_bytes: u64,
    /// Bytes logged while the last snapshot was on its way to a member.
    pub(super) logged_meanwhile: u64,
    /// On a leader: the other members.
    pub(super) followers: Vec<Follower>,
}

/// The progress of another member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Follower {
    /// Its log matches up to here.
    pub(super) matched: Option<u64>,
    /// The last entry of the snapshot that is being sent to it.
    pub(super) sent: Option<u64>,
}

impl Follower {
    /// The last entry that the member no longer needs; `None` if the log is not kept for it.
    fn needs_after(&self, rules: &Rules, log: &LogMirror, hold: u64) -> Option<u64> {
        if let Some(sent) = self.sent.filter(|_| !mutant!(SnapshotHoldsNothing)) {
            return Some(sent).filter(|_| log.bytes_after(Some(sent)) <= rules.max_bytes);
        }
        let matched = self.matched?;
        let purged = log.purged().is_some_and(|purged| matched < purged.index);
        Some(matched).filter(|_| !purged && log.bytes_after(Some(matched)) <= hold)
    }
}

/// The outcome of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Make a snapshot.
    pub(super) snapshot: bool,
    /// Purge up to this entry, and cut off the members that still need what lies below.
    pub(super) purge: Option<u64>,
}

/// Decides from its arguments alone.
pub(super) fn decide(rules: &Rules, log: &LogMirror, at: &Situation) -> Decision {
    Decision { snapshot: is_due(rules, log, at), purge: purge_upto(rules, log, at) }
}

fn is_due(rules: &Rules, log: &LogMirror, at: &Situation) -> bool {
    let after_snapshot = log.bytes_after(at.snapshot);
    let logged = |upto| after_snapshot.saturating_sub(log.bytes_after(Some(upto)));
    let wanted = rules.wanted(at.table_bytes);
    let is_wanted_at = |index| at.snapshot < Some(index) && logged(index) >= wanted;
    // Where the last entries are much larger than the others, a turn may come later than this.
    let is_late = logged(at.applied) >= wanted.saturating_mul(2);
    is_late || last_turn(log, at, wanted).is_some_and(is_wanted_at)
}

/// The last index up to `at.applied` at which it was this member's turn to make a snapshot.
///
/// A turn comes each `distance` entries, which have half of the wanted bytes at least, and all of
/// them at most. The distance is a power of two: members that measure slightly different sizes use
/// the same one, or one twice as long. The turns of a member lie in the middle of its share of each
/// distance. So they never meet those of another member that uses half or twice the distance: an
/// odd number of half shares is no even number of them.
fn last_turn(log: &LogMirror, at: &Situation, wanted: u64) -> Option<u64> {
    let entry_bytes = (log.bytes() / (log.len() as u64).max(1)).max(1);
    let distance = 1_u64 << (wanted / entry_bytes).max(1).ilog2();
    let half_shares = at.rank.saturating_mul(2).saturating_add(1);
    let offset = distance.saturating_mul(half_shares) / at.members.max(1).saturating_mul(2);
    at.applied.checked_sub(offset).map(|passed| at.applied - passed % distance)
}

fn purge_upto(rules: &Rules, log: &LogMirror, at: &Situation) -> Option<u64> {
    let snapshot = at.snapshot?;
    let hold = rules.hold(at.table_bytes, at.logged_meanwhile);
    let needed = at.followers.iter().filter_map(|one| one.needs_after(rules, log, hold)).min();
    let wanted = snapshot.checked_sub(rules.kept);
    let wanted = wanted.map(|wanted| wanted.min(needed.unwrap_or(u64::MAX)));
    let bound = log.last_beyond(rules.max_bytes);
    let upto = wanted.max(bound)?.min(snapshot);
    let freed = log.bytes().saturating_sub(log.bytes_after(Some(upto)));
    let next = log.purged().map_or(0, |purged| purged.index.saturating_add(1));
    let step = next.saturating_add(PURGED_AT_ONCE - 1);
    (freed >= rules.batch()).then_some(upto.min(step))
}

/// The task that checks, decides, and has openraft carry it out.
pub(super) struct LogKeeper {
    pub(super) node_id: u64,
    pub(super) rules: Rules,
    pub(super) raft: Raft,
    pub(super) store: Arc<dyn ReplicaStore>,
    pub(super) log: Arc<LogStore>,
    pub(super) sending: Arc<Sending>,
    pub(super) applied: watch::Receiver<Option<LogId>>,
    pub(super) runtime: Runtime,
    pub(super) asked: Asked,
}

/// The requests made to openraft, so that a check does not repeat them.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The newest snapshot at the last request for one, and the time of that request.
    snapshot: Option<(Option<u64>, Instant)>,
    purge: Option<u64>,
    /// The newest snapshot, and how large it is.
    measured: Option<(u64, u64)>,
}

impl LogKeeper {
    /// Keeps the log until the task is dropped, or openraft has stopped.
    pub(super) async fn run(mut self) {
        loop {
            let at = self.situation().await;
            let decision = self.log.look(|log| decide(&self.rules, log, &at));
            if self.carry_out(decision, &at).await.is_none() {
                return;
            }
            let next = at.applied.saturating_add(self.rules.look_after());
            let mut applied = self.applied.clone();
            let much = applied.wait_for(|id| id.is_some_and(|id| id.index >= next));
            holdfast_runtime::select! {
                much = much => if much.is_err() { return },
                () = self.runtime.sleep(EVERY) => {}
            }
        }
    }

    async fn situation(&mut self) -> Situation {
        let mut at = Situation {
            applied: self.applied.borrow().map_or(0, |id| id.index),
            logged_meanwhile: self.sending.logged_meanwhile(),
            ..Situation::default()
        };
        let matched: BTreeMap<u64, Option<u64>> = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let members = || metrics.membership_config.nodes().map(|(id, _)| *id);
            at.rank = members().filter(|id| *id < self.node_id).count() as u64;
            at.members = members().count() as u64;
            at.snapshot = metrics.snapshot.map(|id| id.index);
            let followers = metrics.replication.iter().flatten();
            let others = followers.filter(|(id, _)| **id != self.node_id);
            others.map(|(id, matched)| (*id, matched.map(|id| id.index))).collect()
        };
        let sent = self.sending.underway(&matched);
        let follower = |(id, matched): (&u64, &Option<u64>)| Follower {
            matched: *matched,
            sent: sent.get(id).copied(),
        };
        at.followers = matched.iter().map(follower).collect();
        at.table_bytes = self.table_bytes(at.snapshot).await;
        at
    }

    /// The size of the newest snapshot, looked up once for each snapshot.
    async fn table_bytes(&mut self, snapshot: Option<u64>) -> u64 {
        let Some(snapshot) = snapshot else { return 0 };
        if let Some((index, bytes)) = self.asked.measured
            && index == snapshot
        {
            return bytes;
        }
        let store = Arc::clone(&self.store);
        let newest = off_runtime(self.store.may_block(), move || store.newest_snapshot()).await;
        // A snapshot that cannot be opened is reported when it is read.
        let bytes = newest.ok().flatten().map_or(0, |kept| kept.info().length);
        self.asked.measured = Some((snapshot, bytes));
        bytes
    }

    /// Has openraft carry out a decision. `None`: openraft has stopped.
    async fn carry_out(&mut self, decision: Decision, at: &Situation) -> Option<()> {
        let now = self.runtime.clock.now();
        let waits = self.asked.snapshot.is_some_and(|(stood, since)| {
            stood == at.snapshot && now.saturating_since(since) < ASK_AGAIN
        });
        if decision.snapshot && !waits {
            self.asked.snapshot = Some((at.snapshot, now));
            self.raft.trigger().snapshot().await.ok()?;
        }
        if let Some(upto) = decision.purge.filter(|upto| Some(*upto) > self.asked.purge) {
            self.asked.purge = Some(upto);
            self.raft.trigger().purge_log(upto).await.ok()?;
            if !mutant!(FollowerNeverCutOff) {
                self.sending.raise_floor(upto);
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{LogId, Operation, RECORD_BYTES, Record, RecordKind};

    const PAYLOAD: u64 = 72;
    /// The bytes of one entry in these tests.
    const ENTRY: u64 = RECORD_BYTES + PAYLOAD;
    const RULES: Rules = Rules { floor: 100 * ENTRY, kept: 20, max_bytes: 1_600 * ENTRY };

    fn id(index: u64) -> LogId {
        LogId { term: 1, node_id: 1, index }
    }

    /// A log from `first` to `last`.
    fn log(first: u64, last: u64) -> LogMirror {
        let mut log = LogMirror::default();
        if let Some(purged) = first.checked_sub(1) {
            log.apply(&Operation::Purge(id(purged)));
        }
        append(&mut log, first, last, PAYLOAD);
        log
    }

    fn append(log: &mut LogMirror, first: u64, last: u64, payload: u64) {
        let payload = bytes::Bytes::from(vec![7; usize::try_from(payload).unwrap()]);
        let record =
            |index| Record { log_id: id(index), kind: RecordKind::Batch, payload: payload.clone() };
        log.apply(&Operation::Append((first..=last).map(record).collect()));
    }

    fn one_of_three(rank: u64, applied: u64, snapshot: u64) -> Situation {
        let snapshot = Some(snapshot);
        Situation { rank, members: 3, applied, snapshot, ..Situation::default() }
    }

    fn with(followers: &[Follower], mut at: Situation) -> Situation {
        at.followers = followers.to_vec();
        at
    }

    fn at(matched: u64) -> Follower {
        Follower { matched: Some(matched), sent: None }
    }

    fn sent(upto: u64) -> Follower {
        Follower { matched: None, sent: Some(upto) }
    }

    /// The indices at which a node makes its snapshots, if it checks after each entry.
    fn snapshots(rules: &Rules, rank: u64, table_bytes: u64, last: u64) -> Vec<u64> {
        let log = log(0, last);
        let mut made = Vec::new();
        for applied in 1..=last {
            let snapshot = made.last().copied();
            let at = Situation { snapshot, table_bytes, ..one_of_three(rank, applied, 0) };
            // As if the log ended there.
            let mut upto = log.clone();
            upto.apply(&Operation::TruncateAfter(log.get(applied).map(|record| record.log_id)));
            if is_due(rules, &upto, &at) {
                made.push(applied);
            }
        }
        made
    }

    /// Where snapshots are made of a small table, and how far they are apart.
    fn made_and_apart(rules: &Rules, rank: u64) -> (Vec<u64>, Vec<u64>) {
        let made = snapshots(rules, rank, 0, 1_000);
        let apart = made.windows(2).map(|two| two[1] - two[0]).collect();
        (made, apart)
    }

    /// L2: bytes of the log decide, not entries.
    #[test]
    fn a_snapshot_is_made_once_the_log_has_the_wanted_bytes_and_twice_as_many_at_the_latest() {
        for rank in 0..3 {
            let (made, apart) = made_and_apart(&RULES, rank);
            assert!(made[0] >= 99 && apart.iter().all(|one| (100..200).contains(one)), "{made:?}");
        }
        let rare = Rules { floor: 200 * ENTRY, max_bytes: 1 << 20, ..RULES };
        let (made, apart) = made_and_apart(&rare, 0);
        assert!(apart.iter().all(|one| (200..400).contains(one)), "{made:?}");
    }

    /// SC4: the members do not write and sync at the same time.
    #[test]
    fn members_make_snapshots_equally_often_and_never_at_the_same_index() {
        assert_eq!(snapshots(&RULES, 0, 0, 450), [138, 266, 394]);
        assert_eq!(snapshots(&RULES, 1, 0, 450), [160, 288, 416]);
        assert_eq!(snapshots(&RULES, 2, 0, 450), [117, 245, 373]);
    }

    /// The sizes that two members measure may lie on both sides of a power of two.
    #[test]
    fn members_whose_turns_are_half_or_twice_as_far_apart_never_share_one() {
        let log = log(0, 4_000);
        let turns = |rank, wanted| -> Vec<u64> {
            let turn = |applied| last_turn(&log, &one_of_three(rank, applied, 0), wanted);
            let mut turns: Vec<u64> = (0..=4_000).filter_map(turn).collect();
            turns.dedup();
            turns
        };
        for (one, other) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            for times in [1, 2, 4] {
                let (near, far) = (turns(one, 64 * ENTRY), turns(other, times * 64 * ENTRY));
                assert!(far.len() > 10 && far.iter().all(|turn| !near.contains(turn)), "{far:?}");
            }
        }
    }

    /// SC4: the cost of writing a table is not paid for each few entries.
    #[test]
    fn a_large_table_is_written_after_as_much_log_as_half_its_size() {
        let table = 600 * ENTRY;

        let large = Rules { max_bytes: 4_000 * ENTRY, ..RULES };
        assert_eq!(snapshots(&large, 0, table, 1_500), [554, 1_066]);
        let bounded = Rules { max_bytes: 800 * ENTRY, ..RULES };
        assert_eq!(snapshots(&bounded, 0, table, 450), [138, 266, 394], "an eighth of the bound");
    }

    #[test]
    fn entries_that_are_larger_than_those_before_wait_for_no_turn() {
        let mut log = LogMirror::default();
        append(&mut log, 0, 1_999, 0);
        let due = |log: &LogMirror, applied| {
            is_due(&RULES, log, &Situation { members: 1, ..one_of_three(0, applied, 1_999) })
        };

        // Two of them have the wanted bytes, and four twice as many. The next turn is after 2,010.
        append(&mut log, 2_000, 2_006, 13_000 - RECORD_BYTES);
        assert!(due(&log, 2_003) && !due(&log, 2_002), "an entry counts once it is applied");
        assert!(!due(&log, 1_999), "nothing is new");
    }

    #[test]
    fn what_no_member_needs_is_purged_but_for_the_entries_that_are_kept() {
        let rested = with(&[at(1_000), at(990)], one_of_three(0, 1_000, 900));

        assert_eq!(purge_upto(&RULES, &log(0, 1_000), &rested), Some(880));
        assert_eq!(purge_upto(&RULES, &log(870, 1_000), &rested), None, "too few");
        let none = Situation { snapshot: None, ..rested };
        assert_eq!(purge_upto(&RULES, &log(0, 1_000), &none), None, "I30");
    }

    /// The thread that frees what is purged is the one that serves.
    #[test]
    fn much_is_purged_in_steps() {
        let at = one_of_three(0, 40_000, 39_000);
        let rules = Rules { max_bytes: 1 << 30, ..RULES };

        assert_eq!(purge_upto(&rules, &log(0, 40_000), &at), Some(8_191));
        assert_eq!(purge_upto(&rules, &log(32_768, 40_000), &at), Some(38_980));
    }

    /// L1: what a member keeps of the log is bounded.
    #[test]
    fn a_member_that_lags_keeps_the_log_only_up_to_the_hold() {
        // A sixteenth of 1,600 entries.
        let lags = |matched| with(&[at(matched)], one_of_three(0, 1_000, 990));

        assert_eq!(purge_upto(&RULES, &log(0, 1_000), &lags(900)), Some(900));
        assert_eq!(purge_upto(&RULES, &log(0, 1_000), &lags(899)), Some(970));
        let large = Situation { table_bytes: 200 * ENTRY, ..lags(600) };
        assert_eq!(purge_upto(&RULES, &log(0, 1_000), &large), Some(600), "twice the table");
        let unknown = with(&[Follower::default()], one_of_three(0, 1_000, 990));
        assert_eq!(purge_upto(&RULES, &log(0, 1_000), &unknown), Some(970));
    }

    /// L2: while a snapshot is being sent, the log after it is kept, up to the bound.
    #[test]
    fn a_snapshot_on_its_way_keeps_the_log_after_it_up_to_the_bound() {
        let chased = |last| with(&[sent(100)], one_of_three(0, last, last - 10));

        assert_eq!(purge_upto(&RULES, &log(0, 1_700), &chased(1_700)), Some(100));
        assert_eq!(purge_upto(&RULES, &log(101, 1_700), &chased(1_700)), None);
        // Beyond it the log is purged as if no snapshot was being sent: the member gets another
        // one.
        assert_eq!(purge_upto(&RULES, &log(101, 1_701), &chased(1_701)), Some(1_671));
    }

    /// L2: a member that has just got a snapshot lacks what was logged meanwhile.
    #[test]
    fn after_a_transfer_three_times_what_was_logged_meanwhile_is_kept() {
        let arrived = |last| Situation {
            logged_meanwhile: 300 * ENTRY,
            ..with(&[at(1_000)], one_of_three(0, last, last - 10))
        };

        assert_eq!(purge_upto(&RULES, &log(900, 1_900), &arrived(1_900)), Some(1_000));
        assert_eq!(purge_upto(&RULES, &log(900, 1_901), &arrived(1_901)), Some(1_871));
    }

    #[test]
    fn the_bound_holds_whatever_is_to_be_kept() {
        let much = Rules { kept: 10_000, ..RULES };
        let still = one_of_three(0, 3_000, 2_900);

        assert_eq!(purge_upto(&much, &log(0, 3_000), &still), Some(1_400));
        let late = one_of_three(0, 3_000, 1_000);
        assert_eq!(purge_upto(&much, &log(0, 3_000), &late), Some(1_000), "I30");
    }
}
