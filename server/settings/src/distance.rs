//! How heartbeats and elections follow from the distance between the members.
//!
//! A member starts an election after a silence of its leader between `election_min_ms` and `election_max_ms`. The
//! shorter that is, the sooner a dead leader is replaced; but a leader that lives must not be silent for so long.
//! What delays a heartbeat is the way, and a process that waits for a core: a round trip there and back, twice, and
//! 80 ms. With four and a half heartbeats as the shortest silence a leader may miss three.
//!
//! No promise of a lock depends on these times (DESIGN §5): an election without cause costs a pause.

use super::check::HEARTBEATS_PER_ELECTION;
use super::{NodeConfig, Origin};

/// Longest round trip between members of one region, milliseconds.
pub(super) const ROUND_TRIP_MS: u64 = 10;
/// How long a process waits for a core on a machine that is busy, and some time to spare, milliseconds.
const SCHEDULING_MS: u64 = 80;

pub(super) const fn heartbeat_ms(round_trip_ms: u64) -> u64 {
    SCHEDULING_MS.saturating_add(round_trip_ms.saturating_mul(2))
}

pub(super) const fn election_min_ms(heartbeat_ms: u64) -> u64 {
    heartbeat_ms.saturating_mul(9) / 2
}

pub(super) const fn election_max_ms(election_min_ms: u64) -> u64 {
    election_min_ms.saturating_mul(4).div_ceil(3)
}

impl NodeConfig {
    /// Sets what was not given to what follows from what was.
    pub(super) fn follow_distance(&mut self, origin: &dyn Fn(&'static str) -> Origin) {
        let is_open = |key| origin(key) == Origin::Default;
        if is_open("heartbeat_ms") {
            self.heartbeat_ms = heartbeat_ms(self.round_trip_ms);
        }
        if is_open("election_min_ms") {
            self.election_min_ms = election_min_ms(self.heartbeat_ms);
            if !is_open("election_max_ms") {
                // Of releases whose shortest silence was half of the longest.
                let below = self.election_max_ms.saturating_mul(3) / 4;
                let least = self.heartbeat_ms.saturating_mul(HEARTBEATS_PER_ELECTION);
                self.election_min_ms = self.election_min_ms.min(below).max(least);
            }
        }
        if is_open("election_max_ms") {
            self.election_max_ms = election_max_ms(self.election_min_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NodeLayer;
    use super::*;

    /// The times that follow from what was given.
    fn times(given: NodeLayer) -> (u64, u64, u64) {
        let keys = [
            ("heartbeat_ms", given.heartbeat_ms),
            ("election_min_ms", given.election_min_ms),
            ("election_max_ms", given.election_max_ms),
        ];
        let is_given = |key| keys.iter().any(|(name, value)| *name == key && value.is_some());
        let origin = |key| if is_given(key) { Origin::File } else { Origin::Default };
        let mut node = given.resolve();
        node.follow_distance(&origin);
        (node.heartbeat_ms, node.election_min_ms, node.election_max_ms)
    }

    #[test]
    fn what_is_not_given_follows_from_what_is() {
        let none = NodeLayer::default;
        assert_eq!(times(none()), (100, 450, 600));
        assert_eq!(times(NodeLayer { round_trip_ms: Some(1), ..none() }), (82, 369, 492));
        assert_eq!(times(NodeLayer { round_trip_ms: Some(300), ..none() }), (680, 3_060, 4_080));
        assert_eq!(times(NodeLayer { heartbeat_ms: Some(400), ..none() }), (400, 1_800, 2_400));
        assert_eq!(times(NodeLayer { election_min_ms: Some(900), ..none() }), (100, 900, 1_200));
        assert_eq!(times(NodeLayer { election_max_ms: Some(900), ..none() }), (100, 450, 900));
        assert_eq!(times(NodeLayer { election_max_ms: Some(500), ..none() }), (100, 375, 500));
        // What no node takes is refused by its own name, after this.
        let none_fits = NodeLayer { election_max_ms: Some(1), ..none() };
        let far = NodeLayer { heartbeat_ms: Some(u64::MAX), ..none_fits };
        assert_eq!(times(far), (u64::MAX, u64::MAX, 1));
    }

    /// What is resolved without a look at the distance is the same.
    #[test]
    fn the_defaults_are_those_of_the_default_distance() {
        let node = NodeLayer::default().resolve();
        let times = (node.heartbeat_ms, node.election_min_ms, node.election_max_ms);

        assert_eq!(times, (100, 450, 600));
    }
}
