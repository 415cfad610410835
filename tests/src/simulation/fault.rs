//! The faults of a simulated run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The node that a fault is injected into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The node that leads at that time.
    Leader,
    /// Some node that does not lead then.
    Follower,
    /// Any node, by its position among the existing ones.
    Node(u64),
}

/// The shape of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The leader alone on one side, clients too.
    LeaderAlone,
    /// The leader with as many others as make a minority.
    LeaderInMinority,
    /// The same with half of the clients: they reach no other node.
    LeaderWithClients,
    /// Some follower alone.
    FollowerAlone,
    /// Each node reaches its two neighbours only.
    Ring,
    /// Two halves; only one node reaches both.
    Bridge,
    /// Every node alone.
    Shattered,
    /// Messages from the leader are lost, messages to it arrive.
    LeaderMute,
    /// Messages to the leader are lost, messages from it arrive.
    LeaderDeaf,
}

/// The direction in which messages are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Messages from other nodes to the leader: mostly answers.
    ToLeader,
    /// Messages from the leader to other nodes.
    FromLeader,
    /// Both, one after the other; they begin and end at times of their own.
    LeaderBothWays,
    /// Messages from nodes to a client.
    ToClient(u64),
    /// Messages from a client.
    FromClient(u64),
}

/// The hosts that do not reach Cassandra.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutOff {
    /// The node that leads when the fault begins.
    Leader,
    /// The clients that lock in scopes.
    Clients,
    /// One of them, by its place among those that live.
    Client(u64),
    /// Nodes and clients.
    Everybody,
}

/// What happens to a disk's bytes while its node is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// One bit of a file is flipped.
    FlippedBit,
    /// A file ends too early.
    CutFile,
    /// A file is replaced by its content at the beginning of the fault.
    OldFile,
}

/// One fault, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A node's process is killed; everything that it wrote is there.
    Kill(Who),
    /// A node loses its process and all unsynced writes; if there are any within a moment, that moment is chosen.
    Crash(Who),
    /// All nodes lose their processes and all unsynced writes at once.
    PowerCut,
    /// A node is asked to stop, and stops.
    Stop(Who),
    /// A node does nothing for a time.
    Pause(Who),
    /// A client does nothing for a time, or until its safe deadline has just passed; now and then others with it.
    PauseClient(u64),
    /// A client is killed for good; a new one comes.
    KillClient(u64),
    /// Nodes do not reach each other.
    Partition(Shape),
    /// Messages between nodes, and between nodes and clients, are late and lost.
    Loss,
    /// The delays of messages vary much.
    Delay,
    /// Calls between nodes arrive twice.
    Duplication,
    /// Links carry few bytes a second.
    SlowLinks,
    /// Every connection of a node breaks at once.
    Break(Who),
    /// A client's connection falls silent: nothing arrives, and neither end learns of it.
    Silence(u64),
    /// Messages from a client arrive, messages to it do not.
    DeafClient(u64),
    /// A disk syncs slowly.
    SlowDisk(Who),
    /// A disk syncs nothing more until its node is killed.
    StuckDisk(Who),
    /// A disk takes no more bytes; the node stops, and comes back when there is space.
    FullDisk(Who),
    /// A node is killed and its disk damaged.
    Damage(Who, Damage),
    /// A node's data is lost: it comes back under a new id.
    Wipe(Who),
    /// The clocks of all nodes take new rates. Those of clients keep theirs: the deadlines that they record are converted to the world's
    /// clock by their present rate.
    Rates,
    /// A node's wall clock steps.
    WallStep(Who),
    /// A new node joins, learns, and then votes.
    Grow,
    /// A node leaves for good.
    Shrink(Who),
    /// Leadership is handed over.
    Transfer,
    /// Messages and answers are held back on live connections, and arrive afterwards: those of a stream in order, calls in any order.
    HoldBack(Way),
    /// Nothing passes between a node and the others for seconds. Their connections outlive that, and TCP sends again what was written
    /// meanwhile.
    Retransmission(Who),
    /// Half of the clients reach only the leader, for longer than an election and their leases. The leader reaches no other node for
    /// a part of that; its connections outlive it.
    PartialPartition,
    /// A disk is slower by a factor, for a long time.
    CrawlingDisk(Who, u32),
    /// A disk finishes nothing for a while, up to minutes, and then continues.
    HungDisk(Who),
    /// A node is slower by a factor, for a long time.
    SlowNode(Who, u32),
    /// A follower needs a snapshot, and snapshots travel at so many bytes a second.
    SlowSnapshots(u64),
    /// A node can open no file any more, and accepts no connection.
    NoDescriptors(Who),
    /// A client's decoder fails on messages longer than so many bytes.
    DecodeLimit(u64, u64),
    /// A client reads nothing from its connections, which live on.
    NeverReads(u64),
    /// A node does nothing for longer than the longest lease.
    LongPause(Who),
    /// A client does nothing for longer than the longest lease.
    LongPauseClient(u64),
    /// All nodes are down for so long that clients of scopes take over.
    Outage,
    /// The clients that lock in scopes reach no node for as long.
    StoreAway,
    /// Cassandra is out of reach.
    TablesAway(CutOff),
    /// Out of a thousand statements, the number that are applied and not answered, never applied and not answered, applied after their
    /// client got an unknown outcome, or refused because too few replicas are there.
    #[expect(missing_docs, reason = "the four say it")]
    TablesUnsure { answer_lost: u64, request_lost: u64, late: u64, unavailable: u64 },
    /// Out of a thousand statements, the number that take up to seconds.
    SlowTables(u64),
    /// The wall clock of a coordinator is ahead by so many milliseconds.
    TablesClock(u64, u64),
    /// A client that locks in scopes does nothing for a time.
    PauseScopeClient(u64),
    /// A client that locks in scopes is killed for good; a new one comes.
    KillScopeClient(u64),
    /// An operator ends the session of a client.
    EndSession(u64),
    /// An operator closes a hold.
    TakeLock(u64),
    /// An operator takes the right to acquire from a part of the clients, and gives it back, again and again.
    Forbid(u64),
    /// An operator freezes some names, and thaws them afterwards.
    Freeze(u64),
    /// An operator sets the limit of the permits of a lock.
    SetLimit(u64),
}

/// A fault without its target, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "as of the fault with the same name")]
pub enum Kind {
    Kill,
    Crash,
    PowerCut,
    Stop,
    Pause,
    PauseClient,
    KillClient,
    Partition,
    OneWay,
    Loss,
    Delay,
    Duplication,
    SlowLinks,
    Break,
    Silence,
    DeafClient,
    SlowDisk,
    StuckDisk,
    FullDisk,
    FlippedBit,
    CutFile,
    OldFile,
    Wipe,
    Rates,
    WallStep,
    Grow,
    Shrink,
    Transfer,
    HoldBack,
    Retransmission,
    PartialPartition,
    CrawlingDisk,
    HungDisk,
    SlowNode,
    SlowSnapshots,
    NoDescriptors,
    DecodeLimit,
    NeverReads,
    LongPause,
    LongPauseClient,
    Outage,
    StoreAway,
    TablesAway,
    TablesUnsure,
    SlowTables,
    TablesClock,
    PauseScopeClient,
    KillScopeClient,
    EndSession,
    TakeLock,
    Forbid,
    Freeze,
    SetLimit,
}

impl Kind {
    /// Every kind that is drawn one by one.
    pub const ALL: [Self; 31] = [
        Self::Kill,
        Self::Crash,
        Self::PowerCut,
        Self::Stop,
        Self::Pause,
        Self::PauseClient,
        Self::KillClient,
        Self::Partition,
        Self::OneWay,
        Self::Loss,
        Self::Delay,
        Self::Duplication,
        Self::SlowLinks,
        Self::Break,
        Self::Silence,
        Self::DeafClient,
        Self::SlowDisk,
        Self::StuckDisk,
        Self::FullDisk,
        Self::FlippedBit,
        Self::CutFile,
        Self::OldFile,
        Self::Wipe,
        Self::Rates,
        Self::WallStep,
        Self::Grow,
        Self::Shrink,
        Self::Transfer,
        Self::HoldBack,
        Self::Retransmission,
        Self::PartialPartition,
    ];

    /// The number of kinds at the end of [`ALL`](Self::ALL) that were added later and are drawn from a stream of their own: so the other
    /// draws of a seed stay as they were.
    pub(super) const LATER: usize = 3;

    /// The kinds that last, or are beyond what a lease covers: each is drawn by itself, from a stream of its own draws, so that the other
    /// draws of a seed stay as they were.
    pub const LASTING: [Self; 9] = [
        Self::CrawlingDisk,
        Self::HungDisk,
        Self::SlowNode,
        Self::SlowSnapshots,
        Self::NoDescriptors,
        Self::DecodeLimit,
        Self::NeverReads,
        Self::LongPause,
        Self::LongPauseClient,
    ];

    /// The kinds that only runs with scopes see; each such run gets several.
    pub const OF_SCOPES: [Self; 8] = [
        Self::Outage,
        Self::StoreAway,
        Self::TablesAway,
        Self::TablesUnsure,
        Self::SlowTables,
        Self::TablesClock,
        Self::PauseScopeClient,
        Self::KillScopeClient,
    ];

    /// What operators do; only runs with rules see it, each several times.
    pub const OF_OPERATORS: [Self; 3] = [Self::EndSession, Self::TakeLock, Self::Forbid];

    /// What operators order for everybody; a part of the runs sees it, each several times.
    pub const ORDERS: [Self; 2] = [Self::Freeze, Self::SetLimit];

    /// All of them.
    pub fn every() -> impl Iterator<Item = Self> {
        let drawn_apart = Self::LASTING.into_iter().chain(Self::OF_SCOPES);
        let of_operators = Self::OF_OPERATORS.into_iter().chain(Self::ORDERS);
        Self::ALL.into_iter().chain(drawn_apart).chain(of_operators)
    }

    /// Whether it belongs to the first stream of draws.
    pub(super) fn is_of_the_first_stream(self) -> bool {
        const FIRST: usize = 28;
        Self::ALL.iter().take(FIRST).any(|kind| *kind == self)
    }

    /// Whether it changes who the members are.
    pub const fn changes_members(self) -> bool {
        matches!(
            self,
            Self::FlippedBit
                | Self::CutFile
                | Self::OldFile
                | Self::Wipe
                | Self::Grow
                | Self::Shrink
        )
    }
}

impl FromStr for Kind {
    type Err = String;

    /// By the name that the counts print.
    fn from_str(name: &str) -> Result<Self, String> {
        let all = || Self::every().map(|kind| kind.to_string()).collect::<Vec<_>>().join(", ");
        let found = Self::every().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| format!("there is no fault {name:?}; there are {}", all()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = serde_json::to_string(self).unwrap_or_default();
        f.write_str(name.trim_matches('"'))
    }
}

impl Fault {
    /// What it counts as.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Kill(_) => Kind::Kill,
            Self::Crash(_) => Kind::Crash,
            Self::PowerCut => Kind::PowerCut,
            Self::Stop(_) => Kind::Stop,
            Self::Pause(_) => Kind::Pause,
            Self::PauseClient(_) => Kind::PauseClient,
            Self::KillClient(_) => Kind::KillClient,
            Self::Partition(Shape::LeaderMute | Shape::LeaderDeaf) => Kind::OneWay,
            Self::Partition(_) => Kind::Partition,
            Self::Loss => Kind::Loss,
            Self::Delay => Kind::Delay,
            Self::Duplication => Kind::Duplication,
            Self::SlowLinks => Kind::SlowLinks,
            Self::Break(_) => Kind::Break,
            Self::Silence(_) => Kind::Silence,
            Self::DeafClient(_) => Kind::DeafClient,
            Self::SlowDisk(_) => Kind::SlowDisk,
            Self::StuckDisk(_) => Kind::StuckDisk,
            Self::FullDisk(_) => Kind::FullDisk,
            Self::Damage(_, Damage::FlippedBit) => Kind::FlippedBit,
            Self::Damage(_, Damage::CutFile) => Kind::CutFile,
            Self::Damage(_, Damage::OldFile) => Kind::OldFile,
            Self::Wipe(_) => Kind::Wipe,
            Self::Rates => Kind::Rates,
            Self::WallStep(_) => Kind::WallStep,
            Self::Grow => Kind::Grow,
            Self::Shrink(_) => Kind::Shrink,
            Self::Transfer => Kind::Transfer,
            Self::HoldBack(_) => Kind::HoldBack,
            Self::Retransmission(_) => Kind::Retransmission,
            Self::PartialPartition => Kind::PartialPartition,
            Self::CrawlingDisk(..) => Kind::CrawlingDisk,
            Self::HungDisk(_) => Kind::HungDisk,
            Self::SlowNode(..) => Kind::SlowNode,
            Self::SlowSnapshots(_) => Kind::SlowSnapshots,
            Self::NoDescriptors(_) => Kind::NoDescriptors,
            Self::DecodeLimit(..) => Kind::DecodeLimit,
            Self::NeverReads(_) => Kind::NeverReads,
            Self::LongPause(_) => Kind::LongPause,
            Self::LongPauseClient(_) => Kind::LongPauseClient,
            Self::Outage => Kind::Outage,
            Self::StoreAway => Kind::StoreAway,
            Self::TablesAway(_) => Kind::TablesAway,
            Self::TablesUnsure { .. } => Kind::TablesUnsure,
            Self::SlowTables(_) => Kind::SlowTables,
            Self::TablesClock(..) => Kind::TablesClock,
            Self::PauseScopeClient(_) => Kind::PauseScopeClient,
            Self::KillScopeClient(_) => Kind::KillScopeClient,
            Self::EndSession(_) => Kind::EndSession,
            Self::TakeLock(_) => Kind::TakeLock,
            Self::Forbid(_) => Kind::Forbid,
            Self::Freeze(_) => Kind::Freeze,
            Self::SetLimit(_) => Kind::SetLimit,
        }
    }
}
