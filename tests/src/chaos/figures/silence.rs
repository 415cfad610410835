//! How long no client was granted anything after a leader was killed.

use super::MS;
use crate::chaos::kind::Kind;
use crate::chaos::schedule::{Observed, Span};
use crate::history::{Record, What};

/// A pause that a kill causes begins within this time of it.
const BEGINS_WITHIN_NS: u64 = 1_000 * MS;
/// No other fault was active from so long before a kill …
const BEFORE_NS: u64 = 1_000 * MS;
/// … until so long after it.
const AFTER_NS: u64 = 5_000 * MS;

/// The pauses after each kill of a leader that was the only fault then, milliseconds, in order.
pub(super) fn after_kills(history: &[Record], observed: &Observed) -> Vec<u64> {
    let granted = |record: &&Record| matches!(record.what, What::Granted { .. });
    let grants: Vec<u64> = history.iter().filter(granted).map(|record| record.at_ns).collect();
    let kills = observed.faults.iter().filter(|fault| fault.kind == Kind::KillLeader);
    let mut pauses: Vec<u64> = kills
        .filter(|kill| is_alone(kill, &observed.faults))
        .filter_map(|kill| Some(pause(&grants, kill.from_ns)? / MS))
        .collect();
    pauses.sort_unstable();
    pauses
}

fn is_alone(kill: &Span, faults: &[Span]) -> bool {
    let from = kill.from_ns.saturating_sub(BEFORE_NS);
    let disturbs = |other: &&Span| {
        // The next kill waits until the previous one has settled: it comes after the pause.
        let until =
            if other.kind == Kind::KillLeader { kill.from_ns } else { kill.from_ns + AFTER_NS };
        other.from_ns < until && other.until_ns > from
    };
    !faults.iter().any(|other| disturbs(&other))
}

/// The longest time between two grants that begins at the kill or soon after it: a grant or two of
/// the dead leader may still be under way.
fn pause(grants: &[u64], killed_ns: u64) -> Option<u64> {
    let after = grants.partition_point(|at| *at <= killed_ns);
    let mut begins = killed_ns;
    let mut longest = None;
    for &grant in grants.get(after..)? {
        longest = longest.max(Some(grant - begins));
        begins = grant;
        if begins > killed_ns + BEGINS_WITHIN_NS {
            break;
        }
    }
    longest
}

/// The line of the table.
pub(super) fn told(pauses_ms: &[u64]) -> String {
    let Some(longest) = pauses_ms.last() else { return "not measured".into() };
    let at = |hundredths: usize| pauses_ms[(pauses_ms.len() - 1) * hundredths / 100];
    format!(
        "p50 {} ms, p99 {} ms, max {longest} ms over {} kills with nothing else broken",
        at(50),
        at(99),
        pauses_ms.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_counted_from_the_kill_over_what_was_still_on_its_way() {
        let grants = [10, 90, 100, 110, 150, 3_000, 3_001].map(|ms| ms * MS);

        assert_eq!(pause(&grants, 100 * MS), Some(2_850 * MS));
        assert_eq!(pause(&grants, 4_000 * MS), None);
    }

    #[test]
    fn a_kill_beside_another_fault_is_not_counted() {
        let span = |kind, from_ms: u64, until_ms: u64| Span {
            kind,
            from_ns: from_ms * MS,
            until_ns: until_ms * MS,
        };
        let kill = span(Kind::KillLeader, 10_000, 11_000);
        let alone = [kill.clone(), span(Kind::Loss, 5_000, 7_000)];
        let beside = [kill.clone(), span(Kind::Loss, 5_000, 9_500)];

        assert!(is_alone(&kill, &alone));
        assert!(!is_alone(&kill, &beside));
    }
}
