//! I1: a resource that refuses tokens lower than the largest it has seen never accepts interleaved
//! writes of two holders: each write comes from the client that was granted its token, and once it
//! has accepted a write of a newer grant it accepts none of an older one. Nor does it refuse a safe
//! holder: such a refusal would mean that the holder of a newer grant wrote while the older grant
//! was still good.

use std::collections::BTreeMap;

use super::story::{Fence, Story};
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut newest: BTreeMap<&str, &Fence> = BTreeMap::new();
    for fence in &story.fences {
        let how = match fence.refused_for {
            Some(token) => refused_while_safe(story, fence, token),
            None => not_its_own(story, fence)
                .or_else(|| interleaved(newest.insert(&fence.name, fence)?, fence)),
        };
        if let Some(how) = how {
            let Fence { client, at_ns, token, name, .. } = fence;
            let message = format!(
                "{name}: the write of {client} under token {token} at {} {how}",
                at(*at_ns)
            );
            violations.push(violation(1, message));
        }
    }
}

fn refused_while_safe(story: &Story, fence: &Fence, newer: u64) -> Option<String> {
    let hold = story.hold(fence.client, fence.token, &fence.name)?;
    let was_safe = hold.safe_end_ns() > fence.at_ns;
    was_safe.then(|| format!("was refused, when it was safe: token {newer} had written"))
}

/// A token identifies the writer; here another client wrote with it.
fn not_its_own(story: &Story, fence: &Fence) -> Option<String> {
    let held = story.hold(fence.client, fence.token, &fence.name);
    let alone = held.is_some_and(|hold| !hold.shared);
    (!alone).then(|| "was accepted, and its client was never granted the lock alone".into())
}

fn interleaved(before: &Fence, fence: &Fence) -> Option<String> {
    let (older, other) = (before.token > fence.token, before.client != fence.client);
    (older || before.token == fence.token && other)
        .then(|| format!("was accepted after one of {} (token {})", before.client, before.token))
}
