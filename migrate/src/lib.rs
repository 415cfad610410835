//! Moves lock rows from Cassandra into Holdfast: which rows there are, which can be imported, and
//! why not the rest.
//!
//! ```text
//!  scan     reads the tables by token ranges, many at once          the only place that names scylla
//!    │      LockRows: all that the tables say of one lock
//!  plan     rows → what is imported, skipped, or contradicts itself  pure: no clock, no I/O
//!    │      LockPlan
//!  report   counts, examples, a line for each
//!  import   sends it to the native store, again and again until it is answered
//!  verify   compares the two
//! ```
//!
//! [`layout`] defines the tables and columns of each recipe, and how a cell is read. The recipes
//! themselves are those of `holdfast_recipes` and of the articles they come from (DESIGN §9).
//!
//! A scan of a table that is written meanwhile is no snapshot: each lock is as it was at some
//! instant during the read. A range of a table cannot be read at SERIAL either, so an LWT without
//! an outcome may or may not be seen. A plan helps an operator to decide; safety does not rest on
//! it.
#![cfg(feature = "cassandra")]

pub mod cutover;
pub mod import;
pub mod layout;
pub mod native;
pub mod plan;
pub mod report;
pub mod rollback;
pub mod scan;
pub mod sequences;
pub mod verify;
