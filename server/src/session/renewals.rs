//! Keepalives of several sessions in one call: those of a process with many sessions.
//!
//! A keepalive on a session's own stream costs a wake-up of its task, a frame each way and their packets,
//! which is ten times what renewing the lease costs. A process that has hundreds of sessions on one
//! connection therefore sends their keepalives together.
//!
//! Each is acknowledged by the rules of a unary `KeepAlive` (DESIGN §5.1): after a quorum round begun after
//! the call came in, if the session is alive in the applied state and no expiry of it is under way.
//!
//! # What the answer says of a session's holds
//!
//! Frames of a stream come in order: before a `KeptAlive` its client has read every `Lost`. The answer here
//! comes beside the streams, and may come before. So it lists the tokens that the session holds in the
//! state in which it was renewed, and names the index of that state; a client that relies on a token that
//! is not listed does not take the answer (I6, `client/src/session/machine/apart.rs`). Tokens, closed
//! holds and scopes are all of one state: they are read under one lock of the table.

use holdfast_core::{Caller, FencingToken, LockTable, Rejection, Tenure};
use holdfast_proto::v1::{
    KeepAliveManyRequest, KeepAliveManyResponse, KeptSession, Refusal, RefusalReason,
};
use holdfast_runtime::Instant;

use super::error::CallError;
use super::leases::Leases;
use super::opening::{HeldOn, Key, is_anothers};
use super::{Hub, answers, refusals};

/// Sessions of one call: about a millisecond under the table's lock.
const SESSIONS_MAX: usize = 256;
/// A session with more holds is not renewed here, but by a keepalive on its stream.
const HOLDS_MAX: usize = 64;

/// A keepalive of many, as it came in.
struct Heard<'a> {
    tenure: Tenure,
    at: Instant,
    caller: &'a Caller,
}

impl Hub {
    /// Renews leases, each as [`Hub::keep_alive`] does, in one quorum round. A session that is not renewed
    /// has its refusal in the answer. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing was renewed.
    pub(crate) async fn keep_alive_many(
        &self,
        asked: &KeepAliveManyRequest,
        caller: &Caller,
    ) -> Result<KeepAliveManyResponse, CallError> {
        let at = self.registry.runtime.clock.now();
        let keys = read_keys(asked)?;
        let tenure = self.serving()?;
        self.registry.metrics.keepalives.inc_by(keys.len() as u64);
        // None of them becomes due before the round is over (§5.2).
        let held_on: Vec<HeldOn<'_>> = keys.iter().map(|key| self.hold_on(tenure, key)).collect();
        self.confirm(tenure).await?;
        let renewed = self.renew_all(&Heard { tenure, at, caller }, &keys);
        drop(held_on);
        let renewed = renewed.ok_or_else(|| self.leads_no_more())?;
        let refused = renewed.sessions.iter().filter_map(|session| session.refused.as_ref());
        let mut count = renewed.sessions.len();
        for refusal in refused {
            self.registry.metrics.refusals.note(refusal.reason());
            count -= 1;
        }
        self.registry.metrics.keepalives_acknowledged.inc_by(count as u64);
        Ok(renewed)
    }

    /// Renews under one lock of the table, so that all of the answer is of one state (I6, I24, I35); `None`
    /// if this node leads no more.
    fn renew_all(&self, heard: &Heard<'_>, keys: &[Key]) -> Option<KeepAliveManyResponse> {
        let spread_ms = self.registry.spread_ms();
        let mut renewed = None;
        self.consensus.read(&mut |table, index| {
            renewed = self.registry.with_leases(heard.tenure, |leases| KeepAliveManyResponse {
                index: index.get(),
                scopes: self.registry.board.answers(heard.tenure, heard.at),
                sessions: keys.iter().map(|key| renew(table, leases, heard, key)).collect(),
                spread_ms,
            });
        });
        renewed
    }
}

/// Renews one lease.
fn renew(table: &LockTable, leases: &mut Leases, heard: &Heard<'_>, key: &Key) -> KeptSession {
    let session = key.session;
    let own = key.ttl_if_own(table).filter(|_| !is_anothers(table, session, heard.caller));
    let Some(ttl_ms) = own else { return refused(key.unknown_session()) };
    if let Some(reason) = table.session(session).and_then(|view| view.revoked).cloned() {
        return refused(refusals::of_rejection(&Rejection::SessionRevoked { session, reason }));
    }
    let tokens: Vec<u64> =
        table.tokens_held(session).take(HOLDS_MAX + 1).map(FencingToken::get).collect();
    if tokens.len() > HOLDS_MAX {
        let message = format!("session {session} holds more than {HOLDS_MAX} locks here");
        return refused(refusals::limit("holds_kept_together", message));
    }
    if !leases.renew(session, heard.at) {
        let message = "the session's lease has run out and is being ended";
        return refused(refusals::refusal(RefusalReason::Unavailable, message));
    }
    let closed = answers::closed_holds(table, session);
    KeptSession { ttl_ms, tokens, closed, refused: None }
}

fn refused(refusal: Refusal) -> KeptSession {
    KeptSession { refused: Some(refusal), ..KeptSession::default() }
}

fn read_keys(asked: &KeepAliveManyRequest) -> Result<Vec<Key>, Refusal> {
    let count = asked.sessions.len();
    if count > SESSIONS_MAX {
        let message = format!("{count} sessions in one call; at most {SESSIONS_MAX} are renewed");
        return Err(refusals::limit("sessions_kept_together", message));
    }
    asked.sessions.iter().map(|key| Key::read(key.session_id, &key.secret)).collect()
}
