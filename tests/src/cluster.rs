//! Real `holdfastd` processes on loopback: started, killed, stopped, frozen, cut off from power.
//!
//! A [`Cluster`] owns its processes and its folder. However the test ends, they are ended, by their
//! own ids: on drop, and by the kernel if the test's thread is gone before. After a failure the
//! folder with settings, data and logs is kept and its path printed.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::v1::StatusResponse;
use holdfast_runtime::Runtime;
use nix::sys::signal::{SigHandler, Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::namespace::Namespace;
use crate::{shim, wire};

/// How long a cluster may take to have a leader that serves.
const LEADER_WITHIN: Duration = Duration::from_mins(1);
/// How long a process may take to end after a signal.
const EXIT_WITHIN: Duration = Duration::from_mins(1);

/// The cluster that a test needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many nodes; one is the embedded default with one voter.
    pub nodes: usize,
    /// Further settings of each node, lines of TOML.
    pub node_settings: String,
    /// Further settings of the whole cluster, lines of TOML.
    pub cluster_settings: String,
    /// The Cassandra that scopes fall back on, lines of TOML; empty: none.
    pub fallback_settings: String,
    /// Data folders lose unsynced writes when the power is cut ([`Cluster::cut_power`]).
    pub power: bool,
    /// The places of the nodes; empty: on loopback.
    pub places: Vec<Place>,
    /// Libraries that each node's process is started with.
    pub preload: Vec<PathBuf>,
    /// The holdfastd of each node until it gets another; `None`: the one that is tested.
    pub program: Option<PathBuf>,
    /// The folder of settings, data and logs, which is kept; `None`: a folder that is removed
    /// unless the test fails.
    pub folder: Option<PathBuf>,
}

/// The addresses on which a node listens, and those that others use.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address for clients.
    pub listen: String,
    /// The address for its peers.
    pub peer_listen: String,
    /// Its admin port.
    pub admin_listen: String,
    /// The address that clients get from other nodes.
    pub advertise: String,
    /// The address that its peers use.
    pub peer_advertise: String,
    /// The network it is in, if it is not the harness's own.
    pub namespace: Option<Arc<Namespace>>,
}

impl Place {
    /// Ports of its own on loopback.
    pub fn on_loopback() -> Self {
        let [listen, peer_listen, admin_listen] =
            [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
        let (advertise, peer_advertise) = (listen.clone(), peer_listen.clone());
        Self { listen, peer_listen, admin_listen, advertise, peer_advertise, namespace: None }
    }
}

impl Setup {
    /// This many nodes with the usual settings.
    pub fn nodes(nodes: usize) -> Self {
        Self {
            nodes,
            // The machine's disk may be fuller than a store accepts.
            node_settings: "reserve_bytes = 0\n".into(),
            cluster_settings: String::new(),
            fallback_settings: String::new(),
            power: false,
            places: Vec::new(),
            preload: Vec::new(),
            program: None,
            folder: None,
        }
    }

    /// Adds a setting of each node.
    #[must_use]
    pub fn node(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let _ = writeln!(self.node_settings, "{key} = {value}");
        self
    }

    /// Adds a setting of the whole cluster.
    #[must_use]
    pub fn cluster(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let _ = writeln!(self.cluster_settings, "{key} = {value}");
        self
    }

    /// Sets the Cassandra that scopes fall back on.
    #[must_use]
    pub fn with_fallback(mut self, lines: &str) -> Self {
        self.fallback_settings = format!("\n[fallback]\n{lines}");
        self
    }

    /// Makes it possible to cut the power.
    #[must_use]
    pub fn with_power_cuts(mut self) -> Self {
        self.power = true;
        self
    }
}

/// A cluster of processes.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    setup: Setup,
    power: Option<PathBuf>,
    preload: Vec<PathBuf>,
    folder: PathBuf,
    temporary: Option<TempDir>,
    runtime: Runtime,
}

/// One node: its folder, its addresses, and its process while it has one.
#[derive(Debug)]
pub struct Node {
    /// Its node id.
    pub id: u64,
    /// The address for clients.
    pub listen: String,
    /// The address for its peers.
    pub peer_listen: String,
    /// Its admin port.
    pub admin_listen: String,
    /// The address that clients get from other nodes.
    pub advertise: String,
    /// Its settings.
    pub config: PathBuf,
    /// The folder of everything on its disk.
    pub disk: PathBuf,
    /// Its data.
    pub data: PathBuf,
    /// The file with everything it prints.
    pub log: PathBuf,
    peer_advertise: String,
    namespace: Option<Arc<Namespace>>,
    variables: Vec<(String, String)>,
    program: Option<PathBuf>,
    child: Option<Child>,
    /// It waits to be added rather than forming a cluster.
    joins: bool,
    /// It is no longer a member: no settings name it, and nothing waits for it.
    gone: bool,
}

impl Cluster {
    /// Writes the settings of all nodes, without starting any.
    pub fn prepare(setup: &Setup) -> Self {
        let temporary = setup.folder.is_none().then(temporary_folder);
        let own = temporary.as_ref().map(|folder| folder.path().to_path_buf());
        let folder = setup.folder.clone().or(own).expect("the one or the other");
        let places = setup.places.iter().cloned().chain(std::iter::repeat_with(Place::on_loopback));
        let nodes: Vec<Node> = (1..=setup.nodes as u64)
            .zip(places)
            .map(|(id, place)| Node {
                program: setup.program.clone(),
                ..Node::prepare(id, place, &folder)
            })
            .collect();
        let power = setup.power.then(|| shim::built("lostwrite/lostwrite.c"));
        let preload = setup.preload.iter().cloned().chain(power.clone()).collect();
        let (setup, runtime) = (setup.clone(), Runtime::system());
        let cluster = Self { nodes, setup, power, preload, folder, temporary, runtime };
        for node in &cluster.nodes {
            cluster.write_settings(node);
        }
        cluster
    }

    fn write_settings(&self, node: &Node) {
        let members = if self.nodes.len() > 1 { members(&self.nodes) } else { String::new() };
        let Setup { node_settings, cluster_settings, fallback_settings, .. } = &self.setup;
        let node_text = node.config_text();
        let text = format!(
            "{node_text}{node_settings}\n[cluster]\n{cluster_settings}{members}{fallback_settings}"
        );
        std::fs::write(&node.config, text).unwrap();
    }

    /// Writes the settings of one more node, which waits to be added to the cluster, without
    /// starting it; returns its place. Its settings name all nodes so far.
    pub fn prepare_joining(&mut self, id: u64) -> usize {
        let place = self.setup.places.get(self.nodes.len()).cloned();
        let place = place.unwrap_or_else(Place::on_loopback);
        self.nodes.push(Node { joins: true, ..Node::prepare(id, place, &self.folder) });
        let index = self.nodes.len() - 1;
        self.write_settings(&self.nodes[index]);
        index
    }

    /// A node that does not run is no longer a member. Its machine stays empty until
    /// [`Cluster::prepare_again`].
    pub fn retire(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        assert!(node.child.is_none(), "node {} runs", node.id);
        node.gone = true;
    }

    /// Puts a new node on the machine of one that is gone, with an empty folder and an id of its
    /// own; it waits to be added. All settings name the present members, as the manual tells
    /// operators to write them.
    pub fn prepare_again(&mut self, index: usize, id: u64) {
        let node = &mut self.nodes[index];
        assert!(node.gone, "node {} is still there", node.id);
        node.empty();
        node.id = id;
        (node.config, node.log) = Node::files(id, &self.folder);
        (node.joins, node.gone) = (true, false);
        for index in self.members() {
            self.write_settings(&self.nodes[index]);
        }
    }

    /// The data folder of a node that does not run is lost.
    pub fn wipe(&mut self, index: usize) {
        let node = &self.nodes[index];
        assert!(node.child.is_none(), "node {} runs", node.id);
        node.empty();
    }

    /// The places of all nodes that are not gone.
    pub fn members(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|index| !self.nodes[*index].gone).collect()
    }

    /// Starts all nodes and waits until one leads and serves.
    pub async fn start(setup: &Setup) -> Self {
        let mut cluster = Self::prepare(setup);
        for index in 0..cluster.nodes.len() {
            cluster.start_node(index);
        }
        cluster.leader().await;
        cluster
    }

    /// The nodes, in the order of their ids; other methods name a node by its index here.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Every node's client address, comma-separated, also of those that are gone.
    pub fn endpoints(&self) -> String {
        let all: Vec<&str> = self.nodes.iter().map(|node| node.advertise.as_str()).collect();
        all.join(",")
    }

    /// The addresses of a node for clients and for peers.
    pub fn addresses(&self, index: usize) -> (String, String) {
        let Node { advertise, peer_advertise, .. } = &self.nodes[index];
        (advertise.clone(), peer_advertise.clone())
    }

    /// The run's folder, for histories and the like.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a node that does not run.
    pub fn start_node(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        assert!(node.child.is_none(), "node {} runs already", node.id);
        let log = OpenOptions::new().create(true).append(true).open(&node.log).unwrap();
        let mut command = Command::new(node.program.clone().unwrap_or_else(|| binary("holdfastd")));
        command.arg("--config").arg(&node.config).envs(node.variables.iter().cloned());
        if !self.preload.is_empty() {
            command.env("LD_PRELOAD", std::env::join_paths(&self.preload).unwrap());
        }
        if self.power.is_some() {
            let trash = node.trash();
            for folder in [&node.data, &trash] {
                std::fs::create_dir_all(folder).unwrap();
            }
            command.env("LOSTWRITE_DIR", &node.data).env("LOSTWRITE_TRASH", trash);
        }
        if let Some(namespace) = &node.namespace {
            namespace.admit(&mut command).unwrap();
        }
        node.child = Some(spawn(&mut command, &log));
    }

    /// Sets the holdfastd of a node, from its next start on; `None`: the one that is tested.
    pub fn set_program(&mut self, index: usize, program: Option<PathBuf>) {
        self.nodes[index].program = program;
    }

    /// Sets the environment of a node's process, from its next start on.
    pub fn set_variables(&mut self, index: usize, variables: Vec<(String, String)>) {
        self.nodes[index].variables = variables;
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if let Some(mut child) = node.child.take() {
            // A frozen process dies of SIGKILL too.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Cuts these nodes off from power at once: their processes are gone, with every write that was
    /// not synced.
    pub async fn cut_power(&mut self, indexes: &[usize]) {
        assert!(self.power.is_some(), "the cluster was set up without power cuts");
        for &index in indexes {
            self.signal(index, Signal::SIGUSR2);
        }
        for &index in indexes {
            let status = self.wait_for_exit(index).await;
            // A process that has only just been started has no shim yet, and has written nothing.
            let just_started = status.signal() == Some(Signal::SIGUSR2 as i32);
            assert!(
                status.code() == Some(99) || just_started,
                "the shim ends what it rolls back: {status}"
            );
        }
    }

    /// Sends a signal to a running node.
    pub fn signal(&self, index: usize, signal: Signal) {
        kill(self.pid(index), signal).unwrap();
    }

    /// Freezes a node: it does nothing until [`Cluster::thaw`].
    pub fn freeze(&self, index: usize) {
        self.signal(index, Signal::SIGSTOP);
    }

    /// Lets a frozen node continue.
    pub fn thaw(&self, index: usize) {
        self.signal(index, Signal::SIGCONT);
    }

    /// The process id of a running node.
    pub fn pid(&self, index: usize) -> Pid {
        let child = self.nodes[index].child.as_ref().expect("the node runs");
        Pid::from_raw(i32::try_from(child.id()).unwrap())
    }

    /// Whether the node's process has not ended.
    pub fn runs(&mut self, index: usize) -> bool {
        self.nodes[index].child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// How a node's process has ended, if it has; the node may then be started again.
    pub fn exited(&mut self, index: usize) -> Option<ExitStatus> {
        let node = &mut self.nodes[index];
        let status = node.child.as_mut()?.try_wait().unwrap()?;
        node.child = None;
        Some(status)
    }

    /// Waits until a node's process has ended by itself.
    pub async fn wait_for_exit(&mut self, index: usize) -> ExitStatus {
        let give_up = self.runtime.clock.now() + EXIT_WITHIN;
        while self.runs(index) {
            let node = self.nodes[index].id;
            assert!(self.runtime.clock.now() < give_up, "node {node} did not end in time");
            self.runtime.sleep(Duration::from_millis(5)).await;
        }
        let mut child = self.nodes[index].child.take().expect("the node ran");
        child.wait().unwrap()
    }

    /// What a node has printed so far.
    pub fn log(&self, index: usize) -> String {
        std::fs::read_to_string(&self.nodes[index].log).unwrap_or_default()
    }

    /// The status that a node reports, within a second.
    pub async fn status(&self, index: usize) -> Option<StatusResponse> {
        wire::status(&self.nodes[index].listen, Duration::from_secs(1)).await
    }

    /// Waits until a node leads and serves; returns its index.
    pub async fn leader(&self) -> usize {
        self.leader_among(|_| true).await
    }

    /// Waits until a node for which `may` holds leads and serves; returns its index.
    pub async fn leader_among(&self, may: impl Fn(usize) -> bool) -> usize {
        let clock = &self.runtime.clock;
        let give_up = clock.now() + LEADER_WITHIN;
        while clock.now() < give_up {
            for index in (0..self.nodes.len()).filter(|index| may(*index)) {
                if self.nodes[index].child.is_some() && self.leads(index).await {
                    return index;
                }
            }
            self.runtime.sleep(Duration::from_millis(50)).await;
        }
        panic!("no node leads and serves within {LEADER_WITHIN:?}");
    }

    async fn leads(&self, index: usize) -> bool {
        let id = self.nodes[index].id;
        self.status(index).await.is_some_and(|status| status.ready && status.leader_id == Some(id))
    }

    /// Waits until every node is ready: it leads, or follows a leader that serves.
    pub async fn all_ready(&self) {
        let clock = &self.runtime.clock;
        let give_up = clock.now() + LEADER_WITHIN;
        for index in self.members() {
            while !self.status(index).await.is_some_and(|status| status.ready) {
                assert!(clock.now() < give_up, "node {} is not ready", self.nodes[index].id);
                self.runtime.sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for index in 0..self.nodes.len() {
            self.kill(index);
        }
        if std::thread::panicking() {
            for node in &self.nodes {
                print_tail(&node.log);
            }
            let folder = self.temporary.take().map_or_else(|| self.folder.clone(), TempDir::keep);
            eprintln!("the cluster's settings, data and logs are kept in {}", folder.display());
        }
    }
}

impl Node {
    fn prepare(id: u64, place: Place, folder: &Path) -> Self {
        let disk = folder.join(format!("disk-{id}"));
        std::fs::create_dir_all(&disk).unwrap();
        let (config, log) = Self::files(id, folder);
        Self {
            id,
            listen: place.listen,
            peer_listen: place.peer_listen,
            admin_listen: place.admin_listen,
            advertise: place.advertise,
            config,
            data: disk.join("data"),
            disk,
            log,
            peer_advertise: place.peer_advertise,
            namespace: place.namespace,
            variables: Vec::new(),
            program: None,
            child: None,
            joins: false,
            gone: false,
        }
    }

    /// The file of its settings, and that of its output.
    fn files(id: u64, folder: &Path) -> (PathBuf, PathBuf) {
        (folder.join(format!("node-{id}.toml")), folder.join(format!("node-{id}.log")))
    }

    /// The folder in which the shim of the power cuts keeps what could be lost.
    fn trash(&self) -> PathBuf {
        self.data.with_extension("trash")
    }

    fn empty(&self) {
        for folder in [self.data.clone(), self.trash()] {
            if folder.exists() {
                std::fs::remove_dir_all(folder).unwrap();
            }
        }
    }

    fn config_text(&self) -> String {
        format!(
            "node_id = {}\nlisten = {:?}\npeer_listen = {:?}\nadmin_listen = {:?}\ndata_dir = \
             {:?}\njoin = {}\n",
            self.id,
            self.listen,
            self.peer_listen,
            self.admin_listen,
            self.data.to_str().unwrap(),
            self.joins
        )
    }
}

fn temporary_folder() -> TempDir {
    tempfile::Builder::new().prefix("holdfast-test-").tempdir().unwrap()
}

fn members(nodes: &[Node]) -> String {
    let mut text = String::from("members = [\n");
    for node in nodes.iter().filter(|node| !node.gone) {
        let _ = writeln!(
            text,
            "  {{ node_id = {}, advertise = {:?}, peer_advertise = {:?} }},",
            node.id, node.advertise, node.peer_advertise
        );
    }
    text + "]\n"
}

/// The path of one of the product's programs: in `HOLDFAST_BIN_DIR`, or where cargo puts them
/// beside this test.
pub fn binary(name: &str) -> PathBuf {
    let folder = std::env::var_os("HOLDFAST_BIN_DIR").map_or_else(beside_this_test, PathBuf::from);
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --bins` first, or set HOLDFAST_BIN_DIR",
        path.display()
    );
    path
}

/// `target/debug` of a test that runs as `target/debug/deps/name-hash`.
pub(crate) fn beside_this_test() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    folder
}

/// Starts a process that ends with the thread that started it, however the test ends.
pub fn spawn(command: &mut Command, log: &File) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .stderr(Stdio::from(log.try_clone().unwrap()));
    // The harness's own variables are not settings of the product.
    command.env_remove("HOLDFAST_BIN_DIR");
    end_with_parent(command);
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

/// Lets the kernel end the process with the thread that starts it.
pub fn end_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: between fork and exec only prctl and signal are called, which are safe after a signal or a fork.
    #[expect(unsafe_code, reason = "no safe way to set the parent's death signal")]
    unsafe {
        command.pre_exec(|| {
            // A shell without job control has what it starts in the background ignore both.
            for signal in [Signal::SIGINT, Signal::SIGQUIT] {
                nix::sys::signal::signal(signal, SigHandler::SigDfl)?;
            }
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)
        });
    }
}

/// A port on which nothing listens, and that a node finds free when it is started again.
pub fn free_port() -> u16 {
    holdfast_runtime::loopback::free_port().expect("no port below the system's own is free")
}

fn print_tail(log: &Path) {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("--- the end of {}", log.display());
    for line in &lines[lines.len().saturating_sub(15)..] {
        eprintln!("{line}");
    }
}
