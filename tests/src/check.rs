//! The one judge of histories, whoever made them.
//!
//! [`check`] reads what the clients of a run wrote and names every invariant of DESIGN §12 that
//! the run is certain to have broken. It never guesses: a call of unknown outcome may or may not
//! have taken effect, an interval of belief is drawn no larger than what was written proves, and
//! where the order of two things is not certain, any order is allowed. So a violation is a bug,
//! and a run without one proves as much as its [`Tally`] says it looked at.
//!
//! | module | proves |
//! |---|---|
//! | [`overlap`](self) | I24: no two safe holds of a name that do not fit, no older token after a newer one |
//! | `fences` | I1: a resource that refuses older tokens sees no two holders' writes in turns, and refuses nobody who is safe |
//! | `tokens` | I3: tokens never repeat, and rise over all that happened one after the other |
//! | `order` | I9: first in, first out, and nobody barges, whatever is asked for |
//! | `grants` | I14, I23: a set is granted whole, an `any` what it asked for |
//! | `answers` | I10, I12, I23, I5: answers fit each other and what was asked |
//! | `holds` | I6, I13, I19: a hold ends by its owner or its lease and by nothing else |
//! | `rights` | I6: who believes in a hold was told so in time, and whom the store told so, it does not expire |
//! | `expiry` | I6, I7: a lease ends neither before the safe deadline nor later than its bound |
//! | `replicas` | I8, I16: nodes at one index are in one state, and stamps never go back |
//! | `survival` | I4, I19: what was acknowledged is in every later state, as it was told |
//! | `values` | I19, I18, I13: a value is the one that was left, and doubted when it has to be |
//! | `imports` | I25: what was imported is there once, for as long as it was to be, and for its owner |
//! | `reads` | I18, I15, I11, I2: what a look shows |
//! | `watches` | I23, I18, I14, I6, I13, I31: a watch tells every change once and in order, or that it broke |
//! | `ending` | I31, I32: every call ends, nobody is forgotten, keepalives are answered |

mod answers;
mod ending;
mod expiry;
mod facts;
mod fences;
mod grants;
mod holds;
mod imports;
mod order;
mod overlap;
mod reads;
mod replicas;
mod rights;
mod story;
mod survival;
mod tell;
mod tokens;
mod values;
mod watches;

use std::fmt;
use std::time::Duration;

use crate::history::Record;
use story::Story;

/// An invariant that a run broke, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its number in DESIGN §12.
    pub invariant: u8,
    /// Who, what, when: enough to find the records.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{}: {}", self.invariant, self.message)
    }
}

/// How much a run gave the checker to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests asked.
    pub requests: usize,
    /// Requests that were granted.
    pub grants: usize,
    /// Requests that were acknowledged as waiting before anything else became of them.
    pub waits: usize,
    /// Holds of one name with an interval in which they were certainly believed safe.
    pub safe_holds: usize,
    /// Requests of unknown outcome.
    pub unknown: usize,
    /// States after a resume.
    pub states: usize,
    /// Rows that were imported, as far as somebody was told.
    pub imported: usize,
    /// Claims of them that were granted.
    pub claimed: usize,
    /// Looks that ended.
    pub reads: usize,
    /// Writes that a resource refused.
    pub fenced: usize,
    /// Grants of which at least one name is shared.
    pub shared: usize,
    /// Safe holds that began beside another safe hold of the same name.
    pub together: usize,
    /// Grants of all of several names.
    pub sets: usize,
    /// Grants of whichever names were free.
    pub anys: usize,
    /// Names given back, acknowledged, while others of their grant stayed.
    pub released_in_part: usize,
    /// Changes of values that were acknowledged.
    pub writes: usize,
    /// Values that came with a grant, or were looked at during one, and could be only one.
    pub values_seen: usize,
    /// Values that came with a grant and were suspect.
    pub suspects: usize,
    /// Writes that a resource outside of the store accepted.
    pub accepted: usize,
    /// Acknowledgements of keepalives, of which each gave a client the right to believe.
    pub acknowledged: usize,
    /// Sessions that the store was seen to end because their lease had run out.
    pub expiries: usize,
    /// Clients whose lease had to end within its bound, because they were killed.
    pub owed_expiries: usize,
    /// What watches told: locks, changes, breaks.
    pub watch_news: usize,
    /// Times that a watch said that it broke, and told the state anew.
    pub watches_begun_anew: usize,
    /// Times that two nodes were seen at the same index.
    pub compared: usize,
}

/// What the checker found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Everything that is certainly wrong.
    pub violations: Vec<Violation>,
    /// What was looked at.
    pub tally: Tally,
}

impl Report {
    /// The numbers of the invariants broken, each once, in order.
    pub fn broken(&self) -> Vec<u8> {
        let mut numbers: Vec<u8> =
            self.violations.iter().map(|violation| violation.invariant).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} violations; looked at {:?}", self.violations.len(), self.tally)?;
        for violation in self.violations.iter().take(20) {
            writeln!(f, "  {violation}")?;
        }
        Ok(())
    }
}

/// What the judge allows.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How much later than its own limit a call may end. A loaded machine needs some.
    pub grace: Duration,
    /// After so long without faults everything has to move again: there is a leader, it has heard
    /// from everybody, and everybody from it.
    pub settle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // I31: three election time-outs, of at most two seconds by default.
        Self { grace: Duration::from_secs(10), settle: Duration::from_secs(6) }
    }
}

/// Judges a whole history, merged and in order ([`crate::history::merge`]).
pub fn check(records: &[Record], options: Options) -> Report {
    let story = Story::tell(records);
    let mut tally = story.tally();
    let mut violations = story.contradictions.clone();
    overlap::check(&story, &mut tally, &mut violations);
    fences::check(&story, &mut violations);
    tokens::check(&story, &mut violations);
    order::check(&story, &mut violations);
    grants::check(&story, &mut violations);
    answers::check(&story, &mut violations);
    holds::check(&story, &mut violations);
    rights::check(&story, &mut tally, &mut violations);
    expiry::check(&story, options, &mut tally, &mut violations);
    replicas::check(&story, &mut tally, &mut violations);
    survival::check(&story, &mut violations);
    values::check(&story, &mut tally, &mut violations);
    imports::check(&story, &mut tally, &mut violations);
    reads::check(&story, &mut violations);
    watches::check(&story, options, &mut tally, &mut violations);
    ending::check(&story, options, &mut violations);
    Report { violations, tally }
}

/// A violation; short, because every check makes some.
fn violation(invariant: u8, message: String) -> Violation {
    Violation { invariant, message }
}

/// An instant as people read it: seconds with microseconds.
fn at(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000)
}
