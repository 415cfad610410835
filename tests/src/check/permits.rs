//! I2: at no instant do the holds of a lock that are safe have more permits than its limit.
//!
//! The limit is that of the requests, which all name the same one; a run that lets two limits of one name be granted at
//! a time contradicts itself as well. A request that names none is under the limit that an operator set for good: the largest
//! one that may have been in force when it was granted. A limit that is lowered ends no hold.

use super::story::{Hold, Story};
use super::{Tally, Violation, at, violation};
use crate::history::Permits;

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    for (name, holds) in story.holds_by_name() {
        let safe = holds.into_iter().filter(|hold| hold.was_safe());
        let safe: Vec<(&Hold, Permits)> =
            safe.filter_map(|hold| Some((hold, hold.permits?))).collect();
        check_name(story, name, &safe, tally, violations);
    }
}

/// The limit under which a hold was granted, as far as it is known.
fn limit_of(story: &Story, hold: &Hold, asked: u32) -> u32 {
    let orders = &story.facts.orders;
    let kept = || orders.limits(&hold.name, hold.called_ns, hold.from_ns).max();
    if asked > 0 { asked } else { kept().unwrap_or(0) }
}

fn check_name(
    story: &Story,
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
        tally.under_kept_limits += usize::from(limit == 0);
        let limit = limit_of(story, hold, limit);
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
