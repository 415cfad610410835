//! A backup: the frozen table of a cluster as one file that says whose it is, of when, and that it is whole
//! (DESIGN §15).
//!
//! ```text
//! "HFBACKUP" ‖ version:u16 ‖ blocks ‖ SHA-256 of everything before it
//! ```
//!
//! The blocks' bytes, joined, are the header as borsh, and then a snapshot as
//! [`Frozen::write_to`](crate::Frozen::write_to) writes it. So a backup is checked four times: each block,
//! the blocks together, the snapshot in it, and the whole. The last check also finds a file that was put
//! together from parts of two backups.

use std::io::{self, Read, Write};

use borsh::{BorshDeserialize, BorshSerialize};
use sha2::{Digest, Sha256};

use crate::blocks::{BlockReader, BlockWriter, damaged};
use crate::chain::HashWriter;
use crate::counters::Counters;
use crate::ids::{Label, LogIndex, ScopePrefix};
use crate::{Frozen, LockTable, SnapshotError};

/// The version that this build writes, and the highest that it reads.
pub const BACKUP_VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"HFBACKUP";
/// Bytes of the hash at the end.
const HASH_BYTES: usize = 32;

/// Where a backup comes from.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct BackupOrigin {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// Its name in the settings of the node that wrote it.
    pub cluster_name: Label,
    /// Which build wrote it, for people.
    pub written_by: Label,
    /// The time by the clock of the node that wrote it, Unix milliseconds.
    pub taken_ms: u64,
}

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct BackupHeader {
    /// Where it comes from.
    pub origin: BackupOrigin,
    /// The last log entry that is in it.
    pub index: LogIndex,
    /// The largest stamp of a batch up to there, Unix milliseconds.
    pub stamp_ms: u64,
    /// The hash of the state after that entry (I16).
    pub state_hash: [u8; 32],
    /// The epoch and the last numbers that were given out.
    pub counters: Counters,
    /// Each scope with its epoch.
    pub scopes: Vec<(ScopePrefix, u16)>,
    /// Sessions that were open.
    pub sessions: u64,
    /// Locks with a value.
    pub values: u64,
    /// For how long clients of the cluster may rely on a hold, at most, milliseconds.
    pub largest_ttl_ms: u64,
}

/// Why a file was not read as a backup. Nothing was built from it.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The bytes are something else altogether.
    #[error("not a backup of a Holdfast cluster")]
    NotABackup,
    /// A newer build wrote it. This build never guesses at it.
    #[error("a backup of version {found}; this build reads versions up to {known}")]
    UnknownVersion {
        /// The version it carries.
        found: u16,
        /// [`BACKUP_VERSION`].
        known: u16,
    },
    /// The bytes end too early.
    #[error("the backup is cut off")]
    CutOff,
    /// Its bytes are not those that were written.
    #[error("the backup is damaged: {reason}")]
    Damaged {
        /// What is wrong, for people.
        reason: String,
    },
    /// The table in it is none that this build reads.
    #[error("the table in the backup is not usable: {0}")]
    Table(#[source] SnapshotError),
    /// Its header is not that of the table in it.
    #[error("the backup contradicts itself: {what}")]
    Inconsistent {
        /// What the header says, and the table.
        what: String,
    },
    /// Reading failed.
    #[error("the backup cannot be read: {0}")]
    Io(#[source] io::Error),
}

impl From<io::Error> for BackupError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::CutOff,
            io::ErrorKind::InvalidData => Self::Damaged { reason: error.to_string() },
            _ => Self::Io(error),
        }
    }
}

/// A table that is to be written as a backup.
#[derive(Debug)]
pub struct Backup {
    header: BackupHeader,
    table: Frozen,
}

impl Backup {
    /// The backup of a table.
    pub fn new(origin: BackupOrigin, table: Frozen) -> Self {
        let header = table.describe(origin);
        Self { header, table }
    }

    /// What it says of itself.
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// Writes it whole. Buffers at most two blocks of 64 KiB; does not flush `out`.
    ///
    /// # Errors
    ///
    /// Those of `out`. The bytes written so far are cut off, and reading them fails as such.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let mut out = Hashing { inner: out, hash: HashWriter(Sha256::new()) };
        out.write_all(&MAGIC)?;
        out.write_all(&BACKUP_VERSION.to_le_bytes())?;
        let mut blocks = BlockWriter::new(&mut out);
        self.header.serialize(&mut blocks)?;
        self.table.write_to(&mut blocks)?;
        blocks.finish()?;
        let hash = out.hash.0.finalize();
        out.inner.write_all(&hash)
    }

    /// Frees what the table has replaced since, piece by piece, as
    /// [`LockTable::dismantle`](crate::LockTable::dismantle).
    pub fn dismantle(self) -> impl Iterator<Item = usize> + Send {
        self.table.dismantle()
    }

    /// Reads a backup to the end of `input`, and checks everything there is to check: every byte, every
    /// invariant of the table, and that the header is the table's.
    ///
    /// Allocates no more than a small multiple of what was read, whatever lengths the bytes claim.
    ///
    /// # Errors
    ///
    /// [`BackupError`]; nothing was built.
    pub fn read_from(input: &mut impl Read) -> Result<(BackupHeader, LockTable), BackupError> {
        let mut input = Hashing { inner: input, hash: HashWriter(Sha256::new()) };
        check_front(&mut input)?;
        let mut blocks = BlockReader::new(&mut input);
        let read = read_content(&mut blocks);
        // borsh calls every early end "invalid data"; only the block reader knows whether the input
        // was cut off.
        if read.is_err() && blocks.is_cut_off() {
            return Err(BackupError::CutOff);
        }
        let (header, table) = read?;
        let expected: [u8; HASH_BYTES] = input.hash.0.finalize().into();
        let mut found = [0; HASH_BYTES];
        input.inner.read_exact(&mut found)?;
        if found != expected {
            return Err(damaged("the hash at its end does not match").into());
        }
        if input.inner.read(&mut [0])? != 0 {
            return Err(damaged("there is more behind its end").into());
        }
        let told = table.freeze().describe(header.origin.clone());
        if told != header {
            let what = format!("its header says {header:?}, and its table {told:?}");
            return Err(BackupError::Inconsistent { what });
        }
        Ok((header, table))
    }
}

impl Frozen {
    fn describe(&self, origin: BackupOrigin) -> BackupHeader {
        BackupHeader {
            origin,
            index: self.applied_index(),
            stamp_ms: self.stamp_ms(),
            state_hash: self.state_hash(),
            counters: self.counters(),
            scopes: self.scopes().map(|(scope, state)| (scope.clone(), state.epoch)).collect(),
            sessions: self.counts().0,
            values: self.counts().1,
            largest_ttl_ms: self.largest_ttl_ms(),
        }
    }
}

/// Reads the part before the blocks.
fn check_front(input: &mut impl Read) -> Result<(), BackupError> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(BackupError::NotABackup);
    }
    let mut version = [0; 2];
    input.read_exact(&mut version)?;
    match u16::from_le_bytes(version) {
        BACKUP_VERSION => Ok(()),
        0 => Err(damaged("there never was a version 0").into()),
        found => Err(BackupError::UnknownVersion { found, known: BACKUP_VERSION }),
    }
}

fn read_content(
    blocks: &mut BlockReader<'_, impl Read>,
) -> Result<(BackupHeader, LockTable), BackupError> {
    let header = BackupHeader::deserialize_reader(blocks)?;
    // Reads to the end of the blocks, which the block reader reports as the end of its input.
    let table = LockTable::read_from(blocks).map_err(|error| match error {
        SnapshotError::Io(error) => BackupError::Io(error),
        SnapshotError::Damaged { reason } => BackupError::Damaged { reason },
        SnapshotError::CutOff => BackupError::Damaged { reason: "its table is cut off".into() },
        error => BackupError::Table(error),
    })?;
    blocks.end()?;
    Ok((header, table))
}

/// Passes bytes on, and hashes them.
struct Hashing<'a, T> {
    inner: &'a mut T,
    hash: HashWriter,
}

impl<T: Write> Write for Hashing<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.inner.write(bytes)?;
        self.hash.0.update(bytes.get(..taken).unwrap_or_default());
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Hashing<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.hash.0.update(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }
}
