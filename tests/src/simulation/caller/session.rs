//! A session kept alive by unary calls: where they go, and until when the session is certain.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_proto::v1::{CloseSessionRequest, KeepAliveRequest, OpenSessionRequest, SessionKey};
use holdfast_runtime::{Instant, Runtime, Task, TransportError};
use tonic::{Code, Status};

use super::{AGAIN, ANSWERED_WITHIN};
use crate::sim::Calls;
use crate::simulation::stage::lock;

/// How often the client tries to close the session; after that its lease runs out.
const CLOSE_TRIES: u64 = 3;

/// The connection to the leader. Cheap to clone; all clones use the same address.
#[derive(Clone)]
pub(in crate::simulation) struct Line {
    calls: Calls,
    endpoints: Arc<[String]>,
    /// The address of the next call: one of the endpoints, or of a leader that joined later.
    at: Arc<Mutex<String>>,
    runtime: Runtime,
}

impl Line {
    pub(in crate::simulation) fn new(
        (calls, endpoints): (Calls, Vec<String>),
        runtime: Runtime,
    ) -> Self {
        let at = endpoints.first().cloned().unwrap_or_default();
        Self { calls, endpoints: endpoints.into(), at: Arc::new(Mutex::new(at)), runtime }
    }

    /// One call, to the last known leader. "Unavailable" if no answer came in time; the request may
    /// have been applied.
    pub(super) async fn ask<A, F>(
        &self,
        within: Duration,
        ask: impl FnOnce(Calls, String) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let node = lock(&self.at).clone();
        let asked = ask(self.calls.clone(), node.clone());
        let answer = self.runtime.timeout(within, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::unavailable("no answer in time")));
        if let Err(status) = answer.as_ref()
            && status.code() == Code::Unavailable
        {
            *lock(&self.at) = self.elsewhere(&node, status);
        }
        answer
    }

    /// The leader that a node points to; otherwise the next endpoint.
    fn elsewhere(&self, node: &str, status: &Status) -> String {
        if let TransportError::Unavailable { leader: Some(leader), .. } =
            holdfast::told(node, status)
        {
            return leader;
        }
        let known = self.endpoints.iter().position(|known| known == node);
        let next = known.map_or(0, |at| (at + 1) % self.endpoints.len());
        self.endpoints.get(next).cloned().unwrap_or_default()
    }
}

/// A session, kept alive until this is dropped.
pub(super) struct Session {
    key: SessionKey,
    ttl: Duration,
    belief: Arc<Belief>,
    _keeping: Task,
}

/// Until when a session is certain.
struct Belief {
    runtime: Runtime,
    state: Mutex<State>,
}

enum State {
    Until(Instant),
    /// Its deadline passed. This is final, whatever is learned later (DESIGN §5.6).
    Over,
    /// The store reported that it does not know the session.
    Unknown,
}

impl Belief {
    fn until(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        match *state {
            State::Until(until) if self.runtime.clock.now() < until => Some(until),
            State::Until(_) => {
                *state = State::Over;
                None
            }
            State::Over | State::Unknown => None,
        }
    }

    /// A keepalive sent at that moment was answered. Changes nothing if the answer came too late.
    fn renewed(&self, sent: Instant, ttl: Duration) {
        if let Some(until) = self.until() {
            *lock(&self.state) = State::Until(until.max(certain_until(sent, ttl)));
        }
    }
}

/// As the wire format defines it: less a tenth for the difference of two clocks, and 20 ms.
fn certain_until(sent: Instant, ttl: Duration) -> Instant {
    sent + (ttl * 9 / 10).saturating_sub(Duration::from_millis(20))
}

impl Session {
    /// Opens a session with this lease and label; `None` if there was no answer, or it came too
    /// late.
    pub(super) async fn open(
        line: &Line,
        runtime: &Runtime,
        (ttl, label): (Duration, &str),
    ) -> Option<Self> {
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let asked = OpenSessionRequest {
            ttl_ms: Some(ttl_ms),
            label: label.to_owned(),
            ..OpenSessionRequest::default()
        };
        let sent = runtime.clock.now();
        let call = line.ask(ANSWERED_WITHIN, |calls, node| async move {
            calls.open_session(&node, asked).await
        });
        let opened = call.await.ok()?;
        let (key, ttl) = (opened.session?, Duration::from_millis(opened.ttl_ms));
        let state = Mutex::new(State::Until(certain_until(sent, ttl)));
        let belief = Arc::new(Belief { runtime: runtime.clone(), state });
        belief.until()?;
        let keeping = keep_alive(line.clone(), key.clone(), ttl, Arc::clone(&belief));
        let keeping = runtime.spawn("keepalive calls", keeping);
        Some(Self { key, ttl, belief, _keeping: keeping })
    }

    pub(super) fn key(&self) -> SessionKey {
        self.key.clone()
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }

    /// Until when every hold is certain; `None` if none is any more.
    pub(super) fn safe_until(&self) -> Option<Instant> {
        self.belief.until()
    }

    pub(super) fn is_safe(&self) -> bool {
        self.safe_until().is_some()
    }

    /// Whether the store reported that there is no such session.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(*lock(&self.belief.state), State::Unknown)
    }

    /// Ends the session if the leader can be reached; otherwise it runs out.
    pub(super) async fn close(self, line: &Line) {
        for _ in 0..CLOSE_TRIES {
            let asked = CloseSessionRequest { session: Some(self.key.clone()) };
            let call = line.ask(ANSWERED_WITHIN, |calls, node| async move {
                calls.close_session(&node, asked).await
            });
            match call.await {
                Err(status) if status.code() == Code::Unavailable => {
                    self.belief.runtime.sleep(AGAIN).await;
                }
                _ => return,
            }
        }
    }
}

/// Sends a keepalive four times in a lease, and again at once where there is no answer; each with a
/// send time of its own (DESIGN §5.4).
async fn keep_alive(line: Line, key: SessionKey, ttl: Duration, belief: Arc<Belief>) {
    let mut pause = ttl / 4;
    while belief.until().is_some() {
        belief.runtime.sleep(pause).await;
        let sent = belief.runtime.clock.now();
        let asked = KeepAliveRequest { session: Some(key.clone()) };
        let call =
            line.ask(ttl / 4, |calls, node| async move { calls.keep_alive(&node, asked).await });
        match call.await {
            Ok(kept) => {
                belief.renewed(sent, Duration::from_millis(kept.ttl_ms));
                pause = ttl / 4;
            }
            Err(status) if status.code() == Code::NotFound => {
                *lock(&belief.state) = State::Unknown;
            }
            Err(_) => pause = AGAIN,
        }
    }
}
