//! Scopes with fallback: whether this leader may say that a hold of their names is safe (DESIGN §10).
//!
//! One row in Cassandra per scope says which of two stores serves it. The leader bumps the row's beat;
//! from the start of a bump that was answered as applied it has authority for 0.8 W, and every answer
//! that renews a lease carries the rest of it. Clients believe in a hold for no longer than that. A
//! client that cannot reach the server takes over one W after it has read the row, if the beat is still
//! the same.
//!
//! ```text
//!                    row_step, core_step
//!   machine (rules) ◀──────────────────────── driver ───▶ authority row, leases (Cassandra)
//!          │  answers, moments                 │  └─────▶ Suspend, Resume, RaiseEpoch (core)
//!          ▼                                   ▼
//!      authority ───────────────────────────▶ board ───▶ KeptAlive, Opened
//! ```
//!
//! The core has the scopes themselves, replicated, so that no two leaders disagree about a prefix. A
//! leader without the setting `[fallback]` keeps none: it suspends them, and its answers say that it has
//! no authority.
//!
//! # Where this goes further than DESIGN §10
//!
//! - A new scope's row is `preparing`: the leader gets authority by its bumps as usual, and no client
//!   takes over. It becomes `native` only when every session that was open before has learned of the
//!   scope or is over: a client that does not know of the scope would go on to believe its lease alone.
//! - A scope that is removed leaves its row as `retired`, with its epoch; no client takes over from it.
//!   When the scope is made again, the core's epoch is above that already.
//! - A missing row is made only for a scope that never had authority. Otherwise the row was deleted, and
//!   it is unknown what holds there are in Cassandra, and under which tokens.
//! - The row holds W and V, taken from the leader's settings, and clients go by the row: so they cannot
//!   differ from what leaders go by. When a leader may change them is in `changing.rs`.
//! - The beat of a new row begins at a random number, so that a change meant for a deleted row does not
//!   fit it.

mod board;
mod changing;
#[cfg(feature = "fallback")]
mod database;
mod driver;
mod lead;
mod machine;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::authority::{Buckets, Durations};
use holdfast_keyspace::database::Database;

pub use lead::{NotRetired, ScopeAuthorities};
pub use machine::AuthorityStatus;

pub(crate) use board::Board;

use crate::config::FallbackConfig;

/// How a leader keeps its scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackSettings {
    /// W, V, and the durations derived from them.
    pub durations: Durations,
    /// How long holders in Cassandra may go on once no client enters: at most half of W, so that no
    /// client takes the drain for that of a dead leader.
    pub drain_limit: Duration,
    /// How long Cassandra serves at least, once it does.
    ///
    /// A round trip takes three epochs: at one in five minutes the 32,000 available epochs last for 37
    /// days of nothing but switching.
    pub switch_every: Duration,
    /// The partitions of a scope's leases; `None`: what it has, and [`Buckets::OF_NEW_SCOPES`] for a new one.
    pub buckets: Option<Buckets>,
}

#[cfg(test)]
impl Default for FallbackSettings {
    fn default() -> Self {
        Self {
            durations: Durations::default(),
            drain_limit: Duration::from_secs(10),
            switch_every: Duration::from_mins(5),
            buckets: None,
        }
    }
}

/// The keyspace that the settings name; `None` in a build without the driver, which the check of the
/// settings refuses to use.
#[cfg(feature = "fallback")]
#[expect(clippy::unnecessary_wraps, reason = "a build without the driver has none")]
pub(crate) fn database(fallback: &FallbackConfig) -> Option<Arc<dyn Database>> {
    Some(database::of(fallback))
}

/// The keyspace that the settings name; `None` in a build without the driver, which the check of the
/// settings refuses to use.
#[cfg(not(feature = "fallback"))]
pub(crate) fn database(_: &FallbackConfig) -> Option<Arc<dyn Database>> {
    None
}
