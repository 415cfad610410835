//! Reads a whole table in parts of the ring, as large as nodes can read them in time.
//!
//! Each row that is gone leaves a deleted partition, which a node walks when it reads that part of the table, until
//! `gc_grace_seconds` are over. A table whose rows come and go has so many that no node walks all of them within its time limit. So a
//! part that cannot be read is divided, and parts that are read quickly are joined again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cassandra::Cassandra;
use crate::database::{Fault, Row};
use crate::statement::{Action, Ident, Statement, TokenRange};

/// A part that could not be read twice is divided into so many.
const DIVIDED: usize = 8;
/// Failures one after the other with which a read of the table ends: the nodes are gone, or the smallest part is too large.
const FAILURES_IN_A_ROW: u32 = 10;
/// Failures in all.
const FAILURES: u32 = 64;
/// Neighbours that were read within this time together are read as one the next time.
const QUICK: Duration = Duration::from_millis(500);

/// The parts in which a table was read last, in the order of the ring. A read that is dropped leaves them as they were.
pub(super) struct Parts(Mutex<Vec<TokenRange>>);

impl Default for Parts {
    /// The whole ring.
    fn default() -> Self {
        Self(Mutex::new(TokenRange::split(1)))
    }
}

/// One read of a table.
struct Reading<'a, F> {
    cassandra: &'a Cassandra,
    table: &'a Ident,
    columns: Vec<Ident>,
    take: F,
}

impl Parts {
    /// Reads these columns of all rows, and returns what `take` makes of each as soon as its page arrives.
    pub(super) async fn read<T, F: Fn(Row) -> Option<T>>(
        &self,
        cassandra: &Cassandra,
        (table, columns): (&Ident, &[&Ident]),
        take: F,
    ) -> Result<Vec<T>, Fault> {
        let columns = columns.iter().map(|&column| column.clone()).collect();
        let reading = Reading { cassandra, table, columns, take };
        let clock = &cassandra.runtime().clock;
        let (mut taken, mut read) = (Vec::new(), Vec::new());
        let (mut failures, mut in_a_row) = (0, 0);
        let mut left: Vec<Part> = self.lock().iter().rev().copied().map(Part::new).collect();
        while let Some(part) = left.pop() {
            let began = clock.now();
            let fault = match reading.part(part.range).await {
                Ok(rows) => {
                    taken.extend(rows);
                    read.push((part.range, clock.now().saturating_since(began)));
                    in_a_row = 0;
                    continue;
                }
                Err(fault) => fault,
            };
            (failures, in_a_row) = (failures + 1, in_a_row + 1);
            left.extend(part.again(&fault).into_iter().rev());
            let is_refused = matches!(fault, Fault::Refused(_));
            if is_refused || failures >= FAILURES || in_a_row >= FAILURES_IN_A_ROW {
                // The next read goes on from what this one has learned.
                let read = read.into_iter().map(|(range, _)| range);
                *self.lock() = read.chain(left.into_iter().rev().map(|part| part.range)).collect();
                return Err(fault);
            }
        }
        *self.lock() = joined(read);
        Ok(taken)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<TokenRange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part that is to be read.
#[derive(Clone, Copy)]
struct Part {
    range: TokenRange,
    has_failed: bool,
}

impl Part {
    fn new(range: TokenRange) -> Self {
        Self { range, has_failed: false }
    }

    /// What to read after it could not be read. One lost answer says nothing of its size, a second one may.
    fn again(self, fault: &Fault) -> Vec<Self> {
        match fault {
            Fault::Unknown(_) if self.has_failed => {
                self.range.divided(DIVIDED).into_iter().map(Self::new).collect()
            }
            Fault::Unknown(_) => vec![Self { has_failed: true, ..self }],
            Fault::NotDone(_) | Fault::Refused(_) => vec![self],
        }
    }
}

impl<T, F: Fn(Row) -> Option<T>> Reading<'_, F> {
    async fn part(&self, range: TokenRange) -> Result<Vec<T>, Fault> {
        let (mut taken, mut from) = (Vec::new(), None);
        loop {
            let columns = self.columns.clone();
            let action = Action::Page { columns, ttl_of: None, range: Some(range), from };
            let page = Statement::new(self.table.clone(), vec![], action);
            let (rows, next) = self.cassandra.tables().page(page).await?;
            taken.extend(rows.into_iter().filter_map(&self.take));
            if next.is_none() {
                return Ok(taken);
            }
            from = next;
        }
    }
}

fn joined(read: Vec<(TokenRange, Duration)>) -> Vec<TokenRange> {
    let mut joined: Vec<(TokenRange, Duration)> = Vec::new();
    for (range, took) in read {
        match joined.last_mut() {
            Some((before, sum)) if *sum + took < QUICK => {
                before.upto = range.upto;
                *sum += took;
            }
            _ => joined.push((range, took)),
        }
    }
    joined.into_iter().map(|(range, _)| range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_read_quickly_are_joined_and_slow_ones_stay() {
        let parts = TokenRange::split(5);
        let took = [100, 300, 200, 900, 100].map(Duration::from_millis);
        let whole =
            |from: usize, to: usize| TokenRange { after: parts[from].after, upto: parts[to].upto };
        let now = joined(parts.iter().copied().zip(took).collect());
        assert_eq!(now, [whole(0, 1), whole(2, 2), whole(3, 3), whole(4, 4)]);
    }
}
