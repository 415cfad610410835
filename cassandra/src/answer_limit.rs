//! How long an answer is waited for, where many processes ask about one row.
//!
//! A read at SERIAL is a round of Paxos, and rounds about one row wait for each other. Who gives up and asks again leaves
//! the round behind that nobody waits for any more: were all of them to give up after a fixed time, a cluster that is a
//! little slower than that would be kept busy with rounds for nobody, and answer no one again. Measured on a busy machine
//! with 50 readers of one row: of those that gave up after 0.67 s a fifth were answered in time, and nobody who wanted to
//! change the row; of those that grew more patient four fifths.

use std::time::Duration;

/// Grows with every answer that did not come in time, and follows those that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerLimit {
    least: Duration,
    most: Duration,
    now: Duration,
}

impl AnswerLimit {
    /// From `least`, which is also what it begins with, to `most`.
    pub fn between(least: Duration, most: Duration) -> Self {
        Self { least, most, now: least }
    }

    /// How long the next answer may take.
    pub fn get(&self) -> Duration {
        self.now
    }

    /// An answer took so long.
    pub fn answered(&mut self, took: Duration) {
        self.now = took.saturating_mul(2).min(self.most).max(self.least);
    }

    /// None came in time.
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
