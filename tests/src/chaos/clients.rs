//! The client processes of a run: how they are started, killed, frozen, and asked to finish.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

use holdfast_runtime::Runtime;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::workload::{FINISHES_WITHIN, FOUND_A_VIOLATION, IDS};
use crate::cluster::{binary, spawn};
use crate::history::{ClientId, Recorder, What};
use crate::net::Host;

/// The arguments of all client processes.
#[derive(Clone, Debug)]
pub struct Given {
    /// The addresses of the nodes.
    pub endpoints: String,
    /// The address of the fenced resource.
    pub resource: String,
    /// The folder of histories and logs.
    pub folder: PathBuf,
    /// The random seed of their draws.
    pub seed: u64,
}

/// The client processes, each in its place; dropping this kills them, by their own ids.
#[derive(Debug)]
pub struct Clients {
    given: Given,
    places: Vec<Place>,
    histories: Vec<PathBuf>,
    /// How many processes were started.
    started: u64,
}

#[derive(Debug)]
struct Place {
    host: Option<Arc<Host>>,
    first: u64,
    child: Child,
    /// While it may lack memory: the last time at which it was seen to run.
    starved_ns: Option<u64>,
}

impl Place {
    /// Whether memory is what it lacked, if it has ended like this.
    fn lacked_memory(&self, status: ExitStatus) -> bool {
        self.starved_ns.is_some() && status.code() != Some(FOUND_A_VIOLATION)
    }
}

impl Clients {
    /// Starts one process for each of these hosts (`None`: the harness's own).
    pub fn start(given: Given, hosts: Vec<Option<Arc<Host>>>) -> Self {
        let mut clients = Self { given, places: Vec::new(), histories: Vec::new(), started: 0 };
        for host in hosts {
            let (first, child) = clients.start_one(host.as_deref());
            clients.places.push(Place { host, first, child, starved_ns: None });
        }
        clients
    }

    fn start_one(&mut self, host: Option<&Host>) -> (u64, Child) {
        self.started += 1;
        let number = self.started;
        let first = number * IDS;
        let Given { endpoints, resource, folder, seed } = &self.given;
        let history = folder.join(format!("clients-{number}.jsonl"));
        // A process that lacks memory may end before it makes the file itself.
        File::create(&history).unwrap();
        let log = File::create(folder.join(format!("clients-{number}.log"))).unwrap();
        let mut command = Command::new(binary("holdfast-chaos-client"));
        command.args(["--endpoints", endpoints, "--resource", resource]);
        command.arg("--first").arg(first.to_string());
        command.arg("--seed").arg(seed.wrapping_add(number).to_string());
        command.arg("--history").arg(&history);
        if let Some(host) = host {
            host.namespace.admit(&mut command).unwrap();
        }
        self.histories.push(history);
        (first, spawn(&mut command, &log))
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The host of one of them.
    pub fn host(&self, index: usize) -> Option<&Arc<Host>> {
        self.places[index].host.as_ref()
    }

    /// The histories of all processes that were ever started.
    pub fn histories(&self) -> &[PathBuf] {
        &self.histories
    }

    /// Sends one of them a signal; one that has ended receives none.
    pub fn signal(&mut self, index: usize, signal: Signal) {
        let child = &mut self.places[index].child;
        if child.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
    }

    /// Whether one of them has not ended.
    pub fn runs(&mut self, index: usize) -> bool {
        self.places[index].child.try_wait().unwrap().is_none()
    }

    /// The process id of one of them.
    pub fn pid(&self, index: usize) -> Pid {
        Pid::from_raw(i32::try_from(self.places[index].child.id()).unwrap())
    }

    /// One of them gets too little memory, and may end by itself, until [`Clients::feed`].
    pub fn starve(&mut self, index: usize, recorder: &Recorder) {
        self.places[index].starved_ns = Some(recorder.now_ns());
    }

    /// It gets enough again. Returns whether it is still the process that got too little.
    pub fn feed(&mut self, index: usize) -> bool {
        self.places[index].starved_ns.take().is_some()
    }

    /// Replaces one that got too little memory, if it has ended. Returns how it ended.
    pub fn replace_starved(&mut self, index: usize, recorder: &Recorder) -> Option<ExitStatus> {
        let place = &mut self.places[index];
        place.starved_ns?;
        // Taken before the look: the process runs at that time if it runs at the look.
        let now_ns = recorder.now_ns();
        let Some(status) = place.child.try_wait().unwrap() else {
            place.starved_ns = Some(now_ns);
            return None;
        };
        if !place.lacked_memory(status) {
            return None;
        }
        self.replace(index, recorder);
        Some(status)
    }

    /// Sends SIGKILL to one of them, and starts another one in its place.
    pub fn replace(&mut self, index: usize, recorder: &Recorder) {
        let Place { first, starved_ns, .. } = self.places[index];
        // One that lacks memory may have ended as soon as it was last seen: the judge must not count
        // on anything that its clients would have done since.
        let at_ns = starved_ns.unwrap_or_else(|| recorder.now_ns());
        for id in first..first + IDS {
            recorder.write_at(at_ns, ClientId(id), What::Killed);
        }
        let ended = &mut self.places[index].child;
        let _ = ended.kill();
        let _ = ended.wait();
        let host = self.places[index].host.clone();
        let (first, child) = self.start_one(host.as_deref());
        self.places[index] = Place { host, first, child, starved_ns: None };
    }

    /// Those that have ended by themselves, not for want of memory, with what they printed.
    pub fn ended(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        for place in &mut self.places {
            if let Some(status) = place.child.try_wait().unwrap()
                && !place.lacked_memory(status)
            {
                let log = self.given.folder.join(format!("clients-{}.log", place.first / IDS));
                ended.push(format!("a client process ended ({status}): {}", last_line(&log)));
            }
        }
        ended
    }

    /// Lets all of them finish their work. Returns those that do not in time, or fail.
    pub async fn finish(&mut self) -> Vec<String> {
        let runtime = Runtime::system();
        for index in 0..self.places.len() {
            self.signal(index, Signal::SIGTERM);
        }
        let give_up = runtime.clock.now() + FINISHES_WITHIN * 2;
        let mut wrong = Vec::new();
        for place in &mut self.places {
            let log = self.given.folder.join(format!("clients-{}.log", place.first / IDS));
            let status = loop {
                match place.child.try_wait().unwrap() {
                    None if runtime.clock.now() < give_up => {
                        runtime.sleep(std::time::Duration::from_millis(50)).await;
                    }
                    status => break status,
                }
            };
            match status {
                Some(status) if status.success() => {}
                Some(status) => {
                    wrong.push(format!("a client process ended ({status}): {}", last_line(&log)));
                }
                None => wrong.push(format!("a client process did not finish: {}", log.display())),
            }
        }
        wrong
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for place in &mut self.places {
            // A frozen process dies of SIGKILL too.
            let _ = place.child.kill();
            let _ = place.child.wait();
        }
    }
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").to_owned()
}
