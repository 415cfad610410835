//! The reports of a watch.

use serde::{Deserialize, Serialize};

use super::{Holding, Shown};

/// One report of a watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It broke: earlier reports no longer count, and the state follows anew.
    Restarted,
    /// The present state of a lock.
    Lock {
        /// Its name.
        name: String,
        /// Its holders.
        holders: Vec<Holding>,
        /// The number of its waiters.
        waiting: u64,
        /// Its value, if it has one.
        value: Option<Shown>,
    },
    /// The state is complete: a lock that was not named is free and without a value.
    Synced,
    /// Something happened to a lock.
    Change {
        /// Its name.
        name: String,
        /// The entry of the log that did it.
        index: u64,
        /// The number of waiters after all changes of this entry.
        waiting: u64,
        /// What happened.
        what: Happened,
    },
}

/// What happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// One more request waits.
    Queued,
    /// One request waits no more, without a grant.
    Left,
    /// A request was granted the lock.
    Granted(Holding),
    /// A holder released it.
    Released(Holding),
    /// A holder lost it without a release.
    Lost(Holding),
    /// Its value changed, or was removed.
    Value(Option<Shown>),
}
