//! The admission of resumes: so many in a second, and a time to come back at for the others.
//!
//! After a change of leader every client of the store comes back at once, and so they do when a network is
//! whole again. A resume costs about a tenth of a millisecond, most of it for its connection. Without an
//! admission the thread that serves would do nothing else for seconds, though it may have heartbeats to
//! answer; and clients that nobody answers give up and connect again, which costs as much once more.
//!
//! So the resumes begin one after the other, `resumes_per_second` of them. A client that has to wait longer
//! than [`WAITS_HERE_MAX`] is told to come back, and when: each client at a time of its own, in the order of
//! their coming.
//!
//! # Invariants
//!
//! - At most `resumes_per_second` · (*s* + [`BURST`] + [`WAITS_HERE_MAX`]) resumes are let in within
//!   *s* seconds; those that wait here are as many as fit into [`WAITS_HERE_MAX`].
//! - A client that is told to come back is told so for at most as long as all that are missing need, and
//!   at most [`BACK_MAX`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use holdfast_runtime::Instant;

use crate::lengths::millis;

/// The part of a second whose resumes may begin at once, if there were none before.
const BURST: Duration = Duration::from_millis(100);
/// How long a resume waits here for its turn. A client with the shortest lease gives a node half a
/// second to answer its Open.
const WAITS_HERE_MAX: Duration = Duration::from_millis(250);
/// The longest time after which a client is told to come back.
const BACK_MAX: Duration = Duration::from_mins(1);
/// Clients come back up to a quarter later than they are told, and a little more.
const LATER_BY: Duration = Duration::from_secs(1);

/// When a resume may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// At this instant, which is at most [`WAITS_HERE_MAX`] away.
    At(Instant),
    /// Not soon: the client has to come back after this time.
    Back(Duration),
}

/// The resumes of one node.
#[derive(Debug)]
pub(super) struct Admission {
    /// Between the beginnings of two resumes.
    every: Duration,
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    /// When the next resume may begin.
    next: Option<Instant>,
    /// When the next client that is told to come back shall do so.
    back: Option<Instant>,
}

impl Admission {
    pub(super) fn new(per_second: u64) -> Self {
        let every = Duration::from_micros(1_000_000 / per_second.clamp(1, 1_000_000));
        Self { every, line: Mutex::default() }
    }

    /// The turn of a resume that comes at `now`, while `missing` sessions have no stream.
    pub(super) fn turn(&self, now: Instant, missing: u64) -> Turn {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let first = line.next.map_or(now - BURST, |next| next.max(now - BURST));
        let turn = first.max(now);
        if turn.saturating_since(now) <= WAITS_HERE_MAX {
            line.next = Some(first + self.every);
            return Turn::At(turn);
        }
        // Behind those that were told before it; but clients that come back too early, as those of 0.1
        // do, take several of these times each, so they begin anew with the line.
        let last = turn + self.time_for(missing);
        let back = line.back.filter(|back| (turn..last).contains(back)).unwrap_or(turn);
        line.back = Some(back + self.every);
        Turn::Back(back.saturating_since(now).min(BACK_MAX))
    }

    /// How long so many resumes take; at most [`BACK_MAX`].
    pub(super) fn time_for(&self, sessions: u64) -> Duration {
        let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
        self.every.saturating_mul(sessions).min(BACK_MAX)
    }

    /// How much longer leases last in a new tenure in which so many sessions have to come back, since the
    /// last of them are told to wait for the others (§5.3).
    ///
    /// None if all of them fit into what a node lets in without sending anybody away.
    pub(super) fn longer_by(&self, sessions: u64) -> Duration {
        let time = self.time_for(sessions);
        if time <= BURST + WAITS_HERE_MAX { Duration::ZERO } else { wait_of(time) }
    }

    /// The time over which the clients of so many streams spread their return, if they lose this node: a
    /// quarter of what their resumes take. Below a few dozen streams it is nothing.
    pub(super) fn spread_ms(&self, streams: u64) -> u64 {
        millis(self.time_for(streams) / 4)
    }
}

/// The longest time until a client is here that was told to come back after `back`.
pub(super) fn wait_of(back: Duration) -> Duration {
    back + back / 4 + LATER_BY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_few_clients_are_let_in_at_once_at_any_time() {
        let admission = Admission::new(1_000);
        for start in [5_000, 6_000] {
            for _ in 0..100 {
                assert_eq!(admission.turn(at(start), 100), Turn::At(at(start)));
            }
        }
        assert_eq!(admission.longer_by(350), Duration::ZERO);
        assert_eq!(admission.spread_ms(3), 0);
    }

    /// SC1: each of them gets a time of its own, and all these times together are no longer than their
    /// resumes take.
    #[test]
    fn of_many_clients_each_gets_a_turn_or_a_time_to_come_back_at() {
        let admission = Admission::new(1_000);
        let turns: Vec<_> = (0..5_000).map(|_| admission.turn(at(5_000), 5_000)).collect();

        let here = turns.iter().filter(|turn| matches!(turn, Turn::At(_))).count();
        assert_eq!(here, 100 + 251, "the burst, and those who wait a quarter of a second");
        let mut backs: Vec<Duration> = Vec::new();
        for turn in turns {
            if let Turn::Back(after) = turn {
                assert!(backs.last().is_none_or(|last| *last < after), "one after the other");
                backs.push(after);
            }
        }
        assert_eq!((backs.first(), backs.last()), (Some(&ms(251)), Some(&ms(4_899))));
        assert!(wait_of(ms(4_899)) <= admission.longer_by(5_000), "within their longer leases");
    }

    /// Clients of 0.1 come back within half a second whatever they are told.
    #[test]
    fn clients_that_do_not_wait_put_nobody_off_for_longer_than_all_need() {
        let admission = Admission::new(1_000);
        let mut longest = Duration::ZERO;
        for round in 0..20 {
            for _ in 0..3_000 {
                if let Turn::Back(after) = admission.turn(at(5_000 + round * 100), 3_000) {
                    longest = longest.max(after);
                }
            }
        }
        assert!(longest <= ms(251 + 3_000), "{longest:?}");
        assert!(longest >= ms(2_500), "{longest:?}");
    }

    #[test]
    fn clients_that_come_when_they_were_told_are_let_in() {
        let admission = Admission::new(1_000);
        let mut due = Vec::new();
        for _ in 0..2_000 {
            if let Turn::Back(after) = admission.turn(at(5_000), 2_000) {
                due.push(at(5_000) + after);
            }
        }
        assert!(due.len() > 1_000);
        for when in due {
            let turn = admission.turn(when, 1);
            assert!(matches!(turn, Turn::At(_)), "at {when:?}: {turn:?}");
        }
    }

    #[test]
    fn no_rate_and_no_number_of_sessions_overflows() {
        for rate in [0, 1, u64::MAX] {
            let admission = Admission::new(rate);
            assert!(admission.longer_by(u64::MAX) <= wait_of(BACK_MAX));
            assert!(admission.spread_ms(u64::MAX) <= 15_000);
            assert_eq!(admission.turn(at(0), u64::MAX), Turn::At(at(0)));
        }
    }
}
