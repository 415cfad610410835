//! How long a command may run, from the state of the hold (DESIGN §8).

use std::sync::Arc;
use std::time::Duration;

use holdfast::{GuardStates, Instant};
use holdfast_runtime::Clock;

use super::Held;

/// How long before the safe deadline the command is killed: the time a kill needs to be done.
const KILL_BEFORE: Duration = Duration::from_millis(200);

/// A quarter of the TTL. In a scope with fallback a hold may at any time be certain for much less,
/// and is extended as often: then a third of its certain time at the start.
pub(super) fn usual_grace(held: &Held, now: Instant) -> Duration {
    let safe_until = held.states.now().safe_until();
    let ahead = safe_until.map(|until| until.saturating_since(now)).unwrap_or_default();
    if ahead < held.ttl / 2 { ahead / 3 } else { held.ttl / 4 }
}

/// The action that the hold's state requires now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Nothing before this instant.
    WaitUntil(Instant),
    /// Ask the command to end, and kill it at this instant.
    AskToEnd(Instant),
    Kill,
}

pub(super) struct HoldWatch {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) states: GuardStates,
    pub(super) grace: Duration,
}

impl HoldWatch {
    pub(super) fn demand(&self) -> Demand {
        match self.states.now().safe_until() {
            Some(safe_until) => demand(safe_until, self.grace, self.clock.now()),
            None => Demand::Kill,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.demand() == Demand::Kill
    }
}

/// TERM at `safe_until − grace`, KILL at `safe_until − 200 ms` (DESIGN §8).
fn demand(safe_until: Instant, grace: Duration, now: Instant) -> Demand {
    let (ask_at, kill_at) = (safe_until - grace, safe_until - KILL_BEFORE);
    if now >= kill_at {
        Demand::Kill
    } else if now >= ask_at {
        Demand::AskToEnd(kill_at)
    } else {
        Demand::WaitUntil(ask_at)
    }
}

#[cfg(test)]
mod tests {
    use holdfast::GuardState;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    /// DESIGN §8 with a TTL of 10 s.
    #[test]
    fn the_command_is_asked_to_end_a_grace_before_the_deadline_and_killed_200_ms_before() {
        let grace = Duration::from_millis(2_500);
        let at_time = |now| demand(at(9_000), grace, at(now));

        assert_eq!(at_time(0), Demand::WaitUntil(at(6_500)));
        assert_eq!(at_time(6_500), Demand::AskToEnd(at(8_800)));
        assert_eq!(at_time(8_799), Demand::AskToEnd(at(8_800)));
        assert_eq!(at_time(8_800), Demand::Kill);
    }

    #[test]
    fn a_hold_that_is_certain_for_less_than_its_ttl_leaves_a_grace_in_proportion() {
        let grace_of = |safe_until| {
            let states = GuardStates::fixed(GuardState::Held { safe_until });
            let ttl = Duration::from_secs(10);
            let held = Held::of_locks(states, &[], None, ttl);
            usual_grace(&held, at(1_000))
        };
        assert_eq!(grace_of(at(9_000)), Duration::from_millis(2_500));
        assert_eq!(grace_of(at(4_000)), Duration::from_secs(1), "an authority of 4 s, say");
    }

    #[test]
    fn a_grace_shorter_than_the_kill_still_kills_in_time() {
        assert_eq!(demand(at(9_000), Duration::ZERO, at(8_800)), Demand::Kill);
    }
}
