//! From rows to what is imported: pure, so that every case can be written down as a table.
//!
//! A lock is imported with the order it has, or its holder is not imported: then nobody who waits for
//! it is either, for the first of them would be granted what somebody else has. One who waits and cannot
//! be imported is left out by himself.
//!
//! # What is a holder
//!
//! | recipe | who holds | who waits |
//! |---|---|---|
//! | lease | the owner | nobody is in line |
//! | queue | the one cell of the main row; if it is empty, the first in the queue | the queue's cells in order, but for the holder's own |
//! | shadow | the one cell of the main row | nobody is in line: who tries, tries again at random |
//! | tokens | the one session of a token, if it beats | nobody is in line |
//! | bakery | the lowest (number, process) | the others, in that order |
//!
//! A queue whose main row is empty has a first, who alone may write itself there: nobody else is granted
//! the lock before it. The native store would grant it at once, so it comes in as the holder.
//!
//! The bakery's lowest may not be in yet, while somebody chooses: it waits until the number is drawn.
//! It is imported as the holder all the same. Nobody but the one who chooses can come before it, and
//! that one has no place yet that could be imported; if the lowest were left out, the next to ask
//! natively would be granted a lock that it may well be in. Who chooses is named in the plan.

mod bakery;
mod finding;
mod lease;
mod queue;
mod shadow;
mod strangers;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast::compat::{Writer, is_ours};
use holdfast_core::{Label, LockName, VALUE_BYTES_MAX};

use crate::layout::{Cell, LockRows, Raw, Said};
pub use finding::{Finding, Reason};
pub use strangers::{changed_by_strangers, changed_by_unregistered, marks_of};

/// The longest lease that an import takes: 366 days, milliseconds. Cassandra has TTLs of twenty years.
pub const LEASE_MAX_MS: u64 = 366 * 86_400_000;

/// What a plan is asked to be.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Only locks whose names begin with this.
    pub prefix: String,
    /// How long a session of tokens may stand without a heartbeat: the housekeeper's grace.
    pub grace: Duration,
    /// The writers of our own processes that hold natively whatever they hold in the tables: what is theirs
    /// is not imported. It would come in as somebody else's, for whom they themselves would have to wait. A process of
    /// version 0.1 has none: its rows cannot be told from those of others with its service name.
    pub registered: BTreeSet<Writer>,
}

impl Rules {
    /// Names that begin so, and nobody registered.
    pub fn new(prefix: impl Into<String>, grace: Duration) -> Self {
        Self { prefix: prefix.into(), grace, registered: BTreeSet::new() }
    }

    fn holds_natively(&self, owner: &str) -> bool {
        Writer::of(owner).is_some_and(|writer| self.registered.contains(&writer))
    }
}

/// What becomes of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockPlan {
    /// What is imported, in order: the holder first, then who waits.
    pub rows: Vec<Planned>,
    /// What is not, and why.
    pub findings: Vec<Finding>,
}

/// One hold, or one place in line, to be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The lock.
    pub lock: String,
    /// Whose it is.
    pub owner: String,
    /// What it is.
    pub kind: Kind,
    /// The most that can be left of its row when it was read, milliseconds: never less than what is.
    pub left_ms: u64,
    /// When it was written, as of [`Cell::written_us`].
    pub written_us: Option<i64>,
}

/// What is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its owner holds the lock.
    Holds {
        /// With this value; `None`: there is none.
        value: Option<Vec<u8>>,
    },
    /// Its owner is in line, behind the one before.
    Waits,
}

impl Planned {
    /// Whether our own client wrote the row.
    pub fn is_ours(&self) -> bool {
        is_ours(&self.owner)
    }
}

/// Plans one lock; `None` if its name does not begin as the rules want it.
pub fn plan(rows: LockRows, rules: &Rules) -> Option<LockPlan> {
    let LockRows { lock, said } = rows;
    let name = match name_of(&lock) {
        Ok(name) if !name.starts_with(&rules.prefix) => return None,
        Ok(name) => name,
        // Nobody can say whether it begins so.
        Err((shown, _)) if !shown.starts_with(&rules.prefix) => return None,
        Err((shown, reason)) => {
            let findings = vec![Finding { reason, lock: shown, owner: None }];
            return Some(LockPlan { rows: Vec::new(), findings });
        }
    };
    let mut draft = Draft { lock: name, plan: LockPlan::default() };
    match said {
        Said::Lease(row) => lease::plan(row, &mut draft),
        Said::Queue { main, queue } => queue::plan(&main, queue, &mut draft),
        Said::Shadow { main, shadow } => shadow::plan(&main, &shadow, &mut draft),
        Said::Tokens(sessions) => tokens::plan(&sessions, rules.grace, &mut draft),
        Said::Bakery { numbers, choosing } => bakery::plan(numbers, &choosing, &mut draft),
    }
    draft.plan.rows.retain(|row| !rules.holds_natively(&row.owner));
    Some(draft.plan)
}

/// A lock's name as the native store allows it; or as it can be shown, and why not.
fn name_of(lock: &Raw) -> Result<String, (String, Reason)> {
    let read = match lock.text() {
        Ok(text) => LockName::parse(&text).map(|_| text.into_owned()).map_err(Reason::Name),
        Err(fault) => Err(Reason::NameIsNoText(fault)),
    };
    read.map_err(|reason| (lock.to_string(), reason))
}

/// A plan that is being made.
struct Draft {
    lock: String,
    plan: LockPlan,
}

impl Draft {
    fn hold(&mut self, claim: Claim, value: Option<Vec<u8>>) {
        self.push(claim, Kind::Holds { value });
    }

    fn wait(&mut self, claim: Claim) {
        self.push(claim, Kind::Waits);
    }

    fn push(&mut self, claim: Claim, kind: Kind) {
        let Claim { owner, left_ms, written_us } = claim;
        let lock = self.lock.clone();
        self.plan.rows.push(Planned { lock, owner, kind, left_ms, written_us });
    }

    fn find(&mut self, reason: Reason, owner: Option<&Raw>) {
        let owner = owner.map(Raw::to_string);
        self.plan.findings.push(Finding { reason, lock: self.lock.clone(), owner });
    }

    /// Those behind a holder that is not imported.
    fn leave_out<'a>(&mut self, owners: impl Iterator<Item = &'a Raw>) {
        for owner in owners {
            self.find(Reason::HolderLeftOut, Some(owner));
        }
    }
}

/// Who says to have something, and for how long.
struct Claim {
    owner: String,
    left_ms: u64,
    written_us: Option<i64>,
}

impl Claim {
    /// Of a cell with a TTL of its own.
    fn of(owner: &Raw, cell: Option<&Cell>) -> Result<Self, Reason> {
        let owner = owner_of(owner)?;
        let left_ms = left_of(cell.and_then(|cell| cell.left_s))?;
        Ok(Self { owner, left_ms, written_us: cell.and_then(|cell| cell.written_us) })
    }
}

fn owner_of(owner: &Raw) -> Result<String, Reason> {
    let text = owner.text().map_err(Reason::OwnerIsNoText)?;
    if text.is_empty() {
        return Err(Reason::OwnerEmpty);
    }
    // What comes in is a session, and its label is the owner.
    Label::parse(&text).map_err(Reason::Owner)?;
    Ok(text.into_owned())
}

/// `TTL(…)` is what is left, rounded up to a whole second; whoever had the row may count on all of it. So
/// all of it is imported: a hold that ended a fraction of a second before its row would be granted to
/// somebody else while its owner may still believe in it.
fn left_of(left_s: Option<i32>) -> Result<u64, Reason> {
    match left_s {
        None => Err(Reason::NoTtl),
        Some(left_s) => match u64::try_from(left_s) {
            Ok(0) | Err(_) => Err(Reason::Over),
            Ok(left_s) => within_a_year(left_s * 1_000),
        },
    }
}

fn within_a_year(left_ms: u64) -> Result<u64, Reason> {
    if left_ms > LEASE_MAX_MS { Err(Reason::LeaseTooLong { left_ms }) } else { Ok(left_ms) }
}

/// The value that a holder left, if an import can take it.
fn value_of(value: Option<Raw>) -> Result<Option<Vec<u8>>, Reason> {
    match value.and_then(Raw::into_bytes) {
        Some(bytes) if bytes.len() > VALUE_BYTES_MAX => {
            Err(Reason::ValueTooLong { len: bytes.len() })
        }
        value => Ok(value),
    }
}
