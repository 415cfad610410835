//! Holds that an operator closed, or the leader when they had lasted their `max_hold` (DESIGN §14, I35).
//!
//! Every answer that renews the session names them, until the client has released them. The client gives
//! each up before it moves its deadline, so that no answer makes a closed hold any safer. It releases
//! such a hold once its guard is gone: what its holder was doing has ended then, and the next holder
//! begins at once. A holder that does not let go delays it until the lease would have run out.

use holdfast_mutants::mutant;
use holdfast_proto::v1;

use super::{Intent, Machine};
use crate::session::request::{GivingBack, Key, Phase};
use crate::{FencingToken, LostReason};

impl Machine {
    /// Gives up what an answer names as closed.
    pub(super) fn give_up_closed(&mut self, closed: &[v1::ClosedHold]) {
        let closed = if mutant!(ClosedIsBelieved) { &[] } else { closed };
        for v1::ClosedHold { token, reason, lasted_too_long } in closed {
            let token = FencingToken::from_raw(*token);
            let lost = match lasted_too_long {
                // The reason says it all.
                true => (LostReason::HeldTooLong, ""),
                false => (LostReason::Forced, reason.as_str()),
            };
            self.closed.insert(token, lost.0);
            match self.requests.with_token(token) {
                Some(key) => self.close_hold(key, token, lost),
                // No guard has it: either the client released it and the release is still under way,
                // or its grant has not come.
                None => self.queue(Intent::LetGo(token)),
            }
        }
    }

    fn close_hold(&mut self, key: Key, token: FencingToken, (reason, why): (LostReason, &str)) {
        match self.requests.phase(key) {
            Some(Phase::Held(hold)) => {
                let hold = hold.clone();
                hold.safety.take_away(reason, why);
                tracing::warn!(token = token.get(), why, %reason, "a lock was taken away");
                if let Some(request) = self.requests.get_mut(key) {
                    request.phase = Phase::Closed(token);
                }
                self.end_changes(Some(key), reason);
            }
            Some(Phase::Uncovered(_)) => self.give_up_uncovered(key, reason),
            _ => {}
        }
    }

    /// The guard of a closed hold is gone.
    pub(super) fn release_closed(&mut self, key: Key, token: FencingToken) {
        if let Some(request) = self.requests.get_mut(key) {
            request.phase = Phase::GivingBack(GivingBack::lost(token));
            self.queue(Intent::Release(key));
        }
    }
}
