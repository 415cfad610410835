//! Numbers that never repeat, drawn in blocks.
//!
//! The article names "distributed sequences" and says no more. The lease's own row cannot keep the
//! number: it ends with its TTL, and the sequence would begin again. So the number has a row
//! without TTL, `sequences(name, next)`, which a CAS advances. The CAS alone ensures that no number is drawn twice. A lease
//! only keeps clients from contending for that row.
//!
//! # How a sequence moves to the native store and back
//!
//! Its row says where it is, whatever the mode of a scope is: every draw reads it at SERIAL, so at any time one store gives out the numbers.
//!
//! | `next` | the sequence is | a draw |
//! |---|---|---|
//! | a number, or no row | in Cassandra | advances it by a CAS |
//! | [`GIVEN`] | in the native store | takes from there, and then reads the row again: the numbers count if it still says so |
//! | [`RETURNING`] | on its way back | waits |
//!
//! - **There**: the native sequence begins at `next`, or is above it already; then a CAS on that `next` writes [`GIVEN`]. A draw in between
//!   makes the CAS fail, and the native sequence begins higher.
//! - **Back**: a CAS writes [`RETURNING`]; the last native number is read; a CAS writes the one after it. A native draw that counts read the row
//!   before [`RETURNING`] was written, so its number is not above that last one.
//! - A draw that took very long might read [`GIVEN`] of one stay there, and [`GIVEN`] of the next at its second look. So numbers that were under way
//!   for more than [`UNDER_WAY_MAX`] do not count, and [`RETURNING`] stands for [`RETURNING_FOR`].
//! - **Older clients** know numbers only. They find a sequence that was given away used up; while it returns, such a client may draw the one number
//!   [`RETURNING`], which nobody else draws.

use std::ops::Range;
use std::time::Duration;

use super::{Lease, LeaseTable};
use crate::cassandra::Cassandra;
use crate::database::{Conditional, Fault};
use crate::locker::RemoteLocker as _;
use crate::locker_base::Tries;
use crate::statement::{Action, Ident, Statement, Value};
use crate::{Error, Result};
use holdfast_guard::Backoff;

/// The longest pause between two attempts at a row that another client advanced.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(500);
/// `next` of a sequence that is in the native store.
const GIVEN: i64 = i64::MAX;
/// `next` of a sequence on its way back.
const RETURNING: i64 = i64::MAX - 1;
/// How long a native draw may take from before the first look at the row to after the second.
pub(crate) const UNDER_WAY_MAX: Duration = Duration::from_secs(10);
/// For how long a sequence is on its way back at least: longer than a native draw may take, by any two clocks.
const RETURNING_FOR: Duration = Duration::from_secs(30);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A sequence; [`Lease::sequence`] makes one.
#[derive(Clone, Debug)]
pub struct Sequence {
    lease: Lease,
    name: String,
}

/// Where a sequence is, as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SequencePlace {
    /// In Cassandra.
    Cassandra {
        /// The next number.
        next: i64,
    },
    /// In the native store.
    Native,
    /// On its way back.
    Returning,
}

impl SequencePlace {
    fn of(next: i64) -> Self {
        match next {
            GIVEN => Self::Native,
            RETURNING => Self::Returning,
            next => Self::Cassandra { next },
        }
    }
}

/// What a draw from the row has brought.
pub(crate) enum Drawn {
    Numbers(Range<i64>),
    /// Another client was faster.
    Nothing,
    ElseWhere(SequencePlace),
}

/// The rows of sequences.
#[derive(Clone, Debug)]
pub(crate) struct SequenceRows {
    cassandra: Cassandra,
    table: Ident,
}

impl SequenceRows {
    pub(crate) fn new(cassandra: &Cassandra, tables: &LeaseTable) -> Self {
        Self { cassandra: cassandra.clone(), table: tables.sequences.clone() }
    }

    /// Reads the row and advances it.
    pub(crate) async fn draw(&self, name: &str, count: u32) -> Result<Drawn, Fault> {
        let first = self.next(name).await?;
        let from = match SequencePlace::of(first.unwrap_or(1)) {
            SequencePlace::Cassandra { next } => next,
            place => return Ok(Drawn::ElseWhere(place)),
        };
        let to = from.checked_add(i64::from(count)).filter(|to| *to < RETURNING);
        let used_up = || Fault::Refused(format!("the sequence {} is used up", name.escape_debug()));
        let to = to.ok_or_else(used_up)?;
        let applied = self.change(name, first, to).await?;
        Ok(if applied { Drawn::Numbers(from..to) } else { Drawn::Nothing })
    }

    pub(crate) async fn place(&self, name: &str) -> Result<SequencePlace, Fault> {
        Ok(SequencePlace::of(self.next(name).await?.unwrap_or(1)))
    }

    async fn next(&self, name: &str) -> Result<Option<i64>, Fault> {
        let next = Ident::new("next");
        let action = Action::SelectSerial { columns: vec![next.clone()] };
        let row = self.cassandra.tables().read(self.statement(name, action)).await?;
        Ok(row.and_then(|row| row.long(&next)))
    }

    /// Sets `next`, if it is as it was read.
    async fn change(&self, name: &str, read: Option<i64>, to: i64) -> Result<bool, Fault> {
        let next = Ident::new("next");
        let cells = vec![(next.clone(), Some(Value::from(to)))];
        let action = match read {
            None => Action::InsertIfAbsent { cells, ttl_s: None },
            Some(read) => {
                let only_if = vec![(next, Some(Value::from(read)))];
                Action::UpdateIf { cells, ttl_s: None, only_if }
            }
        };
        let changed = self.cassandra.tables().conditional(self.statement(name, action)).await.1?;
        Ok(changed == Conditional::Applied)
    }

    /// Takes a sequence from one place to another; false if it is at neither.
    async fn shift(&self, name: &str, from: i64, to: i64) -> Result<bool, Fault> {
        match self.next(name).await? {
            // An earlier copy of the statement, whose answer was lost.
            Some(next) if next == to => Ok(true),
            Some(next) if next == from => self.change(name, Some(next), to).await,
            _ => Ok(false),
        }
    }

    fn statement(&self, name: &str, action: Action) -> Statement {
        let key = vec![(Ident::new("name"), Value::from(name))];
        Statement::new(self.table.clone(), key, action)
    }
}

impl Lease {
    /// The sequence `name`. It begins at 1, and draws under the lease of the same name.
    pub fn sequence(&self, name: &str) -> Sequence {
        Sequence { lease: self.clone(), name: name.to_owned() }
    }
}

impl Sequence {
    /// Draws `count` numbers that no other draw returns, all above those that were drawn before
    /// this call began. A draw without an answer, and a dropped future, leave numbers out.
    ///
    /// # Errors
    ///
    /// As [`RemoteLocker::lock`](crate::RemoteLocker::lock); [`Error::OutcomeUnknown`] if no answer came while the
    /// lease was safe; [`Error::Refused`] if `count` is zero, the numbers are used up, or the sequence is in the native store
    /// ([`Locker::sequence`](crate::Locker::sequence) draws from either).
    pub async fn draw(&self, count: u32) -> Result<Range<i64>> {
        if count == 0 {
            return Err(Error::invalid("a draw is of one number at least".into()));
        }
        let guard = self.lease.lock(&self.name).await?;
        let drawn = self.draw_under_lease(count, || guard.is_safe()).await;
        // The numbers are valid whatever becomes of the lease.
        let _ = guard.release().await;
        drawn
    }

    async fn draw_under_lease(&self, count: u32, is_safe: impl Fn() -> bool) -> Result<Range<i64>> {
        let base = &self.lease.base;
        let rows = SequenceRows::new(&base.cassandra, &self.lease.table);
        let (runtime, began) = (base.runtime(), base.now());
        let mut pauses = Backoff::new(PAUSE_MAX);
        while is_safe() {
            match rows.draw(&self.name, count).await {
                Ok(Drawn::Numbers(drawn)) => return Ok(drawn),
                Ok(Drawn::ElseWhere(SequencePlace::Native)) => return Err(moved(&self.name)),
                // If the outcome is open, the next round reads the row again and leaves out what this one may have taken.
                Ok(_) | Err(Fault::Unknown(_) | Fault::NotDone(_)) => {}
                Err(Fault::Refused(message)) => return Err(Error::invalid(message)),
            }
            runtime.sleep(pauses.next(&*runtime.rng)).await;
        }
        let waited = runtime.clock.now().saturating_since(began);
        Err(Error::OutcomeUnknown { what: "a draw", waited })
    }
}

/// Its numbers are drawn natively, and this process has no native client.
pub(crate) fn moved(name: &str) -> Error {
    Error::invalid(format!(
        "the sequence \"{}\" is in the native store: draw from it through a Locker with a native client, or by holdfast sequence \
         next; holdfast-migrate sequences --to cassandra brings it back",
        name.escape_debug()
    ))
}

/// The sequences of a keyspace, for whoever moves them; this module says what that promises.
#[derive(Clone, Debug)]
pub struct Sequences {
    rows: SequenceRows,
}

impl Sequences {
    /// Those of these tables. It sends nothing.
    pub fn new(cassandra: &Cassandra, tables: &LeaseTable) -> Self {
        Self { rows: SequenceRows::new(cassandra, tables) }
    }

    /// For how long a sequence has to be on its way back before [`Sequences::end_return`].
    pub const RETURNING_FOR: Duration = RETURNING_FOR;

    /// The sequences whose names begin with `prefix`, in the order of their names, and where they are, at QUORUM.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] without an answer in 30 s, [`Error::Refused`] if the table cannot be used.
    pub async fn list(&self, prefix: &str) -> Result<Vec<(String, SequencePlace)>> {
        let mut listed = Vec::new();
        let mut from = None;
        loop {
            let (rows, next) = self.tries().until_answered(|| self.page(from.clone())).await?;
            listed.extend(rows.into_iter().filter(|(name, _)| name.starts_with(prefix)));
            if next.is_none() {
                listed.sort_by(|(a, _), (b, _)| a.cmp(b));
                return Ok(listed);
            }
            from = next;
        }
    }

    async fn page(&self, from: Option<Vec<u8>>) -> Result<Page, Fault> {
        let [name, next] = ["name", "next"].map(Ident::new);
        let columns = vec![name.clone(), next.clone()];
        let action = Action::Page { columns, ttl_of: None, range: None, from };
        let statement = Statement::new(self.rows.table.clone(), Vec::new(), action);
        let (rows, end) = self.rows.cassandra.tables().page(statement).await?;
        let listed = rows.iter().filter_map(|row| {
            Some((row.text(&name)?.to_owned(), SequencePlace::of(row.long(&next)?)))
        });
        Ok((listed.collect(), end))
    }

    /// Where a sequence is, at SERIAL.
    ///
    /// # Errors
    ///
    /// As of [`Sequences::list`].
    pub async fn place(&self, name: &str) -> Result<SequencePlace> {
        self.tries().until_answered(|| self.rows.place(name)).await
    }

    /// Gives a sequence whose next number is `next` to the native store, which begins there or higher; false if it is somewhere else
    /// meanwhile, or has another number. Cancel safe, in that it is given or is not.
    ///
    /// # Errors
    ///
    /// As of [`Sequences::list`]; without an answer it may be given.
    pub async fn give(&self, name: &str, next: i64) -> Result<bool> {
        self.tries().until_answered(|| self.rows.shift(name, next, GIVEN)).await
    }

    /// Begins the way back of a sequence that is in the native store; false if it is not there.
    ///
    /// # Errors
    ///
    /// As of [`Sequences::give`].
    pub async fn begin_return(&self, name: &str) -> Result<bool> {
        self.tries().until_answered(|| self.rows.shift(name, GIVEN, RETURNING)).await
    }

    /// Ends it, [`Sequences::RETURNING_FOR`] after it was begun: `next` is above every number that the native store had given out by then.
    ///
    /// # Errors
    ///
    /// As of [`Sequences::give`].
    pub async fn end_return(&self, name: &str, next: i64) -> Result<bool> {
        let ended = self.tries().until_answered(|| self.rows.shift(name, RETURNING, next)).await?;
        // After a lost answer others may have drawn already.
        let is_beyond =
            |place| matches!(place, SequencePlace::Cassandra { next: now } if now >= next);
        Ok(ended || is_beyond(self.place(name).await?))
    }

    fn tries(&self) -> Tries<'_> {
        Tries::new(&self.rows.cassandra, ANSWER_LIMIT, PAUSE_MAX)
    }
}

/// Sequences, and where the next page begins.
type Page = (Vec<(String, SequencePlace)>, Option<Vec<u8>>);
