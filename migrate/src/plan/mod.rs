//! Turns rows into what is imported. The module is pure, so that tests can list every case in
//! tables.
//!
//! A lock is imported in its order. If its holder cannot be imported, its waiters are not either:
//! the native store would grant the first of them a lock that another client has. For the same
//! reason nothing of a queue is imported whose main row is empty and whose first place cannot be
//! imported. Any other waiter that cannot be imported is left out alone.
//!
//! # What is a holder
//!
//! | recipe | holder | waiters |
//! |---|---|---|
//! | lease | the owner | none: the recipe has no line |
//! | queue | the one cell of the main row; if it is empty, the first in the queue | the queue's cells in order, without the holder's own |
//! | shadow | the one cell of the main row | none: threads that try retry at random |
//! | tokens | the one session of a token, if it has a heartbeat | none: the recipe has no line |
//! | bakery | the lowest (number, process) | the others, in that order |
//!
//! If a queue's main row is empty, only the first in the queue may write itself there, and no other
//! client gets the lock before it. The native store would grant it the lock at once, so it is
//! imported as the holder.
//!
//! The process with the bakery's lowest number may not have entered yet: while another process is
//! choosing, it waits until that number is drawn. It is imported as the holder all the same. Only
//! the choosing process can come before it, and that one has no place yet that could be imported.
//! If the lowest were left out, the next native request would be granted a lock that its process
//! may have. The plan names the choosing process.

mod finding;
mod foreign_writers;
mod recipes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast::ImportedState;
use holdfast_mutants::mutant;
use holdfast_recipes::{Writer, is_ours};
use holdfast_types::{Label, LockName, VALUE_BYTES_MAX};

use crate::layout::{Cell, LockRows, Raw, Said};
pub use finding::{Finding, Reason};
pub use foreign_writers::{cell_marks, changed_by_foreign_writer, changed_by_unregistered};

/// The longest lease that an import accepts: 366 days, milliseconds. Cassandra allows TTLs of
/// twenty years.
pub const LEASE_MAX_MS: u64 = 366 * 86_400_000;

/// The rules of a plan.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Only locks whose names begin with this.
    pub prefix: String,
    /// How long a session of tokens stands without a heartbeat: the housekeeper's grace.
    pub grace: Duration,
    /// The writers of our own processes that hold natively whatever they hold in the tables. Their
    /// rows are not imported, because the import would have another owner, and they would have to
    /// wait for it. A process of version 0.1 has no writer: its rows look like those of others with
    /// its service name.
    pub registered: BTreeSet<Writer>,
}

impl Rules {
    /// Rules for names with this prefix, without registered writers.
    pub fn new(prefix: impl Into<String>, grace: Duration) -> Self {
        Self { prefix: prefix.into(), grace, registered: BTreeSet::new() }
    }

    fn holds_natively(&self, owner: &str) -> bool {
        let hidden = mutant!(UnregisteredIsHidden) && !self.registered.is_empty();
        Writer::of(owner).is_some_and(|writer| self.registered.contains(&writer) || hidden)
    }
}

/// The plan of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockPlan {
    /// What is imported, in order: the holder first, then the waiters.
    pub rows: Vec<Planned>,
    /// What is not imported, and why.
    pub findings: Vec<Finding>,
}

/// One hold, or one place in line, to be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The lock.
    pub lock: String,
    /// The owner's id.
    pub owner: String,
    /// A hold, or a place behind the row before.
    pub has: ImportedState,
    /// The most that the row may have had left when it was read, milliseconds; never less than it
    /// had.
    pub left_ms: u64,
    /// When the row was written; see [`Cell::written_us`].
    pub written_us: Option<i64>,
}

impl Planned {
    /// Whether our own client library wrote the row.
    pub fn is_ours(&self) -> bool {
        is_ours(&self.owner)
    }
}

/// Plans one lock; `None` if its name does not have the rules' prefix.
pub fn plan(rows: LockRows, rules: &Rules) -> Option<LockPlan> {
    let LockRows { lock, said } = rows;
    let name = match name_of(&lock) {
        Ok(name) if !name.starts_with(&rules.prefix) => return None,
        Ok(name) => name,
        // A name that is no text is compared as it is shown.
        Err((shown, _)) if !shown.starts_with(&rules.prefix) => return None,
        Err((shown, reason)) => {
            let findings = vec![Finding { reason, lock: shown, owner: None }];
            return Some(LockPlan { rows: Vec::new(), findings });
        }
    };
    let mut draft = Draft { lock: name, plan: LockPlan::default() };
    match said {
        Said::Lease(row) => recipes::lease(row, &mut draft),
        Said::Queue { main, queue } => recipes::queue(&main, queue, &mut draft),
        Said::Shadow { main, shadow } => recipes::shadow(&main, &shadow, &mut draft),
        Said::Tokens(sessions) => recipes::tokens(&sessions, rules.grace, &mut draft),
        Said::Bakery { numbers, choosing } => recipes::bakery(numbers, &choosing, &mut draft),
    }
    draft.plan.rows.retain(|row| !rules.holds_natively(&row.owner));
    Some(draft.plan)
}

/// The lock's name if the native store allows it; otherwise a printable form and the reason.
fn name_of(lock: &Raw) -> Result<String, (String, Reason)> {
    let read = match lock.text() {
        Ok(text) => LockName::parse(&text).map(|_| text.into_owned()).map_err(Reason::Name),
        Err(fault) => Err(Reason::NameIsNoText(fault)),
    };
    read.map_err(|reason| (lock.to_string(), reason))
}

/// A plan under construction.
struct Draft {
    lock: String,
    plan: LockPlan,
}

impl Draft {
    /// Reads the row of an owner, from a cell that has a TTL of its own.
    fn read(&self, owner: &Raw, cell: Option<&Cell>) -> Result<Planned, Reason> {
        let owner = owner_of(owner)?;
        let left_ms = left_of(cell.and_then(|cell| cell.left_s))?;
        Ok(self.row(owner, left_ms, cell.and_then(|cell| cell.written_us)))
    }

    /// A row of this lock: a place, as long as its owner is not known to hold.
    fn row(&self, owner: String, left_ms: u64, written_us: Option<i64>) -> Planned {
        let (lock, has) = (self.lock.clone(), ImportedState::Place);
        Planned { lock, owner, has, left_ms, written_us }
    }

    fn hold(&mut self, row: Planned, value: Option<Vec<u8>>) {
        self.plan.rows.push(Planned { has: ImportedState::Hold { value }, ..row });
    }

    fn wait(&mut self, row: Planned) {
        self.plan.rows.push(row);
    }

    fn find(&mut self, reason: Reason, owner: Option<&Raw>) {
        let owner = owner.map(Raw::to_string);
        self.plan.findings.push(Finding { reason, lock: self.lock.clone(), owner });
    }

    /// Leaves out the waiters of a holder that is not imported.
    fn leave_out<'a>(&mut self, owners: impl Iterator<Item = &'a Raw>) {
        for owner in owners {
            self.find(Reason::HolderLeftOut, Some(owner));
        }
    }
}

fn owner_of(owner: &Raw) -> Result<String, Reason> {
    let text = owner.text().map_err(Reason::OwnerIsNoText)?;
    if text.is_empty() {
        return Err(Reason::OwnerEmpty);
    }
    // An imported owner becomes the label of a session.
    Label::parse(&text).map_err(Reason::Owner)?;
    Ok(text.into_owned())
}

/// The time that `TTL(…)` leaves: it is rounded up to a whole second, and the owner may rely on all
/// of it. So all of it is imported: if the hold ended a fraction of a second before its row, the
/// lock would be granted to another client while the owner still relies on it.
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

/// The holder's value, if an import accepts it.
fn value_of(value: Option<Raw>) -> Result<Option<Vec<u8>>, Reason> {
    match value.and_then(Raw::into_bytes) {
        Some(bytes) if bytes.len() > VALUE_BYTES_MAX => {
            Err(Reason::ValueTooLong { len: bytes.len() })
        }
        value => Ok(value),
    }
}
