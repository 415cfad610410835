//! Which command versions may be proposed: those that every member knows (I29).

use std::collections::BTreeMap;

use crate::command::Batch;
use crate::{COMMAND_VERSION, COMMAND_VERSION_OLDEST};

/// Why a batch may not be proposed yet. Nothing was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {version} is needed, and member {member} is known to understand {knows} at most")]
pub struct GateClosed {
    /// What the batch needs.
    pub version: u16,
    /// The member with the lowest id that is behind.
    pub member: u64,
    /// The highest version it announced; [`COMMAND_VERSION_OLDEST`] if it announced none.
    pub knows: u16,
}

/// The version that each member announced, kept by a node for the time it leads.
///
/// A member without an announcement counts as knowing [`COMMAND_VERSION_OLDEST`] and nothing above:
/// any other guess would let an entry into the log that stops that member when it comes back. A
/// member that announces less than that holds back everything: it is older than the first release.
/// Learners are members too: they apply the same log.
///
/// A member may announce less than before (an operator put its old binary back): the last
/// announcement counts. Entries of a higher version already in the log then stop that member when
/// it reads them ([`DecodeError::UnknownVersion`](crate::DecodeError::UnknownVersion)); the gate
/// keeps new ones out.
#[derive(Clone, Debug, Default)]
pub struct VersionGate {
    announced: BTreeMap<u64, u16>,
}

impl VersionGate {
    /// A gate with an announcement of its own node only: `own` knows [`COMMAND_VERSION`].
    pub fn new(own: u64) -> Self {
        Self { announced: BTreeMap::from([(own, COMMAND_VERSION)]) }
    }

    /// Notes the highest version that a member announces.
    pub fn announce(&mut self, member: u64, highest: u16) {
        self.announced.insert(member, highest);
    }

    /// Drops a member that left; if its id returns, it has to announce again.
    pub fn forget(&mut self, member: u64) {
        self.announced.remove(&member);
    }

    /// The highest version that may be proposed to `members`; never above [`COMMAND_VERSION`],
    /// which is the answer without members.
    pub fn highest(&self, members: impl IntoIterator<Item = u64>) -> u16 {
        members.into_iter().map(|member| self.knows(member)).fold(COMMAND_VERSION, u16::min)
    }

    /// Whether a batch may be proposed to `members`.
    ///
    /// # Errors
    ///
    /// [`GateClosed`] names a member that is behind.
    pub fn admit(
        &self,
        batch: &Batch,
        members: impl IntoIterator<Item = u64>,
    ) -> Result<(), GateClosed> {
        self.admit_version(batch.version(), members)
    }

    fn admit_version(
        &self,
        version: u16,
        members: impl IntoIterator<Item = u64>,
    ) -> Result<(), GateClosed> {
        let behind = members.into_iter().filter(|&member| self.knows(member) < version).min();
        match behind {
            Some(member) => Err(GateClosed { version, member, knows: self.knows(member) }),
            None => Ok(()),
        }
    }

    fn knows(&self, member: u64) -> u16 {
        self.announced.get(&member).copied().unwrap_or(COMMAND_VERSION_OLDEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: u16 = COMMAND_VERSION + 1;

    #[test]
    fn a_member_never_heard_from_holds_back_all_but_the_first_version() {
        let mut gate = VersionGate::new(1);
        gate.announce(2, NEXT);
        gate.announce(1, NEXT);
        assert_eq!(gate.admit_version(NEXT, [1, 2]), Ok(()));
        let behind = GateClosed { version: NEXT, member: 3, knows: COMMAND_VERSION_OLDEST };
        assert_eq!(gate.admit_version(NEXT, [1, 2, 3]), Err(behind));
        assert_eq!(gate.admit_version(COMMAND_VERSION_OLDEST, [1, 2, 3]), Ok(()));
    }

    #[test]
    fn the_last_word_of_a_member_counts_also_when_it_is_lower() {
        let mut gate = VersionGate::new(1);
        gate.announce(1, NEXT);
        gate.announce(2, NEXT);
        gate.announce(2, COMMAND_VERSION);
        let behind = GateClosed { version: NEXT, member: 2, knows: COMMAND_VERSION };
        assert_eq!(gate.admit_version(NEXT, [1, 2]), Err(behind));
    }

    #[test]
    fn a_member_that_left_no_longer_holds_back_and_has_to_announce_again() {
        let mut gate = VersionGate::new(1);
        gate.announce(1, NEXT);
        gate.announce(2, NEXT);
        gate.forget(2);
        assert_eq!(gate.admit_version(NEXT, [1]), Ok(()));
        assert!(gate.admit_version(NEXT, [1, 2]).is_err());
    }

    #[test]
    fn nothing_above_what_this_build_knows_is_ever_allowed() {
        let mut gate = VersionGate::new(1);
        gate.announce(1, u16::MAX);
        assert_eq!(gate.highest([1]), COMMAND_VERSION);
        assert_eq!(gate.highest([]), COMMAND_VERSION);
    }

    /// A binary from before the first release would stop at every entry that this build writes.
    #[test]
    fn a_member_older_than_the_first_release_holds_back_everything() {
        let mut gate = VersionGate::new(1);
        let knows = COMMAND_VERSION_OLDEST - 1;
        gate.announce(2, knows);
        assert_eq!(gate.highest([1, 2]), knows);
        let batch = Batch::default();
        let behind = GateClosed { version: COMMAND_VERSION_OLDEST, member: 2, knows };
        assert_eq!(gate.admit(&batch, [1, 2]), Err(behind));
    }

    #[test]
    fn a_batch_of_the_oldest_version_passes_whoever_the_members_are() {
        let gate = VersionGate::new(1);
        let batch = Batch::default();
        assert_eq!(gate.admit(&batch, [1, 2, 3]), Ok(()));
    }
}
