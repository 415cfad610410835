//! Bounds what one command of the core does, and has what commands have left carried on.
//!
//! The limit is part of the replicated state, because all members have to leave the same work. So the
//! leader proposes it once all members know the command for it (I29), as it does with the limit of table
//! bytes. Until then each command does all of its work, on every member alike.
//!
//! A new cluster begins its tokens at the time in the same way (DESIGN §15): the first grant comes after that,
//! unless a member does not say within that time which commands it knows.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Command, tokens_begin_at};
use holdfast_runtime::Runtime;
use tokio::sync::{oneshot, watch};

use super::machine::Replicated;
use super::proposer::Proposer;
use crate::consensus::{Committed, Role};
use crate::error::ProposeError;

/// Pause before the limit is proposed again. The members report their versions as often.
const LIMIT_AGAIN: Duration = Duration::from_secs(1);
/// Pause after a proposal to carry on, or to begin tokens, that was not applied. Clients may wait for it.
const CARRY_ON_AGAIN: Duration = Duration::from_millis(50);

/// Proposes, while this node leads, one command at a time: other commands get in between.
pub(super) struct WorkKeeper {
    /// As configured here; the leader's applies to the whole cluster.
    pub(super) steps: u64,
    /// Which of the two goes first that a new cluster lacks.
    pub(super) begins_next: bool,
    pub(super) role: watch::Receiver<Role>,
    pub(super) proposer: Arc<Proposer>,
    pub(super) shared: Arc<Replicated>,
    pub(super) runtime: Runtime,
}

impl WorkKeeper {
    /// Goes on until the task is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let pause = match self.next() {
                Some(command) => {
                    let pause = match command {
                        Command::LimitWork { .. } => LIMIT_AGAIN,
                        _ => CARRY_ON_AGAIN,
                    };
                    if self.propose(command).await {
                        continue;
                    }
                    Some(pause)
                }
                None => None,
            };
            let again = async {
                match pause {
                    Some(pause) => self.runtime.sleep(pause).await,
                    None => self.shared.work_left.notified().await,
                }
            };
            holdfast_runtime::select! {
                changed = self.role.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }

    /// What the table lacks; `None` if nothing, or if another node leads.
    fn next(&mut self) -> Option<Command> {
        self.role.borrow_and_update().tenure()?;
        let (limit, work_left, is_new) = self
            .shared
            .look(|table, _| (table.work_limit(), table.has_work_left(), table.may_begin_tokens()));
        if work_left {
            return Some(Command::CarryOn);
        }
        let begin = tokens_begin_at(self.runtime.clock.wall_ms()).filter(|_| is_new);
        let begin = begin.filter(|(_, counter)| *counter > 0);
        let begin = begin.map(|(epoch, counter)| Command::BeginTokens { epoch, counter });
        let limits = limit != Some(self.steps);
        let limit = limits.then_some(Command::LimitWork { steps: self.steps });
        // In turn: a member of an older release may know one of the two and not the other.
        self.begins_next = !self.begins_next;
        if self.begins_next { begin.or(limit) } else { limit.or(begin) }
    }

    /// Whether the command was applied. A repeated one is harmless.
    async fn propose(&self, command: Command) -> bool {
        let (tell, told) = oneshot::channel();
        let done = move |result: Result<Committed, ProposeError>| {
            if let Err(error) = &result {
                tracing::debug!(%error, "work of commands is not carried on, or limited, yet");
            }
            // Nobody waits any more if the node stops.
            let _ = tell.send(result.is_ok());
        };
        self.proposer.submit(command, Box::new(done));
        told.await.unwrap_or(false)
    }
}
