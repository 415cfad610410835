//! From locks on Cassandra to the store of this crate, process by process, while all of them work; and back.
//!
//! A [`Locker`] stands on a recipe and on a native client, and locks in one of four modes:
//!
//! | mode | takes | token | excludes |
//! |---|---|---|---|
//! | [`LockerMode::Cassandra`] | the recipe's lock | none | old clients, `cassandra`, `both` |
//! | [`LockerMode::Both`] | the recipe's lock, then the native one; gives back the other way round | the native one | everybody |
//! | [`LockerMode::Native`] | the native lock | the native one | `native`, `both`, `fallback` |
//! | [`LockerMode::Fallback`] | the native lock while the native store serves the scope, else one in Cassandra | of either | `native`, `both`, `fallback` |
//!
//! Old clients know only the recipe's tables, and nobody but `cassandra` and `both` excludes them. A process in
//! `cassandra` and one in `native` do not exclude each other. So the two must never be at work at once, and
//! everybody passes through `both`.
//!
//! # What is kept in Cassandra
//!
//! `locker_modes(scope, process, mode, seq, stage static, turn static, recipe static, cluster static)`, one partition for each
//! *scope*, which is the prefix of the names that its processes lock (the table has it with an asterisk). Every [`Locker`] has a row there with its mode, with a TTL, and renews it.
//! The scope has a *stage*, which an operator moves ([`ScopeModes::advance`], [`ScopeModes::go_back`]):
//!
//! | stage | whose row may be entered, or changed, to | it is moved on, or back, when no row says |
//! |---|---|---|
//! | [`Stage::Cassandra`], the first | `cassandra`, `both` | `cassandra` (on) |
//! | [`Stage::Both`] | `both` | `cassandra` (on), `native` or `fallback` (back) |
//! | [`Stage::Native`] | `both`, `native` | `both` (on), `native` or `fallback` (back) |
//! | [`Stage::Fallback`] | `native`, `fallback` | `fallback` (back) |
//!
//! # Why no process is in `cassandra` while another one is in `native`
//!
//! A row of `cassandra`, or of `native`, *covers* guards of that mode and of `both`; a row of `both` those of `both` only; a row of
//! `fallback` those of `fallback`, `native` and `both`.
//!
//! 1. **No guard is safe but under a row that covers it.** A process asks for a lock in a mode only while it has
//!    such a row, and a guard's safe deadline is never later than the row's: the start of the last write of the
//!    row that was answered as applied, plus its TTL, less the largest skew of the nodes' clocks, one second and a
//!    hundredth, on the process' own clock, which counts suspended time. That is before any node takes the row
//!    for gone, as with a recipe's own rows: two machines' clocks are compared nowhere, and what is assumed of the
//!    nodes' clocks is what the recipes assume. So the TTL never ends a hold; it tells others that one has
//!    ended. Who was paused for longer wakes with guards that are lost, and has to enter again, as the stage then allows: also
//!    if it finds its row there still, for by the clock of another node it may have been gone, and the scope moved on. A
//!    renewal says nothing of the stage, so all it may do is keep certain what has been so since it was entered.
//! 2. **A row is made weaker only when nothing is left that needs it.** A process that leaves `cassandra`, or `native`,
//!    asks for locks in `both` from then on, and changes its row only once the last guard and the last attempt of
//!    the old mode is over. While a change has no answer, it acts as both sides of it allow: in `both`.
//! 3. **Every write of a row is an LWT on the row as it was last seen**, by its `seq`, which is never used twice. One that a
//!    coordinator applies late finds another `seq`, so it cannot make weaker what was made stronger since. What
//!    enters `cassandra` or `native` is on condition of the stage as well.
//! 4. **A stage is changed by an LWT on stage and `turn`**, which counts the changes, as they were in the same SERIAL read
//!    that found no row in the way. Take the step from `both` to `native`: since the scope came to `both` no row was
//!    entered or changed to `cassandra`, by 3; none was there at the read; and the LWT applies only if the scope
//!    was at `both` all the time between. So none is there, and none comes while the stage is `native`. The way
//!    back is the same with the two names exchanged. (That the step from `cassandra` to `both` looks for rows of
//!    `cassandra` is only to tell the operator early: one that slips in is found at the next step.) The same holds for
//!    the first step back, from `fallback` to `native`: a process that enters `fallback` after the look stays in it while
//!    the scope is at `native`, so the next step back is refused as long as a row says `fallback`.
//!
//! By 4 rows of `cassandra` and of `native`, or of `fallback`, never stand side by side, and by 1 neither do their guards.
//!
//! # What a scope is tied to
//!
//! Two [`Locker`]s of one scope on two recipes, or on tables of other names, do not exclude each other in Cassandra; on two clusters of
//! the native store they do not exclude each other natively. So the scope says which recipe, with its tables, and which cluster its
//! processes lock by: `recipe` is written by the first process that enters, `cluster` before the first native guard is handed
//! out, each by an LWT on its being null. A process with others is refused by name: it cannot enter or change its
//! row, for each of these LWTs compares `recipe` and `cluster` as they were read with the stage; it is handed no native guard; and no
//! tool moves the scope. To change one of them, end all processes of the scope and set the column to null (`docs/migration.md`).
//!
//! The id of a process, `hf1:SERVICE@WRITER/…`, has the writer that its recipe's rows have. So which rows are those of registered
//! processes is known for each process, however many have one service name.
//!
//! # Beside version 0.1
//!
//! Version 0.1 has neither column, nor a writer in its ids. It reads only the columns it knows, and of other processes' rows none.
//!
//! - **Its processes may be there at `cassandra` and `both`.** Rows, `seq`, stage and `turn` mean what they meant, its LWTs compare
//!   what they compared, and ours compare more: 1 to 4 above hold for any mixture. Which recipe and cluster it locks by it does not say,
//!   as no old client does. Its rows are nobody's that is registered.
//! - **It is refused by name from `native` on.** These two stages are written as `native/2` and `fallback/2`. Version 0.1 knows no such
//!   stage, and neither enters the scope nor changes its row there. No step to `native` is made while one of its processes is registered.
//! - **Its tools move no scope in which one of our processes is registered.** Our rows say their mode as `cassandra/2` and so on. Version
//!   0.1 refuses to look at a scope with a mode that it does not know; its processes look at their own rows only.
//! - **Where only its processes and tools are, everything is as it was.** A stage that its tool wrote, `native` without more, is
//!   read as one of ours.
//!
//! # Why `native` and `fallback` are safe side by side
//!
//! Both honour the authority of the scope, for it is not the mode that does, but the client's session: the store tells of
//! every scope with fallback in each answer that renews a lease, and from then on no native guard of its names is
//! handed out, or safe, beyond what it tells (`client/src/session/cover.rs`). So before a scope is taken over, the
//! authority that covers native guards has ended, whoever has them; and a process in `native` merely waits
//! while others lock in Cassandra. The native half of `both` is bounded so, too; `both` is kept out of [`Stage::Fallback`] because it
//! would hold the recipe's lock while it waits for a native one that cannot come. Between `native` and `fallback` a process does what
//! `native` does, which rows of both cover. What the row in the table `authority` promises, and why, stands in
//! [`fallback`](crate::compat::fallback).
//!
//! # What it needs
//!
//! - For `fallback`: the scope of the [`Locker`] is one that the native store was told of (`holdfast scope set`), by the same prefix. One that
//!   was not has no row in `authority`; then nobody falls back, and `fallback` is as `native`.
//! - The table has all its columns. One that version 0.1 made has not; `holdfast cassandra schema --apply` adds them.
//! - All processes that lock a name say the same scope for it. Scopes that overlap know nothing of each other, and nothing finds that out.
//! - Clients that are not [`Locker`]s have no row. Old ones must all be gone, or replaced by `both`, before the scope goes on
//!   from `both` to `native`, and may come again only when it is at `cassandra`; a plain native client may be there only while it is at
//!   `native`.
//! - In every mode the process needs Cassandra now and then, for its row: it outlives an outage of two thirds of what is
//!   certain of the row (9 minutes with the defaults), and loses its guards after it, also native ones. When there is no
//!   way back any more, let it lock by [`Client`](crate::Client) alone.
//!
//! # What it costs
//!
//! One LWT for each process every third of what is certain of the row (each 4.6 minutes), a SERIAL read and one LWT to begin, all on
//! one partition: hundreds of processes that start in the same second wait for each other, and some of them try again. A
//! lock in `both` costs what it costs in each store, one after the other; while it waits for the second, the
//! first is kept, and everybody else in `both` waits in Cassandra.

mod either;
mod joint;
mod locker;
mod scope;
mod seat;
mod state;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;

use super::statement::Ident;
pub use locker::{Locker, LockerBuilder};
pub use scope::{MoveRefused, Registered, ScopeModes, ScopeView};

/// Which stores a [`Locker`] locks in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockerMode {
    /// By the recipe on Cassandra alone.
    Cassandra,
    /// By the recipe first, then by the native store; safe while both are.
    Both,
    /// By the native store alone.
    Native,
    /// By the native store while it serves the scope, and in Cassandra while that does.
    Fallback,
}

impl LockerMode {
    /// Each stands beside the one before it and the one after it, and beside no other.
    const IN_ORDER: [Self; 4] = [Self::Cassandra, Self::Both, Self::Native, Self::Fallback];

    /// What it is called.
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

    /// As a row of ours has it; version 0.1 wrote the name alone, and refuses to look at this.
    pub(crate) fn written(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra/2",
            Self::Both => "both/2",
            Self::Native => "native/2",
            Self::Fallback => "fallback/2",
        }
    }

    /// The mode that a row says, of ours or of version 0.1.
    #[doc(hidden)]
    pub fn of_row(text: &str) -> Option<Self> {
        let written = Self::IN_ORDER.into_iter().find(|mode| mode.written() == text);
        written.or_else(|| Self::parse(text))
    }

    /// Whether a row that says this stands for guards that were taken in `mode`.
    pub(crate) fn covers(self, mode: Self) -> bool {
        self == mode || mode == Self::Both || (self == Self::Fallback && mode == Self::Native)
    }

    /// The next mode on the way to `wanted`; `None` if this is it.
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

    /// What is done on the way from this to `next`: whatever the row says meanwhile, it covers that.
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

/// How far a scope has come: which modes its processes may enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// `cassandra` and `both`. Where every scope begins.
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

    /// What it is called.
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

    /// As the table has it. Version 0.1 may be there at the first two, and refuses the others as unknown.
    pub(crate) fn written(self) -> &'static str {
        match self {
            Self::Cassandra => "cassandra",
            Self::Both => "both",
            Self::Native => "native/2",
            Self::Fallback => "fallback/2",
        }
    }

    /// The stage that the table says, written by us or by version 0.1.
    #[doc(hidden)]
    pub fn of_row(text: &str) -> Option<Self> {
        let written = Self::IN_ORDER.into_iter().find(|stage| stage.written() == text);
        written.or_else(|| Self::parse(text))
    }

    /// Whether a row may be entered, or changed, to `mode`.
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

/// Where the modes are, for deployments that call the table otherwise. Its columns are `scope`, `process`, `mode`,
/// `stage`, `recipe` and `cluster` (`text`), `seq` and `turn` (`bigint`).
#[derive(Clone, Debug)]
pub struct ModesTable {
    pub(crate) table: Ident,
}

impl Default for ModesTable {
    /// `locker_modes`.
    fn default() -> Self {
        Self::named("locker_modes")
    }
}

impl ModesTable {
    /// The table's name, as the server has it.
    #[must_use]
    pub fn named(table: &str) -> Self {
        Self { table: Ident::new(table) }
    }
}
