//! The time service: several replicas that report one time, which never goes back.
//!
//! Article: the thesis, §5.4, listing 8 and theorem 5, and §6 on its fault (in Russian); `replica.rs`
//! and the text below cite its steps. One cell of a table, `GlobalTime`, holds the largest local time of
//! all replicas, and is its own timestamp. A [`Queue`](super::Queue) can take its places by it.
//!
//! # What it promises
//!
//! - **Order.** An answer is never less than any answer that any replica gave before the question. It
//!   serves for order, and not for the date: two answers may be equal, and the time may be ahead of
//!   every clock.
//! - **It goes on**, as long as one replica and a QUORUM of the table's nodes run, also while it is
//!   ahead of every running replica's clock: then at half the rate of a monotonic clock, until the
//!   clocks have caught up.
//! - **It does not run away.** A replica whose clock is ahead of the clock of a Cassandra node by more
//!   than [`TimeOptions::max_ahead`] does not write what its clock shows.
//! - **Liveness.** A question is answered with one read, or an error; a [`TimeClient`] then asks
//!   another replica.
//!
//! # Assumptions
//!
//! Every write of the cell has its value as its timestamp, and no client deletes it. Monotonic clocks
//! run at about the same rate. The clocks of Cassandra's nodes matter for `max_ahead` alone, and nodes
//! may lose what they acknowledged only as described in `docs/cassandra.md`: the cell then goes back to
//! what the other nodes have.
//!
//! # What it costs
//!
//! An answer is a read at QUORUM, shared by all questions to a replica that came while the read before
//! it was under way; and a write at QUORUM the first time that this replica sees a value that it did
//! not write. An update, each [`TimeOptions::interval`], is two reads at the same time (the cell, a
//! node's clock) and mostly a write. Only the answers grow with the number of questions.
//!
//! The time moves once in an interval of each replica: two questions within one may get the same
//! answer. In a queue those two are in the order of their ids. The time is behind the largest clock by
//! at most that interval and a round trip.
//!
//! # Where the article's text can stop or go back
//!
//! - *"If localTime > globalTime"* (listing 8, step 3). A replica that ran ahead by ten minutes and
//!   died leaves a cell that no other clock passes: for ten minutes the time stands (thesis, §6;
//!   `under_the_articles_text_time_stands_for_as_long_as_a_dead_replica_was_ahead`). Here a replica that
//!   finds the cell unchanged goes on from there by its own monotonic clock
//!   (`after_a_dead_replica_that_was_ahead_time_goes_on_and_converges`).
//! - *Theorem 5* covers the cell, and holds for each copy of it. A client reads two of three: while a
//!   write is under way, or reached one node only, one read sees it and a later one does not
//!   (`under_the_articles_text_an_answer_may_be_less_than_one_before`). Cassandra repairs what such a read
//!   finds before it answers, unless the table has `read_repair = 'NONE'`. Here it does not matter: a
//!   QUORUM acknowledged each answered value, if need be to the replica that answers, which writes
//!   again what it read (`no_answer_is_less_than_one_given_before_the_question`).
//! - *A replica whose clock shows another century* takes all others there, for ever: the cell cannot go
//!   back, and no delete with an ordinary timestamp removes it. Here such a clock is not believed
//!   (`a_clock_far_ahead_of_the_nodes_is_not_believed`). If the cell is there already (an old replica
//!   may have written it), the time goes on from it: order is what matters. Beyond the year 9999 it is
//!   no time, and every question is refused with the remedy
//!   (`a_cell_with_what_is_no_time_is_refused_by_name`).
//!
//! # What the remedy costs
//!
//! - While it catches up the time is ahead, for about twice as long as it was ahead: ten minutes become
//!   twenty. By the article it would be right after ten. For a queue, which needs an order and no date,
//!   that is acceptable.
//! - It goes half as fast meanwhile: two questions within two intervals may get the same answer. At
//!   full rate it would be ahead for ever, and at no rate it would stand.
//! - Each update reads a node's clock. If none of the nodes' clocks is within `max_ahead` of the
//!   replicas', no clock is believed: the time still goes on, at half the rate.
//! - Replicas of the article's text may run beside these: their answers depend on read repair, those of
//!   this module do not (`beside_old_replicas_no_answer_of_ours_is_less_than_one_before`).

mod asking;
mod client;
mod course;
mod grpc;
mod replica;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::recipe::{Names, Naming, TableSpec};
use super::statement::Ident;
use crate::{Error, Result};

pub use client::TimeClient;
pub use grpc::{TimeAccess, TimePort};
pub use replica::{TimeReplica, TimeUpdate};

/// The name of the cell and its table. The article names the cell and no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeTable {
    pub(crate) table: Ident,
    pub(crate) name: Ident,
    pub(crate) value: Ident,
    pub(crate) cell: String,
}

/// Thesis §5.4: a cell. The thesis names no table.
const TIME: TableSpec = TableSpec {
    name: Naming::new(
        "time-table",
        &[("TABLE", "global_time", "")],
        "The time of the time service's replicas",
    ),
    columns: Naming::new(
        "time-columns",
        &[("NAME", "name", "text"), ("VALUE", "value", "bigint")],
        "Its columns: the cell's name, its value",
    ),
    key: 1,
};

const CELL: Naming = Naming::new(
    "time-cell",
    &[("NAME", "GlobalTime", "")],
    "The cell; each cell is a separate time",
);

pub(crate) const NAMES: &[Naming] = &[TIME.name, TIME.columns, CELL];

impl Default for TimeTable {
    /// The row `GlobalTime` of `global_time(name, value)`.
    fn default() -> Self {
        Self::of(&Names::default())
    }
}

impl TimeTable {
    /// Names the table and its columns exactly as the server has them: a `text`, the key, and a
    /// `bigint`.
    #[must_use]
    pub fn named(table: &str, name: &str, value: &str) -> Self {
        let [table, name, value] = [table, name, value].map(Ident::new);
        Self { table, name, value, ..Self::default() }
    }

    pub(crate) fn of(names: &Names) -> Self {
        let [name, value] = names.each(&TIME.columns).map(Ident::new);
        let cell = names.one(&CELL).to_owned();
        Self { table: Ident::new(names.one(&TIME.name)), name, value, cell }
    }

    pub(crate) fn created(&self) -> String {
        TIME.created(&self.table, &[&self.name, &self.value])
    }

    /// Uses another row: each row is a time of its own.
    #[must_use]
    pub fn with_cell(mut self, cell: &str) -> Self {
        cell.clone_into(&mut self.cell);
        self
    }
}

/// The options of a replica.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until a replica is made with them"]
pub struct TimeOptions {
    interval: Duration,
    max_ahead: Duration,
}

impl Default for TimeOptions {
    fn default() -> Self {
        Self { interval: Duration::from_millis(500), max_ahead: Duration::from_mins(1) }
    }
}

impl TimeOptions {
    /// The shortest interval: below it, updates would be most of what Cassandra does.
    pub const INTERVAL_MIN: Duration = Duration::from_millis(10);
    /// The longest.
    pub const INTERVAL_MAX: Duration = Duration::from_mins(1);

    /// How long a replica pauses between two updates of the cell. Two questions within one interval may
    /// get the same answer.
    ///
    /// Default: 500 ms. Minimum: 10 ms. Maximum: 1 min.
    ///
    /// Source: the thesis, §5.4.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How far a replica's clock may be ahead of a Cassandra node's and still be believed.
    ///
    /// Default: 60 s, as far as lockers let the nodes' clocks differ.
    pub fn max_ahead(mut self, max_ahead: Duration) -> Self {
        self.max_ahead = max_ahead;
        self
    }

    fn checked(self) -> Result<Self> {
        let (least, most) = (Self::INTERVAL_MIN, Self::INTERVAL_MAX);
        if (least..=most).contains(&self.interval) {
            return Ok(self);
        }
        let message = format!("an interval is {least:?} to {most:?}, not {:?}", self.interval);
        Err(Error::InvalidConfig { message })
    }
}
