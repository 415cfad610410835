//! Scopes with fallback: whether this leader may say that a hold of their names is safe (DESIGN §10).
//!
//! One row in Cassandra per scope says which of two stores serves it. The leader bumps its beat; from
//! the start of a bump that was answered as applied it has authority for 0.8 W, and tells it with every
//! answer that renews a lease. Clients believe in a hold for no longer than that. A client that cannot
//! reach the server takes over W after it has read the row, if the beat is still what it was.
//!
//! ```text
//!                    row_step, core_step
//!   keeper (rules) ◀──────────────────────── driver ───▶ authority row, leases (Cassandra)
//!          │  answers, moments                 │  └─────▶ Suspend, Resume, RaiseEpoch (core)
//!          ▼                                   ▼
//!      authority ───────────────────────────▶ board ───▶ KeptAlive, Opened
//! ```
//!
//! The scopes themselves are the core's, replicated, so that no two leaders disagree about a prefix. A
//! leader without the setting `[fallback]` keeps none: it suspends them, and says that it has no
//! authority.
//!
//! # Where this goes further than DESIGN §10
//!
//! - A new scope's row is `preparing`: the leader has authority by its bumps as ever, and nobody takes
//!   over. It is `native` only when every session that was open before has heard of the scope or is
//!   over: a client that does not know of it would go on to believe its lease alone.
//! - A scope that is removed leaves its row as `retired`, from which nobody takes over, with the epoch it
//!   has. Made again, the core's epoch lies above it already.
//! - A row that is not there is made only for a scope that never had authority. Otherwise it was deleted:
//!   what holds there are in Cassandra, and under which tokens, nobody can tell.
//! - The row says W and V, as the leader's settings have them, and clients go by the row: so they cannot
//!   differ from what leaders go by. When a leader may change them is in `changing.rs`.
//! - The beat of a row that is made begins anywhere, so that a change that was meant for one that was
//!   deleted does not fit it.

mod board;
mod changing;
#[cfg(feature = "fallback")]
mod database;
mod driver;
mod keeper;
mod lead;
mod leases;
mod standing;
mod step;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use holdfast_cassandra::database::Database;

pub(crate) use board::Board;
pub use lead::{Keepers, NotRetired};
pub use standing::Standing;
pub use terms::Terms;

use crate::config::FallbackConfig;

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
