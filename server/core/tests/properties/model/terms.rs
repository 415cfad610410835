//! What requests say besides their locks, in the model: head starts and owners.

use holdfast_core::{LockName, Rejection, RequestId, SessionId};

use super::{Asked, Model, Request, State, What, asks_for};

/// When a request came, less its head start, and its number. The smallest comes first.
pub(crate) type Arrival = (u64, u64);

impl Model {
    /// The arrival of a request that comes now, with that number.
    pub(super) fn arrival_now(&self, head_start_ms: u32, number: u64) -> Arrival {
        let ahead = u64::from(600_000 - head_start_ms.min(600_000));
        (if self.knows_terms { self.age_ms + ahead } else { 0 }, number)
    }

    pub(super) fn refuse_head_start(&self, asked: &Asked) -> Result<(), Rejection> {
        let head_start_ms = asked.terms.head_start_ms;
        if head_start_ms > 600_000 {
            return Err(Rejection::HeadStartTooLong { head_start_ms, max_ms: 600_000 });
        }
        let lock = asked.items[0].lock.clone();
        if head_start_ms > 0 && self.scope_of(&lock).is_some() {
            return Err(Rejection::HeadStartInScope { lock });
        }
        Ok(())
    }

    /// The first of its names that its owner has, in the order of names; by the first of its requests.
    pub(super) fn refuse_owner(&self, session: SessionId, asked: &Asked) -> Result<(), Rejection> {
        let owner = asked.terms.owner;
        let is_own = |request: &&Request| {
            request.session == session
                && matches!(&request.what, What::Asked(other) if other.terms.owner == owner)
        };
        let mut own: Vec<&Request> = self.requests.iter().filter(is_own).collect();
        own.sort_by_key(|request| request.id);
        for item in asked.items.iter().filter(|_| owner != 0) {
            let lock = item.lock.clone();
            for request in &own {
                match &request.state {
                    State::Held { token, holds, .. }
                        if holds.iter().any(|held| held.lock == lock)
                            && !self.is_ending(session, *token) =>
                    {
                        return Err(Rejection::AlreadyHeld { lock, token: *token });
                    }
                    State::Waiting { .. } if asks_for(request, &lock) => {
                        return Err(Rejection::AlreadyAsked { lock, request: request.id });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether the holders of a lock are told of a request that is about to wait with that head start.
    pub(super) fn is_news_to_holders(&self, lock: &LockName, head_start_ms: u32) -> bool {
        let queue = self.queue(lock);
        let largest = queue.iter().map(|request| request.said().0).max();
        largest.is_none_or(|largest| head_start_ms > largest)
    }

    /// Whether that request has a head start.
    pub(super) fn has_head_start(&self, session: SessionId, id: RequestId) -> bool {
        self.request(session, id).is_some_and(|request| request.said().0 > 0)
    }
}
