//! The authority of a scope with fallback (DESIGN §10) as a small model: no two stores that do not
//! know each other let two clients believe that they hold one lock.

mod client;
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
pub use time::Durations;
pub use world::{Action, Bounds, Start, Who, World};

/// Name of the property that at most one hold of the lock is safe.
pub const EXCLUSIVE: &str = "two holds are safe";
/// Name of the property that no safe hold has a token below one that was safe before.
pub const IN_ORDER: &str = "a safe hold is older than one that was safe before";
