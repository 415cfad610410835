//! Holds: handed out, released in whole or in part, lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_mutants::mutant;
use holdfast_proto::v1::{self, client_frame::Body};

use super::retries::is_for_now;
use super::{Intent, Machine, StreamEnd};
use crate::hold::{HeldLock, Hold};
use crate::session::request::{Done, GivingBack, Key, Part, Phase, tell};
use crate::{
    Error, FencingToken, GuardState, LockItem, LostReason, RefusalReason, Result, Value, wire,
};
use holdfast_guard::Span;

impl Machine {
    /// Hands a grant to its caller if that is safe (DESIGN §5.6); otherwise releases it. A grant
    /// that no authority covers yet waits for it.
    pub(super) fn hand_out(&mut self, key: Key, granted: v1::Granted) {
        let token = FencingToken::from_raw(granted.token);
        self.requests.holds_under(key, token);
        if let Some(&reason) = self.closed.get(&token) {
            return self.refuse_closed(key, token, reason);
        }
        if self.waits_for_cover(key, token, &granted) {
            return;
        }
        let answer = self.make_hold(key, token, granted);
        let Some(request) = self.requests.get_mut(key) else { return };
        if let Ok(hold) = &answer {
            request.phase = Phase::Held(hold.clone());
        }
        let is_held = answer.is_ok();
        if request.answer(answer) && is_held {
            self.note_cover_ends();
            return;
        }
        request.phase = Phase::GivingBack(GivingBack::sound(token, None));
        self.queue(Intent::Release(key));
    }

    /// The grant of a hold that was closed meanwhile.
    pub(super) fn refuse_closed(&mut self, key: Key, token: FencingToken, reason: LostReason) {
        if let Some(request) = self.requests.get_mut(key) {
            request.answer(Err(Error::Lost { reason }));
        }
        self.release_closed(key, token);
    }

    fn make_hold(&self, key: Key, token: FencingToken, granted: v1::Granted) -> Result<Arc<Hold>> {
        let items = self.requests.get(key).map(|request| request.asked.granted(&granted.names));
        let items = items.filter(|items| !items.is_empty()).ok_or_else(strange_grant)?;
        let too_late = Error::SessionLost { reason: LostReason::DeadlinePassed };
        let mut span = self.lease.span().clone();
        if !span.is_alive(&*self.clock) {
            if !mutant!(LateGrantDelivered) {
                return Err(too_late);
            }
            span = Span::new(self.lease.timing().safe_until(self.clock.now()));
        }
        let hold = Hold::granted(locks(items, granted.values), token, span);
        let hold = hold.filter(|hold| self.cover_hold(hold)).ok_or(too_late)?;
        // The first read of its state shows its cover too.
        hold.safety.publish(false);
        Ok(Arc::new(hold))
    }

    /// Releases a hold. `done` receives the outcome. A hold that was lost before is not released
    /// again, but one that was closed is: then `done` is dropped.
    pub(in crate::session) fn give_back(&mut self, key: Key, done: Done) {
        self.lose_overdue();
        let Some(request) = self.requests.get_mut(key) else { return };
        if let Phase::Closed(token) = request.phase {
            return self.release_closed(key, token);
        }
        let Phase::Held(hold) = &request.phase else { return };
        let token = hold.token;
        // Unsafe before anything can be queued (DESIGN §5.6).
        if !mutant!(ReleaseStaysSafe) {
            hold.safety.end(GuardState::Released);
        }
        request.phase = Phase::GivingBack(GivingBack::sound(token, done));
        self.end_changes(Some(key), LostReason::Revoked);
        self.queue(Intent::Release(key));
    }

    /// Releases some names of a hold, or all of it if no others are left. `done` receives the
    /// outcome, or is dropped as in [`Machine::give_back`].
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if a name is no part of the hold; then nothing is released.
    pub(in crate::session) fn give_back_names(
        &mut self,
        key: Key,
        names: &[Arc<str>],
        done: Done,
    ) -> Result<()> {
        self.lose_overdue();
        let Some(request) = self.requests.get(key) else { return Ok(()) };
        let Phase::Held(hold) = &request.phase else { return Ok(()) };
        if let Some(other) = names.iter().find(|name| hold.lock(name).is_none()) {
            let name = other.escape_debug();
            return Err(Error::invalid(format!("{name} is not held by this guard")));
        }
        let names: BTreeSet<_> = names.iter().cloned().collect();
        if names.len() == hold.held().count() {
            self.give_back(key, done);
        } else {
            self.give_back_part(key, names, done);
        }
        Ok(())
    }

    fn give_back_part(&mut self, key: Key, names: BTreeSet<Arc<str>>, done: Done) {
        let part = self.requests.next_key();
        let Some(request) = self.requests.get_mut(key) else { return };
        if let Phase::Held(hold) = &request.phase
            && !mutant!(ReleaseStaysSafe)
        {
            // As with a whole hold, before anything can be queued.
            for name in &names {
                hold.give_up(name);
            }
        }
        request.parts.push(Part { key: part, names, sent: 0, done });
        self.queue(Intent::ReleaseNames(key, part));
    }

    /// The frame for a part. The release of the whole hold stands for it as well, unless that says that the hold was lost: the
    /// part was given back before, and its values are sound (DESIGN §4).
    pub(super) fn release_of_names(&mut self, key: Key, part: Key) -> Option<Body> {
        let request = self.requests.get_mut(key)?;
        let token = match &request.phase {
            Phase::Held(hold) => hold.token.get(),
            Phase::GivingBack(giving) if giving.is_lost => giving.token.get(),
            _ => return None,
        };
        let part = request.parts.iter_mut().find(|one| one.key == part)?;
        part.sent += 1;
        let names = part.names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
        Some(Body::Release(v1::Release { token, names, lost: false }))
    }

    pub(super) fn released(&mut self, released: &v1::Released) -> Option<StreamEnd> {
        self.retries.begin_anew();
        let token = FencingToken::from_raw(released.token);
        if released.partly {
            return self.part_released(token, &released.names);
        }
        self.ended(token, &Ok(()), LostReason::Revoked);
        None
    }

    fn part_released(&mut self, token: FencingToken, names: &[Bytes]) -> Option<StreamEnd> {
        let key = self.requests.with_token(token)?;
        let request = self.requests.get_mut(key)?;
        let is_back = |part: &mut Part| {
            part.names.iter().all(|own| names.iter().any(|name| name == own.as_bytes()))
        };
        for part in request.parts.extract_if(.., is_back) {
            tell(part.done, Ok(()));
        }
        self.settle_refused(key)
    }

    /// Compares the names of a hold with a State: a name that is missing there is lost, and the hold with it. What is
    /// being released is sent again.
    pub(super) fn synchronise_hold(&mut self, key: Key, names: &[Bytes]) {
        let Some(request) = self.requests.get_mut(key) else { return };
        let Phase::Held(hold) = &request.phase else { return };
        let is_whole = hold.held().all(|lock| is_among(&lock.name, names));
        // Before the release of a hold that is lost.
        self.synchronise_parts(key, names);
        if !is_whole {
            // The server does not know the hold as it was handed out.
            self.lose_hold(key, LostReason::Revoked);
        }
    }

    /// A part that is being released is sent again if the State still shows it as held.
    pub(super) fn synchronise_parts(&mut self, key: Key, names: &[Bytes]) {
        let Some(request) = self.requests.get_mut(key) else { return };
        for mut part in std::mem::take(&mut request.parts) {
            part.names.retain(|name| is_among(name, names));
            if part.names.is_empty() {
                tell(part.done, Ok(()));
            } else {
                request.parts.push(part);
            }
        }
        let parts: Vec<_> = request.parts.iter().map(|part| part.key).collect();
        for part in parts {
            self.queue(Intent::ReleaseNames(key, part));
        }
    }

    pub(super) fn lost(&mut self, lost: &v1::Lost) {
        let reason = wire::lost_reason(lost.reason());
        self.ended(FencingToken::from_raw(lost.token), &Err(Error::Lost { reason }), reason);
    }

    /// Handles the server's report that a hold is over. A waiting release gets `outcome`; a hold
    /// without a release is lost for `reason`.
    pub(super) fn ended(&mut self, token: FencingToken, outcome: &Result<()>, reason: LostReason) {
        let Some(key) = self.requests.with_token(token) else { return };
        if self.waits_on(key) {
            return;
        }
        self.end_changes(Some(key), reason);
        if let Some(request) = self.requests.remove(key) {
            request.end(outcome, reason, None);
        }
    }

    pub(super) fn release_refused(
        &mut self,
        token: FencingToken,
        refusal: v1::Refusal,
    ) -> Option<StreamEnd> {
        let key = self.requests.with_token(token)?;
        if is_for_now(&refusal) && !mutant!(RefusedReleaseEndsStream) {
            return self.put_off_release(key, &refusal);
        }
        if refusal.reason() != v1::RefusalReason::NotHolder {
            return Some(StreamEnd::failed(refusal.message));
        }
        let retries = &self.retries;
        let is_under_way =
            |part: &Part| part.sent > 0 && !retries.has(Intent::ReleaseNames(key, part.key));
        let request = self.requests.get_mut(key)?;
        // The store answers in the order of the frames, and the client sends a part before the
        // whole.
        if let Some(first) = request.parts.iter().position(is_under_way) {
            let part = request.parts.remove(first);
            tell(part.done, of_refused_release(part.sent));
            return self.settle_refused(key);
        } else if let Phase::GivingBack(giving) = &request.phase {
            let outcome = of_refused_release(giving.sent);
            self.ended(token, &outcome, LostReason::Revoked);
        }
        None
    }

    pub(super) fn contended(&self, contended: &v1::Contended) {
        let key = self.requests.with_token(FencingToken::from_raw(contended.token));
        if let Some(Phase::Held(hold)) = key.and_then(|key| self.requests.phase(key)) {
            hold.note_contended(contended);
        }
    }
}

fn is_among(name: &str, names: &[Bytes]) -> bool {
    names.iter().any(|there| there == name.as_bytes())
}

fn locks(items: Vec<LockItem>, values: Vec<v1::NamedValue>) -> Vec<HeldLock> {
    let mut locks: Vec<_> = items.into_iter().map(|item| (item, None)).collect();
    for v1::NamedValue { name, value } in values {
        if let Some((_, there)) = locks.iter_mut().find(|(item, _)| item.name.as_bytes() == name) {
            *there = value.map(Value::from_wire);
        }
    }
    locks.into_iter().map(|(item, value)| HeldLock::new(item, value)).collect()
}

/// The outcome of a release that the server refused with "not the holder": a second copy is refused
/// because the first one released the lock.
fn of_refused_release(sent: u32) -> Result<()> {
    if sent > 1 { Ok(()) } else { Err(Error::Lost { reason: LostReason::Revoked }) }
}

fn strange_grant() -> Error {
    let message = "the server granted none of the locks that were asked for";
    wire::refused(RefusalReason::Protocol, message)
}
