//! Frames from the server, one by one.

use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_proto::v1;

use super::retries::{is_for_now, wants_room};
use super::{Identity, Intent, Machine, Opening, Stream, StreamEnd, is_of_one_copy};
use crate::endpoints::Tried;
use crate::info::PlaceReport;
use crate::session::request::{Key, Phase, Request};
use crate::{FencingToken, LostReason, Place, wire};

impl Machine {
    /// Handles a message of the server. `Some` if the stream cannot be used any more.
    pub(in crate::session) fn handle(&mut self, frames: v1::ServerFrames) -> Option<StreamEnd> {
        self.lose_overdue();
        frames.frames.into_iter().find_map(|frame| self.handle_one(frame.index, frame.body?))
    }

    pub(super) fn handle_one(
        &mut self,
        index: u64,
        body: v1::server_frame::Body,
    ) -> Option<StreamEnd> {
        use v1::server_frame::Body as Said;
        let body = match self.keeps_behind(index, body) {
            Ok(body) => body,
            Err(end) => return end,
        };
        match body {
            Said::Opened(opened) => return self.opened(opened),
            Said::KeptAlive(kept) => {
                self.give_up_closed(&kept.closed);
                self.spread = Duration::from_millis(kept.spread_ms);
                if let Some(sent) = self.lease.answered(kept.seq) {
                    self.renew(sent, &kept.scopes);
                    return self.believe_state();
                }
            }
            Said::HoldsClosed(v1::HoldsClosed { closed }) => self.give_up_closed(&closed),
            Said::Queued(v1::Queued { request_id, place, holders, frozen })
            | Said::Moved(v1::Moved { request_id, place, holders, frozen }) => {
                self.queued(request_id, index, Place::new(place, holders, frozen));
            }
            Said::Granted(granted) if self.is_over(&granted, index) => {
                return Some(StreamEnd::failed("a hold is over whose grant has just come"));
            }
            Said::Granted(granted) => self.granted(granted, index),
            Said::Denied(denied) => {
                self.denied(denied.request_id, index, denied.refusal.unwrap_or_default());
            }
            Said::Released(released) => return self.released(&released),
            Said::Cancelled(cancelled) => self.cancelled(cancelled.request_id),
            Said::Lost(lost) => self.lost(&lost),
            Said::Contended(contended) => self.contended(&contended),
            Said::ValueSet(set) => self.value_set(set.request_id),
            Said::State(state) => return self.state_came(state, index),
            Said::Refused(refused) => return self.refused(refused),
            Said::Redirect(v1::Redirect { leader }) | Said::GoingAway(v1::GoingAway { leader }) => {
                return Some(StreamEnd::Redirected(leader));
            }
            Said::SessionEnded(ended) => {
                self.take_all_away(wire::lost_reason(ended.reason()), &ended.why);
                return Some(StreamEnd::SessionOver);
            }
        }
        None
    }

    fn opened(&mut self, opened: v1::Opened) -> Option<StreamEnd> {
        let Stream::Opening(sent) = self.stream else {
            return Some(StreamEnd::failed("the server answered Open twice"));
        };
        match &self.identity {
            Some(known) if known.session != opened.session_id => {
                return Some(StreamEnd::failed("the server resumed another session"));
            }
            Some(_) => self.begin_arriving(opened.lease_unmoved),
            // Keepalives would be due all the time.
            None if opened.ttl_ms == 0 => {
                return Some(StreamEnd::failed("the server opened a session without a lease"));
            }
            None => {
                self.identity = Some(Identity {
                    session: opened.session_id,
                    secret: opened.secret,
                    cluster: opened.cluster_id,
                });
                self.lease.set_ttl(Duration::from_millis(opened.ttl_ms));
                self.stream = Stream::Ready;
                self.tried = Tried::default();
                self.to_send = self.requests.keys().into_iter().map(Intent::Acquire).collect();
            }
        }
        self.keep_apart(opened.keeps_many);
        self.give_up_closed(&opened.closed);
        self.spread = Duration::from_millis(opened.spread_ms);
        if opened.lease_unmoved && !mutant!(UnmovedOpenedBelieved) {
            // Its report on scopes is independent of the session's lease.
            self.cover(sent, &opened.scopes);
            self.alarm();
        } else {
            self.lease.opened(sent);
            self.renew(sent, &opened.scopes);
        }
        self.opening.send_replace(Opening::Open);
        None
    }

    /// Whether a frame with this index about the request is news; records the index.
    fn is_news(&mut self, key: Key, index: u64) -> bool {
        let Some(request) = self.requests.get_mut(key) else { return false };
        let news = index >= request.seen;
        request.seen = request.seen.max(index);
        news
    }

    pub(super) fn queued(&mut self, id: u64, index: u64, place: Place) {
        let Some(key) = self.requests.with_id(id).filter(|key| self.is_news(*key, index)) else {
            return;
        };
        self.requests.answered(key);
        let Some(request) = self.requests.get_mut(key) else { return };
        if matches!(request.phase, Phase::Sent | Phase::Queued) {
            request.phase = Phase::Queued;
            let names = request.asked.each_name();
            let is_next = place.place == 0 && place.holders.is_empty();
            let place = Place {
                awaits_authority: is_next && !self.covers.are_served(names, self.clock.now()),
                ..place
            };
            request.place.send_replace(Some(PlaceReport { place, at: self.clock.now() }));
        }
    }

    pub(super) fn granted(&mut self, granted: v1::Granted, index: u64) {
        let Some(key) = self.requests.with_id(granted.request_id) else {
            // No request here has this id: it must not stay held (I13 makes a late Cancel
            // harmless).
            self.queue(Intent::Forget(granted.request_id));
            return;
        };
        if !self.is_news(key, index) {
            return;
        }
        self.requests.answered(key);
        let phase = self.requests.get(key).map(|request| &request.phase);
        if matches!(phase, Some(Phase::Sent | Phase::Queued | Phase::Uncovered(_))) {
            self.hand_out(key, granted);
        }
    }

    pub(super) fn denied(&mut self, id: u64, index: u64, refusal: v1::Refusal) {
        if let Some(key) = self.requests.change_with_id(id) {
            return self.change_refused(key, refusal);
        }
        let Some(key) = self.requests.with_id(id).filter(|key| self.is_news(*key, index)) else {
            return;
        };
        self.deny(key, refusal);
    }

    fn deny(&mut self, key: Key, refusal: v1::Refusal) {
        let Some(request) = self.requests.get(key) else { return };
        match request.phase {
            Phase::Sent | Phase::Queued => {
                // A copy sent on a stream that broke may still take a place.
                let earlier = request.id.filter(|_| request.sent > 1);
                let earlier = earlier.filter(|_| is_of_one_copy(refusal.reason()));
                let error = wire::refusal(refusal, request.asked.names());
                if let Some(id) = earlier {
                    self.queue(Intent::Forget(id));
                }
                if let Some(mut request) = self.requests.remove(key) {
                    request.answer(Err(error));
                }
            }
            // The answer to its Cancel is still to come, and ends it.
            Phase::Cancelling => self.requests.answered(key),
            Phase::Unsent
            | Phase::Uncovered(_)
            | Phase::Held(_)
            | Phase::Closed(_)
            | Phase::GivingBack(_) => {}
        }
    }

    /// Ends a request that was being cancelled, whatever it was before (DESIGN §4, Cancel).
    fn cancelled(&mut self, id: u64) {
        self.retries.begin_anew();
        let Some(key) = self.requests.with_id(id) else { return };
        let cancelling = |request: &Request| matches!(request.phase, Phase::Cancelling);
        if self.requests.get(key).is_some_and(cancelling) {
            self.requests.remove(key);
        }
    }

    fn refused(&mut self, refused: v1::Refused) -> Option<StreamEnd> {
        use v1::refused::Subject;
        let refusal = refused.refusal.unwrap_or_default();
        if matches!(self.stream, Stream::Opening(_)) {
            return Some(self.open_refused(refusal));
        }
        match refusal.reason() {
            v1::RefusalReason::SessionUnknown => {
                self.session_over(LostReason::SessionExpired);
                return Some(StreamEnd::SessionOver);
            }
            v1::RefusalReason::SessionRevoked => {
                self.take_all_away(LostReason::SessionRevoked, &refusal.message);
                return Some(StreamEnd::SessionOver);
            }
            // State after a resume reports its outcome, and a resume needs a quorum: one way to
            // heal all. A retry on this stream would not do: another node may lead by now.
            v1::RefusalReason::Unavailable => {
                return Some(StreamEnd::unavailable(refusal.message));
            }
            _ => {}
        }
        match refused.subject {
            Some(Subject::RequestId(id)) => self.request_refused(id, refusal),
            Some(Subject::Token(token)) => {
                self.release_refused(FencingToken::from_raw(token), refusal)
            }
            // Only a Close is about the session as a whole.
            None if self.close_sent && is_for_now(&refusal) => {
                self.put_off(Intent::Close, &refusal)
            }
            None => None,
        }
    }

    /// Handles the refusal of an Acquire, a Cancel or a change of a value.
    fn request_refused(&mut self, id: u64, refusal: v1::Refusal) -> Option<StreamEnd> {
        if let Some(key) = self.requests.change_with_id(id) {
            return self.change_copy_refused(key, refusal);
        }
        let Some(key) = self.requests.with_id(id) else {
            // The id was to be spent: its request must not stay and get a grant without a caller.
            return is_for_now(&refusal)
                .then(|| self.put_off(Intent::Forget(id), &refusal))
                .flatten();
        };
        let phase = &self.requests.get(key)?.phase;
        let (cancelling, waits) =
            (matches!(phase, Phase::Cancelling), matches!(phase, Phase::Queued));
        match refusal.reason() {
            v1::RefusalReason::RequestGone if cancelling => drop(self.requests.remove(key)),
            // The request must not stay. If the server refused its Acquire, the answer to the
            // Cancel is still to come, and a second one does no harm.
            _ if cancelling && is_for_now(&refusal) => {
                if wants_room(&refusal) && !mutant!(CancelHoldsMark) {
                    self.requests.answered(key);
                }
                return self.put_off(Intent::Cancel(key), &refusal);
            }
            // It has its place in the log: the server refused a copy that the client sent again
            // after a resume, while the first one, of the stream before, was under way (I10).
            reason if waits && is_of_one_copy(reason) && !mutant!(RefusedCopyEndsWait) => {}
            _ => self.deny(key, refusal),
        }
        None
    }

    fn open_refused(&mut self, refusal: v1::Refusal) -> StreamEnd {
        let resuming = self.identity.is_some();
        match refusal.reason() {
            v1::RefusalReason::SessionUnknown if resuming => {
                self.session_over(LostReason::SessionExpired);
                StreamEnd::SessionOver
            }
            v1::RefusalReason::Unavailable => StreamEnd::Unavailable {
                after: refusal.retry_after_ms.map(Duration::from_millis),
                message: refusal.message,
                leader: None,
            },
            // One node of another cluster must not end a session that other nodes still know. When
            // nothing of the session is safe any more, there is nothing to lose.
            _ if resuming && self.lease.span().is_alive(&*self.clock) => {
                StreamEnd::unavailable(refusal.message)
            }
            v1::RefusalReason::Invalid if resuming => {
                self.session_over(LostReason::Revoked);
                StreamEnd::SessionOver
            }
            _ => StreamEnd::Refused(wire::refusal(refusal, Vec::new())),
        }
    }
}
