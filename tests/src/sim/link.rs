//! How messages pass from one host to another, and who is cut off from whom.

use std::fmt;
use std::time::Duration;

/// Somebody on the network.
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
    /// Shortest way of a message.
    pub delay_min: Duration,
    /// Longest, unless something else holds it up.
    pub delay_max: Duration,
    /// Of a million messages, so many take up to [`spike`](Self::spike) longer: later ones overtake
    /// them where they are not of one stream.
    pub spikes_per_million: u32,
    /// How much longer those take at most.
    pub spike: Duration,
    /// Of a million messages, so many are lost. A call that is lost is answered by nobody; on a
    /// stream the loss is a delay, because TCP sends again.
    pub lost_per_million: u32,
    /// Of a million calls that may come twice, so many do, the second time late.
    pub twice_per_million: u32,
    /// How much it carries, bytes a second; `None`: as much as there is.
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

/// What was done to messages and connections.
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
    /// Messages that were held back on connections that lived, and arrived after it; those of one
    /// stream that were held back together count once.
    pub held: u64,
    /// Connections that were broken.
    pub broken: u64,
    /// Connections of which one end was told nothing.
    pub half_open: u64,
    /// Ends that noticed by their keepalives that the other one is gone.
    pub missed: u64,
}

/// Why messages are held back although their connections live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Somebody in between keeps them, and lets them go.
    Kept,
    /// Nothing passes, and the connections outlive it: TCP sends again afterwards.
    Outlived,
}

/// Which part of what travels one way between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What the sender asks: on calls and streams that it began.
    Asked,
    /// What the sender answers: on those of the receiver.
    Answered,
}

impl Part {
    /// All that travels that way.
    pub const ALL: &[Self] = &[Self::Asked, Self::Answered];
}

/// Who is cut off from whom: pairs (from, to) between which nothing passes.
pub type Cuts = Vec<(Host, Host)>;

/// Nothing passes between the two sides.
pub fn apart(one: &[Host], other: &[Host]) -> Cuts {
    one.iter().flat_map(|a| other.iter().flat_map(|b| [(*a, *b), (*b, *a)])).collect()
}

/// Nothing that `from` send reaches `to`; the other way it passes.
pub fn one_way(from: &[Host], to: &[Host]) -> Cuts {
    from.iter().flat_map(|from| to.iter().map(|to| (*from, *to))).collect()
}

/// Each of `hosts` reaches the one before it and the one after it, and no other of them.
pub fn ring(hosts: &[Host]) -> Cuts {
    let count = hosts.len();
    let neighbours = |a: usize, b: usize| (a + 1) % count == b || (b + 1) % count == a;
    let all = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
    all.filter(|(a, b)| a != b && !neighbours(*a, *b)).map(|(a, b)| (hosts[a], hosts[b])).collect()
}

/// Two halves of `hosts`, which only the first of them reaches both of.
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
