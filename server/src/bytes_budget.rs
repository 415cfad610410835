//! A budget of bytes that many holders share: it bounds the bytes where a limit on the number of items
//! does not.
//!
//! [`BytesBudget`] only counts. Its owner decides what happens when it is full: the owner checks
//! ([`BytesBudget::is_full`]) before the bytes are taken, and refuses, or after, and ends what holds
//! most of them.
//!
//! # What all budgets of a process come to
//!
//! No budget stands above the others: the bound of a process is their sum. Each one has a setting and a
//! metric. A full one refuses, or ends a stream, by the name of its setting; the log is cut short, and a
//! follower that needs more gets a snapshot. The recent changes are bounded
//! by themselves (`server/src/session/watch/recent.rs`); of the others, pushes, changes and messages are counted here.
//!
//! | bytes | setting | default, MiB | metric |
//! |---|---|---|---|
//! | pushes to streams | `outbox_bytes_total` | 256 | `holdfast_outbox_bytes` |
//! | changes to watches | the same, once more | 256 | `holdfast_watch_bytes` |
//! | recent changes, for watches that go on | `watch_recent_bytes` | 32 | `holdfast_watch_recent_bytes` |
//! | messages that no session takes yet | `arriving_bytes_total` | 64 | `holdfast_arriving_bytes` |
//! | commands to be proposed | `max_pending_bytes` | 16 | `holdfast_raft_waiting_bytes` |
//! | the log | `max_log_bytes` | 256 | `holdfast_log_bytes` |
//! | the table, with its values | `max_table_bytes` | 1,024 | `holdfast_table_bytes` |
//!
//! The sum is 1,904 MiB. While a snapshot is written or installed, the table may be in memory twice: 2,928
//! MiB. One budget for all would be weaker: pushes that some clients leave unread would then refuse the
//! commands of others, and releases among them.
//!
//! What no budget counts is bounded by the number of its holders:
//!
//! - for each connection (`max_connections`) about 32 KiB, and at most 1,024 calls;
//! - for each call [`FREE`] bytes of a message under way, for each stream that is not open yet
//!   (`max_unopened_streams`) as many of its frames;
//! - for each call its message of at most 1 MiB while it is handled, and its answer of about 3 MiB at most
//!   until the client has read it;
//! - for each stream four messages, and for each watch one, that its connection has taken over: mostly of
//!   256 KiB at most.
//!
//! # Invariants
//!
//! - The used bytes are the sum over all [`Taken`]: each gives back what it still has when it is
//!   dropped, so nothing is lost with a task that ends early.
//! - A holder gives back no more than it has taken.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;

/// Bytes that each holder may take by [`Taken::try_add`] even when the budget is full: the content of one
/// HTTP/2 frame, and more than the library sends before its session is open.
pub(crate) const FREE: u64 = 16_384;

/// The budget.
#[derive(Debug)]
pub(crate) struct BytesBudget {
    limit: u64,
    /// The count itself, so that the metric always matches it.
    used: Gauge,
}

/// What one holder has taken of a budget; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<BytesBudget>,
    bytes: u64,
}

impl BytesBudget {
    /// A budget of `limit` bytes; `used` shows how much of it is used.
    pub(crate) fn new(limit: u64, used: Gauge) -> Arc<Self> {
        Arc::new(Self { limit, used })
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        u64::try_from(self.used.get()).unwrap_or_default()
    }

    /// Whether more is used than the limit allows.
    pub(crate) fn is_full(&self) -> bool {
        self.used() > self.limit
    }

    /// A new holder that has taken nothing.
    pub(crate) fn nothing(self: &Arc<Self>) -> Taken {
        Taken { budget: self.clone(), bytes: 0 }
    }
}

impl Taken {
    /// What this holder has.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The limit of its budget.
    pub(crate) fn limit(&self) -> u64 {
        self.budget.limit()
    }

    /// Takes `bytes` more if the budget has room for them, or if this holder then has at most [`FREE`].
    /// Returns whether it has taken them.
    pub(crate) fn try_add(&mut self, bytes: u64) -> bool {
        let has_room = self.budget.used().saturating_add(bytes) <= self.budget.limit();
        let is_taken = has_room || self.bytes.saturating_add(bytes) <= FREE;
        if is_taken {
            self.add(bytes);
        }
        is_taken
    }

    /// Takes `bytes` more, even beyond the limit: the budget's owner acts on that.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.budget.used.inc_by(signed(bytes));
    }

    /// Gives `bytes` back, or all there is.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.used.dec_by(signed(bytes));
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.give_back(self.bytes);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.clear();
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_used_until_it_is_given_back_or_dropped() {
        let shown = Gauge::default();
        let budget = BytesBudget::new(100, shown.clone());
        let (mut one, mut other) = (budget.nothing(), budget.nothing());

        one.add(60);
        other.add(40);
        assert_eq!((budget.used(), budget.is_full(), shown.get()), (100, false, 100));
        other.add(1);
        assert!(budget.is_full());
        other.give_back(1_000);
        assert_eq!((other.bytes(), budget.used()), (0, 60), "nobody gives back what others took");
        drop(one);
        assert_eq!(shown.get(), 0);
    }

    #[test]
    fn a_full_budget_refuses_all_but_the_first_bytes_of_each_holder() {
        let budget = BytesBudget::new(100_000, Gauge::default());
        let (mut one, mut other) = (budget.nothing(), budget.nothing());

        assert!(one.try_add(100_000), "all of it may be taken");
        assert!(!one.try_add(1));
        assert!(other.try_add(FREE));
        assert!(!other.try_add(1), "no more is free");
        assert_eq!((one.bytes(), other.bytes()), (100_000, FREE));
    }
}
