//! One node: what Raft keeps on disk, and what a leader knows besides.

use std::cmp::Ordering;

/// Longest log there is room for.
pub(crate) const LOG_MAX: usize = 5;

/// An entry of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// The term it was proposed in.
    pub(crate) term: u8,
    /// The tenure named by an `ExpireSession` of X; 0: no expiry, but a leader's first entry.
    pub(crate) heard_in: u8,
}

impl Entry {
    pub(crate) fn expires(self) -> bool {
        self.heard_in != 0
    }
}

/// The log of a node; what lies above `len` is blank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Log {
    len: u8,
    entries: [Entry; LOG_MAX],
}

impl Log {
    pub(crate) fn len(&self) -> usize {
        self.len.into()
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries[self.len()] = entry;
        self.len += 1;
    }

    /// The first `len` entries.
    pub(crate) fn upto(&self, len: u8) -> &[Entry] {
        &self.entries[..len.into()]
    }

    /// Those after the first `len`.
    pub(crate) fn after(&self, len: u8) -> &[Entry] {
        &self.entries[len.into()..self.len()]
    }

    pub(crate) fn all(&self) -> &[Entry] {
        self.upto(self.len)
    }

    pub(crate) fn last_term(&self) -> u8 {
        self.all().last().map_or(0, |entry| entry.term)
    }

    /// Raft's order of logs: a node that gets votes has one that is not behind.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        (self.last_term(), self.len).cmp(&(other.last_term(), other.len))
    }
}

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    // On disk.
    pub(crate) term: u8,
    pub(crate) voted: bool,
    pub(crate) log: Log,
    // In memory, and only while it leads, if not said otherwise.
    pub(crate) leads: bool,
    /// How much of its log another node has, too: with itself, a quorum.
    pub(crate) matched: u8,
    pub(crate) commit: u8,
    pub(crate) applied: u8,
    /// Ticks until X's lease is over here; `None` before the tenure's own entry was applied.
    pub(crate) deadline: Option<u8>,
    /// The tenure in which that deadline was found passed; the expiry is not proposed yet. A
    /// process may stop between the two, and go on when it leads again.
    pub(crate) due: Option<u8>,
}

impl Node {
    /// It learns of a term above its own.
    pub(crate) fn enter(&mut self, term: u8, keeps_deadlines: bool) {
        self.term = term;
        self.voted = false;
        self.follow(keeps_deadlines);
    }

    pub(crate) fn follow(&mut self, keeps_deadlines: bool) {
        let deadline = self.deadline.filter(|_| keeps_deadlines);
        *self = Self { due: self.due, deadline, ..self.stopped() };
    }

    /// What is on disk.
    pub(crate) fn stopped(&self) -> Self {
        Self { term: self.term, voted: self.voted, log: self.log, ..Self::default() }
    }

    /// Whether an entry of its own tenure is among the first `len`.
    pub(crate) fn has_own(&self, len: u8) -> bool {
        self.log.upto(len).iter().any(|entry| entry.term == self.term)
    }

    /// Whether an expiry of this tenure is under way: found to be due, or proposed and its fate not
    /// known. Expiries of others it knows once it has applied its own first entry.
    pub(crate) fn is_expiring(&self) -> bool {
        let own = |entry: &Entry| entry.expires() && entry.term == self.term;
        self.due == Some(self.term) || self.log.after(self.applied).iter().any(own)
    }
}
