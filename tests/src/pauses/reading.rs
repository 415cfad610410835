//! What is measured, from the instants of grants and answers.

use std::time::Duration;

use holdfast_runtime::Instant;

/// What was measured in a stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its length.
    pub lasted: Duration,
    /// Grants in it.
    pub grants: u64,
    /// The longest time in which no client was granted anything, although all asked.
    pub longest_pause: Duration,
    /// The longest that one client waited for a free lock.
    pub slowest_grant: Duration,
    /// Of a hundred grants, one took longer.
    pub p99_grant: Duration,
    /// For each node the longest that it took for an answer that needs no other node: it comes from
    /// the thread that runs Raft.
    pub slowest_answers: Vec<Duration>,
    /// The longest delay of a timer in the measuring process: the machine's share in all of these.
    pub latest_timer: Duration,
}

/// Adds up a [`Reading`].
#[derive(Debug)]
pub struct Gauge {
    since: Instant,
    last_grant: Instant,
    /// How long each grant took.
    took: Vec<Duration>,
    reading: Reading,
}

impl Gauge {
    /// Begins at `now`, with so many nodes.
    pub fn new(nodes: usize, now: Instant) -> Self {
        Self { since: now, last_grant: now, took: Vec::new(), reading: empty(nodes) }
    }

    /// A client that asked at `asked` was granted its lock.
    pub fn granted(&mut self, asked: Instant, now: Instant) {
        let took = now.saturating_since(asked);
        self.took.push(took);
        let reading = &mut self.reading;
        reading.grants += 1;
        reading.slowest_grant = reading.slowest_grant.max(took);
        reading.longest_pause = reading.longest_pause.max(now.saturating_since(self.last_grant));
        self.last_grant = now;
    }

    /// A node gave its answer after so long.
    pub fn answered(&mut self, node: usize, took: Duration) {
        if let Some(slowest) = self.reading.slowest_answers.get_mut(node) {
            *slowest = took.max(*slowest);
        }
    }

    /// A timer was late by so much.
    pub fn late(&mut self, by: Duration) {
        self.reading.latest_timer = self.reading.latest_timer.max(by);
    }

    /// What was measured since the last time. A pause that is not over counts as long as it is.
    pub fn take(&mut self, now: Instant) -> Reading {
        let next = empty(self.reading.slowest_answers.len());
        let reading = std::mem::replace(&mut self.reading, next);
        let pause = now.saturating_since(self.last_grant);
        let lasted = now.saturating_since(self.since);
        self.since = now;
        let mut took = std::mem::take(&mut self.took);
        took.sort_unstable();
        let p99_grant = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
        let longest_pause = reading.longest_pause.max(pause);
        Reading { lasted, longest_pause, p99_grant, ..reading }
    }
}

fn empty(nodes: usize) -> Reading {
    Reading { slowest_answers: vec![Duration::ZERO; nodes], ..Reading::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_origin(ms(millis))
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_longest_pause_lies_between_two_grants_of_any_clients() {
        let mut gauge = Gauge::new(2, at(100));
        for (asked, granted) in [(100, 103), (100, 104), (104, 116), (103, 118)] {
            gauge.granted(at(asked), at(granted));
        }
        gauge.answered(1, ms(4));
        gauge.answered(1, ms(3));
        gauge.late(ms(2));

        let expected = Reading {
            lasted: ms(20),
            grants: 4,
            longest_pause: ms(12),
            slowest_grant: ms(15),
            p99_grant: ms(15),
            slowest_answers: vec![ms(0), ms(4)],
            latest_timer: ms(2),
        };
        assert_eq!(gauge.take(at(120)), expected);
    }

    /// A cluster that grants nothing any more must not look like one without pauses.
    #[test]
    fn a_pause_that_is_not_over_counts_and_goes_on_in_the_next_stretch() {
        let mut gauge = Gauge::new(1, at(0));
        gauge.granted(at(0), at(10));

        assert_eq!(gauge.take(at(60)).longest_pause, ms(50));
        gauge.granted(at(11), at(90));
        assert_eq!(gauge.take(at(91)).longest_pause, ms(80));
        assert_eq!(gauge.take(at(91)).grants, 0);
    }
}
