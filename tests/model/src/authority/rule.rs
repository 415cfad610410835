//! The rules of DESIGN §10 that can be taken away, one at a time.

/// A rule that carries part of the argument: without it, the model finds two safe holds, or a safe
/// one that is older than one that was safe before, or a scope that nobody ever serves again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A client waits W before it takes over.
    TakeOverWaits,
    /// Also from `draining`, should the leader have died there.
    DrainTakeOverWaits,
    /// It counts W from the end of its read.
    WaitFromReadEnd,
    /// Its CAS names the beat it read.
    BeatCompared,
    /// Every CAS names the epoch it was made for.
    EpochCompared,
    /// A take-over of unknown outcome gives nothing.
    UnknownTakeOverFails,
    /// A leader counts its authority from the start of the bump.
    AuthorityFromBumpStart,
    /// A bump of unknown outcome gives none.
    UnknownBumpFails,
    /// Neither does a later read that shows what the bump would have written: not from the bump.
    ReadSettlesNoBump,
    /// Nor from that read.
    ReadGivesNoAuthority,
    /// A leader's clock also counts the time in which its machine was suspended.
    SuspendedTimeCounts,
    /// The client counts from when it sent the keepalive that was answered.
    CoverFromSendTime,
    /// Authority counts for a guard only if its epoch is the one in the guard's token.
    CoverOfOwnEpoch,
    /// A hold in Cassandra is safe for V from the start of the read.
    HoldFromReadStart,
    /// A read extends it only if it shows the epoch of its token, or the draining after it.
    ReadOfOwnEpoch,
    /// And only a hold that was there when the read began.
    ReadOfHeld,
    /// Nobody new enters while it drains.
    NoEntryWhileDraining,
    /// Before it raises the core's epoch, a leader waits until no hold in Cassandra is safe.
    ReturnWaits,
    /// To the last tick.
    ReturnWaitsToTheEnd,
    /// Counted from the end of the read or CAS that showed the row.
    ReturnWaitFromEnd,
    /// So does a leader that finds the row native, and did not make it so.
    AnyLeaderWaits,
    /// A return of unknown outcome starts no wait.
    UnknownReturnFails,
    /// The row is read SERIAL: what was written before is seen.
    SerialRead,
    /// What a leader writes into the row has an epoch above the core's, too.
    AboveTheCore,
    /// A leader writes only after a quorum round that began after it wrote last.
    RoundBeforeWrite,
    /// A client may take over from `draining`.
    TakeOverFromDraining,
    /// A leader raises a native row that is below the core's epoch.
    RowIsRaised,
    /// The row that a leader's bump leaves has a W that is no shorter than the one it counts its authority by.
    RowWCoversAuthority,
    /// A leader shortens the row's W only when all authority is over that was counted by the longer one.
    ShorterWWaits,
    /// Which it counts from a bump since which nobody else wrote.
    ShorterWAlone,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 30] = [
        Self::TakeOverWaits,
        Self::DrainTakeOverWaits,
        Self::WaitFromReadEnd,
        Self::BeatCompared,
        Self::EpochCompared,
        Self::UnknownTakeOverFails,
        Self::AuthorityFromBumpStart,
        Self::UnknownBumpFails,
        Self::ReadSettlesNoBump,
        Self::ReadGivesNoAuthority,
        Self::SuspendedTimeCounts,
        Self::CoverFromSendTime,
        Self::CoverOfOwnEpoch,
        Self::HoldFromReadStart,
        Self::ReadOfOwnEpoch,
        Self::ReadOfHeld,
        Self::NoEntryWhileDraining,
        Self::ReturnWaits,
        Self::ReturnWaitsToTheEnd,
        Self::ReturnWaitFromEnd,
        Self::AnyLeaderWaits,
        Self::UnknownReturnFails,
        Self::SerialRead,
        Self::AboveTheCore,
        Self::RoundBeforeWrite,
        Self::TakeOverFromDraining,
        Self::RowIsRaised,
        Self::RowWCoversAuthority,
        Self::ShorterWWaits,
        Self::ShorterWAlone,
    ];
}
