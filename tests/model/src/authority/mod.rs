//! The authority of a scope with fallback (DESIGN §10) as a small model: two stores that do not know
//! each other never let two clients believe that they hold one lock.
//!
//! One or two servers, one or two clients of theirs, one or two clients that fall back on Cassandra,
//! and the row between them. Two servers may both believe that they lead. A read or write of the row
//! is asked for, carried out and answered in three steps; its answer may be lost, it may be given up
//! and be lost, or come late. In a bad state two holds are safe, or one whose token is below one
//! that was safe before; in a stuck one, neither store ever serves again though nothing goes wrong
//! any more.
//!
//! # What is left out, and why that is no hole
//!
//! - Time is a tick for all, as in the model of §5. Clocks of different rates are in [`Durations`]:
//!   every right is as long, and every wait as short, as they make it.
//! - Raft: what the true leader proposes commits now, later or never, whoever leads by then. A
//!   deposed leader may write the row once more, for its quorum round may have been just before, and
//!   acknowledges keepalives for as long as it has authority.
//! - Sessions (§5) end nothing here: authority alone bounds a native hold. The core grants as it
//!   likes; `Suspend` and `Resume` spare clients a grant in vain, and carry nothing.
//! - The lock in Cassandra is a lease that is right by itself (DESIGN §9), taken, with its fence
//!   drawn, in one step. It may be taken any time after the read that allows it, and be over any time.
//! - Beats, tokens' numbers and fences begin anew with each epoch, so that they tell least.
//! - Two leaders may have different W in their settings, and clients go by the row's. V is the same for all: when a
//!   leader may change it is argued in DESIGN §10 and in `server/src/authority/changing.rs`.
//! - There is one scope, with one name in it, and no bound on switches but the last epoch.
//!
//! # Gaps of the first design that this model found
//!
//! A hold in Cassandra that was acquired late, after others took over from `draining` and held, could be
//! extended by a read that had begun before it and showed that `draining`. [`Rule::ReadOfHeld`] mends it.
//! (So would it, if a hold were lost for good once its time is over, and none began after it.)
//!
//! A leader that finds the row below the core's epoch raises it to that epoch, and a leader
//! waits for holds in Cassandra only if the row is native *above* the core's. After a restore the core
//! may be so far ahead that a return ends at the core's very epoch, or is raised to it: then nobody
//! waits. [`Rule::AboveTheCore`] mends it: what a leader writes, but for a bump, has an epoch above
//! both, so that every way back to native ends in the wait and in `RaiseEpoch`.
//!
//! # What was found harmless, and is no rule here
//!
//! An earlier model found these bendings harmless with the rules in force. Here the first three are
//! not forbidden: keepalives acknowledged without a quorum round, grants without authority, and an
//! authority of a whole W where clocks run alike. The others were not tried again: a `RaiseEpoch`
//! that keeps the old holds, no draining between Cassandra and native, a take-over that was answered
//! as applied in place of the read after it.

mod choice;
mod client;
mod outcome;
mod row;
mod rule;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod time;
mod world;

pub use rule::Rule;
pub use state::State;
pub use time::{Durations, Longer};
pub use world::{Action, Bounds, Start, Who, World};

/// Name of the property that at most one hold of the lock is safe.
pub const EXCLUSIVE: &str = "two holds are safe";
/// Name of the property that no safe hold has a token below one that was safe before.
pub const IN_ORDER: &str = "a safe hold is older than one that was safe before";
