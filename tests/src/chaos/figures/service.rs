//! What was served while faults of a kind were under way. Other faults may have been active at the same time: so this shows which kinds
//! leave so little service that they prove little, not what each kind costs by itself.

use std::collections::BTreeMap;

use super::MS;
use crate::chaos::kind::Kind;
use crate::chaos::schedule::Observed;
use crate::history::{Record, What};

/// What was served during several spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The number of spans.
    pub spans: usize,
    /// Their total length, milliseconds.
    pub ms: u64,
    /// For how long of it a leader served, milliseconds.
    pub led_ms: u64,
    /// The grants in it.
    pub grants: usize,
}

impl Service {
    fn add(&mut self, (from, until): (u64, u64), grants: &[u64], leaderless: &[(u64, u64)]) {
        let length = until.saturating_sub(from);
        let overlap =
            |&(begins, ends): &(u64, u64)| ends.min(until).saturating_sub(begins.max(from));
        let without: u64 = leaderless.iter().map(overlap).sum();
        let before = |at: u64| grants.partition_point(|grant| *grant < at);
        self.spans += 1;
        self.ms += length / MS;
        self.led_ms += length.saturating_sub(without) / MS;
        self.grants += before(until).saturating_sub(before(from));
    }

    /// The line of the table.
    pub(super) fn told(&self) -> String {
        let percent = self.led_ms * 100 / self.ms.max(1);
        let rate = self.grants as u64 * 1_000 / self.ms.max(1);
        let seconds = self.ms / 1_000;
        format!("{seconds} s, {percent} % of it with a leader, {rate} grants a second")
    }
}

/// The service during all faults, and during those of each kind.
pub(super) fn of(history: &[Record], observed: &Observed) -> (Service, BTreeMap<Kind, Service>) {
    let granted = |record: &&Record| matches!(record.what, What::Granted { .. });
    let grants: Vec<u64> = history.iter().filter(granted).map(|record| record.at_ns).collect();
    let mut whole = Service::default();
    whole.add(observed.chaos, &grants, &observed.leaderless);
    let mut by_kind = BTreeMap::<Kind, Service>::new();
    for fault in &observed.faults {
        let span = (fault.from_ns, fault.until_ns);
        by_kind.entry(fault.kind).or_default().add(span, &grants, &observed.leaderless);
    }
    (whole, by_kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::schedule::Span;
    use crate::history::ClientId;

    #[test]
    fn grants_and_time_with_a_leader_are_counted_within_each_span() {
        let grant = |at_ms: u64| Record {
            at_ns: at_ms * MS,
            client: ClientId(1),
            what: What::Granted { request: 1, token: 1, names: Vec::new(), values: Vec::new() },
        };
        let span = |from_ms: u64, until_ms: u64| Span {
            kind: Kind::Loss,
            from_ns: from_ms * MS,
            until_ns: until_ms * MS,
        };
        let observed = Observed {
            faults: vec![span(1_000, 3_000), span(5_000, 6_000)],
            leaderless: vec![(500 * MS, 1_500 * MS), (5_500 * MS, u64::MAX)],
            chaos: (0, 10_000 * MS),
            ..Observed::default()
        };
        let history = [500, 1_000, 2_999, 3_000, 5_100].map(grant);

        let (whole, by_kind) = of(&history, &observed);

        let lossy = Service { spans: 2, ms: 3_000, led_ms: 2_000, grants: 3 };
        assert_eq!(by_kind, BTreeMap::from([(Kind::Loss, lossy)]));
        assert_eq!(whole, Service { spans: 1, ms: 10_000, led_ms: 4_500, grants: 5 });
        assert_eq!(lossy.told(), "3 s, 66 % of it with a leader, 1 grants a second");
    }
}
