//! I23, I18, I14, I6, I13, I31: what a watch reports (DESIGN §6: the state, then every change with
//! its index, no gap). Between two breaks that it reports:
//!
//! - its first state contains all that was certainly held before the watch was asked for (I18);
//! - its changes come in the order of the log, each once, and agree with what it reported before: a
//!   request that is granted a lock did not hold it and is compatible with its holders, a request
//!   that loses a lock held it, and the number of waiters changes by those who came and left (I23);
//! - no grant that a client received is missing between two that the watch reports, and none is
//!   reported as another one (I23); what was granted together is reported under one index (I14);
//! - it reports the end of no hold of which the client is still certain (I6, I13).
//!
//! In the end, when no fault is active and no client asks for a lock any more, it shows what the
//! last look at that lock showed (I23), or at least the state anew (I31).

mod ending;
mod epoch;

use std::collections::BTreeMap;

use super::story::{Hold, Story};
use super::{Options, Tally, Violation, at, violation};
use crate::history::{ClientId, News};
use epoch::Epoch;

/// One watch, with all its reports.
pub(super) struct Watched {
    pub(super) client: ClientId,
    pub(super) prefix: String,
    pub(super) begun_ns: u64,
    pub(super) told: Vec<(u64, News)>,
    /// When its client stopped it; `None` if it failed, or the client was gone.
    pub(super) stopped_ns: Option<u64>,
}

/// What is known of the holds of one name, by their tokens.
type Holds<'a> = BTreeMap<&'a str, BTreeMap<u64, &'a Hold>>;

pub(super) fn check(
    story: &Story,
    options: Options,
    tally: &mut Tally,
    violations: &mut Vec<Violation>,
) {
    let by_name = story.holds_by_name().into_iter();
    let known: Holds<'_> = by_name
        .map(|(name, holds)| (name, holds.into_iter().map(|hold| (hold.token, hold)).collect()))
        .collect();
    for watched in &story.watches {
        let mut found = Vec::new();
        let last = judge(watched, &known, tally, &mut found);
        ending::check(story, options, watched, &last, &mut found);
        let Watched { client, prefix, begun_ns, .. } = watched;
        violations.extend(found.into_iter().map(|(invariant, how)| {
            let whose = format!("the watch of {prefix}* by {client} from {}", at(*begun_ns));
            violation(invariant, format!("{whose}: {how}"))
        }));
    }
}

/// Goes through all reports; returns the last epoch.
fn judge<'a>(
    watched: &'a Watched,
    known: &'a Holds<'a>,
    tally: &mut Tally,
    found: &mut Vec<(u8, String)>,
) -> Epoch<'a> {
    let mut epoch = Epoch::begin(&watched.prefix, known, watched.begun_ns);
    for (at_ns, news) in &watched.told {
        match news {
            News::Restarted => {
                epoch.ends(found);
                epoch = Epoch::begin(&watched.prefix, known, *at_ns);
                tally.watches_begun_anew += 1;
            }
            news => epoch.told(*at_ns, news, found),
        }
        tally.watch_news += 1;
    }
    epoch.ends(found);
    epoch
}
