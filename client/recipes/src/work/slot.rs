//! The slots of a queue: the partitions in which its items lie, and how they are listed.
//!
//! A slot is a minute of the queue and a share of it. All processes use share 0 for their first items of a minute, so that few items lie in
//! one partition and a look reads one; a process that enqueues more goes on in shares that it draws. So a partition has 1,000
//! items of each process, or 5,000 of one, and stays below the 100,000 tombstones at which Cassandra refuses to read it, unless more than 25
//! processes enqueue that much in one minute.
//!
//! # How a slot leaves the list, and no item with it
//!
//! The list has a row for each process that enqueues into the slot, under a name that is never used again: a [`Listing`]. An enqueuer that has
//! written an item relies on its listing for [`RELIED`] from before that was sent, and writes a new one after that. A worker removes exactly the
//! listings that it has known for [`KNOWN`], which is twice as long, and only after it has then read the whole slot and found it empty. So
//! every item that relies on a listing was written before that read, and would have been found. No wall clocks are compared; two steady
//! clocks would have to differ by a factor of two.

use std::time::Duration;

use holdfast_runtime::Rng;

/// The length of a slot.
const MINUTE_US: i64 = 60_000_000;
/// How many shares a minute may have: three hexadecimal digits.
const SHARES: u16 = 0x1000;
/// For how long an enqueuer relies on a listing of its own, from before it was sent.
pub(super) const RELIED: Duration = Duration::from_mins(1);
/// For how long a worker knows a listing before it removes it.
pub(super) const KNOWN: Duration = Duration::from_mins(2);
/// How many items of a minute a process puts into the share that all use.
const COMMON_MAX: u32 = 1_000;
/// How many it puts into one that it has drawn.
const OWN_MAX: u32 = 5_000;

/// A slot, by its number: slots are in the order of their minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(i64);

impl Slot {
    pub(super) const LAST: Self = Self(i64::MAX);

    /// The slot of an item of this time, in that share.
    pub(super) fn of(at_us: i64, share: u16) -> Self {
        Self(at_us / MINUTE_US * i64::from(SHARES) + i64::from(share))
    }

    /// The first slot that may hold an item of this time or later.
    pub(super) fn first_of(at_us: i64) -> Self {
        Self::of(at_us.max(0), 0)
    }

    /// The slot with the number that stands in the list; `None` for one that no item can have.
    pub(super) fn listed(number: i64) -> Option<Self> {
        (number >= 0).then_some(Self(number))
    }

    /// As the list has it.
    pub(super) fn number(self) -> i64 {
        self.0
    }

    /// The slot behind it; `None`: it is the last.
    pub(super) fn after(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// A partition of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Slot(Slot),
    /// An hour, counted from 1970: where the items of versions before 0.4 lie.
    Hour(i64),
}

impl Part {
    /// The column `hour` of the numbers: below 0 for a slot, so that it is never that of an hour.
    pub(super) fn key(self) -> i64 {
        match self {
            Self::Slot(slot) => -1 - slot.0,
            Self::Hour(hour) => hour,
        }
    }
}

/// A row of the list: its name, which no other row ever has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listing {
    text: String,
    at_us: i64,
}

impl Listing {
    const TIME_DIGITS: usize = 20;

    pub(super) fn draw(at_us: i64, rng: &dyn Rng) -> Self {
        let at_us = at_us.max(0);
        Self { text: format!("{at_us:020}{:016x}", rng.next_u64()), at_us }
    }

    /// `None` for a row of a foreign client.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (time, _) = text.split_at_checked(Self::TIME_DIGITS)?;
        let is_time = time.bytes().all(|byte| byte.is_ascii_digit());
        let at_us = time.parse().ok().filter(|at_us| is_time && *at_us < i64::MAX)?;
        Some(Self { text: text.to_owned(), at_us })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// The timestamp of its row, which is written once, or again to the same effect.
    pub(super) fn written_us(&self) -> i64 {
        self.at_us
    }

    /// That of its removal, by whichever process.
    pub(super) fn removed_us(&self) -> i64 {
        self.at_us + 1
    }
}

/// In which share of its minute a process puts its next item.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The minute of the last item, as its first slot.
    minute: Option<Slot>,
    /// How many items it has put there.
    items: u32,
    /// The share that it drew last.
    own: u16,
}

impl Shares {
    /// The share of an item of this time. Times never go back.
    pub(super) fn next(&mut self, at_us: i64, rng: &dyn Rng) -> u16 {
        let minute = Some(Slot::first_of(at_us));
        if self.minute != minute {
            *self = Self { minute, ..Self::default() };
        }
        let beyond = self.items.checked_sub(COMMON_MAX);
        self.items = self.items.saturating_add(1);
        match beyond {
            None => 0,
            Some(beyond) => {
                if beyond.is_multiple_of(OWN_MAX) {
                    self.own = drawn(rng);
                }
                self.own
            }
        }
    }
}

/// Any share but the one that all use.
fn drawn(rng: &dyn Rng) -> u16 {
    let drawn = rng.next_u64() % u64::from(SHARES - 1);
    u16::try_from(drawn).unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Always;

    #[test]
    fn slots_are_in_the_order_of_time_and_never_an_hours_partition() {
        let [early, late] = [0, 59_999_999].map(|at_us| Slot::of(at_us, 0));
        assert_eq!(early, late);
        assert!(Slot::of(0, SHARES - 1) < Slot::of(MINUTE_US, 0));
        assert_eq!(Slot::first_of(-7), early);
        assert_eq!(Part::Slot(early).key(), -1);
        assert_eq!(Part::Hour(0).key(), 0);
        assert_eq!(Slot::listed(i64::MAX).map(|slot| Part::Slot(slot).key()), Some(i64::MIN));
        assert_eq!(Slot::listed(-1), None);
    }

    #[test]
    fn a_listing_is_removed_by_a_time_just_above_its_own() {
        let listing = Listing::draw(1_417_455_697_411_000, &Always);
        assert_eq!(Listing::parse(listing.as_str()), Some(listing.clone()));
        assert_eq!(listing.removed_us(), listing.written_us() + 1);
        for text in
            ["", "x", "+0001417455697411000", "09223372036854775807", "9999999999999999999é"]
        {
            assert_eq!(Listing::parse(text), None, "{text:?}");
        }
    }

    /// 20,000 items of one process in a minute: 1,000 in the share of all, 5,000 in each that it draws.
    #[test]
    fn one_process_puts_few_items_into_a_partition() {
        let (mut shares, mut of_share) = (Shares::default(), [0_u32; SHARES as usize]);
        let mut drawn = 0;
        let counts = holdfast_runtime::simulated::Machine::new(1);
        for _ in 0..20_000 {
            let share = shares.next(7, &counts.world());
            of_share[usize::from(share)] += 1;
        }
        assert_eq!(of_share[0], COMMON_MAX);
        for items in &of_share[1..] {
            assert!(*items <= OWN_MAX, "{items}");
            drawn += u32::from(*items > 0);
        }
        assert_eq!(drawn, 4);
        assert_eq!(shares.next(MINUTE_US, &Always), 0, "a new minute begins in the share of all");
    }
}
