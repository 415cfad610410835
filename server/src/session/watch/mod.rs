//! Watching: what happens to the locks below a prefix, first the state, then every change.
//!
//! # No gap, no doubling
//!
//! A watcher receives pages of the state, in the order of names, each read under the table's lock as of
//! an index of its own, and in between the *news*: the changes of the locks that its pages have shown.
//!
//! - News are written under the table's lock too, in the order of the log. So for every page and every
//!   log entry it is certain which came first, and the page notes how far the news had come when it was
//!   read: its *mark*.
//! - News up to the mark are sent before the page, but only those of names that earlier pages have
//!   shown. What is left out concerns later names, and happened before this page was read: this page, or
//!   one after it, shows its effect.
//! - News behind the mark happened after the page was read, so the page does not show their effect, and
//!   they are sent if it has shown their name.
//!
//! So each change is either in the page that shows its name, or sent after it, and never both. `Synced`
//! ends the last page and has its index; from there on the watcher has the whole state.
//!
//! Pages and news are states and events of committed entries only (I4, I23). The first page is read
//! after a quorum round begun after the call, so it holds all that was committed before (I18). While
//! there are watchers, a round every [`ROUND_EVERY`] makes sure that a leader cut off from its cluster
//! does not leave them with a past that looks like the present.
//!
//! # Going on
//!
//! A watch that has its state is told how far it has come: up to the *complete index* it was sent everything. A
//! later watch of the same prefix, at this node or another, goes on from there if the [`recent`] changes reach back
//! that far: it is sent those after that index, and then the news. It takes the last part of the recent changes and
//! its place in the news under one lock, under which both are written. So here too no change is left out, and none
//! is sent twice. If they do not reach back, the call is refused as `COMPACTED`, and the client begins
//! with the state.
//!
//! # Admission
//!
//! At most `watch_states` watchers are shown the state, or what they missed, at the same time; the others wait in line,
//! and nothing is kept for those that were shown nothing yet. A client that does not take what it is sent within
//! [`PATIENCE`](watcher::PATIENCE) gives its place to the next.
//!
//! # Rights
//!
//! Whoever watches has to have the right to read when the watch begins. A change of the rules ends every
//! watch (DESIGN §14): clients go on or begin anew, and are asked again. Who may read a name now may also see what
//! the recent changes have of it.
//!
//! # Bounds
//!
//! A watcher may be `watch_backlog` changes behind the news, besides what the transport has taken over
//! and a page; then it ends its own watch: the thread that applies the log never waits for a watcher
//! (I27). A change is made once for all watchers, written once per prefix, and encoded once, by the first watcher
//! that sends it.

mod change;
mod news;
mod page;
mod recent;
mod watcher;

#[cfg(test)]
pub(super) use watcher::PATIENCE;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use change::{Change, Make};
use holdfast_core::{Event, LockName, LockTable, LogIndex, Tenure};
use holdfast_mutants::mutant;
use holdfast_runtime::Runtime;
use news::{Length, News, Place};
use recent::{Compacted, Part, Position, RecentChanges};
use tokio::sync::{Notify, Semaphore, watch};

use super::error::StreamError;
use super::lines::Lines;
use super::metrics::SessionMetrics;
use super::settings::SessionSettings;
use crate::bytes_budget::BytesBudget;

/// How often a leader with watchers confirms that it still leads.
pub(super) const ROUND_EVERY: Duration = Duration::from_secs(5);
/// How long watches go on without a round that confirms it. One round may fail for many reasons, and watches that
/// all begin again cost more than a present that is some seconds old.
pub(super) const UNCONFIRMED_MAX: Duration = Duration::from_secs(15);

/// All watches of this node, and the way of a change to them.
///
/// One mutex, held for short; taken under the table's lock, never the other way round.
///
/// # Invariants
///
/// - Watches are served only within a tenure; all of them end with it.
/// - There is a group for a prefix exactly while it has a watcher; an event looks only at the prefixes
///   of the names it changed.
/// - While there is no watcher, a change is made and kept for a while, and costs no more.
#[derive(Debug)]
pub(super) struct Watches {
    runtime: Runtime,
    backlog: u64,
    /// `outbox_bytes`.
    backlog_bytes: u64,
    /// `outbox_bytes_total`, for the changes that still have to be sent to a watcher.
    budget: Arc<BytesBudget>,
    /// `watch_page_locks`.
    page_locks: usize,
    /// `max_watches`.
    limit: usize,
    metrics: SessionMetrics,
    lines: Arc<Lines>,
    /// The number of watchers.
    open: AtomicUsize,
    /// `watch_states`: a permit for each watcher that is shown the state, or what it missed.
    slots: Arc<Semaphore>,
    keeps_recent: bool,
    state: Mutex<State>,
    /// A watcher has left.
    left: Notify,
}

#[derive(Debug)]
struct State {
    recent: RecentChanges,
    /// The tenure in which watches are served.
    tenure: Option<Tenure>,
    groups: BTreeMap<Arc<str>, Group>,
    /// How many groups have a prefix of this length, bytes.
    lengths: BTreeMap<usize, usize>,
    last_group: u64,
    /// Set once, when the node stops.
    stopped: Option<StreamError>,
}

/// The watchers of one prefix.
#[derive(Debug)]
struct Group {
    /// Distinguishes the group from earlier ones of the same prefix.
    id: u64,
    watchers: usize,
    news: News,
    bell: watch::Sender<Told>,
    /// Why its watches are over; apart from the bell, which would wake those who wait in line at each change.
    over: watch::Sender<Option<StreamError>>,
    /// The changes of the entry that is being applied.
    fresh: Vec<Arc<Change>>,
}

/// The state that wakes a watcher.
#[derive(Clone, Debug)]
struct Told {
    /// The length of what was published below its prefix.
    published: Length,
    /// A watcher that was sent all of that was sent everything up to this entry.
    marked: LogIndex,
}

/// A watcher's membership in its group; it ends when this is dropped.
#[derive(Debug)]
struct Membership {
    watches: Arc<Watches>,
    prefix: Arc<str>,
    bell: watch::Receiver<Told>,
    over: watch::Receiver<Option<StreamError>>,
    group: u64,
}

impl Watches {
    pub(super) fn new(
        settings: &SessionSettings,
        metrics: SessionMetrics,
        runtime: Runtime,
        lines: Arc<Lines>,
    ) -> Self {
        let bounds =
            Length { changes: settings.watch_recent_changes, bytes: settings.watch_recent_bytes };
        let recent = RecentChanges::new(bounds, metrics.watch_recent_bytes.clone());
        Self {
            runtime,
            backlog: settings.watch_backlog as u64,
            backlog_bytes: settings.outbox_bytes,
            budget: BytesBudget::new(settings.outbox_bytes_total, metrics.watch_bytes.clone()),
            page_locks: settings.watch_page_locks,
            limit: settings.max_watches,
            metrics,
            lines,
            open: AtomicUsize::new(0),
            slots: Arc::new(Semaphore::new(settings.watch_states.max(1))),
            keeps_recent: recent.is_on(),
            state: Mutex::new(State::new(recent)),
            left: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a watcher.
    pub(super) fn any(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Watches may begin in this tenure from now on.
    pub(super) fn begin_tenure(&self, tenure: Tenure) {
        self.lock().tenure = Some(tenure);
    }

    /// Ends every watch, and serves none until the next tenure.
    pub(super) fn end_tenure(&self, leader: Option<&str>) {
        self.lock().tenure = None;
        self.end_all("this node does not lead any more; watch again", leader);
    }

    /// The state was replaced by one as of `index`, and the tenure has ended with it: no watch goes on from before.
    pub(super) fn restored(&self, index: LogIndex) {
        self.lock().recent.restart(index);
    }

    /// Ends every watch that there is, with `UNAVAILABLE`.
    pub(super) fn end_all(&self, message: &str, leader: Option<&str>) {
        self.lock().end_groups(&StreamError::unavailable(message, leader));
    }

    /// Ends every watch for good; waits until all have left.
    pub(super) async fn stop(&self, leader: Option<String>) {
        let end = StreamError::unavailable("this node stops", leader.as_deref());
        {
            let mut state = self.lock();
            state.end_groups(&end);
            state.stopped = Some(end);
        }
        while self.any() {
            self.left.notified().await;
        }
    }

    /// Registers a watcher, which receives nothing until it has read its first page.
    ///
    /// # Errors
    ///
    /// [`StreamError::Limit`]; [`StreamError::Unavailable`] if this node stops, or does not serve
    /// in that tenure.
    fn enter(self: &Arc<Self>, prefix: &str, tenure: Tenure) -> Result<Membership, StreamError> {
        let mut state = self.lock();
        if let Some(end) = state.stopped.clone() {
            return Err(end);
        }
        if state.tenure != Some(tenure) {
            let message = "this node does not lead any more, or does not serve yet; watch again";
            return Err(StreamError::unavailable(message, None));
        }
        if self.open.load(Ordering::Relaxed) >= self.limit {
            let message = "too many watches are open on this node; try again later";
            return Err(StreamError::limit("max_watches", self.limit as u64, message));
        }
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.count_open(open);
        let (prefix, group) = state.group(prefix, &self.budget);
        group.watchers += 1;
        let (bell, over, group) = (group.bell.subscribe(), group.over.subscribe(), group.id);
        Ok(Membership { watches: self.clone(), prefix, bell, over, group })
    }

    /// Delivers the changes of an entry of the log to its watchers, and keeps them for a while. Called under the
    /// table's lock, on every node.
    pub(super) fn applied(&self, index: LogIndex, events: &[Event], table: &LockTable) {
        if !self.any() && !self.keeps_recent {
            return;
        }
        let mut state = self.lock();
        state.recent.begin(index);
        let mut touched = Vec::new();
        for event in events {
            if matches!(event, Event::RulesChanged) && table.rules().are_on() {
                // A watcher that still may watch is checked again: nothing later is sent before that.
                let message = "the rules of who may read changed; watch again";
                state.end_groups(&StreamError::unavailable(message, None));
                touched.clear();
                continue;
            }
            change::each_change(event, index, table, &mut |name, make| {
                state.note(name, make, &mut touched);
            });
        }
        state.publish(index, touched);
        if self.budget.is_full() {
            // Each watcher checks whether it is one of those that hold most.
            state.groups.values().for_each(|group| group.bell.send_modify(|_| {}));
        }
    }

    /// How far a watch may be behind while the changes kept for all watches exceed the budget, bytes.
    ///
    /// A change is kept only for a watcher that is behind; so once no watcher is behind by more than
    /// this, at most three quarters of the budget are used. A watch that is behind by less never ends
    /// because of others.
    fn share(&self) -> u64 {
        let watches = self.open.load(Ordering::Relaxed).max(1) as u64;
        self.budget.limit() / 4 * 3 / watches
    }

    fn count_open(&self, open: usize) {
        self.metrics.watches.set(i64::try_from(open).unwrap_or(i64::MAX));
    }
}

impl State {
    fn new(recent: RecentChanges) -> Self {
        Self {
            recent,
            tenure: None,
            groups: BTreeMap::new(),
            lengths: BTreeMap::new(),
            last_group: 0,
            stopped: None,
        }
    }

    /// The group that watches `prefix`, made if there is none.
    fn group(&mut self, prefix: &str, budget: &Arc<BytesBudget>) -> (Arc<str>, &mut Group) {
        let known = self.groups.get_key_value(prefix).map(|(prefix, _)| prefix.clone());
        let prefix = known.unwrap_or_else(|| {
            *self.lengths.entry(prefix.len()).or_default() += 1;
            self.last_group += 1;
            prefix.into()
        });
        let id = self.last_group;
        let group = self.groups.entry(prefix.clone()).or_insert_with(|| Group::new(id, budget));
        (prefix, group)
    }

    /// Adds a change to the recent ones and to every group that watches a prefix of its name; adds to `touched`
    /// those groups for which it is the first of this entry.
    fn note(&mut self, name: &LockName, make: Make<'_>, touched: &mut Vec<Arc<str>>) {
        let mut shared = self.recent.is_on().then(|| Arc::new(make()));
        if let Some(change) = &shared {
            self.recent.push(change.clone());
        }
        let text = name.as_str();
        for &length in self.lengths.range(..=text.len()).map(|(length, _)| length) {
            let prefix = text.get(..length);
            let Some(prefix) = prefix.and_then(|prefix| self.groups.get_key_value(prefix)) else {
                continue;
            };
            let prefix = prefix.0.clone();
            let Some(group) = self.groups.get_mut(&prefix) else { continue };
            if mutant!(WatchLosesChange) && !group.fresh.is_empty() {
                continue;
            }
            if group.fresh.is_empty() {
                touched.push(prefix);
            }
            group.fresh.push(shared.get_or_insert_with(|| Arc::new(make())).clone());
        }
    }

    /// Publishes the changes of an entry in the groups that have any; marks now and then in all groups how far
    /// the log has come.
    fn publish(&mut self, index: LogIndex, touched: Vec<Arc<str>>) {
        for prefix in touched {
            if let Some(group) = self.groups.get_mut(&prefix) {
                group.publish(index);
            }
        }
        if self.recent.wants_mark() {
            for group in self.groups.values() {
                group.bell.send_modify(|told| told.marked = index);
            }
        }
    }

    fn leave(&mut self, prefix: &str, id: u64) {
        let Some(group) = self.groups.get_mut(prefix).filter(|group| group.id == id) else {
            // The group was ended with all others.
            return;
        };
        group.watchers -= 1;
        if group.watchers > 0 {
            return;
        }
        self.groups.remove(prefix);
        if let Some(groups) = self.lengths.get_mut(&prefix.len()) {
            *groups -= 1;
            if *groups == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    fn end_groups(&mut self, end: &StreamError) {
        self.lengths.clear();
        for group in std::mem::take(&mut self.groups).into_values() {
            group.over.send_replace(Some(end.clone()));
        }
    }
}

impl Group {
    fn new(id: u64, budget: &Arc<BytesBudget>) -> Self {
        let told = Told { published: Length::default(), marked: LogIndex::new(0) };
        Self {
            id,
            watchers: 0,
            news: News::new(budget.clone()),
            bell: watch::Sender::new(told),
            over: watch::Sender::new(None),
            fresh: Vec::new(),
        }
    }

    fn publish(&mut self, index: LogIndex) {
        self.news.publish(index, std::mem::take(&mut self.fresh));
        let published = self.news.end().told();
        self.bell.send_modify(|told| told.published = published);
    }
}

impl Membership {
    /// The position behind all news published so far; `None` once the watch is over.
    fn end_of_news(&self) -> Option<Place> {
        let state = self.watches.lock();
        let group = state.groups.get(&self.prefix).filter(|group| group.id == self.group)?;
        Some(group.news.end())
    }

    /// Where the changes after `index` begin among the recent ones. Call it under the table's lock: `applied` is the
    /// entry that the table is as of.
    fn recent_after(&self, index: LogIndex, applied: LogIndex) -> Result<Position, Compacted> {
        self.watches.lock().recent.after(index, applied)
    }

    /// The next part of the recent changes below the prefix, and with the last part the position at which the news go
    /// on; `None` once the watch is over.
    ///
    /// Both are read under the lock under which both are written: no change lies between them, or in both.
    fn recent_part(
        &self,
        from: Position,
        enough: Length,
    ) -> Option<Result<(Part, Option<Place>), Compacted>> {
        let state = self.watches.lock();
        let group = state.groups.get(&self.prefix).filter(|group| group.id == self.group)?;
        let part = state.recent.part(from, &self.prefix, enough);
        Some(part.map(|part| {
            let goes_on = part.next.is_none().then(|| group.news.end());
            (part, goes_on)
        }))
    }

    /// Why the watch is over, once it is.
    fn ended(&self) -> Option<StreamError> {
        self.over.borrow().clone()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.watches.lock();
        state.leave(&self.prefix, self.group);
        let open = self.watches.open.fetch_sub(1, Ordering::Relaxed) - 1;
        self.watches.count_open(open);
        drop(state);
        self.watches.left.notify_one();
    }
}
