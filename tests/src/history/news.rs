//! What a watch tells.

use serde::{Deserialize, Serialize};

use super::{Holding, Shown};

/// One thing that a watch told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It broke: nothing that it told before counts any more, and the state follows anew.
    Restarted,
    /// A lock as it is.
    Lock {
        /// Its name.
        name: String,
        /// Who holds it.
        holders: Vec<Holding>,
        /// How many wait for it.
        waiting: u64,
        /// Its value, if it has one.
        value: Option<Shown>,
    },
    /// The state is complete: what was not named is free and without a value.
    Synced,
    /// Something happened to a lock.
    Change {
        /// Its name.
        name: String,
        /// The entry of the log that did it.
        index: u64,
        /// How many wait after all that this entry changed.
        waiting: u64,
        /// What happened.
        what: Happened,
    },
}

/// What happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// One more waits.
    Queued,
    /// One waits no more, without a grant.
    Left,
    /// Somebody holds it.
    Granted(Holding),
    /// Somebody gave it back.
    Released(Holding),
    /// Somebody holds it no more, without having given it back.
    Lost(Holding),
    /// Its value is another one, or none.
    Value(Option<Shown>),
}
