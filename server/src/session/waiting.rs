//! Calls that wait on this node for a grant or a release.
//!
//! A call is registered before its command is proposed, so that no event falls between the command's
//! answer and the wait. Several calls may wait for one request: a client that lost its connection asks
//! again under the same id, perhaps before the end of the first call is noticed.
//!
//! # Invariants
//!
//! - Never more calls wait for locks than the limit (I27); each leaves when it gets an answer, or is
//!   dropped.
//! - Calls wait only within a tenure: its end answers them all.
//! - A call that leaves changes nothing in the table: the request keeps its place.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use holdfast_core::{FencingToken, LogIndex, RequestId, SessionId};
use holdfast_proto::v1::{Granted, Refusal, Released};
use tokio::sync::oneshot;

use super::error::CallError;
use super::refusals;
use super::registry::{Registry, State};

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// The request's grant, or its leaving the queue.
    Request(RequestId),
    /// The release of all that is left of this grant.
    Grant(FencingToken),
}

/// The answer to a waiting call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    /// The request holds, as of this index.
    Granted(LogIndex, Granted),
    /// These names of the grant were given back.
    Released(Released),
    /// The request left its queues by a cancel.
    Left,
    /// The request waited, and is refused.
    Refused(Refusal),
    /// The session is over.
    SessionOver,
    /// This node no longer serves the call. What was requested stands.
    Elsewhere {
        /// Where clients reach the leader, if another is known.
        leader: Option<String>,
    },
}

/// The session, its request or grant, and the number of the call that waits for it.
type Key = (SessionId, About, u64);

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    calls: BTreeMap<Key, oneshot::Sender<Told>>,
    /// Numbers the calls in the order in which they came.
    last: u64,
}

/// A call's registration; the call leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    registry: Arc<Registry>,
    key: Key,
    told: oneshot::Receiver<Told>,
}

impl Registry {
    /// Registers a call for the grant of a request, or for a release.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the limit is reached, or this node does not serve. The limit is for calls that
    /// wait for a lock; a release takes no longer than its command.
    pub(super) fn wait_for(
        self: &Arc<Self>,
        session: SessionId,
        about: About,
    ) -> Result<Call, CallError> {
        let limit = self.settings.max_waiting_calls;
        let mut state = self.lock();
        state.serves()?;
        if matches!(about, About::Request(_)) && state.waiting.calls.len() >= limit {
            let message = format!(
                "{limit} calls wait at this node, the limit (max_waiting_calls); try again later, \
                 or wait on a stream"
            );
            return Err(refusals::limit_of_others("max_waiting_calls", message).into());
        }
        state.waiting.last += 1;
        let key = (session, about, state.waiting.last);
        let (tell, told) = oneshot::channel();
        state.waiting.calls.insert(key, tell);
        self.count_waiting(&state);
        Ok(Call { registry: self.clone(), key, told })
    }

    pub(super) fn count_waiting(&self, state: &State) {
        let count = i64::try_from(state.waiting.calls.len()).unwrap_or(i64::MAX);
        self.metrics.waiting_calls.set(count);
    }
}

impl Waiting {
    /// Answers every call that waits for this; `what` is made only if there is one.
    pub(super) fn tell(&mut self, session: SessionId, about: About, what: impl Fn() -> Told) {
        if !self.calls.is_empty() {
            self.tell_all((session, about, 0)..=(session, about, u64::MAX), what);
        }
    }

    /// Answers every call of a session that is over.
    pub(super) fn session_over(&mut self, session: SessionId) {
        let first = (session, About::Request(RequestId::new(0)), 0);
        let last = (session, About::Grant(FencingToken::from_raw(u64::MAX)), u64::MAX);
        self.tell_all(first..=last, || Told::SessionOver);
    }

    /// Sends every call to another node.
    pub(super) fn elsewhere(&mut self, leader: Option<&str>) {
        for tell in std::mem::take(&mut self.calls).into_values() {
            let _ = tell.send(Told::Elsewhere { leader: leader.map(str::to_owned) });
        }
    }

    fn tell_all(&mut self, keys: RangeInclusive<Key>, what: impl Fn() -> Told) {
        for (_, tell) in self.calls.extract_if(keys, |_, _| true) {
            // The receiver is gone if the call was dropped.
            let _ = tell.send(what());
        }
    }
}

impl Call {
    /// Waits for the answer. Cancel safe.
    pub(super) async fn told(&mut self) -> Told {
        // The sender is dropped only with the registry, or after it has sent.
        (&mut self.told).await.unwrap_or(Told::Elsewhere { leader: None })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        state.waiting.calls.remove(&self.key);
        self.registry.count_waiting(&state);
    }
}
