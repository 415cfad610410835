//! The pages of the state that a watch begins with.

use holdfast_core::{LockName, LockTable, LockView, LogIndex};
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body;
use holdfast_proto::v1::{LockChange, LockInfo, Synced, WatchEvent};

use super::super::answers::{HOLDERS_SHOWN, freeze_of, holder_of, limit_of, scope_of, value_of};

/// A page ends with the lock that brings its events to this many, or its values to this many bytes: that
/// bounds how long the table is locked for one page, except for a lock with more holders, all of which
/// are sent as of one index.
const EVENTS_ENOUGH: usize = 256;
const VALUE_BYTES_ENOUGH: usize = 512 << 10;

/// Which locks a watcher was shown: those up to a name, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Shown {
    /// No page was read yet.
    #[default]
    Nothing,
    /// The last page ended with this lock.
    UpTo(LockName),
    /// The last page was the last.
    All,
}

impl Shown {
    /// Whether a page has shown this name: then every later change of it is news.
    pub(super) fn covers(&self, name: &LockName) -> bool {
        match self {
            Self::Nothing => false,
            Self::UpTo(last) => name <= last,
            Self::All => true,
        }
    }
}

/// A page: the locks after those shown before, as of one index.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) index: LogIndex,
    pub(super) events: Vec<WatchEvent>,
    /// What the watcher has seen once it has this page.
    pub(super) shown: Shown,
}

/// Reads the page of at most `locks_max` locks after `shown`. The last one ends with `Synced`. `now_ms`
/// is the time for people.
pub(super) fn read_page(
    table: &LockTable,
    index: LogIndex,
    now_ms: u64,
    prefix: &str,
    (shown, locks_max): (&Shown, usize),
) -> Page {
    let after = match shown {
        Shown::Nothing => None,
        Shown::UpTo(last) => Some(last),
        Shown::All => return Page { index, events: Vec::new(), shown: Shown::All },
    };
    let mut page = Page { index, events: Vec::new(), shown: shown.clone() };
    let mut value_bytes = 0;
    for (lock, count) in table.locks_after(prefix, after, locks_max).zip(1..) {
        add(&mut page.events, &lock, index, now_ms);
        value_bytes += lock.value.map_or(0, |value| value.bytes.len());
        let is_full = count == locks_max
            || page.events.len() >= EVENTS_ENOUGH
            || value_bytes >= VALUE_BYTES_ENOUGH;
        if is_full {
            page.shown = Shown::UpTo(lock.name.clone());
            return page;
        }
    }
    page.shown = Shown::All;
    page.events.push(WatchEvent { index: index.get(), body: Some(Body::Synced(Synced {})) });
    page
}

/// A lock, with its first holders; each further one is an event of its own.
fn add(events: &mut Vec<WatchEvent>, lock: &LockView<'_>, index: LogIndex, now_ms: u64) {
    let name = || lock.name.as_str().to_owned();
    let event = |body| WatchEvent { index: index.get(), body: Some(body) };
    let mut holders = lock.holders().map(|holder| holder_of(&holder, now_ms));
    events.push(event(Body::Lock(LockInfo {
        name: name(),
        holders: holders.by_ref().take(HOLDERS_SHOWN).collect(),
        held_by: lock.held_by,
        waiting: lock.waiting,
        queue: Vec::new(),
        value: lock.value.map(value_of),
        has_value: lock.value.is_some(),
        scope: scope_of(lock),
        limit: limit_of(lock),
        frozen: lock.frozen().map(|(prefix, freeze)| freeze_of(prefix, freeze, now_ms)),
        // No change says that it is open again.
        closed: None,
    })));
    events.extend(holders.map(|holder| {
        let what = Some(What::Granted(holder));
        event(Body::Change(LockChange { name: name(), waiting: lock.waiting, what }))
    }));
}
