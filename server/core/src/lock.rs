//! A lock: its holders, its queue, its value; and which locks are free to a request.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use holdfast_mutants::mutant;

use crate::LockTable;
use crate::answer::Grant;
use crate::ids::{FencingToken, LockName, RequestId, SessionId, Ticket};
use crate::lock_set::{LockSet, Mode, Part};
use crate::queue::{Queue, Waiter};
use crate::value::Value;
use crate::work::{MANY_HOLDERS, Pending};

/// A hold of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) grant: Grant,
    pub(crate) mode: Mode,
}

/// The holders of a lock. Each is found by its token in O(log n), so that one of many readers
/// leaves without a look at the others; the common case, one holder, takes no memory of its own.
///
/// The type has no form for holders that do not fit together (I2): several are always readers.
#[derive(Clone, Debug, Default)]
pub(crate) enum Holders {
    #[default]
    Nobody,
    One(Holder),
    /// Invariant: two or more.
    Readers(BTreeMap<FencingToken, (SessionId, RequestId)>),
}

impl Holders {
    /// Whether the present holders allow one more in that mode.
    pub(crate) fn fits(&self, mode: Mode) -> bool {
        match (self, mode) {
            (Self::Nobody, _)
            | (Self::One(Holder { mode: Mode::Shared, .. }) | Self::Readers(_), Mode::Shared) => {
                true
            }
            (Self::One(_) | Self::Readers(_), _) => false,
        }
    }

    /// Adds a holder; `false`, and nothing changes, if it does not fit or its token is present.
    pub(crate) fn insert(&mut self, new: Holder) -> bool {
        if !self.fits(new.mode) || self.contains(new.grant.token) {
            return false;
        }
        match self {
            Self::Nobody => *self = Self::One(new),
            Self::One(first) => *self = Self::Readers([entry(*first), entry(new)].into()),
            Self::Readers(readers) => {
                let (token, reader) = entry(new);
                readers.insert(token, reader);
            }
        }
        true
    }

    /// Removes the holder with that token; `false` if there is none.
    pub(crate) fn remove(&mut self, token: FencingToken) -> bool {
        if !self.contains(token) {
            return false;
        }
        match self {
            Self::Nobody | Self::One(_) => *self = Self::Nobody,
            Self::Readers(readers) => {
                readers.remove(&token);
                if let (1, Some((&token, &reader))) = (readers.len(), readers.first_key_value()) {
                    *self = Self::One(read_by(token, reader));
                }
            }
        }
        true
    }

    pub(crate) fn contains(&self, token: FencingToken) -> bool {
        match self {
            Self::Nobody => false,
            Self::One(holder) => holder.grant.token == token,
            Self::Readers(readers) => readers.contains_key(&token),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nobody => 0,
            Self::One(_) => 1,
            Self::Readers(readers) => readers.len(),
        }
    }

    /// The holder that was granted first.
    pub(crate) fn first(&self) -> Option<Holder> {
        self.iter().next()
    }

    /// The holder with that token. O(log n).
    pub(crate) fn get(&self, token: FencingToken) -> Option<Holder> {
        match self {
            Self::Nobody => None,
            Self::One(holder) => Some(*holder).filter(|holder| holder.grant.token == token),
            Self::Readers(readers) => readers.get(&token).map(|&reader| read_by(token, reader)),
        }
    }

    /// In the order of their grants.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Holder> {
        self.after(None)
    }

    /// Those granted after that token, or all of them, in the order of their grants. O(log n) to begin.
    pub(crate) fn after(&self, token: Option<FencingToken>) -> impl Iterator<Item = Holder> {
        let (one, readers) = match self {
            Self::Nobody => (None, None),
            Self::One(holder) => (Some(*holder), None),
            Self::Readers(readers) => (None, Some(readers)),
        };
        let from = token.map_or(Bound::Unbounded, Bound::Excluded);
        let readers = readers.into_iter().flat_map(move |all| all.range((from, Bound::Unbounded)));
        let one = one.filter(|holder| token.is_none_or(|token| holder.grant.token > token));
        one.into_iter().chain(readers.map(|(&token, &reader)| read_by(token, reader)))
    }
}

fn entry(holder: Holder) -> (FencingToken, (SessionId, RequestId)) {
    let Grant { session, request, token } = holder.grant;
    (token, (session, request))
}

fn read_by(token: FencingToken, (session, request): (SessionId, RequestId)) -> Holder {
    Holder { grant: Grant { session, request, token }, mode: Mode::Shared }
}

/// One lock: in the table only while it is held, waited for, or carries a value (I33).
///
/// The first request creates it, and it goes with the last reason to keep it. Nothing else refers
/// to it; when a snapshot is read, it is built from the sessions' records and the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    /// Empty while there is a queue only if the queue's head is a set that waits for another of its
    /// locks, the scope is suspended, or the tokens are used up: the waiters keep their places.
    pub(crate) holders: Holders,
    pub(crate) queue: Queue,
    /// The same as in [`LockTable::values`], so that a grant need not look it up.
    pub(crate) value: Option<Value>,
}

impl Lock {
    /// Whether nothing keeps it in the table (I33).
    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.value.is_none()
    }

    /// Whether a new request may hold it: it fits, and the queue is empty (I9: no request overtakes
    /// another, nor does a reader that would fit overtake a writer).
    fn is_free_to_newcomer(&self, mode: Mode) -> bool {
        let overtakes = mutant!(WriterOvertaken) && mode == Mode::Shared;
        (self.queue.is_empty() || overtakes) && self.holders.fits(mode)
    }

    /// Whether the waiter with that ticket may hold it: it is next, and fits.
    fn is_free_to(&self, ticket: Ticket, mode: Mode) -> bool {
        self.queue.first().is_some_and(|(first, _)| first == ticket) && self.holders.fits(mode)
    }
}

impl LockTable {
    /// The locks of a request that are free to it, if it is new.
    pub(crate) fn free_to_newcomer(&self, lock_set: &LockSet) -> Part {
        if self.grants_after_ms().is_some() || self.is_suspended(lock_set) {
            return Part::default();
        }
        self.part_where(lock_set, Lock::is_free_to_newcomer)
    }

    /// The locks of a request that are free to the waiter with that ticket.
    pub(crate) fn free_to(&self, ticket: Ticket, lock_set: &LockSet) -> Part {
        self.part_where(lock_set, |lock, mode| lock.is_free_to(ticket, mode))
    }

    /// The locks of a request whose holders it fits together with.
    pub(crate) fn fitting(&self, lock_set: &LockSet) -> Part {
        self.part_where(lock_set, |lock, mode| lock.holders.fits(mode))
    }

    /// A lock that is not in the table has no holder and no waiter.
    fn part_where(&self, lock_set: &LockSet, is_so: impl Fn(&Lock, Mode) -> bool) -> Part {
        let so = |name, mode| self.locks.get(name).is_none_or(|lock| is_so(lock, mode));
        let places = lock_set.iter().enumerate().filter(|&(_, (name, mode))| so(name, mode));
        places.fold(Part::default(), |part, (at, _)| part.with(at))
    }

    pub(crate) fn lock_or_new(&mut self, name: &LockName) -> &mut Lock {
        self.locks.entry(name.clone()).or_default()
    }

    /// A name as the table keeps it, to be shared by all requests that name it.
    pub(crate) fn kept_name(&self, name: &LockName) -> Option<LockName> {
        self.locks.get_key_value(name).map(|(kept, _)| kept.clone())
    }

    /// Adds a holder, and returns the value of the lock. The caller has checked that it fits.
    pub(crate) fn put_holder(
        &mut self,
        name: &LockName,
        grant: Grant,
        mode: Mode,
    ) -> Option<Value> {
        let lock = self.lock_or_new(name);
        let was_free = lock.holders.is_empty();
        let fits = lock.holders.insert(Holder { grant, mode });
        debug_assert!(fits, "I2: {name} does not take {grant:?}");
        let value = lock.value.clone();
        if was_free {
            self.counts.held += 1;
        }
        value
    }

    /// Removes a holder. O(log n) in the number of holders: there may be many readers.
    pub(crate) fn take_holder(&mut self, name: &LockName, token: FencingToken) {
        let Some(lock) = self.locks.get_mut(name) else { return };
        if lock.holders.remove(token) && lock.holders.is_empty() {
            self.counts.held -= 1;
        }
        let few = lock.holders.len() <= MANY_HOLDERS;
        let Pending { told, untold, .. } = self.work.pending();
        if few && told.contains_key(name) && !untold.contains(name) {
            self.work.pending_mut().told.remove(name);
        }
    }

    /// Gives a waiter its place in the queue of a lock. The caller has drawn a new ticket.
    pub(crate) fn put_waiter(&mut self, name: &LockName, ticket: Ticket, waiter: Waiter) -> bool {
        let queue = &mut self.lock_or_new(name).queue;
        let (is_first, is_put) = (queue.is_empty(), queue.push(ticket, waiter));
        if is_first && is_put {
            self.awaited.insert(name.clone());
        }
        is_put
    }

    /// Removes a waiter from all its queues. The waiters behind it may have to be granted now: the
    /// caller looks at those queues ([`LockTable::pass_on`]).
    pub(crate) fn leave_queues(&mut self, lock_set: &LockSet, ticket: Ticket) {
        for (name, _) in lock_set.iter() {
            if let Some(lock) = self.locks.get_mut(name)
                && lock.queue.remove(ticket).is_some()
                && lock.queue.is_empty()
            {
                self.awaited.remove(name);
            }
        }
        self.counts.waiting -= 1;
    }

    /// Removes a lock if nothing keeps it in the table (I33).
    pub(crate) fn tidy(&mut self, name: &LockName) {
        if let Entry::Occupied(lock) = self.locks.entry(name.clone())
            && lock.get().is_idle()
            && !mutant!(LocksLeftBehind)
        {
            lock.remove();
            self.forget_telling(name);
        }
    }

    /// Whether exactly that grant holds that lock now, and nothing is ending it from outside: for a
    /// resource that cannot compare tokens itself. O(log n).
    pub fn grant_is_current(&self, name: &LockName, token: FencingToken) -> bool {
        let mut holds = self.holds_of(name, Some(token));
        holds.any(|(grant, lock_set, _)| self.is_relied_on((grant.session, token), lock_set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(counter: u64, mode: Mode) -> Holder {
        let token = FencingToken::new(1, counter).expect("a token");
        let grant = Grant { session: SessionId::new(counter), request: RequestId::new(1), token };
        Holder { grant, mode }
    }

    /// I2.
    #[test]
    fn only_readers_hold_together() {
        use Mode::{Exclusive, Shared};
        for (first, second, fit) in [
            (Exclusive, Exclusive, false),
            (Exclusive, Shared, false),
            (Shared, Exclusive, false),
            (Shared, Shared, true),
        ] {
            let mut holders = Holders::default();
            assert!(holders.insert(holder(1, first)));
            assert_eq!(holders.fits(second), fit, "{second:?} beside {first:?}");
            assert_eq!(holders.insert(holder(2, second)), fit);
            assert_eq!(holders.len(), if fit { 2 } else { 1 });
        }
    }

    #[test]
    fn readers_come_and_go_in_any_order() {
        let mut holders = Holders::default();
        for counter in [2, 3, 1] {
            assert!(holders.insert(holder(counter, Mode::Shared)));
            assert!(!holders.insert(holder(counter, Mode::Shared)), "one token twice");
        }
        let tokens = |holders: &Holders| -> Vec<u64> {
            holders.iter().map(|one| one.grant.token.counter()).collect()
        };
        assert_eq!(tokens(&holders), [1, 2, 3]);
        let token = |counter| holder(counter, Mode::Shared).grant.token;
        assert!(!holders.remove(token(9)));
        assert!(holders.remove(token(1)) && holders.remove(token(3)));
        assert!(!holders.fits(Mode::Exclusive) && holders.fits(Mode::Shared));
        assert_eq!(tokens(&holders), [2]);
        assert!(!holders.remove(token(3)) && holders.remove(token(2)));
        assert!(holders.is_empty() && holders.fits(Mode::Exclusive));
    }
}
