//! When a leader whose disk is full or slow hands over, and to which member.
//!
//! A leader below its disk reserve would make the whole cluster refuse commands that take room. One
//! whose disk is much slower than the others' makes every commit wait whenever another member is
//! away. A member that is better off takes over instead, if there is one.

use std::time::Duration;

/// Entries that a successor may lack: as many as a learner that is promoted. It has to have them
/// all before it leads, and commands wait meanwhile.
const LAG_MAX: u64 = 1_000;
/// A disk that makes entries durable in less is fast enough, whatever the others do: a sync of a
/// healthy disk may take this long now and then (DESIGN §7).
const SLOW: Duration = Duration::from_millis(100);
/// A disk is slow when another one is this many times as fast. The next leader compares itself by
/// the same rule, so it does not hand leadership back. Times are measured to a factor of 2; this is
/// more than two of them.
const SLOWER: u32 = 5;
/// Checks in a row, a second apart, at which the disk has to be slow. As long as a window of
/// [`DiskTimes`](super::disk_times::DiskTimes): one burst of work, or one snapshot, is not enough.
const SLOW_LOOKS: u32 = 5;

/// A member's report of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DiskHealth {
    pub(super) below_reserve: bool,
    /// See [`DiskTimes::p99`](super::disk_times::DiskTimes::p99); members of old releases do not
    /// report it.
    pub(super) append_p99: Option<Duration>,
}

impl DiskHealth {
    fn is_slow_beside(&self, other: &Self) -> bool {
        let Some((own, other)) = self.append_p99.zip(other.append_p99) else { return false };
        own >= SLOW && own >= other.saturating_mul(SLOWER)
    }
}

/// A voter that answered lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) node_id: u64,
    /// Entries it lacks.
    pub(super) lag: u64,
    pub(super) disk: DiskHealth,
}

/// Why a leader hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    BelowReserve,
    SlowDisk,
}

/// What a leader remembers between two checks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    slow_looks: u32,
}

impl Patience {
    /// The voter to hand over to now, if the leader should: one that is better off, and nearly has
    /// the whole log.
    pub(super) fn look(
        &mut self,
        own: &DiskHealth,
        candidates: &[Candidate],
    ) -> Option<(u64, Why)> {
        let fit = || candidates.iter().filter(|one| one.lag <= LAG_MAX && !one.disk.below_reserve);
        let best = |one: &&Candidate| (one.disk.append_p99.unwrap_or(Duration::MAX), one.lag);
        let faster = fit().filter(|one| own.is_slow_beside(&one.disk)).min_by_key(best);
        self.slow_looks = if faster.is_some() { self.slow_looks + 1 } else { 0 };
        if own.below_reserve {
            return fit().min_by_key(best).map(|one| (one.node_id, Why::BelowReserve));
        }
        let due = faster.filter(|_| self.slow_looks >= SLOW_LOOKS);
        due.map(|one| (one.node_id, Why::SlowDisk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(below_reserve: bool, millis: u64) -> DiskHealth {
        DiskHealth { below_reserve, append_p99: Some(Duration::from_millis(millis)) }
    }

    fn candidate(node_id: u64, lag: u64, disk: DiskHealth) -> Candidate {
        Candidate { node_id, lag, disk }
    }

    #[test]
    fn a_leader_below_its_reserve_hands_over_to_the_fastest_that_is_not() {
        let candidates = [
            candidate(2, 0, disk(true, 1)),
            candidate(3, 5, disk(false, 8)),
            candidate(4, 2, disk(false, 4)),
            candidate(5, LAG_MAX + 1, disk(false, 2)),
        ];
        let to = |own, candidates: &[Candidate]| Patience::default().look(&own, candidates);

        assert_eq!(to(disk(true, 2), &candidates), Some((4, Why::BelowReserve)));
        assert_eq!(to(disk(true, 2), &candidates[..1]), None, "nobody is better off");
        assert_eq!(to(disk(false, 2), &candidates), None, "nothing is wrong with it");
    }

    #[test]
    fn a_leader_whose_disk_stays_much_slower_than_anothers_hands_over() {
        let mut patience = Patience::default();
        let candidates = [candidate(2, 0, disk(false, 40)), candidate(3, 0, disk(false, 20))];
        let mut looks =
            |own: DiskHealth, count: u32| (0..count).find_map(|_| patience.look(&own, &candidates));

        assert_eq!(looks(disk(false, 200), SLOW_LOOKS - 1), None, "not yet");
        assert_eq!(looks(disk(false, 90), 1), None, "fast enough");
        assert_eq!(looks(disk(false, 200), SLOW_LOOKS - 1), None, "it counts anew");
        assert_eq!(looks(disk(false, 200), 1), Some((3, Why::SlowDisk)));
    }

    #[test]
    fn a_disk_is_not_compared_with_one_of_which_nothing_is_known() {
        let unknown = DiskHealth::default();
        let mut patience = Patience::default();
        for _ in 0..SLOW_LOOKS * 2 {
            assert_eq!(patience.look(&disk(false, 900), &[candidate(2, 0, unknown)]), None);
            assert_eq!(patience.look(&unknown, &[candidate(2, 0, disk(false, 1))]), None);
        }
    }

    /// Against flapping: whatever the two disks do, at most one of them is slow beside the other.
    #[test]
    fn of_two_disks_at_most_one_is_slow_beside_the_other() {
        for (one, other) in [(100, 20), (20, 100), (100, 100), (5_000, 900), (1_000, 200)] {
            let (one, other) = (disk(false, one), disk(false, other));
            assert!(!(one.is_slow_beside(&other) && other.is_slow_beside(&one)));
        }
    }
}
