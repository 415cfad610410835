//! Ending what somebody has from outside, for operators (DESIGN §14, I35): proposes it, and says how long
//! it may take. The core and the leases see to it that nobody else gets a lock before.

use std::time::Duration;

use holdfast_core::{
    Answer, Caller, Command, Deed, FencingToken, Grant, Identity, Label, LockName, LogIndex,
    SessionId,
};

use super::error::CallError;
use super::{Hub, refusals};
use crate::consensus::{Committed, propose_when_known};

/// What was done, with the place in the log of the command that did it.
type Done<T> = Result<(LogIndex, T), CallError>;

/// Why something is to end, and whether at once: that breaks I6.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) reason: Label,
    pub(crate) now: bool,
}

impl Hub {
    /// Ends a session. Returns how long it may take until its holds pass on.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub(crate) async fn end_session(
        &self,
        caller: &Caller,
        session: SessionId,
        Ending { reason, now }: Ending,
    ) -> Done<Duration> {
        match self.end(caller, Deed::EndSession { session, reason, now }).await? {
            (index, Answer::SessionEnded) => Ok((index, Duration::ZERO)),
            (index, Answer::Revoked { .. }) => Ok((index, self.left(session))),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Takes everything from an identity, and ends its sessions; returns how many.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub(crate) async fn cut_off(
        &self,
        caller: &Caller,
        identity: Identity,
        Ending { reason, now }: Ending,
    ) -> Done<u64> {
        match self.end(caller, Deed::CutOff { identity, reason, now }).await? {
            (index, Answer::Revoked { sessions }) => Ok((index, sessions)),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Closes holds of a lock: each with how long it may take until it passes on.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub(crate) async fn close_holds(
        &self,
        caller: &Caller,
        (lock, token): (LockName, Option<FencingToken>),
        Ending { reason, now }: Ending,
    ) -> Done<Vec<(Grant, Duration)>> {
        let left = |grant: Grant| if now { Duration::ZERO } else { self.left(grant.session) };
        match self.end(caller, Deed::CloseHolds { lock, token, reason, now }).await? {
            (index, Answer::HoldsClosed { holds }) => {
                Ok((index, holds.into_iter().map(|grant| (grant, left(grant))).collect()))
            }
            _ => Err(refusals::odd_answer().into()),
        }
    }

    async fn end(&self, caller: &Caller, deed: Deed) -> Done<Answer> {
        let command = Command::By { caller: caller.clone(), deed };
        let committed = propose_when_known(&*self.consensus, self.runtime(), command).await;
        let Committed { index, outcome } = committed.map_err(|error| self.not_applied(&error))?;
        match outcome {
            Ok(answer) => Ok((index, answer)),
            Err(rejection) => Err(refusals::of_rejection(&rejection).into()),
        }
    }

    /// The time until a session's deadline; nothing if it is over already.
    fn left(&self, session: SessionId) -> Duration {
        let now = self.runtime().clock.now();
        let state = self.registry.lock();
        let left = state.leases.as_ref().and_then(|leases| leases.left(session, now));
        left.unwrap_or_default()
    }
}
