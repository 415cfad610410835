//! The changes below one prefix, as a chain: written once, read by every watcher of that prefix at its
//! own pace.
//!
//! A link is kept alive by the watchers that have not read it yet. So what all have read takes no
//! memory, and a watcher that does not read delays no other. Each watcher bounds how far it may fall
//! behind (`watch_backlog`).

use std::sync::{Arc, OnceLock};

use holdfast_core::LogIndex;

use super::change::Change;
use crate::bytes_budget::{BytesBudget, Taken};

/// The writing end of a chain.
#[derive(Debug)]
pub(super) struct News {
    last: Place,
    budget: Arc<BytesBudget>,
}

/// A position in a chain: all changes before it were read, those behind it are new.
#[derive(Clone, Debug)]
pub(super) struct Place(Arc<Link>);

/// A stretch of a chain: in changes and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) changes: u64,
    pub(super) bytes: u64,
}

impl Length {
    /// How much longer it is than `other`.
    pub(super) fn beyond(self, other: Self) -> Self {
        Self {
            changes: self.changes.saturating_sub(other.changes),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    fn and(self, changes: &[Arc<Change>]) -> Self {
        Self {
            changes: self.changes.saturating_add(changes.len() as u64),
            bytes: self.bytes.saturating_add(bytes_of(changes)),
        }
    }
}

fn bytes_of(changes: &[Arc<Change>]) -> u64 {
    changes.iter().map(|change| change.bytes()).fold(0, u64::saturating_add)
}

/// The changes of one log entry.
#[derive(Debug)]
struct Link {
    index: LogIndex,
    changes: Vec<Arc<Change>>,
    /// The length of the chain up to here.
    told: Length,
    /// Its share of the budget, until no watcher of the prefix has to read it any more.
    _taken: Taken,
    next: OnceLock<Arc<Link>>,
}

impl News {
    /// An empty chain, whose links count towards `budget`.
    pub(super) fn new(budget: Arc<BytesBudget>) -> Self {
        let first = Link::new(LogIndex::new(0), Vec::new(), Length::default(), budget.nothing());
        Self { last: Place(Arc::new(first)), budget }
    }

    /// Appends the changes of one log entry, in order.
    pub(super) fn publish(&mut self, index: LogIndex, changes: Vec<Arc<Change>>) {
        let told = self.last.told().and(&changes);
        let mut taken = self.budget.nothing();
        taken.add(bytes_of(&changes));
        let link = Arc::new(Link::new(index, changes, told, taken));
        // This is the only writer: the cell is empty.
        let _ = self.last.0.next.set(link.clone());
        self.last = Place(link);
    }

    /// The position behind everything published so far.
    pub(super) fn end(&self) -> Place {
        self.last.clone()
    }
}

impl Place {
    /// The length of the chain before this position.
    pub(super) fn told(&self) -> Length {
        self.0.told
    }

    /// Takes one log entry's changes and moves behind them; `None` if there are none yet.
    pub(super) fn advance(&mut self) -> Option<(LogIndex, &[Arc<Change>])> {
        let next = self.0.next.get()?.clone();
        self.0 = next;
        Some((self.0.index, &self.0.changes))
    }
}

impl Link {
    fn new(index: LogIndex, changes: Vec<Arc<Change>>, told: Length, taken: Taken) -> Self {
        Self { index, changes, told, _taken: taken, next: OnceLock::new() }
    }
}

impl Drop for Link {
    /// A chain without readers is dropped link by link in a loop: if each link dropped the next, the
    /// recursion would use up the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut link) = next.and_then(Arc::into_inner) {
            next = link.next.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::super::change::made::change;
    use super::*;

    fn chain() -> (News, Gauge) {
        let used = Gauge::default();
        (News::new(BytesBudget::new(0, used.clone())), used)
    }

    #[test]
    fn two_readers_read_the_same_at_their_own_pace() {
        let (mut news, _) = chain();
        let mut early = news.end();
        news.publish(LogIndex::new(4), vec![change(4, "a"), change(4, "b")]);
        let mut late = news.end();
        news.publish(LogIndex::new(6), vec![change(6, "c")]);

        let changes = |place: &Place| place.told().changes;
        assert_eq!((changes(&early), changes(&late), changes(&news.end())), (0, 2, 3));
        assert_eq!(early.advance().map(|(index, all)| (index.get(), all.len())), Some((4, 2)));
        for reader in [&mut early, &mut late] {
            let (index, changes) = reader.advance().expect("there is one more");
            assert_eq!((index.get(), changes[0].name.as_str()), (6, "c"));
            assert!(reader.advance().is_none());
        }
    }

    #[test]
    fn what_everybody_has_read_is_gone_and_a_long_chain_goes_without_a_deep_stack() {
        let (mut news, used) = chain();
        let reader = news.end();
        let first = change(1, "a");
        news.publish(LogIndex::new(1), vec![first.clone()]);
        for index in 2..200_000 {
            news.publish(LogIndex::new(index), vec![]);
        }
        assert_eq!(Arc::strong_count(&first), 2, "it is still to be read");
        assert_eq!(u64::try_from(used.get()), Ok(first.bytes()));

        drop(reader);
        assert_eq!(Arc::strong_count(&first), 1, "nobody will read it");
        assert_eq!(used.get(), 0);
    }
}
