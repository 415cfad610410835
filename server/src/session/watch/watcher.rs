//! One watch, from its first page to its end.

use std::iter::Peekable;

use holdfast_core::{Caller, LockName, LockTable, LockView, LogIndex, Verb};
use holdfast_mutants::mutant;
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body;
use holdfast_proto::v1::{LockChange, LockInfo, Synced, WatchEvent, WatchResponse};
use prost::Message as _;
use tokio::sync::mpsc;

use super::super::answers::{self, HOLDERS_SHOWN, holder_of, scope_of, value_of};
use super::super::error::StreamError;
use super::super::{Hub, lead};
use super::news::{Length, Place};
use super::{Membership, Watches};

/// Events that travel in one message at most, and bytes that they take together at most; an event that
/// is larger, which none is, would travel alone. No message comes near a client's limit of 4 MiB.
const EVENTS_PER_MESSAGE: usize = 1_024;
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// A watch that was begun and waits to be served.
#[derive(Debug)]
pub(crate) struct Watcher {
    membership: Membership,
    shown: Shown,
    /// The position up to which the news were taken; set by the first page.
    read: Option<Place>,
}

impl Hub {
    /// Begins to watch the locks whose names begin with `prefix`, which is empty or a usable name.
    ///
    /// The watch reports all that was committed before this call. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StreamError::Unavailable`] if this node is not confirmed as leader by a quorum round, or
    /// stops; [`StreamError::Limit`] if too many watch; [`StreamError::Forbidden`] if `caller` may not read
    /// those locks.
    pub(crate) async fn watch(
        &self,
        prefix: &str,
        caller: &Caller,
    ) -> Result<Watcher, StreamError> {
        let confirmed = self.consensus().confirm().await;
        let confirmed = confirmed.map_err(|error| lead::unavailable(&error))?;
        let membership = self.watches().enter(prefix, confirmed.tenure)?;
        // After it has entered: a change of the rules from now on ends it.
        let mut allowed = Ok(());
        self.consensus().read(&mut |table, _| {
            allowed = table.rules().allows(caller, Verb::Read, [prefix]);
        });
        allowed.map_err(|missing| {
            self.note_missing(caller, &missing);
            StreamError::Forbidden(missing)
        })?;
        Ok(Watcher { membership, shown: Shown::default(), read: None })
    }

    /// Sends a watcher the state and then every change, until the other end is gone or the watch is
    /// ended.
    ///
    /// # Errors
    ///
    /// Why it was ended: [`StreamError::Limit`] if it was not read fast enough,
    /// [`StreamError::Unavailable`] if this node does not lead any more, or stops.
    pub(crate) async fn serve_watch(
        &self,
        mut watcher: Watcher,
        to: mpsc::Sender<WatchResponse>,
    ) -> Result<(), StreamError> {
        while watcher.shown != Shown::All {
            let Some((page, mark)) = watcher.read_page(self) else { break };
            while watcher.is_before(&mark) {
                let news = watcher.take_news(Some(&mark));
                watcher.send(&to, news).await?;
            }
            watcher.send(&to, page.events).await?;
            watcher.shown = page.shown;
        }
        loop {
            // News are taken before the check: a watcher that waits for news is not behind, however many
            // come at once.
            let news = watcher.take_news(None);
            watcher.check()?;
            if news.is_empty() {
                watcher.wait(&to).await?;
            } else {
                watcher.send(&to, news).await?;
            }
            if to.is_closed() {
                return Ok(());
            }
        }
    }
}

impl Watcher {
    /// Reads the next page, and how far the news had come then; `None` if the watch was ended.
    fn read_page(&mut self, hub: &Hub) -> Option<(Page, Place)> {
        let mut read = None;
        hub.consensus().read(&mut |table, index| read = self.page(hub, table, index));
        read
    }

    /// Called under the table's lock, under which news are published: the mark separates the news from
    /// what this page shows.
    fn page(&mut self, hub: &Hub, table: &LockTable, index: LogIndex) -> Option<(Page, Place)> {
        let mark = self.membership.end_of_news()?;
        self.read.get_or_insert_with(|| mark.clone());
        let now_ms = answers::now_ms(table, &*hub.runtime().clock);
        let (prefix, locks_max) =
            (&self.membership.prefix, self.membership.watches.page_locks.max(1));
        let page = read_page(table, index, now_ms, prefix, (&self.shown, locks_max));
        Some((page, mark))
    }

    fn is_before(&self, mark: &Place) -> bool {
        self.read.as_ref().is_some_and(|read| read.told().changes < mark.told().changes)
    }

    /// Takes about a message of the news, not beyond `mark`, and only changes of names that were shown.
    fn take_news(&mut self, mark: Option<&Place>) -> Vec<WatchEvent> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        let Some(read) = self.read.as_mut() else { return events };
        let end = mark.map_or(u64::MAX, |mark| mark.told().changes);
        while read.told().changes < end
            && events.len() < EVENTS_PER_MESSAGE
            && bytes < MESSAGE_BYTES_MAX as u64
        {
            let Some(changes) = read.advance() else { break };
            if mark.is_some() && mutant!(WatchGapBetweenPages) {
                continue;
            }
            for change in changes.iter().filter(|change| self.shown.covers(&change.name)) {
                bytes += change.bytes();
                events.push(change.event.clone());
            }
        }
        events
    }

    /// Hands events over to the transport, in as many messages as they need.
    async fn send(
        &mut self,
        to: &mpsc::Sender<WatchResponse>,
        events: Vec<WatchEvent>,
    ) -> Result<(), StreamError> {
        let mut events = events.into_iter().peekable();
        while events.peek().is_some() {
            let room = holdfast_runtime::select! {
                room = to.reserve() => room,
                over = self.over() => return Err(over),
            };
            // The other end is gone: the caller notices it.
            let Ok(room) = room else { return Ok(()) };
            let message = message(&mut events);
            self.membership.watches.metrics.watch_events.inc_by(message.events.len() as u64);
            room.send(message);
        }
        Ok(())
    }

    /// Waits for news, or for the other end to be gone.
    async fn wait(&mut self, to: &mpsc::Sender<WatchResponse>) -> Result<(), StreamError> {
        holdfast_runtime::select! {
            () = to.closed() => Ok(()),
            rung = self.membership.bell.changed() => rung.map_err(|_| gone()),
        }
    }

    /// Waits until the watch is over, and returns why.
    async fn over(&mut self) -> StreamError {
        loop {
            if let Err(over) = self.check() {
                return over;
            }
            if self.membership.bell.changed().await.is_err() {
                return gone();
            }
        }
    }

    /// Whether the watch goes on (I27).
    fn check(&mut self) -> Result<(), StreamError> {
        let told = self.membership.bell.borrow_and_update();
        if let Some(end) = &told.end {
            return Err(end.clone());
        }
        let published = told.published;
        drop(told);
        let read = self.read.as_ref().map_or(published, Place::told);
        let Some(limit) = self.membership.watches.passed_by(published.beyond(read)) else {
            return Ok(());
        };
        self.membership.watches.metrics.watches_cut.inc();
        tracing::info!(prefix = &*self.membership.prefix, "a watch was not read, and is cut");
        Err(limit)
    }
}

impl Watches {
    /// The limit that a watch this far behind has exceeded. All errors name `watch_backlog`: by that
    /// clients of 0.1 know that they were too slow.
    fn passed_by(&self, behind: Length) -> Option<StreamError> {
        if behind.changes > self.backlog {
            let message = "the watch was not read fast enough; begin it anew";
            return Some(StreamError::limit("watch_backlog", self.backlog, message));
        }
        if behind.bytes > self.backlog_bytes {
            let message = "the watch was not read fast enough (watch_backlog); begin it anew";
            return Some(StreamError::limit("outbox_bytes", self.backlog_bytes, message));
        }
        let message = "the watches of this node were not read fast enough (watch_backlog), this one \
                       among the slowest; begin it anew";
        let limit = StreamError::limit("outbox_bytes_total", self.budget.limit(), message);
        (self.budget.is_full() && behind.bytes > self.share()).then_some(limit)
    }
}

/// The next message of events: at least one, if there is one.
fn message(events: &mut Peekable<std::vec::IntoIter<WatchEvent>>) -> WatchResponse {
    let mut message = WatchResponse::default();
    let mut bytes = 0;
    while message.events.len() < EVENTS_PER_MESSAGE {
        let Some(next) = events.peek().map(WatchEvent::encoded_len) else { break };
        if bytes + next > MESSAGE_BYTES_MAX && !message.events.is_empty() {
            break;
        }
        bytes += next;
        message.events.extend(events.next());
    }
    message
}

/// The group is gone, and left no reason.
fn gone() -> StreamError {
    StreamError::unavailable("the watch was ended; begin it anew", None)
}

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
    pub(super) events: Vec<WatchEvent>,
    /// What the watcher has seen once it has this page.
    pub(super) shown: Shown,
}

/// Reads the page of at most `locks_max` locks after `shown`. The last one ends with `Synced`. `now_ms`
/// is the time for people.
fn read_page(
    table: &LockTable,
    index: LogIndex,
    now_ms: u64,
    prefix: &str,
    (shown, locks_max): (&Shown, usize),
) -> Page {
    let after = match shown {
        Shown::Nothing => None,
        Shown::UpTo(last) => Some(last),
        Shown::All => return Page { events: Vec::new(), shown: Shown::All },
    };
    let mut page = Page { events: Vec::new(), shown: shown.clone() };
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
    })));
    events.extend(holders.map(|holder| {
        let what = Some(What::Granted(holder));
        event(Body::Change(LockChange { name: name(), waiting: lock.waiting, what }))
    }));
}
