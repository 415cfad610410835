//! I1: a resource that refuses tokens lower than the largest it has seen refuses nobody who is safe.
//! If it did, the holder of a newer grant had written while the older one was still good.

use super::story::{Fence, Story};
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    for fence in story.fences.iter().filter(|fence| was_safe(story, fence)) {
        let message = format!(
            "{}: the write of {} under token {} was refused at {}, when it was safe: token {} had written",
            fence.name,
            fence.client,
            fence.token,
            at(fence.at_ns),
            fence.newest
        );
        violations.push(violation(1, message));
    }
}

fn was_safe(story: &Story, fence: &Fence) -> bool {
    let hold = story.hold(fence.client, fence.token, &fence.name);
    hold.is_some_and(|hold| hold.safe_end_ns() > fence.at_ns)
}
