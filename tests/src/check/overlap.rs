//! I24: no two conflicting holds of one name are safe at the same instant, and no hold is safe with
//! a token below one of that name that was safe before. I1 and I6 follow: an early expiry or a
//! double grant shows as two holders that both believe in their hold.
//!
//! Shared holds are compatible with each other, in any order of their tokens: a reader that learned
//! of its grant late has been a reader all along. An exclusive hold is compatible with none.

use super::story::{Hold, Story};
use super::{Tally, Violation, at, violation};

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    for (name, mut holds) in story.holds_by_name() {
        holds.retain(|hold| hold.was_safe());
        holds.sort_by_key(|hold| hold.from_ns);
        check_name(name, &holds, tally, violations);
    }
}

/// Checks `holds`, which are in the order in which their clients learned of them.
fn check_name(name: &str, holds: &[&Hold], tally: &mut Tally, violations: &mut Vec<Violation>) {
    let mut readers = Before::default();
    let mut alone = Before::default();
    for &hold in holds {
        let against = [Some(&alone), (!hold.shared).then_some(&readers)];
        let longest = against.iter().flatten().filter_map(|before| before.longest);
        let newest = against.iter().flatten().filter_map(|before| before.newest);
        if let Some(before) = longest.max_by_key(|before| before.safe_end_ns())
            && before.safe_end_ns() > hold.from_ns
        {
            violations.push(violation(24, two_at_once(name, before, hold)));
        } else if let Some(before) = newest.max_by_key(|before| before.token)
            && before.token >= hold.token
        {
            violations.push(violation(24, backwards(name, before, hold)));
        }
        if hold.shared {
            let beside = readers.longest.is_some_and(|other| other.safe_end_ns() > hold.from_ns);
            tally.together += usize::from(beside);
            readers.add(hold);
        } else {
            alone.add(hold);
        }
    }
}

/// What is known so far of the holds of one kind.
#[derive(Default)]
struct Before<'a> {
    /// The one that was safe for longest.
    longest: Option<&'a Hold>,
    /// The one with the largest token.
    newest: Option<&'a Hold>,
}

impl<'a> Before<'a> {
    fn add(&mut self, hold: &'a Hold) {
        if self.longest.is_none_or(|kept| kept.safe_end_ns() < hold.safe_end_ns()) {
            self.longest = Some(hold);
        }
        if self.newest.is_none_or(|kept| kept.token < hold.token) {
            self.newest = Some(hold);
        }
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
