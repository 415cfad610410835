//! I3: no token is granted twice, and a grant that was requested after another one was seen has the larger token, whatever the names and
//! whatever happened between. Names in scopes are judged within each scope: a scope has an epoch of its own, in either store, and its
//! tokens are in no order with others.

use std::collections::BTreeMap;

use super::story::{Grant, Request, Story};
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut granted: Vec<(&Request, &Grant)> = story
        .requests
        .iter()
        .filter_map(|request| Some((request, request.granted.as_ref()?)))
        .collect();
    granted.sort_by_key(|(request, _)| request.called_ns);
    let mut scopes: BTreeMap<Option<&str>, Vec<(&Request, &Grant)>> = BTreeMap::new();
    for (request, grant) in granted {
        // The store refuses requests for names of several scopes.
        let scope = grant.names.first().and_then(|name| story.facts.scope_of(name));
        scopes.entry(scope).or_default().push((request, grant));
    }
    for granted in scopes.values() {
        distinct(granted, violations);
        rising(granted, violations);
    }
}

fn distinct(granted: &[(&Request, &Grant)], violations: &mut Vec<Violation>) {
    let mut owner: BTreeMap<u64, &Request> = BTreeMap::new();
    for &(request, grant) in granted {
        if let Some(before) = owner.insert(grant.token, request) {
            let message = format!(
                "token {} was given to {} for {} and to {} for {}",
                grant.token,
                before.client,
                before.names(),
                request.client,
                request.names()
            );
            violations.push(violation(3, message));
        }
    }
}

/// Checks `by_call`, which is in the order of the requests.
fn rising(by_call: &[(&Request, &Grant)], violations: &mut Vec<Violation>) {
    let mut by_grant: Vec<&(&Request, &Grant)> = by_call.iter().collect();
    by_grant.sort_by_key(|(_, grant)| grant.at_ns);
    let mut seen = by_grant.into_iter().peekable();
    let mut largest: Option<&(&Request, &Grant)> = None;
    for (request, grant) in by_call {
        while let Some(earlier) = seen.next_if(|(_, earlier)| earlier.at_ns < request.called_ns) {
            if largest.is_none_or(|(_, kept)| kept.token < earlier.1.token) {
                largest = Some(earlier);
            }
        }
        // A repeated token is reported by another check.
        if let Some((before, kept)) = largest.filter(|(_, kept)| kept.token > grant.token) {
            let message = format!(
                "token {} of {} for {} was seen at {}; {} asked for {} later and got {}",
                kept.token,
                before.client,
                before.names(),
                at(kept.at_ns),
                request.client,
                request.names(),
                grant.token
            );
            violations.push(violation(3, message));
        }
    }
}
