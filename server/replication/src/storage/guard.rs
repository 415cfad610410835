//! The guard file: the identity of this node, and the least that its store must hold.
//!
//! It lies beside the store, which never writes it. So a store that lost something can be told from a
//! whole one (I21): sled opens a file that was cut off as an empty database, and a log that was cut off
//! only ends earlier.
//!
//! # Format
//!
//! The file has two slots of [`SLOT_BYTES`], written alternately and synced: a write that a power
//! cut tears leaves the other slot, and the higher sequence number wins. A third place, the hint,
//! is written after each commit of the log *without* a sync. While the kernel runs it holds exactly
//! how far the log was acknowledged; a power cut may set it back, never forward. It counts only for
//! the slot whose sequence number it names.
//!
//! # Invariants
//!
//! - The vote and the bounds here were durable in the store before they were written here: a crash
//!   between the two leaves the store ahead of its guard, never behind.
//! - Before the log is made shorter, the bound is lowered and synced.
//! - A process that opens a guard with a torn slot writes both slots again before it notes anything
//!   else.
//! - Both slots hold the identity (ids, stage, members), so that no single damaged slot takes back
//!   a promise.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::disk::{Disk, DiskFile, Place};
use super::error::{Fault, OnFault, OpenError, open_error};
use super::record::{
    DecodeError, Fields, LogId, StoredVote, put_length, put_log_id, put_vote, seal, take_log_id,
    take_vote, unseal,
};

/// Size of one slot, bytes. It bounds the number of members.
const SLOT_BYTES: usize = 32 << 10;
const HINT_AT: u64 = 2 * SLOT_BYTES as u64;
const HINT_BYTES: usize = 64;
const FILE_BYTES: usize = 2 * SLOT_BYTES + HINT_BYTES;
const SLOT_MAGIC: [u8; 4] = *b"HFGD";
const HINT_MAGIC: [u8; 4] = *b"HFGH";
/// Since version 2 the log's records are in segments; a slot of version 1 belongs to a folder whose
/// records lie beside the marks. The contents are the same, so that a release that knows no segments
/// refuses the folder as newer.
const VERSION: u32 = 2;
const VERSION_WITHOUT_SEGMENTS: u32 = 1;
const HINT_VERSION: u32 = 1;

/// Names a cluster for ever; drawn at random when it is formed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// How far the first start of this node has come (DESIGN §7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The store exists and belongs to no cluster. A node found at this stage has either never been
    /// part of one, or lost its folder and got an empty one; the store cannot tell these apart, so
    /// a cluster that is already initialised must not take it under a node id it knows (I22).
    Fresh,
    /// This node has promised itself to the cluster named beside it, and to no other.
    Promised,
    /// The cluster was initialised, or this node joined an initialised one.
    Initialised,
}

/// A member as it was when the cluster was formed or last changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its node id.
    pub id: u64,
    /// Its addresses, encoded by the caller; opaque here.
    pub address: Vec<u8>,
}

/// The identity of this node. Survives everything but the loss of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its id in the cluster.
    pub node_id: u64,
    /// How far its first start has come.
    pub stage: Stage,
    /// Its cluster; none while [`Stage::Fresh`].
    pub cluster: Option<ClusterId>,
    /// Raised when the cluster is restored from a backup; 0 while there is no cluster.
    pub incarnation: u64,
    /// The members of the cluster, as far as this node knows.
    pub members: Vec<Member>,
}

/// Why a node does not become part of a cluster. The guard is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum PromiseError {
    /// It has promised itself to another cluster before.
    #[error("node {node_id} is promised to cluster {cluster}, incarnation {incarnation}")]
    Taken {
        /// This node.
        node_id: u64,
        /// The cluster it is promised to.
        cluster: ClusterId,
        /// That cluster's incarnation.
        incarnation: u64,
    },
    /// It has promised nothing yet and cannot skip that step.
    #[error("node {node_id} has not promised itself to a cluster")]
    NotPromised {
        /// This node.
        node_id: u64,
    },
    /// The member list does not fit into the guard file.
    #[error("the member list takes {bytes} bytes, at most {SLOT_BYTES} fit into the guard file")]
    TooLarge {
        /// The bytes of the whole slot with that list.
        bytes: usize,
    },
    /// The guard file could not be written. Whether the promise survives is unknown; the process
    /// is being stopped.
    #[error("the guard file was not written: {0}")]
    Io(#[from] io::Error),
}

/// The contents of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GuardState {
    /// Whether the store beside it has been created completely. Until then nothing in it counts.
    pub(super) created: bool,
    /// Whether the records of its log are in segments.
    pub(super) has_segments: bool,
    /// Drawn when the store was created. Guard and sled both hold it, which shows that they belong
    /// together.
    pub(super) store_id: [u8; 16],
    pub(super) identity: Identity,
    pub(super) vote: Option<StoredVote>,
    /// A record that the log holds, or has purged.
    pub(super) durable: Option<LogId>,
    /// Where the newest good snapshot ends.
    pub(super) snapshot: Option<LogId>,
}

/// The open guard file. One thread writes at a time.
pub(super) struct Guard {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    current: Mutex<Current>,
    on_fault: OnFault,
}

struct Current {
    sequence: u64,
    state: GuardState,
    failed: bool,
    /// Whether the file was found with a slot that cannot be read, or shorter than its full length.
    harmed: bool,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Guard {
    /// Creates a guard file in `folder`, durable with its name, for a store that is not created
    /// yet.
    ///
    /// # Errors
    ///
    /// As from the system; a temporary file may be left, never half a guard.
    pub(super) fn create(
        disk: &dyn Disk,
        folder: &Path,
        node_id: u64,
        store_id: [u8; 16],
        on_fault: OnFault,
    ) -> Result<Self, OpenError> {
        let path = guard_path(folder);
        let temporary = folder.join("guard.new");
        let identity = Identity {
            node_id,
            stage: Stage::Fresh,
            cluster: None,
            incarnation: 0,
            members: Vec::new(),
        };
        let state = GuardState {
            created: false,
            has_segments: true,
            store_id,
            identity,
            vote: None,
            durable: None,
            snapshot: None,
        };
        let file = write_new(disk, &temporary, &encode(1, &state))
            .map_err(|e| open_error("create", &temporary, e))?;
        disk.rename(&temporary, &path)
            .and_then(|()| disk.sync_folder(folder))
            .map_err(|e| open_error("create", &path, e))?;
        let current = Mutex::new(Current { sequence: 1, state, failed: false, harmed: false });
        Ok(Self { path, file, current, on_fault })
    }

    /// Reads the guard file of `folder`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// Neither slot can be read, or one was written by a newer release. Nothing was changed.
    pub(super) fn open(
        disk: &dyn Disk,
        folder: &Path,
        on_fault: OnFault,
    ) -> Result<Option<Self>, OpenError> {
        let path = guard_path(folder);
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(open_error("open", &path, error)),
        };
        let bytes = read_all(file.clone()).map_err(|e| open_error("read", &path, e))?;
        let (sequence, mut state) = choose_slot(&bytes, &path)?;
        let harmed = bytes.len() < FILE_BYTES || slots_of(&bytes).iter().any(Result::is_err);
        if let Some(hint) = decode_hint(bytes.get(2 * SLOT_BYTES..).unwrap_or_default(), sequence) {
            state.durable = Some(hint);
        }
        let current = Mutex::new(Current { sequence, state, failed: false, harmed });
        Ok(Some(Self { path, file, current, on_fault }))
    }

    /// Repairs a guard that was found with a torn slot, or shortened: writes its state to both
    /// slots of a file of full length. Otherwise the next damage would hit the only slot, and a
    /// hint that makes a shortened file longer again would bring back the contents of the part that
    /// was cut off. Call it once the store is known to be the guard's.
    ///
    /// # Errors
    ///
    /// As [`update`](Self::update).
    pub(super) fn mend(&self) -> Result<(), Fault> {
        let mut current = self.lock();
        if !current.harmed {
            return Ok(());
        }
        self.lengthen().map_err(|error| self.fail(&mut current, error))?;
        // The slot that was read stays until the other one is synced.
        for _ in 0..2 {
            let state = current.state.clone();
            self.write_slot(&mut current, state)?;
        }
        current.harmed = false;
        Ok(())
    }

    fn lengthen(&self) -> io::Result<()> {
        let length = usize::try_from(self.file.length()?).unwrap_or(FILE_BYTES).min(FILE_BYTES);
        self.file.write_all_at(&vec![0; FILE_BYTES - length], length as u64)?;
        self.file.sync_all()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn state(&self) -> GuardState {
        self.lock().state.clone()
    }

    /// The bound as it was last noted, synced or not.
    pub(super) fn durable(&self) -> Option<LogId> {
        self.lock().state.durable
    }

    /// Writes a changed state into the older slot and syncs it.
    ///
    /// # Errors
    ///
    /// The fault, which has been reported: which state survives is unknown, and every later call
    /// fails.
    pub(super) fn update(&self, change: impl FnOnce(&mut GuardState)) -> Result<(), Fault> {
        let mut current = self.lock();
        let mut state = current.state.clone();
        change(&mut state);
        self.write_slot(&mut current, state)
    }

    /// As [`update`](Self::update), into both slots, one after the other.
    fn update_both(&self, change: impl FnOnce(&mut GuardState)) -> Result<(), Fault> {
        let mut current = self.lock();
        let mut state = current.state.clone();
        change(&mut state);
        self.write_slot(&mut current, state.clone())?;
        self.write_slot(&mut current, state)
    }

    fn write_slot(&self, current: &mut Current, state: GuardState) -> Result<(), Fault> {
        if current.failed {
            return Err(self.fault("write", io::Error::other("an earlier write failed")));
        }
        let sequence = current.sequence + 1;
        let at = slot_offset(sequence);
        let written = self.file.write_all_at(&encode(sequence, &state), at);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            return Err(self.fail(current, error));
        }
        current.sequence = sequence;
        current.state = state;
        Ok(())
    }

    /// Notes, without syncing, that the log holds `durable` on stable storage.
    ///
    /// # Errors
    ///
    /// The fault, which has been reported.
    pub(super) fn hint(&self, durable: LogId) -> Result<(), Fault> {
        let mut current = self.lock();
        if current.failed {
            return Err(self.fault("write", io::Error::other("an earlier write failed")));
        }
        // The next slot takes it over: it must not hold less than the hint that it replaces.
        current.state.durable = Some(durable);
        let mut body = current.sequence.to_be_bytes().to_vec();
        put_log_id(durable, &mut body);
        let bytes = seal(HINT_MAGIC, HINT_VERSION, &body);
        self.file.write_all_at(&bytes, HINT_AT).map_err(|error| self.fail(&mut current, error))
    }

    fn fail(&self, current: &mut Current, error: io::Error) -> Fault {
        current.failed = true;
        let fault = self.fault("write", error);
        (self.on_fault)(fault.clone());
        fault
    }

    /// Notes that the store is created: from now on a missing store is a lost store.
    pub(super) fn set_created(&self) -> Result<(), Fault> {
        self.update_both(|state| state.created = true)
    }

    /// Notes that the log's records are in segments, and durable there: from now on they count.
    pub(super) fn set_segments(&self) -> Result<(), Fault> {
        self.update_both(|state| state.has_segments = true)
    }

    /// See [`ReplicaStore::promise`](super::ReplicaStore::promise).
    pub(super) fn promise(
        &self,
        cluster: ClusterId,
        incarnation: u64,
        members: Vec<Member>,
    ) -> Result<(), PromiseError> {
        let mut wanted = self.state();
        let identity = &wanted.identity;
        if let Some(taken) = identity.cluster {
            if (taken, identity.incarnation) == (cluster, incarnation) {
                return Ok(());
            }
            let (node_id, incarnation) = (identity.node_id, identity.incarnation);
            return Err(PromiseError::Taken { node_id, cluster: taken, incarnation });
        }
        wanted.identity.stage = Stage::Promised;
        wanted.identity.cluster = Some(cluster);
        wanted.identity.incarnation = incarnation;
        wanted.identity.members = members;
        self.set_identity(wanted)
    }

    /// See [`ReplicaStore::set_initialised`](super::ReplicaStore::set_initialised).
    pub(super) fn set_initialised(&self) -> Result<(), PromiseError> {
        let mut wanted = self.state();
        match wanted.identity.stage {
            Stage::Fresh => Err(PromiseError::NotPromised { node_id: wanted.identity.node_id }),
            Stage::Initialised => Ok(()),
            Stage::Promised => {
                wanted.identity.stage = Stage::Initialised;
                self.set_identity(wanted)
            }
        }
    }

    fn set_identity(&self, wanted: GuardState) -> Result<(), PromiseError> {
        let bytes = encode(0, &wanted).len();
        if bytes > SLOT_BYTES {
            return Err(PromiseError::TooLarge { bytes });
        }
        self.update_both(|state| state.identity = wanted.identity)
            .map_err(|fault| PromiseError::Io(fault.to_io()))
    }

    fn fault(&self, action: &'static str, error: io::Error) -> Fault {
        Fault::new(action, &self.path, error)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn guard_path(folder: &Path) -> PathBuf {
    folder.join("guard")
}

/// Writes the file at its full size, so that a later `fdatasync` has no metadata to write.
fn write_new(disk: &dyn Disk, path: &Path, slot: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.create(path)?;
    file.write_all_at(&vec![0; FILE_BYTES], 0)?;
    file.write_all_at(slot, slot_offset(1))?;
    file.sync_all()?;
    Ok(file)
}

fn read_all(file: Arc<dyn DiskFile>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FILE_BYTES);
    Place::beginning_of(file).take(FILE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn slot_offset(sequence: u64) -> u64 {
    (sequence % 2) * SLOT_BYTES as u64
}

/// Both slots, as far as the file has them: a slot that is cut off after its content still counts.
fn slots_of(bytes: &[u8]) -> [Result<(u64, GuardState), DecodeError>; 2] {
    let (first, rest) = bytes.split_at(SLOT_BYTES.min(bytes.len()));
    [first, &rest[..SLOT_BYTES.min(rest.len())]].map(decode_slot)
}

/// The newer of the readable slots. A power cut may leave one slot unreadable.
pub(super) fn choose_slot(bytes: &[u8], path: &Path) -> Result<(u64, GuardState), OpenError> {
    let [first, second] = slots_of(bytes);
    for slot in [&first, &second] {
        if let Err(DecodeError::Version { found, known }) = slot {
            let (path, found, known) = (path.to_path_buf(), *found, *known);
            return Err(OpenError::NewerFormat { path, found, known });
        }
    }
    match (first, second) {
        (Ok(a), Ok(b)) => Ok(if a.0 > b.0 { a } else { b }),
        (Ok(good), Err(_)) | (Err(_), Ok(good)) => Ok(good),
        (Err(a), Err(b)) => {
            let what = format!("first slot: {a}; second slot: {b}");
            Err(OpenError::GuardDamaged { path: path.to_path_buf(), what })
        }
    }
}

pub(super) fn encode(sequence: u64, state: &GuardState) -> Vec<u8> {
    let identity = &state.identity;
    let mut body = sequence.to_be_bytes().to_vec();
    body.push(u8::from(state.created));
    body.extend_from_slice(&state.store_id);
    body.extend_from_slice(&identity.node_id.to_be_bytes());
    body.push(match identity.stage {
        Stage::Fresh => 0,
        Stage::Promised => 1,
        Stage::Initialised => 2,
    });
    body.push(u8::from(identity.cluster.is_some()));
    body.extend_from_slice(&identity.cluster.map_or([0; 16], |cluster| cluster.0));
    body.extend_from_slice(&identity.incarnation.to_be_bytes());
    put_length(identity.members.len(), &mut body);
    for member in &identity.members {
        body.extend_from_slice(&member.id.to_be_bytes());
        put_length(member.address.len(), &mut body);
        body.extend_from_slice(&member.address);
    }
    body.push(u8::from(state.vote.is_some()));
    if let Some(vote) = state.vote {
        put_vote(vote, &mut body);
    }
    for id in [state.durable, state.snapshot] {
        put_optional_log_id(id, &mut body);
    }
    let version = if state.has_segments { VERSION } else { VERSION_WITHOUT_SEGMENTS };
    seal(SLOT_MAGIC, version, &body)
}

/// The contents in the frame of a slot.
#[cfg(test)]
pub(super) fn body(slot: &[u8]) -> Result<&[u8], DecodeError> {
    unseal(SLOT_MAGIC, VERSION, slot)
}

/// A guard file whose first slot contains `body`, with a correct checksum.
#[cfg(test)]
pub(super) fn forge(body: &[u8]) -> Vec<u8> {
    let mut file = seal(SLOT_MAGIC, VERSION, body);
    file.resize(file.len().max(FILE_BYTES), 0);
    file
}

fn decode_slot(bytes: &[u8]) -> Result<(u64, GuardState), DecodeError> {
    let (body, has_segments) = match unseal(SLOT_MAGIC, VERSION, bytes) {
        Err(DecodeError::Version { .. }) => (unseal_old(bytes)?, false),
        newest => (newest?, true),
    };
    let mut fields = Fields(body);
    let sequence = fields.u64()?;
    let created = fields.byte()? != 0;
    let store_id = fields.array()?;
    let identity = decode_identity(&mut fields)?;
    let vote = match fields.byte()? {
        0 => None,
        _ => Some(take_vote(&mut fields)?),
    };
    let durable = take_optional_log_id(&mut fields)?;
    let snapshot = take_optional_log_id(&mut fields)?;
    let state = GuardState { created, has_segments, store_id, identity, vote, durable, snapshot };
    Ok((sequence, state))
}

/// The contents of a slot of the version before; any other version is told as unknown to [`VERSION`].
fn unseal_old(bytes: &[u8]) -> Result<&[u8], DecodeError> {
    unseal(SLOT_MAGIC, VERSION_WITHOUT_SEGMENTS, bytes).map_err(|error| match error {
        DecodeError::Version { found, .. } => DecodeError::Version { found, known: VERSION.into() },
        other => other,
    })
}

fn decode_identity(fields: &mut Fields<'_>) -> Result<Identity, DecodeError> {
    let node_id = fields.u64()?;
    let stage = match fields.byte()? {
        0 => Stage::Fresh,
        1 => Stage::Promised,
        2 => Stage::Initialised,
        other => return Err(DecodeError::Field { field: "stage", value: other.into() }),
    };
    let has_cluster = fields.byte()? != 0;
    let cluster = ClusterId(fields.array()?);
    let incarnation = fields.u64()?;
    let count = fields.u32()?;
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(Member { id: fields.u64()?, address: fields.string()?.to_vec() });
    }
    let cluster = has_cluster.then_some(cluster);
    Ok(Identity { node_id, stage, cluster, incarnation, members })
}

fn decode_hint(bytes: &[u8], sequence: u64) -> Option<LogId> {
    let mut fields = Fields(unseal(HINT_MAGIC, HINT_VERSION, bytes).ok()?);
    let of = fields.u64().ok()?;
    let durable = take_log_id(&mut fields).ok()?;
    (of == sequence).then_some(durable)
}

pub(super) fn put_optional_log_id(id: Option<LogId>, out: &mut Vec<u8>) {
    out.push(u8::from(id.is_some()));
    if let Some(id) = id {
        put_log_id(id, out);
    }
}

pub(super) fn take_optional_log_id(fields: &mut Fields<'_>) -> Result<Option<LogId>, DecodeError> {
    match fields.byte()? {
        0 => Ok(None),
        _ => take_log_id(fields).map(Some),
    }
}
