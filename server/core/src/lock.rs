//! A lock: its holders, its queue, its value, its limit of permits; and which locks are free to a request.

use std::collections::btree_map::Entry;
use std::num::NonZeroU32;

use holdfast_mutants::mutant;

use crate::LockTable;
use crate::answer::Grant;
use crate::holders::{Holder, Holders};
use crate::ids::{FencingToken, LockName};
use crate::lock_set::{LockSet, Mode, Part};
use crate::queue::{Queue, Waiter};
use crate::rank::Rank;
use crate::value::Value;
use crate::work::{MANY_HOLDERS, Pending};

/// One lock: in the table only while it is held, waited for, closed, carries a value, or has a limit for good (I33).
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
    /// The limit of its permits, in force (`permits.rs`).
    pub(crate) limit: Option<NonZeroU32>,
    /// How many requests hold permits of it or wait for some.
    pub(crate) permit_requests: u32,
}

impl Lock {
    /// Whether nothing keeps it in the table (I33).
    fn is_idle(&self) -> bool {
        let is_deserted = self.holders.is_empty() && self.queue.is_empty();
        is_deserted && self.value.is_none() && self.limit.is_none()
    }

    /// Whether its holders allow one more in that mode.
    pub(crate) fn fits(&self, mode: Mode) -> bool {
        self.holders.fits(mode, self.limit)
    }

    /// A request comes to hold it or to wait for it: the limit that it names is the lock's, if it has none.
    pub(crate) fn note_comer(&mut self, mode: Mode) {
        if let Mode::Permits { limit, .. } = mode {
            self.limit = self.limit.or(NonZeroU32::new(limit));
            self.permit_requests = self.permit_requests.saturating_add(1);
        }
    }

    /// One no longer does. `true`: none is left that the limit is for.
    fn note_leaver(&mut self, mode: Mode) -> bool {
        if mode.is_permits() {
            self.permit_requests = self.permit_requests.saturating_sub(1);
        }
        mode.is_permits() && self.permit_requests == 0
    }

    /// Whether a new request of that rank may hold it: it fits, and nobody of a smaller rank waits (I9: nor does
    /// a reader that would fit overtake a writer).
    fn is_free_to_newcomer(&self, rank: Rank, mode: Mode) -> bool {
        let overtakes = mutant!(WriterOvertaken) && mode == Mode::Shared;
        let is_next = self.queue.first().is_none_or(|(first, _)| rank < first);
        (is_next || overtakes) && self.fits(mode)
    }

    /// Whether the waiter of that rank may hold it: it is next, and fits.
    fn is_free_to(&self, rank: Rank, mode: Mode) -> bool {
        self.queue.first().is_some_and(|(first, _)| first == rank) && self.fits(mode)
    }
}

impl LockTable {
    /// The locks of a request that are free to it, if it is new.
    pub(crate) fn free_to_newcomer(&self, lock_set: &LockSet, head_start_ms: u32) -> Part {
        if self.grants_after_ms().is_some() || self.is_suspended(lock_set) {
            return Part::default();
        }
        let rank = self.rank_of_newcomer(head_start_ms);
        let free = self.part_where(lock_set, |lock, mode| lock.is_free_to_newcomer(rank, mode));
        self.without_kept_back(lock_set, free)
    }

    /// The locks of a request that are free to the waiter of that rank.
    pub(crate) fn free_to(&self, rank: Rank, lock_set: &LockSet) -> Part {
        let free = self.part_where(lock_set, |lock, mode| lock.is_free_to(rank, mode));
        self.without_kept_back(lock_set, free)
    }

    /// Those of the free locks that are neither frozen nor closed.
    fn without_kept_back(&self, lock_set: &LockSet, free: Part) -> Part {
        if self.freezes.len() == 0 && self.closed_count == 0 {
            return free;
        }
        let places = lock_set.iter().enumerate();
        let kept_back = places.filter(|(_, (name, _))| self.is_kept_back(name));
        free.without(kept_back.fold(Part::default(), |part, (at, _)| part.with(at)))
    }

    /// Whether nobody is granted a lock, although its holders may allow it: it is frozen or closed.
    pub(crate) fn is_kept_back(&self, name: &LockName) -> bool {
        self.is_frozen(name) || self.is_closed(name)
    }

    /// The locks of a request whose holders it fits together with.
    pub(crate) fn fitting(&self, lock_set: &LockSet) -> Part {
        self.part_where(lock_set, Lock::fits)
    }

    /// A lock that is not in the table has no holder and no waiter.
    pub(crate) fn part_where(
        &self,
        lock_set: &LockSet,
        is_so: impl Fn(&Lock, Mode) -> bool,
    ) -> Part {
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
        lock.note_comer(mode);
        let was_free = lock.holders.is_empty();
        let fits = lock.fits(mode) && lock.holders.insert(Holder { grant, mode });
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
        let removed = lock.holders.remove(token);
        if removed.is_some() && lock.holders.is_empty() {
            self.counts.held -= 1;
        }
        let is_last = removed.is_some_and(|holder| lock.note_leaver(holder.mode));
        let few = lock.holders.len() <= MANY_HOLDERS;
        let Pending { told, untold, .. } = self.work.pending();
        if few && told.contains_key(name) && !untold.contains(name) {
            self.work.pending_mut().told.remove(name);
        }
        if is_last {
            self.drop_limit(name);
        }
    }

    /// Gives a waiter its place in the queue of a lock. The caller has drawn a new ticket.
    pub(crate) fn put_waiter(&mut self, name: &LockName, rank: Rank, waiter: Waiter) -> bool {
        let lock = self.lock_or_new(name);
        lock.note_comer(waiter.mode);
        let (is_first, is_put) = (lock.queue.is_empty(), lock.queue.insert(rank, waiter));
        if is_first && is_put {
            self.awaited.insert(name.clone());
        }
        is_put
    }

    /// Removes a waiter from all its queues. The waiters behind it may have to be granted now: the
    /// caller looks at those queues ([`LockTable::pass_on`]).
    pub(crate) fn leave_queues(&mut self, lock_set: &LockSet, rank: Rank) {
        for (name, _) in lock_set.iter() {
            let Some(lock) = self.locks.get_mut(name) else { continue };
            let Some(waiter) = lock.queue.remove(rank) else { continue };
            let is_last = lock.note_leaver(waiter.mode);
            if lock.queue.is_empty() {
                self.awaited.remove(name);
            }
            if is_last {
                self.drop_limit(name);
            }
        }
        self.counts.waiting -= 1;
    }

    /// Removes a lock if nothing keeps it in the table (I33).
    pub(crate) fn tidy(&mut self, name: &LockName) {
        if let Entry::Occupied(lock) = self.locks.entry(name.clone())
            && lock.get().is_idle()
            && !(self.closed_count > 0 && self.closed_locks.get(name).is_some())
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
