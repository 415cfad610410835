//! Telling those who asked how their place in the queue changes: at most once a second, outside
//! apply, in O(log n) for each of them (DESIGN §6).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::{
    Item, LockName, LockTable, LogIndex, RequestId, RequestState, RequestView, SessionId,
};
use holdfast_proto::v1::Moved;
use holdfast_proto::v1::server_frame::Body;

use super::Lead;
use super::answers::holders;
use super::registry::{Registry, State};

/// The least time between two rounds of Moved.
const EVERY: Duration = Duration::from_secs(1);

type Request = (SessionId, RequestId);

/// Which requests want to hear of their place. Known to the node only: a client that resumes asks
/// again.
#[derive(Debug, Default)]
pub(super) struct Follows {
    by_request: BTreeMap<Request, Follow>,
    /// Invariant: for each lock, the requests that follow it in `by_request`; never an empty set.
    by_lock: BTreeMap<LockName, BTreeSet<Request>>,
    /// Followed locks whose queue moved since the last round.
    changed: BTreeSet<LockName>,
}

/// What is followed for one request.
#[derive(Debug)]
struct Follow {
    /// It stands in the queue of each of these.
    locks: Vec<LockName>,
    /// The place it was told last.
    last: Option<u64>,
}

impl Follow {
    /// Notes the place; `false` if that is what was told last.
    fn is_news(&mut self, place: u64) -> bool {
        self.last.replace(place) != Some(place)
    }
}

impl Follows {
    /// The request wants to hear of its place from here on.
    pub(super) fn follow(&mut self, session: SessionId, request: RequestId, locks: Vec<LockName>) {
        let key = (session, request);
        self.forget(session, request);
        for lock in &locks {
            self.by_lock.entry(lock.clone()).or_default().insert(key);
        }
        self.by_request.insert(key, Follow { locks, last: None });
    }

    /// The request was told its place with Queued.
    pub(super) fn told(&mut self, session: SessionId, request: RequestId, place: u64) {
        if let Some(follow) = self.by_request.get_mut(&(session, request)) {
            follow.last = Some(place);
        }
    }

    /// The request waits no more.
    pub(super) fn forget(&mut self, session: SessionId, request: RequestId) {
        let key = (session, request);
        let Some(follow) = self.by_request.remove(&key) else { return };
        for lock in follow.locks {
            let Some(of_lock) = self.by_lock.get_mut(&lock) else { continue };
            of_lock.remove(&key);
            if of_lock.is_empty() {
                self.by_lock.remove(&lock);
                self.changed.remove(&lock);
            }
        }
    }

    /// The session has no stream any more that asked.
    pub(super) fn forget_session(&mut self, session: SessionId) {
        let range = (session, RequestId::new(0))..=(session, RequestId::new(u64::MAX));
        let requests: Vec<Request> = self.by_request.range(range).map(|(&key, _)| key).collect();
        for (session, request) in requests {
            self.forget(session, request);
        }
    }

    /// Whether nobody follows anything.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_request.is_empty() && self.by_lock.is_empty() && self.changed.is_empty()
    }

    /// The lock's queue moved; `true` if somebody follows it.
    pub(super) fn moved(&mut self, lock: &LockName) -> bool {
        let followed = self.by_lock.contains_key(lock);
        if followed {
            self.changed.insert(lock.clone());
        }
        followed
    }
}

impl Lead {
    /// Tells of changed places, round after round. Runs while a tenure lasts.
    pub(super) async fn tell_places(&self) {
        loop {
            self.registry.place_changed.notified().await;
            let changed = std::mem::take(&mut self.registry.lock().follows.changed);
            for lock in changed {
                // One look per lock, so that a long queue holds up apply once and not all at once.
                self.consensus.read(&mut |table, index| {
                    self.registry.tell_moved(table, index, &lock);
                });
            }
            self.registry.seams.sleep(EVERY).await;
        }
    }
}

impl Registry {
    /// Tells those who follow a lock; a request for several locks stands where all of its places
    /// put it together.
    fn tell_moved(&self, table: &LockTable, index: LogIndex, lock: &LockName) {
        let mut state = self.lock();
        let State { attached, follows, .. } = &mut *state;
        let Follows { by_request, by_lock, .. } = follows;
        let now_ms = self.now_ms(table);
        let alone = holders(table, now_ms, &[Item::exclusive(lock.clone())]);
        for key in by_lock.get(lock).into_iter().flatten() {
            let asked = table.request(key.0, key.1);
            let Some(RequestView { items, state: RequestState::Waiting { place, .. }, .. }) = asked
            else {
                continue;
            };
            if !by_request.get_mut(key).is_some_and(|follow| follow.is_news(place)) {
                continue;
            }
            if let Some(attached) = attached.get(&key.0) {
                let holders = match &*items {
                    [_] => alone.clone(),
                    several => holders(table, now_ms, several),
                };
                let moved = Moved { request_id: key.1.get(), place, holders };
                self.push(&attached.outbox, index, Body::Moved(moved));
            }
        }
    }
}
