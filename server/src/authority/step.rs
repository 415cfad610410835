//! What a [`Keeper`](super::keeper::Keeper) says: what is to be done next, what it has, and what is wrong.

use holdfast_cassandra::authority::AuthorityRow;
use holdfast_seams::Moment;

/// What is to be done to the row next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowStep {
    /// Nothing before that.
    Wait(Moment),
    /// Read it.
    Read,
    /// Ask a quorum whether this node still leads.
    Confirm,
    /// Make it.
    Create(AuthorityRow),
    /// Change it.
    Change {
        /// From what is known.
        from: AuthorityRow,
        /// To this.
        to: AuthorityRow,
    },
    /// Count the leases in Cassandra.
    Count,
}

/// What is to be proposed to the core next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreStep {
    /// Nothing before that; `None`: before something is learned.
    Wait(Option<Moment>),
    /// That nobody is granted anything.
    Suspend,
    /// That who waits is granted, in that epoch.
    Resume(u16),
    /// That epoch.
    Raise(u16),
}

/// A right that belongs to an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) epoch: u16,
    /// On this node's clock.
    pub(super) until: Moment,
}

/// What is wrong, for people and for the alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no room for another switch.
    EpochsEnd,
    /// The row of a scope that was served before is gone.
    RowGone,
    /// The row cannot be used as it is.
    RowOdd,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Changes of the mode that were seen.
    pub(super) switches: u64,
    /// Switches that were due and are refused, each once.
    pub(super) refused: u64,
}
