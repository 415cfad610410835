//! Confirms that this node leads, by quorum rounds that all callers share (DESIGN §5.1, I18).
//!
//! No clock decides (never `LeaseRead`), and nothing that openraft keeps about earlier requests: a
//! round asks the voters itself (`quorum_round.rs`). One round runs at a time; a caller that asks
//! during a round takes part in the next, because the round under way began before the question.
//!
//! A leader that has asked another voter to take over confirms nothing more in that tenure.
//! openraft commits nothing for it, and its rounds would keep the members from electing another
//! leader, because they take calls of a round for a sign of life.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use holdfast_core::Tenure;
use holdfast_mutants::mutant;
use holdfast_runtime::{BoxFuture, Runtime};
use tokio::sync::{Notify, watch};

use super::handler::millis;
use super::machine::Replicated;
use super::proposer::not_leader;
use super::quorum_round::{Calls, QuorumRound, RoundError};
use super::types::LogId;
use crate::consensus::{Confirmed, Role};
use crate::error::ProposeError;

type Answer = Result<Confirmed, ProposeError>;

pub(super) struct Confirmer {
    next: Mutex<Next>,
    wake: Notify,
    runtime: Runtime,
    role: watch::Receiver<Role>,
    shared: Arc<Replicated>,
    round: QuorumRound,
    /// The last tenure in which this leader asked another voter to take over; 0: none.
    given_up: AtomicU64,
    /// How long a round may take.
    deadline: Duration,
}

/// The round in which a caller that asks now takes part.
#[derive(Default)]
struct Next {
    turn: Arc<Turn>,
    asked: bool,
    closed: bool,
}

/// A round and its one answer, shared by all its callers. There is no queue of callers that could
/// be full: no question is refused because there are many.
#[derive(Default)]
struct Turn {
    answer: OnceLock<Answer>,
    answered: Notify,
}

impl Turn {
    async fn answer(&self) -> Answer {
        loop {
            // Taken before the check, so that no answer falls between the two.
            let answered = self.answered.notified();
            if let Some(answer) = self.answer.get() {
                return answer.clone();
            }
            answered.await;
        }
    }

    /// The first answer stands.
    fn settle(&self, answer: Answer) {
        let _ = self.answer.set(answer);
        self.answered.notify_waiters();
    }
}

/// A turn whose round runs. If the task ends during the round, its callers still get an answer.
struct Running(Arc<Turn>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.settle(Err(ProposeError::ShuttingDown));
    }
}

impl Confirmer {
    pub(super) fn new(
        runtime: Runtime,
        role: watch::Receiver<Role>,
        shared: Arc<Replicated>,
        round: QuorumRound,
        deadline: Duration,
    ) -> Self {
        let (next, wake, given_up) = (Mutex::default(), Notify::new(), AtomicU64::new(0));
        Self { next, wake, runtime, role, shared, round, given_up, deadline }
    }

    /// Another voter is about to be asked to take over: no further round begins in that tenure.
    pub(super) fn give_up(&self, tenure: Tenure) {
        self.given_up.store(tenure.get(), Ordering::Relaxed);
    }

    /// The tenure in which questions can be answered, if this node leads.
    fn tenure(&self) -> Result<Tenure, ProposeError> {
        let tenure = self.role.borrow().tenure();
        let given_up = self.given_up.load(Ordering::Relaxed);
        let kept = |tenure: &Tenure| tenure.get() != given_up || mutant!(RoundsAfterHandOver);
        tenure.filter(kept).ok_or_else(|| not_leader(&self.role))
    }

    /// See [`Consensus::confirm`](crate::consensus::Consensus::confirm).
    pub(super) fn confirm(&self) -> BoxFuture<'static, Answer> {
        let turn = match self.join() {
            Ok(turn) => turn,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        self.wake.notify_one();
        Box::pin(async move { turn.answer().await })
    }

    fn join(&self) -> Result<Arc<Turn>, ProposeError> {
        self.tenure()?;
        let mut next = self.lock();
        if next.closed {
            return Err(ProposeError::ShuttingDown);
        }
        next.asked = true;
        Ok(Arc::clone(&next.turn))
    }

    /// Runs rounds until the task is dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut calls = Calls::default();
        loop {
            // Taken before the round begins: no question is answered by a round that is older than
            // it.
            let Some(turn) = self.take_asked() else {
                self.wake.notified().await;
                continue;
            };
            // Calls still under way were sent before these questions: their answers prove nothing
            // about the present (§5.1).
            if !mutant!(OlderAcknowledgementCounts) {
                calls = Calls::default();
            }
            let answer = self.round(&mut calls).await;
            if mutant!(QuestionJoinsRound)
                && let Some(later) = self.take_asked()
            {
                later.0.settle(answer.clone());
            }
            turn.0.settle(answer);
        }
    }

    /// The turn that callers wait for, if there are any; a caller that asks from now on waits for
    /// the next.
    fn take_asked(&self) -> Option<Running> {
        let mut next = self.lock();
        std::mem::take(&mut next.asked).then(|| Running(std::mem::take(&mut next.turn)))
    }

    async fn round(&self, calls: &mut Calls) -> Answer {
        let tenure = self.tenure()?;
        let begun = self.runtime.clock.now();
        let mut role = self.role.clone();
        // Ends also when the role will never change again because this node stops.
        let deposed = async { drop(role.wait_for(|role| role.tenure() != Some(tenure)).await) };
        let limited = self.runtime.timeout(self.deadline, self.confirmed(tenure, calls));
        holdfast_runtime::select! {
            () = deposed => Err(not_leader(&self.role)),
            answer = limited => answer.unwrap_or_else(|_| {
                let waited = self.runtime.clock.now().saturating_since(begun);
                let waited_ms = millis(waited);
                Err(ProposeError::Unavailable { waited_ms })
            }),
        }
    }

    async fn confirmed(&self, tenure: Tenure, calls: &mut Calls) -> Answer {
        let committed = self.round.run(tenure, calls).await.map_err(|error| match error {
            RoundError::NotLeader => not_leader(&self.role),
            RoundError::Stopped => ProposeError::ShuttingDown,
        })?;
        if !mutant!(KeepaliveBeforeOwnEntry) {
            self.until_applied(tenure, committed).await?;
        }
        if self.role.borrow().tenure() != Some(tenure) {
            return Err(not_leader(&self.role));
        }
        Ok(Confirmed { tenure, applied: self.shared.look(|_, index| index) })
    }

    /// Waits until what was committed when the round began is applied here, together with an entry
    /// of this tenure (§5.1).
    ///
    /// That covers every answer given before the question (I18). This leader answers from what it
    /// has applied; the answers of earlier leaders lie below the tenure's first own entry; and a
    /// later leader was not elected before the question.
    async fn until_applied(
        &self,
        tenure: Tenure,
        committed: Option<LogId>,
    ) -> Result<(), ProposeError> {
        let committed = committed.filter(|committed| committed.leader_id.term == tenure.get());
        let committed = committed.ok_or_else(|| not_leader(&self.role))?;
        let mut applied = self.shared.applied();
        let reached =
            applied.wait_for(|applied| applied.is_some_and(|applied| applied >= committed));
        reached.await.map(|_| ()).map_err(|_| ProposeError::ShuttingDown)
    }

    #[cfg(test)]
    pub(super) async fn confirms(&self, tenure: Tenure) -> bool {
        let mut calls = Calls::default();
        let round = self.round.run(tenure, &mut calls);
        self.runtime.timeout(self.deadline, async { round.await.is_ok() }).await.unwrap_or(false)
    }

    /// Stops: all callers get an answer, now and later.
    pub(super) fn close(&self) {
        let turn = {
            let mut next = self.lock();
            next.closed = true;
            Arc::clone(&next.turn)
        };
        turn.settle(Err(ProposeError::ShuttingDown));
    }

    fn lock(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
