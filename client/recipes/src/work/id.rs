//! The id of an item: when it was enqueued, in which share of its minute it lies, and a random number.

use std::fmt;

use holdfast_runtime::Rng;

use super::slot::{Part, Slot};

/// As many digits as any time in microseconds needs: ids sort by their text.
const TIME_DIGITS: usize = 20;
const OWN_DIGITS: usize = 16;
/// Between the time and the share. An id of a version before 0.4 has no share: it lies in an hour.
const SHARE_MARK: char = 's';
const SHARE_DIGITS: usize = 3;
/// The last microsecond of the year 9999: an id that claims a later time is invalid, so no sum with a
/// time overflows.
const TIME_MAX_US: i64 = 253_402_300_799_999_999;
/// The length of one partition of the numbers before version 0.4.
pub(super) const HOUR_US: i64 = 3_600_000_000;

/// An item's id: "a unique timestamp produced by the client enqueueing the work item", in microseconds, its share of the
/// minute, and 64 random bits, which make it unique.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId {
    text: String,
    at_us: i64,
    /// `None`: it lies in an hour.
    share: Option<u16>,
}

impl ItemId {
    /// An id of this time, which no other item of this process has, in that share of its minute.
    pub(super) fn draw(at_us: i64, share: u16, rng: &dyn Rng) -> Self {
        let at_us = at_us.clamp(0, TIME_MAX_US);
        let text = format!("{at_us:020}{SHARE_MARK}{share:03x}{:016x}", rng.next_u64());
        Self { text, at_us, share: Some(share) }
    }

    /// Reads what [`ItemId::as_str`] returned; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (time, rest) = text.split_at_checked(TIME_DIGITS)?;
        let (share, own) = match rest.strip_prefix(SHARE_MARK) {
            Some(rest) => {
                let (share, own) = rest.split_at_checked(SHARE_DIGITS)?;
                (Some(share), own)
            }
            None => (None, rest),
        };
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if !time.bytes().all(|byte| byte.is_ascii_digit())
            || own.len() != OWN_DIGITS
            || !own.bytes().chain(share.unwrap_or_default().bytes()).all(is_digit)
        {
            return None;
        }
        let at_us = time.parse().ok().filter(|at_us| *at_us <= TIME_MAX_US)?;
        let share = share.map(|share| u16::from_str_radix(share, 16)).transpose().ok()?;
        Some(Self { text: text.to_owned(), at_us, share })
    }

    /// The id as the tables have it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The timestamp of every write of an item except claims: its own time, whichever process writes, so that no two
    /// clocks are compared. Each such cell is written once.
    pub(super) fn written_us(&self) -> i64 {
        self.at_us
    }

    /// The timestamp of every delete of it: above all those writes, by any clock.
    pub(super) fn removed_us(&self) -> i64 {
        self.at_us + 1
    }

    /// The partition of the numbers that holds it.
    pub(super) fn part(&self) -> Part {
        match self.share {
            Some(share) => Part::Slot(Slot::of(self.at_us, share)),
            None => Part::Hour(hour_of(self.at_us)),
        }
    }
}

/// The hour of a time in microseconds, counted from 1970.
pub(super) fn hour_of(at_us: i64) -> i64 {
    at_us / HOUR_US
}

/// The lower bound of all ids of this time or later.
pub(super) fn from_time(at_us: i64) -> String {
    format!("{at_us:020}")
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Always;

    #[test]
    fn ids_are_in_the_order_of_their_time_and_read_as_they_were_written() {
        let id = ItemId::draw(1_417_455_697_411_000, 0xabc, &Always);
        assert_eq!(id.as_str(), "00001417455697411000sabca5a5a5a5a5a5a5a5");
        assert_eq!(ItemId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(id.part(), Part::Slot(Slot::of(1_417_455_697_411_000, 0xabc)));
        assert!(ItemId::draw(9, 1, &Always) < ItemId::draw(10, 0, &Always));
        assert!(from_time(1_417_455_697_411_000).as_str() <= id.as_str());
        assert!(from_time(1_417_455_697_411_001).as_str() > id.as_str());
        assert_eq!(id.removed_us(), id.written_us() + 1);
    }

    #[test]
    fn an_id_of_an_older_version_lies_in_its_hour() {
        let text = "00001417455697411000a5a5a5a5a5a5a5a5";
        let id = ItemId::parse(text).unwrap();
        assert_eq!((id.as_str(), id.part()), (text, Part::Hour(393_737)));
    }

    #[test]
    fn what_is_no_id_is_none() {
        let late = "02534023008000000000a5a5a5a5a5a5a5a5";
        for text in ["", "7", "0000141745569741100é5a5a5a5a5a5a5a", late, &"9".repeat(36)] {
            assert_eq!(ItemId::parse(text), None, "{text:?}");
        }
        for rest in ["s", "s12", "s12é", "s+12a5a5a5a5a5a5a5a5", "sabca5a5a5a5a5a5a5a", "s123"] {
            assert_eq!(ItemId::parse(&format!("00001417455697411000{rest}")), None, "{rest:?}");
        }
        assert_eq!(ItemId::parse("+0001417455697411000a5a5a5a5a5a5a5a5"), None);
        assert_eq!(ItemId::parse("00001417455697411000A5a5a5a5a5a5a5a5"), None);
    }
}
