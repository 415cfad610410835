//! All outboxes of this node, under one budget of bytes.
//!
//! Each outbox has bounds of its own. Together they have `outbox_bytes_total`: many unread streams could
//! otherwise hold many times what one may.
//!
//! # Which stream ends when the budget is full
//!
//! The one with the largest outbox, then the next, until a quarter of the budget is free again: not the
//! stream whose frame happened to be one too many, since its client may read well. Let *n* be the number
//! of outboxes that hold anything. When an outbox with *s* bytes ends, none that is left holds more, and
//! they hold more than ¾ of the budget together, so s > ¾ · budget / n: an outbox within that share
//! never ends because of others. And since each pass frees a quarter of the budget, the pass over all
//! outboxes is paid for by as many bytes pushed.
//!
//! # Invariants
//!
//! - All outboxes together hold at most the budget, and the one frame that was pushed last.
//! - An outbox that holds at most ¾ · budget / n is never ended here.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::outbox::{Bounds, Outbox};
use crate::bytes_budget::BytesBudget;

/// All outboxes of this node.
#[derive(Debug)]
pub(super) struct Outboxes {
    bounds: Bounds,
    budget: Arc<BytesBudget>,
    /// A lock of its own, under which no outbox is locked or dropped.
    all: Mutex<All>,
}

/// The outboxes by number, in the order of their opening.
#[derive(Debug, Default)]
struct All {
    last: u64,
    outboxes: BTreeMap<u64, Weak<Outbox>>,
}

impl Outboxes {
    /// No outboxes yet; each will have these bounds.
    pub(super) fn new(bounds: Bounds, budget: Arc<BytesBudget>) -> Arc<Self> {
        Arc::new(Self { bounds, budget, all: Mutex::default() })
    }

    /// An outbox for a new stream.
    pub(super) fn open(self: &Arc<Self>) -> Arc<Outbox> {
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let outbox = Outbox::new(self.bounds, self.budget.nothing(), self.clone(), number);
        let outbox = Arc::new(outbox);
        all.outboxes.insert(number, Arc::downgrade(&outbox));
        outbox
    }

    /// An outbox is gone.
    pub(super) fn forget(&self, number: u64) {
        self.lock().outboxes.remove(&number);
    }

    /// Ends the largest outboxes if all together hold more than the budget, until a quarter of it is
    /// free. Returns how many were ended. Call it after each push, without any outbox locked.
    pub(super) fn make_room(&self) -> u64 {
        if !self.budget.is_full() {
            return 0;
        }
        let enough = self.budget.limit() / 4 * 3;
        let mut ended = 0;
        for (_, outbox) in self.by_size() {
            if self.budget.used() <= enough {
                break;
            }
            outbox.give_way(self.budget.limit());
            ended += 1;
        }
        ended
    }

    /// The outboxes that hold anything, the largest first.
    fn by_size(&self) -> Vec<(u64, Arc<Outbox>)> {
        let all: Vec<Arc<Outbox>> =
            self.lock().outboxes.values().filter_map(Weak::upgrade).collect();
        let sized = all.into_iter().map(|outbox| (outbox.bytes(), outbox));
        let mut filled: Vec<_> = sized.filter(|(bytes, _)| *bytes > 0).collect();
        filled.sort_by_key(|(bytes, _)| Reverse(*bytes));
        filled
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
