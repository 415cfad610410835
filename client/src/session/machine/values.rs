//! Changes of values: sent, sent again, answered.

use std::collections::BTreeMap;

use holdfast_proto::v1::{self, client_frame::Body};

use super::retries::{is_for_now, wants_room};
use super::{Intent, Machine, StreamEnd, is_of_one_copy};
use crate::session::CHANGE;
use crate::session::request::{Change, Done, Key, Phase, tell};
use crate::{Error, FencingToken, LostReason, Mode, RefusalReason, Result, value, wire};

impl Machine {
    /// Changes the value of a lock that the request `of` holds. `done` receives the outcome.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the lock is no part of the hold or is shared. Then the client sends
    /// nothing to the store. Nor does it under a hold that is over: then `done` is dropped.
    pub(in crate::session) fn change_value(
        &mut self,
        of: Key,
        name: &str,
        what: value::Change,
        done: Done,
    ) -> Result<()> {
        self.lose_overdue();
        let Some(Phase::Held(hold)) = self.requests.phase(of) else { return Ok(()) };
        let lock = hold.lock(name).ok_or_else(|| {
            Error::invalid(format!("{} is not held by this guard", name.escape_debug()))
        })?;
        if lock.mode != Mode::Exclusive {
            return Err(not_exclusive(&lock.name, hold.token));
        }
        let (token, name) = (hold.token, lock.name.clone());
        self.may_ask()?;
        let asked = self.clock.now();
        let change = Change { of, token, name, what, id: None, asked, sent: 0, done };
        let key = self.requests.insert_change(change);
        self.queue(Intent::Change(key));
        Ok(())
    }

    pub(super) fn change_frame(&mut self, key: Key) -> Option<Body> {
        let id = self.requests.id_of(key)?;
        let (_, sent) = self.requests.sending(key)?;
        *sent = sent.saturating_add(1);
        let change = self.requests.change(key)?;
        Some(Body::SetValue(change.what.to_wire(id, change.token, &change.name)))
    }

    /// Ends the change with that id: it is committed.
    pub(super) fn value_set(&mut self, id: u64) {
        let Some(key) = self.requests.change_with_id(id) else { return };
        let Some(change) = self.requests.remove_change(key) else { return };
        self.retries.begin_anew();
        if let Some(Phase::Held(hold)) = self.requests.phase(change.of) {
            hold.note_change(&change.name, &change.what);
        }
        tell(change.done, Ok(()));
    }

    /// Handles the refusal of a copy of a change. A change that takes no space is sent again under
    /// its id, if the server is only overloaded; not if the table has no room for its id, which requests
    /// that are over may take for as long as the id keeps `done_below` from passing them (I31).
    pub(super) fn change_copy_refused(
        &mut self,
        key: Key,
        refusal: v1::Refusal,
    ) -> Option<StreamEnd> {
        let frees = self.requests.change(key).is_some_and(|change| change.what.frees());
        let is_overloaded = is_for_now(&refusal) && refusal.retry_after_ms.is_some();
        if !frees || !is_overloaded || wants_room(&refusal) {
            self.change_refused(key, refusal);
            return None;
        }
        let (_, sent) = self.requests.sending(key)?;
        *sent = sent.saturating_sub(1);
        self.put_off(Intent::Change(key), &refusal)
    }

    pub(super) fn change_refused(&mut self, key: Key, refusal: v1::Refusal) {
        let Some(change) = self.requests.remove_change(key) else { return };
        if change.sent > 1 && is_of_one_copy(refusal.reason()) {
            return self.end_change(change, LostReason::Revoked);
        }
        if refusal.reason() != v1::RefusalReason::NotHolder {
            let name = change.name.as_ref().to_owned();
            return tell(change.done, Err(wire::refusal(refusal, vec![name])));
        }
        let reason = LostReason::Revoked;
        tell(change.done, Err(Error::Lost { reason }));
        // Unless that name is being released, the server does not know the hold any more.
        if let Some(Phase::Held(hold)) = self.requests.phase(change.of)
            && hold.lock(&change.name).is_some()
        {
            self.ended(change.token, &Err(Error::Lost { reason }), reason);
        }
    }

    /// Ends the changes under the hold of request `of`, or under all holds, which is over for
    /// `reason`: an unsent change will never be sent, and a change that was sent gets no answer any
    /// more.
    pub(super) fn end_changes(&mut self, of: Option<Key>, reason: LostReason) {
        for change in self.requests.take_changes(of) {
            self.end_change(change, reason);
        }
    }

    fn end_change(&self, change: Change, reason: LostReason) {
        let outcome = match change.id {
            None => Error::Lost { reason },
            Some(_) => Error::OutcomeUnknown {
                what: CHANGE,
                waited: self.clock.now().saturating_since(change.asked),
            },
        };
        tell(change.done, Err(outcome));
    }

    /// Compares the changes that are under way with a State: each is answered, or sent again. Call
    /// it before releases are sent again, because they came after the changes.
    pub(super) fn synchronise_changes(
        &mut self,
        known: &BTreeMap<u64, v1::RequestState>,
        next_request_id: u64,
    ) {
        use v1::request_state::State;
        for key in self.requests.change_keys() {
            let id = self.requests.change(key).and_then(|change| change.id);
            match id.map(|id| (id, known.get(&id).and_then(|entry| entry.state.as_ref()))) {
                None => self.queue(Intent::Change(key)),
                Some((id, None)) if id >= next_request_id => self.queue(Intent::Change(key)),
                // The server refused it before proposing it, and the refusal was lost. The client
                // spends the old id, so that no copy under way can undo a later change.
                Some((id, None)) => {
                    self.requests.renumber(key);
                    self.queue(Intent::Forget(id));
                    self.queue(Intent::Change(key));
                }
                Some((_, Some(State::Denied(denied)))) => {
                    self.change_refused(key, denied.refusal.clone().unwrap_or_default());
                }
                Some((id, Some(State::ValueSet(_)))) => self.value_set(id),
                // Only this client uses its ids: the server's entry means something else.
                Some((_, Some(State::Queued(_) | State::Granted(_) | State::Ended(_)))) => {
                    if let Some(change) = self.requests.remove_change(key) {
                        self.end_change(change, LostReason::Revoked);
                    }
                }
            }
        }
    }
}

fn not_exclusive(name: &str, token: FencingToken) -> Error {
    let message = format!(
        "{} is held shared under token {token}; only an exclusive holder sets its value",
        name.escape_debug()
    );
    wire::refused(RefusalReason::NotExclusive, message)
}
