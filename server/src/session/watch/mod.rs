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
//! # Rights
//!
//! Whoever watches has to have the right to read when the watch begins. A change of the rules ends every
//! watch (DESIGN §14): clients begin anew, and are asked again.
//!
//! # Bounds
//!
//! A watcher may be `watch_backlog` changes behind the news, besides what the transport has taken over
//! and a page; then it ends its own watch: the thread that applies the log never waits for a watcher
//! (I27). A change is made once for all watchers, and written once per prefix.

mod news;
mod watcher;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::{Event, LockName, LockTable, LogIndex, Tenure};
use holdfast_mutants::mutant;
use news::{Change, Length, Make, News, Place};
use tokio::sync::{Notify, watch};

use super::error::StreamError;
use super::metrics::SessionMetrics;
use super::settings::SessionSettings;
use crate::bytes_budget::BytesBudget;

/// How often a leader with watchers confirms that it still leads.
pub(super) const ROUND_EVERY: Duration = Duration::from_secs(5);

/// All watches of this node, and the way of a change to them.
///
/// One mutex, held for short; taken under the table's lock, never the other way round.
///
/// # Invariants
///
/// - Watches are served only within a tenure; all of them end with it.
/// - There is a group for a prefix exactly while it has a watcher; an event looks only at the prefixes
///   of the names it changed.
/// - While there is no watcher, an applied entry costs one look at a counter.
#[derive(Debug)]
pub(super) struct Watches {
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
    /// The number of watchers: the only thing that is read while there are none.
    open: AtomicUsize,
    state: Mutex<State>,
    /// A watcher has left.
    left: Notify,
}

#[derive(Debug, Default)]
struct State {
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
    /// The changes of the entry that is being applied.
    fresh: Vec<Arc<Change>>,
}

/// The state that wakes a watcher.
#[derive(Clone, Debug, Default)]
struct Told {
    /// The length of what was published below its prefix.
    published: Length,
    /// Why its watch is over.
    end: Option<StreamError>,
}

/// A watcher's membership in its group; it ends when this is dropped.
#[derive(Debug)]
struct Membership {
    watches: Arc<Watches>,
    prefix: Arc<str>,
    bell: watch::Receiver<Told>,
    group: u64,
}

impl Watches {
    pub(super) fn new(settings: &SessionSettings, metrics: SessionMetrics) -> Self {
        Self {
            backlog: settings.watch_backlog as u64,
            backlog_bytes: settings.outbox_bytes,
            budget: BytesBudget::new(settings.outbox_bytes_total, metrics.watch_bytes.clone()),
            page_locks: settings.watch_page_locks,
            limit: settings.max_watches,
            metrics,
            open: AtomicUsize::new(0),
            state: Mutex::default(),
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
        let (prefix, group) = state.group(prefix);
        group.watchers += 1;
        let (bell, group) = (group.bell.subscribe(), group.id);
        Ok(Membership { watches: self.clone(), prefix, bell, group })
    }

    /// Delivers the changes of an entry of the log to its watchers. Called under the table's lock, on
    /// every node.
    pub(super) fn applied(&self, index: LogIndex, events: &[Event], table: &LockTable) {
        if !self.any() {
            return;
        }
        let mut state = self.lock();
        let mut touched = Vec::new();
        for event in events {
            if matches!(event, Event::RulesChanged) && table.rules().are_on() {
                // A watcher that still may watch begins anew and is checked again: nothing later is sent before that.
                let message = "the rules of who may read changed; watch again";
                state.end_groups(&StreamError::unavailable(message, None));
                touched.clear();
                continue;
            }
            news::each_change(event, index, table, &mut |name, make| {
                state.note(name, make, &self.budget, &mut touched);
            });
        }
        for prefix in touched {
            if let Some(group) = state.groups.get_mut(&prefix) {
                group.publish();
            }
        }
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
    /// The group that watches `prefix`, made if there is none.
    fn group(&mut self, prefix: &str) -> (Arc<str>, &mut Group) {
        let known = self.groups.get_key_value(prefix).map(|(prefix, _)| prefix.clone());
        let prefix = known.unwrap_or_else(|| {
            *self.lengths.entry(prefix.len()).or_default() += 1;
            self.last_group += 1;
            prefix.into()
        });
        let id = self.last_group;
        let group = self.groups.entry(prefix.clone()).or_insert_with(|| Group::new(id));
        (prefix, group)
    }

    /// Adds a change to every group that watches a prefix of its name; adds to `touched` those groups
    /// for which it is the first of this entry.
    fn note(
        &mut self,
        name: &LockName,
        make: Make<'_>,
        budget: &Arc<BytesBudget>,
        touched: &mut Vec<Arc<str>>,
    ) {
        let mut shared = None;
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
            let change =
                shared.get_or_insert_with(|| Arc::new(Change::new(name.clone(), make(), budget)));
            group.fresh.push(change.clone());
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
            group.bell.send_modify(|told| told.end = Some(end.clone()));
        }
    }
}

impl Group {
    fn new(id: u64) -> Self {
        Self {
            id,
            watchers: 0,
            news: News::new(),
            bell: watch::Sender::default(),
            fresh: Vec::new(),
        }
    }

    fn publish(&mut self) {
        self.news.publish(std::mem::take(&mut self.fresh));
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
