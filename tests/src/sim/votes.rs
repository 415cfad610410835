//! The votes of nodes, as their messages show them (I20): no crash can take back a vote.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Every vote that a candidate got.
#[derive(Debug, Default)]
pub struct Votes(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    /// The candidate that got the vote, by voter and term.
    given: BTreeMap<(u64, u64), u64>,
    broken: Vec<String>,
}

impl Votes {
    /// `voter` voted in `term` for `candidate`.
    pub(super) fn given(&self, voter: u64, term: u64, candidate: u64) {
        let mut said = self.lock();
        let first = *said.given.entry((voter, term)).or_insert(candidate);
        if first != candidate {
            let what =
                format!("I20: node {voter} voted for {first} and {candidate} in term {term}");
            said.broken.push(what);
        }
    }

    /// Two votes of one node in one term, described; empty if there are none.
    pub fn broken(&self) -> Vec<String> {
        self.lock().broken.clone()
    }

    /// How many votes were given.
    pub fn count(&self) -> usize {
        self.lock().given.len()
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_vote_in_one_term_is_found_and_a_repeated_one_is_none() {
        let votes = Votes::default();
        votes.given(1, 3, 2);
        votes.given(1, 3, 2);
        votes.given(1, 4, 3);
        assert_eq!(votes.broken(), Vec::<String>::new());

        votes.given(1, 3, 3);

        assert_eq!(votes.broken().len(), 1);
    }
}
