//! I9: among requests for one name, the one that certainly entered the queue first is granted
//! first.
//!
//! Certainly first: it was acknowledged as waiting before the other was even asked for, or it
//! entered at a lower log index. The other request is then granted that name neither with a smaller
//! token nor while the first certainly still waits. That includes requests that would not wait: no
//! request barges.
//!
//! The same holds whatever the two ask for. A reader that stands before another reader enters with
//! it, under the smaller token. A set keeps later requests out of each of its names until it has
//! all of them (DESIGN §4), and an `any` stands in all of its queues until it has one name.
//!
//! A request with a head start may go before those with a smaller one that came earlier; before those with the same
//! one, or a larger one, it may not. How much earlier they may have come is judged where the table's age is seen
//! (`sim/observer.rs`).

use std::collections::{BTreeMap, BTreeSet};

use super::story::{Answer, Queued, Request, Story};
use super::{Tally, Violation, at, violation};

/// A limit is enforced by a timer that may tick in whole milliseconds.
const TIMER_NS: u64 = 5_000_000;

pub(super) fn check(story: &Story, tally: &mut Tally, violations: &mut Vec<Violation>) {
    let mut by_name: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
    // A claim takes over the place of its import, and is judged with the import.
    for request in story.requests.iter().filter(|request| request.claims.is_none()) {
        for name in request.items.keys() {
            by_name.entry(name).or_default().push(request);
        }
    }
    for (name, requests) in by_name {
        let by_call: Vec<Ranked<'_>> =
            requests.iter().map(|request| by_call(story, request)).collect();
        let by_index: Vec<Ranked<'_>> =
            requests.iter().filter_map(|request| by_index(story, request)).collect();
        let head_starts: BTreeSet<u64> = requests.iter().map(|one| one.head_start_ms()).collect();
        for head_start_ms in head_starts {
            check_ranked(name, &by_call, head_start_ms, violations);
            check_ranked(name, &by_index, head_start_ms, violations);
        }
        tally.overtakes += overtakes(&requests);
    }
}

/// How many requests with a head start were granted before one with a smaller one that certainly waited already.
fn overtakes(requests: &[&Request]) -> usize {
    let mut waited: Vec<(u64, &Request)> =
        requests.iter().filter_map(|one| Some((one.queued?.at_ns, *one))).collect();
    waited.sort_unstable_by_key(|(at_ns, _)| *at_ns);
    let overtook = |later: &&&Request| {
        let head_start_ns = later.head_start_ms() * 1_000_000;
        let from_ns = later.called_ns.saturating_sub(head_start_ns);
        let from = waited.partition_point(|(at_ns, _)| *at_ns < from_ns);
        let until = waited.partition_point(|(at_ns, _)| *at_ns < later.called_ns);
        let mut earlier = waited.get(from..until).unwrap_or_default().iter();
        later.token().is_some()
            && earlier.any(|(_, earlier)| {
                earlier.head_start_ms() < later.head_start_ms() && earlier.token() > later.token()
            })
    };
    requests.iter().filter(overtook).count()
}

/// A request and its position in some order: it certainly entered the queue at `entered` (if it is
/// known to have waited) and certainly not before `asked`.
struct Ranked<'a> {
    request: &'a Request,
    asked: u64,
    entered: Option<u64>,
    waits_until_ns: u64,
}

fn by_call<'a>(story: &Story, request: &'a Request) -> Ranked<'a> {
    Ranked {
        request,
        asked: request.called_ns,
        entered: request.queued.map(|queued| queued.at_ns),
        waits_until_ns: certainly_waits_until(story, request),
    }
}

fn by_index<'a>(story: &Story, request: &'a Request) -> Option<Ranked<'a>> {
    let Some(Queued { index: Some(index), .. }) = request.queued else { return None };
    Some(Ranked {
        request,
        asked: index,
        entered: Some(index),
        waits_until_ns: certainly_waits_until(story, request),
    })
}

/// Until when an ungranted request was certainly in the queue; 0 if that is not known at all.
fn certainly_waits_until(story: &Story, request: &Request) -> u64 {
    let (Some(queued), None) = (request.queued, &request.granted) else { return 0 };
    if may_have_left_unseen(request) {
        return queued.at_ns;
    }
    let Some(client) = story.clients.get(&request.client) else { return queued.at_ns };
    let lease = client.leases.certain_until(queued.at_ns).unwrap_or(queued.at_ns);
    let limit = request.limit_ns.map(|limit| limit.saturating_sub(TIMER_NS));
    let told = request.answers.iter().find(|(_, answer)| *answer != Answer::Queued);
    let taken = story.facts.taken_from_ns(request.client);
    [limit, taken, request.cancel_ns, client.closed_ns, client.killed_ns, client.ended_ns]
        .into_iter()
        .chain([told.map(|(at_ns, _)| *at_ns)])
        .flatten()
        .fold(lease, u64::min)
        .max(queued.at_ns)
}

/// Whether the store may have granted it without its client learning of it, so that it left queues: another of its names, or one for so
/// short that the hold was over before anybody told.
fn may_have_left_unseen(request: &Request) -> bool {
    let is_one_of_several = request.any.is_some() && request.items.len() > 1;
    let is_bounded = request.items.values().any(|asked| asked.max_hold_ms > 0);
    (is_one_of_several || is_bounded) && !request.is_certainly_ungranted()
}

/// Judges the requests with one head start: they go before none that has the same, or a larger one.
fn check_ranked(
    name: &str,
    ranked: &[Ranked<'_>],
    head_start_ms: u64,
    violations: &mut Vec<Violation>,
) {
    let goes_first = |one: &&Ranked<'_>| one.request.head_start_ms() >= head_start_ms;
    let mut by_entry: Vec<&Ranked<'_>> =
        ranked.iter().filter(|one| one.entered.is_some()).filter(goes_first).collect();
    by_entry.sort_by_key(|ranked| ranked.entered);
    let judged = |one: &&Ranked<'_>| one.request.head_start_ms() == head_start_ms;
    let mut by_ask: Vec<&Ranked<'_>> = ranked.iter().filter(judged).collect();
    by_ask.sort_by_key(|ranked| ranked.asked);

    let mut entered = by_entry.into_iter().peekable();
    let mut last_granted: Option<&Ranked<'_>> = None;
    let mut longest_waiting: Option<&Ranked<'_>> = None;
    let mut longest_apart: Option<&Ranked<'_>> = None;
    for later in by_ask {
        while let Some(earlier) = entered.next_if(|earlier| earlier.entered < Some(later.asked)) {
            last_granted = later_granted(last_granted, earlier);
            longest_waiting = longer_waiting(longest_waiting, earlier);
            if !may_share_unseen(name, earlier.request) {
                longest_apart = longer_waiting(longest_apart, earlier);
            }
        }
        let waiting = if shares(name, later.request) { longest_apart } else { longest_waiting };
        judge(name, later, last_granted, waiting, violations);
    }
}

fn shares(name: &str, request: &Request) -> bool {
    request.items.get(name).is_some_and(|asked| asked.shared)
}

/// Whether the store may have granted it as a reader without its client learning of it: another
/// reader may then be granted the name beside it. An exclusive request still may not.
fn may_share_unseen(name: &str, request: &Request) -> bool {
    shares(name, request) && !request.is_certainly_ungranted()
}

fn token(ranked: &Ranked<'_>) -> Option<u64> {
    ranked.request.token()
}

fn later_granted<'a>(
    kept: Option<&'a Ranked<'a>>,
    other: &'a Ranked<'a>,
) -> Option<&'a Ranked<'a>> {
    if token(other).is_some() && kept.is_none_or(|kept| token(kept) < token(other)) {
        return Some(other);
    }
    kept
}

fn longer_waiting<'a>(
    kept: Option<&'a Ranked<'a>>,
    other: &'a Ranked<'a>,
) -> Option<&'a Ranked<'a>> {
    if kept.is_none_or(|kept| kept.waits_until_ns < other.waits_until_ns) {
        return Some(other);
    }
    kept
}

fn judge(
    name: &str,
    later: &Ranked<'_>,
    last_granted: Option<&Ranked<'_>>,
    longest_waiting: Option<&Ranked<'_>>,
    violations: &mut Vec<Violation>,
) {
    // Of an `any`, only the names that it got were taken ahead of another request.
    let grant = later.request.granted.as_ref().filter(|grant| grant.names.contains(name));
    let Some(grant) = grant else { return };
    let before = last_granted
        .filter(|earlier| token(earlier) > Some(grant.token))
        .or(longest_waiting.filter(|earlier| earlier.waits_until_ns > grant.at_ns));
    if let Some(before) = before.map(|ranked| ranked.request) {
        let message = format!(
            "{name}: request {} of {} was granted at {} (token {}) before request {} of {}, which stood before it",
            later.request.number,
            later.request.client,
            at(grant.at_ns),
            grant.token,
            before.number,
            before.client
        );
        violations.push(violation(9, message));
    }
}
