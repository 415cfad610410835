//! I18, I11: a linearizable look shows the holder that certainly held all the while, no grant
//! older than one that had been seen, and nothing of a session that had ended.

use std::collections::BTreeMap;

use super::story::{Hold, Look, Seen, Story};
use super::{Violation, at, violation};

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in &story.holds {
        by_name.entry(story.name_of(hold)).or_default().push(hold);
    }
    for look in &story.reads {
        let Some(seen) = look.done else { continue };
        for hold in by_name.get(look.name.as_str()).into_iter().flatten() {
            if let Some((invariant, how)) = contradicts(story, look, seen, hold) {
                let message = format!(
                    "{}: a look from {} to {} by {} showed {:?}; {how}",
                    look.name,
                    at(look.called_ns),
                    at(seen.at_ns),
                    look.client,
                    seen.token,
                );
                violations.push(violation(invariant, message));
            }
        }
    }
}

fn contradicts(story: &Story, look: &Look, seen: Seen, hold: &Hold) -> Option<(u8, String)> {
    let owner = format!("token {} of {}", hold.token, hold.client);
    let all_the_while = hold.from_ns <= look.called_ns && hold.safe_end_ns() >= seen.at_ns;
    if all_the_while && seen.token != Some(hold.token) {
        return Some((18, format!("{owner} was safe all the while")));
    }
    if hold.from_ns < look.called_ns && seen.token.is_some_and(|token| token < hold.token) {
        return Some((18, format!("{owner} had been seen before")));
    }
    let ended = story.clients.get(&hold.client).and_then(|client| client.ended_ns);
    if seen.token == Some(hold.token) && ended.is_some_and(|ended| ended < look.called_ns) {
        return Some((11, format!("{owner}, whose session had ended")));
    }
    None
}
