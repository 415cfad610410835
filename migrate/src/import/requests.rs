//! Groups planned rows into requests: bounded, and each lock's rows in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use holdfast::{ImportGroup, ImportRow, ImportedState};

use crate::plan::Planned;

/// Rows in a request, which is sent again as a whole if it gets no answer. The client cuts it into
/// calls that a server takes: one, unless values are long.
const ROWS_MAX: usize = 500;
/// How much the rates of two clocks may differ, as a divisor: a tenth (DESIGN §5.4).
const ALLOWANCE: u32 = 10;

/// Groups that are sent together, with the time that was left when their rows were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    groups: Vec<ImportGroup>,
    rows: usize,
    /// The group that collects the holds of an owner with a lease.
    open: BTreeMap<(String, Duration), usize>,
}

impl Request {
    /// Makes requests of the rows of some locks, to be sent one after the other. A lock is not
    /// split if its rows fit into a request.
    ///
    /// Holds of one owner with the same time left share a group, and so a session. That may move a
    /// hold forward, never a wait: a lock's holder is before its line anyway.
    pub(super) fn of(locks: Vec<Vec<Planned>>) -> Vec<Self> {
        let mut requests = Vec::new();
        let mut request = Self::default();
        for rows in locks {
            if request.rows > 0 && request.rows + rows.len() > ROWS_MAX {
                requests.push(std::mem::take(&mut request));
            }
            for row in rows {
                if request.rows == ROWS_MAX {
                    requests.push(std::mem::take(&mut request));
                }
                request.push(row);
            }
        }
        if request.rows > 0 {
            requests.push(request);
        }
        requests
    }

    fn push(&mut self, row: Planned) {
        let Planned { lock, owner, has, left_ms, .. } = row;
        let remaining = Duration::from_millis(left_ms);
        let is_hold = has != ImportedState::Place;
        let row = ImportRow { name: lock, has };
        self.rows += 1;
        if is_hold {
            let next = self.groups.len();
            let at = *self.open.entry((owner.clone(), remaining)).or_insert(next);
            if let Some(group) = self.groups.get_mut(at) {
                group.rows.push(row);
                return;
            }
        }
        self.groups.push(ImportGroup { owner, remaining, rows: vec![row] });
    }

    /// How many rows there are.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The groups as they are to be sent `passed` after they were read, and how many rows have
    /// ended by then. If a holder's row has ended, the next in its line becomes the holder, because
    /// the store refuses a wait for a free lock.
    pub(super) fn groups(&self, passed: Duration) -> (Vec<ImportGroup>, usize) {
        let mut free = BTreeSet::new();
        let mut groups = Vec::new();
        for group in &self.groups {
            let Some(remaining) = remaining_ttl(group.remaining, passed) else {
                let held = group.rows.iter().filter(|row| row.has != ImportedState::Place);
                free.extend(held.map(|row| row.name.as_str()));
                continue;
            };
            let mut group = ImportGroup { remaining, ..group.clone() };
            for row in group.rows.iter_mut().filter(|row| row.has == ImportedState::Place) {
                if free.remove(row.name.as_str()) {
                    row.has = ImportedState::Hold { value: None };
                }
            }
            groups.push(group);
        }
        let sent: usize = groups.iter().map(|group| group.rows.len()).sum();
        (groups, self.rows - sent)
    }
}

/// What is left of a row that had at most `remaining` when it was read, in whole milliseconds; `None`
/// if nothing is. `passed` is the time since the answer came, by this process's own clock.
///
/// `TTL(…)` is the row's end, a whole second, minus the second that the coordinator's clock showed:
/// the true remainder is more than `TTL(…)` less one second, and at most `TTL(…)`. This function
/// takes all of it, and subtracts only the time since the answer *came*, less a tenth for the rates
/// of two clocks. So the result is never below what the row has left by that coordinator's clock,
/// and the imported hold does not end before its row. The result is never more than `remaining`.
fn remaining_ttl(remaining: Duration, passed: Duration) -> Option<Duration> {
    let certainly = passed.saturating_sub(passed / ALLOWANCE);
    // A fraction of a millisecond, which an import cannot carry, counts as not passed.
    let passed_ms = u64::try_from(certainly.as_millis()).unwrap_or(u64::MAX);
    let left = remaining.checked_sub(Duration::from_millis(passed_ms))?;
    (!left.is_zero()).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lock: &str, owner: &str, has: ImportedState, left_ms: u64) -> Planned {
        let (lock, owner) = (lock.to_owned(), owner.to_owned());
        Planned { lock, owner, has, left_ms, written_us: None }
    }

    fn holds(lock: &str, owner: &str, left_ms: u64) -> Planned {
        row(lock, owner, ImportedState::Hold { value: None }, left_ms)
    }

    fn waits(lock: &str, owner: &str, left_ms: u64) -> Planned {
        row(lock, owner, ImportedState::Place, left_ms)
    }

    /// `owner/left: locks held; locks waited for` for each group.
    fn said(groups: &[ImportGroup]) -> Vec<String> {
        let line = |group: &ImportGroup| {
            let row = |row: &ImportRow| {
                let mark = if row.has == ImportedState::Place { "?" } else { "" };
                format!("{}{mark}", row.name)
            };
            let rows: Vec<String> = group.rows.iter().map(row).collect();
            format!("{}/{}: {}", group.owner, group.remaining.as_millis(), rows.join(" "))
        };
        groups.iter().map(line).collect()
    }

    /// If `a`'s wait for `two` joined its hold, `a` would be queued before `b`, which precedes it
    /// in that line.
    #[test]
    fn holds_of_one_owner_with_one_lease_share_a_group_and_waits_never_move() {
        let locks = vec![
            vec![holds("one", "a", 5), waits("one", "b", 5)],
            vec![holds("two", "c", 5), waits("two", "b", 5), waits("two", "a", 5)],
            vec![holds("three", "a", 5), waits("three", "b", 5)],
            vec![holds("four", "a", 6)],
        ];
        let requests = Request::of(locks);
        assert_eq!(requests.len(), 1);
        let expected = [
            "a/5: one three",
            "b/5: one?",
            "c/5: two",
            "b/5: two?",
            "a/5: two?",
            "b/5: three?",
            "a/6: four",
        ];
        assert_eq!(said(&requests[0].groups), expected);
    }

    #[test]
    fn a_lock_is_cut_only_if_it_is_longer_than_a_request() {
        let line = |lock: &str, waiters: usize| {
            let waiting = (0..waiters).map(|at| waits(lock, &format!("w{at}"), 5));
            [holds(lock, "h", 5)].into_iter().chain(waiting).collect::<Vec<_>>()
        };
        let sizes = |locks: Vec<Vec<Planned>>| -> Vec<usize> {
            let requests = Request::of(locks);
            assert!(requests.iter().all(|request| request.rows <= ROWS_MAX));
            requests.iter().map(Request::rows).collect()
        };
        assert_eq!(sizes(vec![line("a", 499)]), [500]);
        assert_eq!(sizes(vec![line("a", 300), line("b", 300)]), [301, 301]);
        assert_eq!(sizes(vec![line("a", 1_250)]), [500, 500, 251]);
        let of_one_owner = (0..501).map(|at| vec![holds(&format!("{at}"), "a", 5)]);
        assert_eq!(sizes(of_one_owner.collect()), [500, 1]);

        let order: Vec<String> = Request::of(vec![line("a", 1_250)])
            .iter()
            .flat_map(|request| request.groups.iter().map(|group| group.owner.clone()))
            .collect();
        let expected: Vec<String> =
            ["h".to_owned()].into_iter().chain((0..1_250).map(|at| format!("w{at}"))).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn what_has_ended_is_not_sent_and_the_next_in_line_holds() {
        let line = |lock, left_ms: [u64; 3]| {
            vec![
                holds(lock, "a", left_ms[0]),
                waits(lock, "b", left_ms[1]),
                waits(lock, "c", left_ms[2]),
            ]
        };
        let locks = vec![
            line("one", [1_000, 9_000, 9_000]),
            line("two", [1_000, 1_000, 9_000]),
            line("three", [9_000, 1_000, 9_000]),
        ];
        let (groups, over) = Request::of(locks)[0].groups(Duration::from_secs(2));

        let expected =
            ["b/7200: one", "c/7200: one?", "c/7200: two", "a/7200: three", "c/7200: three?"];
        assert_eq!((said(&groups), over), (expected.map(str::to_owned).to_vec(), 4));
    }

    #[test]
    fn what_has_certainly_passed_is_taken_off_and_no_more() {
        let ms = Duration::from_millis;
        let cases = [
            (5_000, ms(0), Some(ms(5_000))),
            (5_000, ms(1_000), Some(ms(4_100))),
            (5_000, ms(5_000), Some(ms(500))),
            (5_000, ms(5_555), Some(ms(1))),
            (5_000, ms(5_556), None),
            (0, ms(0), None),
            (5_000, Duration::MAX, None),
        ];
        for (left_ms, passed, expected) in cases {
            assert_eq!(remaining_ttl(ms(left_ms), passed), expected, "{left_ms} {passed:?}");
        }
    }

    /// For every end of the row and instant of the read within their seconds, and for every delay
    /// of the answer: an import sends at least what is left, if its clock runs up to a tenth too
    /// fast.
    #[test]
    fn a_hold_never_ends_before_its_row() {
        for end_ms in [10_000_u64, 11_000, 180_000] {
            for read_ms in (0..10_000).step_by(77) {
                let ttl_ms = end_ms - read_ms / 1_000 * 1_000;
                for (answer_ms, passed_ms) in [(0, 0), (1, 900), (700, 10), (30, 5_000)] {
                    let now_ms = read_ms + answer_ms + passed_ms;
                    let fast = Duration::from_millis(passed_ms * 11 / 10);
                    let ms = Duration::from_millis;
                    let sent = remaining_ttl(ms(ttl_ms), fast).unwrap_or_default();
                    let left = ms(end_ms.saturating_sub(now_ms));
                    assert!(sent >= left, "{end_ms} {read_ms} {passed_ms}");
                    assert!(sent <= ms(ttl_ms));
                }
            }
        }
    }
}
