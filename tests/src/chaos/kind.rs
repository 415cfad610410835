//! The kinds of faults.

use clap::ValueEnum;

/// What can go wrong in a run. Each is bounded in time, and undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// SIGKILL to a node.
    KillNode,
    /// SIGKILL to the leader.
    KillLeader,
    /// SIGKILL to a client process; another one comes in its place.
    KillClient,
    /// A node that does not lead is frozen (SIGSTOP) and goes on.
    StopNode,
    /// The leader is frozen and goes on.
    StopLeader,
    /// A client process is frozen and goes on.
    StopClient,
    /// A node or a client process is frozen for longer than any lease of the clients, and goes on.
    LongStop,
    /// A node runs for a tenth or a hundredth of each 200 ms.
    SlowNode,
    /// A node has as many open files as it may have.
    NoDescriptors,
    /// A node or a client process gets no more memory than it has, or starts with less than it had: it
    /// goes on, or ends because it cannot.
    LittleMemory,
    /// A minority that does not lead is cut off from all other nodes.
    SplitMinority,
    /// No two nodes reach each other: there is no majority.
    SplitMajority,
    /// The leader is cut off from all other nodes; clients still reach it.
    SplitLeader,
    /// Nodes reach only their neighbours in a ring; of three, two reach each other by none but the
    /// third.
    SplitRing,
    /// A client process reaches one node and no other, for longer than its leases.
    SplitClient,
    /// One node is not heard by another, which it hears.
    OneWay,
    /// A node or a client loses 5 to 50 % of the packets sent to it.
    Loss,
    /// Every connection of a node or a client is reset.
    Reset,
    /// What a node or a client sends passes at 64 to 1024 kbit/s.
    Rate,
    /// What is sent to a node and what it answers is late by up to 400 ms, each time by another time.
    Delay,
    /// What nodes send to the leader, or the leader to them, or all of them to a client process, is held
    /// back while their connections live, and comes late: after an election, or after a lease.
    HoldAnswers,
    /// A node's wall clock jumps by up to a day, and back.
    ClockStep,
    /// A node's clocks all go wrong by up to 4 %.
    ClockRate,
    /// A node's disk is full, up to the last byte or below its reserve.
    FullDisk,
    /// Each sync of a node's disk takes 10 to 400 ms.
    SlowDisk,
    /// Each sync of a node's disk takes 10 or 100 times as long as usual, for long.
    CrawlingDisk,
    /// A node's disk hangs for 5 to 40 s and goes on. A node that waits longer than `disk_stall_ms` ends
    /// by itself.
    HungDisk,
    /// A node's writes, or its syncs, fail (EIO): it ends by itself at the first.
    FailedWrite,
    /// A bit of a dead node's log is flipped: the node refuses to start with it, or has lost nothing.
    /// One that refuses gets its folder back as it was; nothing ran on it meanwhile.
    Damage,
    /// A node loses its power, and with it all that was not synced.
    PowerNode,
    /// A minority loses its power at once.
    PowerMinority,
    /// All nodes lose their power at once.
    PowerAll,
    /// A node joins on a spare machine: it learns, and then votes.
    AddMember,
    /// A voter that does not lead is removed, and ends. Only where one was added before.
    RemoveMember,
    /// The leader is removed, and ends. Only where one was added before.
    RemoveLeader,
    /// A node loses its disk. Under its old id it is refused, by itself and by the leader; then another
    /// one with a new id takes its place.
    WipeNode,
    /// Leadership is handed to another voter.
    TransferLeader,
}

/// How many nodes a kind of fault takes away from a possible majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// None, or only for as long as an election.
    Nobody,
    /// One.
    One,
    /// A minority.
    Minority,
    /// So many that no majority is left; this is the purpose of the fault.
    Majority,
}

/// A thing that only one fault at a time may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sole {
    /// The set of members: it changes one by one.
    Members,
    /// The file that describes the fault of a disk: it describes one.
    DiskFile,
    /// The path of a host's outgoing packets: where a detour translates ports, packets that are
    /// sent on late would be translated twice.
    WayOut,
}

/// What a kind of fault needs on the machine it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing but processes.
    Nothing,
    /// A network namespace for each program; on loopback a relay does what it can.
    NetworkOrRelay,
    /// A network namespace for each program.
    Network,
    /// The same, and a device that leads packets to the harness.
    Tun,
    /// A library that shows a process another clock.
    Clocks,
    /// A small disk for each node.
    Disks,
}

impl Kind {
    /// All of them.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Its name on a command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it needs.
    pub fn needs(self) -> Need {
        match self {
            Self::KillNode
            | Self::KillLeader
            | Self::KillClient
            | Self::StopNode
            | Self::StopLeader
            | Self::StopClient
            | Self::LongStop
            | Self::SlowNode
            | Self::NoDescriptors
            | Self::LittleMemory
            | Self::SlowDisk
            | Self::CrawlingDisk
            | Self::HungDisk
            | Self::FailedWrite
            | Self::Damage
            | Self::PowerNode
            | Self::PowerMinority
            | Self::PowerAll
            | Self::AddMember
            | Self::RemoveMember
            | Self::RemoveLeader
            | Self::WipeNode
            | Self::TransferLeader => Need::Nothing,
            Self::SplitMinority | Self::SplitMajority | Self::Reset | Self::Delay => {
                Need::NetworkOrRelay
            }
            Self::SplitLeader
            | Self::SplitRing
            | Self::SplitClient
            | Self::OneWay
            | Self::Loss
            | Self::Rate => Need::Network,
            Self::HoldAnswers => Need::Tun,
            Self::ClockStep | Self::ClockRate => Need::Clocks,
            Self::FullDisk => Need::Disks,
        }
    }

    /// How many nodes cannot be part of a majority while it lasts.
    pub fn takes(self) -> Takes {
        match self {
            Self::KillClient
            | Self::StopClient
            | Self::SplitClient
            | Self::Loss
            | Self::Reset
            | Self::Rate
            | Self::Delay
            | Self::ClockStep
            | Self::SlowDisk
            | Self::AddMember
            | Self::RemoveMember
            | Self::RemoveLeader
            | Self::TransferLeader => Takes::Nobody,
            Self::KillNode
            | Self::KillLeader
            | Self::StopNode
            | Self::StopLeader
            | Self::LongStop
            | Self::SlowNode
            | Self::NoDescriptors
            | Self::LittleMemory
            | Self::SplitLeader
            | Self::SplitRing
            | Self::OneWay
            | Self::HoldAnswers
            | Self::CrawlingDisk
            | Self::HungDisk
            | Self::FailedWrite
            | Self::ClockRate
            | Self::FullDisk
            | Self::Damage
            | Self::PowerNode
            | Self::WipeNode => Takes::One,
            Self::SplitMinority | Self::PowerMinority => Takes::Minority,
            Self::SplitMajority | Self::PowerAll => Takes::Majority,
        }
    }

    /// What it needs for itself: no other fault with the same need begins meanwhile.
    pub fn sole(self) -> Option<Sole> {
        match self {
            Self::AddMember | Self::RemoveMember | Self::RemoveLeader | Self::WipeNode => {
                Some(Sole::Members)
            }
            Self::SlowDisk | Self::CrawlingDisk | Self::HungDisk | Self::FailedWrite => {
                Some(Sole::DiskFile)
            }
            Self::Delay | Self::HoldAnswers => Some(Sole::WayOut),
            _ => None,
        }
    }
}
