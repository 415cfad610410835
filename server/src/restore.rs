//! `holdfastd restore`: a data folder from a backup (DESIGN §15).
//!
//! It is made in a folder within, because the data folder itself may be a volume or another user's, and its
//! parts are moved out when they are whole and synced. The guard file is the last: without one no node takes what
//! else is there for a store (I21), so an interrupted restore leaves nothing that a node would start with.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::{Backup, BackupError, BackupHeader, LockTable, RestoreError, RestorePlan};
use holdfast_runtime::Runtime;
use nix::unistd::geteuid;

use crate::config::Config;
use crate::exit::Exit;
use crate::node::settings;
use crate::raft::found_restored;
use crate::storage::{ClusterId, OpenError, Store, StoreOptions};

/// The folder within in which everything is made.
const WITHIN: &str = "restoring";
/// The file without which the others are no store.
const GUARD: &str = "guard";
/// The file that a process locks while it has a store open.
const LOCK: &str = "LOCK";
/// Bytes read of the backup at once.
const READ_BYTES: usize = 256 << 10;

/// What the operator asks for beside the settings.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The backup.
    pub backup: PathBuf,
    /// As in [`RestorePlan`].
    pub epoch: Option<u16>,
    /// As in [`RestorePlan`].
    pub now: bool,
}

/// Why no folder was made. Nothing is where the data folder is to be, or what was there before.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is something in it.
    #[error("{} is not empty; a restore makes a new folder: name another, or move this one away", .0.display())]
    NotEmpty(PathBuf),
    /// An earlier restore was interrupted.
    #[error("{} is left from a restore that was interrupted; remove it and try again", .0.display())]
    Interrupted(PathBuf),
    /// The backup is of no use.
    #[error("{}: {source}", file.display())]
    Backup {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: BackupError,
    },
    /// Its tokens might not rise.
    #[error("{}: {source}", file.display())]
    Tokens {
        /// The file.
        file: PathBuf,
        /// Why.
        source: RestoreError,
    },
    /// The settings do not name this node.
    #[error("node {0} is not among the members in the settings")]
    NoMember(u64),
    /// The store cannot be made.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Something could not be written.
    #[error("{} was not made: {source}", folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Refusal {
    /// The exit code for it.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::NotEmpty(_) | Self::Interrupted(_) | Self::Store(_) => Exit::DataFolder,
            Self::Backup { .. } | Self::Tokens { .. } => Exit::Backup,
            Self::NoMember(_) => Exit::Settings,
            Self::Write { .. } => Exit::Storage,
        }
    }
}

/// A folder that was made.
#[derive(Debug)]
pub struct Done {
    folder: PathBuf,
    node_id: u64,
    cluster: ClusterId,
    header: BackupHeader,
    table: LockTable,
}

/// Makes the data folder of the settings from a backup: that of the first member of a new cluster. Run by root
/// in a folder of another user, it leaves everything to that user.
///
/// # Errors
///
/// [`Refusal`].
pub fn run(config: &Config, wish: &Wish) -> Result<Done, Refusal> {
    let runtime = Runtime::system();
    let folder = config.node.data_dir.clone();
    check_place(&folder)?;
    let (header, table) = read(&wish.backup)?;
    let plan = RestorePlan {
        now_ms: runtime.clock.wall_ms(),
        epoch: wish.epoch,
        ttl_max_ms: config.cluster.limits().ttl_max_ms,
        now: wish.now,
    };
    let restored = table.restored(&plan);
    let table = restored.map_err(|source| Refusal::Tokens { file: wish.backup.clone(), source })?;
    let mut id = [0; 16];
    runtime.rng.fill(&mut id);
    let cluster = ClusterId(id);
    let failed = |source| Refusal::Write { folder: folder.clone(), source };
    let is_new = make_folder(&folder).map_err(failed)?;
    let within = folder.join(WITHIN);
    let made = make(config, &runtime, &within, (cluster, &table));
    if let Err(refusal) = made.and_then(|()| move_out(&within, &folder).map_err(failed)) {
        // What cannot be removed is named by the next attempt.
        let _ = fs::remove_dir_all(&within);
        if is_new {
            let _ = fs::remove_dir(&folder);
        }
        return Err(refusal);
    }
    Ok(Done { folder, node_id: config.node.node_id, cluster, header, table })
}

fn check_place(folder: &Path) -> Result<(), Refusal> {
    let failed = |source| Refusal::Write { folder: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    let names: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.file_name())).collect();
    let names = names.map_err(failed)?;
    if names.iter().any(|name| name == WITHIN) {
        return Err(Refusal::Interrupted(folder.join(WITHIN)));
    }
    // What a new file system has of its own.
    let foreign = names.iter().any(|name| name != "lost+found");
    if foreign { Err(Refusal::NotEmpty(folder.to_owned())) } else { Ok(()) }
}

/// Whether it was not there.
fn make_folder(folder: &Path) -> io::Result<bool> {
    if folder.is_dir() {
        return Ok(false);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    Ok(true)
}

fn read(file: &Path) -> Result<(BackupHeader, LockTable), Refusal> {
    let failed = |source| Refusal::Backup { file: file.to_owned(), source };
    let opened = File::open(file).map_err(|error| failed(BackupError::Io(error)))?;
    Backup::read_from(&mut BufReader::with_capacity(READ_BYTES, opened)).map_err(failed)
}

/// Makes the store, and closes it.
fn make(
    config: &Config,
    runtime: &Runtime,
    within: &Path,
    (cluster, table): (ClusterId, &LockTable),
) -> Result<(), Refusal> {
    let node_id = config.node.node_id;
    let of_replica = settings::replica(config);
    let own = of_replica.members.iter().find(|member| member.node_id == node_id);
    let own = own.ok_or(Refusal::NoMember(node_id))?;
    let mut new_store_id = [0; 16];
    runtime.rng.fill(&mut new_store_id);
    let options = StoreOptions {
        node_id,
        cluster: None,
        new_store_id,
        // The write that failed says so to its caller.
        on_fault: Arc::new(|_| ()),
        stalls_after: of_replica.stalls_after(),
    };
    let failed = |source| Refusal::Write { folder: within.to_owned(), source };
    let store = Store::open(within, options)?;
    let queue = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let queue = queue.map_err(failed)?;
    queue.block_on(found_restored(&store, cluster, table, own)).map_err(failed)
}

/// Moves the parts of a closed store to their places, the guard file last, and makes that durable.
fn move_out(within: &Path, folder: &Path) -> io::Result<()> {
    if geteuid().is_root() {
        let owner = fs::metadata(folder)?;
        give(within, (owner.uid(), owner.gid()))?;
    }
    for entry in fs::read_dir(within)? {
        let name = entry?.file_name();
        if name != GUARD && name != LOCK {
            fs::rename(within.join(&name), folder.join(&name))?;
        }
    }
    File::open(folder)?.sync_all()?;
    fs::rename(within.join(GUARD), folder.join(GUARD))?;
    fs::remove_dir_all(within)?;
    File::open(folder)?.sync_all()
}

/// Makes a user the owner of everything in a folder, as only root can.
fn give(path: &Path, (user, group): (u32, u32)) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if (found.uid(), found.gid()) != (user, group) {
        chown(path, Some(user), Some(group))?;
    }
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), (user, group))?;
        }
    }
    Ok(())
}

impl Done {
    /// What was made, and what is left for the operator to do.
    pub fn report(&self) -> String {
        let Self { folder, node_id, cluster, header, table } = self;
        let counters = table.counters();
        let wait = match table.grants_after_ms() {
            Some(ms) => format!(
                "It grants no lock for {} s from its first leader on, until no client of the old cluster \
                 can rely on one.",
                ms.div_ceil(1_000)
            ),
            None => {
                "It grants locks at once (--now): no client of the old cluster may run any more."
                    .to_owned()
            }
        };
        let mut lines = vec![
            format!(
                "{} is the folder of node {node_id} of a new cluster, {}, with what cluster {} had at \
                 its log index {}.",
                folder.display(),
                hex::encode(cluster.0),
                hex::encode(header.origin.cluster_id),
                header.index,
            ),
            format!("Tokens go on in epoch {}, from {}.", counters.epoch, counters.token),
            wait,
        ];
        let tokens: Vec<_> = table.rules().tokens().map(|(name, _)| name.as_str()).collect();
        if !tokens.is_empty() {
            lines.push(format!(
                "These bearer tokens count again; revoke those that were revoked after the backup: {}.",
                tokens.join(", ")
            ));
        }
        let scopes: Vec<_> = table.scopes().map(|view| view.scope.as_str()).collect();
        if !scopes.is_empty() {
            lines.push(format!(
                "These prefixes are scopes with fallback, as at the time of the backup: {}.",
                scopes.join(", ")
            ));
        }
        lines.push(
            "The old cluster must never run again. Start this node; the others join with empty folders \
             (holdfastd --join, holdfast cluster add)."
                .to_owned(),
        );
        lines.join("\n") + "\n"
    }
}
