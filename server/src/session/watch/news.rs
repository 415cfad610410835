//! The changes below one prefix, as a chain: written once, read by every watcher of that prefix at its
//! own pace.
//!
//! A link is kept alive by the watchers that have not read it yet. So what all have read takes no
//! memory, and a watcher that does not read delays no other. Each watcher bounds how far it may fall
//! behind (`watch_backlog`).

use std::sync::{Arc, OnceLock};

use holdfast_core::{
    Event, FencingToken, Item, LockName, LockTable, LogIndex, Mode, RequestId, SessionId,
};
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body;
use holdfast_proto::v1::{HoldLost, Holder, LockChange, ValueChanged, WaiterInfo, WatchEvent};
use prost::Message as _;

use super::super::answers::{self, mode_of, value_of};
use crate::bytes_budget::{BytesBudget, Taken};

/// One change of one lock: made once, shared by all watchers that it is sent to.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) name: LockName,
    pub(super) event: WatchEvent,
    /// Its share of the budget, until no watcher has to read it any more.
    taken: Taken,
}

impl Change {
    /// A change that counts towards `budget` as long as it is kept.
    pub(super) fn new(name: LockName, event: WatchEvent, budget: &Arc<BytesBudget>) -> Self {
        let mut taken = budget.nothing();
        taken.add((event.encoded_len() + size_of::<Self>()) as u64);
        Self { name, event, taken }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.taken.bytes()
    }
}

/// The writing end of a chain.
#[derive(Debug)]
pub(super) struct News {
    last: Place,
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
        let bytes =
            changes.iter().map(|change| change.bytes()).fold(self.bytes, u64::saturating_add);
        Self { changes: self.changes.saturating_add(changes.len() as u64), bytes }
    }
}

/// The changes of one log entry.
#[derive(Debug)]
struct Link {
    changes: Vec<Arc<Change>>,
    /// The length of the chain up to here.
    told: Length,
    next: OnceLock<Arc<Link>>,
}

impl News {
    pub(super) fn new() -> Self {
        Self { last: Place(Arc::new(Link::new(Vec::new(), Length::default()))) }
    }

    /// Appends the changes of one log entry, in order.
    pub(super) fn publish(&mut self, changes: Vec<Arc<Change>>) {
        let told = self.last.told().and(&changes);
        let link = Arc::new(Link::new(changes, told));
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
    pub(super) fn advance(&mut self) -> Option<&[Arc<Change>]> {
        let next = self.0.next.get()?.clone();
        self.0 = next;
        Some(&self.0.changes)
    }
}

impl Link {
    fn new(changes: Vec<Arc<Change>>, told: Length) -> Self {
        Self { changes, told, next: OnceLock::new() }
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

/// Makes a change; called only if a watcher wants it.
pub(super) type Make<'a> = &'a dyn Fn() -> WatchEvent;

/// Calls `tell` with each lock that `event` changed, in the order of their names: an event of a request
/// is one change for each of its names. `table` is the state as of `index`, after all changes of this
/// entry of the log.
pub(super) fn each_change(
    event: &Event,
    index: LogIndex,
    table: &LockTable,
    tell: &mut dyn FnMut(&LockName, Make<'_>),
) {
    let change = |lock: &LockName, what| {
        let waiting = table.lock(lock).map_or(0, |lock| lock.waiting);
        let name = lock.as_str().to_owned();
        let change = LockChange { name, waiting, what: Some(what) };
        WatchEvent { index: index.get(), body: Some(Body::Change(change)) }
    };
    let mut each = |items: &[Item], what: &dyn Fn(Mode) -> What| {
        for item in items {
            tell(&item.lock, &|| change(&item.lock, what(item.mode)));
        }
    };
    match event {
        Event::Queued { session, request, items, .. } => {
            each(items, &|mode| What::Queued(waiter(table, (*session, *request), items, mode)));
        }
        Event::Left { session, request, items } => {
            each(items, &|mode| What::Left(waiter(table, (*session, *request), items, mode)));
        }
        Event::Granted { session, items, token, .. } => {
            each(items, &|mode| What::Granted(holder(table, *session, *token, mode)));
        }
        Event::Released { session, items, token, .. } => {
            each(items, &|mode| What::Released(holder(table, *session, *token, mode)));
        }
        Event::Lost { session, items, token, cause, .. } => each(items, &|mode| {
            let holder = Some(holder(table, *session, *token, mode));
            What::Lost(HoldLost { holder, reason: answers::lost_reason(*cause).into() })
        }),
        Event::ValueChanged { lock, value } => {
            let changed = || ValueChanged { value: value.as_ref().map(value_of) };
            tell(lock, &|| change(lock, What::ValueChanged(changed())));
        }
        // No request comes into or out of a lock.
        Event::SessionOpened { .. }
        | Event::SessionEnded { .. }
        | Event::Denied { .. }
        | Event::Contended { .. }
        | Event::ScopeChanged { .. }
        | Event::RulesChanged
        | Event::SessionRevoked { .. }
        | Event::HoldClosed { .. } => {}
    }
}

fn waiter(
    table: &LockTable,
    (session, request): (SessionId, RequestId),
    items: &[Item],
    mode: Mode,
) -> WaiterInfo {
    let Shown { label, imported, identity } = Shown::of(table, session);
    WaiterInfo {
        session_id: session.get(),
        label,
        request_id: request.get(),
        waiting_ms: 0,
        mode: mode_of(mode).into(),
        names: u32::try_from(items.len()).unwrap_or(u32::MAX),
        imported,
        identity,
    }
}

fn holder(table: &LockTable, session: SessionId, token: FencingToken, mode: Mode) -> Holder {
    let Shown { label, imported, identity } = Shown::of(table, session);
    Holder {
        session_id: session.get(),
        label,
        token: token.get(),
        held_ms: 0,
        mode: mode_of(mode).into(),
        imported,
        identity,
        ending: false,
    }
}

/// What is shown of a session with what it holds or waits for; nothing of one that has ended, of which
/// nothing is kept.
#[derive(Default)]
struct Shown {
    label: String,
    imported: bool,
    identity: String,
}

impl Shown {
    fn of(table: &LockTable, session: SessionId) -> Self {
        let found = table.session(session).map(|found| Self {
            label: found.label.as_str().to_owned(),
            imported: found.imported,
            identity: answers::identity_of(found.caller),
        });
        found.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str) -> Arc<Change> {
        let name = LockName::parse(name).expect("it is a name");
        let budget = BytesBudget::new(0, prometheus_client::metrics::gauge::Gauge::default());
        Arc::new(Change::new(name, WatchEvent::default(), &budget))
    }

    #[test]
    fn two_readers_read_the_same_at_their_own_pace() {
        let mut news = News::new();
        let mut early = news.end();
        news.publish(vec![change("a"), change("b")]);
        let mut late = news.end();
        news.publish(vec![change("c")]);

        let changes = |place: &Place| place.told().changes;
        assert_eq!((changes(&early), changes(&late), changes(&news.end())), (0, 2, 3));
        assert_eq!(early.advance().map(<[_]>::len), Some(2));
        for reader in [&mut early, &mut late] {
            assert_eq!(reader.advance().map(|changes| changes[0].name.as_str()), Some("c"));
            assert!(reader.advance().is_none());
        }
    }

    #[test]
    fn what_everybody_has_read_is_gone_and_a_long_chain_goes_without_a_deep_stack() {
        let mut news = News::new();
        let reader = news.end();
        let first = change("a");
        news.publish(vec![first.clone()]);
        for _ in 0..200_000 {
            news.publish(vec![]);
        }
        assert_eq!(Arc::strong_count(&first), 2, "it is still to be read");

        drop(reader);
        assert_eq!(Arc::strong_count(&first), 1, "nobody will read it");
    }
}
