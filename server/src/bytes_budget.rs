//! A budget of bytes that many holders share: it bounds the bytes where a limit on the number of items
//! does not.
//!
//! [`BytesBudget`] only counts. Its owner decides what happens when it is full: the owner checks
//! ([`BytesBudget::is_full`]) before the bytes are taken, and refuses, or after, and ends what holds
//! most of them.
//!
//! # Invariants
//!
//! - The used bytes are the sum over all [`Taken`]: each gives back what it still has when it is
//!   dropped, so nothing is lost with a task that ends early.
//! - A holder gives back no more than it has taken.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;

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
}
