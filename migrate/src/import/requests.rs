//! Groups planned rows into requests: bounded, and each lock's rows in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Group, GroupRow, left};
use crate::plan::{Kind, Planned};

/// Groups in a request: half of what a server takes in one call.
pub const GROUPS_MAX: usize = 500;
/// Rows in a group: as many as one session of an import takes.
pub const ROWS_MAX: usize = 64;

/// Groups that are sent together, with what was left when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    groups: Vec<Group>,
    /// The group that collects the holds of an owner with a lease.
    open: BTreeMap<(String, u64), usize>,
}

impl Request {
    /// Makes requests of the rows of some locks, to be sent one after the other. A lock is not
    /// split if its rows fit into a request.
    ///
    /// Holds of one owner with the same time left share a group, and so a session. That may move a
    /// hold forward, never a wait: a lock's holder is before its line anyway.
    pub fn of(locks: Vec<Vec<Planned>>) -> Vec<Self> {
        let mut requests = Vec::new();
        let mut request = Self::default();
        for rows in locks {
            if !request.groups.is_empty() && request.groups.len() + rows.len() > GROUPS_MAX {
                requests.push(std::mem::take(&mut request));
            }
            for row in rows {
                if request.groups.len() == GROUPS_MAX {
                    requests.push(std::mem::take(&mut request));
                }
                request.push(row);
            }
        }
        if !request.groups.is_empty() {
            requests.push(request);
        }
        requests
    }

    fn push(&mut self, row: Planned) {
        let Planned { lock, owner, kind, left_ms, .. } = row;
        let holds = matches!(kind, Kind::Holds { .. });
        let row = GroupRow { lock, kind };
        let at = self.groups.len();
        let key = (owner, left_ms);
        if holds {
            if let Some(group) = self.open.get(&key).and_then(|at| self.groups.get_mut(*at))
                && group.rows.len() < ROWS_MAX
            {
                group.rows.push(row);
                return;
            }
            self.open.insert(key.clone(), at);
        }
        let (owner, left_ms) = key;
        self.groups.push(Group { owner, left_ms, rows: vec![row] });
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows.len()).sum()
    }

    /// The groups as they are to be sent `passed` after they were read, and how many rows have
    /// ended by then. If a holder's row has ended, the next in its line becomes the holder, because
    /// the store refuses a wait for a free lock.
    pub(super) fn groups(&self, passed: Duration) -> (Vec<Group>, usize) {
        let mut free = BTreeSet::new();
        let mut groups = Vec::new();
        for group in &self.groups {
            let Some(left_ms) = left(group.left_ms, passed) else {
                let held = group.rows.iter().filter(|row| row.kind != Kind::Waits);
                free.extend(held.map(|row| row.lock.as_str()));
                continue;
            };
            let mut group = Group { left_ms, ..group.clone() };
            for row in group.rows.iter_mut().filter(|row| row.kind == Kind::Waits) {
                if free.remove(row.lock.as_str()) {
                    row.kind = Kind::Holds { value: None };
                }
            }
            groups.push(group);
        }
        let sent: usize = groups.iter().map(|group| group.rows.len()).sum();
        (groups, self.rows() - sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lock: &str, owner: &str, kind: Kind, left_ms: u64) -> Planned {
        let (lock, owner) = (lock.to_owned(), owner.to_owned());
        Planned { lock, owner, kind, left_ms, written_us: None }
    }

    fn holds(lock: &str, owner: &str, left_ms: u64) -> Planned {
        row(lock, owner, Kind::Holds { value: None }, left_ms)
    }

    fn waits(lock: &str, owner: &str, left_ms: u64) -> Planned {
        row(lock, owner, Kind::Waits, left_ms)
    }

    /// `owner/left: locks held; locks waited for` for each group.
    fn said(request: &Request) -> Vec<String> {
        let line = |group: &Group| {
            let row = |row: &GroupRow| {
                let mark = if row.kind == Kind::Waits { "?" } else { "" };
                format!("{}{mark}", row.lock)
            };
            let rows: Vec<String> = group.rows.iter().map(row).collect();
            format!("{}/{}: {}", group.owner, group.left_ms, rows.join(" "))
        };
        request.groups.iter().map(line).collect()
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
        assert_eq!(said(&requests[0]), expected);
    }

    #[test]
    fn a_lock_is_cut_only_if_it_is_longer_than_a_request() {
        let line = |lock: &str, waiters: usize| {
            let waiting = (0..waiters).map(|at| waits(lock, &format!("w{at}"), 5));
            [holds(lock, "h", 5)].into_iter().chain(waiting).collect::<Vec<_>>()
        };
        let sizes = |locks: Vec<Vec<Planned>>| -> Vec<usize> {
            let requests = Request::of(locks);
            assert!(requests.iter().all(|request| request.groups.len() <= GROUPS_MAX));
            requests.iter().map(Request::rows).collect()
        };
        assert_eq!(sizes(vec![line("a", 499)]), [500]);
        assert_eq!(sizes(vec![line("a", 300), line("b", 300)]), [301, 301]);
        assert_eq!(sizes(vec![line("a", 1_250)]), [500, 500, 251]);

        let order: Vec<String> = Request::of(vec![line("a", 1_250)])
            .iter()
            .flat_map(|request| request.groups.iter().map(|group| group.owner.clone()))
            .collect();
        let expected: Vec<String> =
            ["h".to_owned()].into_iter().chain((0..1_250).map(|at| format!("w{at}"))).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_group_takes_so_many_rows_and_then_there_is_another() {
        let locks = (0..129).map(|at| vec![holds(&format!("{at}"), "a", 5)]).collect();
        let requests = Request::of(locks);
        let sizes: Vec<usize> = requests[0].groups.iter().map(|group| group.rows.len()).collect();
        assert_eq!((requests.len(), sizes), (1, vec![ROWS_MAX, ROWS_MAX, 1]));
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

        let request = Request { groups, ..Request::default() };
        let expected =
            ["b/7200: one", "c/7200: one?", "c/7200: two", "a/7200: three", "c/7200: three?"];
        assert_eq!((said(&request), over), (expected.map(str::to_owned).to_vec(), 4));
    }
}
