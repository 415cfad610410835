//! Numbers that never repeat, drawn in blocks under a lease.
//!
//! The article names "distributed sequences" and says no more. The lease's own row cannot keep the
//! number: it ends with its TTL, and the sequence would begin again. So the number has a row
//! without TTL, `sequences(name, next)`, which a CAS advances. The lease keeps clients from
//! contending for that row. The CAS alone ensures that no number is drawn twice, also when a lease
//! is lost half way.

use std::ops::Range;
use std::time::Duration;

use super::Lease;
use crate::database::{Conditional, Fault};
use crate::locker::RemoteLocker as _;
use crate::statement::{Action, Ident, Statement, Value};
use crate::{Error, Result};
use holdfast_guard::Backoff;

/// The longest pause between two attempts at a row that another client advanced.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A sequence; [`Lease::sequence`] makes one.
#[derive(Clone, Debug)]
pub struct Sequence {
    lease: Lease,
    name: String,
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
    /// lease was safe; [`Error::Refused`] if `count` is zero or the numbers are used up.
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
        let runtime = self.lease.base.runtime();
        let began = runtime.clock.now();
        let mut pauses = Backoff::new(PAUSE_MAX);
        while is_safe() {
            match self.advance(count).await {
                Ok(Some(drawn)) => return Ok(drawn),
                // A client without the lease was faster, or the outcome is open: the next round
                // reads the row again and leaves out what this one may have taken.
                Ok(None) | Err(Fault::Unknown(_) | Fault::NotDone(_)) => {}
                Err(Fault::Refused(message)) => return Err(Error::invalid(message)),
            }
            runtime.sleep(pauses.next(&*runtime.rng)).await;
        }
        let waited = runtime.clock.now().saturating_since(began);
        Err(Error::OutcomeUnknown { what: "a draw", waited })
    }

    /// Reads the row and advances it; `None` if another client advanced it meanwhile.
    async fn advance(&self, count: u32) -> Result<Option<Range<i64>>, Fault> {
        let next = Ident::new("next");
        let columns = vec![next.clone()];
        let tables = self.lease.base.cassandra.tables();
        let row = tables.read(self.statement(Action::SelectSerial { columns })).await?;
        let first = row.and_then(|row| row.long(&next));
        let from = first.unwrap_or(1);
        let used_up = || Fault::Refused(format!("the sequence {} is used up", self.name));
        let to = from.checked_add(i64::from(count)).ok_or_else(used_up)?;
        let cells = vec![(next.clone(), Some(Value::from(to)))];
        let action = match first {
            None => Action::InsertIfAbsent { cells, ttl_s: None },
            Some(first) => {
                let only_if = vec![(next, Some(Value::from(first)))];
                Action::UpdateIf { cells, ttl_s: None, only_if }
            }
        };
        match tables.conditional(self.statement(action)).await.1? {
            Conditional::Applied => Ok(Some(from..to)),
            Conditional::NotApplied(_) => Ok(None),
        }
    }

    fn statement(&self, action: Action) -> Statement {
        let key = vec![(Ident::new("name"), Value::from(self.name.as_str()))];
        Statement::new(self.lease.table.sequences.clone(), key, action)
    }
}
