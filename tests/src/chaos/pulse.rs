//! Asks all nodes a few times a second for the leader and for their state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use holdfast_proto::v1::StatusResponse;
use holdfast_runtime::{Runtime, Task};

use crate::history::Recorder;
use crate::wire::status;

/// The interval between two rounds.
const EVERY: Duration = Duration::from_millis(100);
/// How many states are kept, for comparison with those of lagging nodes.
const REMEMBERED: usize = 10_000;
/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// A leader that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The position of the node.
    pub node: usize,
    /// Its term.
    pub term: u64,
    /// When it was first observed to lead and serve.
    pub from_ns: u64,
}

/// The observations so far.
#[derive(Clone, Debug, Default)]
struct Seen {
    tenures: Vec<Tenure>,
    /// The present leader, as far as any node says so.
    leader: Option<usize>,
    /// Spans without a node that leads and serves; the last one may still go on.
    leaderless: Vec<(u64, Option<u64>)>,
    /// By index: the node that showed it first, and its state hash.
    states: BTreeMap<u64, (u64, Bytes)>,
    /// Nodes that showed another state at the same index.
    differ: Vec<String>,
}

/// The task that asks, until this is dropped.
#[derive(Debug)]
pub struct Pulse {
    seen: Arc<Mutex<Seen>>,
    _asking: Task,
}

impl Pulse {
    /// Asks the nodes at these addresses.
    pub fn feel(addresses: Vec<String>, recorder: Recorder) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let asking = ask(addresses, recorder, seen.clone());
        Self { seen, _asking: Runtime::system().spawn("pulse", asking) }
    }

    fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The position of the node that leads and serves.
    pub fn leader(&self) -> Option<usize> {
        self.look(|seen| seen.leader)
    }

    /// Nodes that were observed in different states at one index (I16), each time once.
    pub fn take_differences(&self) -> Vec<String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut seen.differ)
    }

    /// All leaders so far, in order.
    pub fn tenures(&self) -> Vec<Tenure> {
        self.look(|seen| seen.tenures.clone())
    }

    /// The spans in which no node led and served; one that goes on has no end yet (`u64::MAX`).
    pub fn leaderless(&self) -> Vec<(u64, u64)> {
        let ended = |&(from, until): &(u64, Option<u64>)| (from, until.unwrap_or(u64::MAX));
        self.look(|seen| seen.leaderless.iter().map(ended).collect())
    }
}

async fn ask(addresses: Vec<String>, recorder: Recorder, seen: Arc<Mutex<Seen>>) {
    loop {
        let answers = join_all(addresses.iter().map(|address| status(address, PATIENCE))).await;
        let leads =
            |status: &StatusResponse| status.ready && status.leader_id == Some(status.node_id);
        let leader = (0..)
            .zip(&answers)
            .filter_map(|(node, status)| Some((node, status.as_ref().filter(|s| leads(s))?.term)))
            .max_by_key(|(_, term)| *term);
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.note(leader, recorder.now_ns());
            answers.into_iter().flatten().for_each(|status| seen.compare(status));
        }
        Runtime::system().sleep(EVERY).await;
    }
}

impl Seen {
    fn compare(&mut self, status: StatusResponse) {
        let StatusResponse { applied_index, node_id, state_hash, .. } = status;
        let first = self.states.entry(applied_index).or_insert((node_id, state_hash.clone()));
        if first.1 != state_hash {
            self.differ.push(format!(
                "nodes {} and {node_id} are in different states at index {applied_index} (I16)",
                first.0
            ));
        }
        while self.states.len() > REMEMBERED {
            self.states.pop_first();
        }
    }

    fn note(&mut self, leader: Option<(usize, u64)>, now_ns: u64) {
        self.leader = leader.map(|(node, _)| node);
        let open = self.leaderless.last_mut().filter(|(_, until)| until.is_none());
        match (leader, open) {
            (None, None) => self.leaderless.push((now_ns, None)),
            (Some(_), Some((_, until))) => *until = Some(now_ns),
            _ => {}
        }
        if let Some((node, term)) = leader
            && self.tenures.last().is_none_or(|last| last.term < term)
        {
            self.tenures.push(Tenure { node, term, from_ns: now_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_counts_once_a_term_and_time_without_one_is_noted() {
        let mut seen = Seen::default();
        for (leader, at_ns) in [
            (Some((0, 1)), 10),
            (Some((0, 1)), 20),
            (None, 30),
            (None, 40),
            (Some((1, 2)), 50),
            (None, 60),
        ] {
            seen.note(leader, at_ns);
        }

        assert_eq!(seen.tenures.iter().map(|tenure| tenure.node).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(seen.leaderless, [(30, Some(50)), (60, None)]);
    }

    #[test]
    fn another_state_at_the_same_index_is_seen() {
        let mut seen = Seen::default();
        let shown = |node_id, applied_index, hash: &'static [u8]| StatusResponse {
            node_id,
            applied_index,
            state_hash: Bytes::from_static(hash),
            ..StatusResponse::default()
        };
        for status in [shown(1, 7, b"a"), shown(2, 7, b"a"), shown(2, 8, b"b")] {
            seen.compare(status);
        }
        assert!(seen.differ.is_empty());

        seen.compare(shown(3, 8, b"c"));

        assert_eq!(seen.differ.len(), 1);
    }
}
