//! I18, I11, I2: a linearizable look shows every hold that certainly held all the while, none older
//! than one that had been seen and does not fit beside it, nothing of a session that had ended, and
//! holders that fit together.

use super::story::{Hold, Look, Seen, Story};
use super::{Violation, at, violation};
use crate::history::Holding;

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let by_name = story.holds_by_name();
    for look in &story.reads {
        let Some(seen) = &look.done else { continue };
        let holds = by_name.get(look.name.as_str()).map_or(&[][..], Vec::as_slice);
        let contradicted = holds.iter().filter_map(|hold| contradicts(story, look, seen, hold));
        for (invariant, how) in contradicted.chain(unfit(seen)) {
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

fn contradicts(story: &Story, look: &Look, seen: &Seen, hold: &Hold) -> Option<(u8, String)> {
    let owner = format!("token {} of {}", hold.token, hold.client);
    let shown = Holding { token: hold.token, shared: hold.shared };
    let all_the_while = hold.from_ns <= look.called_ns && hold.safe_end_ns() >= seen.at_ns;
    if all_the_while && !seen.holders.contains(&shown) {
        return Some((18, format!("{owner} was safe all the while")));
    }
    let older = |other: &Holding| other.token < hold.token && !(other.shared && hold.shared);
    if hold.from_ns < look.called_ns && seen.holders.iter().any(older) {
        return Some((18, format!("{owner} had been seen before")));
    }
    let ended = story.clients.get(&hold.client).and_then(|client| client.ended_ns);
    if seen.holders.contains(&shown) && ended.is_some_and(|ended| ended < look.called_ns) {
        return Some((11, format!("{owner}, whose session had ended")));
    }
    None
}

/// I2: one alone, or any number that share.
fn unfit(seen: &Seen) -> Option<(u8, String)> {
    let alone = seen.holders.iter().any(|holder| !holder.shared);
    (alone && seen.holders.len() > 1).then(|| (2, "they do not fit together".into()))
}
