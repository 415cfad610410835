//! Confirming that this node leads: quorum rounds shared by all who ask (DESIGN §5.1, I18).
//!
//! A round is openraft's `ReadIndex`: heartbeats sent after the question, answered by a quorum. No
//! clock decides (never `LeaseRead`). One round runs at a time; whoever asks during a round takes
//! part in the next, because the round under way began before the question.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::Tenure;
use holdfast_mutants::mutant;
use holdfast_seams::{BoxFuture, Seams};
use openraft::LinearizerOption;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{Notify, oneshot, watch};

use super::handler::Raft;
use super::machine::Replicated;
use super::proposer::not_leader;
use super::types::LogId;
use crate::consensus::{Confirmed, Role};
use crate::error::ProposeError;

/// Most callers that wait for one round; further ones are refused.
const MAX_WAITING: usize = 65_536;

type Answer = Result<Confirmed, ProposeError>;

pub(super) struct Confirmer {
    waiting: Mutex<Waiting>,
    wake: Notify,
    seams: Seams,
    role: watch::Receiver<Role>,
    shared: Arc<Replicated>,
    /// How long a round may take.
    deadline: Duration,
}

#[derive(Default)]
struct Waiting {
    callers: Vec<oneshot::Sender<Answer>>,
    closed: bool,
}

impl Confirmer {
    pub(super) fn new(
        seams: Seams,
        role: watch::Receiver<Role>,
        shared: Arc<Replicated>,
        deadline: Duration,
    ) -> Self {
        let (waiting, wake) = (Mutex::default(), Notify::new());
        Self { waiting, wake, seams, role, shared, deadline }
    }

    /// See [`Consensus::confirm`](crate::consensus::Consensus::confirm).
    pub(super) fn confirm(&self) -> BoxFuture<'static, Answer> {
        let (tell, told) = oneshot::channel();
        if let Err(error) = self.join(tell) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.wake.notify_one();
        Box::pin(async move { told.await.unwrap_or(Err(ProposeError::ShuttingDown)) })
    }

    fn join(&self, caller: oneshot::Sender<Answer>) -> Result<(), ProposeError> {
        if self.role.borrow().tenure().is_none() {
            return Err(not_leader(&self.role));
        }
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(ProposeError::ShuttingDown);
        }
        if waiting.callers.len() >= MAX_WAITING {
            return Err(ProposeError::Overloaded { limit: MAX_WAITING });
        }
        waiting.callers.push(caller);
        Ok(())
    }

    /// Runs rounds until the task is dropped.
    pub(super) async fn run(self: Arc<Self>, raft: Raft) {
        loop {
            // Taken before the round begins: nobody is answered by a round older than his question.
            let callers = std::mem::take(&mut self.lock().callers);
            if callers.is_empty() {
                self.wake.notified().await;
                continue;
            }
            let answer = self.round(&raft).await;
            for caller in callers {
                // A caller that went away needs no answer.
                let _ = caller.send(answer.clone());
            }
        }
    }

    async fn round(&self, raft: &Raft) -> Answer {
        let Some(tenure) = self.role.borrow().tenure() else {
            return Err(not_leader(&self.role));
        };
        let begun = self.seams.clock.now();
        match self.seams.timeout(self.deadline, self.quorum_round(raft, tenure)).await {
            Ok(Err(ProposeError::Unavailable { .. })) | Err(_) => {
                let waited = self.seams.clock.now().saturating_since(begun);
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                Err(ProposeError::Unavailable { waited_ms })
            }
            Ok(answer) => answer,
        }
    }

    async fn quorum_round(&self, raft: &Raft, tenure: Tenure) -> Answer {
        // An acknowledgement of age zero is never there already: the round begins now.
        let fresh = LinearizerOption::new(Some(Duration::ZERO), true);
        let linearizer = raft
            .get_read_linearizer(fresh.with_wait_timeout(self.deadline))
            .await
            .map_err(|error| self.meaning(&error))?;
        let read = *linearizer.read_log_id().log_id();
        if read.leader_id.term != tenure.get() {
            // Deposed and elected again meanwhile: that is another tenure, not yet begun here.
            return Err(not_leader(&self.role));
        }
        if !mutant!(KeepaliveBeforeOwnEntry) {
            self.until_applied(read).await?;
        }
        if self.role.borrow().tenure() != Some(tenure) {
            return Err(not_leader(&self.role));
        }
        Ok(Confirmed { tenure, applied: self.shared.look(|_, index| index) })
    }

    async fn until_applied(&self, read: LogId) -> Result<(), ProposeError> {
        let mut applied = self.shared.applied();
        let reached = applied.wait_for(|applied| applied.is_some_and(|applied| applied >= read));
        reached.await.map(|_| ()).map_err(|_| ProposeError::ShuttingDown)
    }

    fn meaning(
        &self,
        error: &RaftError<super::types::Types, LinearizableReadError<super::types::Types>>,
    ) -> ProposeError {
        match error {
            RaftError::APIError(LinearizableReadError::ForwardToLeader(_)) => {
                not_leader(&self.role)
            }
            RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => {
                ProposeError::Unavailable { waited_ms: 0 }
            }
            RaftError::Fatal(_) => ProposeError::ShuttingDown,
        }
    }

    /// The node stops: everybody is answered, now and later.
    pub(super) fn close(&self) {
        let callers = {
            let mut waiting = self.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.callers)
        };
        for caller in callers {
            let _ = caller.send(Err(ProposeError::ShuttingDown));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
