//! The members' roll: who is a member, and the highest node id that ever was one's (I22).
//!
//! An id that was used is never used again: its votes and acknowledgements belong to a data folder
//! that may be gone. The log forgets members that left, so the roll remembers the highest id, and a
//! new member's id is above every id there ever was. That one number is computed from the log
//! alone, travels in the meta of snapshots, and is equal on all members that have applied the same
//! entries.

use super::types::StoredMembership;

/// The roll as of the last entry applied.
#[derive(Clone, Debug, Default)]
pub(super) struct Roll {
    membership: StoredMembership,
    highest: u64,
}

impl Roll {
    /// The roll in a snapshot.
    pub(super) fn new(membership: StoredMembership, highest: u64) -> Self {
        let mut roll = Self { membership: StoredMembership::default(), highest };
        roll.enter(membership);
        roll
    }

    /// Takes over a changed membership.
    pub(super) fn enter(&mut self, membership: StoredMembership) {
        let last = membership.nodes().map(|(id, _)| *id).max();
        self.highest = self.highest.max(last.unwrap_or(0));
        self.membership = membership;
    }

    pub(super) fn membership(&self) -> &StoredMembership {
        &self.membership
    }

    /// The highest id that ever was a member's; 0 before there was any.
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }

    /// Whether the id cannot become a member's any more, and is none's now. Once true, it stays
    /// true: an id goes from unused to member to spent, and never back.
    pub(super) fn is_spent(&self, node_id: u64) -> bool {
        node_id <= self.highest && self.membership.get_node(&node_id).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::raft::Member;
    use crate::raft::types::{Membership, log_id};

    fn of(index: u64, members: &[u64]) -> StoredMembership {
        let voters: BTreeSet<u64> = members.iter().copied().collect();
        let nodes: BTreeMap<u64, Member> =
            members.iter().map(|id| (*id, Member::default())).collect();
        let membership = Membership::new(vec![voters], nodes).unwrap();
        StoredMembership::new(Some(log_id(1, index)), membership)
    }

    #[test]
    fn an_id_that_was_a_members_is_spent_when_it_leaves_and_for_ever() {
        let mut roll = Roll::default();
        roll.enter(of(1, &[1, 2, 3]));
        roll.enter(of(2, &[1, 2, 3, 7]));
        assert!(!roll.is_spent(7) && !roll.is_spent(8));

        roll.enter(of(3, &[1, 2]));
        roll.enter(of(4, &[1, 2, 9]));

        assert_eq!(roll.highest(), 9);
        for (id, spent) in [(1, false), (3, true), (7, true), (9, false), (10, false)] {
            assert_eq!(roll.is_spent(id), spent, "node {id}");
        }
    }

    #[test]
    fn a_roll_made_from_a_snapshot_remembers_who_left_before_it() {
        let roll = Roll::new(of(9, &[4, 5]), 6);

        assert!(roll.is_spent(6) && roll.is_spent(1));
        assert_eq!(Roll::new(of(9, &[4, 5]), 0).highest(), 5);
    }
}
