//! The rolling state hash: finds a replica whose state has diverged (I16).

use std::collections::VecDeque;
use std::io;

use borsh::{BorshDeserialize, BorshSerialize};
use sha2::{Digest, Sha256};

use crate::answer::Applied;
use crate::command::{Batch, Witness};
use crate::ids::{LogIndex, Tenure};

/// The table keeps a witness for every index divisible by this.
pub const WITNESS_EVERY: u64 = 1_024;
/// Number of witnesses kept: a leader's newest reaches the others within a few entries.
const WITNESSES_KEPT: usize = 8;

/// Why this node has to stop: not a refusal, which all nodes share, but a fault of this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaFault {
    /// The leader had another state hash after the same entry (I16). One of the two went wrong;
    /// this node must answer no request from its state.
    #[error(
        "the state of this node differs from the leader's since entry {} or before it",
        .leader.index
    )]
    Diverged {
        /// The leader's hash.
        leader: Witness,
        /// This node's hash after the same entry.
        own: Witness,
    },
    /// The entry lies at or below one that was applied before. Applying it again could end or
    /// grant holds twice.
    #[error("entry {index} was handed to the table again; {applied} is applied")]
    AppliedBefore {
        /// The entry.
        index: LogIndex,
        /// The last that was applied.
        applied: LogIndex,
    },
}

/// `hash_n = SHA-256(hash_{n−1} ‖ index, tenure, batch ‖ outcomes and events)`, and the last few
/// hashes at round indexes, those divisible by [`WITNESS_EVERY`].
///
/// The hash at a round index `m` is the one after all batches at or below `m`. Entries without a
/// batch (blank, membership) take indexes but leave the hash alone, so this is well defined at
/// every index, and it does not matter whether they are noted: they only move `index`.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Chain {
    hash: [u8; 32],
    index: LogIndex,
    /// Invariant: rising indexes, each divisible by [`WITNESS_EVERY`], none above `index`; at most
    /// [`WITNESSES_KEPT`].
    kept: VecDeque<Witness>,
}

impl Chain {
    pub(crate) fn new() -> Self {
        Self { hash: [0; 32], index: LogIndex::new(0), kept: VecDeque::new() }
    }

    /// Begins at `index` with the hash of another chain, as if nothing came before it.
    pub(crate) fn begin_after(&mut self, other: &Self, index: LogIndex) {
        *self = Self { hash: other.hash, index, kept: VecDeque::new() };
    }

    pub(crate) fn hash(&self) -> [u8; 32] {
        self.hash
    }

    pub(crate) fn index(&self) -> LogIndex {
        self.index
    }

    pub(crate) fn latest_witness(&self) -> Option<Witness> {
        self.kept.back().copied()
    }

    pub(crate) fn is_well_formed(&self) -> bool {
        self.kept.len() <= WITNESSES_KEPT
            && self.kept.iter().all(|witness| witness.index.get().is_multiple_of(WITNESS_EVERY))
            && self.kept.iter().is_sorted_by(|a, b| a.index < b.index)
            && self.kept.back().is_none_or(|last| last.index <= self.index)
    }

    /// Whether the batch at `index` may be applied to this state.
    ///
    /// # Errors
    ///
    /// [`ReplicaFault`]; the node stops, and nothing was applied.
    pub(crate) fn admit(&self, index: LogIndex, batch: &Batch) -> Result<(), ReplicaFault> {
        if index <= self.index {
            return Err(ReplicaFault::AppliedBefore { index, applied: self.index });
        }
        let Some(leader) = batch.witness else { return Ok(()) };
        match self.kept.iter().find(|own| own.index == leader.index) {
            Some(&own) if own != leader => Err(ReplicaFault::Diverged { leader, own }),
            Some(_) | None => Ok(()),
        }
    }

    /// Extends the hash by the batch at `index` and its effects.
    pub(crate) fn extend(
        &mut self,
        index: LogIndex,
        tenure: Tenure,
        batch: &Batch,
        applied: &[Applied],
    ) {
        self.note(LogIndex::new(index.get().saturating_sub(1)));
        let mut hasher = HashWriter(Sha256::new_with_prefix(self.hash));
        let fed = (index, tenure, batch)
            .serialize(&mut hasher)
            .and_then(|()| applied.iter().try_for_each(|one| one.serialize(&mut hasher)));
        // A hasher accepts everything; borsh itself refuses only lengths above u32, which no entry
        // that came through a log can have. If it did, all replicas would stop at the same byte.
        debug_assert!(fed.is_ok());
        self.hash = hasher.0.finalize().into();
        self.index = index;
        self.keep(index);
    }

    /// Notes that everything up to `index` is applied; the entries in between carried no batch.
    pub(crate) fn note(&mut self, index: LogIndex) {
        if index <= self.index {
            return;
        }
        self.index = index;
        let last = index.get() / WITNESS_EVERY;
        for round in last.saturating_sub(WITNESSES_KEPT as u64)..=last {
            self.keep(LogIndex::new(round * WITNESS_EVERY));
        }
    }

    /// Keeps the present hash as the one at `index`, if that index is divisible by
    /// [`WITNESS_EVERY`] and new.
    fn keep(&mut self, index: LogIndex) {
        let newest = self.kept.back().map_or(0, |witness| witness.index.get());
        if !index.get().is_multiple_of(WITNESS_EVERY) || index.get() <= newest {
            return;
        }
        self.kept.push_back(Witness { index, hash: self.hash });
        if self.kept.len() > WITNESSES_KEPT {
            self.kept.pop_front();
        }
    }
}

pub(crate) struct HashWriter(pub(crate) Sha256);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
