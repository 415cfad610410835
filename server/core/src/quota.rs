//! Quotas: how much one identity may have (DESIGN §14).
//!
//! # Invariants
//!
//! - The usage of an identity is the sum over its sessions, and over the values that it has set (`check.rs`). What was
//!   imported is nobody's until it is claimed.
//! - A quota refuses what would be more than it allows, before anything changes. Nothing ends because of a
//!   quota, and what frees something is never refused for one.

use std::collections::BTreeMap;
use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::access::Identity;
use crate::ids::SessionId;
use crate::session::{Record, Session, State};
use crate::{LockTable, Rejection};

/// How much an identity may have; `None`: no more is said about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Quota {
    /// Open sessions.
    pub sessions: Option<u64>,
    /// Locks that it holds or waits for, each once for each request.
    pub holds: Option<u64>,
    /// Requests that wait.
    pub waits: Option<u64>,
    /// Bytes of the values that it has set, as
    /// [`Limits::max_value_bytes`](crate::Limits::max_value_bytes) counts them.
    pub value_bytes: Option<u64>,
    /// Connections to one node, which counts them: the table only keeps the number.
    pub connections: Option<u64>,
}

impl Quota {
    /// What it says, and what `below` says where it is silent.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            sessions: self.sessions.or(below.sessions),
            holds: self.holds.or(below.holds),
            waits: self.waits.or(below.waits),
            value_bytes: self.value_bytes.or(below.value_bytes),
            connections: self.connections.or(below.connections),
        }
    }

    /// The limit of one quantity.
    pub fn of(&self, what: Quantity) -> Option<u64> {
        match what {
            Quantity::Sessions => self.sessions,
            Quantity::Holds => self.holds,
            Quantity::Waits => self.waits,
            Quantity::ValueBytes => self.value_bytes,
            Quantity::Connections => self.connections,
        }
    }
}

/// What a quota limits. The order of the variants is part of the stored encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Quantity {
    /// See [`Quota::sessions`].
    Sessions,
    /// See [`Quota::holds`].
    Holds,
    /// See [`Quota::waits`].
    Waits,
    /// See [`Quota::value_bytes`].
    ValueBytes,
    /// See [`Quota::connections`].
    Connections,
}

/// For people.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sessions => "sessions",
            Self::Holds => "locks held or waited for",
            Self::Waits => "requests waiting",
            Self::ValueBytes => "bytes of values",
            Self::Connections => "connections to a node",
        })
    }
}

/// How much an identity has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// As in [`Quota`].
    pub sessions: u64,
    /// As in [`Quota`].
    pub holds: u64,
    /// As in [`Quota`].
    pub waits: u64,
    /// As in [`Quota`].
    pub value_bytes: u64,
}

impl Usage {
    fn of(&self, what: Quantity) -> u64 {
        match what {
            Quantity::Sessions => self.sessions,
            Quantity::Holds => self.holds,
            Quantity::Waits => self.waits,
            Quantity::ValueBytes => self.value_bytes,
            Quantity::Connections => 0,
        }
    }

    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_add(more.sessions),
            holds: self.holds.saturating_add(more.holds),
            waits: self.waits.saturating_add(more.waits),
            value_bytes: self.value_bytes.saturating_add(more.value_bytes),
        }
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_sub(less.sessions),
            holds: self.holds.saturating_sub(less.holds),
            waits: self.waits.saturating_sub(less.waits),
            value_bytes: self.value_bytes.saturating_sub(less.value_bytes),
        }
    }

    pub(crate) fn of_value(value_bytes: u64) -> Self {
        Self { value_bytes, ..Self::default() }
    }
}

/// How much each identity has; those that have something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usages(BTreeMap<Identity, Usage>);

impl Usages {
    /// An identity has `after` of something where it had `before`.
    pub(crate) fn change(&mut self, identity: &Identity, before: Usage, after: Usage) {
        if before == after {
            return;
        }
        match self.0.get_mut(identity) {
            Some(usage) => {
                *usage = usage.plus(after).minus(before);
                if *usage == Usage::default() {
                    self.0.remove(identity);
                }
            }
            None => drop(self.0.insert(identity.clone(), after)),
        }
    }

    pub(crate) fn of(&self, identity: &Identity) -> Usage {
        self.0.get(identity).copied().unwrap_or_default()
    }

    /// The same identity, in the form that is kept already: its text then is in memory once.
    pub(crate) fn kept(&self, identity: Identity) -> Identity {
        let kept = self.0.get_key_value(&identity).map(|(kept, _)| kept.clone());
        kept.unwrap_or(identity)
    }
}

/// What the requests of a session are to its identity. Small: each session has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    holds: u32,
    waits: u32,
}

impl Load {
    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            holds: self.holds.saturating_add(more.holds),
            waits: self.waits.saturating_add(more.waits),
        }
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self {
            holds: self.holds.saturating_sub(less.holds),
            waits: self.waits.saturating_sub(less.waits),
        }
    }

    /// With the session itself.
    pub(crate) fn usage(self) -> Usage {
        let (holds, waits) = (self.holds.into(), self.waits.into());
        Usage { sessions: 1, holds, waits, value_bytes: 0 }
    }
}

impl Session {
    /// Counts its load, request by request.
    pub(crate) fn recount_load(&self) -> Load {
        self.records.values().map(Record::load).fold(Load::default(), Load::plus)
    }
}

impl Record {
    /// What a request is to its session's identity.
    pub(crate) fn load(&self) -> Load {
        let Self::Asked { lock_set, state } = self else { return Load::default() };
        let count = |names: usize| u32::try_from(names).unwrap_or(u32::MAX);
        match state {
            State::Held { part, .. } => Load { holds: part.len(), waits: 0 },
            // What it waits for it may come to hold.
            State::Waiting { .. } => Load { holds: count(lock_set.len()), waits: 1 },
            State::Denied(_) | State::Ended => Load::default(),
        }
    }
}

impl LockTable {
    /// Each identity that has something, and how much.
    pub fn usages(&self) -> impl Iterator<Item = (&Identity, Usage)> {
        self.usages.0.iter().map(|(identity, usage)| (identity, *usage))
    }

    /// Checks that the identity of a session may have so much more of something.
    ///
    /// # Errors
    ///
    /// [`Rejection::OverQuota`]; [`Rejection::UnknownSession`].
    pub(crate) fn check_quota_of(
        &self,
        session: SessionId,
        what: Quantity,
        more: u64,
    ) -> Result<(), Rejection> {
        self.check_quota(&self.open(session)?.caller.identity, what, more)
    }

    /// Checks that an identity may have so much more of something.
    ///
    /// # Errors
    ///
    /// [`Rejection::OverQuota`].
    pub(crate) fn check_quota(
        &self,
        identity: &Identity,
        what: Quantity,
        more: u64,
    ) -> Result<(), Rejection> {
        let Some(limit) = self.rules.quota_of(identity).of(what) else { return Ok(()) };
        if self.usages.of(identity).of(what).saturating_add(more) > limit {
            return Err(Rejection::OverQuota { identity: identity.clone(), what, limit });
        }
        Ok(())
    }
}
