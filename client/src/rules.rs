//! The rules of authority that this crate upholds (DESIGN §10), by the names they have in the model that
//! was searched for what each of them carries (`tests/model/src/authority/rule.rs`).
//!
//! The line that upholds one asks [`lacks`] whether it is to be broken, which in every build but this
//! crate's own tests is the constant `false`: so a test takes one rule away and sees that a life finds it.

/// A rule of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The client counts from when it sent the keepalive that was answered.
    CoverFromSendTime,
    /// Authority counts for a guard only if its epoch is the one in the guard's token.
    CoverOfOwnEpoch,
    /// A client waits W before it takes over.
    #[cfg(any(test, feature = "cassandra"))]
    TakeOverWaits,
    /// Also from `draining`, should the leader have died there.
    #[cfg(any(test, feature = "cassandra"))]
    DrainTakeOverWaits,
    /// It counts W from the end of its read.
    #[cfg(any(test, feature = "cassandra"))]
    WaitFromReadEnd,
    /// Its CAS names the beat that it waited W for. (That every CAS names mode and epoch too is in `holdfast-cassandra`.)
    #[cfg(any(test, feature = "cassandra"))]
    BeatCompared,
    /// A take-over of unknown outcome gives nothing.
    #[cfg(any(test, feature = "cassandra"))]
    UnknownTakeOverFails,
    /// A hold in Cassandra is safe for V from the start of the read.
    #[cfg(any(test, feature = "cassandra"))]
    HoldFromReadStart,
    /// A read extends it only if it shows the epoch of its token, or the draining after it.
    #[cfg(any(test, feature = "cassandra"))]
    ReadOfOwnEpoch,
    /// And only a hold that was there when the read began.
    #[cfg(any(test, feature = "cassandra"))]
    ReadOfHeld,
    /// Nobody new enters while it drains.
    #[cfg(any(test, feature = "cassandra"))]
    NoEntryWhileDraining,
    /// A client may take over from `draining`.
    #[cfg(any(test, feature = "cassandra"))]
    TakeOverFromDraining,
    /// A process that locks by another recipe, other tables or another cluster than its scope is tied to is refused.
    #[cfg(any(test, feature = "cassandra"))]
    TiesCompared,
    /// W and V are those of the row that was read last. (In the model they are the same for all.)
    #[cfg(any(test, feature = "cassandra"))]
    DurationsOfTheRow,
}

holdfast_mutants::switch_of_rules!(pub(crate) Rule);
