//! I18, I15, I11, I2, I38: a linearizable look shows every hold that certainly held during all of it, no
//! hold older than a conflicting one that was known before, no hold of an ended session, no
//! conflicting holders, and no waiter for a lock that it could have.

use std::collections::BTreeMap;

use super::story::{Answer, Hold, Look, Request, Seen, Story};
use super::{Options, Tally, Violation, at, bounds, violation};
use crate::history::Holding;

pub(super) fn check(
    story: &Story,
    options: Options,
    tally: &mut Tally,
    violations: &mut Vec<Violation>,
) {
    let by_name = story.holds_by_name();
    let known: BTreeMap<&str, Known<'_>> =
        by_name.into_iter().map(|(name, holds)| (name, Known::of(holds))).collect();
    let sets = waiting_sets(story);
    for look in &story.reads {
        let Some(seen) = &look.done else { continue };
        let mut found = Vec::new();
        let known = known.get(look.name.as_str());
        let ended = seen.closed.and_then(|token| known?.by_token.get(&token).copied());
        bounds::look(story, options, (look, seen), ended, &mut found);
        tally.looks_shut += usize::from(is_shut(seen));
        if let Some(known) = known {
            known.left_out(look, seen, &mut found);
            found.extend(known.is_older(look, seen));
            known.is_over(story, look, seen, &mut found);
        }
        found.extend(unfit(seen));
        if !story.facts.work_was_left(look.called_ns, seen.at_ns) {
            found.extend(stuck(look, seen, sets.get(look.name.as_str())));
        }
        for (invariant, how) in found {
            let message = format!(
                "{}: a look from {} to {} by {} showed {:?}; {how}",
                look.name,
                at(look.called_ns),
                at(seen.at_ns),
                look.client,
                seen.holders,
            );
            violations.push(violation(invariant, message));
        }
    }
}

/// The holds of one name, in the order in which their clients learned of them, with what each look
/// needs of the holds before each: so a look is judged without a walk over all holds.
struct Known<'a> {
    holds: Vec<&'a Hold>,
    /// Until when any of the holds up to this one was safe.
    safe_end_ns: Vec<u64>,
    /// The newest of the holds up to this one: of all, and of the exclusive ones.
    newest: Vec<[Option<&'a Hold>; 2]>,
    by_token: BTreeMap<u64, &'a Hold>,
}

impl<'a> Known<'a> {
    fn of(mut holds: Vec<&'a Hold>) -> Self {
        holds.sort_by_key(|hold| hold.from_ns);
        let mut longest_ns = 0;
        let mut newest: [Option<&Hold>; 2] = [None; 2];
        let mut known = Self {
            by_token: holds.iter().map(|hold| (hold.token, *hold)).collect(),
            safe_end_ns: Vec::with_capacity(holds.len()),
            newest: Vec::with_capacity(holds.len()),
            holds: Vec::new(),
        };
        for &hold in &holds {
            longest_ns = hold.safe_end_ns().max(longest_ns);
            known.safe_end_ns.push(longest_ns);
            let counts = [true, !hold.shared];
            for (newest, _) in newest.iter_mut().zip(counts).filter(|(_, counts)| *counts) {
                if newest.is_none_or(|kept| kept.token < hold.token) {
                    *newest = Some(hold);
                }
            }
            known.newest.push(newest);
        }
        known.holds = holds;
        known
    }

    /// I18: holds that were safe during all of the look, and are not shown.
    fn left_out(&self, look: &Look, seen: &Seen, found: &mut Vec<(u8, String)>) {
        let told = self.holds.partition_point(|hold| hold.from_ns <= look.called_ns);
        for at in (0..told).rev().take_while(|&at| self.safe_end_ns[at] >= seen.at_ns) {
            let hold = self.holds[at];
            let shown = Holding { token: hold.token, shared: hold.shared };
            if hold.safe_end_ns() >= seen.at_ns && !seen.holders.contains(&shown) {
                found.push((18, format!("{} was safe all the while", owner(hold))));
            }
        }
    }

    /// I18: the look shows a holder with a token below a conflicting one that was known before.
    fn is_older(&self, look: &Look, seen: &Seen) -> Option<(u8, String)> {
        let told = self.holds.partition_point(|hold| hold.from_ns < look.called_ns);
        let newest = self.newest.get(told.checked_sub(1)?)?;
        let newer = seen.holders.iter().find_map(|shown| {
            newest[usize::from(shown.shared)].filter(|newer| newer.token > shown.token)
        });
        newer.map(|newer| (18, format!("{} had been seen before", owner(newer))))
    }

    /// I11: the look shows a holder whose session had ended.
    fn is_over(&self, story: &Story, look: &Look, seen: &Seen, found: &mut Vec<(u8, String)>) {
        for hold in seen.holders.iter().filter_map(|shown| self.by_token.get(&shown.token)) {
            // What an operator ends stays a holder until its deadline.
            let taken = story.facts.took_from(hold.client, look.called_ns);
            let told = story.clients.get(&hold.client).and_then(|client| client.ended_ns);
            let told = told.filter(|_| !taken);
            let expired = story.facts.expired_holding(hold.client, hold.token, hold.from_ns);
            if told.into_iter().chain(expired).any(|ended_ns| ended_ns < look.called_ns) {
                found.push((11, format!("{}, whose session had ended", owner(hold))));
            }
        }
    }
}

fn owner(hold: &Hold) -> String {
    format!("token {} of {}", hold.token, hold.client)
}

/// I2: one exclusive holder, or any number of shared ones.
fn unfit(seen: &Seen) -> Option<(u8, String)> {
    let alone = seen.holders.iter().any(|holder| !holder.shared);
    (alone && seen.holders.len() > 1).then(|| (2, "they do not fit together".into()))
}

/// Whether nobody is granted the lock now, whoever waits for it.
fn is_shut(seen: &Seen) -> bool {
    seen.frozen || seen.closed.is_some()
}

/// I15: the lock is free, and the first request in its queue is not granted it. Only a set, which
/// waits for another of its names, may do that, a command that left work for later ones, and a lock that is closed or frozen.
fn stuck(look: &Look, seen: &Seen, sets: Option<&Sets>) -> Option<(u8, String)> {
    let free = seen.holders.is_empty() && seen.waiting > 0;
    let by_a_set = sets.is_some_and(|sets| sets.may_have_waited(look.called_ns, seen.at_ns));
    (free && !by_a_set && !is_shut(seen))
        .then(|| (15, format!("it is free, and {} wait for it", seen.waiting)))
}

/// The sets that ask for one name: when each was asked for, and the last instant at which any set up
/// to that one may have waited.
#[derive(Default)]
struct Sets(Vec<(u64, u64)>);

impl Sets {
    fn may_have_waited(&self, from_ns: u64, until_ns: u64) -> bool {
        let asked = self.0.partition_point(|(called_ns, _)| *called_ns < until_ns);
        asked.checked_sub(1).is_some_and(|last| self.0[last].1 > from_ns)
    }
}

fn waiting_sets(story: &Story) -> BTreeMap<&str, Sets> {
    let mut sets: BTreeMap<&str, Sets> = BTreeMap::new();
    // Requests are in the order in which they were made.
    let needs_several = |one: &&Request| one.items.len() > 1 && one.any.is_none_or(|min| min > 1);
    for request in story.requests.iter().filter(needs_several) {
        for name in request.items.keys() {
            let of_name = &mut sets.entry(name).or_default().0;
            let longest = of_name.last().map_or(0, |(_, until)| *until);
            of_name.push((request.called_ns, longest.max(may_wait_until(request))));
        }
    }
    sets
}

/// The instant from which a request certainly waited no more.
fn may_wait_until(request: &Request) -> u64 {
    let over = |(told_ns, answer): &(u64, Answer)| match answer {
        Answer::Granted { .. } => Some(*told_ns),
        answer => answer.is_certainly_ungranted().then_some(*told_ns),
    };
    request.answers.iter().find_map(over).unwrap_or(u64::MAX)
}
