//! Moves locks on Cassandra to the store of this crate, process by process and while all of them work, and back.
//!
//! A [`Locker`] combines a recipe with a native client and locks in one of four modes:
//!
//! | mode | takes | token | excludes |
//! |---|---|---|---|
//! | [`LockerMode::Cassandra`] | the recipe's lock | none | old clients, `cassandra`, `both` |
//! | [`LockerMode::Both`] | the recipe's lock, then the native one; gives them back in reverse order | the native one | all others |
//! | [`LockerMode::Native`] | the native lock | the native one | `native`, `both`, `fallback` |
//! | [`LockerMode::Fallback`] | the native lock while the native store serves the scope, else one in Cassandra | of either | `native`, `both`, `fallback` |
//!
//! Old clients know only the recipe's tables; only `cassandra` and `both` exclude them. A process in `cassandra` and one in `native` do not
//! exclude each other. So the two must never be active at once, and every process passes through `both`.
//!
//! # Rows in Cassandra
//!
//! `locker_modes(scope, process, mode, seq, stage static, turn static, recipe static, cluster static)` has one
//! partition for each *scope*, the prefix of the names that its processes lock (with an asterisk appended in the
//! table). Every [`Locker`] has a row there with its mode and a TTL, and renews it. The scope has a *stage*, which an
//! operator moves ([`ScopeModes::advance`], [`ScopeModes::go_back`]):
//!
//! | stage | a process may enter, or change its row to | moves on, or back, when no row has |
//! |---|---|---|
//! | [`Stage::Cassandra`], the first | `cassandra`, `both` | `cassandra` (on) |
//! | [`Stage::Both`] | `both` | `cassandra` (on), `native` or `fallback` (back) |
//! | [`Stage::Native`] | `both`, `native` | `both` (on), `native` or `fallback` (back) |
//! | [`Stage::Fallback`] | `native`, `fallback` | `fallback` (back) |
//!
//! # Why no process is in `cassandra` while another one is in `native`
//!
//! A row of `cassandra`, or of `native`, *covers* guards of that mode and of `both`; a row of `both` covers those of
//! `both` only; a row of `fallback` covers those of `fallback`, `native` and `both`.
//!
//! 1. **A guard is safe only under a row that covers it.** A process requests a lock in a mode only while it has such a
//!    row. A guard's safe deadline is never later than the row's: the start of the last write of the row that was
//!    answered as applied, plus its TTL, less the largest skew of the nodes' clocks, one second and a hundredth, on the
//!    process' own clock, which counts suspended time. That is before any node considers the row expired, as with a
//!    recipe's own rows: the protocol compares no clocks of two machines, and assumes of the nodes' clocks what the
//!    recipes assume. So the TTL never ends a hold; it shows other processes that one has ended. A process that was
//!    paused for longer wakes with lost guards and has to enter again, as the stage then allows, even if it still finds
//!    its row: by the clock of another node the row may have expired, and the scope may have moved on. A renewal does
//!    not compare the stage, so it may only keep certain what has been certain since the process entered.
//! 2. **A process weakens its row only when nothing needs it any more.** A process that leaves `cassandra`, or
//!    `native`, requests locks in `both` from then on, and changes its row only once the last guard and the last
//!    attempt of the old mode have ended. While a change has no answer, the process does what both sides of the change
//!    allow: it locks in `both`.
//! 3. **Every write of a row is an LWT on the row as it was last seen**, by its `seq`, which is never used twice. A
//!    write that a coordinator applies late finds another `seq`, so it cannot weaken a row that was strengthened since.
//!    A write that enters the scope or changes the mode also compares the stage.
//! 4. **A stage changes by an LWT on stage and `turn`**, which counts the changes, as they were in the same SERIAL read
//!    that found no row in the way. Take the step from `both` to `native`: since the scope came to `both`, no process
//!    entered `cassandra` or changed its row to it, by 3; the read found no such row; and the LWT applies only if the
//!    scope was at `both` all the time between. So there is no such row, and none appears while the stage is `native`.
//!    The way back is the same with the two names exchanged. (The step from `cassandra` to `both` looks for rows of
//!    `cassandra` only to warn the operator early: the next step finds a row that slips in.) The same holds for the
//!    first step back, from `fallback` to `native`: a process that enters `fallback` after the look stays in it while
//!    the scope is at `native`, so the next step back is refused as long as a row has `fallback`.
//!
//! By 4 rows of `cassandra` never exist beside rows of `native` or `fallback`, and by 1 neither do safe guards of these
//! modes.
//!
//! # What a scope is tied to
//!
//! Two [`Locker`]s of one scope on two recipes, or on tables of other names, do not exclude each other in Cassandra; on
//! two clusters of the native store they do not exclude each other natively. So the partition of the scope records
//! which recipe, with its tables, and which cluster its processes lock by. The first process that enters writes
//! `recipe`; `cluster` is written before the first native guard is handed out; each by an LWT that requires null. A
//! process with another recipe or cluster is refused with an error that names both. It cannot enter or change its row,
//! because each of these LWTs compares `recipe` and `cluster`, as they were read with the stage; it receives no native
//! guard; and no tool moves the scope. To change one of them, end all processes of the scope and set the column to null
//! (`docs/migration.md`).
//!
//! The id of a process, `hf1:SERVICE@WRITER/…`, contains the writer of its recipe's rows. So the rows of each
//! registered process are known, however many processes share a service name.
//!
//! # Beside version 0.1
//!
//! Version 0.1 has neither column, and no writer in its ids. It reads only the columns it knows, and its processes read
//! only their own rows.
//!
//! - **Its processes may take part at `cassandra` and `both`.** Rows, `seq`, stage and `turn` have the same meaning,
//!   its LWTs compare the same values, and ours compare more: 1 to 4 above hold for any mixture. It does not record
//!   which recipe and cluster it locks by, as no old client does. Its rows belong to no registered writer.
//! - **From `native` on, it cannot take part.** These two stages are written as `native/2` and `fallback/2`. Version
//!   0.1 knows no such stage; it neither enters the scope nor changes its row there. No step to `native` is made while
//!   one of its processes is registered.
//! - **Its tools move no scope in which one of our processes is registered.** Our rows have their mode as `cassandra/2`
//!   and so on. The tools of version 0.1 refuse to read a scope with a mode that they do not know; its processes read
//!   only their own rows.
//! - **Where only its processes and tools are, nothing changes.** A stage that its tool wrote, `native` without a
//!   suffix, is read as one of ours.
//!
//! # Why `native` and `fallback` are safe side by side
//!
//! Both respect the authority of the scope, because the client's session does, whatever the mode: the store reports
//! every scope with fallback in each answer that renews a lease, and from then on no native guard of its names is
//! handed out, or safe, beyond the reported authority (`client/src/session/cover.rs`). So before a client takes a scope
//! over, the authority that covers native guards has ended for every holder; and a process in `native` merely waits
//! while others lock in Cassandra. The same bound applies to the native half of `both`; `both` is excluded from
//! [`Stage::Fallback`] because it would hold the recipe's lock while it waits for a native one that cannot come.
//! Between `native` and `fallback` a process does what `native` does, which rows of both cover.
//! [`fallback`](crate::fallback) documents what the row in the table `authority` promises, and why.
//!
//! # What it needs
//!
//! - For `fallback`: the native store knows the scope of the [`Locker`] by the same prefix (`holdfast scope set`).
//!   Without that, the scope has no row in `authority`; then no process falls back, and `fallback` behaves as `native`.
//! - The table has all its columns. A table that version 0.1 made lacks some; `holdfast cassandra schema --apply` adds
//!   them.
//! - All processes that lock a name use the same scope for it. Overlapping scopes do not know of each other, and
//!   nothing detects them.
//! - Clients that are not [`Locker`]s have no row. All old clients must be gone, or replaced by `both`, before the
//!   scope goes on from `both` to `native`, and may come back only when it is at `cassandra`; a plain native client may
//!   take part only while the scope is at `native`.
//! - In every mode the process needs Cassandra now and then, for its row: it survives an outage of two thirds of what
//!   is certain of the row (9 minutes with the defaults) and then loses its guards, native ones too. When no way back
//!   is needed any more, let it lock by [`Client`](holdfast::Client) alone.
//!
//! # What it costs
//!
//! One LWT for each process every third of what is certain of the row (each 4.6 minutes), and a SERIAL read and one LWT
//! to begin, all on one partition: hundreds of processes that start in the same second wait for each other, and some of
//! them retry. A lock in `both` costs the sum of both stores, one after the other; while a process waits for the second
//! lock, it keeps the first, and all other processes in `both` wait in Cassandra.

pub(crate) mod compound_guard;
mod election;
mod failover_acquire;
mod locker;
mod mode_row;
mod scope;
mod sequence;
mod state;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;

use super::recipe::{Names, Naming};
use super::statement::Ident;
pub use election::{LeaderSeen, LockerLeadership, LockerObserver};
pub use locker::{Locker, LockerBuilder};
pub use scope::{MoveRefused, Registered, ScopeModes, ScopeView, Step};
pub use sequence::LockerSequence;

/// Which stores a [`Locker`] locks in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockerMode {
    /// The recipe on Cassandra alone.
    Cassandra,
    /// The recipe first, then the native store; a guard is safe while both are.
    Both,
    /// The native store alone.
    Native,
    /// The native store while it serves the scope, and Cassandra while that serves it.
    Fallback,
}

impl LockerMode {
    /// Each mode may coexist with the one before it and the one after it, and with no other.
    const IN_ORDER: [Self; 4] = [Self::Cassandra, Self::Both, Self::Native, Self::Fallback];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra",
            Self::Both => "both",
            Self::Native => "native",
            Self::Fallback => "fallback",
        }
    }

    /// The mode of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::IN_ORDER.into_iter().find(|mode| mode.as_str() == text)
    }

    /// The text in a row of this version. Version 0.1 wrote the name alone, and refuses to read
    /// this one.
    pub(crate) fn written(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra/2",
            Self::Both => "both/2",
            Self::Native => "native/2",
            Self::Fallback => "fallback/2",
        }
    }

    /// The mode in a row of this version or of version 0.1.
    #[doc(hidden)]
    pub fn of_row(text: &str) -> Option<Self> {
        let written = Self::IN_ORDER.into_iter().find(|mode| mode.written() == text);
        written.or_else(|| Self::parse(text))
    }

    /// Whether a row with this mode covers guards that were taken in `mode`.
    pub(crate) fn covers(self, mode: Self) -> bool {
        self == mode || mode == Self::Both || (self == Self::Fallback && mode == Self::Native)
    }

    /// The next mode on the way to `wanted`; `None` if this is `wanted`.
    pub(crate) fn towards(self, wanted: Self) -> Option<Self> {
        let at = |mode| Self::IN_ORDER.iter().position(|one| *one == mode);
        let (here, there) = (at(self)?, at(wanted)?);
        let next = match there.cmp(&here) {
            Ordering::Equal => return None,
            Ordering::Less => here.checked_sub(1)?,
            Ordering::Greater => here + 1,
        };
        Self::IN_ORDER.get(next).copied()
    }

    /// The mode to lock in on the way from this to `next`: a row of either mode covers it.
    pub(crate) fn between(self, next: Self) -> Self {
        match (self, next) {
            (Self::Native, Self::Fallback) | (Self::Fallback, Self::Native) => Self::Native,
            _ => Self::Both,
        }
    }
}

impl fmt::Display for LockerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far a scope has come, which determines the modes that its processes may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// `cassandra` and `both`. Every scope begins here.
    Cassandra,
    /// `both` alone.
    Both,
    /// `both` and `native`.
    Native,
    /// `native` and `fallback`.
    Fallback,
}

impl Stage {
    const IN_ORDER: [Self; 4] = [Self::Cassandra, Self::Both, Self::Native, Self::Fallback];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra",
            Self::Both => "both",
            Self::Native => "native",
            Self::Fallback => "fallback",
        }
    }

    /// The stage of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::IN_ORDER.into_iter().find(|stage| stage.as_str() == text)
    }

    /// The text in the table. Version 0.1 may take part at the first two, and refuses the others as unknown.
    pub(crate) fn written(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra",
            Self::Both => "both",
            Self::Native => "native/2",
            Self::Fallback => "fallback/2",
        }
    }

    /// The stage in the table, written by this version or by version 0.1.
    #[doc(hidden)]
    pub fn of_row(text: &str) -> Option<Self> {
        let written = Self::IN_ORDER.into_iter().find(|stage| stage.written() == text);
        written.or_else(|| Self::parse(text))
    }

    /// Whether a process may enter `mode`, or change its row to it.
    pub fn admits(self, mode: LockerMode) -> bool {
        match mode {
            LockerMode::Cassandra => self == Self::Cassandra,
            LockerMode::Both => self != Self::Fallback,
            LockerMode::Native => matches!(self, Self::Native | Self::Fallback),
            LockerMode::Fallback => self == Self::Fallback,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The table of modes, for deployments that give it another name. Its columns are `scope`, `process`, `mode`, `stage`,
/// `recipe` and `cluster` (`text`), `seq` and `turn` (`bigint`).
#[derive(Clone, Debug)]
pub struct ModesTable {
    pub(crate) table: Ident,
}

/// The name of the table, as the description of a recipe has it.
#[doc(hidden)]
pub const MODES: Naming = Naming::new(
    "modes-table",
    &[("TABLE", "locker_modes", "")],
    "The modes of processes that move to the native store",
);
/// Its columns, which no deployment renames: in which mode each process of a scope locks, and the scope's stage.
const COLUMNS: &str = "(\"scope\" text, \"process\" text, \"mode\" text, \"seq\" bigint, \"stage\" text static, \
     \"turn\" bigint static, \"recipe\" text static, \"cluster\" text static, PRIMARY KEY (\"scope\", \"process\"))";

impl Default for ModesTable {
    /// `locker_modes`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl ModesTable {
    /// The table with this exact name.
    #[must_use]
    pub fn named(table: &str) -> Self {
        Self { table: Ident::new(table) }
    }

    pub(crate) fn of(names: &Names) -> Self {
        Self::named(names.one(&MODES))
    }

    pub(crate) fn created(&self) -> String {
        format!("{} {COLUMNS}", self.table)
    }
}
