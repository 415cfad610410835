//! I8, I16: nodes that have applied the same are in the same state, and the stamp of a state never
//! lies before that of an earlier one: no replica acts on its own clock.

use std::collections::BTreeMap;

use super::facts::Applied;
use super::story::Story;
use super::{Tally, Violation, violation};

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    let mut by_index: BTreeMap<u64, &Applied> = BTreeMap::new();
    for seen in &story.facts.applied {
        let Some(other) = by_index.insert(seen.index, seen) else { continue };
        tally.compared += usize::from(other.node != seen.node);
        if other.stamp_ms != seen.stamp_ms {
            violations.push(violation(8, differ(other, seen)));
        } else if other.hash != seen.hash {
            violations.push(violation(16, differ(other, seen)));
        }
    }
    let mut latest: Option<&Applied> = None;
    for seen in by_index.into_values() {
        if let Some(before) = latest.filter(|before| before.stamp_ms > seen.stamp_ms) {
            let message = format!(
                "the stamp is {} ms at index {} (node {}) and {} ms at index {} (node {})",
                before.stamp_ms, before.index, before.node, seen.stamp_ms, seen.index, seen.node
            );
            violations.push(violation(8, message));
        }
        latest = Some(seen);
    }
}

fn differ(one: &Applied, other: &Applied) -> String {
    let of =
        |seen: &Applied| format!("{} at {} ms on node {}", seen.hash, seen.stamp_ms, seen.node);
    format!("at index {} the state is {} and {}", one.index, of(one), of(other))
}
