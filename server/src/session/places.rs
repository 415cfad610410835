//! Reports changes of a request's place in the queue to the clients that asked for them: at most once a
//! second, outside apply, in O(log n) for each of them (DESIGN §6).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use holdfast_core::{
    Item, LockName, LockTable, LogIndex, NamePrefix, RequestId, RequestState, RequestView,
    SessionId,
};
use holdfast_proto::v1::Moved;
use holdfast_proto::v1::server_frame::Body;

use super::Lead;
use super::answers::{self, holders};
use super::registry::{Registry, State};

/// The least time between two rounds of Moved.
const EVERY: Duration = Duration::from_secs(1);

/// Followers that are told of one lock in one read of the table: each may be told a hundred holders.
const FOLLOWERS_AT_ONCE: usize = 64;
/// Pause before the next of them.
const BETWEEN: Duration = Duration::from_millis(1);

type Request = (SessionId, RequestId);

/// The requests whose clients follow their place. Only this node knows them: a client that resumes asks
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
    /// The request stands in the queue of each of these.
    locks: Vec<LockName>,
    /// What was reported last.
    last: Option<Stand>,
}

/// A place, and whether one of the locks is frozen.
type Stand = (u64, bool);

impl Follow {
    /// Records how it stands; `false` if that was reported last.
    fn is_news(&mut self, stand: Stand) -> bool {
        self.last.replace(stand) != Some(stand)
    }
}

impl Follows {
    /// The client wants to follow the place of this request from here on.
    pub(super) fn follow(&mut self, session: SessionId, request: RequestId, locks: Vec<LockName>) {
        let key = (session, request);
        self.forget(session, request);
        for lock in &locks {
            self.by_lock.entry(lock.clone()).or_default().insert(key);
        }
        self.by_request.insert(key, Follow { locks, last: None });
    }

    /// Queued has reported how the request stands.
    pub(super) fn told(&mut self, request: Request, stand: Stand) {
        if let Some(follow) = self.by_request.get_mut(&request) {
            follow.last = Some(stand);
        }
    }

    /// The request no longer waits.
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

    /// No stream of the session follows places any more.
    pub(super) fn forget_session(&mut self, session: SessionId) {
        let range = (session, RequestId::new(0))..=(session, RequestId::new(u64::MAX));
        let requests: Vec<Request> = self.by_request.range(range).map(|(&key, _)| key).collect();
        for (session, request) in requests {
            self.forget(session, request);
        }
    }

    /// Whether no request is followed.
    pub(super) fn is_empty(&self) -> bool {
        self.by_request.is_empty() && self.by_lock.is_empty() && self.changed.is_empty()
    }

    /// The lock's queue moved; `true` if a followed request stands in it.
    pub(super) fn moved(&mut self, lock: &LockName) -> bool {
        let followed = self.by_lock.contains_key(lock);
        if followed {
            self.changed.insert(lock.clone());
        }
        followed
    }
}

impl Follows {
    /// The names that begin with that prefix were frozen or thawed; `true` if a followed request stands in a queue of them.
    pub(super) fn moved_below(&mut self, prefix: &NamePrefix) -> bool {
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let below = self.by_lock.range::<str, _>(from).map(|(lock, _)| lock);
        let below = below.take_while(|lock| prefix.covers(lock.as_str())).cloned();
        let before = self.changed.len();
        self.changed.extend(below);
        self.changed.len() > before
    }
}

impl Lead {
    /// Reports changed places, round after round. Runs while a tenure lasts.
    pub(super) async fn tell_places(&self) {
        loop {
            self.registry.place_changed.notified().await;
            let changed = std::mem::take(&mut self.registry.lock().follows.changed);
            for lock in changed {
                let mut after = None;
                loop {
                    // A short read for some of the followers: it delays apply.
                    let mut last = None;
                    self.consensus.read(&mut |table, index| {
                        last = self.registry.tell_moved(table, index, (&lock, after));
                    });
                    if last.is_none() {
                        break;
                    }
                    after = last;
                    self.registry.runtime.sleep(BETWEEN).await;
                }
            }
            self.registry.runtime.sleep(EVERY).await;
        }
    }
}

impl Registry {
    /// Reports to some of the clients that follow a lock, those behind that request. The place of a request
    /// for several locks is the one that results from all its queues. Returns the last of them if there may
    /// be more.
    fn tell_moved(
        &self,
        table: &LockTable,
        index: LogIndex,
        (lock, after): (&LockName, Option<Request>),
    ) -> Option<Request> {
        let mut state = self.lock();
        let State { attached, follows, .. } = &mut *state;
        let Follows { by_request, by_lock, .. } = follows;
        let now_ms = self.now_ms(table);
        let alone = holders(table, now_ms, &[Item::exclusive(lock.clone())]);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest =
            by_lock.get(lock).into_iter().flat_map(|all| all.range((from, Bound::Unbounded)));
        let (mut looked, mut last) = (0, None);
        for key in rest.take(FOLLOWERS_AT_ONCE) {
            (looked, last) = (looked + 1, Some(*key));
            let asked = table.request(key.0, key.1);
            let Some(RequestView { items, state: RequestState::Waiting { place, .. }, .. }) = asked
            else {
                continue;
            };
            let frozen = answers::frozen(table, now_ms, &items);
            let stand = (place, frozen.is_some());
            if !by_request.get_mut(key).is_some_and(|follow| follow.is_news(stand)) {
                continue;
            }
            if let Some(attached) = attached.get(&key.0) {
                let holders = match &*items {
                    [_] => alone.clone(),
                    several => holders(table, now_ms, several),
                };
                let moved = Moved { request_id: key.1.get(), place, holders, frozen };
                self.push(&attached.outbox, index, Body::Moved(moved));
            }
        }
        last.filter(|_| looked == FOLLOWERS_AT_ONCE)
    }
}
