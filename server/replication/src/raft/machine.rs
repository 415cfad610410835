//! The lock table as openraft's state machine: applies the log, freezes and restores snapshots.
//!
//! # Invariants
//!
//! - The table changes only here: by a committed entry, or by a snapshot (I8).
//! - An entry that does not decode, or a state that differs from the leader's, stops the node
//!   before any answer is given from it (I16, I28, I29).
//! - The table's lock is never held during a wait for a disk or the network.

use std::io::{self, BufReader};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use holdfast_core::{
    Applied, Batch, Event, Frozen, LockTable, LogIndex, Outcome, Tenure, WORK_STEPS,
};
use holdfast_mutants::mutant;
use holdfast_proto::v1 as proto;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use prost::Message;
use tokio::sync::{Notify, watch};

use super::fault::{Fault, FaultSlot};
use super::freeing::free_with_pauses;
use super::log::Log;
use super::metrics::Stopwatch;
use super::types::{EncodedBatch, Entry, LogId, Snapshot, SnapshotMeta, StoredMembership, Types};
use super::wire::{log_id_to_stored, snapshot_meta_from_wire, snapshot_meta_to_wire};
use crate::consensus::{AppliedEntry, EntryContent, Listener, MemberIds, Recorder};
use crate::storage::{BodyReader, Identity, KeptSnapshot, ReplicaStore, SnapshotDraft, Step};

/// Commands applied before other tasks of the runtime get a turn, so that a node that catches up
/// still answers its peers.
const COMMANDS_A_TURN: usize = 1_024;
/// The same for commands that do much: a follower may have hundreds of them in a row, a millisecond each,
/// when the leader carries on what one command has left.
const STEPS_A_TURN: u64 = 8 * WORK_STEPS;

/// The applied state, shared with all readers.
pub(super) struct Replicated {
    state: Mutex<State>,
    listener: OnceLock<Arc<dyn Listener>>,
    applied: watch::Sender<Option<LogId>>,
    /// Told of each entry after which commands have left work.
    pub(super) work_left: Notify,
}

struct State {
    table: LockTable,
    last: Option<LogId>,
    roll: Roll,
}

impl Replicated {
    fn new(state: State) -> Self {
        let applied = watch::Sender::new(state.last);
        let (listener, work_left) = (OnceLock::new(), Notify::new());
        Self { state: Mutex::new(state), listener, applied, work_left }
    }

    /// Calls `look` with the table and the index that it is as of.
    pub(super) fn look<R>(&self, look: impl FnOnce(&LockTable, LogIndex) -> R) -> R {
        let state = self.lock();
        look(&state.table, state.table.applied_index())
    }

    /// The members, and the highest id of any member ever, as of the last entry applied.
    pub(super) fn roll(&self) -> Roll {
        self.lock().roll.clone()
    }

    pub(super) fn attach(&self, listener: Arc<dyn Listener>) {
        if self.listener.set(listener).is_err() {
            tracing::error!("a second listener was attached to the replica and is not heard");
        }
    }

    /// The last entry applied, and every change of it.
    pub(super) fn applied(&self) -> watch::Receiver<Option<LogId>> {
        self.applied.subscribe()
    }

    /// A panic while the lock is held ends the worker that applies, and with it this replica.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The members' roll as of the last entry applied: who is a member, and the highest node id that ever was
/// one's (I22).
///
/// An id that was used is never used again: its votes and acknowledgements belong to a data folder
/// that may be gone. The log forgets members that left, so the roll remembers the highest id, and a
/// new member's id is above every id there ever was. That one number is computed from the log
/// alone, travels in the meta of snapshots, and is equal on all members that have applied the same
/// entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Roll {
    membership: StoredMembership,
    highest: u64,
}

impl Roll {
    /// The roll in a snapshot.
    pub(super) fn new(membership: StoredMembership, highest: u64) -> Self {
        let mut roll = Self { membership: StoredMembership::default(), highest };
        roll.enter(membership);
        roll
    }

    /// Takes over a changed membership.
    pub(super) fn enter(&mut self, membership: StoredMembership) {
        let last = membership.nodes().map(|(id, _)| *id).max();
        self.highest = self.highest.max(last.unwrap_or(0));
        self.membership = membership;
    }

    pub(super) fn membership(&self) -> &StoredMembership {
        &self.membership
    }

    /// The highest id that ever was a member's; 0 before there was any.
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// Whether the id cannot become a member's any more, and is none's now. Once true, it stays
    /// true: an id goes from unused to member to spent, and never back.
    pub(super) fn is_spent(&self, node_id: u64) -> bool {
        node_id <= self.highest && self.membership.get_node(&node_id).is_none()
    }
}

/// The data of a snapshot, as openraft handles it.
pub(super) enum SnapshotData {
    /// One of this node's own.
    Kept(Arc<dyn KeptSnapshot>),
    /// Received from the leader, complete and with the announced hash. It does not count yet: it
    /// must not before the log that it contradicts is removed.
    Received(Box<dyn SnapshotDraft>),
}

/// openraft's state machine.
pub(super) struct Machine {
    shared: Arc<Replicated>,
    store: Arc<dyn ReplicaStore>,
    faults: FaultSlot,
    scratch: Vec<Applied>,
    snapshots: Option<Stopwatch>,
    recorder: Option<Arc<dyn Recorder>>,
}

impl Machine {
    /// Starts from the newest snapshot, or from an empty table. Reads the whole snapshot: call it
    /// off the runtime where [`ReplicaStore::may_block`].
    ///
    /// # Errors
    ///
    /// A message that says what is wrong with the snapshot.
    pub(super) fn load(store: Arc<dyn ReplicaStore>, faults: FaultSlot) -> Result<Self, String> {
        let newest = store.newest_snapshot().map_err(|error| error.to_string())?;
        let state = match newest {
            None => State { table: LockTable::new(), last: None, roll: Roll::default() },
            Some(kept) => {
                let (meta, roll) = read_meta(&kept)?;
                let table = read_table(kept, &meta)?;
                State { table, last: meta.last_log_id, roll }
            }
        };
        let shared = Arc::new(Replicated::new(state));
        Ok(Self { shared, store, faults, scratch: Vec::new(), snapshots: None, recorder: None })
    }

    /// Measures how long its snapshots take.
    pub(super) fn timed(mut self, snapshots: Stopwatch) -> Self {
        self.snapshots = Some(snapshots);
        self
    }

    /// Has a record kept of what it applies from here on.
    pub(super) fn recorded(mut self, recorder: Option<Arc<dyn Recorder>>) -> Self {
        if let Some(recorder) = &recorder {
            self.shared.look(|_, index| recorder.restored(index));
        }
        self.recorder = recorder;
        self
    }

    pub(super) fn shared(&self) -> Arc<Replicated> {
        Arc::clone(&self.shared)
    }

    fn apply_entry(&mut self, entry: Entry) -> io::Result<Vec<Outcome>> {
        let index = LogIndex::new(entry.log_id.index);
        let tenure = Tenure::new(entry.log_id.leader_id.term);
        let members = match entry.payload {
            EntryPayload::Normal(batch) => {
                return self.apply_batch(index, tenure, entry.log_id, &batch);
            }
            EntryPayload::Blank => None,
            EntryPayload::Membership(membership) => {
                let stored = StoredMembership::new(Some(entry.log_id), membership);
                let members = member_ids(&stored);
                self.shared.lock().roll.enter(stored);
                Some(members)
            }
        };
        let mut state = self.shared.lock();
        state.table.note_index(index);
        state.last = Some(entry.log_id);
        let content = members.as_ref().map_or(EntryContent::FirstOfTenure, EntryContent::Members);
        self.record(index, tenure, content, &state.table);
        Ok(Vec::new())
    }

    fn apply_batch(
        &mut self,
        index: LogIndex,
        tenure: Tenure,
        log_id: LogId,
        bytes: &EncodedBatch,
    ) -> io::Result<Vec<Outcome>> {
        let mut batch = Batch::decode(&bytes.0)
            .map_err(|source| self.stop(Fault::Unreadable { index, source }))?;
        if mutant!(ReplicaActsOnOwnClock)
            && let Some(own) = &self.snapshots
        {
            batch.stamp_ms = own.now().as_millis();
        }
        self.scratch.clear();
        let mut state = self.shared.lock();
        let applied = state.table.apply_batch(index, tenure, &batch, &mut self.scratch);
        if let Err(fault) = applied {
            drop(state);
            return Err(self.stop(Fault::Diverged(fault)));
        }
        state.last = Some(log_id);
        let content = EntryContent::Batch(&batch.commands, &self.scratch);
        self.record(index, tenure, content, &state.table);
        let mut outcomes = Vec::with_capacity(self.scratch.len());
        let mut events: Vec<Event> = Vec::new();
        for applied in self.scratch.drain(..) {
            outcomes.push(applied.outcome);
            events.extend(applied.events);
        }
        if let Some(listener) = self.shared.listener.get() {
            listener.applied(index, &events, &state.table);
        }
        if state.table.has_work_left() {
            self.shared.work_left.notify_one();
        }
        Ok(outcomes)
    }

    fn record(
        &self,
        index: LogIndex,
        tenure: Tenure,
        content: EntryContent<'_>,
        table: &LockTable,
    ) {
        if let Some(recorder) = &self.recorder {
            recorder.applied(&AppliedEntry { index, tenure, content, table });
        }
    }

    /// How much the commands so far did.
    fn steps_done(&self) -> u64 {
        self.shared.look(|table, _| table.steps_done())
    }

    /// Reports the fault that stops this node; the returned error makes openraft stop.
    fn stop(&self, fault: Fault) -> io::Error {
        let error = io::Error::other(fault.to_string());
        self.faults.report(fault);
        error
    }

    fn snapshot_failed(&self, message: &impl ToString) -> io::Error {
        self.stop(Fault::Snapshot { message: message.to_string() })
    }

    /// Makes `data` this node's newest snapshot, if it is not yet.
    async fn keep(
        &self,
        meta: &SnapshotMeta,
        data: SnapshotData,
    ) -> io::Result<Arc<dyn KeptSnapshot>> {
        let last = meta.last_log_id.as_ref().map(log_id_to_stored);
        let may_block = self.store.may_block();
        match data {
            SnapshotData::Received(draft) => {
                Log::over(self.store.log()).settle().await?;
                self.store.pace(Step::Sync).await;
                off_runtime(may_block, move || draft.finish()).await
            }
            SnapshotData::Kept(kept) => {
                let own = self.store.newest_snapshot()?;
                if own.is_some_and(|own| own.info().last == last) {
                    return Ok(kept);
                }
                let store = Arc::clone(&self.store);
                let draft = off_runtime(may_block, move || {
                    let mut draft = store.begin_snapshot(last, kept.info().meta.clone())?;
                    io::copy(&mut BodyReader::new(kept), &mut draft)?;
                    draft.flush()?;
                    Ok(draft)
                })
                .await?;
                self.store.pace(Step::Sync).await;
                off_runtime(may_block, move || draft.finish()).await
            }
        }
    }

    fn freeze(&self) -> Builder {
        let state = self.shared.lock();
        Builder {
            frozen: Some(state.table.freeze()),
            last: state.last,
            roll: state.roll.clone(),
            store: Arc::clone(&self.store),
            faults: self.faults.clone(),
            timer: self.snapshots.clone(),
        }
    }

    /// Whether the disk has room for one more snapshot beside the present one.
    ///
    /// Below the disk reserve snapshots are still built, out of that reserve: without them the log
    /// could never be purged, and commands that free still add to it. A snapshot is postponed only
    /// if it might not fit itself, because a write that fails stops the node.
    fn has_room(&self) -> bool {
        let last = self.store.newest_snapshot().ok().flatten().map_or(0, |kept| kept.info().length);
        let wanted = last.saturating_mul(2).saturating_add(SNAPSHOT_ROOM);
        self.store.free_space().map_or(true, |free| free > wanted)
    }
}

/// Room a snapshot may take beyond twice the last one, bytes.
const SNAPSHOT_ROOM: u64 = 32 << 20;

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let state = self.shared.lock();
        Ok((state.last, state.roll.membership().clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let (mut commands, mut steps) = (0, self.steps_done());
        while let Some((entry, responder)) = entries.try_next().await? {
            let log_id = entry.log_id;
            let outcomes = self.apply_entry(entry)?;
            self.shared.applied.send_replace(Some(log_id));
            commands += 1 + outcomes.len();
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
            let done = self.steps_done();
            if commands >= COMMANDS_A_TURN || done.wrapping_sub(steps) >= STEPS_A_TURN {
                (commands, steps) = (0, done);
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        if !force && !self.has_room() {
            tracing::warn!("no snapshot is built: it might not fit on the disk");
            return None;
        }
        Some(self.freeze())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.freeze()
    }

    /// The order matters for a node that crashes in between: first everything queued for the log
    /// becomes durable, truncation above all, then the snapshot counts, then the table changes. A
    /// snapshot that counted beside a log that contradicts it would keep the node from starting
    /// again.
    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        data: SnapshotData,
    ) -> Result<(), io::Error> {
        let kept = self.keep(meta, data).await.map_err(|error| self.snapshot_failed(&error))?;
        let wanted = meta.clone();
        let (table, roll) = off_runtime(self.store.may_block(), move || {
            let (_, roll) = read_meta(&kept).map_err(io::Error::other)?;
            Ok((read_table(kept, &wanted).map_err(io::Error::other)?, roll))
        })
        .await
        .map_err(|error| self.snapshot_failed(&error))?;
        let state = State { table, last: meta.last_log_id, roll };
        let replaced = {
            let mut guard = self.shared.lock();
            let mut replaced = std::mem::replace(&mut *guard, state);
            if mutant!(SnapshotSkipped) {
                std::mem::swap(&mut guard.table, &mut replaced.table);
            }
            if mutant!(SnapshotKeepsMembers) {
                std::mem::swap(&mut guard.roll, &mut replaced.roll);
            }
            if let Some(recorder) = &self.recorder {
                recorder.restored(guard.table.applied_index());
            }
            if let Some(listener) = self.shared.listener.get() {
                listener.restored(guard.table.applied_index(), &guard.table);
            }
            replaced
        };
        self.shared.applied.send_replace(meta.last_log_id);
        // Outside the lock and off the runtime: freeing a large table takes a while.
        free_off_runtime(self.store.may_block(), replaced.table.dismantle());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<SnapshotData>>, io::Error> {
        let Some(kept) = self.store.newest_snapshot()? else { return Ok(None) };
        let (meta, _) = read_meta(&kept).map_err(io::Error::other)?;
        Ok(Some(Snapshot { meta, snapshot: SnapshotData::Kept(kept) }))
    }
}

fn member_ids(membership: &StoredMembership) -> MemberIds {
    let voters: Vec<u64> = membership.voter_ids().collect();
    let learners = membership.nodes().map(|(id, _)| *id).filter(|id| !voters.contains(id));
    MemberIds { learners: learners.collect(), voters }
}

/// A table frozen for a snapshot, to be written beside the running one.
pub(super) struct Builder {
    /// Set until it is written. Then it is freed off the runtime: what the running table has
    /// replaced since takes longer than a heartbeat may, if the table is large.
    frozen: Option<Frozen>,
    last: Option<LogId>,
    roll: Roll,
    store: Arc<dyn ReplicaStore>,
    faults: FaultSlot,
    timer: Option<Stopwatch>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<Snapshot<SnapshotData>, io::Error> {
        let begun = self.timer.as_ref().map(Stopwatch::now);
        let store = Arc::clone(&self.store);
        let frozen = self.frozen.take();
        let last = self.last.as_ref().map(log_id_to_stored);
        let last_membership = self.roll.membership().clone();
        let meta = SnapshotMeta { last_log_id: self.last, last_membership };
        let bytes = meta_bytes(&meta, self.roll.highest(), &store.identity());
        let may_block = store.may_block();
        let written = off_runtime(may_block, move || {
            let mut draft = store.begin_snapshot(last, bytes)?;
            if let Some(frozen) = frozen {
                frozen.write_to(&mut draft)?;
                free_off_runtime(may_block, frozen.dismantle());
            }
            // Written to the system now, so that a simulated crash before the sync leaves it torn.
            draft.flush()?;
            Ok(draft)
        })
        .await;
        let kept = match written {
            Ok(draft) => self.finish(draft).await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(kept) => {
                if let Some((timer, begun)) = self.timer.as_ref().zip(begun) {
                    timer.observe_since(begun);
                }
                Ok(Snapshot { meta, snapshot: SnapshotData::Kept(kept) })
            }
            Err(error) => {
                self.faults.report(Fault::Snapshot { message: error.to_string() });
                Err(error)
            }
        }
    }
}

impl Builder {
    async fn finish(&self, draft: Box<dyn SnapshotDraft>) -> io::Result<Arc<dyn KeptSnapshot>> {
        self.store.pace(Step::Sync).await;
        let store = Arc::clone(&self.store);
        off_runtime(store.may_block(), move || {
            if mutant!(SnapshotNotKept)
                && let Some(before) = store.newest_snapshot()?
            {
                return Ok(before);
            }
            draft.finish()
        })
        .await
    }
}

/// The meta of a snapshot as it is stored, with the cluster it belongs to (I22).
pub(super) fn meta_bytes(meta: &SnapshotMeta, highest_node_id: u64, identity: &Identity) -> Bytes {
    let cluster = identity.cluster.map(|id| Bytes::copy_from_slice(&id.0)).unwrap_or_default();
    let identity = (cluster, identity.incarnation);
    snapshot_meta_to_wire(meta, highest_node_id, identity).encode_to_vec().into()
}

/// The meta of a kept snapshot as it is stored and sent.
pub(super) fn stored_meta(kept: &Arc<dyn KeptSnapshot>) -> Result<proto::SnapshotMeta, String> {
    proto::SnapshotMeta::decode(kept.info().meta.clone())
        .map_err(|error| format!("its head does not decode: {error}"))
}

fn read_meta(kept: &Arc<dyn KeptSnapshot>) -> Result<(SnapshotMeta, Roll), String> {
    let wire = stored_meta(kept)?;
    let highest = wire.highest_node_id;
    let meta = snapshot_meta_from_wire(wire).map_err(|error| error.to_string())?;
    let roll = Roll::new(meta.last_membership.clone(), highest);
    Ok((meta, roll))
}

fn read_table(kept: Arc<dyn KeptSnapshot>, meta: &SnapshotMeta) -> Result<LockTable, String> {
    let mut body = BufReader::with_capacity(64 << 10, BodyReader::new(kept));
    let table = LockTable::read_from(&mut body).map_err(|error| error.to_string())?;
    let last = meta.last_log_id.map_or(0, |id| id.index);
    if table.applied_index().get() != last {
        let found = table.applied_index();
        return Err(format!("its head says log index {last}, its body {found}"));
    }
    Ok(table)
}

/// Frees a large table off the runtime; each of `pieces` frees a part of it, and returns how many
/// entries that were. No caller waits for it. Where nothing blocks it is freed at once, so that a
/// simulation stays on its one thread.
fn free_off_runtime(may_block: bool, pieces: impl Iterator<Item = usize> + Send + 'static) {
    if may_block {
        drop(tokio::task::spawn_blocking(|| free_with_pauses(pieces)));
    } else {
        pieces.for_each(drop);
    }
}

/// Runs `work` where it may block. Where nothing blocks it runs at once, so that a simulation stays
/// on its one thread.
pub(super) async fn off_runtime<T: Send + 'static>(
    may_block: bool,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if !may_block {
        return work();
    }
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the work on the disk panicked")))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::raft::MemoryStore;
    use crate::raft::types::{Addresses, Membership, log_id};

    /// SC4 of the safety review: dropping what a large table has replaced takes longer than a
    /// heartbeat may, and the thread that sends heartbeats drops the builder.
    #[tokio::test]
    async fn a_snapshots_builder_keeps_nothing_of_the_table_once_it_is_written() {
        let machine = Machine::load(Arc::new(MemoryStore::new(1)), FaultSlot::new()).unwrap();
        let mut builder = machine.freeze();

        builder.build_snapshot().await.unwrap();

        assert!(builder.frozen.is_none());
    }

    struct TellsWhere(std::sync::mpsc::Sender<ThreadId>);

    impl Drop for TellsWhere {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[tokio::test]
    async fn a_replaced_table_is_dropped_where_it_holds_nothing_up() {
        let (tell, told) = std::sync::mpsc::channel();
        let table = |tell| [TellsWhere(tell)].into_iter().map(|_dropped| 1);
        free_off_runtime(true, table(tell.clone()));
        assert_ne!(told.recv().unwrap(), thread::current().id());

        // A simulation has one thread.
        free_off_runtime(false, table(tell));
        assert_eq!(told.recv().unwrap(), thread::current().id());
    }

    fn of(index: u64, members: &[u64]) -> StoredMembership {
        let voters: BTreeSet<u64> = members.iter().copied().collect();
        let nodes: BTreeMap<u64, Addresses> =
            members.iter().map(|id| (*id, Addresses::default())).collect();
        let membership = Membership::new(vec![voters], nodes).unwrap();
        StoredMembership::new(Some(log_id(1, index)), membership)
    }

    #[test]
    fn an_id_that_was_a_members_is_spent_when_it_leaves_and_for_ever() {
        let mut roll = Roll::default();
        roll.enter(of(1, &[1, 2, 3]));
        roll.enter(of(2, &[1, 2, 3, 7]));
        assert!(!roll.is_spent(7) && !roll.is_spent(8));

        roll.enter(of(3, &[1, 2]));
        roll.enter(of(4, &[1, 2, 9]));

        assert_eq!(roll.highest(), 9);
        for (id, spent) in [(1, false), (3, true), (7, true), (9, false), (10, false)] {
            assert_eq!(roll.is_spent(id), spent, "node {id}");
        }
    }

    #[test]
    fn a_roll_made_from_a_snapshot_remembers_who_left_before_it() {
        let roll = Roll::new(of(9, &[4, 5]), 6);

        assert!(roll.is_spent(6) && roll.is_spent(1));
        assert_eq!(Roll::new(of(9, &[4, 5]), 0).highest(), 5);
    }
}
