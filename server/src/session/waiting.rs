//! Calls that wait at this node for what becomes of a request or a grant.
//!
//! A call is put in before its command is proposed, so that no event falls between the command's
//! answer and the waiting. Several calls may wait for one request: a client that lost its
//! connection asks again under the same id, perhaps before the first call is known to be gone.
//!
//! # Invariants
//!
//! - Never more calls wait for locks than the limit (I27); each leaves when it was told something,
//!   or is dropped.
//! - Calls wait only within a tenure: its end tells them all.
//! - That a call leaves changes nothing in the table: the request keeps its place.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use holdfast_core::{FencingToken, LogIndex, RequestId, SessionId};
use holdfast_proto::v1::{Granted, Released};
use tokio::sync::oneshot;

use super::call_error::CallError;
use super::refusals;
use super::registry::{Registry, State};

/// What a call waits to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// Its grant, or its leaving.
    Request(RequestId),
    /// What is given back of it.
    Grant(FencingToken),
}

/// What a call is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    /// The request holds, as of this index.
    Granted(LogIndex, Granted),
    /// This was given back of the grant.
    Released(Released),
    /// The request left its queues by a cancel.
    Left,
    /// The session is over.
    SessionOver,
    /// This node serves it no more. What was asked for stands.
    Elsewhere {
        /// Where clients reach the leader, if another is known.
        leader: Option<String>,
    },
}

/// Whose request or grant, which, and which of the calls that wait for it.
type Key = (SessionId, About, u64);

/// The calls that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    calls: BTreeMap<Key, oneshot::Sender<Told>>,
    /// Numbers the calls in the order in which they came.
    last: u64,
}

/// A call's place among them; it leaves when this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    registry: Arc<Registry>,
    key: Key,
    told: oneshot::Receiver<Told>,
}

impl Registry {
    /// Lets a call wait for what becomes of a request or a grant.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the limit is reached, or this node does not serve. The limit is for those
    /// that wait for a lock; giving one back takes no longer than its command.
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
    /// Tells every call that waits for this; `what` is made only if one does.
    pub(super) fn tell(&mut self, session: SessionId, about: About, what: impl Fn() -> Told) {
        if !self.calls.is_empty() {
            self.tell_all((session, about, 0)..=(session, about, u64::MAX), what);
        }
    }

    /// Tells every call of a session that is over.
    pub(super) fn session_over(&mut self, session: SessionId) {
        let first = (session, About::Request(RequestId::new(0)), 0);
        let last = (session, About::Grant(FencingToken::from_raw(u64::MAX)), u64::MAX);
        self.tell_all(first..=last, || Told::SessionOver);
    }

    /// Tells every call to go elsewhere.
    pub(super) fn elsewhere(&mut self, leader: Option<&str>) {
        for tell in std::mem::take(&mut self.calls).into_values() {
            let _ = tell.send(Told::Elsewhere { leader: leader.map(str::to_owned) });
        }
    }

    fn tell_all(&mut self, keys: RangeInclusive<Key>, what: impl Fn() -> Told) {
        for (_, tell) in self.calls.extract_if(keys, |_, _| true) {
            // Nobody listens any more: the call was dropped.
            let _ = tell.send(what());
        }
    }
}

impl Call {
    /// Waits until it is told. Cancel safe.
    pub(super) async fn told(&mut self) -> Told {
        // The sender goes only with the registry, or after it has told.
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
