//! What a watch shows in the end, when no fault is active and no client asks for anything any more.

use std::collections::BTreeMap;

use super::Watched;
use super::epoch::Epoch;
use crate::check::story::{Look, ReleaseTold, Request, Seen, Story};
use crate::check::{Options, at};
use crate::history::{Holding, Shown};

pub(super) fn check(
    story: &Story,
    options: Options,
    watched: &Watched,
    last: &Epoch<'_>,
    found: &mut Vec<(u8, String)>,
) {
    let settle_ns = u64::try_from(options.settle.as_nanos()).unwrap_or(u64::MAX);
    let Some(stopped_ns) = watched.stopped_ns else { return };
    let quiet_ns = stopped_ns.saturating_sub(settle_ns);
    if !story.facts.healthy_between(quiet_ns, stopped_ns) {
        return;
    }
    if !last.synced {
        if watched.begun_ns < quiet_ns {
            found.push((31, format!("nothing is told at {}, long after healing", at(stopped_ns))));
        }
        // What came before `Synced` is not yet the whole state.
        return;
    }
    for (name, (look, seen)) in last_looks(story, &watched.prefix) {
        if seen.at_ns > quiet_ns || !is_last_word(story, look) {
            continue;
        }
        let lock = last.locks.get(name).cloned().unwrap_or_default();
        let told = (tokens(&lock.holders), lock.waiting, lock.value);
        let true_one: (_, _, Option<&Shown>) =
            (tokens(&seen.holders), seen.waiting, seen.value.as_ref());
        if told != true_one {
            let how = format!(
                "in the end {name} is told to be {told:?}, and a look at {} showed {true_one:?}",
                at(seen.at_ns)
            );
            found.push((23, how));
        }
    }
}

fn tokens(holders: &[Holding]) -> Vec<u64> {
    let mut tokens: Vec<u64> = holders.iter().map(|holder| holder.token).collect();
    tokens.sort_unstable();
    tokens
}

/// The last look at each name below a prefix that ended.
fn last_looks<'a>(story: &'a Story, prefix: &str) -> BTreeMap<&'a str, (&'a Look, &'a Seen)> {
    let looks = story.reads.iter().filter(|look| look.name.starts_with(prefix));
    looks.filter_map(|look| Some((look.name.as_str(), (look, look.done.as_ref()?)))).collect()
}

/// Whether nothing can have changed the lock since this look: the last client that asked for it
/// held it exclusively, so that all earlier requests were gone, and had released it before the
/// look.
fn is_last_word(story: &Story, look: &Look) -> bool {
    let asked = story.requests.iter().rev().find(|request| request.items.contains_key(&look.name));
    let given_back = |request: &Request| {
        let hold = story.hold(request.client, request.token()?, &look.name)?;
        let (told_ns, told) = hold.release_told?;
        Some(!hold.shared && told == ReleaseTold::Released && told_ns <= look.called_ns)
    };
    asked.is_some_and(|request| given_back(request) == Some(true))
}
