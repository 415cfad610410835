//! Nodes as processes: started, queried over their ports, stopped by signals, ended with the test.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each suite uses its part"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getuid};
use tempfile::TempDir;

/// Time limit of anything in a test.
pub const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// A group that is not root's: `nogroup` on most systems.
const ANOTHER_GROUP: u32 = 65_534;

/// A free port.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, holdfast_runtime::loopback::free_port().unwrap()).into()
}

/// The settings of a node: its own folder and three free ports.
pub struct Setup {
    pub listen: SocketAddr,
    pub peer_listen: SocketAddr,
    pub admin_listen: SocketAddr,
    pub data: PathBuf,
    flags: Vec<String>,
    _folder: Option<TempDir>,
}

impl Setup {
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let data = folder.path().join("data");
        Self { _folder: Some(folder), ..Self::on(&data) }
    }

    /// New ports, the same folder.
    pub fn on(data: &Path) -> Self {
        Self {
            listen: free_address(),
            peer_listen: free_address(),
            admin_listen: free_address(),
            data: data.to_owned(),
            flags: Vec::new(),
            _folder: None,
        }
    }

    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// The command with these flags, which come after the usual ones.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfastd"));
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let usual = [
            ("--listen", self.listen.to_string()),
            ("--peer-listen", self.peer_listen.to_string()),
            ("--admin-listen", self.admin_listen.to_string()),
            ("--data-dir", self.data.to_str().unwrap().to_owned()),
            // Tests share a disk that may be nearly full.
            ("--reserve-bytes", "0".to_owned()),
        ];
        // A flag of the test replaces the usual one.
        for (flag, value) in usual {
            if !self.flags.iter().any(|given| given == flag) {
                command.arg(flag).arg(value);
            }
        }
        command.args(&self.flags);
        command
    }

    /// Starts a node that is expected not to come up; returns its exit code and its output.
    #[track_caller]
    pub fn fails(&self) -> (Option<i32>, String) {
        Self::ends_at_once(self.command())
    }

    /// As [`fails`](Self::fails), for a process that can open at most `limit` files.
    #[track_caller]
    pub fn fails_with_open_files(&self, limit: u64) -> (Option<i32>, String) {
        let mut command = self.command_with_open_files(limit);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::ends_at_once(command)
    }

    #[track_caller]
    fn ends_at_once(mut command: Command) -> (Option<i32>, String) {
        let mut child = Process(command.spawn().unwrap());
        let status = child.ends_within(PATIENCE);
        let said = child.errors();
        assert!(!said.contains("panicked"), "{said}");
        (status.code(), said)
    }

    /// Starts a node and waits until it is ready.
    #[track_caller]
    pub fn starts(self) -> Node {
        let mut node = self.starts_unready();
        node.becomes_ready();
        node
    }

    /// Starts a node.
    pub fn starts_unready(self) -> Node {
        let command = self.command();
        self.run(command)
    }

    /// Starts a node that root's tests can tell from root by its group, and waits until it is ready.
    #[track_caller]
    pub fn starts_as_another_group(self) -> Node {
        let mut command = self.command();
        if getuid().is_root() {
            command.gid(ANOTHER_GROUP);
        }
        let mut node = self.run(command);
        node.becomes_ready();
        node
    }

    /// Starts a node that cannot make any file larger than 1.5 MiB, or twice that under a shell that
    /// counts otherwise, and waits until it is ready.
    #[track_caller]
    pub fn starts_short_of_space(self) -> Node {
        let node = self.command();
        let mut command = Command::new("sh");
        // A signal that is ignored stays ignored: the write fails with an error instead.
        command.arg("-c").arg("trap '' XFSZ; ulimit -f 3072; exec \"$0\" \"$@\"");
        command.arg(node.get_program()).args(node.get_args()).env_clear().stdin(Stdio::null());
        let mut node = self.run(command);
        node.becomes_ready();
        node
    }

    /// Starts a node whose standard error is a pipe without a reader, and waits until it is ready.
    #[track_caller]
    pub fn starts_unread(self) -> Node {
        let log = tempfile::tempfile().unwrap();
        let mut command = self.command();
        command.stdout(Stdio::null());
        let mut node = Node { process: Process(command.spawn().unwrap()), log, setup: self };
        node.becomes_ready();
        node
    }

    /// The command, in a shell that lets the process open at most `limit` files.
    fn command_with_open_files(&self, limit: u64) -> Command {
        let node = self.command();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\""));
        command.arg(node.get_program()).args(node.get_args()).env_clear().stdin(Stdio::null());
        command
    }

    /// Starts a node that can open at most `limit` files.
    pub fn starts_with_open_files(self, limit: u64) -> Node {
        let command = self.command_with_open_files(limit);
        self.run(command)
    }

    fn run(self, mut command: Command) -> Node {
        // Nothing reads while it runs: a full pipe would stop it.
        let log = tempfile::tempfile().unwrap();
        command.stdout(Stdio::null()).stderr(log.try_clone().unwrap());
        Node { process: Process(command.spawn().unwrap()), log, setup: self }
    }
}

/// A running node; killed with its test.
pub struct Node {
    process: Process,
    log: std::fs::File,
    pub setup: Setup,
}

impl Node {
    #[track_caller]
    pub fn becomes_ready(&mut self) {
        let ready = eventually(|| {
            self.assert_runs();
            get(self.setup.admin_listen, "/readyz")
                .filter(|answer| answer.starts_with("HTTP/1.1 200"))
        });
        assert!(ready.is_some(), "not ready in time: {}", self.log());
    }

    #[track_caller]
    pub fn assert_runs(&mut self) {
        let ended = self.process.0.try_wait().unwrap();
        assert!(ended.is_none(), "ended with {ended:?}: {}", self.log());
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// Its id.
    pub fn process_id(&self) -> u32 {
        self.process.0.id()
    }

    /// Waits until it has ended.
    #[track_caller]
    pub fn ends(&mut self) -> ExitStatus {
        self.ends_within(PATIENCE)
    }

    /// Waits until it has ended, at most for `time`.
    #[track_caller]
    pub fn ends_within(&mut self, time: Duration) -> ExitStatus {
        self.process.ends_within(time)
    }

    /// Asks it to stop, waits, and returns the setup for another start.
    #[track_caller]
    pub fn stop(mut self) -> Setup {
        self.signal(Signal::SIGTERM);
        let status = self.ends();
        assert_eq!(status.code(), Some(0), "{}", self.log());
        self.setup
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; usize::try_from(self.log.metadata().unwrap().len()).unwrap()];
        let read = self.log.read_at(&mut bytes, 0).unwrap();
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}

/// A child process, killed when dropped.
struct Process(Child);

impl Process {
    #[track_caller]
    fn ends_within(&mut self, time: Duration) -> ExitStatus {
        within(time, || self.0.try_wait().unwrap()).expect("the process runs on")
    }

    fn errors(&mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `size` nodes, formed and ready.
#[track_caller]
pub fn cluster(size: usize) -> Vec<Node> {
    form(std::iter::repeat_with(Setup::new).take(size).collect(), Setup::starts_unready)
}

/// `size` nodes whose data folders are in `folder`, formed and ready.
#[track_caller]
pub fn cluster_in(folder: &Path, size: usize, flags: &[&str]) -> Vec<Node> {
    let setup = |nth| Setup::on(&folder.join(format!("node-{nth}"))).flags(flags);
    form((1..=size).map(setup).collect(), Setup::starts_unready)
}

/// `size` nodes, each started by `run`, formed and ready.
#[track_caller]
pub fn cluster_of(size: usize, run: impl Fn(Setup) -> Node) -> Vec<Node> {
    form(std::iter::repeat_with(Setup::new).take(size).collect(), run)
}

#[track_caller]
fn form(setups: Vec<Setup>, run: impl Fn(Setup) -> Node) -> Vec<Node> {
    let member = |(nth, setup): (usize, &Setup)| {
        format!("{}={}/{}", nth + 1, setup.listen, setup.peer_listen)
    };
    let members = setups.iter().enumerate().map(member).collect::<Vec<_>>().join(" ");
    let start = |(nth, setup): (usize, Setup)| {
        let node_id = (nth + 1).to_string();
        run(setup.flags(&["--node-id", &node_id, "--members", &members]))
    };
    let mut nodes: Vec<Node> = setups.into_iter().enumerate().map(start).collect();
    nodes.iter_mut().for_each(Node::becomes_ready);
    nodes
}

/// Whether a node leads.
pub fn leads(node: &Node) -> bool {
    let metrics = get(node.setup.admin_listen, "/metrics");
    metrics.is_some_and(|metrics| metrics.contains("\nholdfast_leader 1\n"))
}

/// Repeats `ask` until there is an answer, or the time limit is over.
pub fn eventually<T>(ask: impl FnMut() -> Option<T>) -> Option<T> {
    within(PATIENCE, ask)
}

/// Repeats `ask` until there is an answer, or the time is over.
pub fn within<T>(time: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..time.as_millis() / PAUSE.as_millis() {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        thread::sleep(PAUSE);
    }
    None
}

/// The whole answer to a GET, or nothing without an answer.
pub fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

#[track_caller]
pub fn assert_holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}
