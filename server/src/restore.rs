//! `holdfastd restore`: a data folder from a backup (DESIGN §15).
//!
//! The folder is made beside its place and gets its name when it is whole and synced: an interrupted
//! restore leaves nothing that a node would start with.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::{Backup, BackupError, BackupHeader, LockTable, RestoreError, RestorePlan};
use holdfast_runtime::Runtime;

use crate::config::Config;
use crate::exit::Exit;
use crate::node::settings;
use crate::raft::found_restored;
use crate::storage::{ClusterId, OpenError, Store, StoreOptions};

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

/// Makes the data folder of the settings from a backup: that of the first member of a new cluster.
///
/// # Errors
///
/// [`Refusal`].
pub fn run(config: &Config, wish: &Wish) -> Result<Done, Refusal> {
    let runtime = Runtime::system();
    let folder = config.node.data_dir.clone();
    let beside = beside(&folder);
    check_places(&folder, &beside)?;
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
    let made = make(config, &runtime, &beside, (cluster, &table));
    let put = made.and_then(|()| {
        put(&beside, &folder).map_err(|source| Refusal::Write { folder: folder.clone(), source })
    });
    if let Err(refusal) = put {
        // What cannot be removed is named by the next attempt.
        let _ = fs::remove_dir_all(&beside);
        return Err(refusal);
    }
    Ok(Done { folder, node_id: config.node.node_id, cluster, header, table })
}

/// Where the folder is made: in the same folder, so that it can be renamed.
fn beside(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".restoring");
    name.into()
}

fn check_places(folder: &Path, beside: &Path) -> Result<(), Refusal> {
    let failed = |source| Refusal::Write { folder: folder.to_owned(), source };
    match fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(true) => return Err(Refusal::NotEmpty(folder.to_owned())),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    match fs::symlink_metadata(beside) {
        Ok(_) => Err(Refusal::Interrupted(beside.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn read(file: &Path) -> Result<(BackupHeader, LockTable), Refusal> {
    let failed = |source| Refusal::Backup { file: file.to_owned(), source };
    let opened = File::open(file).map_err(|error| failed(BackupError::Io(error)))?;
    Backup::read_from(&mut BufReader::with_capacity(READ_BYTES, opened)).map_err(failed)
}

/// Makes the store in its folder beside.
fn make(
    config: &Config,
    runtime: &Runtime,
    beside: &Path,
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
    let failed = |source| Refusal::Write { folder: beside.to_owned(), source };
    let store = Store::open(beside, options)?;
    let queue = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let queue = queue.map_err(failed)?;
    queue.block_on(found_restored(&store, cluster, table, own)).map_err(failed)
}

/// Gives the folder its name, and makes that durable. An empty folder that is there is replaced.
fn put(beside: &Path, folder: &Path) -> io::Result<()> {
    fs::rename(beside, folder)?;
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
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
