//! The summary of a plan, for people and for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast::ImportedState;
use holdfast_cli::{escaped, printable};
use serde_json::{Value, json};

use crate::plan::{Finding, LockPlan, Planned, Reason};

/// Counts the plan, and keeps the first findings of each kind. Its size depends on the kinds, not
/// on the locks.
#[derive(Debug, Default)]
pub struct Tally {
    /// How many examples of each kind are kept.
    show: usize,
    locks: u64,
    outside: u64,
    holders: u64,
    waiters: u64,
    with_value: u64,
    ours: u64,
    /// The shortest and the longest lease, milliseconds.
    leases: Option<(u64, u64)>,
    found: BTreeMap<&'static str, Found>,
}

/// Findings of one kind.
#[derive(Debug)]
struct Found {
    is_contradiction: bool,
    heading: &'static str,
    number: u64,
    /// The first findings of this kind.
    examples: Vec<Finding>,
}

impl Tally {
    /// An empty tally that keeps this many examples of each kind.
    pub fn new(show: usize) -> Self {
        Self { show, ..Self::default() }
    }

    /// Counts a lock; `None` stands for a lock outside of the prefix.
    pub fn add(&mut self, plan: Option<&LockPlan>) {
        let Some(plan) = plan else {
            self.outside += 1;
            return;
        };
        self.locks += 1;
        plan.rows.iter().for_each(|row| self.add_row(row));
        plan.findings.iter().for_each(|finding| self.add_finding(finding));
    }

    fn add_row(&mut self, row: &Planned) {
        match &row.has {
            ImportedState::Hold { value } => {
                self.holders += 1;
                self.with_value += u64::from(value.is_some());
            }
            ImportedState::Place => self.waiters += 1,
        }
        self.ours += u64::from(row.is_ours());
        let (shortest, longest) = self.leases.unwrap_or((row.left_ms, row.left_ms));
        self.leases = Some((shortest.min(row.left_ms), longest.max(row.left_ms)));
    }

    fn add_finding(&mut self, finding: &Finding) {
        let Finding { reason, .. } = finding;
        let show = self.show;
        let found = self.found.entry(reason.code()).or_insert_with(|| Found::of(reason));
        found.number += 1;
        if found.examples.len() < show {
            found.examples.push(finding.clone());
        }
    }

    /// The number of findings that contradict the recipe, or of those that do not.
    pub fn findings(&self, contradictions: bool) -> u64 {
        let found = self.found.values();
        found.filter(|found| found.is_contradiction == contradictions).map(|it| it.number).sum()
    }

    /// The summary as lines for people.
    pub fn lines(&self) -> Vec<String> {
        let Self { locks, holders, waiters, with_value, ours, .. } = self;
        let mut lines = vec![format!("locks: {locks}{}", self.outside_text())];
        lines.push(format!("to import: {}", holders + waiters));
        if holders + waiters > 0 {
            lines.push(format!("  holders: {holders}, {with_value} of them with a value"));
            lines.push(format!("  waiters: {waiters}"));
            lines.push(format!("  of our own client: {ours}"));
        }
        if let Some((shortest, longest)) = self.leases {
            let [shortest, longest] = [shortest, longest].map(Duration::from_millis);
            lines.push(format!("  leases: {shortest:?} to {longest:?}"));
        }
        for (title, contradictions) in [("skipped", false), ("contradictory", true)] {
            lines.push(format!("{title}: {}", self.findings(contradictions)));
            let found = self.found.values();
            let found = found.filter(|found| found.is_contradiction == contradictions);
            found.for_each(|found| found.tell(&mut lines));
        }
        lines
    }

    fn outside_text(&self) -> String {
        match self.outside {
            0 => String::new(),
            outside => format!(", and {outside} outside of the prefix"),
        }
    }

    /// The summary for programs: the last line, after those of all rows and findings.
    pub fn json(&self) -> Value {
        let findings = self.found.iter().map(|(code, found)| (*code, found.number));
        json!({
            "kind": "summary",
            "locks": self.locks,
            "outside_prefix": self.outside,
            "holders": self.holders,
            "waiters": self.waiters,
            "with_value": self.with_value,
            "ours": self.ours,
            "lease_ms_min": self.leases.map(|(shortest, _)| shortest),
            "lease_ms_max": self.leases.map(|(_, longest)| longest),
            "skipped": self.findings(false),
            "contradictory": self.findings(true),
            "findings": findings.collect::<BTreeMap<_, _>>(),
        })
    }
}

impl Found {
    fn of(reason: &Reason) -> Self {
        let (is_contradiction, heading) = (reason.is_contradiction(), reason.heading());
        Self { is_contradiction, heading, number: 0, examples: Vec::new() }
    }

    fn tell(&self, lines: &mut Vec<String>) {
        lines.push(format!("  {}: {}", self.heading, self.number));
        lines.extend(self.examples.iter().map(|finding| format!("    {}", shown(finding))));
        let more = self.number - u64::try_from(self.examples.len()).unwrap_or(0);
        if more > 0 {
            lines.push(format!("    and {more} more; --json shows all"));
        }
    }
}

/// `"lock", "owner" (detail)`.
fn shown(finding: &Finding) -> String {
    let owner = finding.owner.iter().map(|owner| format!(", \"{}\"", escaped(owner)));
    let detail = finding.reason.detail();
    let detail = (!detail.is_empty()).then(|| format!(" ({})", printable(&detail)));
    let lock = format!("\"{}\"", escaped(&finding.lock));
    [lock].into_iter().chain(owner).chain(detail).collect()
}

/// A row that is imported, for programs.
pub fn json_row(row: &Planned) -> Value {
    let (role, value_bytes) = match &row.has {
        ImportedState::Hold { value } => ("holder", value.as_ref().map(Vec::len)),
        ImportedState::Place => ("waiter", None),
    };
    json!({
        "kind": role,
        "lock": row.lock,
        "owner": row.owner,
        "ours": row.is_ours(),
        "left_ms": row.left_ms,
        "written_us": row.written_us,
        "value_bytes": value_bytes,
    })
}

/// A finding, for programs.
pub fn json_finding(finding: &Finding) -> Value {
    let kind = if finding.reason.is_contradiction() { "contradictory" } else { "skipped" };
    json!({
        "kind": kind,
        "reason": finding.reason.code(),
        "why": finding.reason.heading(),
        "detail": finding.reason.detail(),
        "lock": finding.lock,
        "owner": finding.owner,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(reason: Reason, lock: &str, owner: Option<&str>) -> Finding {
        Finding { reason, lock: lock.into(), owner: owner.map(str::to_owned) }
    }

    fn row(lock: &str, has: ImportedState, left_ms: u64) -> Planned {
        let (lock, owner) = (lock.to_owned(), "hf1:a/b".to_owned());
        Planned { lock, owner, has, left_ms, written_us: None }
    }

    #[test]
    fn a_report_counts_all_and_shows_the_first_of_each_kind() {
        let mut tally = Tally::new(1);
        let holds = ImportedState::Hold { value: Some(b"v".to_vec()) };
        let rows = vec![row("a", holds, 180_000), row("a", ImportedState::Place, 1_000)];
        tally.add(Some(&LockPlan { rows, findings: vec![] }));
        for lock in ["b", "c"] {
            let findings = vec![finding(Reason::NoTtl, lock, Some("x\u{1b}[2J"))];
            tally.add(Some(&LockPlan { rows: vec![], findings }));
        }
        let findings = vec![finding(Reason::ValueTooLong { len: 5_000 }, "d", None)];
        tally.add(Some(&LockPlan { rows: vec![], findings }));
        tally.add(None);

        let expected = [
            "locks: 4, and 1 outside of the prefix",
            "to import: 2",
            "  holders: 1, 1 of them with a value",
            "  waiters: 1",
            "  of our own client: 2",
            "  leases: 1s to 180s",
            "skipped: 1",
            "  a value that is too long: 1",
            "    \"d\" (5000 bytes is longer than the 4096 allowed)",
            "contradictory: 2",
            "  no TTL: it would never end: 2",
            "    \"b\", \"x\\u{1b}[2J\"",
            "    and 1 more; --json shows all",
        ];
        assert_eq!(tally.lines(), expected);
        let json = tally.json();
        assert_eq!(json["findings"], json!({ "no-ttl": 2, "value-too-long": 1 }));
        assert_eq!((&json["lease_ms_min"], &json["locks"]), (&json!(1_000), &json!(4)));
    }
}
