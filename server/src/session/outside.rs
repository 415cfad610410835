//! What operators do to locks and sessions: ending what somebody has from outside (DESIGN §14, I35), and limits of
//! permits. It proposes an end, and says how long it may take. The core and the leases see to it that nobody else gets a
//! lock before.

use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_core::{
    Answer, Caller, Command, Deed, FencingToken, Grant, Identity, Label, LockName, LogIndex,
    Outcome, Rejection, SessionId,
};

use super::error::CallError;
use super::{Hub, refusals};
use crate::consensus::{Committed, KNOWN_WITHIN, propose_known_within};

/// Holds of one lock that are closed at a time, if there are many.
const CLOSED_AT_ONCE: usize = 256;
/// How long a call for numbers waits until all members have reported that they know sequences (I29): less than the two
/// seconds after which a client tries the next server.
const NUMBERS_KNOWN_WITHIN: Duration = Duration::from_millis(1_500);

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
        match self.done(caller, Deed::EndSession { session, reason, now }).await? {
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
        match self.done(caller, Deed::CutOff { identity, reason, now }).await? {
            (index, Answer::Revoked { sessions }) => Ok((index, sessions)),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Closes holds of a lock: each with how long it may take until it passes on. Of many holders each is
    /// closed by a command of its own; those who came meanwhile are left.
    ///
    /// # Errors
    ///
    /// [`CallError`]. Of many holders some may be closed all the same.
    pub(crate) async fn close_holds(
        &self,
        caller: &Caller,
        (lock, token): (LockName, Option<FencingToken>),
        Ending { reason, now }: Ending,
    ) -> Done<Vec<(Grant, Duration)>> {
        let left = |grant: Grant| if now { Duration::ZERO } else { self.left(grant.session) };
        let deed = |token| {
            let (lock, reason) = (lock.clone(), reason.clone());
            Deed::CloseHolds { lock, token, reason, now }
        };
        let committed = self.commit(caller, deed(token)).await?;
        let (index, holds) = match committed.outcome {
            Err(Rejection::TooManyHolders { .. }) => self.close_each(caller, &lock, &deed).await?,
            outcome => (committed.index, closed(outcome)?),
        };
        Ok((index, holds.into_iter().map(|grant| (grant, left(grant))).collect()))
    }

    /// Closes each hold of a lock that there is now, some at a time.
    async fn close_each(
        &self,
        caller: &Caller,
        lock: &LockName,
        deed: &(impl Fn(Option<FencingToken>) -> Deed + Sync),
    ) -> Done<Vec<Grant>> {
        let mut newest = 0;
        self.consensus.read(&mut |table, _| newest = table.counters().token);
        let (mut after, mut last, mut all) = (None, None, Vec::new());
        loop {
            let tokens = self.holders_of(lock, after, newest);
            let Some(&next) = tokens.last() else { break };
            after = Some(next);
            let mut commits = Vec::new();
            for token in tokens {
                commits.push(self.commit(caller, deed(Some(token))));
            }
            for committed in join_all(commits).await {
                let Committed { index, outcome } = committed?;
                // It may have been given back meanwhile.
                if !matches!(outcome, Err(Rejection::NotHeld { .. })) {
                    last = last.max(Some(index));
                    all.extend(closed(outcome)?);
                }
            }
        }
        let not_held = || refusals::of_rejection(&Rejection::NotHeld { lock: lock.clone() });
        Ok((last.ok_or_else(not_held)?, all))
    }

    /// The next holders of a lock, of those granted up to that count of tokens.
    fn holders_of(
        &self,
        lock: &LockName,
        after: Option<FencingToken>,
        newest: u64,
    ) -> Vec<FencingToken> {
        let mut tokens = Vec::new();
        self.consensus.read(&mut |table, _| {
            let holders = table.lock(lock).map(|view| view.holders_after(after));
            let all = holders.into_iter().flatten().map(|holder| holder.grant.token);
            tokens = all.filter(|token| token.counter() <= newest).take(CLOSED_AT_ONCE).collect();
        });
        tokens
    }

    /// Sets the limit of a lock's permits for good, or removes it.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub(crate) async fn set_limit(
        &self,
        caller: &Caller,
        lock: LockName,
        limit: Option<NonZeroU32>,
    ) -> Done<()> {
        match self.done(caller, Deed::SetLimit { lock, limit }).await? {
            (index, Answer::LimitSet) => Ok((index, ())),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Freezes names, or lifts a freeze.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub(crate) async fn set_freeze(&self, caller: &Caller, deed: Deed) -> Done<()> {
        match self.done(caller, deed).await? {
            (index, Answer::FreezesSet) => Ok((index, ())),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Gives out the next numbers of a sequence, and returns the first of them.
    ///
    /// # Errors
    ///
    /// [`CallError`]: of an unknown outcome too, after which the numbers may be gone.
    pub(crate) async fn advance(&self, caller: &Caller, sequence: LockName, by: u32) -> Done<u64> {
        match self.done(caller, Deed::Advance { sequence, by }).await? {
            (index, Answer::Advanced { first }) => Ok((index, first)),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    /// Has the next number of a sequence be `at`.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub(crate) async fn begin_sequence(
        &self,
        caller: &Caller,
        sequence: LockName,
        at: u64,
    ) -> Done<()> {
        match self.done(caller, Deed::BeginSequence { sequence, at }).await? {
            (index, Answer::SequenceBegun) => Ok((index, ())),
            _ => Err(refusals::odd_answer().into()),
        }
    }

    async fn done(&self, caller: &Caller, deed: Deed) -> Done<Answer> {
        let Committed { index, outcome } = self.commit(caller, deed).await?;
        match outcome {
            Ok(answer) => Ok((index, answer)),
            Err(rejection) => Err(refusals::of_rejection(&rejection).into()),
        }
    }

    async fn commit(&self, caller: &Caller, deed: Deed) -> Result<Committed, CallError> {
        // A client that asks for numbers would be at the next server by then.
        let is_for_numbers = matches!(deed, Deed::Advance { .. });
        let limit = if is_for_numbers { NUMBERS_KNOWN_WITHIN } else { KNOWN_WITHIN };
        let command = Command::By { caller: caller.clone(), deed };
        let committed =
            propose_known_within(&*self.consensus, self.runtime(), command, limit).await;
        committed.map_err(|error| self.not_applied(&error))
    }

    /// The time until a session's deadline; nothing if it is over already.
    fn left(&self, session: SessionId) -> Duration {
        self.lease_left(session).unwrap_or_default()
    }
}

/// The holds that a command has closed.
fn closed(outcome: Outcome) -> Result<Vec<Grant>, CallError> {
    match outcome {
        Ok(Answer::HoldsClosed { holds }) => Ok(holds),
        Ok(_) => Err(refusals::odd_answer().into()),
        Err(rejection) => Err(refusals::of_rejection(&rejection).into()),
    }
}
