//! The course of the demo: servers, workers, two kills, the end.

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use holdfast_runtime::{Clock, Instant, Runtime};
use indicatif::ProgressBar;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::verdict::{Turn, Verdict};
use super::{FILES, OFF, PROCESSES, WORKERS, file_name};
use crate::cluster::Cluster;
use crate::failure::Failure;
use crate::signals;

/// Servers.
const SERVERS: usize = 3;
/// Times the leader is killed.
pub(crate) const KILLS: usize = 2;
/// Grants before the first kill, between the two, and after the second.
const STRETCH: u64 = 1_100;
/// As many turns without locks.
const UNLOCKED_TURNS: u64 = 3 * STRETCH;
/// Most events of workers that wait: more than one second's, so that a request to a server does not
/// delay the workers.
const EVENTS_MAX: usize = 65_536;
/// How often the servers are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// With the page the leader is killed so often, until a signal asks to end.
const KILL_EVERY: Duration = Duration::from_secs(20);
/// And no more often.
const KILLS_MAX: usize = 1_000;
/// The demo ends by then, complete or not.
const LIMIT: Duration = Duration::from_secs(58);

enum Event {
    Turn(Turn),
    /// A worker process wrote something else, or ended.
    Gone(u32),
    Signal(Signal),
}

/// Runs the demo, and removes its files unless something failed.
pub(crate) fn play(no_locks: bool, page: bool) -> Result<Verdict, Failure> {
    let (events, inbox) = sync_channel(EVENTS_MAX);
    let heard = events.clone();
    signals::listen(&signals::ENDS, move |signal| heard.send(Event::Signal(signal)).is_ok())?;
    let folder = TempDir::with_prefix("holdfast-demo-")
        .map_err(|error| Failure::own("making a temporary folder", error))?;
    let mut stage = Stage::set(folder.path(), no_locks, &events)?;
    stage.show_page(page);
    let played = stage.play(&inbox);
    let kills = std::mem::take(&mut stage.kills);
    let turns = std::mem::take(&mut stage.turns);
    drop(stage);
    match played {
        Ok(()) => {
            let found = sum_of_files(folder.path());
            Ok(Verdict::of(turns, found, PROCESSES * WORKERS, &kills))
        }
        Err(failure) if failure.code == OFF => {
            let kept = folder.keep();
            let message = format!("{}; logs are kept in {}", failure.message, kept.display());
            Err(Failure::new(OFF, message))
        }
        Err(failure) => Err(failure),
    }
}

/// The sum of the numbers in the files; a file without a number counts 0.
fn sum_of_files(folder: &Path) -> u64 {
    let number = |file| {
        let text = std::fs::read_to_string(folder.join(file_name(file))).ok()?;
        text.trim().parse::<u64>().ok()
    };
    (0..FILES).filter_map(number).sum()
}

/// The state of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// All servers run; a kill, or the end, comes after a stretch of turns.
    Well,
    /// This server was killed, and no grant has come since.
    Killed(usize),
    /// It was restarted, and does not take part yet.
    Restarted(usize),
    /// The workers were asked to end.
    Ending,
}

struct Stage {
    clock: Arc<dyn Clock>,
    began: Instant,
    cluster: Option<Cluster>,
    workers: Vec<Child>,
    running: u32,
    turns: Vec<Turn>,
    kills: Vec<u64>,
    scene: Scene,
    /// It goes on for whoever looks at the page, until a signal asks to end.
    for_page: bool,
    /// Turns at the start of the current stretch.
    stretch_from: u64,
    bar: ProgressBar,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        for worker in &mut self.workers {
            // For a worker that has ended this only reaps it.
            let _ = worker.kill();
            let _ = worker.wait();
        }
    }
}

impl Stage {
    fn set(folder: &Path, no_locks: bool, events: &SyncSender<Event>) -> Result<Self, Failure> {
        let clock = Runtime::system().clock;
        for file in 0..FILES {
            std::fs::write(folder.join(file_name(file)), "0\n")
                .map_err(|error| Failure::own("writing the files", error))?;
        }
        let cluster = if no_locks { None } else { Some(Cluster::start(folder, SERVERS)?) };
        let mut stage = Self {
            began: clock.now(),
            clock,
            cluster,
            workers: Vec::new(),
            running: 0,
            turns: Vec::new(),
            kills: Vec::new(),
            scene: Scene::Well,
            for_page: false,
            stretch_from: 0,
            bar: holdfast_cli::progress_bar(None, "{spinner} {elapsed} {msg}"),
        };
        for process in 0..PROCESSES {
            stage.start_workers(folder, process, events.clone())?;
        }
        Ok(stage)
    }

    /// Starts a process of workers, and a thread that reads its records.
    fn start_workers(
        &mut self,
        folder: &Path,
        process: u32,
        events: SyncSender<Event>,
    ) -> Result<(), Failure> {
        let failed = |error| Failure::own("starting workers", error);
        let own = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(own);
        command.arg("demo-worker").arg("--folder").arg(folder).process_group(0);
        command.args(["--process", &process.to_string(), "--workers", &WORKERS.to_string()]);
        if let Some(cluster) = &self.cluster {
            command.args(["--servers", &cluster.endpoints()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        signals::as_child(&mut command);
        let mut worker = command.spawn().map_err(failed)?;
        let lines = worker.stdout.take();
        self.workers.push(worker);
        self.running += 1;
        std::thread::spawn(move || {
            let lines = lines.into_iter().flat_map(|lines| BufReader::new(lines).lines());
            for line in lines.map_while(Result::ok) {
                let Ok(turn) = serde_json::from_str(&line) else { break };
                if events.send(Event::Turn(turn)).is_err() {
                    return;
                }
            }
            let _ = events.send(Event::Gone(process));
        });
        Ok(())
    }

    fn play(&mut self, inbox: &Receiver<Event>) -> Result<(), Failure> {
        let mut look_at = self.clock.now();
        while self.running > 0 {
            match inbox.recv_timeout(LOOK_EVERY) {
                Ok(Event::Turn(turn)) => self.turns.push(turn),
                Ok(Event::Gone(process)) => self.gone(process)?,
                // The user has seen enough and wants the verdict; a second signal ends the demo at once.
                Ok(Event::Signal(_)) if self.for_page && self.scene != Scene::Ending => self.end(),
                Ok(Event::Signal(signal)) => {
                    return Err(Failure::new(signals::code_of(signal), "stopped by a signal"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let now = self.clock.now();
            if now >= look_at {
                self.look(now)?;
                look_at = self.clock.now() + LOOK_EVERY;
            }
        }
        Ok(())
    }

    fn gone(&mut self, process: u32) -> Result<(), Failure> {
        self.running -= 1;
        if self.scene == Scene::Ending {
            return Ok(());
        }
        Err(Failure::new(OFF, format!("the workers of process {process} ended too early")))
    }

    fn stretch(&self) -> u64 {
        self.turns_taken() - self.stretch_from
    }

    fn turns_taken(&self) -> u64 {
        u64::try_from(self.turns.len()).unwrap_or(u64::MAX)
    }

    fn granted_since_kill(&self) -> bool {
        let last = self.turns.iter().map(|turn| turn.entered).max();
        last > self.kills.last().copied()
    }

    /// Moves to the next state, if it is time.
    fn look(&mut self, now: Instant) -> Result<(), Failure> {
        if now.saturating_since(self.began) > LIMIT && !self.for_page {
            let message = format!("the demo did not end within {} s", LIMIT.as_secs());
            return Err(Failure::new(OFF, message));
        }
        if let Some((node, log)) = self.cluster.as_mut().and_then(Cluster::fallen) {
            let message = format!("server {node} ended by itself, see {}", log.display());
            return Err(Failure::new(OFF, message));
        }
        match self.scene {
            Scene::Well if self.for_page => self.kill_now_and_then(now),
            Scene::Well if self.stretch() >= STRETCH => self.kill_or_end(),
            Scene::Killed(node) if self.granted_since_kill() => self.restart(node)?,
            Scene::Restarted(node)
                if self.cluster.as_ref().is_some_and(|all| all.is_ready(node)) =>
            {
                self.scene = Scene::Well;
            }
            _ => {}
        }
        self.show();
        Ok(())
    }

    fn kill_or_end(&mut self) {
        if self.cluster.is_none() {
            // As many turns as with locks.
            if self.stretch() >= UNLOCKED_TURNS {
                self.end();
            }
            return;
        }
        if self.kills.len() >= KILLS {
            self.end();
        } else {
            self.kill_leader();
        }
    }

    fn kill_leader(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        if let Some(leader) = cluster.leader() {
            self.kills.push(nanos(self.clock.now()));
            cluster.kill(leader);
            self.stretch_from = self.turns_taken();
            self.scene = Scene::Killed(leader);
        }
    }

    fn kill_now_and_then(&mut self, now: Instant) {
        let last = self.kills.last().copied().unwrap_or_else(|| nanos(self.began));
        let since = Duration::from_nanos(nanos(now).saturating_sub(last));
        if since >= KILL_EVERY && self.stretch() > 0 && self.kills.len() < KILLS_MAX {
            self.kill_leader();
        }
    }

    /// Says where the page is, if somebody is to look at it.
    fn show_page(&mut self, page: bool) {
        let Some(cluster) = self.cluster.as_ref().filter(|_| page) else { return };
        self.for_page = true;
        let pages = cluster.pages().join("  ");
        // Beside the bar, and also where there is no terminal for one.
        self.bar.suspend(|| {
            let line = format!("the page: {pages}  (Ctrl-C ends the demo, and checks it)");
            let _ = writeln!(anstream::stderr().lock(), "{line}");
        });
    }

    fn restart(&mut self, node: usize) -> Result<(), Failure> {
        if let Some(cluster) = &mut self.cluster {
            cluster.start_node(node)?;
        }
        self.scene = Scene::Restarted(node);
        Ok(())
    }

    /// Ends the workers: they end with their standard input.
    fn end(&mut self) {
        for worker in &mut self.workers {
            worker.stdin = None;
        }
        self.scene = Scene::Ending;
    }

    fn show(&self) {
        let doing = match self.scene {
            Scene::Well if self.turns.is_empty() => "the servers elect a leader".to_owned(),
            Scene::Well => "64 workers take turns at 4 files".to_owned(),
            Scene::Killed(node) => format!("killed the leader, server {}", node + 1),
            Scene::Restarted(node) => format!("server {} starts again", node + 1),
            Scene::Ending => "the last turns".to_owned(),
        };
        self.bar.set_message(format!("{} increments; {doing}", self.turns.len()));
        self.bar.tick();
    }
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.since_origin().as_nanos()).unwrap_or(u64::MAX)
}
