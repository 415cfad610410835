//! I6, I13, I19: a hold ends by its owner or by its lease, never before its safe deadline, and by
//! nothing else.

use super::story::{Hold, Over, ReleaseTold, Story};
use super::{Violation, at, violation};
use crate::history::LostCause;

pub(super) fn check(story: &Story, violations: &mut Vec<Violation>) {
    for hold in &story.holds {
        let found =
            told_over(story, hold).or_else(|| released_by_nobody(hold)).or_else(|| not_held(hold));
        if let Some((invariant, how)) = found {
            let message = format!("{}: token {} of {} {how}", hold.name, hold.token, hold.client);
            violations.push(violation(invariant, message));
        }
    }
}

/// The store reports the end of a hold before the client's safe deadline has passed.
fn told_over(story: &Story, hold: &Hold) -> Option<(u8, String)> {
    let (told_ns, Over::Told(cause)) = hold.over? else { return None };
    let until_ns = hold.until_ns.filter(|until| *until > told_ns)?;
    let closed = story.clients.get(&hold.client).is_some_and(|client| client.closed_ns.is_some());
    let (invariant, words) = match cause {
        LostCause::Expired => (6, "was expired"),
        LostCause::Gone => (19, "was forgotten"),
        LostCause::Closed if !closed => (13, "was closed by nobody"),
        LostCause::TakenAway if !story.facts.took_from(hold.client, told_ns) => {
            (13, "was taken away by nobody")
        }
        // A client may give up early by its own deadline or its own close, or because it is told to (I35). One that lasted
        // its longest is judged with the bounds of holds.
        LostCause::Deadline | LostCause::Closed | LostCause::TakenAway | LostCause::TooLong => {
            return None;
        }
    };
    Some((invariant, format!("{words} at {}, safe until {}", at(told_ns), at(until_ns))))
}

/// The store reports a release that the client never asked for (I13).
fn released_by_nobody(hold: &Hold) -> Option<(u8, String)> {
    let (told_ns, ReleaseTold::Released) = hold.release_told? else { return None };
    let given_up = matches!(hold.over, Some((at_ns, Over::GivenUp)) if at_ns <= told_ns);
    // A client that looked too seldom may have released what is drawn here as lapsed earlier.
    (!given_up && hold.releases == 0)
        .then(|| (13, format!("was released at {}, not by its holder", at(told_ns))))
}

/// The store does not know the hold at its only release, while it was safe (I19).
fn not_held(hold: &Hold) -> Option<(u8, String)> {
    let (told_ns, ReleaseTold::NotHolder) = hold.release_told? else { return None };
    let safe = hold.until_ns.is_some_and(|until| until > told_ns);
    (hold.releases == 1 && safe)
        .then(|| (19, format!("was unknown at its release, told at {}", at(told_ns))))
}
