//! Lock rows from Cassandra into Holdfast: what is there, what of it can be imported, and why not the
//! rest.
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
//! [`layout`] says which tables and columns each recipe has, and how a cell is understood. The recipes
//! themselves are those of `holdfast::compat` and of the seeds they come from (DESIGN §9).
//!
//! What is read of a table that is written meanwhile is not one state of it: each lock is as it was at
//! some instant during the read. A range of a table cannot be read at SERIAL either, so an LWT without
//! an outcome may or may not be seen. A plan is what a person decides by, not what safety rests on.
#![cfg(feature = "cassandra")]

pub mod cutover;
pub mod import;
pub mod layout;
pub mod native;
pub mod plan;
pub mod report;
pub mod rollback;
pub mod scan;
pub mod verify;
