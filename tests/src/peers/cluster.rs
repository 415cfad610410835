//! A cluster of one store while it is measured: its members, and the runs of its clients.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use holdfast_runtime::Runtime;

use super::cell::{Cell, Figures};
use super::peer::{Peer, READY, Readiness};
use super::site::{MEMBERS, Site, Spot};
use crate::cluster::{Cluster, Setup, spawn};
use crate::usage;

/// How long the members of a store may take until they serve.
const SERVES_WITHIN: Duration = Duration::from_mins(1);
/// For what a store still does once it serves: elections, connections, caches.
const SETTLES_IN: Duration = Duration::from_secs(2);
/// How long the clients may take besides their window: to start, to warm up, to come to an end.
const BESIDES_THE_WINDOW: Duration = Duration::from_mins(1);
/// How long a cell waits for a quiet machine, and what counts as quiet, in cores.
const QUIET_WITHIN: Duration = Duration::from_secs(5);
const QUIET: f64 = 0.5;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Members that run. They end, by their own ids, when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    peer: Peer,
    home: PathBuf,
    folder: PathBuf,
    clients_at: Spot,
    endpoints: String,
    members: Members,
    runtime: Runtime,
}

#[derive(Debug)]
enum Members {
    Own(Box<Cluster>),
    Foreign(Vec<Process>),
}

/// A process of ours. It is ended by its id when this is dropped.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended is only waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts the members of `peer` at `site`, with their data below `folder`.
    ///
    /// # Errors
    ///
    /// Why they do not serve. Panics, as all harnesses do, if ours do not.
    pub(super) async fn start(
        peer: Peer,
        site: &Site,
        home: &Path,
        folder: &Path,
    ) -> Result<Self, String> {
        let runtime = Runtime::system();
        let members = match peer {
            Peer::Holdfast => Members::Own(Box::new(own(site, folder).await)),
            _ => Members::Foreign(foreign(peer, site, home, folder, &runtime).await?),
        };
        let endpoints = match &members {
            Members::Own(cluster) => cluster.endpoints(),
            Members::Foreign(_) => listening(peer, site).map(|at| at.to_string()).join(","),
        };
        runtime.sleep(SETTLES_IN).await;
        let (home, folder) = (home.to_path_buf(), folder.to_path_buf());
        let clients_at = site.clients.clone();
        Ok(Self { peer, home, folder, clients_at, endpoints, members, runtime })
    }

    /// The process ids of the members.
    fn pids(&self) -> Vec<u32> {
        match &self.members {
            Members::Own(cluster) => {
                let pids = cluster.members().into_iter().map(|member| cluster.pid(member));
                pids.filter_map(|pid| u32::try_from(pid.as_raw()).ok()).collect()
            }
            Members::Foreign(members) => members.iter().map(|member| member.0.id()).collect(),
        }
    }

    /// Runs the clients of a cell; returns their figures, and how many cores other work took. `relay` is the
    /// CPU of the relay so far, which is no other work.
    ///
    /// # Errors
    ///
    /// Why there are no figures.
    pub(super) async fn run(
        &self,
        cell: Cell,
        seconds: u32,
        relay: impl Fn() -> f64,
    ) -> Result<(Figures, f64), String> {
        let pids = self.pids();
        let numbers = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = self.peer.clients(&self.home, &self.endpoints, cell, seconds, &numbers);
        self.clients_at.admit(&mut command).map_err(|error| error.to_string())?;
        self.wait_for_quiet().await;
        let [out, err] = ["clients.out", "clients.err"].map(|name| self.folder.join(name));
        command.env_remove("HOLDFAST_ENDPOINTS");
        let before = Used::of(&pids, relay())?;
        let clock = &self.runtime.clock;
        let began = clock.now();
        let files = (create(&out)?, create(&err)?);
        let mut clients = Process(spawn_with_errors_apart(&mut command, files));
        let limit = Duration::from_secs(seconds.into()) + BESIDES_THE_WINDOW;
        let status = self.end_of(&mut clients, limit).await;
        drop(clients);
        let took = clock.now().saturating_since(began);
        let other_cores = before.until(&Used::of(&pids, relay())?, took);
        let said = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let last = said(&err).lines().last().unwrap_or_default().to_owned();
        match status {
            Some(status) if status.success() => Ok((Figures::read(&said(&out))?, other_cores)),
            Some(status) => Err(format!("its clients ended with {status}: {last}")),
            None => Err(format!("its clients did not end within {limit:?}: {last}")),
        }
    }

    async fn end_of(&self, process: &mut Process, limit: Duration) -> Option<ExitStatus> {
        let give_up = self.runtime.clock.now() + limit;
        while self.runtime.clock.now() < give_up {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Some(status);
            }
            self.runtime.sleep(LOOK_AGAIN).await;
        }
        None
    }

    /// Waits for half a second in which the machine is quiet, and gives that up after a while.
    async fn wait_for_quiet(&self) {
        let length = Duration::from_millis(500);
        let give_up = self.runtime.clock.now() + QUIET_WITHIN;
        while self.runtime.clock.now() < give_up {
            let Ok(before) = usage::cpu_of_machine() else { return };
            self.runtime.sleep(length).await;
            let Ok(after) = usage::cpu_of_machine() else { return };
            if (after - before) / length.as_secs_f64() < QUIET {
                return;
            }
        }
    }
}

/// CPU seconds of the whole machine, and of what is measured.
struct Used {
    machine: f64,
    measured: f64,
}

impl Used {
    fn of(members: &[u32], relay: f64) -> Result<Self, String> {
        let read = || {
            let members = members.iter().map(|member| usage::cpu_of_process(*member));
            let measured = members.sum::<std::io::Result<f64>>()? + relay;
            let measured = measured + usage::cpu_of_ended_children()?;
            Ok(Self { machine: usage::cpu_of_machine()?, measured })
        };
        read().map_err(|error: std::io::Error| format!("a member is gone: {error}"))
    }

    /// The cores that others used until `later`.
    fn until(&self, later: &Self, took: Duration) -> f64 {
        let others = (later.machine - self.machine) - (later.measured - self.measured);
        (others / took.as_secs_f64()).max(0.0)
    }
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn spawn_with_errors_apart(command: &mut std::process::Command, (out, err): (File, File)) -> Child {
    command.stdin(std::process::Stdio::null()).stdout(out).stderr(err);
    crate::cluster::end_with_parent(command);
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

async fn own(site: &Site, folder: &Path) -> Cluster {
    let mut setup = Setup::nodes(MEMBERS);
    setup.folder = Some(folder.to_path_buf());
    if !site.member_hosts().is_empty() {
        setup = setup.node("insecure", true);
        setup.places = site.member_hosts().iter().map(|host| host.place()).collect();
    }
    Cluster::start(&setup).await
}

/// Where the members of a foreign store listen for clients.
fn listening(peer: Peer, site: &Site) -> [SocketAddr; MEMBERS] {
    std::array::from_fn(|member| {
        let port = peer.port(u16::try_from(member).unwrap_or(u16::MAX));
        SocketAddr::from((site.members[member].address, port))
    })
}

async fn foreign(
    peer: Peer,
    site: &Site,
    home: &Path,
    folder: &Path,
    runtime: &Runtime,
) -> Result<Vec<Process>, String> {
    let addresses = site.addresses();
    let failed = |error: std::io::Error| error.to_string();
    let mut members = Vec::new();
    let mut logs = Vec::new();
    for (member, spot) in (0..).zip(&site.members) {
        let data = folder.join(format!("member-{member}"));
        fs::create_dir_all(&data).map_err(failed)?;
        let mut command = peer.member(home, member, &addresses, &data).map_err(failed)?;
        spot.admit(&mut command).map_err(failed)?;
        let log = folder.join(format!("member-{member}.log"));
        members.push(Process(spawn(&mut command, &create(&log)?)));
        logs.push(log);
    }
    let give_up = runtime.clock.now() + SERVES_WITHIN;
    for ((process, log), at) in members.iter_mut().zip(&logs).zip(listening(peer, site)) {
        while !serves(peer.readiness(), log, at) {
            let said = fs::read_to_string(log).unwrap_or_default();
            let last = said.lines().last().unwrap_or_default();
            if let Ok(Some(status)) = process.0.try_wait() {
                return Err(format!("a member ended with {status}: {last}"));
            }
            if runtime.clock.now() > give_up {
                return Err(format!("a member does not serve within {SERVES_WITHIN:?}: {last}"));
            }
            runtime.sleep(LOOK_AGAIN).await;
        }
    }
    Ok(members)
}

fn serves(readiness: Readiness, log: &Path, at: SocketAddr) -> bool {
    match readiness {
        Readiness::Line => {
            fs::read_to_string(log).is_ok_and(|said| said.lines().any(|line| line == READY))
        }
        Readiness::Srvr => mode_of(at).is_some(),
    }
}

/// The mode that a `ZooKeeper` server reports, once it has one.
fn mode_of(at: SocketAddr) -> Option<String> {
    let second = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&at, second).ok()?;
    stream.set_read_timeout(Some(second)).ok()?;
    stream.write_all(b"srvr").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.lines().find_map(|line| line.strip_prefix("Mode: ").map(str::to_owned))
}
