//! What must hold of the nodes at every moment, looked at from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use holdfast_core::{EndCause, Event, LockTable, LogIndex, SessionId};
use holdfast_server::consensus::Consensus as _;
use holdfast_server::storage::StoredVote;

use super::node::Parts;

/// State hashes that are remembered, by index.
const HASHES: usize = 4_096;

/// Compares what nodes show, over all of their lives.
#[derive(Debug, Default)]
pub(super) struct Observer(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Which life of which node led a term.
    leaders: BTreeMap<u64, (u64, u64)>,
    /// The highest term of a life of a node.
    terms: BTreeMap<(u64, u64), u64>,
    /// The last vote of a life of a node.
    votes: BTreeMap<(u64, u64), StoredVote>,
    /// The state after an index, and which node showed it first.
    hashes: BTreeMap<u64, ([u8; 32], u64)>,
    /// The highest index whose table was checked.
    checked: u64,
    /// Sessions that were expired, on whichever node it was seen.
    expired: BTreeSet<SessionId>,
    /// States that were taken over whole from a leader.
    restored: u64,
    violations: Vec<String>,
}

impl Observer {
    /// Node `id` has applied an entry; `table` is the state after it.
    pub(super) fn applied(&self, id: u64, index: LogIndex, events: &[Event], table: &LockTable) {
        let mut seen = self.lock();
        seen.state(index.get(), table.state_hash(), id);
        let ended = events.iter().filter_map(|event| match event {
            Event::SessionEnded { session, cause: EndCause::Expired } => Some(*session),
            _ => None,
        });
        seen.expired.extend(ended);
    }

    /// Node `id` has taken over a whole state.
    pub(super) fn restored(&self, id: u64, index: LogIndex, table: &LockTable) {
        let mut seen = self.lock();
        seen.restored += 1;
        seen.state(index.get(), table.state_hash(), id);
        if let Err(violation) = table.check() {
            seen.wrong(format!("{violation} (node {id}, restored at index {})", index.get()));
        }
    }

    /// How many sessions were expired, and how many states taken over from a leader.
    pub(super) fn counted(&self) -> (u64, u64) {
        let seen = self.lock();
        (seen.expired.len() as u64, seen.restored)
    }

    /// Looks at life `life` of node `id`.
    pub(super) fn look(&self, id: u64, life: u64, parts: &Parts) {
        let mut seen = self.lock();
        let (term, tenure) = (parts.replica.status().term, parts.replica.role().borrow().tenure());
        if let Some(tenure) = tenure {
            seen.led(tenure.get(), id, life);
        }
        seen.in_term(term, id, life);
        if let Some(vote) = parts.log.vote() {
            seen.voted(vote, id, life);
        }
        seen.purged(id, parts);
        parts.replica.read(&mut |table, index| {
            seen.state(index.get(), table.state_hash(), id);
            if index.get() > seen.checked {
                seen.checked = index.get();
                if let Err(violation) = table.check() {
                    seen.wrong(format!("{violation} (node {id}, index {})", index.get()));
                }
            }
        });
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn wrong(&mut self, what: String) {
        if !self.violations.contains(&what) {
            self.violations.push(what);
        }
    }

    /// A tenure is one term led by one process from start to end.
    fn led(&mut self, term: u64, id: u64, life: u64) {
        let first = *self.leaders.entry(term).or_insert((id, life));
        if first != (id, life) {
            self.wrong(format!(
                "I20: term {term} is led by node {id} (life {life}), and by node {} (life {})",
                first.0, first.1
            ));
        }
    }

    fn in_term(&mut self, term: u64, id: u64, life: u64) {
        let highest = self.terms.entry((id, life)).or_insert(term);
        if *highest > term {
            let before = *highest;
            self.wrong(format!("I20: node {id} went back from term {before} to {term}"));
        } else {
            *highest = term;
        }
    }

    fn voted(&mut self, vote: StoredVote, id: u64, life: u64) {
        let before = self.votes.insert((id, life), vote);
        if let Some(before) = before.filter(|before| !vote.covers(before)) {
            self.wrong(format!("I20: node {id} went back from vote {before:?} to {vote:?}"));
        }
    }

    fn purged(&mut self, id: u64, parts: &Parts) {
        let Some(purged) = parts.log.purged() else { return };
        let snapshot = parts.snapshots.newest().and_then(|newest| newest.last);
        if snapshot.is_none_or(|last| last.index < purged.index) {
            self.wrong(format!(
                "I30: node {id} purged its log up to {}, its newest snapshot ends at {:?}",
                purged.index,
                snapshot.map(|last| last.index)
            ));
        }
    }

    fn state(&mut self, index: u64, hash: [u8; 32], id: u64) {
        let (first, by) = *self.hashes.entry(index).or_insert((hash, id));
        if first != hash {
            self.wrong(format!("I16: nodes {by} and {id} differ after index {index}"));
        }
        while self.hashes.len() > HASHES {
            self.hashes.pop_first();
        }
    }
}
