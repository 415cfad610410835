//! A store in memory that answers like the real one, and fails as a test plans it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::{Answer, Fault, Group, Importer};
use crate::plan::Kind;

/// The fate of a request.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// The request takes effect, and its answer arrives.
    Answered,
    /// The request takes effect, and its answer is lost.
    AnswerLost,
    /// This many of its groups take effect, and no answer arrives.
    Torn(usize),
    /// The request does not arrive.
    Lost,
    /// The store refuses it.
    Refused,
}

/// For each lock the owners: its holder, then its queue in order.
type Lines = BTreeMap<String, Vec<String>>;

#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: Lines,
    /// The fates of the next requests; [`Fate::Answered`] when none is left.
    fates: VecDeque<Fate>,
    /// All groups that took effect, with the lease that each brought.
    leases: Vec<(String, u64)>,
    token: u64,
    requests: usize,
}

impl Memory {
    pub(super) fn with(fates: impl IntoIterator<Item = Fate>) -> Self {
        let state = State { fates: fates.into_iter().collect(), ..State::default() };
        Self(Mutex::new(state))
    }

    pub(super) fn plan_fates(&self, fates: impl IntoIterator<Item = Fate>) {
        self.lock().fates = fates.into_iter().collect();
    }

    pub(super) fn lines(&self) -> Lines {
        self.lock().lines.clone()
    }

    pub(super) fn leases(&self) -> Vec<(String, u64)> {
        self.lock().leases.clone()
    }

    pub(super) fn requests(&self) -> usize {
        self.lock().requests
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn apply(&mut self, groups: &[Group]) -> Vec<Vec<Answer>> {
        groups.iter().map(|group| self.apply_group(group)).collect()
    }

    fn apply_group(&mut self, group: &Group) -> Vec<Answer> {
        self.leases.push((group.owner.clone(), group.left_ms));
        let mut answers = Vec::new();
        for row in &group.rows {
            let line = self.lines.entry(row.lock.clone()).or_default();
            answers.push(if line.contains(&group.owner) {
                Answer::AlreadyThere
            } else if line.is_empty() && row.kind == Kind::Waits {
                Answer::Refused { reason: "nobody holds it".into() }
            } else if line.is_empty() {
                line.push(group.owner.clone());
                self.token += 1;
                Answer::Imported { token: self.token }
            } else if row.kind == Kind::Waits {
                line.push(group.owner.clone());
                Answer::Queued
            } else {
                Answer::Refused { reason: format!("held by {}", line[0]) }
            });
        }
        answers
    }
}

impl Importer for &Memory {
    async fn cluster(&self) -> Result<String, Fault> {
        Ok("memory".into())
    }

    async fn import(&self, groups: &[Group]) -> Result<Vec<Vec<Answer>>, Fault> {
        let mut state = self.lock();
        state.requests += 1;
        let lost = || Err(Fault::Unknown("no answer".into()));
        match state.fates.pop_front().unwrap_or(Fate::Answered) {
            Fate::Answered => Ok(state.apply(groups)),
            Fate::AnswerLost => {
                state.apply(groups);
                lost()
            }
            Fate::Torn(at) => {
                state.apply(&groups[..at.min(groups.len())]);
                lost()
            }
            Fate::Lost => lost(),
            Fate::Refused => Err(Fault::Refused("not now".into())),
        }
    }
}
