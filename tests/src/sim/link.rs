//! How messages pass from one host to another, and which hosts are cut off from each other.

use std::fmt;
use std::time::Duration;

/// A host of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A node, by its id.
    Node(u64),
    /// A client, by its number.
    Client(u64),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id) => write!(f, "n{id}"),
            Self::Client(number) => write!(f, "c{number}"),
        }
    }
}

/// One direction between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Shortest delay of a message.
    pub delay_min: Duration,
    /// Longest delay, without a spike.
    pub delay_max: Duration,
    /// Out of a million messages, the number that take up to [`spike`](Self::spike) longer: later
    /// ones overtake them unless both belong to one stream.
    pub spikes_per_million: u32,
    /// The longest additional delay of those.
    pub spike: Duration,
    /// Out of a million messages, the number that are lost. A lost call gets no answer; on a stream
    /// the loss is a delay, because TCP sends again.
    pub lost_per_million: u32,
    /// Out of a million calls that may arrive twice, the number that do, the second time late.
    pub twice_per_million: u32,
    /// Capacity, bytes a second; `None`: unlimited.
    pub bytes_per_second: Option<u64>,
    /// Nothing passes.
    pub cut: bool,
}

impl Default for Link {
    /// A quiet local network.
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(100),
            delay_max: Duration::from_micros(400),
            spikes_per_million: 0,
            spike: Duration::from_millis(50),
            lost_per_million: 0,
            twice_per_million: 0,
            bytes_per_second: None,
            cut: false,
        }
    }
}

/// The faults that were injected into messages and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Messages that were sent.
    pub messages: u64,
    /// Messages that took longer than the link needs.
    pub delayed: u64,
    /// Messages that were lost.
    pub lost: u64,
    /// Calls that arrived twice.
    pub twice: u64,
    /// Messages that met a cut.
    pub cut: u64,
    /// Messages that were held back on live connections, and arrived after the hold; those of one
    /// stream that were held back together count once.
    pub held: u64,
    /// Connections that were broken.
    pub broken: u64,
    /// Connections of which one end did not learn of the end.
    pub half_open: u64,
    /// Ends that noticed by their keepalives that the other end is gone.
    pub missed: u64,
}

/// Why messages are held back although their connections live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Something in between keeps them, and later lets them go.
    Kept,
    /// Nothing passes, and the connections outlive that: TCP sends again afterwards.
    Outlived,
}

/// A part of the traffic one way between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What the sender asks: its requests on calls and streams that it began.
    Asked,
    /// What the sender answers on calls and streams that the receiver began.
    Answered,
}

impl Part {
    /// All traffic that way.
    pub const ALL: &[Self] = &[Self::Asked, Self::Answered];
}

/// Pairs (from, to) between which nothing passes.
pub type Cuts = Vec<(Host, Host)>;

/// Nothing passes between the two sides.
pub fn apart(one: &[Host], other: &[Host]) -> Cuts {
    one.iter().flat_map(|a| other.iter().flat_map(|b| [(*a, *b), (*b, *a)])).collect()
}

/// Nothing from `from` reaches `to`; the other way everything passes.
pub fn one_way(from: &[Host], to: &[Host]) -> Cuts {
    from.iter().flat_map(|from| to.iter().map(|to| (*from, *to))).collect()
}

/// Each of `hosts` reaches only its two neighbours in this circle.
pub fn ring(hosts: &[Host]) -> Cuts {
    let count = hosts.len();
    let neighbours = |a: usize, b: usize| (a + 1) % count == b || (b + 1) % count == a;
    let all = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
    all.filter(|(a, b)| a != b && !neighbours(*a, *b)).map(|(a, b)| (hosts[a], hosts[b])).collect()
}

/// Two halves of `hosts`; only the first host reaches both of them.
pub fn bridge(hosts: &[Host]) -> Cuts {
    let others = hosts.get(1..).unwrap_or_default();
    let (one, other) = others.split_at(others.len() / 2);
    apart(one, other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u64) -> Vec<Host> {
        (1..=count).map(Host::Node).collect()
    }

    #[test]
    fn in_a_ring_of_five_everybody_reaches_two_others() {
        let cuts = ring(&nodes(5));

        for node in nodes(5) {
            assert_eq!(cuts.iter().filter(|(from, _)| *from == node).count(), 2);
        }
    }

    #[test]
    fn a_bridge_reaches_both_halves_which_do_not_reach_each_other() {
        let cuts = bridge(&nodes(5));

        assert!(!cuts.iter().any(|(from, to)| [*from, *to].contains(&Host::Node(1))));
        assert_eq!(cuts.len(), 8);
    }
}
