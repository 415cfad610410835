//! The network of a run: a switch, and behind it a host of its own for every program.
//!
//! All of it lies in namespaces of this process ([`crate::namespace`]). Faults are rules at a host:
//! which packets it does not take in, and how slowly it sends.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::cluster::Place;
use crate::namespace::Namespace;

/// A program, and the Debian package that has it.
pub type Tool = (&'static str, &'static str);

/// What lays a network.
pub const LAYING: Tool = ("ip", "iproute2");
/// What a network with faults needs.
pub const WITH_FAULTS: [Tool; 3] = [LAYING, ("tc", "iproute2"), ("iptables", "iptables")];
const SWITCH: &str = "switch";
/// Packets that wait for the program behind a device.
const LONG_QUEUE: &str = "10000";
/// The address of the harness itself. Hosts are numbered below it.
const HARNESS: u8 = 254;

/// A step of the setup that failed, described for the operator of the harness.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct NetError {
    what: String,
    source: io::Error,
}

impl NetError {
    fn new(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self { what, source }
    }
}

/// A machine of its own on the network.
#[derive(Debug)]
pub struct Host {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its network.
    pub namespace: Arc<Namespace>,
}

/// A rule at a host, in force until it is lifted.
#[derive(Clone, Debug)]
#[must_use = "a rule is in force until it is lifted"]
pub struct Rule {
    host: Arc<Host>,
    program: &'static str,
    lift: Vec<String>,
}

/// The programs that this machine lacks.
fn missing(tools: &[Tool]) -> Vec<Tool> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let there = |tool: &str| folders.iter().any(|folder| folder.join(tool).exists());
    tools.iter().copied().filter(|(tool, _)| !there(tool)).collect()
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

/// The address of the harness itself.
pub fn harness() -> Ipv4Addr {
    address(HARNESS)
}

/// Lays the switch into the network of the calling thread, which has to be one of its own.
///
/// # Errors
///
/// [`NetError`] names the step.
pub fn lay_switch() -> Result<(), NetError> {
    let own = format!("{}/24", address(HARNESS));
    call(None, "ip", &["link", "set", "lo", "up"])?;
    call(None, "ip", &["link", "add", SWITCH, "type", "bridge"])?;
    call(None, "ip", &["address", "add", &own, "dev", SWITCH])?;
    call(None, "ip", &["link", "set", SWITCH, "up"])
}

impl Host {
    /// Puts a new host behind the switch; `number` is below `HARNESS` and used once at a time.
    ///
    /// # Errors
    ///
    /// [`NetError`] names the step.
    pub fn new(number: u8) -> Result<Arc<Self>, NetError> {
        let namespace = Namespace::new().map_err(NetError::new("a network namespace"))?;
        let (cable, there) = (format!("cable-{number}"), namespace.path());
        let own = format!("{}/24", address(number));
        let there = there.to_string_lossy();
        let ends = ["type", "veth", "peer", "name", "eth0", "netns", &there];
        call(None, "ip", &[&["link", "add", &cable][..], &ends].concat())?;
        call(None, "ip", &["link", "set", &cable, "master", SWITCH, "up"])?;
        let host = Self { address: address(number), namespace: Arc::new(namespace) };
        call(Some(&host), "ip", &["link", "set", "lo", "up"])?;
        call(Some(&host), "ip", &["address", "add", &own, "dev", "eth0"])?;
        call(Some(&host), "ip", &["link", "set", "eth0", "up"])?;
        Ok(Arc::new(host))
    }

    /// The listen addresses of a node on this host: it has every port for itself.
    pub fn place(&self) -> Place {
        let [listen, peer_listen, admin_listen] =
            [7420, 7421, 7422].map(|port| format!("{}:{port}", self.address));
        let (advertise, peer_advertise) = (listen.clone(), peer_listen.clone());
        let namespace = Some(self.namespace.clone());
        Place { listen, peer_listen, admin_listen, advertise, peer_advertise, namespace }
    }

    /// Takes in nothing from `other`.
    ///
    /// # Errors
    ///
    /// [`NetError`], also below.
    pub fn deaf_to(self: &Arc<Self>, other: &Self) -> Result<Rule, NetError> {
        self.filter(&["-s", &other.address.to_string(), "-j", "DROP"])
    }

    /// Loses this percentage of the packets sent to it.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn lose(self: &Arc<Self>, percent: u64) -> Result<Rule, NetError> {
        let part = format!("0.{percent:02}");
        let random = ["-m", "statistic", "--mode", "random", "--probability", &part];
        self.filter(&[&["-i", "eth0"][..], &random, &["-j", "DROP"]].concat())
    }

    /// Answers every packet of a connection with a reset.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn reset(self: &Arc<Self>) -> Result<Rule, NetError> {
        self.filter(&["-i", "eth0", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"])
    }

    /// Sends at this rate.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn throttle(self: &Arc<Self>, kbit: u64) -> Result<Rule, NetError> {
        let rate = format!("{kbit}kbit");
        let queue = ["dev", "eth0", "root"];
        let bucket = ["tbf", "rate", &rate, "burst", "16kb", "latency", "400ms"];
        call(Some(self), "tc", &[&["qdisc", "add"][..], &queue, &bucket].concat())?;
        Ok(self.rule("tc", &[&["qdisc", "delete"][..], &queue].concat()))
    }

    /// Hands new connections to the port `from` to the port `to` of this host.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn redirect(self: &Arc<Self>, from: u16, to: u16) -> Result<Rule, NetError> {
        let (from, to) = (from.to_string(), to.to_string());
        let what = ["PREROUTING", "-i", "eth0", "-p", "tcp", "--dport", &from];
        let what = [&what[..], &["-j", "REDIRECT", "--to-ports", &to]].concat();
        call(Some(self), "iptables", &[&["-w", "-t", "nat", "-A"][..], &what].concat())?;
        Ok(self.rule("iptables", &[&["-w", "-t", "nat", "-D"][..], &what].concat()))
    }

    /// Brings a device of this host up, with a queue that no burst of packets fills.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn raise(&self, device: &str) -> Result<(), NetError> {
        call(Some(self), "ip", &["link", "set", device, "up", "txqueuelen", LONG_QUEUE])
    }

    /// Routes its traffic to `other` through `device`.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn lead_through(self: &Arc<Self>, other: &Self, device: &str) -> Result<Rule, NetError> {
        let (own, other) = (self.address.to_string(), other.address.to_string());
        let route = [&*other, "dev", device, "src", &own];
        call(Some(self), "ip", &[&["route", "add"][..], &route].concat())?;
        Ok(self.rule("ip", &[&["route", "delete"][..], &route].concat()))
    }

    fn filter(self: &Arc<Self>, what: &[&str]) -> Result<Rule, NetError> {
        call(Some(self), "iptables", &[&["-w", "-A", "INPUT"][..], what].concat())?;
        Ok(self.rule("iptables", &[&["-w", "-D", "INPUT"][..], what].concat()))
    }

    fn rule(self: &Arc<Self>, program: &'static str, lift: &[&str]) -> Rule {
        let lift = lift.iter().map(|word| (*word).to_owned()).collect();
        Rule { host: self.clone(), program, lift }
    }
}

impl Rule {
    /// Lifts the rule.
    ///
    /// # Errors
    ///
    /// [`NetError`].
    pub fn lift(self) -> Result<(), NetError> {
        let words: Vec<&str> = self.lift.iter().map(String::as_str).collect();
        call(Some(&self.host), self.program, &words)
    }
}

/// Leaves the machine's network for one of the run's own, if this machine allows it and has these tools.
///
/// # Errors
///
/// Why not, described.
pub fn leave_for_an_own_network(tools: &[Tool]) -> Result<(), String> {
    let missing = missing(tools);
    if !missing.is_empty() {
        let named: Vec<String> = missing
            .into_iter()
            .map(|(tool, package)| format!("{tool} (apt-get install {package})"))
            .collect();
        return Err(format!("missing: {}", named.join(", ")));
    }
    crate::namespace::leave_the_machines_own()
        .map_err(|error| format!("namespaces of its own: {error}"))?;
    lay_switch().map_err(|error| error.to_string())
}

/// A folder in memory of this many bytes, visible to this run only.
///
/// # Errors
///
/// [`NetError`], if the calling thread has no mounts of its own.
pub fn small_disk(folder: &Path, bytes: u64) -> Result<(), NetError> {
    let options = format!("size={bytes}");
    let none = nix::mount::MsFlags::empty();
    let kind = Some("tmpfs");
    nix::mount::mount(kind, folder, kind, none, Some(options.as_str()))
        .map_err(|error| NetError::new(format!("a disk at {}", folder.display()))(error.into()))
}

/// Runs a program to its end, on `host` or on the harness's.
fn call(host: Option<&Host>, program: &str, words: &[&str]) -> Result<(), NetError> {
    let what = || format!("{program} {}", words.join(" "));
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    if let Some(host) = host {
        host.namespace.admit(&mut command).map_err(NetError::new(what()))?;
    }
    let output = command.output().map_err(NetError::new(what()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NetError::new(what())(io::Error::other(said)))
}
