//! The list of servers, the choice of the next one to try, and calls that go from one to the next.

use std::sync::Arc;
use std::time::Duration;

use holdfast_guard::Backoff;
use holdfast_proto::v1;
use holdfast_runtime::{Rng, Runtime, TransportError};

use crate::{Error, Result, wire};

/// The longest delay between two rounds of a call.
const DELAY_MAX: Duration = Duration::from_millis(500);

/// The servers of calls that need no session.
#[derive(Clone)]
pub(crate) struct Servers {
    pub(crate) endpoints: Arc<[String]>,
    pub(crate) runtime: Runtime,
    pub(crate) limit: Duration,
}

/// Why one server gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Nothing was changed, and the same call will not succeed by itself.
    Refused {
        reason: v1::RefusalReason,
        /// The server's.
        message: String,
    },
    /// Another server may answer, or this one later.
    Elsewhere {
        why: String,
        /// The leader's endpoint for clients, if the server named it.
        leader: Option<String>,
        /// The call may still take effect.
        may_be_done: bool,
    },
}

/// Of a read, which changes nothing.
impl From<TransportError> for NoAnswer {
    fn from(error: TransportError) -> Self {
        let (why, leader) = match error {
            TransportError::Refused { reason, message } => {
                return Self::Refused { reason, message };
            }
            TransportError::Unavailable { message, leader } => (message, leader),
            other => (other.to_string(), None),
        };
        Self::Elsewhere { why, leader, may_be_done: false }
    }
}

/// What the client knows about a call without an answer.
pub(crate) struct Asked {
    pub(crate) may_be_done: bool,
    last: String,
}

impl Default for Asked {
    fn default() -> Self {
        Self { may_be_done: false, last: "nobody answered yet".to_owned() }
    }
}

impl Servers {
    /// Calls one server after the other, or the leader that one of them names, until one answers.
    /// `attempt_limit` bounds each attempt.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] by a server; [`Error::Unreachable`] if none answered within the limit.
    pub(crate) async fn ask<T, F>(
        &self,
        attempt_limit: Duration,
        asked: &mut Asked,
        call: impl Fn(&str) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, NoAnswer>>,
    {
        let mut route = Route::new(self.endpoints.to_vec(), DELAY_MAX);
        let answer = self.runtime.timeout(self.limit, async {
            loop {
                let endpoint = route.next();
                let before = asked.may_be_done;
                // Until the answer proves otherwise: the caller may drop this future while it waits.
                asked.may_be_done = true;
                let named = match self.runtime.timeout(attempt_limit, call(&endpoint)).await {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(NoAnswer::Refused { reason, message })) => {
                        return Err(wire::refused(wire::refusal_reason(reason), message));
                    }
                    Ok(Err(NoAnswer::Elsewhere { why, leader, may_be_done })) => {
                        asked.may_be_done = before || may_be_done;
                        asked.last = why;
                        leader
                    }
                    Err(_) => {
                        asked.last = format!("{endpoint} does not answer");
                        None
                    }
                };
                if let Some(delay) = route.failed(named, &*self.runtime.rng) {
                    self.runtime.sleep(delay).await;
                }
            }
        });
        answer.await.unwrap_or_else(|_| Err(self.unreachable(asked.last.clone())))
    }

    /// The error when the limit has passed; `last` is the error of the last attempt.
    pub(crate) fn unreachable(&self, last: String) -> Error {
        Error::Unreachable { endpoints: self.endpoints.to_vec(), waited: self.limit, last }
    }
}

/// Chooses the next server to try: the leader that a node named, else the endpoints in turn, with a
/// growing, jittered delay after each round without a leader.
pub(crate) struct Route {
    endpoints: Vec<String>,
    at: usize,
    hint: Option<String>,
    /// Attempts since the last success or delay.
    attempts: usize,
    delays: Backoff,
}

impl Route {
    /// `delay_max` bounds the delay between two rounds.
    pub(crate) fn new(endpoints: Vec<String>, delay_max: Duration) -> Self {
        let delays = Backoff::new(delay_max);
        Self { endpoints, at: 0, hint: None, attempts: 0, delays }
    }

    pub(crate) fn next(&mut self) -> String {
        self.attempts += 1;
        if let Some(leader) = self.hint.take() {
            return leader;
        }
        let endpoint = self.endpoints.get(self.at % self.endpoints.len().max(1));
        endpoint.cloned().unwrap_or_default()
    }

    /// Records that the attempt led to a session stream: delays start from the minimum again.
    pub(crate) fn succeeded(&mut self) {
        self.attempts = 0;
        self.delays.reset();
    }

    /// Records that the attempt, or its stream, is over; `leader` is the leader, if a node named
    /// one. Returns the delay before the next attempt.
    pub(crate) fn failed(&mut self, leader: Option<String>, rng: &dyn Rng) -> Option<Duration> {
        if leader.is_none() {
            self.at = (self.at + 1) % self.endpoints.len().max(1);
        }
        self.hint = leader;
        // Two nodes that name each other must not cause retries without delay.
        if self.attempts < self.endpoints.len() + usize::from(self.hint.is_some()) {
            return None;
        }
        self.attempts = 0;
        Some(self.delays.next(rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Zeros;

    impl Rng for Zeros {
        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    fn route(endpoints: &[&str]) -> Route {
        let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
        Route::new(endpoints, Duration::from_millis(400))
    }

    #[test]
    fn every_endpoint_is_tried_before_the_first_delay() {
        let mut route = route(&["a:1", "b:2"]);

        assert_eq!((route.next().as_str(), route.failed(None, &Zeros)), ("a:1", None));
        assert_eq!(route.next(), "b:2");
        assert!(route.failed(None, &Zeros).is_some());
        assert_eq!(route.next(), "a:1");
    }

    #[test]
    fn a_named_leader_is_tried_at_once_also_if_it_is_no_endpoint() {
        let mut route = route(&["a:1"]);

        route.next();
        assert_eq!(route.failed(Some("leader:9".into()), &Zeros), None);
        assert_eq!(route.next(), "leader:9");
    }

    #[test]
    fn two_nodes_that_name_each_other_are_asked_ever_more_rarely() {
        let mut route = route(&["a:1", "b:2"]);
        let mut waited = Duration::ZERO;
        for turn in 0..40 {
            let named = if turn % 2 == 0 { "b:2" } else { "a:1" };
            route.next();
            waited += route.failed(Some(named.into()), &Zeros).unwrap_or_default();
        }

        assert!(waited >= Duration::from_secs(1), "{waited:?}");
    }

    #[test]
    fn delays_grow_to_their_bound_and_begin_anew_after_a_success() {
        let mut route = route(&["a:1"]);
        let mut delay = || {
            route.next();
            route.failed(None, &Zeros).expect("the only endpoint failed")
        };
        let first = delay();
        let later: Vec<_> = (0..8).map(|_| delay()).collect();

        assert_eq!(first, Duration::from_millis(25), "half the delay is fixed, half is jitter");
        assert_eq!(later.last(), Some(&Duration::from_millis(200)));
        route.succeeded();
        route.next();
        assert_eq!(route.failed(None, &Zeros), Some(first));
    }
}
