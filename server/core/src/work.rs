//! How much one command does, and what it leaves for later commands.
//!
//! Some commands concern any number of locks, holders or sessions: a release lets in every reader that
//! waits, and the epoch of a scope ends every hold in it. A node applies one command after another, so
//! while such a command takes a second, no other is applied, no lease is renewed, and followers call an
//! election. So each command does a bounded amount of work, counted in *steps*. What is left is part of
//! the table. [`Command::CarryOn`](crate::Command::CarryOn) carries it on; the leader proposes it for as
//! long as something is left.
//!
//! | left | by | carried on in the order of |
//! |---|---|---|
//! | waits and holds of a session with very many locks | its end | tickets, then tokens |
//! | sessions of an identity that was cut off | `CutOff` | the store of sessions |
//! | holds of an earlier epoch | `RaiseEpoch` | names; of one session, tokens |
//! | heads of queues that may be granted | whatever makes room | tickets |
//! | awaited locks of a scope that grants again | `Resume`, `RemoveScope` | names |
//! | awaited locks whose freeze was lifted | `Thaw` | names |
//! | awaited locks of a restored table that grants again | `GrantAgain` | names |
//! | holders to be told that others wait | `Acquire`, and grants | names; of one lock, tokens |
//!
//! `SetScope` looks at every lock of the scope as well. Its caller has to know what came of it, so
//! it leaves no work for others: it refuses with [`Rejection::Unfinished`](crate::Rejection::Unfinished),
//! and a second copy goes on from where the first one stopped.
//!
//! # What is left changes nothing in the meantime
//!
//! - A lock whose head is left has a queue, so nobody else gets in before it (I9).
//! - A hold of an earlier epoch, and every hold of a session that is over or is to be revoked, is over for whoever
//!   asks: no token of it is current, no value is set under it, no retry is answered with it (I35). It
//!   keeps its locks until its turn, so nobody holds beside it (I2).
//! - A session that is over, or is to be revoked, comes to nothing new.
//!
//! # Invariants
//!
//! - Steps, and what is left, follow from the log alone: nothing here looks at a clock, or at what a
//!   snapshot shares with the table (I16).
//! - Everything that is left is in the snapshot. So a member that installs one carries on as the others
//!   do (I17).
//! - Each command does at least one piece of its work, so that everything is done in the end (I31).
//! - Before the first [`Command::LimitWork`](crate::Command::LimitWork) there is no limit, and nothing is
//!   ever left: members of an older release do everything at once (I29).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::access::{Identity, NamePrefix};
use crate::answer::{Answer, Outcome};
use crate::event::{EndCause, Event};
use crate::ids::{FencingToken, Label, LockName, ScopePrefix, SessionId, Ticket};
use crate::lock::Lock;
use crate::{LockTable, Rejection};

/// Steps of work that one command may do, as a leader of this release sets it.
///
/// A step is about one look-up in the table. A command goes beyond the limit by one piece of its work at
/// most: a grant of up to 64 locks with their values, or the end of one session with a thousand locks.
///
/// Source: an estimate, still to be measured by `tests/benches/applies.rs`: a command of so many steps is to
/// take about a millisecond beside 10⁶ locks, and less than five right after a snapshot began, when it has
/// to copy what it writes.
pub const WORK_STEPS: u64 = 4_096;

/// So many commands of one batch may do as much as the limit allows. Those after them may do a small part
/// of it each, which is enough for a hand-over.
///
/// Source: four commands of a millisecond are as long as a node may stand still; a batch of ordinary
/// commands does not come to more.
const WHOLE_COMMANDS_A_BATCH: u64 = 4;
/// One in so many of the limit's steps is what those after them may do.
const SHORT_PART: u64 = 16;
/// A lock with more holders than this remembers whom it has told that others wait. One with fewer tells
/// all of them each time that a queue begins, which is as good as one step.
///
/// Source: as many holders as a command may tell without notice beside its other work.
pub(crate) const MANY_HOLDERS: usize = 64;
/// So many holds of one lock one command closes.
///
/// Source: each may belong to another session with a thousand requests, which is copied if a snapshot
/// shares it, 0.15 ms each.
pub(crate) const CLOSED_AT_ONCE: usize = 16;

/// Steps of the beginning or the end of a hold, for each of its locks.
pub(crate) const HOLD_STEPS: u64 = 4;
/// Steps of a look at a session for the first time in a command: a snapshot may share it, then it is
/// copied, with references to the others of its shard.
const SESSION_STEPS: u64 = 8;
/// So many records of a session are copied in one step.
const RECORDS_A_STEP: u64 = 8;
/// Steps of a change of a value: a snapshot may share its shard, then references to all its values are
/// copied.
const VALUE_STEPS: u64 = 64;
/// So many bytes of values are copied and hashed in one step.
const VALUE_BYTES_A_STEP: u64 = 128;

/// The limit, and the work of the present command.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    limit: Option<u64>,
    /// What the present command may still do. Not stored, as what follows.
    left: u64,
    /// What the present batch may do before its commands are kept short.
    left_of_batch: u64,
    /// By all commands so far.
    done: u64,
    /// The sessions that the present command has paid for. None without a limit. The first one, which is
    /// the only one of most commands, takes no memory of its own.
    paid: (Option<SessionId>, BTreeSet<SessionId>),
    /// Shared with frozen tables until it changes.
    pending: Arc<Pending>,
}

/// What earlier commands have left.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Pending {
    /// Sessions with very many locks that are over; `None`: that are revoked, and leave their queues.
    pub(crate) ends: BTreeMap<SessionId, Option<EndCause>>,
    /// Identities that were cut off, whose sessions are not all ended yet.
    pub(crate) cuts: BTreeMap<Identity, PendingCut>,
    /// Scopes with holds of an earlier epoch.
    pub(crate) sweeps: BTreeMap<ScopePrefix, Sweep>,
    /// Heads of queues to look at, by the tickets that they had when they were left.
    pub(crate) heads: BTreeSet<(Ticket, LockName)>,
    /// Prefixes whose awaited locks are to be looked at, from behind that name on.
    pub(crate) looks: BTreeMap<ScopePrefix, Option<LockName>>,
    /// Up to which token the holders of a lock have been told that others wait: of a lock with many
    /// holders, and of each in `untold`.
    pub(crate) told: BTreeMap<LockName, FencingToken>,
    /// Locks with holders above that token that are still to be told.
    ///
    /// Invariant: each is in `told`.
    pub(crate) untold: BTreeSet<LockName>,
    /// Prefixes whose freeze was lifted, and whose awaited locks are to be looked at, from behind that name on.
    ///
    /// Snapshots store it apart: older versions do not know it.
    #[borsh(skip)]
    pub(crate) thaws: BTreeMap<NamePrefix, Option<LockName>>,
    /// Those sessions that are over whose holds close no locks. Stored as thaws are.
    ///
    /// Invariant: each is in `ends`.
    #[borsh(skip)]
    pub(crate) ends_now: BTreeSet<SessionId>,
    /// Prefixes that are to become scopes, with the part of their locks that was looked at.
    pub(crate) checks: BTreeMap<ScopePrefix, Checked>,
}

/// The sessions of an identity that are still to be ended.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct PendingCut {
    pub(crate) reason: Label,
    /// Whether they end at once.
    pub(crate) now: bool,
    /// The last session that was open at that command: later ones may stay.
    pub(crate) last: SessionId,
    /// Those up to here are done, in the order of the store.
    pub(crate) after: Option<SessionId>,
}

/// The holds of a scope that an epoch has ended.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Sweep {
    /// Holds under tokens of earlier epochs than this are over.
    pub(crate) below: u16,
    /// No lock up to here has such a hold.
    pub(crate) after: Option<LockName>,
}

/// How far `SetScope` has looked: at everything before that lock, and of that lock at the holders and
/// waiters up to these numbers.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Checked {
    /// The cluster's epoch meanwhile.
    pub(crate) epoch: u16,
    pub(crate) lock: LockName,
    pub(crate) token: FencingToken,
    pub(crate) ticket: Ticket,
}

impl Pending {
    /// Whether it has work for [`Command::CarryOn`](crate::Command::CarryOn).
    fn has_work(&self) -> bool {
        !(self.ends.is_empty()
            && self.cuts.is_empty()
            && self.sweeps.is_empty()
            && self.heads.is_empty()
            && self.looks.is_empty()
            && self.thaws.is_empty()
            && self.untold.is_empty())
    }
}

impl Work {
    pub(crate) fn new() -> Self {
        Self::restored(None, Pending::default())
    }

    pub(crate) fn restored(limit: Option<u64>, pending: Pending) -> Self {
        let (paid, pending) = ((None, BTreeSet::new()), Arc::new(pending));
        let mut work = Self { limit, left: 0, left_of_batch: 0, done: 0, paid, pending };
        work.begin_batch();
        work.begin();
        work
    }

    /// What a snapshot stores.
    pub(crate) fn stored(&self) -> (Option<u64>, Arc<Pending>) {
        (self.limit, Arc::clone(&self.pending))
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// A batch begins. It is applied as a whole, so its commands together are bounded too.
    pub(crate) fn begin_batch(&mut self) {
        self.left_of_batch =
            self.limit.map_or(u64::MAX, |limit| limit.saturating_mul(WHOLE_COMMANDS_A_BATCH));
    }

    /// A command begins.
    pub(crate) fn begin(&mut self) {
        let limit = self.limit.unwrap_or(u64::MAX);
        let least = (limit / SHORT_PART).max(1);
        self.left = limit.min(self.left_of_batch.max(least));
        self.paid.0 = None;
        self.paid.1.clear();
    }

    /// The command has done so many steps.
    pub(crate) fn charge(&mut self, steps: u64) {
        self.left = self.left.saturating_sub(steps);
        self.left_of_batch = self.left_of_batch.saturating_sub(steps);
        self.done = self.done.wrapping_add(steps);
    }

    /// The command writes to a session with so many records.
    fn charge_session(&mut self, session: SessionId, records: u64) {
        if !self.is_limited() || self.paid.0 == Some(session) {
            return;
        }
        if self.paid.0.is_none() {
            self.paid.0 = Some(session);
        } else if !self.paid.1.insert(session) {
            return;
        }
        self.charge(SESSION_STEPS + records / RECORDS_A_STEP);
    }

    /// The command changes a value of so many bytes.
    pub(crate) fn charge_value(&mut self, bytes: usize) {
        self.charge(VALUE_STEPS + steps_of(bytes));
    }

    /// The command reports values of so many bytes.
    pub(crate) fn charge_bytes(&mut self, bytes: usize) {
        self.charge(steps_of(bytes));
    }

    /// Whether the command leaves the rest of its work.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// How many things the command may still look at; at least one, so that each command does
    /// something.
    pub(crate) fn looks_left(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX).max(1)
    }

    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    pub(crate) fn pending(&self) -> &Pending {
        &self.pending
    }

    /// For a change. Copies what a snapshot shares, so nothing calls it without need.
    pub(crate) fn pending_mut(&mut self) -> &mut Pending {
        Arc::make_mut(&mut self.pending)
    }
}

fn steps_of(bytes: usize) -> u64 {
    bytes as u64 / VALUE_BYTES_A_STEP
}

impl LockTable {
    /// Sets the limit for later commands; what is left stays.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnusableLimits`]: the state is unchanged.
    pub(crate) fn limit_work(&mut self, steps: u64) -> Outcome {
        if steps == 0 {
            let reason = "the steps of a command are 0; there must be at least 1".to_owned();
            return Err(Rejection::UnusableLimits { reason });
        }
        self.work.limit = Some(steps);
        Ok(Answer::Configured)
    }

    /// Carries on what is left, as far as this command goes.
    pub(crate) fn carry_on(&mut self, events: &mut Vec<Event>) -> Answer {
        self.end_further(events);
        self.cut_further(events);
        self.sweep_further(events);
        self.grant_left(events);
        self.look_further(events);
        self.thaw_further(events);
        self.look_after_restore(events);
        self.tell_further(events);
        Answer::CarriedOn { more: self.has_work_left() }
    }

    /// How many steps of work each command may do; `None` before the first
    /// [`Command::LimitWork`](crate::Command::LimitWork).
    pub fn work_limit(&self) -> Option<u64> {
        self.work.limit()
    }

    /// Whether commands have left work for [`Command::CarryOn`](crate::Command::CarryOn). O(1).
    pub fn has_work_left(&self) -> bool {
        self.work.pending().has_work() || self.restored.has_looks()
    }

    /// How many steps all commands did since this table was made or read. Not part of the state.
    pub fn steps_done(&self) -> u64 {
        self.work.done()
    }

    /// The command writes to a session.
    pub(crate) fn charge_for(&mut self, session: SessionId) {
        let records = self.sessions.get(&session).map_or(0, |found| found.records.len() as u64);
        self.work.charge_session(session, records);
    }

    /// Whether the head of the lock's queue is among those left.
    pub(crate) fn is_head_left(&self, name: &LockName, lock: &Lock) -> bool {
        let heads = &self.work.pending().heads;
        let head = lock.queue.first().filter(|_| !heads.is_empty());
        head.is_some_and(|(rank, _)| heads.contains(&(rank.ticket, name.clone())))
    }

    /// Whether a hold under that token was ended by an epoch, and only has not had its turn.
    pub(crate) fn is_outdated(&self, lock: &LockName, token: FencingToken) -> bool {
        let mut sweeps =
            self.work.pending().sweeps.iter().filter(|_| !mutant!(OutdatedHoldCurrent));
        sweeps.any(|(scope, sweep)| token.epoch() < u64::from(sweep.below) && scope.contains(lock))
    }

    /// The lock has left the table.
    pub(crate) fn forget_telling(&mut self, name: &LockName) {
        if self.work.pending().told.contains_key(name) {
            let pending = self.work.pending_mut();
            pending.told.remove(name);
            pending.untold.remove(name);
        }
    }
}
