//! The session's end, and the reconciliation after a resume.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_mutants::mutant;
use holdfast_proto::v1;

use super::arriving::Arriving;
use super::{Intent, Machine, Retries, Stream};
use crate::endpoints::Tried;
use crate::session::request::{Key, Phase};
use crate::{Error, FencingToken, LostReason, Place};

impl Machine {
    /// Ends the session here: another stream resumed it, and this client does not resume it again.
    pub(in crate::session) fn attached_elsewhere(&mut self) {
        self.session_over(LostReason::AttachedElsewhere);
    }

    /// Ends the session, because an operator wants that; `why` is what the operator gave as the reason.
    pub(super) fn take_all_away(&mut self, reason: LostReason, why: &str) {
        for (_, hold) in self.requests.holds() {
            hold.safety.take_away(reason, why);
        }
        self.session_over(reason);
    }

    /// Ends the session. The next stream opens a new one for the requests that were never sent.
    pub(super) fn session_over(&mut self, reason: LostReason) {
        self.end_requests(reason, &Error::SessionLost { reason });
        self.identity = None;
        self.stream = Stream::None;
        self.arriving = Arriving::default();
        self.lease.end();
        self.covers.forget();
        self.cover_ends = None;
        self.to_send.clear();
        self.retries = Retries::default();
        self.closed.clear();
        self.listed = None;
    }

    /// Ends all requests that were sent in this session.
    pub(super) fn end_requests(&mut self, reason: LostReason, waits: &Error) {
        let over = Err(Error::Lost { reason });
        self.end_changes(None, reason);
        for request in self.requests.take_sent() {
            request.end(&over, reason, Some(waits.clone()));
        }
    }

    /// Reconciles all requests of the session with its state as of `index`: requests that differ
    /// here take the server's state, and requests that the server does not know are sent again
    /// under the same id (I23).
    pub(super) fn synchronise(&mut self, state: v1::State, index: u64) {
        self.stream = Stream::Ready;
        self.tried = Tried::default();
        self.to_send.clear();
        let known: BTreeMap<_, _> =
            state.requests.into_iter().map(|entry| (entry.request_id, entry)).collect();
        self.synchronise_changes(&known, state.next_request_id);
        let ids: BTreeSet<_> = known.keys().copied().collect();
        for (id, entry) in known {
            match self.requests.with_id(id) {
                Some(key) => self.synchronise_one(key, entry, index),
                // No caller here waits for it or would ever release it.
                None => self.forget_stray(&entry),
            }
        }
        for key in self.requests.keys() {
            let id = self.requests.get(key).and_then(|request| request.id);
            if id.is_none_or(|id| !ids.contains(&id)) {
                self.unknown_to_server(key, id.is_some_and(|id| id < state.next_request_id));
            }
        }
    }

    fn forget_stray(&mut self, entry: &v1::RequestState) {
        use v1::request_state::State;
        if let Some(State::Queued(_) | State::Granted(_)) = entry.state {
            self.queue(Intent::Forget(entry.request_id));
        }
    }

    fn synchronise_one(&mut self, key: Key, entry: v1::RequestState, index: u64) {
        use v1::request_state::State;
        let id = entry.request_id;
        let phase = self.requests.phase(key);
        let again = match phase {
            Some(Phase::Cancelling) => Some(Intent::Cancel(key)),
            Some(Phase::GivingBack(_)) if !mutant!(ResumeForgetsRelease) => {
                Some(Intent::Release(key))
            }
            _ => None,
        };
        match entry.state {
            Some(State::Queued(_))
                if mutant!(ResumeLosesPlace)
                    && matches!(phase, Some(Phase::Sent | Phase::Queued)) =>
            {
                self.ask_anew(key);
            }
            Some(State::Queued(queued)) => {
                self.queued(id, index, Place::new(queued.place, queued.holders, queued.frozen));
            }
            Some(State::Granted(granted)) if matches!(phase, Some(Phase::Held(_))) => {
                self.synchronise_hold(key, &granted.names);
            }
            Some(State::Granted(granted)) => {
                // Before the release of the whole.
                self.synchronise_parts(key, &granted.names);
                self.granted(granted, index);
            }
            Some(State::Denied(denied)) => {
                self.denied(id, index, denied.refusal.unwrap_or_default());
            }
            Some(State::Ended(v1::Ended { token }))
                if token > 0 && matches!(phase, Some(Phase::Sent | Phase::Queued)) =>
            {
                return self.found_closed(key, FencingToken::from_raw(token));
            }
            Some(State::Ended(_) | State::ValueSet(_)) | None => return self.found_ended(key),
        }
        if let Some(Phase::Held(hold)) = self.requests.phase(key) {
            entry.contended.iter().for_each(|contended| hold.synchronise_contended(contended));
        }
        // The client's last intent before the stream broke, again.
        if let Some(intent) = again {
            self.queue(intent);
        }
    }

    /// Handles a request that the server does not list; `passed` if it has seen higher ids.
    fn unknown_to_server(&mut self, key: Key, passed: bool) {
        let Some(request) = self.requests.get(key) else { return };
        match (&request.phase, passed) {
            (Phase::Unsent, _) | (Phase::Sent, false) => {
                self.queue(Intent::Acquire(key));
            }
            // The server refused it before proposing it, and the refusal was lost.
            (Phase::Sent, true) => self.ask_anew(key),
            // A copy of its Acquire may still be under way: the Cancel spends the id.
            (Phase::Cancelling, false) => self.queue(Intent::Cancel(key)),
            // It is released once its guard is gone, whatever has become of it.
            (Phase::Closed(_), _) => {}
            (Phase::Cancelling, true)
            | (Phase::Queued | Phase::Uncovered(_) | Phase::Held(_) | Phase::GivingBack(_), _) => {
                self.found_ended(key);
            }
        }
    }

    /// Sends a request under another id. The client spends the old one, so that no copy under way
    /// can take a place.
    pub(super) fn ask_anew(&mut self, key: Key) {
        if let Some(id) = self.requests.renumber(key) {
            self.queue(Intent::Forget(id));
        }
        if let Some(request) = self.requests.get_mut(key) {
            request.phase = Phase::Unsent;
        }
        self.queue(Intent::Acquire(key));
    }

    /// Fails a request that was granted and closed before the client heard of it.
    fn found_closed(&mut self, key: Key, token: FencingToken) {
        self.requests.holds_under(key, token);
        let reason = self.closed.get(&token).copied().unwrap_or(LostReason::Revoked);
        self.refuse_closed(key, token, reason);
    }

    /// Ends a request that has ended at the server, when the frame about it never came.
    fn found_ended(&mut self, key: Key) {
        if self.waits_on(key) || matches!(self.requests.phase(key), Some(Phase::Closed(_))) {
            return;
        }
        let reason = LostReason::Revoked;
        self.end_changes(Some(key), reason);
        let Some(request) = self.requests.remove(key) else { return };
        // The session is alive, so only its release can have ended a hold that is being released.
        let is_given_back = matches!(request.phase, Phase::GivingBack(_));
        let outcome = if is_given_back { Ok(()) } else { Err(Error::Lost { reason }) };
        request.end(&outcome, reason, Some(Error::Lost { reason }));
    }
}
