//! W and V: how long a store counts on its right to a scope's locks, and how long others wait for the end of that
//! right; and how long a process waits for an answer about it.

use std::time::Duration;

/// W and V, and the durations derived from them, each of which one process measures on its own
/// clock. In whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Durations {
    w: Duration,
    v: Duration,
}

/// W is too short for V, V is below its minimum, or W is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the take-over after {w:?} (W) and holds of {v:?} (V) do not go together: V is 1 s at least, and W at \
     least 1.3 times V and an hour at most"
)]
pub struct DoNotFit {
    w: Duration,
    v: Duration,
}

impl Durations {
    /// Below it a read every third of V would be too much load.
    const V_MIN: Duration = Duration::from_secs(1);
    /// As in the servers' settings; no sum of durations overflows, whatever the row contains.
    const W_MAX: Duration = Duration::from_hours(1);

    /// # Errors
    ///
    /// [`DoNotFit`] for a V below 1 s, a W below V·(1 + a) + V/5, where a is the allowance for clock
    /// rates, a tenth, or a W above an hour.
    pub fn new(w: Duration, v: Duration) -> Result<Self, DoNotFit> {
        // No V fits that is longer than the longest W: nothing below overflows.
        if v < Self::V_MIN || v > Self::W_MAX || w > Self::W_MAX {
            return Err(DoNotFit { w, v });
        }
        let durations = Self { w: in_whole_millis(w), v: in_whole_millis(v) };
        if durations.w < durations.return_wait() { Err(DoNotFit { w, v }) } else { Ok(durations) }
    }

    /// The W of one and the V of another; a longer W if that V needs it.
    #[must_use]
    pub fn of(w: Self, v: Self) -> Self {
        Self { w: w.w.max(v.return_wait()), v: v.v }
    }

    /// W: how long a client waits, from the end of its read, before it takes over.
    pub fn take_over_wait(&self) -> Duration {
        self.w
    }

    /// V, which bounds holds in Cassandra.
    pub fn v(&self) -> Duration {
        self.v
    }

    /// How long a leader has authority from the start of a bump: it ends before W has passed on any
    /// other clock, both clocks wrong by up to the allowance.
    pub fn authority(&self) -> Duration {
        self.w / 5 * 4
    }

    /// How often the leader bumps.
    pub fn bump_every(&self) -> Duration {
        self.w / 4
    }

    /// How long before the end of its authority the leader suspends the scope.
    pub fn suspend_before(&self) -> Duration {
        self.w / 10
    }

    /// How long a hold in Cassandra is safe from the start of a read.
    pub fn hold(&self) -> Duration {
        self.v / 10 * 9
    }

    /// How often a process reads the row while Cassandra serves.
    pub fn read_every(&self) -> Duration {
        self.v / 3
    }

    /// How long a leader waits, from the end of the read or change that showed the row native, before it raises the
    /// core's epoch: until no hold in Cassandra is safe, and a fifth of V more.
    pub fn return_wait(&self) -> Duration {
        self.v + self.v / 10 + self.v / 5
    }

    /// How much of a `remaining` authority a client counts, from when it sent the keepalive.
    pub fn covered(remaining: Duration) -> Duration {
        remaining / 10 * 9
    }
}

impl Default for Durations {
    /// W 30 s, V 15 s.
    fn default() -> Self {
        Self { w: Duration::from_secs(30), v: Duration::from_secs(15) }
    }
}

/// The precision of the row, so that a read returns what was written.
fn in_whole_millis(length: Duration) -> Duration {
    length.saturating_sub(Duration::from_nanos(u64::from(length.subsec_nanos()) % 1_000_000))
}

/// How long a process waits for an answer when many processes ask about one row: a limit that grows with every
/// answer that misses it, and follows the duration of those that arrive.
///
/// A read at SERIAL is a round of Paxos, and rounds about one row wait for each other. A client that gives up and retries
/// leaves behind a round that no client waits for any more. If all clients gave up after a fixed time, a cluster slightly
/// slower than that would spend its time on abandoned rounds and never answer again. Measured on a busy machine with 50
/// readers of one row: with a fixed limit of 0.67 s a fifth of the readers got their answer in time, and no change of the
/// row did; with a growing limit, four fifths did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimit {
    least: Duration,
    most: Duration,
    now: Duration,
}

impl AnswerLimit {
    /// From `least`, where it begins, to `most`.
    pub fn between(least: Duration, most: Duration) -> Self {
        Self { least, most, now: least }
    }

    /// How long the next answer may take.
    pub fn get(&self) -> Duration {
        self.now
    }

    /// Records an answer that took so long.
    pub fn answered(&mut self, took: Duration) {
        self.now = took.saturating_mul(2).min(self.most).max(self.least);
    }

    /// Records that no answer came in time.
    pub fn not_answered(&mut self) {
        self.now = self.now.saturating_mul(2).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DESIGN §10: W ≥ V·(1 + a) + margin, margin V/5.
    #[test]
    fn a_take_over_that_could_come_before_the_end_of_a_hold_is_refused() {
        let of =
            |w_ms, v_ms| Durations::new(Duration::from_millis(w_ms), Duration::from_millis(v_ms));
        assert!(of(30_000, 15_000).is_ok());
        assert!(of(1_300, 1_000).is_ok());
        assert!(of(1_299, 1_000).is_err());
        assert!(of(30_000, 999).is_err());
        assert!(of(3_600_000, 15_000).is_ok());
        assert!(of(3_600_001, 15_000).is_err());
        assert!(of(u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn the_w_of_one_and_the_v_of_another_fit() {
        let of = |w_s, v_s| {
            Durations::new(Duration::from_secs(w_s), Duration::from_secs(v_s)).expect("they fit")
        };
        assert_eq!(Durations::of(of(30, 1), of(20, 15)), of(30, 15));
        let lengthened = Durations::of(of(4, 2), of(20, 10));
        assert_eq!(lengthened, of(13, 10));
    }

    /// A leader's authority on the slowest clock ends before a client that waits W on the fastest takes over; a hold
    /// ends before a leader's wait.
    #[test]
    fn every_right_is_over_before_the_wait_that_ends_it_on_clocks_a_tenth_apart() {
        let terms = Durations::default();
        let slowest = |right: Duration| right * 100 / 95;
        let fastest = |wait: Duration| wait * 100 / 105;
        assert!(slowest(terms.authority()) < fastest(terms.take_over_wait()));
        assert!(slowest(terms.hold()) < fastest(terms.return_wait()));
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn it_grows_to_its_end_and_comes_back_with_answers_that_are_fast() {
        let mut limit = AnswerLimit::between(ms(1_000), ms(3_000));
        assert_eq!(limit.get(), ms(1_000));
        limit.not_answered();
        assert_eq!(limit.get(), ms(2_000));
        limit.not_answered();
        limit.not_answered();
        assert_eq!(limit.get(), ms(3_000));
        limit.answered(ms(1_200));
        assert_eq!(limit.get(), ms(2_400), "the next one may take as long, and as long again");
        limit.answered(ms(2_900));
        assert_eq!(limit.get(), ms(3_000));
        limit.answered(ms(10));
        assert_eq!(limit.get(), ms(1_000));
    }
}
