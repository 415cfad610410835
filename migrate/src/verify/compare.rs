//! Compares the plan of a lock's rows with its native state. Pure.

use std::fmt;
use std::time::Duration;

use holdfast::ImportedState;

use crate::plan::{LockPlan, Planned};

/// Waiters that are compared: the native store shows no more of a line at once.
pub const LINE_COMPARED: usize = 100;

/// How much longer than its import a row may stand without being a difference: a TTL is whole seconds, and is told by the clock of the node
/// that answers.
const APART: Duration = Duration::from_secs(6);

/// A lock in the native store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeLock {
    /// Its name.
    pub name: String,
    /// Its holders.
    pub holders: Vec<Party>,
    /// Its waiters, in order: the first [`LINE_COMPARED`].
    pub line: Vec<Party>,
    /// There are more waiters.
    pub has_more: bool,
    /// Its value.
    pub value: Option<Vec<u8>>,
}

/// A native holder or waiter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// Its session.
    pub session: u64,
    /// Its session's label; of an imported one the owner's id.
    pub label: String,
    /// The fencing token of its grant; 0 of a waiter.
    pub token: u64,
    /// What its request says for people.
    pub note: String,
    /// It was imported and not claimed.
    pub is_imported: bool,
    /// Of an imported holder: what is left of it at least; `None`: it has ended.
    pub left: Option<Duration>,
}

/// A difference between the rows and the native store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The table has a holder, and the lock is free natively.
    NotHeld {
        /// The owner of the row.
        owner: String,
    },
    /// The table has a holder, and the lock has another one natively.
    OtherHolder {
        /// The owner of the row.
        owner: String,
        /// The native holder's label; a claim changes it.
        native: String,
    },
    /// The values differ.
    OtherValue {
        /// The owner of the row.
        owner: String,
    },
    /// The holder's row stands longer than its import.
    EndsEarlier {
        /// The owner of the row.
        owner: String,
        /// What is left of the row, certainly.
        row: Duration,
        /// What is left of the import.
        native: Duration,
    },
    /// The table has a waiter that is not in line natively.
    NotInLine {
        /// The owner of the row.
        owner: String,
    },
    /// The two lines have different orders.
    OtherOrder {
        /// The waiter that comes first in the table.
        owner: String,
        /// The waiter that comes first natively.
        native: String,
    },
    /// An imported hold or wait has no row.
    OnlyNative {
        /// Its owner.
        owner: String,
    },
}

impl Difference {
    /// A stable code for programs; it never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotHeld { .. } => "not-held",
            Self::OtherHolder { .. } => "other-holder",
            Self::OtherValue { .. } => "other-value",
            Self::EndsEarlier { .. } => "ends-earlier",
            Self::NotInLine { .. } => "not-in-line",
            Self::OtherOrder { .. } => "other-order",
            Self::OnlyNative { .. } => "only-native",
        }
    }
}

/// The difference for people, to follow the lock's name.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHeld { owner } => write!(f, "{owner} holds it in the table, and nobody here"),
            Self::OtherHolder { owner, native } if owner == native => {
                write!(f, "{owner} holds it in the table, and here a client of that name")
            }
            Self::OtherHolder { owner, native } => {
                write!(f, "{owner} holds it in the table, and {native} here")
            }
            Self::OtherValue { owner } => {
                write!(f, "{owner} has another value in the table than there is here")
            }
            Self::EndsEarlier { owner, row, native } => {
                let [row, native] = [row, native].map(Duration::as_secs);
                write!(
                    f,
                    "{owner} holds it for {row} s more in the table, and for {native} s here: import it again"
                )
            }
            Self::NotInLine { owner } => {
                write!(f, "{owner} waits in the table, and is not in line here")
            }
            Self::OtherOrder { owner, native } => {
                write!(f, "it is {owner}'s turn in the table, and {native}'s here")
            }
            Self::OnlyNative { owner } => {
                write!(f, "{owner} was imported, and has no row in the table")
            }
        }
    }
}

/// The differences between a lock's rows and the native store. Rows that cannot be imported are not
/// looked for there. A session that was not imported counts only if it holds what a row holds. `passed`: the time from the answer with the rows
/// to that with the native state.
pub fn compare(plan: &LockPlan, native: Option<&NativeLock>, passed: Duration) -> Vec<Difference> {
    let nothing = NativeLock::default();
    let native = native.unwrap_or(&nothing);
    let mut differences = Vec::new();
    let (holders, waiters): (Vec<&Planned>, Vec<&Planned>) =
        plan.rows.iter().partition(|row| row.has != ImportedState::Place);
    for row in &holders {
        differences.extend(compare_holder(row, native, passed));
    }
    compare_line(&waiters, native, &mut differences);
    let has_row = |label: &str| {
        let planned = plan.rows.iter().any(|row| row.owner == label);
        planned || plan.findings.iter().any(|finding| finding.owner.as_deref() == Some(label))
    };
    let imported = native.holders.iter().chain(&native.line).filter(|party| party.is_imported);
    for party in imported.filter(|party| !has_row(&party.label)) {
        differences.push(Difference::OnlyNative { owner: party.label.clone() });
    }
    differences
}

fn compare_holder(row: &Planned, native: &NativeLock, passed: Duration) -> Option<Difference> {
    let owner = row.owner.clone();
    let Some(first) = native.holders.first() else { return Some(Difference::NotHeld { owner }) };
    let same = |party: &&Party| party.is_imported && party.label == row.owner;
    let Some(holder) = native.holders.iter().find(same) else {
        return Some(Difference::OtherHolder { owner, native: first.label.clone() });
    };
    if let ImportedState::Hold { value: Some(value) } = &row.has
        // A row without a value leaves the value that the lock has.
        && native.value.as_ref() != Some(value)
    {
        return Some(Difference::OtherValue { owner });
    }
    let left = Duration::from_millis(row.left_ms).saturating_sub(passed);
    let native = holder.left.unwrap_or_default();
    (left > native + APART).then_some(Difference::EndsEarlier { owner, row: left, native })
}

/// Compares the rows with the native line: rows that are missing there, and the first that has
/// another place.
fn compare_line(waiters: &[&Planned], native: &NativeLock, differences: &mut Vec<Difference>) {
    let in_line =
        |owner: &str| native.line.iter().any(|party| party.is_imported && party.label == owner);
    let compared = waiters.iter().take(LINE_COMPARED).map(|row| row.owner.as_str());
    let (there, missing): (Vec<&str>, Vec<&str>) = compared.partition(|owner| in_line(owner));
    let missing = missing.into_iter().map(|owner| Difference::NotInLine { owner: owner.into() });
    differences.extend(missing);
    let is_there = |party: &&Party| party.is_imported && there.contains(&party.label.as_str());
    let natively = native.line.iter().filter(is_there).map(|party| party.label.as_str());
    let other = there.iter().zip(natively).find(|(row, native)| *row != native);
    differences.extend(other.map(|(row, native)| Difference::OtherOrder {
        owner: (*row).to_owned(),
        native: native.to_owned(),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Finding, Reason};

    fn rows(owners: &[&str], value: Option<&[u8]>) -> LockPlan {
        let row = |(at, owner): (usize, &&str)| Planned {
            lock: "job".into(),
            owner: (*owner).to_owned(),
            has: match at {
                0 => ImportedState::Hold { value: value.map(<[u8]>::to_vec) },
                _ => ImportedState::Place,
            },
            left_ms: 9_000,
            written_us: None,
        };
        LockPlan { rows: owners.iter().enumerate().map(row).collect(), findings: Vec::new() }
    }

    /// `holder, first in line, …`; a star marks a session that was not imported.
    fn native(parties: &[&str], value: Option<&[u8]>) -> NativeLock {
        let party = |name: &&str| Party {
            label: name.trim_end_matches('*').to_owned(),
            is_imported: !name.ends_with('*'),
            left: Some(Duration::from_secs(9)),
            ..Party::default()
        };
        let mut parties = parties.iter().map(party);
        NativeLock {
            name: "job".into(),
            holders: parties.next().into_iter().collect(),
            line: parties.collect(),
            value: value.map(<[u8]>::to_vec),
            ..NativeLock::default()
        }
    }

    fn codes(plan: &LockPlan, native: Option<&NativeLock>) -> Vec<String> {
        let said = |difference: &Difference| {
            let about = match difference {
                Difference::NotHeld { owner }
                | Difference::OtherValue { owner }
                | Difference::EndsEarlier { owner, .. }
                | Difference::NotInLine { owner }
                | Difference::OnlyNative { owner } => owner.clone(),
                Difference::OtherHolder { owner, native }
                | Difference::OtherOrder { owner, native } => format!("{owner} {native}"),
            };
            format!("{} {about}", difference.code())
        };
        compare(plan, native, Duration::ZERO).iter().map(said).collect()
    }

    #[test]
    fn each_difference_is_found_and_what_is_the_same_is_none() {
        let cases: [(&[&str], &[&str], &[&str]); 11] = [
            (&["a", "b", "c"], &["a", "b", "c"], &[]),
            (&["a"], &["a", "x*"], &[]),
            (&["a", "b"], &["a", "x*", "b"], &[]),
            (&["a"], &[], &["not-held a"]),
            (&["a"], &["x*"], &["other-holder a x"]),
            (&["a"], &["a*"], &["other-holder a a"]),
            (&["a"], &["b"], &["other-holder a b", "only-native b"]),
            (&["a", "b", "c"], &["a", "c"], &["not-in-line b"]),
            (&["a", "b", "c"], &["a", "c", "b"], &["other-order b c"]),
            (&[], &["a", "b"], &["only-native a", "only-native b"]),
            (&[], &["a*"], &[]),
        ];
        for (planned, there, expected) in cases {
            let there = native(there, None);
            assert_eq!(
                codes(&rows(planned, None), Some(&there)),
                expected,
                "{planned:?} {there:?}"
            );
        }
        assert_eq!(codes(&rows(&["a", "b"], None), None), ["not-held a", "not-in-line b"]);
    }

    #[test]
    fn values_are_compared_where_the_row_has_one() {
        let cases = [
            (Some(b"v".as_slice()), Some(b"v".as_slice()), vec![]),
            (Some(b"v"), Some(b"w"), vec!["other-value a"]),
            (Some(b"v"), None, vec!["other-value a"]),
            (Some(b""), None, vec!["other-value a"]),
            (None, Some(b"w"), vec![]),
        ];
        for (row, there, expected) in cases {
            assert_eq!(codes(&rows(&["a"], row), Some(&native(&["a"], there))), expected);
        }
    }

    /// B13: a row that was renewed since its import stands longer than that.
    #[test]
    fn a_row_that_stands_longer_than_its_import_is_a_difference() {
        let secs = Duration::from_secs;
        let compared = |row_s: u64, native_s: Option<u64>, passed_s: u64| {
            let (mut plan, mut native) = (rows(&["a"], None), native(&["a"], None));
            plan.rows[0].left_ms = row_s * 1_000;
            native.holders[0].left = native_s.map(secs);
            compare(&plan, Some(&native), secs(passed_s))
        };
        assert_eq!(compared(180, Some(180), 0), []);
        assert_eq!(
            compared(180, Some(174), 0),
            [],
            "a TTL of whole seconds by the clock of a node"
        );
        assert_eq!(compared(180, Some(100), 80), [], "as long as it took to ask");
        assert_eq!(compared(10, Some(180), 0), [], "it may stand longer here");
        let owner = "a".to_owned();
        let earlier =
            Difference::EndsEarlier { owner: owner.clone(), row: secs(170), native: secs(100) };
        assert_eq!(compared(180, Some(100), 10), [earlier]);
        let ended = Difference::EndsEarlier { owner, row: secs(180), native: Duration::ZERO };
        assert_eq!(compared(180, None, 0), [ended]);
    }

    /// The plan's report has it already.
    #[test]
    fn what_cannot_be_imported_is_no_difference() {
        let reason = Reason::NoTtl;
        let finding = Finding { reason, lock: "job".into(), owner: Some("a".into()) };
        let plan = LockPlan { rows: Vec::new(), findings: vec![finding] };
        assert_eq!(compare(&plan, None, Duration::ZERO), []);
        assert_eq!(codes(&plan, Some(&native(&["a"], None))), Vec::<String>::new());
    }
}
