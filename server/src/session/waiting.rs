//! Calls that wait at this node for what becomes of a request (unary Acquire).
//!
//! A call is put in before its command is proposed, so that no event falls between the command's
//! answer and the waiting. Several calls may wait for one request: a client that lost its
//! connection asks again under the same id, perhaps before the first call is known to be gone.
//!
//! # Invariants
//!
//! - Never more calls than the limit (I27); each leaves when it was told something, or is dropped.
//! - Calls wait only within a tenure: its end tells them all.
//! - That a call leaves changes nothing in the table: the request keeps its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::{LogIndex, RequestId, SessionId};
use holdfast_proto::v1::Granted;
use tokio::sync::oneshot;

use super::refusals;
use super::registry::{Registry, State};
use crate::session::calls::CallError;

/// What becomes of a request that waits.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Told {
    /// It holds, as of this index.
    Granted(LogIndex, Granted),
    /// It left the queue by a cancel.
    Left,
    /// Its session is over.
    SessionOver,
    /// This node serves it no more. The request keeps its place.
    Elsewhere {
        /// Where clients reach the leader, if another is known.
        leader: Option<String>,
    },
}

/// Whose request, which, and which of the calls that wait for it.
type Key = (SessionId, RequestId, u64);

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
    /// Lets a call wait for what becomes of a request.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the limit is reached, or this node does not serve.
    pub(super) fn wait_for(
        self: &Arc<Self>,
        session: SessionId,
        request: RequestId,
    ) -> Result<Call, CallError> {
        let limit = self.settings.max_waiting_calls;
        let mut state = self.lock();
        state.serves()?;
        if state.waiting.calls.len() >= limit {
            let message = format!(
                "{limit} calls wait at this node, the limit (max_waiting_calls); try again later, \
                 or wait on a stream"
            );
            return Err(refusals::limit_of_others("max_waiting_calls", message).into());
        }
        state.waiting.last += 1;
        let key = (session, request, state.waiting.last);
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
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Tells every call that waits for a request what became of it.
    pub(super) fn tell(&mut self, session: SessionId, request: RequestId, what: &Told) {
        self.tell_all((session, request, 0)..=(session, request, u64::MAX), what);
    }

    /// Tells every call of a session that is over.
    pub(super) fn session_over(&mut self, session: SessionId) {
        let all = RequestId::new(0)..=RequestId::new(u64::MAX);
        let (first, last) = all.into_inner();
        self.tell_all((session, first, 0)..=(session, last, u64::MAX), &Told::SessionOver);
    }

    /// Tells every call to go elsewhere.
    pub(super) fn elsewhere(&mut self, leader: Option<&str>) {
        for tell in std::mem::take(&mut self.calls).into_values() {
            let _ = tell.send(Told::Elsewhere { leader: leader.map(str::to_owned) });
        }
    }

    fn tell_all(&mut self, keys: std::ops::RangeInclusive<Key>, what: &Told) {
        for (_, tell) in self.calls.extract_if(keys, |_, _| true) {
            // Nobody listens any more: the call was dropped.
            let _ = tell.send(what.clone());
        }
    }
}

impl Call {
    /// Waits until something becomes of the request. Cancel safe.
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
