//! The table that the thesis left blank: rows of `holdfast bench` and `holdfast cassandra … bench`, as tables and plots of
//! `docs/thesis-benchmark.md`.

mod plot;
mod row;
mod table;

use std::fmt;

pub use plot::{Plot, draw};
pub use row::{Cell, Keys, RowError, STORES, Store, THREADS, cells};
pub use table::tables;

/// What makes the tables: its marks stand around them.
pub const PROGRAM: &str = "holdfast-thesis-table";

/// A figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Locks that were acquired and released, each second.
    Rate,
    /// Half of all acquires took no longer than this, milliseconds.
    Median,
    /// 99 of 100 acquires took no longer than this, milliseconds.
    Slow,
    /// Jain's index of the threads' grants: 1 if all had the same number, 1/n if one had all.
    Fairness,
    /// The most consecutive grants of one thread.
    LongestRun,
    /// Statements to the database for one acquire and release.
    Operations,
}

impl Figure {
    /// Its key in a row, and the divisor of its value.
    fn key(self) -> (&'static str, f64) {
        match self {
            Self::Rate => ("ops_per_s", 1.0),
            Self::Median => ("acq_p50_us", 1e3),
            Self::Slow => ("acq_p99_us", 1e3),
            Self::Fairness => ("jain", 1.0),
            Self::LongestRun => ("longest_run", 1.0),
            Self::Operations => ("round_trips_per_op", 1.0),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rate => "locks per second",
            Self::Median => "time to get the lock, p50, ms",
            Self::Slow => "time to get the lock, p99, ms",
            Self::Fairness => "fairness (Jain's index)",
            Self::LongestRun => "longest run of one thread",
            Self::Operations => "database operations per lock",
        })
    }
}
