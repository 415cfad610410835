//! The rules of authority that a leader upholds (DESIGN §10), by the names they have in the model that was
//! searched for what each of them carries (`tests/model/src/authority/rule.rs`).
//!
//! The line that upholds one asks [`lacks`] whether it is to be broken, which in every build but this
//! crate's own tests is the constant `false`: so a test takes one rule away and sees that it is noticed.
//!
//! The last but one five are of leaders whose settings differ (`changing.rs`). Two of them are of V, which is the same
//! for all in the model. The last one is of leaders of two clusters, of which the model has one.
//!
//! Four more of a leader's have no line that could be bent: `ReadSettlesNoBump` and `ReadGivesNoAuthority`,
//! because a keeper does not remember a bump that was not answered; `SuspendedTimeCounts`, because there is
//! no other clock; `EpochCompared` and `SerialRead`, which are in `cassandra/src/authority.rs`.

/// A rule of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// It counts its authority from the start of the bump.
    AuthorityFromBumpStart,
    /// A bump of unknown outcome gives none.
    UnknownBumpFails,
    /// Before it raises the core's epoch, it waits until no hold in Cassandra is safe.
    ReturnWaits,
    /// To the end.
    ReturnWaitsToTheEnd,
    /// Counted from the end of the read or change that showed the row.
    ReturnWaitFromEnd,
    /// So does a leader that finds the row native, and did not make it so.
    AnyLeaderWaits,
    /// A return of unknown outcome starts no wait.
    UnknownReturnFails,
    /// What it writes into the row, but for a bump, has an epoch above the core's, too.
    AboveTheCore,
    /// It writes only after a quorum round that began after it wrote last.
    RoundBeforeWrite,
    /// It raises a native row that is below the core's epoch.
    RowIsRaised,
    /// The row that its bump leaves has a W that is no shorter than the one it counts its authority by.
    RowWCoversAuthority,
    /// It shortens the row's W only when all authority is over that was counted by the longer one.
    ShorterWWaits,
    /// Which it counts from a bump since which nobody else wrote.
    ShorterWAlone,
    /// It changes the row's V only in the core's epoch, where no hold in Cassandra is safe.
    VStands,
    /// It waits for holds in Cassandra by the row's V, not by its own.
    ReturnWaitByTheRow,
    /// It uses no row that another cluster's leaders keep.
    OwnCluster,
}

holdfast_mutants::switch_of_rules!(pub(super) Rule);
