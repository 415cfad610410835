//! I1: a resource that refuses tokens lower than the largest it has seen never accepts interleaved
//! writes of two holders: each write is its token's own client's, and once a newer grant's write
//! was accepted no older one's is.

use std::collections::BTreeMap;

use super::facts::Fenced;
use super::story::Story;
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut newest: BTreeMap<&str, &Fenced> = BTreeMap::new();
    for write in story.facts.fenced.iter().filter(|write| write.accepted) {
        if let Some(how) = not_its_own(story, write) {
            violations.push(violation(1, described(write, how)));
        }
        let Some(before) = newest.insert(&write.resource, write) else { continue };
        if before.token > write.token || before.token == write.token && before.by != write.by {
            let message = described(write, "after a write of another holder");
            let message = format!("{message}, {} (token {})", before.by, before.token);
            violations.push(violation(1, message));
        }
    }
}

/// A token says who writes; here it does not.
fn not_its_own(story: &Story, write: &Fenced) -> Option<&'static str> {
    match story.hold(write.by, write.token, &write.resource) {
        None => Some("whose client was never granted it"),
        Some(hold) if hold.shared => Some("whose client shares it"),
        Some(_) => None,
    }
}

fn described(write: &Fenced, how: &str) -> String {
    let Fenced { at_ns, resource, by, token, .. } = write;
    format!("{resource}: a write of {by} under token {token} was accepted at {} {how}", at(*at_ns))
}
