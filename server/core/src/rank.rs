//! The order of queues (DESIGN §16): by rank, which is when a request came, less its head start.
//!
//! The time is the table's own age ([`Batch::aged_ms`](crate::Batch)): each batch adds what has passed at its leader
//! since the batch before. So it cannot jump or stand still as wall clocks do, and it is the same on every replica.
//! Ranks never change, and are one order over all queues: the request with the smallest rank of all waits for
//! holders only, so sets cannot deadlock among themselves.
//!
//! # Invariants
//!
//! - Without head starts the order of ranks is that of tickets: first in, first out (I9).
//! - Nobody is overtaken by a request that came more than its head start later, which is
//!   [`HEAD_START_MAX_MS`] at most.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

use crate::command::TERMS_SINCE;
use crate::ids::Ticket;
use crate::lock_set::LockSet;
use crate::terms::Terms;
use crate::{LockTable, Rejection};

pub use holdfast_types::HEAD_START_MAX_MS;

/// A place in the order of queues; the smallest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// The table's age when the request came, and [`HEAD_START_MAX_MS`], less its head start. 0 of a request that
    /// came before the table had an age: none that came later overtakes it.
    pub(crate) at_ms: u64,
    pub(crate) ticket: Ticket,
}

/// The ticket alone: older versions know no more. Snapshots store the rest apart.
impl BorshSerialize for Rank {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.ticket.serialize(writer)
    }
}

impl BorshDeserialize for Rank {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        Ok(Self { at_ms: 0, ticket: Ticket::deserialize_reader(reader)? })
    }
}

impl LockTable {
    /// Time passes.
    pub(crate) fn grow_older(&mut self, by_ms: u64) {
        let by_ms = if mutant!(AgeStandsStill) { 0 } else { by_ms };
        self.age_ms = self.age_ms.saturating_add(by_ms);
    }

    /// The rank of a request that comes now with that head start.
    pub(crate) fn rank_now(&self, ticket: Ticket, head_start_ms: u32) -> Rank {
        // Members of an older release count no age.
        let has_age = self.applied_version >= TERMS_SINCE;
        let ahead = if mutant!(HeadStartIgnored) { 0 } else { u64::from(head_start_ms) };
        let left_ms = HEAD_START_MAX_MS.saturating_sub(ahead);
        Rank { at_ms: if has_age { self.age_ms.saturating_add(left_ms) } else { 0 }, ticket }
    }

    /// The rank with which a request comes now that has drawn no ticket yet: behind all others with its head start.
    pub(crate) fn rank_of_newcomer(&self, head_start_ms: u32) -> Rank {
        self.rank_now(Ticket::new(u64::MAX), head_start_ms)
    }

    /// Checks the head start of a new request.
    ///
    /// # Errors
    ///
    /// [`Rejection::HeadStartTooLong`], [`Rejection::HeadStartInScope`].
    pub(crate) fn check_head_start(
        &self,
        lock_set: &LockSet,
        terms: &Terms,
    ) -> Result<(), Rejection> {
        let Terms { head_start_ms, .. } = *terms;
        if head_start_ms == 0 {
            return Ok(());
        }
        if u64::from(head_start_ms) > HEAD_START_MAX_MS {
            return Err(Rejection::HeadStartTooLong { head_start_ms, max_ms: HEAD_START_MAX_MS });
        }
        // A request lies in one scope or in none.
        match lock_set.get(0) {
            Some((name, _)) if self.scopes.of(name).is_some() => {
                Err(Rejection::HeadStartInScope { lock: name.clone() })
            }
            Some(_) | None => Ok(()),
        }
    }
}
