//! How locks pass on: the next waiter that fits is granted, in the command that made room (I15).

use std::collections::BTreeSet;

use holdfast_mutants::mutant;

use crate::LockTable;
use crate::answer::{Acquired, Grant};
use crate::event::Event;
use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::lock_set::{LockSet, Part};
use crate::rank::Rank;
use crate::session::Record;
use crate::work::HOLD_STEPS;

/// Heads that earlier commands have left, taken up at once. The smallest tickets come first.
const HEADS_AT_ONCE: usize = 16;

/// Heads of queues to look at, each with its lock: the smallest rank first.
///
/// A single one, the common case, takes no memory of its own.
#[derive(Default)]
struct Heads {
    one: Option<(Rank, LockName)>,
    more: BTreeSet<(Rank, LockName)>,
}

impl Heads {
    fn add(&mut self, rank: Rank, name: &LockName) {
        let head = (rank, name.clone());
        if self.one.is_none() && self.more.is_empty() {
            self.one = Some(head);
        } else {
            self.more.extend(self.one.take());
            self.more.insert(head);
        }
    }

    fn next(&mut self) -> Option<(Rank, LockName)> {
        self.one.take().or_else(|| self.more.pop_first())
    }
}

/// What comes of the head of a queue now.
enum Head {
    /// It is granted.
    Ready(Ready),
    /// It asks for more permits than the limit of that lock, where it is the head too.
    AboveLimit { session: SessionId, request: RequestId, lock_set: LockSet, at: usize },
}

/// A waiter that can be granted now.
struct Ready {
    session: SessionId,
    request: RequestId,
    rank: Rank,
    lock_set: LockSet,
    /// The locks that it is granted.
    part: Part,
}

impl LockTable {
    /// Grants to the heads of these queues for as long as one can be granted: always the one with
    /// the smallest rank (I9). So adjacent readers enter together, and no request overtakes
    /// another or slips in between the end of a hold and the next grant.
    ///
    /// A waiter that is granted leaves its other queues too, which may make room there: the same
    /// command looks at their heads, until nothing more can be granted (I15). An `any` takes all
    /// locks that are free to it at its turn, so of two locks that one grant gives back it gets
    /// both.
    ///
    /// Within a limit of work the heads that are not reached are left for a later command. Nobody gets
    /// in before them: a lock with a queue is free to its head alone.
    ///
    /// A lock that nothing keeps leaves the table (I33). Without tokens the waiters keep their
    /// places (I10). So do those of a suspended scope: its locks are looked at again when it is
    /// resumed.
    ///
    /// A new holder gets `Contended` for the requests that still wait once all grants are made:
    /// readers that enter together do not cause it for each other.
    pub(crate) fn pass_on<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a LockName>,
        events: &mut Vec<Event>,
    ) {
        let mut heads = Heads::default();
        for name in names {
            self.work.charge(1);
            self.look_at(name, &mut heads);
        }
        self.grant_heads(heads, events);
    }

    /// Grants to the heads that earlier commands have left, as far as the command goes. A few at a time:
    /// what is not reached goes back.
    pub(crate) fn grant_left(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent() && !self.work.pending().heads.is_empty() {
            let left = &mut self.work.pending_mut().heads;
            if mutant!(LeftHeadsForgotten) {
                left.clear();
            }
            let some: Vec<LockName> = std::iter::from_fn(|| left.pop_first())
                .take(HEADS_AT_ONCE)
                .map(|(_, name)| name)
                .collect();
            let mut heads = Heads::default();
            for name in &some {
                self.look_at(name, &mut heads);
            }
            self.grant_heads(heads, events);
        }
    }

    fn grant_heads(&mut self, mut heads: Heads, events: &mut Vec<Event>) {
        let before = events.len();
        while !self.work.is_spent()
            && let Some((rank, name)) = heads.next()
        {
            let ready = match self.ready_head(&name, rank) {
                Some(Head::Ready(ready)) => ready,
                Some(Head::AboveLimit { session, request, lock_set, at }) => {
                    self.refuse_above_limit((session, request, rank), (&lock_set, at), events);
                    lock_set.iter().for_each(|(name, _)| self.look_at(name, &mut heads));
                    continue;
                }
                None => continue,
            };
            let epoch = self.epoch_of(&ready.lock_set);
            // Without tokens nobody is granted anything any more, and waiters above a limit are refused still.
            let Ok(token) = self.counters.next_token(epoch) else { continue };
            self.grant_waiting(&ready, token, events);
            let left = if mutant!(AnyQueueUnlooked) { ready.part } else { ready.lock_set.whole() };
            ready.lock_set.iter_part(left).for_each(|(name, _)| self.look_at(name, &mut heads));
        }
        let left = std::iter::from_fn(|| heads.next());
        let mut left = left.map(|(rank, name)| (rank.ticket, name)).peekable();
        if left.peek().is_some() {
            self.work.pending_mut().heads.extend(left);
        }
        self.tell_contended(before, events);
    }

    /// Notes the head of a queue, or puts it off until the scope or the table grants again, or removes the lock if
    /// nothing keeps it.
    fn look_at(&mut self, name: &LockName, heads: &mut Heads) {
        match self.locks.get(name).map(|lock| lock.queue.first()) {
            Some(Some(_)) if self.grants_nothing_of(name) => {}
            Some(Some((rank, _))) => heads.add(rank, name),
            Some(None) => self.tidy(name),
            None => {}
        }
    }

    /// The head of a queue, if it still has that rank and can be granted now.
    fn ready_head(&mut self, name: &LockName, rank: Rank) -> Option<Head> {
        self.work.charge(1);
        let lock = self.locks.get(name)?;
        let (_, head) = lock.queue.first().filter(|&(first, _)| first == rank)?;
        // A head that does not fit here needs no look at its other locks: a set needs this one too,
        // and an `any` is looked at for each of its locks.
        let is_above = self.is_above_limit(name, head.mode);
        if !(is_above || lock.fits(head.mode)) || self.is_ending(head.session) {
            return None;
        }
        let found = self.sessions.get(&head.session)?;
        let Some(Record::Asked { lock_set, .. }) = found.records.get(&head.request) else {
            return None;
        };
        let above = lock_set.iter().position(|(name, mode)| {
            let is_looked_at = self.is_first(rank, name) && !self.is_kept_back(name);
            is_looked_at && self.is_above_limit(name, mode)
        });
        let part = lock_set.takes(self.free_to(rank, lock_set));
        let (session, request) = (head.session, head.request);
        let lock_set = lock_set.clone();
        self.work.charge(lock_set.len() as u64);
        if let Some(at) = above {
            return Some(Head::AboveLimit { session, request, lock_set, at });
        }
        Some(Head::Ready(Ready { session, request, rank, lock_set, part: part? }))
    }

    fn is_first(&self, rank: Rank, name: &LockName) -> bool {
        let first = self.locks.get(name).and_then(|lock| lock.queue.first());
        first.is_some_and(|(first, _)| first == rank)
    }

    fn grant_waiting(&mut self, ready: &Ready, token: FencingToken, events: &mut Vec<Event>) {
        let Ready { session, request, rank, lock_set, part } = ready;
        let (session, request, part) = (*session, *request, *part);
        self.charge_for(session);
        let since_ms = self.stamp_ms;
        self.change_session(session, |found| found.hold(request, token, part, since_ms));
        let grant = Grant { session, request, token };
        // Before it leaves its queues: a limit that is for it alone stays.
        self.enter(grant, lock_set, part, events);
        self.leave_queues(lock_set, *rank);
        let elsewhere = lock_set.whole().without(part);
        if !elsewhere.is_empty() {
            events.push(Event::Left { session, request, items: lock_set.items_of(elsewhere) });
        }
    }

    /// Makes a request a holder of all that it is granted, under one token (I14).
    pub(crate) fn enter(
        &mut self,
        grant: Grant,
        lock_set: &LockSet,
        part: Part,
        events: &mut Vec<Event>,
    ) -> Acquired {
        let mut values = Vec::new();
        for (name, mode) in lock_set.iter_part(part) {
            let value = self.put_holder(name, grant, mode);
            self.work.charge(HOLD_STEPS);
            self.work.charge_bytes(value.as_ref().map_or(0, |value| value.bytes.len()));
            values.extend(value.map(|value| (name.clone(), value)));
        }
        let Grant { session, request, token } = grant;
        let items = lock_set.items_of(part);
        let told = (items.clone(), values.clone());
        events.push(Event::Granted { session, request, token, items: told.0, values: told.1 });
        Acquired::Granted { token, items, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ticket;

    #[test]
    fn the_smallest_rank_is_looked_at_first_and_each_once() {
        let rank = |at_ms| Rank { at_ms, ticket: Ticket::new(10 - at_ms) };
        let head = |at_ms, text: &str| (rank(at_ms), LockName::parse(text).expect("name"));
        let mut heads = Heads::default();
        for (rank, name) in [head(3, "a"), head(1, "c"), head(3, "a"), head(2, "b"), head(1, "a")] {
            heads.add(rank, &name);
        }
        assert_eq!(heads.next(), Some(head(1, "a")));
        heads.add(rank(2), &head(2, "a").1);
        let rest: Vec<_> = std::iter::from_fn(|| heads.next()).collect();
        assert_eq!(rest, [head(1, "c"), head(2, "a"), head(2, "b"), head(3, "a")]);
    }
}
