//! How long requests wait and holds last, as the leader of one tenure measures it.
//!
//! The log says that a wait or a hold begins or ends, and this node's own clock says when: a length is the time
//! between the two entries as this leader has applied them. No clock of another node and no wall clock counts, so
//! what began before the tenure is not measured.
//!
//! # Invariants
//!
//! - Only what waits or holds in the table has an entry here: the table's bounds are the bounds.
//! - A hold takes 12 bytes here and a wait 22: in the map about 29 and 38, and less than an allocation in six
//!   (measured, with a million of them that come and go in any order). A million holds: 29 MB.
//! - It begins empty with a tenure, and goes with it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::{FencingToken, RequestId, SessionId};
use holdfast_runtime::Instant;

/// Entries that are freed before other tasks run: about a millisecond's worth.
const FREED_AT_ONCE: usize = 16_384;

/// When what waits and holds began.
#[derive(Debug, Default)]
pub(super) struct Times {
    waits: BTreeMap<(SessionId, RequestId), Short>,
    /// By the counters of their tokens, which are never the same.
    holds: BTreeMap<Short, Short>,
    /// When the last entry was dispatched, if anything in it is measured.
    last: Option<Instant>,
}

impl Times {
    /// An entry is being dispatched, at this instant if anything in it is measured.
    pub(super) fn dispatched(&mut self, now: Option<Instant>) {
        self.last = now.or(self.last);
    }

    /// How long before the last entry was dispatched a request came in.
    pub(super) fn took_since(&self, came_in: Instant) -> Option<Duration> {
        self.last.map(|last| last.saturating_since(came_in))
    }

    /// A request has entered its queues.
    pub(super) fn queued(&mut self, request: (SessionId, RequestId), now: Instant) {
        self.waits.insert(request, Short::micros(now));
    }

    /// A request waits no more, without a grant.
    pub(super) fn left(&mut self, request: (SessionId, RequestId)) {
        self.waits.remove(&request);
    }

    /// A request holds. Returns how long it has waited, if it has.
    pub(super) fn granted(
        &mut self,
        request: (SessionId, RequestId),
        token: FencingToken,
        now: Instant,
    ) -> Option<Duration> {
        self.holds.insert(Short::of(token.counter()), Short::micros(now));
        self.waits.remove(&request).map(|since| since.until(now))
    }

    /// A hold is over. Returns how long it has lasted.
    pub(super) fn over(&mut self, token: FencingToken, now: Instant) -> Option<Duration> {
        self.holds.remove(&Short::of(token.counter())).map(|since| since.until(now))
    }

    /// Frees some of the entries; `false` once there are none. Of a million each the whole takes 50 ms.
    pub(super) fn free_some(&mut self) -> bool {
        for _ in 0..FREED_AT_ONCE {
            if self.waits.pop_first().is_none() && self.holds.pop_first().is_none() {
                return false;
            }
        }
        true
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.holds.is_empty()
    }
}

/// A number below 2⁴⁸, in six bytes where a `u64` takes eight: the counter of a token, or microseconds of the
/// node's clock, which are as many after nine years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Short([u8; 6]);

impl Short {
    fn of(number: u64) -> Self {
        let [_, _, low @ ..] = number.to_be_bytes();
        Self(low)
    }

    fn get(self) -> u64 {
        let mut number = [0; 8];
        let [_, _, low @ ..] = &mut number;
        *low = self.0;
        u64::from_be_bytes(number)
    }

    fn micros(now: Instant) -> Self {
        Self::of(u64::try_from(now.since_origin().as_micros()).unwrap_or(u64::MAX))
    }

    fn until(self, now: Instant) -> Duration {
        Duration::from_micros(Self::micros(now).get().saturating_sub(self.get()))
    }
}

impl Ord for Short {
    fn cmp(&self, other: &Self) -> Ordering {
        self.get().cmp(&other.get())
    }
}

impl PartialOrd for Short {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_origin(Duration::from_micros(micros))
    }

    fn request(session: u64, request: u64) -> (SessionId, RequestId) {
        (SessionId::new(session), RequestId::new(request))
    }

    fn token(counter: u64) -> FencingToken {
        FencingToken::new(7, counter).expect("a token")
    }

    #[test]
    fn a_wait_lasts_until_its_grant_and_a_hold_from_there_to_its_end() {
        let mut times = Times::default();
        times.queued(request(1, 2), at(1_000_000));
        let waited = times.granted(request(1, 2), token(5), at(1_000_250));
        assert_eq!(waited, Some(Duration::from_micros(250)));
        assert_eq!(times.over(token(5), at(3_000_250)), Some(Duration::from_secs(2)));
        assert!(times.is_empty());
    }

    #[test]
    fn what_began_before_the_tenure_or_did_not_wait_has_no_length() {
        let mut times = Times::default();
        assert_eq!(times.granted(request(1, 2), token(5), at(9)), None);
        assert_eq!(times.over(token(4), at(9)), None);
        times.queued(request(1, 3), at(9));
        times.left(request(1, 3));
        assert_eq!(times.granted(request(1, 3), token(6), at(10)), None);
    }

    #[test]
    fn six_bytes_have_the_order_and_the_value_of_the_number() {
        let numbers = [0, 1, 255, 256, 1 << 40, FencingToken::COUNTER_MAX];
        assert!(numbers.iter().all(|&number| Short::of(number).get() == number));
        assert!(numbers.map(Short::of).is_sorted());
        assert_eq!(size_of::<(Short, Short)>(), 12);
    }

    #[test]
    fn all_entries_are_freed_in_parts() {
        let mut times = Times::default();
        for number in 0..50_000 {
            times.granted(request(1, number), token(number), at(number));
            times.queued(request(2, number), at(number));
        }
        let mut parts = 0;
        while times.free_some() {
            parts += 1;
        }
        assert!(times.is_empty());
        assert_eq!(parts, 100_000 / FREED_AT_ONCE);
    }
}
