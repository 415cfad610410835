//! The holder of a lock.

use std::time::Duration;

use crate::{FencingToken, Mode};

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The holder's session.
    pub session: u64,
    /// The session's label; it proves nothing. It may contain any characters: escape it before it
    /// goes to a terminal.
    pub label: String,
    /// The grant's fencing token.
    pub token: FencingToken,
    /// How long it has held the lock, by the leader's wall clock.
    pub held: Duration,
    /// The mode of the hold.
    pub mode: Mode,
    /// The hold was imported from another store, where its owner has the name in `label`, and no
    /// client has claimed it.
    pub is_imported: bool,
}

impl Holder {
    /// A holder of which the store reports its name and no more.
    pub fn named(label: String) -> Self {
        Self {
            session: 0,
            label,
            token: FencingToken::from_raw(0),
            held: Duration::ZERO,
            mode: Mode::Exclusive,
            is_imported: false,
        }
    }
}
