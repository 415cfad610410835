//! From which place on the queue of a lock is read.
//!
//! A place that was given back is a tombstone under a name that never comes again. The queue's head lies behind all of
//! them, and a read from the beginning walks over each, on every replica, until the table drops it: five minutes of a busy
//! lock are ten thousand (B5). So a locker remembers the earliest place that it saw in a queue, and reads from there.
//!
//! # What it promises
//!
//! Nothing depends on it but the order: the main row decides who has the lock. A client whose place is before the floor of others
//! is not seen by them: it is first in its own view, they are in theirs, and the main row lets in one at a time. It
//! needs a clock that is [`SLACK`] behind, or as much time between drawing a place and writing it, and it lasts until the
//! others read the whole queue, at most [`WHOLE_AFTER`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_runtime::Instant;

use super::row::TIME_DIGITS;

/// How long before the earliest place that was seen a place may be that was drawn earlier and is written later. It is also how
/// many seconds of tombstones a read walks over.
const SLACK: Duration = Duration::from_secs(2);
/// The whole queue is read this long after the last time, at the latest.
const WHOLE_AFTER: Duration = Duration::from_secs(10);
/// With this many locks those are forgotten whose queue has to be read as a whole anyway.
const MANY: usize = 1_000;

/// The floors of one locker.
#[derive(Default)]
pub(super) struct Floors(Mutex<BTreeMap<String, Floor>>);

struct Floor {
    /// The lowest name that a place may have.
    from: String,
    /// When the whole queue was read last.
    whole_at: Instant,
}

impl Floor {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_since(self.whole_at) >= WHOLE_AFTER
    }
}

impl Floors {
    /// The name from which to read the queue of this lock, never behind `place`; `None`: the whole queue has to be read.
    pub(super) fn of(&self, lock: &str, place: &str, now: Instant) -> Option<String> {
        let floors = self.floors();
        let floor = floors.get(lock).filter(|floor| !floor.is_over(now))?;
        Some(floor.from.as_str().min(place).to_owned())
    }

    /// A read that was sent at `asked`, of the `whole` queue or from the floor on, found this place first.
    pub(super) fn saw(&self, lock: &str, earliest: Option<&str>, whole: bool, asked: Instant) {
        let mut floors = self.floors();
        let whole_at = match floors.get(lock) {
            _ if whole => asked,
            Some(floor) => floor.whole_at,
            // Forgotten meanwhile.
            None => return,
        };
        let Some(from) = earliest.and_then(before) else {
            // Empty, or a name that is no place of the article's.
            floors.remove(lock);
            return;
        };
        if floors.len() >= MANY && !floors.contains_key(lock) {
            floors.retain(|_, floor| !floor.is_over(asked));
        }
        floors.insert(lock.to_owned(), Floor { from, whole_at });
    }

    fn floors(&self) -> MutexGuard<'_, BTreeMap<String, Floor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lowest name of a place [`SLACK`] before this one; `None` if the name does not begin with a time.
fn before(place: &str) -> Option<String> {
    let time = place.get(..TIME_DIGITS)?;
    if !time.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: u64 = time.parse().ok()?;
    let slack = u64::try_from(SLACK.as_micros()).ok()?;
    Some(super::row::column_name(micros.saturating_sub(slack), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_origin(Duration::from_secs(seconds))
    }

    fn place(seconds: u64) -> String {
        super::super::row::column_name(seconds * 1_000_000, "hf1:a")
    }

    #[test]
    fn a_queue_is_read_from_two_seconds_before_its_earliest_place() {
        let floors = Floors::default();
        assert_eq!(floors.of("jobs", &place(100), at(0)), None, "nobody has looked");

        floors.saw("jobs", Some(&place(100)), true, at(0));
        assert_eq!(floors.of("jobs", &place(107), at(7)).unwrap(), "00000000000098000000");
        assert_eq!(floors.of("jobs", &place(90), at(7)).unwrap(), place(90), "its own place");
        assert_eq!(floors.of("others", &place(107), at(7)), None);
    }

    #[test]
    fn the_whole_queue_is_read_once_in_ten_seconds_whatever_was_read_in_between() {
        let floors = Floors::default();
        floors.saw("jobs", Some(&place(100)), true, at(0));
        floors.saw("jobs", Some(&place(105)), false, at(9));
        assert_eq!(floors.of("jobs", &place(109), at(9)).unwrap(), "00000000000103000000");
        assert_eq!(floors.of("jobs", &place(110), at(10)), None);
    }

    /// A floor that could not be set right any more would hide every place before it.
    #[test]
    fn a_queue_that_is_empty_or_has_foreign_names_is_read_as_a_whole() {
        for earliest in [None, Some("first"), Some("+0000000000000000001a"), Some("\u{e9}")] {
            let floors = Floors::default();
            floors.saw("jobs", Some(&place(100)), true, at(0));
            floors.saw("jobs", earliest, false, at(1));
            assert_eq!(floors.of("jobs", &place(102), at(1)), None, "{earliest:?}");
        }
    }

    #[test]
    fn no_more_locks_are_remembered_than_were_looked_at_in_ten_seconds() {
        let floors = Floors::default();
        for lock in 0..3_000_u64 {
            floors.saw(&lock.to_string(), Some(&place(100 + lock)), true, at(lock / 100));
        }
        assert!(floors.floors().len() <= MANY + 1, "{}", floors.floors().len());
    }
}
