//! The list of servers, the choice of the next one to try, and calls that go from one to the next.

use std::sync::Arc;
use std::time::Duration;

use holdfast_guard::{Backoff, part_of};
use holdfast_proto::v1;
use holdfast_runtime::{Rng, Runtime, TransportError};

use crate::{Error, Result, wire};

/// The longest delay between two rounds of a call.
const DELAY_MAX: Duration = Duration::from_millis(500);
/// The longest time for which a client stays away because a node tells it to.
const COME_BACK_MAX: Duration = Duration::from_mins(1);
/// The members that a cluster has at most: an answer that so many attempts without one follow is an old one.
const SERVERS_MAX: usize = 9;

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
        next: Over,
        /// The call may still take effect.
        may_be_done: bool,
    },
}

/// How an attempt at a server, or its stream, came to its end, as far as that decides about the next
/// attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// A node named the endpoint to try next, as a rule the leader's.
    Named(String),
    /// The node answered that it does not serve now, and named no leader.
    Unavailable,
    /// The node serves, and tells when this client's turn comes there.
    Later { endpoint: String, after: Duration },
    /// The node did not answer, or there was no connection to it.
    Unreached,
    /// The stream broke after it had served.
    Broken,
}

impl Over {
    /// A node does not serve; `leader` is the leader's endpoint, if it knows one.
    pub(crate) fn unavailable(leader: Option<String>) -> Self {
        leader.map_or(Self::Unavailable, Self::Named)
    }

    /// Whether a server said that none serves now. One that names a leader does not say that: what counts is how
    /// the attempt at that one ends.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Later { .. })
    }
}

/// Of a read, which changes nothing.
impl From<TransportError> for NoAnswer {
    fn from(error: TransportError) -> Self {
        let (why, next) = match error {
            TransportError::Refused { reason, message } => {
                return Self::Refused { reason, message };
            }
            TransportError::Unavailable { message, leader } => (message, Over::unavailable(leader)),
            other => (other.to_string(), Over::Unreached),
        };
        Self::Elsewhere { why, next, may_be_done: false }
    }
}

/// What the client knows about a call without an answer.
#[derive(Default)]
pub(crate) struct Asked {
    /// The server to begin with, if there is one; once there is an answer, the server that gave it.
    pub(crate) at: Option<String>,
    pub(crate) may_be_done: bool,
    tried: Tried,
}

impl Asked {
    pub(crate) fn beginning_at(at: Option<String>) -> Self {
        Self { at, ..Self::default() }
    }
}

/// Why the attempts so far came to nothing.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    last: String,
    /// A server answered, and does not serve now.
    answered: bool,
    /// Attempts without an answer since then.
    silent: usize,
}

impl Default for Tried {
    fn default() -> Self {
        Self { last: "nobody answered yet".to_owned(), answered: false, silent: 0 }
    }
}

impl Tried {
    /// Notes an attempt's error. An answer says more than the silence of other servers after it.
    pub(crate) fn note(&mut self, why: String, answered: bool) {
        self.silent = if answered { 0 } else { self.silent + 1 };
        if answered || !self.answered || self.silent > SERVERS_MAX {
            (self.last, self.answered) = (why, answered);
        }
    }

    pub(crate) fn last(&self) -> &str {
        &self.last
    }

    /// The error of a client that tried `endpoints` for as long as it `waited`.
    pub(crate) fn unreachable(&self, endpoints: &[String], waited: Duration) -> Error {
        let Self { last, answered, .. } = self.clone();
        Error::Unreachable { endpoints: endpoints.to_vec(), waited, last, answered }
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
        route.hint = asked.at.take();
        let answer = self.runtime.timeout(self.limit, async {
            loop {
                let endpoint = route.next();
                let before = asked.may_be_done;
                // Until the answer proves otherwise: the caller may drop this future while it waits.
                asked.may_be_done = true;
                let over = match self.runtime.timeout(attempt_limit, call(&endpoint)).await {
                    Ok(Ok(answer)) => {
                        asked.at = Some(endpoint);
                        return Ok(answer);
                    }
                    Ok(Err(NoAnswer::Refused { reason, message })) => {
                        return Err(wire::refused(wire::refusal_reason(reason), message));
                    }
                    Ok(Err(NoAnswer::Elsewhere { why, next, may_be_done })) => {
                        asked.may_be_done = before || may_be_done;
                        asked.tried.note(why, next.is_answer());
                        next
                    }
                    Err(_) => {
                        asked.tried.note(format!("{endpoint} does not answer"), false);
                        Over::Unreached
                    }
                };
                if let Some(delay) = route.failed(over, &*self.runtime.rng) {
                    self.runtime.sleep(delay).await;
                }
            }
        });
        answer.await.unwrap_or_else(|_| Err(self.unreachable(&asked.tried)))
    }

    /// The error when the limit has passed.
    pub(crate) fn unreachable(&self, tried: &Tried) -> Error {
        tried.unreachable(&self.endpoints, self.limit)
    }
}

/// Chooses the next server to try: the leader that a node named, else the endpoints in turn, with
/// growing, jittered delays.
///
/// # When there is a delay
///
/// - After each node that answered *unavailable*, the first one too. While the members elect a leader
///   every one of them answers that, and they need their time for the election: without the delay
///   each of thousands of clients would ask all of them at once, again and again.
/// - After a round of endpoints that were not reached: to try them costs the living nodes nothing.
/// - Before a named leader only if it was not reached since the last delay: members name a leader that
///   died until they miss it. And after a round of nodes that name each other.
pub(crate) struct Route {
    endpoints: Vec<String>,
    at: usize,
    hint: Option<String>,
    /// The endpoint of the present attempt.
    current: String,
    /// Endpoints that were not reached since the last success or delay. At most one for each attempt.
    unreached: Vec<String>,
    /// Attempts since the last success or delay.
    attempts: usize,
    delays: Backoff,
}

impl Route {
    /// `delay_max` bounds the delay between two rounds.
    pub(crate) fn new(endpoints: Vec<String>, delay_max: Duration) -> Self {
        let delays = Backoff::new(delay_max);
        let (current, unreached) = (String::new(), Vec::new());
        Self { endpoints, at: 0, hint: None, current, unreached, attempts: 0, delays }
    }

    pub(crate) fn next(&mut self) -> String {
        self.attempts += 1;
        let in_turn = || {
            let endpoint = self.endpoints.get(self.at % self.endpoints.len().max(1));
            endpoint.cloned().unwrap_or_default()
        };
        self.current = self.hint.take().unwrap_or_else(in_turn);
        self.current.clone()
    }

    /// The next attempt is at `endpoint`, which is known to serve.
    pub(crate) fn lead_to(&mut self, endpoint: String) {
        self.hint = Some(endpoint);
    }

    /// Records that the attempt led to a session stream: delays start from the minimum again.
    pub(crate) fn succeeded(&mut self) {
        self.attempts = 0;
        self.unreached.clear();
        self.delays.reset();
    }

    /// Records that the attempt, or its stream, is over. Returns the delay before the next attempt.
    pub(crate) fn failed(&mut self, over: Over, rng: &dyn Rng) -> Option<Duration> {
        if let Over::Later { endpoint, after } = over {
            return Some(self.come_back(endpoint, after, rng));
        }
        let is_unavailable = self.takes_delay(over);
        // Two nodes that name each other must not cause retries without delay.
        let round = self.endpoints.len() + usize::from(self.hint.is_some());
        if !is_unavailable && self.attempts < round {
            return None;
        }
        self.attempts = 0;
        self.unreached.clear();
        Some(self.delays.next(rng))
    }

    /// The node has given each of its clients a time of its own, so the delay grows neither with the
    /// attempts nor by much of its own.
    fn come_back(&mut self, endpoint: String, after: Duration, rng: &dyn Rng) -> Duration {
        self.hint = Some(endpoint);
        self.attempts = 0;
        self.unreached.clear();
        let after = after.min(COME_BACK_MAX);
        after + part_of(after / 4, rng)
    }

    /// Sets what comes next; true if a delay comes first.
    fn takes_delay(&mut self, over: Over) -> bool {
        let is_unavailable = match over {
            Over::Named(leader) if !self.unreached.contains(&leader) => {
                self.hint = Some(leader);
                return false;
            }
            Over::Named(_) | Over::Unavailable | Over::Later { .. } => true,
            Over::Unreached => {
                self.unreached.push(self.current.clone());
                false
            }
            Over::Broken => false,
        };
        self.hint = None;
        self.at = (self.at + 1) % self.endpoints.len().max(1);
        is_unavailable
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

        assert_eq!((route.next().as_str(), route.failed(Over::Unreached, &Zeros)), ("a:1", None));
        assert_eq!(route.next(), "b:2");
        assert!(route.failed(Over::Unreached, &Zeros).is_some());
        assert_eq!(route.next(), "a:1");
    }

    /// SC1: while the members elect a leader, each client asks one of them at a time, and ever more
    /// rarely.
    #[test]
    fn the_first_node_that_is_unavailable_is_followed_by_a_delay() {
        let mut route = route(&["a:1", "b:2", "c:3"]);

        let mut delays = Vec::new();
        for endpoint in ["a:1", "b:2", "c:3", "a:1"] {
            assert_eq!(route.next(), endpoint);
            delays.push(route.failed(Over::Unavailable, &Zeros).expect("it answered"));
        }
        let ms = |delay: &Duration| delay.as_millis();
        assert_eq!(delays.iter().map(ms).collect::<Vec<_>>(), [25, 50, 100, 200]);
    }

    /// Until they miss it, the members go on naming a leader that died.
    #[test]
    fn a_named_leader_that_was_not_reached_is_asked_again_only_after_a_delay() {
        let mut route = route(&["a:1", "b:2", "c:3"]);

        assert_eq!(route.next(), "a:1");
        route.succeeded();
        assert_eq!(route.failed(Over::Broken, &Zeros), None);
        let names_a = || Over::Named("a:1".into());
        assert_eq!((route.next().as_str(), route.failed(names_a(), &Zeros)), ("b:2", None));
        assert_eq!((route.next().as_str(), route.failed(Over::Unreached, &Zeros)), ("a:1", None));
        assert_eq!(route.next(), "c:3");
        assert!(route.failed(names_a(), &Zeros).is_some(), "it was not reached just now");
        assert_eq!((route.next().as_str(), route.failed(names_a(), &Zeros)), ("a:1", None));
        assert_eq!(route.next(), "a:1", "it may be back");
    }

    #[test]
    fn an_answer_says_more_than_the_silence_after_it_until_nobody_answers() {
        let error = |tried: &Tried| match tried.unreachable(&[], Duration::ZERO) {
            Error::Unreachable { last, answered, .. } => (last, answered),
            other => panic!("{other:?}"),
        };
        let mut tried = Tried::default();
        tried.note("b cannot be reached".into(), Over::Named("b".into()).is_answer());
        assert_eq!(error(&tried), ("b cannot be reached".into(), false), "somebody leads");
        tried.note("no quorum".into(), Over::Unavailable.is_answer());
        for _ in 0..SERVERS_MAX {
            tried.note("silent".into(), Over::Unreached.is_answer());
            assert_eq!(error(&tried), ("no quorum".into(), true));
        }
        tried.note("silent".into(), false);
        assert_eq!(error(&tried), ("silent".into(), false));
    }

    #[test]
    fn a_named_leader_is_tried_at_once_also_if_it_is_no_endpoint() {
        let mut route = route(&["a:1"]);

        route.next();
        assert_eq!(route.failed(Over::Named("leader:9".into()), &Zeros), None);
        assert_eq!(route.next(), "leader:9");
    }

    #[test]
    fn a_node_that_names_a_time_is_asked_again_then() {
        let mut route = route(&["a:1", "b:2"]);
        let later = |after| Over::Later { endpoint: "b:2".into(), after };
        let after = Duration::from_secs(3);

        for _ in 0..3 {
            route.next();
            assert_eq!(route.failed(later(after), &Zeros), Some(after), "and it does not grow");
            assert_eq!(route.next(), "b:2");
        }
        assert_eq!(route.failed(later(Duration::MAX), &Zeros), Some(COME_BACK_MAX));
    }

    #[test]
    fn two_nodes_that_name_each_other_are_asked_ever_more_rarely() {
        let mut route = route(&["a:1", "b:2"]);
        let mut waited = Duration::ZERO;
        for turn in 0..40 {
            let named = if turn % 2 == 0 { "b:2" } else { "a:1" };
            route.next();
            waited += route.failed(Over::Named(named.into()), &Zeros).unwrap_or_default();
        }

        assert!(waited >= Duration::from_secs(1), "{waited:?}");
    }

    #[test]
    fn delays_grow_to_their_bound_and_begin_anew_after_a_success() {
        let mut route = route(&["a:1"]);
        let mut delay = || {
            route.next();
            route.failed(Over::Unreached, &Zeros).expect("the only endpoint failed")
        };
        let first = delay();
        let later: Vec<_> = (0..8).map(|_| delay()).collect();

        assert_eq!(first, Duration::from_millis(25), "half the delay is fixed, half is jitter");
        assert_eq!(later.last(), Some(&Duration::from_millis(200)));
        route.succeeded();
        route.next();
        assert_eq!(route.failed(Over::Unreached, &Zeros), Some(first));
    }
}
