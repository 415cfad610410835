//! The rules of DESIGN §5 that can be taken away, one at a time.

/// A rule that carries part of the argument: without it, the model finds two holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A keepalive is acknowledged only after a quorum round (§5.1).
    QuorumRound,
    /// That round was begun after the keepalive came in (§5.1).
    RoundAfterReceipt,
    /// An answer counts for the round in which its question was sent, and for no later one, however
    /// late it comes (§5.1).
    AnswerToThisRound,
    /// A new tenure gives every session a full TTL (§5.3).
    FullTtl,
    /// So does a tenure of a node that led before, whatever deadlines it still knows (§5.3).
    NoOldDeadlines,
    /// An expiry that was proposed in another tenure than the one it names is refused (§5.2).
    TenureCheck,
    /// The client counts from when it sent the keepalive that was answered (§5.4).
    SafeFromSendTime,
    /// A leader acknowledges nothing before an entry of its own tenure was committed (§5.1).
    OwnEntryCommitted,
    /// Nor before it has applied it (§5.1).
    OwnEntryApplied,
    /// It acknowledges no keepalive while an expiry of that session is under way (§5.2).
    NoAckDuringExpiry,
    /// A keepalive's number is never sent twice (§5.4).
    FreshSeq,
    /// A node that lost its data does not come back under its id (I20, I22).
    DataLossIsFinal,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::QuorumRound,
        Self::RoundAfterReceipt,
        Self::AnswerToThisRound,
        Self::FullTtl,
        Self::NoOldDeadlines,
        Self::TenureCheck,
        Self::SafeFromSendTime,
        Self::OwnEntryCommitted,
        Self::OwnEntryApplied,
        Self::NoAckDuringExpiry,
        Self::FreshSeq,
        Self::DataLossIsFinal,
    ];
}
