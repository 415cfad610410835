//! The queue of a lock: first in, first out, by ticket (I9), with every place found in O(log n).
//!
//! A `BTreeMap` by ticket does not know how many waiters stand before one: after a change of leader
//! each of 100,000 waiters asks for its place, and counting for each would take minutes. Tickets
//! only rise, so waiters are appended to a vector; one that leaves makes a gap; a Fenwick tree
//! counts those that are left.

use holdfast_mutants::mutant;

use crate::ids::{RequestId, SessionId, Ticket};
use crate::lock_set::Mode;

/// A waiter: a request of a session, and its mode for this lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) session: SessionId,
    pub(crate) request: RequestId,
    pub(crate) mode: Mode,
}

/// Up to this many gaps do not justify a compaction.
const GAPS_KEPT: usize = 32;

/// The requests that wait for one lock, in ticket order.
///
/// Most locks never have a waiter: their queue takes one word in the table. The allocation for the
/// first waiter stays for the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Option<Box<Line>>);

impl Queue {
    /// Appends a waiter; `false`, and nothing changes, if its ticket does not lie above that of the
    /// last slot.
    pub(crate) fn push(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        self.0.get_or_insert_default().push(ticket, waiter)
    }

    /// Removes a waiter, wherever it stands.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.0.as_mut()?.remove(ticket)
    }

    /// Gives a place to another request; `false`, and nothing changes, if the place is empty.
    pub(crate) fn replace(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        self.0.as_mut().is_some_and(|line| line.replace(ticket, waiter))
    }

    /// The next in line: the smallest ticket.
    pub(crate) fn first(&self) -> Option<(Ticket, Waiter)> {
        let line = self.0.as_ref()?;
        if mutant!(LastInQueueFirst) { line.iter().last() } else { line.first() }
    }

    /// How many waiters have a smaller ticket.
    pub(crate) fn place(&self, ticket: Ticket) -> u64 {
        self.0.as_ref().map_or(0, |line| line.place(ticket))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |line| line.waiting as u64)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From the next in line to the last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, Waiter)> {
        self.0.iter().flat_map(|line| line.iter())
    }

    /// Those behind a ticket, which need not be there, to the last. O(log n) to begin.
    pub(crate) fn after(&self, ticket: Ticket) -> impl Iterator<Item = (Ticket, Waiter)> {
        self.0.iter().flat_map(move |line| line.after(ticket))
    }
}

/// Memory follows the number of waiters: with more gaps than waiters it is compacted, at an average
/// cost of O(1) for each removal.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Invariant: rising tickets; `None` where a waiter left.
    slots: Vec<(Ticket, Option<Waiter>)>,
    /// Entry `i − 1` counts the waiters in the `lowest_bit(i)` slots that end with slot `i − 1`.
    ///
    /// Invariant: as long as `slots`. 32 bits: four billion waiters would take 170 GB.
    tree: Vec<u32>,
    /// How many slots are taken.
    waiting: usize,
    /// Invariant: the first slot that is taken, or the end.
    front: usize,
}

/// The lowest bit that is set; 0 for 0.
fn lowest_bit(number: usize) -> usize {
    number & number.wrapping_neg()
}

impl Line {
    fn push(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        if self.slots.last().is_some_and(|&(last, _)| last >= ticket) {
            return false;
        }
        self.slots.push((ticket, Some(waiter)));
        self.waiting += 1;
        let end = self.slots.len();
        let mut count = 1;
        let mut step = 1;
        while step < lowest_bit(end) {
            count += self.counted(end - step);
            step *= 2;
        }
        self.tree.push(count);
        true
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let at = self.slots.binary_search_by_key(&ticket, |&(slot, _)| slot).ok()?;
        self.vacate(at)
    }

    fn replace(&mut self, ticket: Ticket, waiter: Waiter) -> bool {
        let at = self.slots.binary_search_by_key(&ticket, |&(slot, _)| slot).ok();
        let slot = at.and_then(|at| self.slots.get_mut(at)?.1.as_mut());
        slot.map(|slot| *slot = waiter).is_some()
    }

    fn first(&self) -> Option<(Ticket, Waiter)> {
        let &(ticket, waiter) = self.slots.get(self.front)?;
        Some((ticket, waiter?))
    }

    fn place(&self, ticket: Ticket) -> u64 {
        let mut end = self.slots.partition_point(|&(slot, _)| slot < ticket);
        let mut before = 0;
        while end > 0 {
            before += u64::from(self.counted(end));
            end -= lowest_bit(end);
        }
        before
    }

    fn iter(&self) -> impl Iterator<Item = (Ticket, Waiter)> {
        let slots = self.slots.iter().skip(self.front);
        slots.filter_map(|&(ticket, waiter)| Some((ticket, waiter?)))
    }

    fn after(&self, ticket: Ticket) -> impl Iterator<Item = (Ticket, Waiter)> {
        let passed = self.slots.partition_point(|&(slot, _)| slot <= ticket);
        let slots = self.slots.iter().skip(passed.max(self.front));
        slots.filter_map(|&(ticket, waiter)| Some((ticket, waiter?)))
    }

    /// The tree's count at the slot before `end`.
    fn counted(&self, end: usize) -> u32 {
        self.tree.get(end.wrapping_sub(1)).copied().unwrap_or(0)
    }

    fn vacate(&mut self, at: usize) -> Option<Waiter> {
        let waiter = self.slots.get_mut(at)?.1.take()?;
        self.waiting -= 1;
        let mut end = at + 1;
        while let Some(count) = self.tree.get_mut(end - 1) {
            *count -= 1;
            end += lowest_bit(end);
        }
        // Each gap is passed over once: those before the front are not looked at again.
        while self.slots.get(self.front).is_some_and(|(_, waiter)| waiter.is_none()) {
            self.front += 1;
        }
        if self.slots.len() - self.waiting > self.waiting + GAPS_KEPT {
            self.compact();
        }
        Some(waiter)
    }

    fn compact(&mut self) {
        let mut compact = Self {
            slots: Vec::with_capacity(self.waiting),
            tree: Vec::with_capacity(self.waiting),
            ..Self::default()
        };
        for (ticket, waiter) in self.iter() {
            compact.push(ticket, waiter);
        }
        *self = compact;
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn waiter(number: u64) -> Waiter {
        let (session, request) = (SessionId::new(number), RequestId::new(number));
        Waiter { session, request, mode: Mode::Exclusive }
    }

    fn line(queue: &Queue) -> &Line {
        queue.0.as_ref().expect("somebody has waited")
    }

    fn pop_first(queue: &mut Queue) -> Option<Waiter> {
        let (ticket, _) = queue.first()?;
        queue.remove(ticket)
    }

    #[test]
    fn a_random_queue_stays_equal_to_a_sorted_list() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut queue = Queue::default();
        let mut list: Vec<(Ticket, Waiter)> = Vec::new();
        let mut drawn = 0;
        for round in 0..20_000_u64 {
            // Grows for a while, then drains, again and again.
            let grows = rng.random_bool(if round / 500 % 2 == 0 { 0.8 } else { 0.2 });
            if grows {
                drawn += rng.random_range(1..3);
                assert!(queue.push(Ticket::new(drawn), waiter(round)));
                list.push((Ticket::new(drawn), waiter(round)));
            } else if rng.random_bool(0.5) {
                let expected = (!list.is_empty()).then(|| list.remove(0).1);
                assert_eq!(pop_first(&mut queue), expected);
            } else if !list.is_empty() {
                let (ticket, expected) = list.remove(rng.random_range(0..list.len()));
                assert_eq!(queue.remove(ticket), Some(expected));
                assert_eq!(queue.remove(ticket), None);
            }
            assert_eq!(queue.len(), list.len() as u64);
            assert_eq!(queue.first(), list.first().copied());
            if drawn > 0 {
                assert!(line(&queue).slots.len() <= 2 * list.len() + GAPS_KEPT);
            }
            if let Some(at) = (!list.is_empty()).then(|| rng.random_range(0..list.len())) {
                assert_eq!(queue.place(list[at].0), at as u64);
            }
            if round % 50 == 0 {
                assert_eq!(queue.iter().collect::<Vec<_>>(), list);
                let after = rng.random_range(0..=drawn);
                let behind = list.iter().filter(|(ticket, _)| ticket.get() > after).copied();
                assert!(behind.eq(queue.after(Ticket::new(after))), "behind {after}");
            }
        }
    }

    #[test]
    fn a_ticket_that_does_not_rise_is_refused_and_nothing_changes() {
        let mut queue = Queue::default();
        assert!(queue.push(Ticket::new(5), waiter(1)));
        assert!(!queue.push(Ticket::new(5), waiter(2)));
        assert!(!queue.push(Ticket::new(4), waiter(3)));
        assert_eq!(queue.iter().collect::<Vec<_>>(), [(Ticket::new(5), waiter(1))]);
    }

    #[test]
    fn an_emptied_queue_keeps_next_to_nothing() {
        let mut queue = Queue::default();
        for ticket in 1..=100_000 {
            assert!(queue.push(Ticket::new(ticket), waiter(ticket)));
        }
        while pop_first(&mut queue).is_some() {}
        assert!(queue.is_empty());
        let line = line(&queue);
        assert!(line.slots.capacity() <= 64 && line.tree.capacity() <= 64);
    }
}
