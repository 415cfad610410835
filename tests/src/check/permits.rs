//! I2: at no instant do the holds of a lock that are safe have more permits than its limit.
//!
//! The limit is that of the requests, which all name the same one; a run that lets two limits of one name be granted at
//! a time contradicts itself as well.

use super::story::{Hold, Story};
use super::{Tally, Violation, at, violation};
use crate::history::Permits;

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    for (name, holds) in story.holds_by_name() {
        let safe = holds.into_iter().filter(|hold| hold.was_safe());
        let safe: Vec<(&Hold, Permits)> =
            safe.filter_map(|hold| Some((hold, hold.permits?))).collect();
        check_name(name, &safe, tally, violations);
    }
}

fn check_name(
    name: &str,
    holds: &[(&Hold, Permits)],
    tally: &mut Tally,
    violations: &mut Vec<Violation>,
) {
    let mut changes: Vec<(u64, bool, usize)> = Vec::new();
    for (place, (hold, _)) in holds.iter().enumerate() {
        // One that ends at an instant ends before another begins then.
        changes.push((hold.safe_end_ns(), false, place));
        changes.push((hold.from_ns, true, place));
    }
    changes.sort_unstable();
    let (mut used, mut safe) = (0_u64, 0_usize);
    for (_, begins, place) in changes {
        let (hold, Permits { count, limit }) = holds[place];
        if !begins {
            used -= u64::from(count);
            safe -= 1;
            continue;
        }
        used += u64::from(count);
        tally.permits_beside += usize::from(safe > 0);
        safe += 1;
        if used > u64::from(limit) {
            let message = format!(
                "{name}: {used} of {limit} permits were safe at {}, when {} had {count} under token {}",
                at(hold.from_ns),
                hold.client,
                hold.token,
            );
            violations.push(violation(2, message));
        }
    }
}
