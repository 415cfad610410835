//! I14, I23: a grant names what was asked for: all of a set, and some of an `any`.

use super::story::{Grant, Request, Story};
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    for request in &story.requests {
        let Some(grant) = &request.granted else { continue };
        if let Some((invariant, how)) = differs(request, grant) {
            let message = format!(
                "request {} of {} for {} was granted token {} at {} {how}",
                request.number,
                request.client,
                request.names(),
                grant.token,
                at(grant.at_ns),
            );
            violations.push(violation(invariant, message));
        }
    }
}

fn differs(request: &Request, grant: &Grant) -> Option<(u8, String)> {
    if let Some(name) = grant.names.iter().find(|name| !request.items.contains_key(*name)) {
        return Some((23, format!("with {name}, which it did not ask for")));
    }
    match request.any {
        None if grant.names.len() < request.items.len() => {
            Some((14, format!("in part: {:?}", grant.names)))
        }
        Some(min) if grant.names.len() < min.max(1) as usize => {
            Some((14, format!("with {:?}, and needs {}", grant.names, min.max(1))))
        }
        _ => None,
    }
}
