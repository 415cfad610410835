//! Restoring: the table of a backup as the first state of a new cluster (DESIGN §15).
//!
//! The old cluster is down for good, but its clients may not know it yet: each of them relies on its holds
//! until its safe deadline has passed. And a resource may have seen any token that the old cluster gave
//! out, also after the backup. So a restored table
//!
//! - begins above every token of the old cluster ([`LockTable::restored`]), as far as clocks tell (I3);
//! - has nothing of a session: holds, waits and imports are left out;
//! - has every value as suspect: its next holder has to check it;
//! - grants nothing until [`Command::GrantAgain`](crate::Command::GrantAgain), which the leader proposes
//!   after [`LockTable::grants_after_ms`] (I6);
//! - has every sequence far above its last number, and above that of one that it does not know (`Origin`);
//! - marks its scopes until their next `RaiseEpoch`: the row of the other store may have a later epoch
//!   than the backup ([`LockTable::is_scope_restored`]).
//!
//! # Why tokens rise
//!
//! With D days and T seconds since 2026-01-01, every epoch becomes `max(its epoch, D)`, and the counter of
//! all tokens becomes `T · 2¹⁷`. A new cluster begins at the same numbers
//! ([`Command::BeginTokens`](crate::Command::BeginTokens)). So tokens follow the time of the restore,
//! whichever backup it is, as long as the clocks of restores are in order, restores are a second apart, and
//! the cluster grants fewer than 2¹⁷ times a second on average. Adding one to the epochs of the backup
//! would not do: of two backups the older one, restored last, would fall below the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::answer::{Answer, Outcome};
use crate::command::SEQUENCES_SINCE;
use crate::counters::Counters;
use crate::event::Event;
use crate::hold_bounds::ClosedLock;
use crate::ids::{FencingToken, LockName, LogIndex, ScopePrefix};
use crate::permits::KeptLimit;
use crate::scope::{SCOPE_EPOCH_MAX, ScopeState};
use crate::sequence::Sequence;
use crate::session::Record;
use crate::work::Work;
use crate::{LockTable, Rejection};

/// 2026-01-01, Unix milliseconds: the origin of the numbers that tokens and sequences go on with.
pub(crate) const ORIGIN_MS: u64 = 1_767_225_600_000;
const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400_000;
/// A cluster may grant 2 to this power times a second, on average over its life.
///
/// Source: DESIGN §15. Three times what the fastest measured cluster grants (docs/performance.md), and 2⁴⁸
/// tokens last for 68 years.
const GRANTS_A_SECOND_BITS: u32 = 17;

/// The log index that a restored table stands at: the first one that leaves something to be purged before
/// it, so that every other member has to be sent the table.
pub const RESTORED_INDEX: LogIndex = LogIndex::new(1);

/// What a restore leaves to be done. Empty in a table that was never restored, and in one that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Restored {
    grants: Grants,
    /// Those whose epoch was not raised since.
    scopes: BTreeSet<ScopePrefix>,
}

/// Whether the table grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
enum Grants {
    #[default]
    Yes,
    /// Nothing before `GrantAgain`, which is proposed after so many milliseconds.
    After { wait_ms: u64 },
    /// It does again; the awaited locks from behind that name on are still to be looked at.
    Looks { after: Option<LockName> },
}

/// How a table is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestorePlan {
    /// The clock of the node that restores it, Unix milliseconds.
    pub now_ms: u64,
    /// Every epoch is to become this one, because the clock does not tell. Without it the epochs follow
    /// the clock.
    pub epoch: Option<u16>,
    /// The longest lease of the node that restores it, milliseconds: the old cluster may have allowed it
    /// since the backup.
    pub ttl_max_ms: u64,
    /// Grants at once, although clients of the old cluster may still rely on their holds: that breaks I6
    /// unless an operator knows that none of them runs any more.
    pub now: bool,
}

/// Why a table is not restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The clock is wrong, or that of the backup was: tokens might repeat.
    #[error(
        "the clock of this node is {behind_ms} ms before the time of the backup: tokens could repeat; \
         set the clock, or give an epoch that no token had yet (--epoch, above {epoch})"
    )]
    ClockBeforeBackup {
        /// By how much.
        behind_ms: u64,
        /// The largest epoch of the backup.
        epoch: u16,
    },
    /// The old cluster granted faster than allowed for, or its clock was ahead.
    #[error(
        "the backup has given out {counter} tokens, which is not below {start}, where the clock of \
         this node begins them: they could repeat; check the clock, or give an epoch that no token had \
         yet (--epoch, above {epoch})"
    )]
    TokensAheadOfClock {
        /// The counter of the backup.
        counter: u64,
        /// What it would begin with.
        start: u64,
        /// The largest epoch of the backup.
        epoch: u16,
    },
    /// The clock lies before 2026, or beyond what tokens have room for.
    #[error(
        "the clock of this node ({now_ms} ms since 1970) gives no beginning for tokens: it lies before \
         2026, or in a year that has none; set the clock, or give an epoch that no token had yet \
         (--epoch, above {epoch})"
    )]
    ClockOutOfRange {
        /// The clock.
        now_ms: u64,
        /// The largest epoch of the backup.
        epoch: u16,
    },
    /// The epoch that was given is not above those of the backup: tokens could repeat.
    #[error("--epoch {epoch} is not above {now}, the largest epoch of the backup")]
    EpochNotAbove {
        /// The epoch.
        epoch: u16,
        /// The largest of the backup.
        now: u16,
    },
    /// No token or scope has room for that epoch.
    #[error("the epoch {epoch} is above {max}, the last one")]
    EpochTooHigh {
        /// The epoch.
        epoch: u16,
        /// The last.
        max: u16,
    },
}

/// The epoch and the counter that tokens begin with at that time; `None` before 2026, and from 2094 on.
pub fn tokens_begin_at(now_ms: u64) -> Option<(u16, u64)> {
    let since_ms = now_ms.checked_sub(ORIGIN_MS)?;
    let epoch = u16::try_from(since_ms / DAY_MS).ok().filter(|epoch| *epoch <= SCOPE_EPOCH_MAX)?;
    let counter = (since_ms / SECOND_MS).checked_mul(1 << GRANTS_A_SECOND_BITS)?;
    (counter <= FencingToken::COUNTER_MAX)
        .then_some((epoch.max(Counters::default().epoch), counter))
}

impl Restored {
    /// How long the leader waits before it grants; `None`: the table grants.
    pub(crate) fn wait_ms(&self) -> Option<u64> {
        match self.grants {
            Grants::After { wait_ms } => Some(wait_ms),
            Grants::Yes | Grants::Looks { .. } => None,
        }
    }

    /// Whether awaited locks are left to be looked at.
    pub(crate) fn has_looks(&self) -> bool {
        matches!(self.grants, Grants::Looks { .. })
    }

    /// Whether that awaited lock is still to be looked at.
    pub(crate) fn will_look_at(&self, name: &LockName) -> bool {
        match &self.grants {
            Grants::Yes => false,
            Grants::After { .. } => true,
            Grants::Looks { after } => after.as_ref().is_none_or(|after| after < name),
        }
    }

    pub(crate) fn scopes(&self) -> impl Iterator<Item = &ScopePrefix> {
        self.scopes.iter()
    }

    /// The scope's epoch was raised, or it is gone.
    pub(crate) fn forget_scope(&mut self, scope: &ScopePrefix) {
        self.scopes.remove(scope);
    }
}

impl LockTable {
    /// The first state of the cluster that follows this table's.
    ///
    /// Values, limits (also those of locks that were set for good), scopes, freezes, rules, tokens and quotas stay, and
    /// so do the numbers of sessions and tickets, which go on; closed locks stay closed, and so do those of holds with a least
    /// time; sequences go on far above their last numbers.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]: tokens might not rise.
    pub fn restored(&self, plan: &RestorePlan) -> Result<Self, RestoreError> {
        let (epoch, counter) = self.tokens_of(plan)?;
        let counters = Counters {
            epoch: self.counters.epoch.max(epoch),
            token: if mutant!(RestoreRepeatsTokens) { self.counters.token } else { counter },
            ..self.counters
        };
        let mut table = Self::with_counters(counters);
        table.limits = self.limits;
        table.max_table_bytes = self.max_table_bytes;
        table.stamp_ms = self.stamp_ms;
        // Its snapshot has to say from where sequences count.
        table.applied_version = SEQUENCES_SINCE.max(self.applied_version);
        table.numbers = self.numbers.restored(plan.now_ms);
        table.rules = self.rules.clone();
        table.freezes = Arc::clone(&self.freezes);
        table.work = Work::restored(self.work.limit(), crate::work::Pending::default());
        table.chain.begin_after(&self.chain, RESTORED_INDEX);
        for (scope, was) in self.scopes.iter() {
            let now = ScopeState { epoch: was.epoch.max(epoch), suspended: true, ..was };
            table.scopes.put(scope.clone(), now);
            if !mutant!(RestoredScopeUnmarked) {
                table.restored.scopes.insert(scope.clone());
            }
        }
        for (name, value) in self.values.iter() {
            let owner = value.owner.clone().map(|owner| table.usages.kept(owner));
            let suspect = value.suspect || !mutant!(RestoredValueTrusted);
            table.keep_value(name, Some(crate::Value { suspect, owner, ..value.clone() }));
        }
        for (name, kept) in self.kept_limits.iter().filter(|(_, kept)| !kept.goes) {
            let owner = table.usages.kept(kept.owner.clone());
            table.keep_limit(name, KeptLimit { owner, ..kept.clone() });
        }
        self.restore_closed(&mut table);
        for (name, was) in self.sequences.iter() {
            let owner = table.usages.kept(was.owner.clone());
            let last = self.numbers.after_restore(was.last, plan.now_ms);
            table.keep_sequence(name, Sequence { last, owner });
        }
        if !plan.now && !mutant!(RestoreGrantsAtOnce) {
            let wait_ms = self.largest_ttl_ms().max(plan.ttl_max_ms);
            table.restored.grants = Grants::After { wait_ms };
        }
        Ok(table)
    }

    /// What was closed stays closed, and so does what somebody held who wanted to hold it for a while at least: its leader
    /// counts that in full.
    fn restore_closed(&self, table: &mut Self) {
        let was_closed = self.closed_locks.iter();
        let mut all: Vec<_> = was_closed.map(|(name, was)| (name.clone(), was.clone())).collect();
        for (_, session) in self.sessions.iter() {
            for (&token, request) in &session.holds {
                let held = session.records.get(request).and_then(Record::held);
                let Some((lock_set, part)) = held else { continue };
                let Some(will_be) = session.closes(*request, token) else { continue };
                let will_be = ClosedLock { since_ms: self.stamp_ms, ..will_be };
                all.extend(
                    lock_set.iter_part(part).map(|(name, _)| (name.clone(), will_be.clone())),
                );
            }
        }
        for (name, closed) in all {
            let identity = table.usages.kept(closed.identity.clone());
            table.keep_closed(&name, ClosedLock { identity, ..closed });
        }
    }

    /// The least epoch, and the counter, of a table that is restored.
    fn tokens_of(&self, plan: &RestorePlan) -> Result<(u16, u64), RestoreError> {
        let largest = self.largest_epoch();
        let begin = tokens_begin_at(plan.now_ms);
        if let Some(epoch) = plan.epoch {
            let max = if self.scopes.len() > 0 { SCOPE_EPOCH_MAX } else { FencingToken::EPOCH_MAX };
            if epoch > max {
                return Err(RestoreError::EpochTooHigh { epoch, max });
            }
            if epoch <= largest {
                return Err(RestoreError::EpochNotAbove { epoch, now: largest });
            }
            let counter = begin.map_or(0, |(_, counter)| counter);
            return Ok((epoch, self.counters.token.max(counter)));
        }
        let now_ms = plan.now_ms;
        if now_ms < self.stamp_ms {
            let behind_ms = self.stamp_ms - now_ms;
            return Err(RestoreError::ClockBeforeBackup { behind_ms, epoch: largest });
        }
        let out_of_range = RestoreError::ClockOutOfRange { now_ms, epoch: largest };
        let (epoch, start) = begin.ok_or(out_of_range)?;
        let counter = self.counters.token;
        if counter >= start {
            return Err(RestoreError::TokensAheadOfClock { counter, start, epoch: largest });
        }
        Ok((epoch, start))
    }

    /// The largest epoch of any token so far.
    pub fn largest_epoch(&self) -> u16 {
        let scopes = self.scopes.iter().map(|(_, state)| state.epoch);
        scopes.fold(self.counters.epoch, u16::max)
    }

    /// For how long a client may rely on a hold without hearing from the cluster: the longest lease of a
    /// session, or the longest that is allowed; and of the cluster before, while a restored table waits for its
    /// clients. O(n) in the number of sessions.
    pub fn largest_ttl_ms(&self) -> u64 {
        self.freeze().largest_ttl_ms()
    }

    /// `Some`: the table was restored and grants nothing, until the leader proposes
    /// [`Command::GrantAgain`](crate::Command::GrantAgain), so many milliseconds and the margin of leases
    /// after the first entry of its tenure.
    pub fn grants_after_ms(&self) -> Option<u64> {
        self.restored.wait_ms()
    }

    /// Whether the scope comes from a backup and its epoch was not raised since. Before it has any
    /// authority over such a scope, the leader raises the epoch above that of the table and that of the
    /// other store.
    pub fn is_scope_restored(&self, scope: &ScopePrefix) -> bool {
        self.restored.scopes.contains(scope)
    }

    /// Whether nothing is granted of that name at present, so that its queue is looked at later.
    pub(crate) fn grants_nothing_of(&self, name: &LockName) -> bool {
        let is_kept_back = self.is_kept_back(name);
        self.grants_after_ms().is_some() || self.scopes.is_suspended(name) || is_kept_back
    }

    /// Grants again, first to those who wait already, the smallest ticket of a few hundred locks first. A
    /// second copy changes nothing, and so does one in a table that was never restored.
    pub(crate) fn grant_again(&mut self, events: &mut Vec<Event>) -> Answer {
        if self.grants_after_ms().is_some() {
            self.restored.grants = Grants::Looks { after: None };
            self.look_after_restore(events);
        }
        Answer::CarriedOn { more: self.has_work_left() }
    }

    /// Looks at awaited locks since grants go on, as far as the command goes.
    pub(crate) fn look_after_restore(&mut self, events: &mut Vec<Event>) {
        while let Grants::Looks { after } = self.restored.grants.clone() {
            if self.work.is_spent() {
                return;
            }
            let looks = self.looks_at_once();
            let names: Vec<LockName> =
                self.awaited_after(after.as_ref()).take(looks).cloned().collect();
            self.restored.grants = match names.last() {
                Some(last) if names.len() == looks => Grants::Looks { after: Some(last.clone()) },
                Some(_) | None => Grants::Yes,
            };
            self.pass_on(&names, events);
        }
    }

    /// Has tokens begin at these numbers, if none was given out and there is no scope; else it changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Rejection::UnusableLimits`]: the state is unchanged.
    pub(crate) fn begin_tokens(&mut self, epoch: u16, counter: u64) -> Outcome {
        if epoch > SCOPE_EPOCH_MAX || counter > FencingToken::COUNTER_MAX {
            let reason = format!("tokens cannot begin at {counter} in epoch {epoch}");
            return Err(Rejection::UnusableLimits { reason });
        }
        if self.may_begin_tokens() {
            self.counters.epoch = self.counters.epoch.max(epoch);
            self.counters.token = counter;
        }
        Ok(Answer::Configured)
    }

    /// Whether [`Command::BeginTokens`](crate::Command::BeginTokens) would have an effect: the cluster is new.
    pub fn may_begin_tokens(&self) -> bool {
        self.counters.token == 0 && self.scopes.len() == 0
    }
}
