//! The stored form of a batch: a version, then borsh.

use borsh::BorshSerialize;

use crate::command::Batch;

/// The highest version of commands this build knows, and so may apply (I29).
pub const COMMAND_VERSION: u16 = 5;
/// The lowest version this build knows: the first that was released.
pub const COMMAND_VERSION_OLDEST: u16 = 2;

/// Bytes of the version in front.
const VERSION_BYTES: usize = 2;

/// Why bytes were not read as a batch. A node that finds such bytes in its log stops.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A newer build wrote it. This build never guesses at it (I29).
    #[error("a batch of version {found}; this build knows versions up to {known}")]
    UnknownVersion {
        /// The version in front of the bytes.
        found: u16,
        /// [`COMMAND_VERSION`].
        known: u16,
    },
    /// A build from before the first release wrote it, in a form this build does not know.
    #[error(
        "a batch of version {found}, written by a version before the first release; this build \
         knows versions from {oldest} on"
    )]
    OldVersion {
        /// The version in front of the bytes.
        found: u16,
        /// [`COMMAND_VERSION_OLDEST`].
        oldest: u16,
    },
    /// Not what [`Batch::encode`] writes.
    #[error("a damaged batch: {reason}")]
    Damaged {
        /// What is wrong, for people.
        reason: String,
    },
}

impl Batch {
    /// The version needed to read it: the highest of its commands; without commands, the oldest.
    pub fn version(&self) -> u16 {
        let versions = self.commands.iter().map(crate::Command::version);
        versions.fold(COMMAND_VERSION_OLDEST, u16::max)
    }

    /// The stored form: equal batches give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.version().to_le_bytes().to_vec();
        // A vector accepts everything, and no batch has 2³² commands: a proposer bounds them (§7).
        let written = self.serialize(&mut bytes);
        debug_assert!(written.is_ok());
        bytes
    }

    /// Reads the stored form, and nothing else: left-over bytes, or a version in front that the
    /// commands do not need, are damage. Allocates at most a small multiple of the bytes present.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]; a node that reads a log stops.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some((version, body)) = bytes.split_first_chunk::<VERSION_BYTES>() else {
            return Err(damaged("cut off before its version"));
        };
        let found = u16::from_le_bytes(*version);
        if found > COMMAND_VERSION {
            return Err(DecodeError::UnknownVersion { found, known: COMMAND_VERSION });
        }
        // There never was a version 0: it is damage, and falls through.
        if (1..COMMAND_VERSION_OLDEST).contains(&found) {
            return Err(DecodeError::OldVersion { found, oldest: COMMAND_VERSION_OLDEST });
        }
        let batch: Self = borsh::from_slice(body).map_err(|error| damaged(error.to_string()))?;
        if batch.version() != found {
            let needed = batch.version();
            return Err(damaged(format!("marked as version {found}, but of version {needed}")));
        }
        Ok(batch)
    }
}

fn damaged(reason: impl Into<String>) -> DecodeError {
    DecodeError::Damaged { reason: reason.into() }
}
