//! Counts what members answer each other, where a regression schedule must be shown to have
//! happened: acknowledgements that overtake each other, and messages refused by kind.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The followers among the voters of the schedule of openraft #1802.
const FOLLOWERS: usize = 4;

/// The answers so far.
#[derive(Debug, Default)]
pub struct Answers(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// How far the followers of each leader acknowledged its log.
    acks: BTreeMap<u64, Acks>,
    crossings: u64,
    /// Messages refused because they come from another cluster, by kind.
    strangers: BTreeMap<&'static str, u64>,
}

/// The acknowledgements to one leader.
#[derive(Debug, Default)]
struct Acks {
    /// How far each follower is, and the number of the acknowledgement that said so.
    matched: BTreeMap<u64, (u64, u64)>,
    count: u64,
    /// How far a voter had come that another voter overtook while both were ahead of the quorum.
    overtaken: Option<u64>,
}

impl Answers {
    /// `follower` acknowledged to `leader` that it has everything up to `index`.
    pub(super) fn acknowledged(&self, leader: u64, follower: u64, index: u64) {
        let mut seen = self.lock();
        let crossed = seen.acks.entry(leader).or_default().take(follower, index);
        seen.crossings += u64::from(crossed);
    }

    /// A message of this kind was refused with this text.
    pub(super) fn refused(&self, kind: &'static str, why: &str) {
        if why.contains("cluster") {
            *self.lock().strangers.entry(kind).or_default() += 1;
        }
    }

    /// How often, of five voters, one that was ahead of the quorum was overtaken by another one
    /// ahead of it, and a third one then passed the overtaken one before the quorum had reached it.
    /// The leader is taken for the last of the five: exact where its disk is slow.
    pub fn crossings(&self) -> u64 {
        self.lock().crossings
    }

    /// Messages refused because their sender is of another cluster, by their kind.
    pub fn strangers(&self) -> BTreeMap<&'static str, u64> {
        self.lock().strangers.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acks {
    /// Takes an acknowledgement; true if it completes a crossing.
    fn take(&mut self, follower: u64, index: u64) -> bool {
        let before = self.matched.get(&follower).copied().unwrap_or_default();
        let quorum = self.quorum();
        self.count += 1;
        self.matched.insert(follower, (index, self.count));
        let Some(quorum) = quorum else { return false };
        self.overtaken = self.overtaken.filter(|overtaken| *overtaken > quorum);
        let crossed =
            before.0 <= quorum && self.overtaken.is_some_and(|overtaken| index > overtaken);
        if crossed {
            self.overtaken = None;
        }
        if before.0 > quorum {
            // Of two followers at the same index, the one that came there first counts as ahead.
            let was_ahead = |(other, at): &&(u64, u64)| {
                *other > before.0 || *other == before.0 && *at < before.1
            };
            let passed = self.matched.values().filter(was_ahead).map(|(other, _)| *other);
            self.overtaken = passed.filter(|other| *other < index).min().or(self.overtaken);
        }
        crossed
    }

    /// The index that three of the four followers have; `None` until all four have answered.
    fn quorum(&self) -> Option<u64> {
        let mut matched: Vec<u64> = self.matched.values().map(|(index, _)| *index).collect();
        matched.sort_unstable();
        (matched.len() == FOLLOWERS).then(|| matched[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crossings(acks: &[(u64, u64)]) -> u64 {
        let answers = Answers::default();
        for (follower, index) in acks {
            answers.acknowledged(1, *follower, *index);
        }
        answers.crossings()
    }

    #[test]
    fn a_voter_that_is_overtaken_above_the_quorum_and_then_passed_by_a_third_is_counted() {
        // 4 passes 5, both above what three of the four have; then 3 passes both.
        let issue = [(2, 4), (3, 5), (4, 8), (5, 9), (4, 10), (3, 11)];
        assert_eq!((crossings(&issue[..5]), crossings(&issue)), (0, 1));
        // 5 came after 4 to where 4 is, and goes on first.
        assert_eq!(crossings(&[(2, 4), (3, 5), (4, 6), (5, 6), (5, 7), (3, 7)]), 1);
    }

    #[test]
    fn acknowledgements_in_order_are_no_crossing() {
        assert_eq!(crossings(&[(2, 4), (3, 5), (4, 8), (5, 9), (5, 10), (3, 11)]), 0);
        assert_eq!(crossings(&[(2, 4), (3, 5), (4, 6), (5, 6), (4, 7), (3, 7)]), 0);
    }

    #[test]
    fn only_what_comes_from_another_cluster_counts_as_a_stranger() {
        let answers = Answers::default();
        answers.refused("append", "cluster aa calls, this is cluster bb");
        answers.refused("append", "malformed: a vote of nobody");

        assert_eq!(answers.strangers(), [("append", 1)].into());
    }
}
