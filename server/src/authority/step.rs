//! The outputs of a [`AuthorityMachine`](super::machine::AuthorityMachine): the next steps, the authority, and what is wrong.

use holdfast_keyspace::authority::AuthorityRow;
use holdfast_runtime::Instant;

/// The next step on the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowStep {
    /// Do nothing before that moment.
    Wait(Instant),
    /// Read it.
    Read,
    /// Ask a quorum whether this node still leads.
    Confirm,
    /// Make this row.
    Create(AuthorityRow),
    /// Change the row.
    Change {
        /// From this row, the last one known.
        from: AuthorityRow,
        /// To this row.
        to: AuthorityRow,
    },
    /// Count the leases in Cassandra.
    Count,
}

/// The next command for the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreStep {
    /// Propose nothing before that moment; `None`: before something is learned.
    Wait(Option<Instant>),
    /// Suspend the scope: no request is granted.
    Suspend,
    /// Resume the scope in that epoch: waiters are granted.
    Resume(u16),
    /// Raise the epoch to this one.
    Raise(u16),
}

/// The authority of a leader, for one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) epoch: u16,
    /// On this node's clock.
    pub(super) until: Instant,
}

/// What is wrong with a scope, for people and for the alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no room for another switch.
    EpochsEnd,
    /// The row of a scope that was served before is gone.
    RowGone,
    /// The row cannot be used as it is.
    RowOdd,
}

/// Counters of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Changes of the row's mode that were seen.
    pub(super) switches: u64,
    /// Switches that were due and were refused, each counted once.
    pub(super) refused: u64,
}
