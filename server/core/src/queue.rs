//! The queue of a lock: first in, first out, by ticket (I9).

use std::collections::BTreeMap;

use crate::ids::{RequestId, SessionId, Ticket};

/// Who waits: a request of a session.
pub(crate) type Waiter = (SessionId, RequestId);

/// The requests that wait for one lock, in ticket order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    waiters: BTreeMap<Ticket, Waiter>,
}

impl Queue {
    /// Puts a waiter in at its ticket; `false` if the ticket is taken, and nothing changes.
    pub(crate) fn insert(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        if self.waiters.contains_key(&ticket) {
            return false;
        }
        self.waiters.insert(ticket, waiter);
        true
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.waiters.remove(&ticket)
    }

    /// Takes out who is next: the smallest ticket.
    pub(crate) fn pop_first(&mut self) -> Option<Waiter> {
        self.waiters.pop_first().map(|(_, waiter)| waiter)
    }

    /// How many wait with a smaller ticket.
    pub(crate) fn place(&self, ticket: Ticket) -> u64 {
        self.waiters.range(..ticket).count() as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.waiters.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(crate) fn get(&self, ticket: Ticket) -> Option<Waiter> {
        self.waiters.get(&ticket).copied()
    }

    /// From the next in line to the last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, Waiter)> {
        self.waiters.iter().map(|(&ticket, &waiter)| (ticket, waiter))
    }
}
