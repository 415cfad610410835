//! I38, I31: what a hold is to last at least and at most, and names that are frozen (DESIGN §16).
//!
//! - A hold is not ended by its `max_hold` before that has passed since the grant, and is, some time after.
//! - Nobody is granted a lock before its last hold's `hold_at_least` has passed since the grant.
//! - Nobody is granted a name while it is frozen.
//! - The session of a client is ended from outside by an operator, or for such a hold (I13).
//!
//! The leader counts by its own clock, which may be fast or slow by the allowance, a tenth. Where the nodes were observed, the
//! instant of a grant is known; otherwise it lies between the request and its answer.

use std::time::Duration;

use super::story::{Hold, Look, Over, Request, Seen, Story};
use super::{Options, Tally, Violation, at, violation};
use crate::history::{ClientId, LostCause};

pub(super) fn check(
    story: &Story,
    options: Options,
    tally: &mut Tally,
    violations: &mut Vec<Violation>,
) {
    for (name, mut holds) in story.holds_by_name() {
        holds.sort_by_key(|hold| hold.token);
        for hold in &holds {
            let found = too_early(story, hold, tally)
                .or_else(|| overdue(story, options, hold))
                .or_else(|| while_frozen(story, hold));
            if let Some((invariant, how)) = found {
                let message = format!("{name}: token {} of {} {how}", hold.token, hold.client);
                violations.push(violation(invariant, message));
            }
        }
        for pair in holds.windows(2) {
            let [first, next] = pair else { continue };
            before_its_least(story, first, next, violations);
        }
    }
    for &(client, at_ns) in &story.facts.revoked {
        revoked_by_nobody(story, client, at_ns, violations);
    }
}

/// I13: a session is ended from outside by an operator, or because a hold of it had lasted its longest and its client does not know that
/// a hold alone can be ended.
fn revoked_by_nobody(story: &Story, client: ClientId, at_ns: u64, violations: &mut Vec<Violation>) {
    let by_operator = story.facts.ordered_from_ns(client).is_some_and(|from_ns| from_ns <= at_ns);
    let lasted = |request: &&Request| {
        let seen_ns = request.token().and_then(|token| story.facts.grant_seen_ns(token));
        let from_ns = seen_ns.unwrap_or(request.called_ns);
        let mut bounds = request.items.values().map(|asked| asked.max_hold_ms * 1_000_000);
        let passed = |most_ns| at_ns >= from_ns.saturating_add(at_least(most_ns));
        bounds.any(|most_ns| most_ns > 0 && passed(most_ns))
    };
    let mut asked = story.requests.iter().filter(|request| request.client == client);
    if !by_operator && !asked.any(|request| lasted(&request)) {
        let message =
            format!("the session of {client} was ended from outside by nobody at {}", at(at_ns));
        violations.push(violation(13, message));
    }
}

/// A length that a leader counts, by true time: no shorter than this.
const fn at_least(length_ns: u64) -> u64 {
    length_ns - length_ns / 10
}

/// The same: no longer than this, on a healthy cluster that also had to settle.
fn at_most(options: Options, length_ns: u64) -> u64 {
    let ns = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let settled_ns = ns(options.settle).saturating_add(ns(options.grace));
    length_ns.saturating_add(length_ns / 10).saturating_add(settled_ns)
}

/// The earliest instant at which a hold may have been granted.
fn granted_from_ns(story: &Story, hold: &Hold) -> u64 {
    story.facts.grant_seen_ns(hold.token).unwrap_or(hold.called_ns)
}

/// The latest.
fn granted_by_ns(story: &Story, hold: &Hold) -> u64 {
    story.facts.grant_seen_ns(hold.token).unwrap_or(hold.from_ns)
}

/// Whether the store may have ended a hold by `at_ns`, because it had lasted its longest.
pub(super) fn may_be_too_long(story: &Story, hold: &Hold, at_ns: u64) -> bool {
    let passes_ns = granted_from_ns(story, hold).saturating_add(at_least(hold.most_ns));
    hold.most_ns > 0 && at_ns >= passes_ns
}

fn too_early(story: &Story, hold: &Hold, tally: &mut Tally) -> Option<(u8, String)> {
    let (told_ns, Over::Told(LostCause::TooLong)) = hold.over? else { return None };
    tally.too_long += 1;
    (!may_be_too_long(story, hold, told_ns)).then(|| {
        let longest = Duration::from_nanos(hold.most_ns);
        let from = at(granted_from_ns(story, hold));
        (38, format!("was ended at {} for having lasted {longest:?}, since {from}", at(told_ns)))
    })
}

/// I31: the client still believes in a hold that was to be ended long before, with nothing broken since.
fn overdue(story: &Story, options: Options, hold: &Hold) -> Option<(u8, String)> {
    let safe_end_ns = hold.safe_end_ns();
    let owed_ns = hold.from_ns.saturating_add(at_most(options, hold.most_ns));
    let overdue = hold.most_ns > 0
        && safe_end_ns > owed_ns
        && story.facts.healthy_between(hold.from_ns, safe_end_ns);
    overdue.then(|| {
        let longest = Duration::from_nanos(hold.most_ns);
        (31, format!("was to end {longest:?} after its grant, and is safe at {}", at(safe_end_ns)))
    })
}

fn before_its_least(story: &Story, first: &Hold, next: &Hold, violations: &mut Vec<Violation>) {
    let open_ns = granted_from_ns(story, first).saturating_add(at_least(first.least_ns));
    let granted_ns = granted_by_ns(story, next);
    if first.least_ns > 0 && first.token < next.token && granted_ns < open_ns {
        let message = format!(
            "{}: {} was granted it under token {} by {}, and token {} of {} was to last {:?} from {}",
            first.name,
            next.client,
            next.token,
            at(granted_ns),
            first.token,
            first.client,
            Duration::from_nanos(first.least_ns),
            at(granted_from_ns(story, first)),
        );
        violations.push(violation(38, message));
    }
}

fn while_frozen(story: &Story, hold: &Hold) -> Option<(u8, String)> {
    let (from_ns, by_ns) = (granted_from_ns(story, hold), granted_by_ns(story, hold));
    let frozen = story.facts.orders.frozen_between(&hold.name, from_ns, by_ns);
    frozen.then(|| (38, format!("was granted by {}, and the name was frozen", at(by_ns))))
}

/// I38, I18, I31: what a look shows of a closed or a frozen lock.
pub(super) fn look(
    story: &Story,
    options: Options,
    (look, seen): (&Look, &Seen),
    ended: Option<&Hold>,
    found: &mut Vec<(u8, String)>,
) {
    let orders = &story.facts.orders;
    let is_frozen = orders.frozen_between(&look.name, look.called_ns, seen.at_ns);
    if is_frozen && !seen.frozen {
        found.push((18, "it was frozen all the while".into()));
    }
    if seen.frozen && !orders.maybe_frozen(&look.name, look.called_ns, seen.at_ns) {
        found.push((18, "nobody had frozen it".into()));
    }
    let Some(token) = seen.closed else { return };
    if !seen.holders.is_empty() {
        found.push((38, format!("it was closed after token {token} as well")));
    }
    let Some(ended) = ended else { return };
    let owed_ns = at_most(options, ended.least_ns);
    let from_ns = look.called_ns.saturating_sub(owed_ns);
    if ended.least_ns == 0 {
        found.push((18, format!("it was closed after token {token}, which had no least")));
    } else if from_ns > ended.from_ns && story.facts.healthy_between(from_ns, look.called_ns) {
        let least = Duration::from_nanos(ended.least_ns);
        found.push((31, format!("it was closed for the {least:?} of token {token}")));
    }
}
