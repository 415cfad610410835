//! Telling those who asked how their place in the queue changes: at most once a second, outside
//! apply, one pass over each queue that changed (DESIGN §6).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast_core::{LockName, LockTable, LogIndex, RequestId, SessionId};
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
    /// With the place each was told last; `None` before the first.
    by_lock: BTreeMap<LockName, BTreeMap<Request, Option<u64>>>,
    /// Invariant: the same requests as in `by_lock`.
    by_request: BTreeMap<Request, LockName>,
    /// Followed locks whose queue moved since the last round.
    changed: BTreeSet<LockName>,
}

impl Follows {
    /// The request wants to hear of its place from here on.
    pub(super) fn follow(&mut self, session: SessionId, request: RequestId, lock: LockName) {
        let key = (session, request);
        self.forget(session, request);
        self.by_lock.entry(lock.clone()).or_default().insert(key, None);
        self.by_request.insert(key, lock);
    }

    /// The request was told its place with Queued.
    pub(super) fn told(&mut self, session: SessionId, request: RequestId, place: u64) {
        let key = (session, request);
        let Some(lock) = self.by_request.get(&key) else { return };
        if let Some(last) = self.by_lock.get_mut(lock).and_then(|of_lock| of_lock.get_mut(&key)) {
            *last = Some(place);
        }
    }

    /// The request waits no more.
    pub(super) fn forget(&mut self, session: SessionId, request: RequestId) {
        let key = (session, request);
        let Some(lock) = self.by_request.remove(&key) else { return };
        if let Some(of_lock) = self.by_lock.get_mut(&lock) {
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

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_lock.is_empty() && self.by_request.is_empty() && self.changed.is_empty()
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
    fn tell_moved(&self, table: &LockTable, index: LogIndex, lock: &LockName) {
        let mut state = self.lock();
        let State { attached, follows, .. } = &mut *state;
        let Some(of_lock) = follows.by_lock.get_mut(lock) else { return };
        let holders = holders(table, self.now_ms(table), lock);
        for (session, request, place) in table.queue_places(lock) {
            let Some(last) = of_lock.get_mut(&(session, request)) else { continue };
            if last.replace(place) == Some(place) {
                continue;
            }
            if let Some(attached) = attached.get(&session) {
                let moved = Moved { request_id: request.get(), place, holders: holders.clone() };
                self.push(&attached.outbox, index, Body::Moved(moved));
            }
        }
    }
}
