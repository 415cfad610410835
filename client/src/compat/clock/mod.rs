//! The time service: several replicas that tell one time, which does not go back.
//!
//! Seed: the thesis, §5.4, listing 8 and theorem 5, and §6 on its fault (in Russian); its steps are cited
//! where they are, in `cell.rs` and below. One cell of a table, `GlobalTime`, holds the largest local time
//! of all replicas, and is its own timestamp. Places of a [`Queue`](super::Queue) can be by it.
//!
//! # What it promises
//!
//! - **Order.** An answer is never less than any that any replica gave to anybody before the question was
//!   asked. It is for that, and not for the date: two answers may be equal, and the time may be ahead of
//!   every clock.
//! - **It goes on**, as long as one replica and a QUORUM of the table's nodes live, also while it is ahead
//!   of every living replica's clock: then at half the rate of a watch, until the clocks have caught up.
//! - **It does not run away.** A replica whose clock is ahead of the clock of a Cassandra node by more than
//!   [`TimeOptions::max_ahead`] does not write what its clock shows.
//! - **Liveness.** A question is answered with one read, or an error; a [`TimeClient`] asks another replica
//!   then.
//!
//! # Assumptions
//!
//! Nobody writes the cell but with its value as its timestamp, and nobody deletes it. Watches run at the
//! same rate, more or less. The clocks of Cassandra's nodes matter for `max_ahead` alone, and nodes may
//! lose what they acknowledged only as said in `docs/cassandra.md`: the cell then goes back to what the
//! others have.
//!
//! # What it costs
//!
//! An answer is a read at QUORUM, shared by all who asked a replica while the one before it was on its way;
//! and a write at QUORUM the first time that this replica sees a value that it did not write. An update,
//! each [`TimeOptions::interval`], is two reads at the same time (the cell, a node's clock) and mostly a
//! write. Nothing of it grows with the number of questions but the answers.
//!
//! The time moves once in an interval of each replica: who comes within it may be told the same as the one
//! before. In a queue those two are in the order of their ids. It is at most that much behind the largest
//! clock, and a round trip.
//!
//! # Where the seed's text can stop or go back
//!
//! - *"If localTime > globalTime"* (listing 8, step 3). A replica that ran ahead by ten minutes and died
//!   leaves a cell that nobody passes: for ten minutes the time stands (§6 says so;
//!   `under_the_seeds_text_time_stands_for_as_long_as_a_dead_replica_was_ahead`). Here a replica that finds
//!   the cell where it was goes on from there by its own watch
//!   (`after_a_dead_replica_that_was_ahead_time_goes_on_and_converges`).
//! - *Theorem 5* speaks of the cell, and is right of each copy of it. A client reads two of three: while a
//!   write is on its way, or came to one node only, one read sees it and a later one does not
//!   (`under_the_seeds_text_an_answer_may_be_less_than_one_before`). Cassandra repairs what such a read
//!   finds before it answers, unless the table says `read_repair = 'NONE'`. Here it does not matter: what
//!   is answered was acknowledged by a QUORUM, if need be to the replica that answers, by a write of what
//!   it read (`no_answer_is_less_than_one_given_before_the_question`).
//! - *A replica whose clock shows another century* carries everybody there, for ever: the cell cannot go
//!   back, and no delete with an ordinary timestamp removes it. Here it is not believed
//!   (`a_clock_far_ahead_of_the_nodes_is_not_believed`), and a cell that is there already (an old replica
//!   may have written it) is gone on from: order is what matters. Beyond the year 9999 it is no time, and
//!   everybody is refused with what to do (`a_cell_with_what_is_no_time_is_refused_by_name`).
//!
//! # What the mend costs
//!
//! - While it catches up the time is ahead, for about twice as long as it was ahead: ten minutes become
//!   twenty. In the seed it would be right after ten. We take that for a queue, which needs an order and no
//!   date.
//! - It goes half as fast meanwhile: two who come within two intervals may be told the same. At full rate
//!   it would be ahead for ever, and with no rate it would stand.
//! - A node's clock is read with each update. If none of the nodes' clocks is within `max_ahead` of the
//!   replicas', no clock is believed: the time still goes on, at half the rate.
//! - Replicas of the seed's text may run beside ours: what theirs answer rests on read repair, what ours
//!   answer does not (`beside_old_replicas_no_answer_of_ours_is_less_than_one_before`).

mod asking;
mod cell;
mod client;
mod course;
mod replica;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::statement::Ident;
use crate::{Error, Result};
pub use client::TimeClient;
pub use replica::{TimeReplica, TimeUpdate};

/// Where the cell is. The seed names the cell and no table.
#[derive(Clone, Debug)]
pub struct TimeTable {
    pub(crate) table: Ident,
    pub(crate) name: Ident,
    pub(crate) value: Ident,
    pub(crate) cell: String,
}

impl Default for TimeTable {
    /// The row `GlobalTime` of `global_time(name, value)`.
    fn default() -> Self {
        Self::named("global_time", "name", "value")
    }
}

impl TimeTable {
    /// The table's name, and those of its columns, as the server has them: a `text`, the key, and a
    /// `bigint`.
    #[must_use]
    pub fn named(table: &str, name: &str, value: &str) -> Self {
        let [table, name, value] = [table, name, value].map(Ident::new);
        Self { table, name, value, cell: "GlobalTime".into() }
    }

    /// With another row: each is a time of its own.
    #[must_use]
    pub fn with_cell(mut self, cell: &str) -> Self {
        cell.clone_into(&mut self.cell);
        self
    }
}

/// What a replica is told.
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

    /// How long a replica pauses between two updates of the cell. Who comes within one may be told the same
    /// time as somebody before.
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
        Err(Error::Setting { message })
    }
}
