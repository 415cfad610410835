//! Ending what others have, for operators.

use std::time::Duration;

use holdfast_proto::v1;

use crate::transport::operator::Services;
use crate::{Admin, FencingToken, Result};

/// How an operator ends the sessions and holds of others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ending {
    /// For people: the client is told, and the servers log it. 1 to 256 bytes, no control characters.
    pub reason: String,
    /// Passes the locks on at once, while the client may still rely on them: two may hold one lock then.
    pub now: bool,
}

impl Ending {
    /// An ending after which nobody holds a lock that somebody else still relies on.
    pub fn safely(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), now: false }
    }

    /// An ending that breaks guarantee 1: for a client of which is known otherwise that it has stopped.
    /// Needs the verb `now` as well.
    pub fn now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), now: true }
    }
}

/// A hold that an operator has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndingHold {
    /// The holder's session.
    pub session: u64,
    /// The grant's fencing token.
    pub token: FencingToken,
    /// How long it may take at most until the lock passes on, if its client does not give it up before;
    /// zero if it has passed on.
    pub within: Duration,
}

impl Admin {
    /// Ends a session: its waits at once, and its holds when its lease has run out. Its client is told.
    /// Returns how long that may take at most; zero with [`Ending::now`]. Needs the verb `revoke`.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; [`RefusalReason::SessionUnknown`](crate::RefusalReason::SessionUnknown) if it is
    /// not open.
    pub async fn end_session(&self, session: u64, ending: &Ending) -> Result<Duration> {
        let Ending { reason, now } = ending.clone();
        let request = v1::EndSessionRequest { session_id: session, reason, now };
        let end = |mut at: Services| {
            let request = request.clone();
            async move { at.auth.end_session(request).await }
        };
        let ended = self.ask("ending a session", true, end).await?;
        Ok(Duration::from_millis(ended.within_ms))
    }

    /// Takes all roles from an identity, and its token if it is one, and ends its sessions as
    /// [`Admin::end_session`] does: in one step, so that it opens none in between. Returns how many. Needs
    /// the verb `revoke`.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; refused for an administrator in the settings of the servers.
    pub async fn revoke(&self, identity: &str, ending: &Ending) -> Result<u64> {
        let Ending { reason, now } = ending.clone();
        let request = v1::RevokeRequest { identity: identity.to_owned(), reason, now };
        let revoke = |mut at: Services| {
            let request = request.clone();
            async move { at.auth.revoke(request).await }
        };
        Ok(self.ask("cutting an identity off", true, revoke).await?.sessions)
    }

    /// Ends the holds of a lock, or the one under `token`, each with all locks of its grant. A client that
    /// lets go passes the lock on at once, any other when its lease would have run out. Needs the verb
    /// `force` on all those names.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; [`RefusalReason::NotHeld`](crate::RefusalReason::NotHeld) if there is no such hold.
    pub async fn force_release(
        &self,
        name: &str,
        token: Option<FencingToken>,
        ending: &Ending,
    ) -> Result<Vec<EndingHold>> {
        let Ending { reason, now } = ending.clone();
        let (name, token) = (name.to_owned(), token.map(FencingToken::get));
        let request = v1::CloseHoldsRequest { name, token, reason, now };
        let close = |mut at: Services| {
            let request = request.clone();
            async move { at.auth.close_holds(request).await }
        };
        let closed = self.ask("a forced release", true, close).await?;
        let hold = |hold: v1::ClosingHold| EndingHold {
            session: hold.session_id,
            token: FencingToken::from_raw(hold.token),
            within: Duration::from_millis(hold.within_ms),
        };
        Ok(closed.holds.into_iter().map(hold).collect())
    }
}
