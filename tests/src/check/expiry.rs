//! I6, I7: the store ends a session neither before its client's safe deadline nor later than the
//! bound of DESIGN §5.3.
//!
//! The bound counts changes of leader and the time without one. Between two faults it is simpler:
//! once everything has settled, one leader has begun and given every session a full lease, and no
//! other leader follows while no fault is active. After a client was killed, certainly nothing
//! renews its lease.

use super::story::{Client, Story};
use super::{Options, Tally, Violation, at, violation};
use crate::history::ClientId;

/// What the store adds to a lease.
///
/// Source: DESIGN §5.4, the margin.
const MARGIN_NS: u64 = 50_000_000;

pub(super) fn check(
    story: &Story,
    options: Options,
    tally: &mut Tally,
    violations: &mut Vec<Violation>,
) {
    early(story, violations);
    if !story.facts.watched() {
        return;
    }
    for (&id, client) in &story.clients {
        let Some(owed) = owed_by_ns(story, options, id, client) else { continue };
        tally.owed_expiries += 1;
        let ended = story.facts.expired_after(id, client.opened_ns);
        if ended.is_none_or(|ended| ended > owed) {
            let fate =
                ended.map_or("never ended".into(), |ended| format!("ended at {}", at(ended)));
            let killed = at(client.killed_ns.unwrap_or(0));
            let message = format!(
                "the session of {id}, killed at {killed}, was to end by {}: {fate}",
                at(owed)
            );
            violations.push(violation(7, message));
        }
    }
}

/// I6: some hold of the session was certain beyond the session's end.
fn early(story: &Story, violations: &mut Vec<Violation>) {
    for hold in &story.holds {
        let ended = story.facts.expired_holding(hold.client, hold.token, hold.from_ns);
        if let Some(ended_ns) = ended.filter(|ended_ns| *ended_ns < hold.safe_end_ns()) {
            let message = format!(
                "{}: {} was expired at {}, and its token {} was safe until {}",
                hold.name,
                hold.client,
                at(ended_ns),
                hold.token,
                at(hold.safe_end_ns())
            );
            violations.push(violation(6, message));
        }
    }
}

/// The deadline by which a session that nothing renews has to be over. `None` if there is no
/// deadline: it ended otherwise, or some fault was always active.
fn owed_by_ns(story: &Story, options: Options, id: ClientId, client: &Client) -> Option<u64> {
    let (ttl_ns, killed_ns) = (client.ttl_ns?, client.killed_ns?);
    if client.closed_ns.is_some() || client.ended_ns.is_some() {
        return None;
    }
    let facts = &story.facts;
    let ns = |length: std::time::Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    // A leader's clock may be slow by the allowance, a tenth.
    let lease_ns = ttl_ns.saturating_add(MARGIN_NS);
    let lease_ns = lease_ns.saturating_add(lease_ns / 10);
    let within_ns = lease_ns.saturating_add(ns(options.settle)).saturating_add(ns(options.grace));
    let ended_ns = facts.expired_after(id, client.opened_ns).unwrap_or(u64::MAX);
    let owed_in = |&(from, until): &(u64, Option<u64>)| {
        let owed_ns = from.max(killed_ns).saturating_add(within_ns);
        let lasts = until.unwrap_or(facts.end_ns) >= owed_ns;
        (lasts && from < ended_ns).then_some(owed_ns)
    };
    facts.healthy.iter().find_map(owed_in)
}
