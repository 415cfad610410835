//! A node that joins by itself (`join = "auto"`, DESIGN §15), before it has an id: it asks the members that its settings
//! name for a place, until one of them leads and gives it one.
//!
//! ```text
//!   the folder is a node's that belongs to a cluster ────────────────────────▶ that node, as ever
//!   … that never had a vote or an entry ─▶ emptied ─┐
//!   the folder is empty ────────────────────────────┴─▶ asks ───────────────▶ a new node, which waits to be added
//!   … and `holdfastd init` has said so ──────────────────────────────────────▶ node 1, which forms the cluster
//! ```
//!
//! It never forms a cluster by itself: if all volumes are lost at once, somebody has to say that tokens may begin
//! anew, or bring a backup.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::COMMAND_VERSION;
use holdfast_proto::v1::{AdmitRequest, HelloRequest};
use holdfast_runtime::Runtime;

use super::view::{Phase, View};
use super::{NodeError, open_store};
use crate::config::Config;
use crate::raft::{GrpcNetwork, Lane, Member, PeerNetwork as _, has_history};
use crate::storage::Store;

/// The file by which an operator says that this node forms the cluster.
const INIT: &str = "init";
/// The file that stays until an emptied folder is empty.
const EMPTYING: &str = "emptying";
/// What stays of a folder that is emptied: the lock of this process, and what a file system has of its own.
const STAYS: [&str; 3] = ["LOCK", "lost+found", EMPTYING];
/// Between two rounds of questions.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long one member may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The id of the node that forms a cluster.
const FIRST_ID: u64 = 1;

/// What a node starts as.
pub(super) struct Settled {
    /// The settings, with its id.
    pub(super) config: Config,
    pub(super) store: Store,
    /// The start under which it was admitted.
    pub(super) start_id: Option<[u8; 16]>,
    /// Whether it forms the cluster, alone.
    pub(super) founds: bool,
}

/// A folder of the node's own could not be changed.
fn failed(folder: &Path) -> impl Fn(io::Error) -> NodeError + '_ {
    move |source| NodeError::Folder { folder: folder.to_owned(), source }
}

/// Waits until this node has an id.
///
/// # Errors
///
/// Its folder cannot be used.
pub(super) async fn settle(
    config: &Config,
    network: &GrpcNetwork,
    view: &View,
    runtime: &Runtime,
) -> Result<Settled, NodeError> {
    let folder = &config.node.data_dir;
    if folder.join(EMPTYING).exists() {
        empty(folder).map_err(failed(folder))?;
    }
    if let Some(node_id) = Store::node_of(folder)? {
        let config = config.with_id(node_id);
        let store = open_store(&config, runtime)?;
        let belongs = has_history(&store);
        // No leader gives this id to a node: a node under another was admitted, and forms nothing.
        let founds = node_id == FIRST_ID && folder.join(INIT).exists();
        if belongs {
            withdraw(folder);
        }
        if belongs || founds {
            return Ok(Settled { config, store, start_id: None, founds: !belongs });
        }
        drop(store);
        tracing::info!("node {node_id} never had a vote or an entry: the folder begins anew");
        empty(folder).map_err(failed(folder))?;
    }
    let mut start_id = [0; 16];
    runtime.rng.fill(&mut start_id);
    let asking = Asking { config, network, runtime, start_id };
    asking.until_settled(view).await
}

struct Asking<'a> {
    config: &'a Config,
    network: &'a GrpcNetwork,
    runtime: &'a Runtime,
    start_id: [u8; 16],
}

impl Asking<'_> {
    async fn until_settled(&self, view: &View) -> Result<Settled, NodeError> {
        let folder = &self.config.node.data_dir;
        let mut said = String::new();
        loop {
            if folder.join(INIT).exists() {
                match self.somebody_else().await {
                    None => return self.settled(FIRST_ID, true),
                    Some(who) => {
                        tracing::error!(
                            "`holdfastd init` has no effect: {who} is of a cluster already"
                        );
                        withdraw(folder);
                    }
                }
            }
            let why = match self.ask_all().await {
                Ok(node_id) => return self.settled(node_id, false),
                Err(why) => why,
            };
            if said != why {
                tracing::info!("joining: {why}");
                said.clone_from(&why);
                view.set(Phase::Joining(why));
            }
            self.runtime.sleep(ASK_AGAIN).await;
        }
    }

    fn settled(&self, node_id: u64, founds: bool) -> Result<Settled, NodeError> {
        tracing::info!("this is node {node_id} from now on");
        let config = self.config.with_id(node_id);
        let store = open_store(&config, self.runtime)?;
        let start_id = (!founds).then_some(self.start_id);
        Ok(Settled { config, store, start_id, founds })
    }

    fn others(&self) -> impl Iterator<Item = String> {
        let own = &self.config.own.peer_advertise;
        let members = self.config.cluster.members.0.iter();
        let others = members.filter(move |member| member.peer_advertise != *own);
        others.map(|member| member.peer_advertise.to_string())
    }

    /// A place: the id that the leader gives.
    ///
    /// # Errors
    ///
    /// Why there is none yet.
    async fn ask_all(&self) -> Result<u64, String> {
        let mut answered = false;
        let mut why = "no other member is named in the settings".to_owned();
        for address in self.others() {
            let answer = match self.ask(&address).await {
                Ok((_, Some(leader))) => self.ask(&leader).await.map(|(answer, _)| answer),
                other => other.map(|(answer, _)| answer),
            };
            match answer {
                Ok(Ok(node_id)) => return Ok(node_id),
                // A member that is cut off knows no leader, and the next may.
                Ok(Err(refusal)) => (why, answered) = (refusal, true),
                Err(_) if answered => {}
                Err(unreached) => why = unreached,
            }
        }
        if answered {
            return Err(why);
        }
        Err(format!("{why}. If there is no cluster yet, `holdfastd init` forms it, at one node"))
    }

    /// What the node at an address says, and where it says that the leader is.
    async fn ask(&self, address: &str) -> Result<(Result<u64, String>, Option<String>), String> {
        let own = &self.config.own;
        let request = AdmitRequest {
            advertise: own.advertise.to_string(),
            peer_advertise: own.peer_advertise.to_string(),
            start_id: Bytes::copy_from_slice(&self.start_id),
            command_version: u32::from(COMMAND_VERSION),
            ..AdmitRequest::default()
        };
        let peer = self.network.peer(&unnumbered(address), Lane::Control);
        let answer = self.runtime.timeout(ANSWER_WITHIN, peer.admit(request)).await;
        let silent = || format!("{address} does not answer");
        let answer = answer.map_err(|_| silent())?;
        let answer = answer.map_err(|error| format!("{address}: {error}"))?;
        let place = match answer.node_id {
            0 => Err(format!("{address}: {}", answer.refusal)),
            node_id => Ok(node_id),
        };
        Ok((place, answer.leader.filter(|leader| leader != address)))
    }

    /// Another node that belongs to a cluster already, if one is reached.
    async fn somebody_else(&self) -> Option<String> {
        for address in self.others() {
            let peer = self.network.peer(&unnumbered(&address), Lane::Control);
            let hello = peer.hello(HelloRequest::default());
            let hello = self.runtime.timeout(ANSWER_WITHIN, hello).await;
            if let Ok(Ok(hello)) = hello
                && (hello.initialised || hello.cluster_id.is_some())
            {
                return Some(format!("node {} at {address}", hello.node_id));
            }
        }
        None
    }
}

/// Whatever node is at an address.
fn unnumbered(address: &str) -> Member {
    Member { node_id: 0, advertise: String::new(), peer_advertise: address.to_owned() }
}

/// Empties a folder that no cluster counts on. A start that was interrupted in it goes on with the next.
fn empty(folder: &Path) -> io::Result<()> {
    let mark = folder.join(EMPTYING);
    File::create(&mark)?.sync_all()?;
    File::open(folder)?.sync_all()?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if STAYS.iter().any(|stays| entry.file_name() == *stays) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(mark)?;
    File::open(folder)?.sync_all()
}

/// What an operator asked for is done, or has no effect.
fn withdraw(folder: &Path) {
    match fs::remove_file(folder.join(INIT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "{} cannot be removed", folder.join(INIT).display());
        }
        _ => {}
    }
}

/// Why `holdfastd init` did nothing.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The settings say that the node forms a cluster with others, or is added to one.
    #[error(
        "`join` is not \"auto\": this node forms its cluster with `members`, or is added to one, and needs no init"
    )]
    NotAuto,
    /// The folder is a node's.
    #[error("{} is the folder of node {node_id} already; `holdfastd init` is for an empty one", folder.display())]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// The node.
        node_id: u64,
    },
    /// The folder cannot be written.
    #[error("{} cannot be used: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The guard file cannot be read.
    #[error(transparent)]
    Guard(#[from] crate::storage::OpenError),
}

/// Says that this node forms the cluster: whoever may write its data folder may say so. The node does it when it runs
/// with these settings, or as soon as it sees it.
///
/// # Errors
///
/// [`InitError`]; nothing was changed.
pub fn init(config: &Config) -> Result<String, InitError> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
    if config.node.join != crate::config::Join::Auto {
        return Err(InitError::NotAuto);
    }
    let folder = &config.node.data_dir;
    let failed = |source| InitError::Folder { folder: folder.clone(), source };
    if !folder.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    if let Some(node_id) = Store::node_of(folder)? {
        return Err(InitError::Taken { folder: folder.clone(), node_id });
    }
    let owner = fs::metadata(folder).map_err(failed)?;
    let mark = folder.join(INIT);
    File::create(&mark).and_then(|file| file.sync_all()).map_err(failed)?;
    if nix::unistd::geteuid().is_root() {
        chown(&mark, Some(owner.uid()), Some(owner.gid())).map_err(failed)?;
    }
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    Ok(format!(
        "The node with the data folder {} forms a new cluster, as node {FIRST_ID}, unless another member belongs to one already. \
         The other nodes join it by themselves.\n",
        folder.display()
    ))
}
