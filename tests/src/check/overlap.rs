//! I24: at no instant are there two safe holds of one name, and none is safe with a token below
//! one that was safe before. With it I1 and I6: two holders that both believe are what an early
//! expiry or a double grant comes to.

use std::collections::BTreeMap;

use super::story::{Hold, Story};
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in story.holds.iter().filter(|hold| hold.was_safe()) {
        by_name.entry(story.name_of(hold)).or_default().push(hold);
    }
    for (name, mut holds) in by_name {
        holds.sort_by_key(|hold| hold.from_ns);
        check_name(name, &holds, violations);
    }
}

/// `holds` in the order in which they were told.
fn check_name(name: &str, holds: &[&Hold], violations: &mut Vec<Violation>) {
    let mut longest: Option<&Hold> = None;
    let mut newest: Option<&Hold> = None;
    for &hold in holds {
        if let Some(before) = longest.filter(|before| before.safe_end_ns() > hold.from_ns) {
            violations.push(violation(24, two_at_once(name, before, hold)));
        } else if let Some(before) = newest.filter(|before| before.token >= hold.token) {
            violations.push(violation(24, backwards(name, before, hold)));
        }
        longest = longest.max_by_end(hold);
        newest = newest.max_by_token(hold);
    }
}

fn two_at_once(name: &str, first: &Hold, second: &Hold) -> String {
    format!(
        "{name}: {} (token {}) was safe until {}, and {} (token {}) was granted at {}",
        first.client,
        first.token,
        at(first.safe_end_ns()),
        second.client,
        second.token,
        at(second.from_ns),
    )
}

fn backwards(name: &str, before: &Hold, after: &Hold) -> String {
    format!(
        "{name}: token {} of {} was safe after token {} of {}",
        after.token, after.client, before.token, before.client,
    )
}

/// Keeps the larger of two holds.
trait Larger<'a> {
    fn max_by_end(self, hold: &'a Hold) -> Option<&'a Hold>;
    fn max_by_token(self, hold: &'a Hold) -> Option<&'a Hold>;
}

impl<'a> Larger<'a> for Option<&'a Hold> {
    fn max_by_end(self, hold: &'a Hold) -> Option<&'a Hold> {
        Some(self.filter(|kept| kept.safe_end_ns() >= hold.safe_end_ns()).unwrap_or(hold))
    }

    fn max_by_token(self, hold: &'a Hold) -> Option<&'a Hold> {
        Some(self.filter(|kept| kept.token >= hold.token).unwrap_or(hold))
    }
}
