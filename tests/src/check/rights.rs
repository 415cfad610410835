//! I6, as DESIGN §5.4 and §5.5 define it: a client believes in its holds no longer than the *send*
//! time of the acknowledged keepalive allows, and the store ends no session before that.
//!
//! Both checks need an observer on the clients' connections. A session's safe deadline covers more
//! than its holds show: it counts without a hold, and up to the last acknowledgement, believed or
//! not.

use std::collections::BTreeMap;

use super::story::{Client, Right, Story};
use super::{Tally, Violation, at, violation};
use crate::history::ClientId;

/// The error when an instant of one clock is converted to another.
const ROUNDING_NS: u64 = 1_000;

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    for (&id, client) in story.clients.iter().filter(|(_, client)| !client.rights.given.is_empty())
    {
        tally.acknowledged += client.rights.given.len();
        violations.extend(believed_too_long(id, client));
        violations.extend(expired_too_early(story, id, client));
    }
}

/// The first belief without an acknowledgement that justifies it; the later ones follow from it.
fn believed_too_long(id: ClientId, client: &Client) -> Option<Violation> {
    let mut given = client.rights.given.iter().peekable();
    let mut right_ns = 0;
    for &(said_ns, until_ns) in &client.rights.beliefs {
        while let Some(right) = given.next_if(|right| right.at_ns <= said_ns) {
            right_ns = right.until_ns.max(right_ns);
        }
        if until_ns > right_ns.saturating_add(ROUNDING_NS) {
            let message = format!(
                "{id} says at {} that its holds are certain until {}, and what was acknowledged \
                 gives it until {}",
                at(said_ns),
                at(until_ns),
                at(right_ns)
            );
            return Some(violation(6, message));
        }
    }
    None
}

/// Sessions that the store ended although it had acknowledged their leases for longer.
fn expired_too_early(story: &Story, id: ClientId, client: &Client) -> Vec<Violation> {
    let mut latest: BTreeMap<u64, &Right> = BTreeMap::new();
    for right in &client.rights.given {
        let kept = latest.entry(right.session).or_insert(right);
        if kept.until_ns < right.until_ns {
            *kept = right;
        }
    }
    let early = latest.into_values().filter_map(|right| {
        let ended_ns = story.facts.session_expired(id, right.session)?;
        (ended_ns.saturating_add(ROUNDING_NS) < right.until_ns).then(|| {
            let message = format!(
                "session {} of {id} was expired at {}; told at {}, it was certain until {}",
                right.session,
                at(ended_ns),
                at(right.at_ns),
                at(right.until_ns)
            );
            violation(6, message)
        })
    });
    early.collect()
}
