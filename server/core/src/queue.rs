//! The queue of a lock: by rank (I9, `rank.rs`), with every place found in O(log n).
//!
//! A `BTreeMap` by rank does not know how many waiters stand before one: after a change of leader
//! each of 100,000 waiters asks for its place, and counting for each would take minutes. So the
//! waiters stand in sorted chunks of bounded length, and a Fenwick tree counts those of the chunks.
//! A waiter comes and goes within one chunk. A chunk begins or ends after dozens of that alone, and
//! then the tree is made anew.

use std::collections::{BTreeMap, VecDeque};

use holdfast_mutants::mutant;

use crate::ids::{RequestId, SessionId, Ticket};
use crate::lock_set::Mode;
use crate::rank::Rank;

/// A waiter: a request of a session, its mode for this lock, and its head start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) session: SessionId,
    pub(crate) request: RequestId,
    pub(crate) mode: Mode,
    pub(crate) head_start_ms: u32,
}

/// So many waiters a chunk has at most. One that comes or goes moves half of them at most.
const CHUNK: usize = 128;
/// A chunk with fewer is put together with a neighbour if they are half a chunk at most.
const FEW: usize = CHUNK / 4;
/// An empty queue keeps room for so many.
const KEPT: usize = 16;

/// The requests that wait for one lock, in the order of their ranks.
///
/// Most locks never have a waiter: their queue takes one word in the table. The allocation for the
/// first waiter stays for the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue(Option<Box<Line>>);

impl Queue {
    /// Adds a waiter at its rank; `false`, and nothing changes, if there is one of that rank.
    pub(crate) fn insert(&mut self, rank: Rank, waiter: Waiter) -> bool {
        self.0.get_or_insert_default().insert(rank, waiter)
    }

    /// Removes a waiter, wherever it stands.
    pub(crate) fn remove(&mut self, rank: Rank) -> Option<Waiter> {
        self.0.as_mut()?.remove(rank)
    }

    /// Gives a place to another request; `false`, and nothing changes, if the place is empty.
    pub(crate) fn replace(&mut self, rank: Rank, waiter: Waiter) -> bool {
        self.0.as_mut().is_some_and(|line| line.replace(rank, waiter))
    }

    /// The next in line: the smallest rank.
    pub(crate) fn first(&self) -> Option<(Rank, Waiter)> {
        let line = self.0.as_ref()?;
        if mutant!(LastInQueueFirst) { line.iter().last() } else { line.first() }
    }

    /// How many waiters have a smaller rank.
    pub(crate) fn place(&self, rank: Rank) -> u64 {
        self.0.as_ref().map_or(0, |line| line.place(rank))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, |line| line.waiting as u64)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest head start among the waiters, milliseconds; 0 if none has one.
    pub(crate) fn largest_head_start_ms(&self) -> u32 {
        let largest = self.0.as_ref().and_then(|line| line.head_starts.last_key_value());
        largest.map_or(0, |(head_start_ms, _)| *head_start_ms)
    }

    /// From the next in line to the last.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Rank, Waiter)> {
        self.0.iter().flat_map(|line| line.iter())
    }

    /// Those behind a ticket, which need not be there, to the last. O(log n) to begin. For queues
    /// without head starts up to that ticket: there the order of ranks is that of tickets.
    pub(crate) fn after(&self, ticket: Ticket) -> impl Iterator<Item = (Rank, Waiter)> {
        self.0.iter().flat_map(move |line| line.after(ticket))
    }
}

/// A waiter at its rank.
type Place = (Rank, Waiter);

#[derive(Clone, Debug, Default)]
struct Line {
    /// Invariant: rising ranks, within a chunk and from one to the next. None is empty, unless it is
    /// the only one. Two neighbours of which one has fewer than [`FEW`] have more than half a chunk
    /// together: so memory follows the number of waiters.
    chunks: Vec<VecDeque<Place>>,
    /// Entry `i − 1` counts the waiters in the `lowest_bit(i)` chunks that end with chunk `i − 1`.
    ///
    /// Invariant: as long as `chunks`. 32 bits: four billion waiters would take 190 GB.
    tree: Vec<u32>,
    waiting: usize,
    /// How many waiters have each head start above 0. Takes no memory without one.
    head_starts: BTreeMap<u32, u32>,
}

/// The lowest bit that is set; 0 for 0.
fn lowest_bit(number: usize) -> usize {
    number & number.wrapping_neg()
}

fn rank_of(&(rank, _): &Place) -> Rank {
    rank
}

impl Line {
    fn insert(&mut self, rank: Rank, waiter: Waiter) -> bool {
        let is_put = self.put(rank, waiter);
        if is_put {
            self.add_head_start(waiter.head_start_ms);
        }
        is_put
    }

    fn put(&mut self, rank: Rank, waiter: Waiter) -> bool {
        let last = self.chunks.len().saturating_sub(1);
        let at = self.chunk_of(rank).min(last);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.push_chunk([(rank, waiter)].into());
            return true;
        };
        let Err(within) = chunk.binary_search_by_key(&rank, rank_of) else { return false };
        if at == last && within == CHUNK {
            self.push_chunk([(rank, waiter)].into());
            return true;
        }
        chunk.insert(within, (rank, waiter));
        self.waiting += 1;
        if let Some(rest) = (chunk.len() > CHUNK).then(|| chunk.split_off(CHUNK / 2)) {
            self.chunks.insert(at + 1, rest);
            self.count_anew();
        } else {
            self.count(at, 1);
        }
        true
    }

    fn remove(&mut self, rank: Rank) -> Option<Waiter> {
        let at = self.chunk_of(rank);
        let chunk = self.chunks.get_mut(at)?;
        let within = chunk.binary_search_by_key(&rank, rank_of).ok()?;
        let (_, waiter) = chunk.remove(within)?;
        self.waiting -= 1;
        let few = chunk.len() < FEW;
        if chunk.is_empty() {
            chunk.shrink_to(KEPT);
        }
        self.take_head_start(waiter.head_start_ms);
        if few && self.join_neighbours(at) {
            self.count_anew();
        } else {
            self.count(at, -1);
        }
        Some(waiter)
    }

    fn replace(&mut self, rank: Rank, waiter: Waiter) -> bool {
        let at = self.chunk_of(rank);
        let Some(chunk) = self.chunks.get_mut(at) else { return false };
        let within = chunk.binary_search_by_key(&rank, rank_of).ok();
        let Some(place) = within.and_then(|within| chunk.get_mut(within)) else { return false };
        let before = std::mem::replace(&mut place.1, waiter);
        self.take_head_start(before.head_start_ms);
        self.add_head_start(waiter.head_start_ms);
        true
    }

    fn add_head_start(&mut self, head_start_ms: u32) {
        if head_start_ms > 0 {
            *self.head_starts.entry(head_start_ms).or_default() += 1;
        }
    }

    fn take_head_start(&mut self, head_start_ms: u32) {
        if let Some(count) = self.head_starts.get_mut(&head_start_ms) {
            *count -= 1;
            if *count == 0 {
                self.head_starts.remove(&head_start_ms);
            }
        }
    }

    fn first(&self) -> Option<Place> {
        self.chunks.first()?.front().copied()
    }

    fn place(&self, rank: Rank) -> u64 {
        let at = self.chunk_of(rank);
        let mut before = 0;
        if let Some(chunk) = self.chunks.get(at) {
            before = chunk.partition_point(|&(other, _)| other < rank) as u64;
        }
        let mut end = at;
        while end > 0 {
            before += u64::from(self.tree.get(end - 1).copied().unwrap_or(0));
            end -= lowest_bit(end);
        }
        before
    }

    fn iter(&self) -> impl Iterator<Item = Place> {
        self.chunks.iter().flatten().copied()
    }

    fn after(&self, ticket: Ticket) -> impl Iterator<Item = Place> {
        let is_passed = |place: &Place| place.0.ticket <= ticket;
        let at = self.chunks.partition_point(|chunk| chunk.back().is_some_and(is_passed));
        let chunks = self.chunks.get(at..).unwrap_or_default();
        let passed = chunks.first().map_or(0, |chunk| chunk.partition_point(is_passed));
        chunks.iter().flatten().skip(passed).copied()
    }

    /// The chunk that a waiter of that rank stands in, if there is one; the number of chunks if all
    /// ranks are smaller.
    fn chunk_of(&self, rank: Rank) -> usize {
        self.chunks.partition_point(|chunk| chunk.back().is_none_or(|last| last.0 < rank))
    }

    fn push_chunk(&mut self, chunk: VecDeque<Place>) {
        self.waiting += chunk.len();
        self.chunks.push(chunk);
        self.count_last();
    }

    /// Removes an empty chunk, or puts one together with a neighbour if both are small. Returns
    /// whether it did either.
    fn join_neighbours(&mut self, at: usize) -> bool {
        let len = |at: usize| self.chunks.get(at).map(VecDeque::len);
        let Some(own) = len(at) else { return false };
        let is_small = |other: &usize| own + other <= CHUNK / 2;
        if own == 0 && self.chunks.len() > 1 {
            self.chunks.remove(at);
        } else if len(at + 1).is_some_and(|other| is_small(&other)) {
            self.join_next(at);
        } else if at > 0 && len(at - 1).is_some_and(|other| is_small(&other)) {
            self.join_next(at - 1);
        } else {
            return false;
        }
        true
    }

    fn join_next(&mut self, at: usize) {
        let mut next = self.chunks.remove(at + 1);
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.append(&mut next);
        }
    }

    /// One waiter more or less in a chunk.
    fn count(&mut self, at: usize, change: i32) {
        let mut end = at + 1;
        while let Some(count) = self.tree.get_mut(end - 1) {
            *count = count.saturating_add_signed(change);
            end += lowest_bit(end);
        }
    }

    /// Adds the count of the chunk behind those that are counted.
    fn count_last(&mut self) {
        let end = self.tree.len() + 1;
        let len = self.chunks.get(end - 1).map_or(0, VecDeque::len);
        // A chunk is short.
        let mut count = u32::try_from(len).unwrap_or(u32::MAX);
        let mut step = 1;
        while step < lowest_bit(end) {
            count += self.tree.get(end - step - 1).copied().unwrap_or(0);
            step *= 2;
        }
        self.tree.push(count);
    }

    fn count_anew(&mut self) {
        self.tree.clear();
        for _ in 0..self.chunks.len() {
            self.count_last();
        }
        let room = 2 * self.chunks.len();
        if self.chunks.capacity() > 2 * room {
            self.chunks.shrink_to(room);
            self.tree.shrink_to(room);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn waiter(number: u64) -> Waiter {
        let (session, request) = (SessionId::new(number), RequestId::new(number));
        // One in three has a head start.
        let head_start_ms = if number.is_multiple_of(3) { (number % 50) as u32 } else { 0 };
        Waiter { session, request, mode: Mode::Exclusive, head_start_ms }
    }

    fn rank(at_ms: u64, ticket: u64) -> Rank {
        Rank { at_ms, ticket: Ticket::new(ticket) }
    }

    fn line(queue: &Queue) -> &Line {
        queue.0.as_ref().expect("somebody has waited")
    }

    fn pop_first(queue: &mut Queue) -> Option<Waiter> {
        let (first, _) = queue.first()?;
        queue.remove(first)
    }

    /// `ahead`: how far before the last a newcomer may stand.
    fn stays_equal_to_a_sorted_list(seed: u64, ahead: u64) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut queue = Queue::default();
        let mut list: Vec<Place> = Vec::new();
        for round in 1..=20_000_u64 {
            // Grows for a while, then drains, again and again.
            let grows = rng.random_bool(if round / 1_500 % 2 == 0 { 0.8 } else { 0.2 });
            if grows {
                let new = rank(round.saturating_sub(rng.random_range(0..=ahead)), round);
                assert!(queue.insert(new, waiter(round)));
                let at = list.partition_point(|&(other, _)| other < new);
                list.insert(at, (new, waiter(round)));
            } else if rng.random_bool(0.5) {
                let expected = (!list.is_empty()).then(|| list.remove(0).1);
                assert_eq!(pop_first(&mut queue), expected);
            } else if !list.is_empty() {
                let (gone, expected) = list.remove(rng.random_range(0..list.len()));
                assert_eq!(queue.remove(gone), Some(expected));
                assert_eq!(queue.remove(gone), None);
                assert!(!queue.replace(gone, waiter(0)));
            }
            assert_eq!(queue.len(), list.len() as u64);
            assert_eq!(queue.first(), list.first().copied());
            let largest = list.iter().map(|(_, waiter)| waiter.head_start_ms).max();
            assert_eq!(queue.largest_head_start_ms(), largest.unwrap_or(0));
            if let Some(at) = (!list.is_empty()).then(|| rng.random_range(0..list.len())) {
                assert_eq!(queue.place(list[at].0), at as u64);
                assert!(!queue.insert(list[at].0, waiter(0)), "one rank twice");
                list[at].1 = waiter(rng.random_range(0..round));
                assert!(queue.replace(list[at].0, list[at].1));
            }
            if round % 50 == 0 {
                assert_eq!(queue.iter().collect::<Vec<_>>(), list);
                let chunks = line(&queue).chunks.len();
                assert!(chunks <= 1 + 4 * list.len() / CHUNK, "{chunks} for {}", list.len());
                assert_eq!(queue.place(rank(u64::MAX, 0)), list.len() as u64);
            }
            if round % 50 == 0 && ahead == 0 {
                let after = Ticket::new(rng.random_range(0..=round));
                let behind = list.iter().filter(|(other, _)| other.ticket > after).copied();
                assert!(behind.eq(queue.after(after)), "behind {after}");
            }
        }
    }

    #[test]
    fn a_random_queue_stays_equal_to_a_sorted_list() {
        stays_equal_to_a_sorted_list(7, 0);
        stays_equal_to_a_sorted_list(8, 300);
        stays_equal_to_a_sorted_list(9, 20_000);
    }

    #[test]
    fn memory_follows_those_that_are_left_wherever_they_stand() {
        let mut queue = Queue::default();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut tickets: Vec<u64> = (1..=100_000).collect();
        for &ticket in &tickets {
            assert!(queue.insert(rank(0, ticket), waiter(ticket)));
        }
        tickets.shuffle(&mut rng);
        for ticket in tickets.drain(50..) {
            assert!(queue.remove(rank(0, ticket)).is_some());
        }
        let line = line(&queue);
        assert!(line.chunks.len() <= 3, "{} chunks", line.chunks.len());
        for ticket in tickets {
            assert!(queue.remove(rank(0, ticket)).is_some());
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn an_emptied_queue_keeps_next_to_nothing() {
        let mut queue = Queue::default();
        for ticket in 1..=100_000 {
            assert!(queue.insert(rank(0, ticket), waiter(ticket)));
        }
        while pop_first(&mut queue).is_some() {}
        assert!(queue.is_empty());
        let line = line(&queue);
        let room: usize = line.chunks.iter().map(VecDeque::capacity).sum();
        assert!(room <= KEPT && line.chunks.capacity() <= 4 && line.tree.capacity() <= 4);
    }
}
