//! The list of servers, and the choice of the next one to try.

use std::time::Duration;

use holdfast_guard::Backoff;
use holdfast_runtime::Rng;

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

    /// The endpoint to try now.
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
