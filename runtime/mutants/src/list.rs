//! The list: every deliberate bug, its name on the command line, and the rule that it breaks.

use std::fmt;
use std::str::FromStr;

/// A name on the command line that no mutant has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMutant {
    /// The name that was given.
    pub name: String,
}

impl fmt::Display for UnknownMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no mutant named {:?}", self.name)
    }
}

impl std::error::Error for UnknownMutant {}

/// Makes the enum and its tables from one list, so that every mutant has a name, a rule and a
/// description.
macro_rules! mutants {
    ($($variant:ident, $name:literal, $rule:literal, $bug:literal;)*) => {
        /// A deliberate bug. The rules are those of DESIGN: its sections, and the invariants of its
        /// §12.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mutant {
            $(
                #[doc = concat!($bug, ". Breaks ", $rule, ".")]
                $variant,
            )*
        }

        impl Mutant {
            /// Every mutant, in the order of the list.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name on the command line and in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The rules of DESIGN that it breaks.
            pub const fn rule(self) -> &'static str {
                match self {
                    $(Self::$variant => $rule,)*
                }
            }

            /// The bug in one clause.
            pub const fn bug(self) -> &'static str {
                match self {
                    $(Self::$variant => $bug,)*
                }
            }
        }
    };
}

mutants! {
    // The lock table.
    ReleaseIgnoresToken, "release-ignores-token", "I13",
        "a release ends the newest hold of its session, whatever its token says";
    OverSessionActs, "over-session-acts", "I5, I11",
        "a session that is over, and only has not lost all its locks yet, is served like an open one";
    OutdatedHoldCurrent, "outdated-hold-current", "I24, I35",
        "a hold that an epoch has ended counts as current until its turn to be taken away";
    LeftHeadsForgotten, "left-heads-forgotten", "I15, I31",
        "the heads of queues that a command has left for later ones are forgotten";
    RevokedSessionActs, "revoked-session-acts", "I35",
        "a session that was revoked goes on as if it were not";
    RevokedPassesAtOnce, "revoked-passes-at-once", "I35, I6",
        "a session that is revoked ends at once, while its client relies on its holds";
    ClosedPassesAtOnce, "closed-passes-at-once", "I35, I6",
        "a hold that is closed ends at once, while its client relies on it";
    ApplyAsksNoRules, "apply-asks-no-rules", "I34",
        "a command is applied under the rights that it had when it was proposed";
    RulesAllowAll, "rules-allow-all", "I36",
        "the rules, once they are on, allow everything to everybody";
    RulesAllowNothing, "rules-allow-nothing", "§14",
        "no role gives its owners any right";
    SetValueIgnoresToken, "set-value-ignores-token", "I13",
        "a value is set by whoever asks for it, holder or not";
    LastInQueueFirst, "last-in-queue-first", "I9",
        "the last in the queue is granted first";
    BargingTry, "barging-try", "I9",
        "a request that would not wait is granted what fits, past those who wait";
    WriterOvertaken, "writer-overtaken", "I9",
        "a reader joins the readers although a writer waits";
    RetryGoesToEnd, "retry-goes-to-end", "I9, I12",
        "a waiting request that comes again goes to the end of its queues";
    OutcomeNotKept, "outcome-not-kept", "I12",
        "a request that comes again under its id is taken for a new one";
    SetGrantedInParts, "set-granted-in-parts", "I14",
        "a set is granted as soon as one of its locks is free";
    SetKeepsOneName, "set-keeps-one-name", "I11, I15",
        "a grant of several locks that ends leaves one of them held";
    AnyQueueUnlooked, "any-queue-unlooked", "I15",
        "nobody looks at the queues that an `any` leaves with its grant";
    CancelKeepsPlace, "cancel-keeps-place", "I10, I12",
        "a waiter that is cancelled stays in its queues";
    StopTakesGrant, "stop-takes-grant", "I6, I12",
        "the end of a wait limit gives back a grant that came first";
    SessionEndKeepsWaits, "session-end-keeps-waits", "I11, I15",
        "the waits of a session that ended stay in their queues";
    SuspectNotSet, "suspect-not-set", "§4, value",
        "the value of a holder whose lease ran out is not suspect";
    LostReleaseIsClean, "lost-release-is-clean", "§4, value",
        "the value of a hold that its client lost, and gives back when it is connected again, is not suspect";
    TableBytesNotCounted, "table-bytes-not-counted", "I27",
        "a request is kept without being counted towards the bytes that the table may take";
    PermitsCountedAsOne, "permits-counted-as-one", "I2",
        "a request for several permits is granted where only one is free";
    AboveLimitWaits, "above-limit-waits", "I15",
        "a waiter for more permits than a lowered limit stays at the head, and all behind it wait for ever";
    LimitOutlivesHolders, "limit-outlives-holders", "DESIGN §16",
        "the limit that a request brought along stays when nobody holds the lock or waits for it";
    HeadStartIgnored, "head-start-ignored", "I9",
        "a request with a head start waits behind those that came before it";
    AgeStandsStill, "age-stands-still", "I9",
        "the table grows no older, so a request with a head start overtakes those that came long before it";
    OwnerWaitsForItself, "owner-waits-for-itself", "DESIGN §16",
        "an owner that asks for a lock it holds waits for itself";
    FrozenIsGranted, "frozen-is-granted", "DESIGN §16",
        "a lock is granted while its name is frozen";
    ThawLooksAtNothing, "thaw-looks-at-nothing", "I15",
        "those who waited for a frozen lock are not granted it when it is thawed";
    SequenceRepeats, "sequence-repeats", "I37",
        "a block of a sequence begins with the last number of the one before";
    MoreUrgentUntold, "more-urgent-untold", "DESIGN §16",
        "holders are not told that somebody waits who is more urgent than all before";
    SnapshotWithoutTerms, "snapshot-without-terms", "I17",
        "a snapshot leaves out what requests say besides their locks, and their ranks";
    SnapshotWithoutLimits, "snapshot-without-limits", "I17",
        "a snapshot leaves out the limits that were set for good";
    SnapshotWithoutClosed, "snapshot-without-closed", "I17",
        "a snapshot leaves out which locks are closed";
    FloorIgnored, "floor-ignored", "I14",
        "a request that needs some of its locks is granted as soon as one is free";
    LeastNotCounted, "least-not-counted", "DESIGN §16",
        "the leader opens a closed lock at once";
    HoldAtLeastIgnored, "hold-at-least-ignored", "DESIGN §16",
        "a lock passes on before its hold has lasted its least";
    SnapshotWithoutSequences, "snapshot-without-sequences", "I17",
        "a snapshot leaves out the sequences";
    LocksLeftBehind, "locks-left-behind", "I33",
        "a lock that nobody holds, waits for or left a value with stays in the table";
    StampGoesBack, "stamp-goes-back", "I8",
        "a leader whose wall clock lags sets the table's stamp back";
    ImportRepeats, "import-repeats", "I25",
        "a row that was imported before comes in again once its lock is free";
    ImportKeepsItsLease, "import-keeps-its-lease", "I25",
        "a row that is renewed in the other store and imported again runs out as it would have before";
    HistoryTwice, "history-twice", "I39",
        "a node's history has an entry again that is applied again after a restart";
    HistoryHidesGaps, "history-hides-gaps", "I39",
        "a node's history does not show what it lacks";
    ImportedWaiterEnters, "imported-waiter-enters", "I25",
        "an imported waiter holds a lock whose holder has not come in yet";
    ClaimLosesPlace, "claim-loses-place", "I9, I25",
        "who claims an imported place goes to the end of its queue";
    DedupeLostInSnapshot, "dedupe-lost-in-snapshot", "I12, I17",
        "a snapshot is read without the outcomes kept for retries";
    SnapshotWithoutQueue, "snapshot-without-queue", "I10, I17",
        "a snapshot is read without those who wait";
    SnapshotWithoutValues, "snapshot-without-values", "I17, I19",
        "a snapshot is read without the values of locks";
    SnapshotForgetsTokens, "snapshot-forgets-tokens", "I3, I17",
        "the token counter of a snapshot is read as one less than it was";
    RestoreRepeatsTokens, "restore-repeats-tokens", "I3, §15",
        "a restored cluster goes on with the token counter of the backup";
    RestoreRepeatsNumbers, "restore-repeats-numbers", "I37, §15",
        "a sequence goes on after a restore with the last number of the backup";
    RestoreGrantsAtOnce, "restore-grants-at-once", "I6, §15",
        "a restored cluster grants while clients of the old one may rely on their holds";
    RestoredScopeUnmarked, "restored-scope-unmarked", "I3, I24, §15",
        "a restored scope gets authority in the epoch of the backup";
    RestoredValueTrusted, "restored-value-trusted", "§15",
        "a value is not suspect after a restore";

    // Leases, at the leader.
    ExpiryFromOtherTenure, "expiry-from-other-tenure", "§5.2, I6",
        "an expiry decided by the deadlines of an older tenure is accepted";
    NoFullTtl, "no-full-ttl", "§5.3, I6",
        "a new tenure gives sessions the margin, not a full TTL";
    KeepaliveWithoutQuorum, "keepalive-without-quorum", "§5.1, I6",
        "a keepalive is acknowledged without confirming leadership";
    KeepaliveBeforeOwnEntry, "keepalive-before-own-entry", "§5.1, §7, I6",
        "a tenure begins, and acknowledges, before an entry of its own is applied";
    KeepaliveWhileExpiring, "keepalive-while-expiring", "§5.2, I6",
        "a keepalive is acknowledged while the expiry of its session is on its way";
    NobodysIsAnothers, "nobodys-is-anothers", "I6",
        "a session that was opened while members knew no callers is refused to its client once rules are on";
    ResumeWithoutQuorum, "resume-without-quorum", "§5.1, I6, I23",
        "a resume is answered, and renews, without confirming leadership";
    StreamEndEndsSession, "stream-end-ends-session", "§6, I6",
        "a stream that ends closes its session";
    GhostPush, "ghost-push", "I4, I23",
        "a request is told of a grant before that is committed";
    WatchLosesChange, "watch-loses-change", "I23",
        "of the changes that one entry of the log makes, a watch tells the first";
    ClosedNotNamed, "closed-not-named", "I35",
        "a leader renews a session without naming its closed holds";

    // Replication.
    OlderAcknowledgementCounts, "older-acknowledgement-counts", "§5.1, I6, I18",
        "the answer to a call of an earlier quorum round counts for the round under way";
    LeaderRestored, "leader-restored", "§7, I19",
        "a leader that crashed leads on in its old term";
    ReadWithoutQuorum, "read-without-quorum", "I18",
        "a read is answered without confirming leadership";
    ReplicaActsOnOwnClock, "replica-acts-on-own-clock", "I8, I16",
        "a replica stamps what it applies by its own wall clock";
    SnapshotNotKept, "snapshot-not-kept", "I30",
        "a snapshot is reported as kept, and the log purged below it, without being finished";
    AppendAcknowledgedEarly, "append-acknowledged-early", "I19",
        "an append is reported as stored before it is written";
    FalseQuorum, "false-quorum", "I16, I19",
        "a member that refused entries because its log conflicts is counted as having them";
    WipedNodeJoins, "wiped-node-joins", "§7, I20, I22",
        "a member that lost its data takes its place again under its old id";

    // The simulator's disk.
    FlushSkipped, "flush-skipped", "I19",
        "a commit is acknowledged without being synced";
    VoteNotSynced, "vote-not-synced", "I20",
        "a vote is answered without being synced";
    GuardIgnored, "guard-ignored", "I21, I22",
        "a store that lies behind its guard file is opened, and votes under its old id";

    // The client.
    SeqSentAgain, "seq-sent-again", "§5.4, I6",
        "an unanswered keepalive is sent again under its number, with a new send time";
    DeadlineFromReceipt, "deadline-from-receipt", "§5.4, I6",
        "the safe deadline counts from the receipt of the acknowledgement";
    DeadlineWithoutAllowance, "deadline-without-allowance", "§5.4, I6",
        "the safe deadline leaves no room for clocks of different rates";
    IsSafeIgnoresClock, "is-safe-ignores-clock", "§5.6, I6",
        "`is_safe` does not look at the clock";
    LateGrantDelivered, "late-grant-delivered", "§5.6, I6",
        "a grant that arrives after the safe deadline is handed out, as safe from its receipt";
    ClosedIsBelieved, "closed-is-believed", "I35",
        "a client goes on with a hold that the store names as closed";
    UnlistedHoldKept, "unlisted-hold-kept", "§5.1, I6",
        "a client extends a hold that the answer beside its stream does not list";
    OverGrantDelivered, "over-grant-delivered", "§5.1, I6",
        "a client hands out a grant that an answer beside its stream has shown to be over";
    ReleaseStaysSafe, "release-stays-safe", "§5.6, I24",
        "what is being given back stays safe in its guard";
    ReleasedNameStaysHeld, "released-name-stays-held", "§5.6, I24",
        "a name that was given back, while others of its set stay, is still believed to be held";
    ResumeLosesPlace, "resume-loses-place", "I9",
        "a client that resumes asks anew for what it waits for";

    // Bugs of other systems, put in the same place here; tests/README.md names the originals.
    TenureForgetsSessions, "tenure-forgets-sessions", "§5.3, I31",
        "a new leader keeps no deadline for sessions that were open before its tenure";
    ExpiryByWallClock, "expiry-by-wall-clock", "§5.2, I6",
        "a leader expires sessions by its wall clock";
    WatchRestartUntold, "watch-restart-untold", "I23",
        "a client's watch that breaks begins anew and does not say so";
    SnapshotSkipped, "snapshot-skipped", "I16, I17",
        "a node that takes a snapshot over goes on with the table that it had";
    SnapshotKeepsMembers, "snapshot-keeps-members", "I17, I22",
        "a node that takes a snapshot over keeps the members that it knew before";
    TruncationForgotten, "truncation-forgotten", "I19, I20",
        "a truncation of the log is not written to the disk";
    StrangerAdmitted, "stranger-admitted", "I22",
        "a node answers the members of another cluster";
    DoneBeforeReceived, "done-before-received", "I12",
        "a client confirms outcomes that it has not received";
    ResumeForgetsRelease, "resume-forgets-release", "I23, I32",
        "a client that resumes does not send its unanswered releases again";
    WatchGapBetweenPages, "watch-gap-between-pages", "I23",
        "what changes while a watch is told its first pages is left out";
    QuestionJoinsRound, "question-joins-round", "§5.1, I18",
        "a question that comes during a quorum round is answered with the outcome of that round";
    PreVoteSkipped, "pre-vote-skipped", "§7, I31",
        "a member that was cut off asks for votes without asking first whether it could win";
    HandOverToWhoLags, "hand-over-to-who-lags", "§7, I31",
        "a leader hands over to a voter that lacks entries";

    // Found by two reviews of the code.
    ReleaseRefusedForLoad, "release-refused-for-load", "I31",
        "what frees is weighed as what asks, and refused when much waits";
    ResumeRenewsAtOnce, "resume-renews-at-once", "§5.1, I31",
        "a resume renews before its client has taken State";
    UnmovedOpenedBelieved, "unmoved-opened-believed", "§5.4, I6",
        "a client counts its lease from an Opened that moved no deadline";
    StateBelievedByPage, "state-believed-by-page", "I23",
        "a client takes the first page of State for all of it";
    FollowerNeverCutOff, "follower-never-cut-off", "I27",
        "a follower that has an append in hand keeps the leader's whole log";
    SnapshotHoldsNothing, "snapshot-holds-nothing", "I31",
        "the log behind a snapshot on its way is purged";
    DiskHangsForEver, "disk-hangs-for-ever", "I31",
        "a node whose disk finishes nothing goes on";
    RoundsAfterHandOver, "rounds-after-hand-over", "I31",
        "a leader that has handed over asks its quorum on, and keeps the others from an election";
    FullLeaderStays, "full-leader-stays", "§7, I31",
        "a leader below its disk reserve does not hand over";
    ConfirmsCountAsFreeing, "confirms-count-as-freeing", "I31",
        "a value that is confirmed or cleared takes the place of a release";
    RefusedReleaseEndsStream, "refused-release-ends-stream", "I31",
        "a client whose release load refused begins a new stream";
    UnreadInsertForgotten, "unread-insert-forgotten", "I31",
        "a token whose insert had no answer is given up for free because it could not be read either";
    ClosedHoldsNotCounted, "closed-holds-not-counted", "I27",
        "holds that lasted too long, and that their client never releases, are kept without a bound";
    OwnedWhileCutOff, "owned-while-cut-off", "I15, I31",
        "a session comes to another identity while one of the two is cut off";
    PassingNotTold, "passing-not-told", "§6",
        "a request that passes those who wait is not told of them";
    CancelHoldsMark, "cancel-holds-mark", "I31",
        "a cancel that the table has no room for keeps done_below, and with it what takes the room";
    ConnectionsNotCapped, "connections-not-capped", "I31",
        "as many connections are let in as are configured, however few files there may be";
    ArrivingBytesNotCounted, "arriving-bytes-not-counted", "I27",
        "messages that have not arrived whole have no budget together";
    SnapshotWithoutEnd, "snapshot-without-end", "§7, I31",
        "a snapshot that makes no progress is never given up";
    CancelsCrowdReleases, "cancels-crowd-releases", "I31",
        "cancels of requests that the table does not know take the places of releases";
    OutboxCountsFramesOnly, "outbox-counts-frames-only", "I27",
        "what waits on a stream is bounded by its frames, whatever their bytes";
    PendingBytesNotCounted, "pending-bytes-not-counted", "I27",
        "commands that wait are bounded by their number, whatever their bytes";
    AcceptWithoutPause, "accept-without-pause", "I27",
        "a connection that no descriptor is left for is accepted again at once";
    WantOfDescriptorsIsADiskFault, "want-of-descriptors-is-a-disk-fault", "I31",
        "a wait for a descriptor counts as a disk that hangs, and ends its node";
    PauseCountsForLeases, "pause-counts-for-leases", "§5.8, I31",
        "the time in which a leader did not run counts for the leases of its sessions";
    WatchResumesOverGap, "watch-resumes-over-gap", "I23",
        "a watch goes on from an index although changes since then are gone";
    WatchEndsWithOneRound, "watch-ends-with-one-round", "I31",
        "one quorum round that fails ends every watch";

    // Found by the simulator.
    RefusedCopyEndsWait, "refused-copy-ends-wait", "I10",
        "a client takes the refusal of a copy of its request for the end of its wait";

    // Authority over a scope, in the row between both stores: the rules of DESIGN §10, by their
    // names in the model (`tests/model/src/authority/rule.rs`).
    CoverFromReceipt, "cover-from-receipt", "CoverFromSendTime, I24",
        "a client counts the authority over a scope from the receipt of the answer that tells of it";
    CoverOfAnyEpoch, "cover-of-any-epoch", "CoverOfOwnEpoch, I24",
        "authority of another epoch than that of its token covers a guard";
    TakeOverAtOnce, "take-over-at-once", "TakeOverWaits, I24",
        "a client takes a scope over without waiting W";
    DrainTakenOverAtOnce, "drain-taken-over-at-once", "DrainTakeOverWaits, I24",
        "a client takes a scope over that drains without waiting W";
    WaitFromReadStart, "wait-from-read-start", "WaitFromReadEnd, I24",
        "a client counts W from the start of the read that showed the row";
    BeatNotCompared, "beat-not-compared", "BeatCompared, I24",
        "a client takes a scope over although its leader has written the row in the meantime";
    UnknownTakeOverCounts, "unknown-take-over-counts", "UnknownTakeOverFails, I24",
        "a take-over that was not answered counts as done";
    HoldFromReadEnd, "hold-from-read-end", "HoldFromReadStart, I24",
        "a hold in Cassandra is safe for V from the end of the read that covers it";
    ReadOfAnyEpoch, "read-of-any-epoch", "ReadOfOwnEpoch, I24",
        "a read of a later epoch than that of its token covers a hold in Cassandra";
    ReadBeforeHoldCounts, "read-before-hold-counts", "ReadOfHeld, I24",
        "a read that began before a hold in Cassandra covers it";
    EntryWhileDraining, "entry-while-draining", "NoEntryWhileDraining, I24",
        "a client asks for locks in Cassandra while the scope drains";
    NoTakeOverFromDraining, "no-take-over-from-draining", "TakeOverFromDraining, I31",
        "no client takes over a scope whose leader died while it drained";
    DurationsOfFirstRow, "durations-of-first-row", "DurationsOfTheRow, I24",
        "a client goes on with the W and V that it read first";
    AuthorityFromBumpEnd, "authority-from-bump-end", "AuthorityFromBumpStart, I24",
        "a leader counts its authority from the end of the bump";
    UnknownBumpCounts, "unknown-bump-counts", "UnknownBumpFails, I24",
        "a bump that was not answered counts as done";
    ReturnAtOnce, "return-at-once", "ReturnWaits, I24",
        "a leader raises the core's epoch while holds in Cassandra may be safe";
    ReturnWaitsHalf, "return-waits-half", "ReturnWaitsToTheEnd, I24",
        "a leader waits for a third of the time that holds in Cassandra may be safe";
    ReturnWaitFromStart, "return-wait-from-start", "ReturnWaitFromEnd, I24",
        "a leader counts its wait for holds in Cassandra from when it asked for the change";
    OnlyReturnerWaits, "only-returner-waits", "AnyLeaderWaits, I24",
        "a leader that finds the row native, and did not write that, waits for no hold in Cassandra";
    UnknownReturnCounts, "unknown-return-counts", "UnknownReturnFails, I24",
        "a return that was not answered counts as done, and its wait from then";
    RowBelowCore, "row-below-core", "AboveTheCore, I24",
        "a leader gives a row an epoch that the core has come to already";
    RowWrittenWithoutQuorum, "row-written-without-quorum", "RoundBeforeWrite, I24",
        "a leader writes the row without confirming its leadership";
    RowNotRaised, "row-not-raised", "RowIsRaised, I31",
        "a native row below the core's epoch stays there";
    RowWBelowAuthority, "row-w-below-authority", "RowWCoversAuthority, I24",
        "the row has a shorter W than the leader counts its authority by";
    ShorterWAtOnce, "shorter-w-at-once", "ShorterWWaits, I24",
        "a leader shortens the row's W while authority by the longer one may be left";
    ShorterWBesideOthers, "shorter-w-beside-others", "ShorterWAlone, I24",
        "a leader shortens the row's W although another leader wrote the row in the meantime";
    VChangesAnyTime, "v-changes-any-time", "DESIGN §10, I24",
        "a leader changes the row's V while holds in Cassandra may count by it";
    ReturnWaitByOwnV, "return-wait-by-own-v", "DESIGN §10, I24",
        "a leader waits for holds in Cassandra by its own V";
    RowOfOtherCluster, "row-of-other-cluster", "DESIGN §10, I24",
        "a leader uses a row that the leaders of another cluster keep";

    // The recipes and the modes of a scope that moves (`client/recipes/src`).
    RecipeIgnoresSkew, "recipe-ignores-skew", "DESIGN §9, I24",
        "a recipe counts a row's whole TTL as safe, whatever the clocks of the nodes say";
    RecipeUnknownRenewalCounts, "recipe-unknown-renewal-counts", "DESIGN §9, I24",
        "a renewal without an answer moves the safe deadline on";
    AttemptsShareId, "attempts-share-id", "DESIGN §9, I24",
        "all attempts of a locker have one id, so the row of one is another's too";
    OwnCellInTheWay, "own-cell-in-the-way", "DESIGN §9, I31",
        "the head of a queue waits for a cell of its own to end";
    RenewalsWaitBehindLooks, "renewals-wait-behind-looks", "DESIGN §9, I31",
        "a renewal waits behind all statements of its process that wait for the partition";
    UnavailableIsNotDone, "unavailable-is-not-done", "DESIGN §9, I31",
        "a conditional statement counts as not done when too few replicas were alive for its commit";
    LapsedModeRowCounts, "lapsed-mode-row-counts", "modes 1, I24",
        "a process counts its row in the table of modes for longer than it stands there";
    LateRemovalCounts, "late-removal-counts", "work, removal",
        "an item counts as removed although its lease was over before the answer, and another worker may have taken it";
    NumbersUnderWayCount, "numbers-under-way-count", "lease, sequences",
        "a native number counts although its sequence may have been on its way back to Cassandra when it was drawn";
    SlotUnlistedAtOnce, "slot-unlisted-at-once", "work, list of slots",
        "a worker removes a slot from the list although an enqueuer may rely on its listing";
    ListingReliedOnForEver, "listing-relied-on-for-ever", "work, list of slots",
        "an enqueuer relies on its listing of a slot for ever, although a worker may have removed it";
    ModeRowLeavesGuards, "mode-row-leaves-guards", "modes 1, I24",
        "a process' row changes its mode while guards are left that it then does not cover";
    ModeActsAhead, "mode-acts-ahead", "modes 1, I24",
        "a process asks for locks in its new mode before its row says so";
    StageMovesPastRows, "stage-moves-past-rows", "modes 4, I24",
        "a scope moves although processes are in a mode that the move leaves behind";
    FallbackNotInTheWay, "fallback-not-in-the-way", "modes 4, I24",
        "the steps back from native and both look for no process in fallback";
    BothTakesNativeAlone, "both-takes-native-alone", "modes 1, I24",
        "a process in both does not take the recipe's lock";
    TiesNotCompared, "ties-not-compared", "modes, I24",
        "a process locks by another recipe or cluster than its scope is tied to";

    // The switch of a scope to the native store (`migrate/src`).
    OneLookIsEnough, "one-look-is-enough", "modes 4, I24",
        "a cutover leaves both because one look met no old client, without the operator's word";
    TombstonesCutShort, "tombstones-cut-short", "liveness",
        "a table that clients without TTLs may write keeps what they deleted for minutes";
    FailedItemIsNextAgain, "failed-item-is-next-again", "liveness",
        "a worker that gave an item back takes the same one again";
    NativeWaitersOverlooked, "native-waiters-overlooked", "modes 4, I24",
        "a rollback looks for no native client that waits";
    AnyRowCoversTheHold, "any-row-covers-the-hold", "modes 4, I24",
        "a rollback takes any row of a process of ours for the one of whoever holds the lock natively";
    DrawTiesTheScope, "draw-ties-the-scope", "modes, I24",
        "a draw from a sequence that was given away trusts whichever cluster it meets";
    UnregisteredIsHidden, "unregistered-is-hidden", "modes 4, I24",
        "a client that never registered counts as registered once another one is";
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mutant {
    type Err = UnknownMutant;

    fn from_str(name: &str) -> Result<Self, UnknownMutant> {
        let named = Self::ALL.iter().copied().find(|mutant| mutant.name() == name);
        named.ok_or_else(|| UnknownMutant { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name on the command line is the variant's name in kebab case.
    #[test]
    fn every_mutant_is_found_by_its_name() {
        for &mutant in Mutant::ALL {
            let mut kebab = String::new();
            for letter in format!("{mutant:?}").chars() {
                if letter.is_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.extend(letter.to_lowercase());
            }
            assert_eq!(mutant.to_string(), kebab);
            assert_eq!(kebab.parse(), Ok(mutant));
        }
        assert_eq!("nobody".parse::<Mutant>(), Err(UnknownMutant { name: "nobody".into() }));
    }
}
