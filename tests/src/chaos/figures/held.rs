//! The packets that were held back on connections, and the elections during that.

use super::MS;
use crate::chaos::schedule::Observed;
use crate::chaos::stage::HeldBack;

/// The sums over all faults that held packets back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldAll {
    /// The number of faults.
    pub faults: usize,
    /// How many of them had another leader at their end, or the same one in a new term.
    pub over_elections: usize,
    /// The number of packets.
    pub packets: u64,
    /// Live connections that they belonged to.
    pub connections: usize,
    /// Those of them that still lived when the packets were delivered.
    pub lived: usize,
    /// The shortest and the longest time, milliseconds.
    pub lengths_ms: Option<(u64, u64)>,
}

impl HeldAll {
    pub(super) fn of(observed: &Observed) -> Self {
        let mut all = Self::default();
        for held in &observed.held {
            all.add(held, observed);
        }
        all
    }

    fn add(&mut self, held: &HeldBack, observed: &Observed) {
        let span = held.from_ns..held.until_ns;
        let elected = observed.tenures.iter().skip(1).any(|tenure| span.contains(&tenure.from_ns));
        let length = held.until_ns.saturating_sub(held.from_ns) / MS;
        let (shortest, longest) = self.lengths_ms.unwrap_or((length, length));
        self.faults += 1;
        self.over_elections += usize::from(elected);
        self.packets += held.packets;
        self.connections += held.connections;
        self.lived += held.lived;
        self.lengths_ms = Some((shortest.min(length), longest.max(length)));
    }

    /// The line of the table.
    pub(super) fn told(&self) -> String {
        let Some((shortest, longest)) = self.lengths_ms else { return "nothing".into() };
        let Self { faults, over_elections, packets, connections, lived, .. } = self;
        format!(
            "{packets} packets, {faults} times for {shortest} to {longest} ms, {over_elections} of them \
             over a change of leader; {lived} of {connections} connections lived"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::pulse::Tenure;

    #[test]
    fn what_was_held_over_an_election_is_counted() {
        let held = |from_ms: u64, until_ms: u64| HeldBack {
            from_ns: from_ms * MS,
            until_ns: until_ms * MS,
            packets: 10,
            connections: 3,
            lived: 2,
        };
        let tenure = |from_ms: u64| Tenure { node: 0, term: from_ms, from_ns: from_ms * MS };
        let observed = Observed {
            held: vec![held(100, 1_100), held(2_000, 5_000)],
            tenures: vec![tenure(500), tenure(4_999)],
            ..Observed::default()
        };

        let all = HeldAll::of(&observed);

        let lengths_ms = Some((1_000, 3_000));
        let counted = HeldAll {
            faults: 2,
            over_elections: 1,
            packets: 20,
            connections: 6,
            lived: 4,
            lengths_ms,
        };
        assert_eq!(all, counted);
    }
}
