//! Local servers on loopback, for the demo and for measuring.

use holdfast_runtime::loopback;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use holdfast::NodeStatus;
use serde_json::json;

use crate::failure::Failure;
use crate::signals;

/// The time limit of one request to one server.
const QUESTION_LIMIT: Duration = Duration::from_millis(300);
/// These servers need little disk, and should also run on a machine that is short of it.
const RESERVE_BYTES: u64 = 64 << 20;

/// The servers. Dropping it kills them.
pub(crate) struct Cluster {
    binary: PathBuf,
    nodes: Vec<Node>,
}

struct Node {
    endpoint: String,
    admin: String,
    config: PathBuf,
    log: PathBuf,
    process: Option<Child>,
}

impl Cluster {
    /// Starts this many servers, with settings and data below `folder`. Call it on the main thread:
    /// they die with the thread that started them.
    pub(crate) fn start(folder: &Path, servers: usize) -> Result<Self, Failure> {
        let binary = server_binary()?;
        // They are free when a server restarts, too.
        let ports: Result<Vec<_>, _> = (0..servers * 3).map(|_| loopback::free_port()).collect();
        let ports = ports.map_err(|error| Failure::own("finding free ports", error))?;
        let addresses: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut cluster = Self { binary, nodes: Vec::new() };
        for (index, own) in addresses.chunks(3).enumerate() {
            let config = folder.join(format!("node-{}.toml", index + 1));
            let text = settings(index, &addresses, folder);
            std::fs::write(&config, text)
                .map_err(|error| Failure::own("writing settings", error))?;
            let log = folder.join(format!("node-{}.log", index + 1));
            let endpoint = own.first().cloned().unwrap_or_default();
            let admin = own.get(2).cloned().unwrap_or_default();
            cluster.nodes.push(Node { endpoint, admin, config, log, process: None });
        }
        for index in 0..servers {
            cluster.start_node(index)?;
        }
        Ok(cluster)
    }

    /// Starts a server that is not running.
    pub(crate) fn start_node(&mut self, index: usize) -> Result<(), Failure> {
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        let failed = |error| Failure::own("starting holdfastd", error);
        let log = File::options().create(true).append(true).open(&node.log).map_err(failed)?;
        let mut command = Command::new(&self.binary);
        command.arg("--config").arg(&node.config).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        signals::as_child(&mut command);
        node.process = Some(command.spawn().map_err(failed)?);
        Ok(())
    }

    /// Every endpoint, for clients.
    pub(crate) fn endpoints(&self) -> String {
        let endpoints: Vec<_> = self.nodes.iter().map(|node| node.endpoint.as_str()).collect();
        endpoints.join(",")
    }

    /// Where the page of each server is.
    pub(crate) fn pages(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}/", node.admin)).collect()
    }

    /// The process ids of the running servers.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.process.as_ref()?.id())).collect()
    }

    /// The server that leads, if one reports that.
    pub(crate) fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|index| {
            self.status(*index)
                .is_some_and(|status| status.ready && status.leader == Some(status.node))
        })
    }

    /// Whether a server takes part: leads, or follows a leader that contacts it.
    pub(crate) fn is_ready(&self, index: usize) -> bool {
        self.status(index).is_some_and(|status| status.ready)
    }

    fn status(&self, index: usize) -> Option<NodeStatus> {
        let node = self.nodes.get(index)?;
        node.process.as_ref()?;
        let builder = holdfast::Client::builder().endpoints([node.endpoint.as_str()]);
        let reader = builder.connect_timeout(QUESTION_LIMIT).reader().ok()?;
        holdfast_cli::block_on(reader.status()).ok()?.ok()
    }

    /// Kills a server with SIGKILL, by its process id.
    pub(crate) fn kill(&mut self, index: usize) {
        if let Some(mut process) = self.nodes.get_mut(index).and_then(|node| node.process.take()) {
            // It may have ended by itself; then there is nothing to kill.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The number and log of a server that ended by itself.
    pub(crate) fn fallen(&mut self) -> Option<(usize, PathBuf)> {
        self.nodes.iter_mut().enumerate().find_map(|(index, node)| {
            let process = node.process.as_mut()?;
            let ended = matches!(process.try_wait(), Ok(Some(_)));
            ended.then(|| (index + 1, node.log.clone()))
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for index in 0..self.nodes.len() {
            self.kill(index);
        }
    }
}

/// `holdfastd` beside this executable, from the same build.
fn server_binary() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::own("finding holdfast", error))?;
    let binary = own.with_file_name("holdfastd");
    if binary.is_file() {
        return Ok(binary);
    }
    Err(Failure::own(
        &format!("{} is missing", binary.display()),
        "the servers started here are the holdfastd beside the holdfast executable; build both \
         with `cargo build --release --bins`",
    ))
}

/// The settings file of one server; `addresses` are all listeners, three for each server.
fn settings(index: usize, addresses: &[String], folder: &Path) -> String {
    let members: Vec<_> = addresses
        .chunks(3)
        .enumerate()
        .map(|(member, own)| {
            format!(
                "  {{ node_id = {}, advertise = {:?}, peer_advertise = {:?} }},\n",
                member + 1,
                own.first().map_or("", String::as_str),
                own.get(1).map_or("", String::as_str),
            )
        })
        .collect();
    // A server without a list of members is a cluster of its own.
    let members = match members.len() {
        1 => String::new(),
        _ => format!("members = [\n{}]\n", members.concat()),
    };
    let own = |at: usize| addresses.get(index * 3 + at).map_or("", String::as_str);
    format!(
        "node_id = {}\nlisten = {:?}\npeer_listen = {:?}\nadmin_listen = {:?}\ndata_dir = {}\n\
         reserve_bytes = {RESERVE_BYTES}\n\n[cluster]\n{members}",
        index + 1,
        own(0),
        own(1),
        own(2),
        // A JSON string is a TOML string.
        json!(folder.join(format!("data-{}", index + 1)).to_string_lossy()),
    )
}
