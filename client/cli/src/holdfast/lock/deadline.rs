//! How long a command may run, from the state of the hold (DESIGN §8), and how long the processes that
//! it leaves in its group after its own end.

use std::sync::Arc;
use std::time::Duration;

use holdfast::{GuardStates, Instant};
use holdfast_runtime::Clock;

use super::Held;
use super::group::Left;

/// How long before the safe deadline the command is killed: the time a kill needs to be done.
pub(super) const KILL_BEFORE: Duration = Duration::from_millis(200);

/// A quarter of the TTL. In a scope with fallback a hold may at any time be certain for much less,
/// and is extended as often: then a third of its certain time at the start.
pub(super) fn usual_grace(held: &Held, now: Instant) -> Duration {
    let safe_until = held.states.now().safe_until();
    let ahead = safe_until.map(|until| until.saturating_since(now)).unwrap_or_default();
    if ahead < held.ttl / 2 { ahead / 3 } else { held.ttl / 4 }
}

/// When the store has not answered for half the TTL, where the grace is the usual one: two fifths of the TTL before
/// the safe deadline. Never later than the command is asked to end.
pub(super) fn warns_before(grace: Duration, usual: Duration, ttl: Duration) -> Duration {
    grace.max((usual * 8 / 5).min(ttl * 2 / 5))
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
    /// How long before the safe deadline the hold counts as in jeopardy.
    pub(super) warns_before: Duration,
}

impl HoldWatch {
    pub(super) fn demand(&self) -> Demand {
        match self.states.now().safe_until() {
            Some(safe_until) => demand(safe_until, self.grace, self.clock.now()),
            None => Demand::Kill,
        }
    }

    /// From when on the hold is in jeopardy, unless the store answers; `None` if it is over.
    pub(super) fn in_jeopardy_from(&self) -> Option<Instant> {
        Some(self.states.now().safe_until()? - self.warns_before)
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

/// How long the rest of a command that was asked to end may run on, unless the user sets a limit: as long as most programs
/// need to clean up.
const KILL_AFTER: Duration = Duration::from_secs(10);
/// The first pause between two checks; each further one is twice as long. The kernel does not report the end of a group's
/// last process to a process that is not its parent.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause, and so the longest delay until the lock passes on.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// A process that ends this soon after the command gets no line: the end of a pipe, for example.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// The shortest time between two lines.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// When the rest of the group is killed. `limit` is the user's: it counts from the request to end or from the command's own
/// end, whichever came first. Without it there is a limit only for a command that was asked to end, and did: a command that
/// does not end may have its reasons, and processes that were not asked to end may have work to do.
pub(super) fn kill_at(
    limit: Option<Duration>,
    asked: Option<Instant>,
    ended: Option<Instant>,
) -> Option<Instant> {
    match (limit, asked, ended) {
        (Some(limit), Some(asked), Some(ended)) => Some(asked.min(ended) + limit),
        (Some(limit), Some(since), None) | (Some(limit), None, Some(since)) => Some(since + limit),
        (None, Some(asked), Some(ended)) => Some(asked.max(ended) + KILL_AFTER),
        (_, None, None) | (None, _, _) => None,
    }
}

/// The time since the command itself ended.
#[derive(Debug)]
pub(super) struct Rest {
    /// The command's exit code.
    pub(super) code: u8,
    /// When it ended.
    pub(super) since: Instant,
    pause: Duration,
    /// The last line's contents, and when it was printed.
    said: Option<(Left, Instant)>,
}

impl Rest {
    pub(super) fn new(code: u8, since: Instant) -> Self {
        Self { code, since, pause: PAUSE, said: None }
    }

    /// When to check again.
    pub(super) fn next_look(&mut self, now: Instant) -> Instant {
        let at = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        at
    }

    /// The line to print now about the hold of `what`, if any: after a second, then on every change, at most every ten
    /// seconds.
    pub(super) fn line(&mut self, what: &str, left: Left, now: Instant) -> Option<String> {
        let is_time = match self.said {
            None => now >= self.since + SAY_AFTER,
            Some((said, at)) => said != left && now >= at + SAY_EVERY,
        };
        if !is_time {
            return None;
        }
        self.said = Some((left, now));
        let (processes, verb) = match left {
            Left::Nothing => return None,
            Left::Running(Some(1)) => ("1 process".to_owned(), "runs"),
            Left::Running(Some(count)) => (format!("{count} processes"), "run"),
            Left::Running(None) => ("processes".to_owned(), "run"),
        };
        Some(format!(
            "the command has ended, but {processes} of its group still {verb}: holding {what} until all have ended \
             (--release-at-exit does not wait for them, --kill-after ends them)"
        ))
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

    #[test]
    fn what_nobody_asked_to_end_is_killed_only_after_a_limit_of_the_users_own() {
        let limit = Some(Duration::from_secs(2));

        assert_eq!(kill_at(None, None, None), None);
        assert_eq!(kill_at(None, None, Some(at(100))), None);
        assert_eq!(kill_at(limit, None, None), None);
        assert_eq!(kill_at(limit, None, Some(at(100))), Some(at(2_100)));
    }

    #[test]
    fn what_was_asked_to_end_is_killed_ten_seconds_after_the_command_itself_has_ended() {
        assert_eq!(kill_at(None, Some(at(100)), None), None, "it may have its reasons");
        assert_eq!(kill_at(None, Some(at(100)), Some(at(5_000))), Some(at(15_000)));
        assert_eq!(
            kill_at(None, Some(at(60_000)), Some(at(5_000))),
            Some(at(70_000)),
            "asked late"
        );
    }

    #[test]
    fn a_limit_of_the_users_own_counts_from_whichever_came_first() {
        let limit = Some(Duration::from_secs(2));

        assert_eq!(kill_at(limit, Some(at(100)), None), Some(at(2_100)));
        assert_eq!(kill_at(limit, Some(at(100)), Some(at(1_000))), Some(at(2_100)));
        assert_eq!(kill_at(limit, Some(at(9_000)), Some(at(1_000))), Some(at(3_000)));
    }

    #[test]
    fn looks_come_less_often_the_longer_it_lasts_and_never_less_than_five_times_a_second() {
        let mut rest = Rest::new(0, at(0));
        let pauses = [(); 6].map(|()| rest.next_look(at(1_000)).saturating_since(at(1_000)));

        assert_eq!(pauses.map(|pause| pause.as_millis()), [20, 40, 80, 160, 200, 200]);
    }

    #[test]
    fn how_many_processes_are_waited_for_is_said_after_a_second_and_when_it_has_changed() {
        let mut rest = Rest::new(0, at(0));
        let mut line = |count, ms| rest.line("the lock jobs", Left::Running(Some(count)), at(ms));

        assert_eq!(line(2, 999), None, "the end of a pipe");
        let first = line(2, 1_000).unwrap();
        assert!(
            first.contains("2 processes of its group still run: holding the lock jobs"),
            "{first}"
        );
        assert_eq!(line(1, 10_999), None, "not so soon");
        assert!(line(1, 11_000).unwrap().contains("1 process of its group still runs"));
        assert_eq!(line(1, 60_000), None, "nothing new");
        assert_eq!(line(3, 60_000).map(|line| line.contains("3 processes")), Some(true));
    }
}
