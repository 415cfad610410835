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
    /// A minority that does not lead is cut off from all other nodes.
    SplitMinority,
    /// No two nodes reach each other: there is no majority.
    SplitMajority,
    /// The leader is cut off from all other nodes; clients still reach it.
    SplitLeader,
    /// Nodes reach only their neighbours in a ring; of three, two reach each other by none but the
    /// third.
    SplitRing,
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
    /// A node's wall clock jumps by up to a day, and back.
    ClockStep,
    /// A node's clocks all go wrong by up to 4 %.
    ClockRate,
    /// A node's disk is full, up to the last byte or below its reserve.
    FullDisk,
    /// Each sync of a node's disk takes 10 to 400 ms.
    SlowDisk,
    /// A bit of a dead node's log is flipped: the node refuses to start with it, or has lost nothing.
    /// One that refuses gets its folder back as it was; nothing ran on it meanwhile.
    Damage,
    /// A node loses its power, and with it all that was not synced.
    PowerNode,
    /// A minority loses its power at once.
    PowerMinority,
    /// All nodes lose their power at once.
    PowerAll,
}

/// What a kind of fault takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing but processes.
    Nothing,
    /// A network namespace for each program; on loopback a relay does what it can.
    NetworkOrRelay,
    /// A network namespace for each program.
    Network,
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

    /// As it is written on a command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What it takes.
    pub fn needs(self) -> Need {
        match self {
            Self::KillNode
            | Self::KillLeader
            | Self::KillClient
            | Self::StopNode
            | Self::StopLeader
            | Self::StopClient
            | Self::SlowDisk
            | Self::Damage
            | Self::PowerNode
            | Self::PowerMinority
            | Self::PowerAll => Need::Nothing,
            Self::SplitMinority | Self::SplitMajority | Self::Reset | Self::Delay => {
                Need::NetworkOrRelay
            }
            Self::SplitLeader | Self::SplitRing | Self::OneWay | Self::Loss | Self::Rate => {
                Need::Network
            }
            Self::ClockStep | Self::ClockRate => Need::Clocks,
            Self::FullDisk => Need::Disks,
        }
    }
}
