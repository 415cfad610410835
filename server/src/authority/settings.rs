//! Durations that apply to a scope with fallback.

use std::time::Duration;

use holdfast_keyspace::authority::Durations;

/// How a leader keeps its scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackSettings {
    /// W, V, and the durations derived from them.
    pub durations: Durations,
    /// How long holders in Cassandra may go on once no client enters: at most half of W, so that no
    /// client takes the drain for that of a dead leader.
    pub drain_limit: Duration,
    /// How long Cassandra serves at least, once it does.
    ///
    /// A round trip takes three epochs: at one in five minutes the 32,000 available epochs last for 37
    /// days of nothing but switching.
    pub switch_every: Duration,
}

impl Default for FallbackSettings {
    fn default() -> Self {
        Self {
            durations: Durations::default(),
            drain_limit: Duration::from_secs(10),
            switch_every: Duration::from_mins(5),
        }
    }
}
