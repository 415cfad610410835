//! Why a lock is waited for: who holds it, what they wait for themselves, and so on to the end, or round in a
//! circle (DESIGN §16).
//!
//! The store knows sessions, not what goes on in them: that a session which holds one lock waits for another
//! does not prove that it gives back the one only after it got the other. It is the best guess there is.
//!
//! # Bounds
//!
//! The answer is made under the table's lock, from what is looked at here and no more: [`LOCKS_SHOWN`] locks,
//! [`HOLDERS_SHOWN`] holders of each, [`WAITS_SHOWN`] waits of each session, and [`REQUESTS_LOOKED`] requests in
//! all, which takes some milliseconds at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_core::{
    Caller, HolderView, LockName, LockTable, LockView, RequestState, RequestView, SessionId,
};
use holdfast_proto::v1::{
    ExplainRequest, ExplainResponse, ExplainedHolder, ExplainedLock, ExplainedWait,
};
use tonic::Status;

use super::reads::linearizable;
use super::status;
use crate::session::Hub;
use crate::session::answers::holder_of;

/// Most locks of an answer.
const LOCKS_SHOWN: usize = 100;
/// Most holders of each.
const HOLDERS_SHOWN: usize = 10;
/// Most requests of a session that wait.
const WAITS_SHOWN: usize = 10;
/// Most requests that are looked at, whatever their state.
const REQUESTS_LOOKED: usize = 10_000;

/// The lock, and what stands behind it. Only a caller that may read all locks sees it.
pub(super) async fn explain(
    hub: &Hub,
    caller: &Caller,
    request: &ExplainRequest,
) -> Result<ExplainResponse, Status> {
    let name = LockName::parse(&request.name)
        .map_err(|error| status::of_text_error("lock name", &error))?;
    linearizable(hub, (caller, ""), |table, index, now_ms| {
        let mut chain = Chain::of(table, name, now_ms);
        let locks = chain.locks();
        ExplainResponse { index: index.get(), locks, more: chain.more }
    })
    .await
}

struct Chain<'a> {
    table: &'a LockTable,
    now_ms: u64,
    /// Locks that are to be shown, the nearest first, and all that were met.
    next: VecDeque<LockName>,
    met: BTreeSet<LockName>,
    /// What each session waits for that was met.
    waits: BTreeMap<SessionId, Vec<ExplainedWait>>,
    looked: usize,
    /// Something was left out.
    more: bool,
}

impl<'a> Chain<'a> {
    fn of(table: &'a LockTable, first: LockName, now_ms: u64) -> Self {
        Self {
            table,
            now_ms,
            next: VecDeque::from([first.clone()]),
            met: BTreeSet::from([first]),
            waits: BTreeMap::new(),
            looked: 0,
            more: false,
        }
    }

    /// The lock and those that stand behind it.
    fn locks(&mut self) -> Vec<ExplainedLock> {
        let mut shown = Vec::new();
        while let Some(name) = self.next.pop_front() {
            if shown.len() == LOCKS_SHOWN {
                self.more = true;
                break;
            }
            if let Some(lock) = self.table.lock(&name) {
                shown.push(self.lock(&lock));
            }
        }
        shown
    }

    fn lock(&mut self, lock: &LockView<'_>) -> ExplainedLock {
        let (held_by, waiting) = (lock.held_by, lock.waiting);
        let holders: Vec<_> =
            lock.holders().take(HOLDERS_SHOWN).map(|holder| self.holder(&holder)).collect();
        self.more |= held_by > holders.len() as u64;
        let next = lock.waiters().next().filter(|_| held_by == 0);
        let kept_for = next.and_then(|waiter| {
            let request = self.table.request(waiter.session, waiter.request)?;
            self.wait(waiter.session, &request)
        });
        ExplainedLock { name: lock.name.as_str().to_owned(), held_by, waiting, holders, kept_for }
    }

    fn holder(&mut self, holder: &HolderView<'_>) -> ExplainedHolder {
        let session = holder.grant.session;
        if !self.waits.contains_key(&session) {
            let waits = self.look_at(session);
            self.waits.insert(session, waits);
        }
        let waits = self.waits.get(&session).cloned().unwrap_or_default();
        ExplainedHolder { holder: Some(holder_of(holder, self.now_ms)), waits }
    }

    /// What a session waits for.
    fn look_at(&mut self, session: SessionId) -> Vec<ExplainedWait> {
        let mut waits = Vec::new();
        for request in self.table.requests(session) {
            if self.looked == REQUESTS_LOOKED || waits.len() == WAITS_SHOWN {
                self.more = true;
                break;
            }
            self.looked += 1;
            waits.extend(self.wait(session, &request));
        }
        waits
    }

    /// A request, if it waits; its locks are looked at too.
    fn wait(&mut self, session: SessionId, request: &RequestView) -> Option<ExplainedWait> {
        let RequestState::Waiting { since_ms, .. } = request.state else { return None };
        for item in request.items.iter() {
            if self.met.insert(item.lock.clone()) {
                self.next.push_back(item.lock.clone());
            }
        }
        let label = self.table.session(session).map_or("", |found| found.label.as_str()).to_owned();
        Some(ExplainedWait {
            session_id: session.get(),
            label,
            names: request.items.iter().map(|item| item.lock.as_str().to_owned()).collect(),
            waiting_ms: self.now_ms.saturating_sub(since_ms),
        })
    }
}
