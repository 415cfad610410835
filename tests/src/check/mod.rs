//! The judge of histories, whatever produced them.
//!
//! [`check`] reads what the clients of a run wrote and names every invariant of DESIGN §12 that the run certainly broke. It never guesses:
//! a call of unknown outcome may or may not have taken effect, an interval of belief is no larger than what the records prove, and where
//! the order of two things is not certain, any order is allowed. So a violation is a bug, and a run without one proves as much as its
//! [`Tally`] counts.
//!
//! | module | proves |
//! |---|---|
//! | [`overlap`](self) | I24: no two safe holds of a name conflict, and no older token is safe after a newer one |
//! | `permits` | I2: no more permits are safe together than the limit |
//! | `bounds` | I38, I31: no hold ends before its longest time, nothing is granted before its least time or while it is frozen |
//! | `fences` | I1: a resource that refuses older tokens sees no interleaved writes of two holders, and refuses no safe holder |
//! | `tokens` | I3: tokens never repeat, and rise from a grant to every request made after it was seen |
//! | `order` | I9: first in, first out among those with the same head start, and no request barges, whatever it asks for |
//! | `grants` | I14, I23: a set is granted whole, an `any` gets what it asked for |
//! | `answers` | I10, I12, I23, I5: answers agree with each other and with the request |
//! | `holds` | I6, I13, I19: a hold ends by its owner or its lease and by nothing else |
//! | `rights` | I6: a client believes in a hold only with an acknowledgement in time, and the store expires no session before that ends |
//! | `expiry` | I6, I7: a lease ends neither before the safe deadline nor later than its bound |
//! | `replicas` | I8, I16: nodes at one index are in one state, and stamps never go back |
//! | `survival` | I4, I19: whatever was acknowledged is in every later state, as acknowledged |
//! | `values` | I19, I18, I13: a value is the one that the last holder left, and is suspect when it has to be |
//! | `imports` | I25: an imported row exists once, until its lease ends, and for its owner |
//! | `numbers` | I37: no number of a sequence is given out twice, and they rise |
//! | `reads` | I18, I15, I11, I2: what a look may show |
//! | `watches` | I23, I18, I14, I6, I13, I31: a watch reports every change once and in order, or that it broke |
//! | `ending` | I31, I32: every call ends, no client is forgotten, keepalives are answered |

mod answers;
mod bounds;
mod ending;
mod expiry;
mod facts;
mod fences;
mod grants;
mod holds;
mod imports;
mod numbers;
mod order;
mod orders;
mod overlap;
mod permits;
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
    /// Its number in DESIGN §12, or in `docs/invariants.md`.
    pub invariant: u8,
    /// Client, names and times: enough to find the records.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "I{}: {}", self.invariant, self.message)
    }
}

/// How much a run gave the judge to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests asked.
    pub requests: usize,
    /// Requests that were granted.
    pub grants: usize,
    /// Requests that were acknowledged as waiting before any other answer.
    pub waits: usize,
    /// Holds of one name that their client certainly believed safe for some interval.
    pub safe_holds: usize,
    /// Requests of unknown outcome.
    pub unknown: usize,
    /// States received after a resume.
    pub states: usize,
    /// Imported rows, as far as an answer reported them.
    pub imported: usize,
    /// Claims of imported rows that were granted.
    pub claimed: usize,
    /// Looks that ended.
    pub reads: usize,
    /// Writes that a resource refused.
    pub fenced: usize,
    /// Grants of which at least one name is shared.
    pub shared: usize,
    /// Safe holds that began beside another safe hold of the same name.
    pub together: usize,
    /// Safe holds of permits that began beside others of the same name.
    pub permits_beside: usize,
    /// Requests with a head start that were granted before one that waited already.
    pub overtakes: usize,
    /// Answers with numbers of a sequence.
    pub numbers: usize,
    /// Holds that the store ended because they had lasted their longest.
    pub too_long: usize,
    /// Looks that showed a closed lock, or a frozen one.
    pub looks_shut: usize,
    /// Safe holds of permits under a limit that an operator had set.
    pub under_kept_limits: usize,
    /// Grants of all of several names.
    pub sets: usize,
    /// Grants of those of several names that were free.
    pub anys: usize,
    /// Names whose release was acknowledged while other names of their grant stayed held.
    pub released_in_part: usize,
    /// Changes of values that were acknowledged.
    pub writes: usize,
    /// Values for which only one possibility was left, seen with a grant or by a look during one.
    pub values_seen: usize,
    /// Values that came with a grant and were suspect.
    pub suspects: usize,
    /// Writes that a resource outside the store accepted.
    pub accepted: usize,
    /// Acknowledgements of keepalives, each of which extended a client's right to believe.
    pub acknowledged: usize,
    /// Sessions that the store ended because their lease had run out, as observed.
    pub expiries: usize,
    /// Killed clients, whose lease had to end within its bound.
    pub owed_expiries: usize,
    /// Reports of watches: locks, changes, breaks.
    pub watch_news: usize,
    /// Times that a watch reported a break and sent the state anew.
    pub watches_begun_anew: usize,
    /// Times that two nodes were observed at the same index.
    pub compared: usize,
}

/// What the judge found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Everything that is certainly wrong.
    pub violations: Vec<Violation>,
    /// How much was looked at.
    pub tally: Tally,
}

impl Report {
    /// The numbers of the broken invariants, each once, in order.
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

/// The tolerances of the judge.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How far a call may overrun its own limit. A loaded machine needs some grace.
    pub grace: Duration,
    /// After so long without faults everything has to make progress again: there is a leader, and it exchanges messages with every member.
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
    permits::check(&story, &mut tally, &mut violations);
    bounds::check(&story, options, &mut tally, &mut violations);
    fences::check(&story, &mut violations);
    tokens::check(&story, &mut violations);
    order::check(&story, &mut tally, &mut violations);
    grants::check(&story, &mut violations);
    answers::check(&story, &mut violations);
    holds::check(&story, &mut violations);
    rights::check(&story, &mut tally, &mut violations);
    expiry::check(&story, options, &mut tally, &mut violations);
    replicas::check(&story, &mut tally, &mut violations);
    survival::check(&story, &mut violations);
    values::check(&story, &mut tally, &mut violations);
    imports::check(&story, &mut tally, &mut violations);
    numbers::check(records, &mut tally, &mut violations);
    reads::check(&story, options, &mut tally, &mut violations);
    watches::check(&story, options, &mut tally, &mut violations);
    ending::check(&story, options, &mut violations);
    Report { violations, tally }
}

/// A violation; the name is short because every check uses it.
fn violation(invariant: u8, message: String) -> Violation {
    Violation { invariant, message }
}

/// An instant in readable form: seconds with microseconds.
fn at(ns: u64) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns % 1_000_000_000 / 1_000)
}
