//! `holdfast lock` and `holdfast try`: run a command while a lock is held, and never longer, nor
//! anything else of the command's process group.
//!
//! Four threads: the main one starts the command and waits for events (it has to, because the
//! command dies with the thread that forked it); one talks to the store; one receives signals; one
//! prints warnings. A watchdog of the clock wakes the main thread when the safe deadline comes near, also after the
//! machine was suspended and while the store's thread stalls.

mod bare;
mod child;
pub(crate) mod contended;
mod deadline;
mod group;
mod jeopardy;
mod nested;
pub(crate) mod store_thread;
mod supervisor;
mod warnings;

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use holdfast::{GuardState, GuardStates};
use holdfast_runtime::Runtime;
use nix::sys::signal::Signal;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, LockArgs, Work};
use crate::failure::{Failure, LOST, OWN_ERROR};
use crate::show::escaped;
use crate::signals::{self, code_of};
use child::Child;
use contended::Notice;
use deadline::{HoldWatch, KILL_BEFORE, usual_grace, warns_before};
use store_thread::StoreThread;
use supervisor::Supervisor;
use warnings::Warnings;

/// Most events that wait for the main thread, which does nothing slow.
const EVENTS_MAX: usize = 64;

/// The signals by which a terminal, a shell or a service manager ends, stops or notifies a job, and
/// SIGCHLD for the command.
const HEARD: [Signal; 10] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// The events of the main thread.
pub(crate) enum Event {
    /// A signal came.
    Signal(Signal),
    /// The lock is held.
    Granted(Held),
    /// The lock will not be granted.
    Failed(Failure),
    /// The state of the hold has changed, or a deadline has come.
    Look,
    /// Others wait for its locks.
    Contended(Notice),
    /// No further grant will come.
    #[cfg(feature = "cassandra")]
    Over,
}

/// The hold, as the main thread needs it.
pub(crate) struct Held {
    pub(crate) states: GuardStates,
    /// The held lock or item, for messages: `the lock "a"`.
    pub(crate) what: String,
    /// The command's environment and input.
    pub(crate) told: ChildInput,
    pub(crate) ttl: Duration,
}

/// The information that a command gets about its hold.
#[derive(Default)]
pub(crate) struct ChildInput {
    /// A variable without a value is removed from its environment: it would be about another lock.
    pub(crate) variables: Vec<(&'static str, Option<String>)>,
    /// Its standard input, if it is not that of this process.
    pub(crate) input: Option<String>,
    /// Receives how the command ended.
    pub(crate) ended: Option<oneshot::Sender<Ended>>,
}

impl ChildInput {
    /// The value of a variable.
    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(variable, _)| *variable == name);
        found.and_then(|(_, value)| value.as_deref())
    }
}

impl Held {
    /// A hold of these locks: with `--any` perhaps not all of the request. There is a token only if
    /// the store behind the lock gives one.
    pub(crate) fn of_locks(
        states: GuardStates,
        names: &[String],
        token: Option<String>,
        ttl: Duration,
    ) -> Self {
        let variables = vec![
            ("HOLDFAST_LOCK", Some(names.first().cloned().unwrap_or_default())),
            // No name has a line feed in it.
            ("HOLDFAST_LOCKS", Some(names.join("\n"))),
            ("HOLDFAST_TOKEN", token),
        ];
        let listed: Vec<_> = names.iter().map(|name| name.escape_debug().to_string()).collect();
        let one = if names.len() == 1 { "the lock" } else { "the locks" };
        let what = format!("{one} {}", listed.join(", "));
        Self { states, what, told: ChildInput { variables, ..ChildInput::default() }, ttl }
    }
}

/// Acquires the lock, runs the command, releases the lock; the exit code is the command's.
///
/// With a claim it takes over the import for that owner.
pub(crate) fn run(global: &Global, wanted: LockArgs) -> Result<u8, Failure> {
    if wanted.claim.is_some() && wanted.job.names.len() > 1 {
        return Err(Failure::new(OWN_ERROR, "--claim takes over one lock; claim each by itself"));
    }
    let builder = wanted.job.lease.over(global.builder()?);
    let builder = builder.connect_timeout(Global::connect_limit(wanted.wait));
    let work = wanted.job.work.clone();
    let keep = move |events, stop| store_thread::keep(builder, wanted, events, stop);
    run_under(&work, global.json, keep)
}

/// Runs the command under the hold that `keep` acquires, keeps until it is stopped, and releases.
pub(crate) fn run_under<F: Future<Output = Result<(), Failure>>>(
    work: &Work,
    json: bool,
    keep: impl FnOnce(SyncSender<Event>, CancellationToken) -> F + Send + 'static,
) -> Result<u8, Failure> {
    let (events, inbox) = sync_channel(EVENTS_MAX);
    let heard = events.clone();
    signals::listen(&HEARD, move |signal| heard.send(Event::Signal(signal)).is_ok())?;
    let warnings = Warnings::start(json)?;
    let store_thread = StoreThread::start(events.clone(), keep)?;
    let outcome = work_on(work, &warnings, &inbox, &events);
    store_thread.finish();
    warnings.finish();
    outcome
}

/// The exit code: the command's, where one lock is held. Where holds follow one another (work
/// items), the last command's code is not returned.
fn work_on(
    work: &Work,
    warnings: &Warnings,
    inbox: &Receiver<Event>,
    events: &SyncSender<Event>,
) -> Result<u8, Failure> {
    loop {
        let mut held = match wait_for_grant(inbox)? {
            Granted::Held(held) => held,
            Granted::GivenUp(code) => return Ok(code),
        };
        let asks = held.told.ended.take();
        let (ended, asked_to_end) = supervise(work, warnings, &held, inbox, events.clone())?;
        let Some(asks) = asks else {
            return match ended {
                Ended::ByItself(code) => Ok(code),
                Ended::LockLost(failure) => Err(failure),
            };
        };
        // The receiver is gone if the hold was lost.
        let _ = asks.send(ended);
        if let Some(signal) = asked_to_end {
            return Ok(code_of(signal));
        }
    }
}

enum Granted {
    Held(Held),
    /// A signal came first, or nothing will be granted; the exit code.
    GivenUp(u8),
}

fn wait_for_grant(inbox: &Receiver<Event>) -> Result<Granted, Failure> {
    loop {
        match next(inbox)? {
            Event::Granted(held) => return Ok(Granted::Held(held)),
            Event::Failed(failure) => return Err(failure),
            #[cfg(feature = "cassandra")]
            Event::Over => return Ok(Granted::GivenUp(0)),
            Event::Signal(signal) if signals::asks_to_end(signal) => {
                return Ok(Granted::GivenUp(code_of(signal)));
            }
            Event::Signal(Signal::SIGTSTP) => stop_ourselves(),
            Event::Signal(_) | Event::Look | Event::Contended(_) => {}
        }
    }
}

fn next(inbox: &Receiver<Event>) -> Result<Event, Failure> {
    let gone = |_| Failure::new(OWN_ERROR, "the thread that keeps the lock has ended");
    inbox.recv().map_err(gone)
}

/// Stops this process as Ctrl-Z does. Returns after SIGCONT.
fn stop_ourselves() {
    // A process may always signal itself.
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}

/// Runs the command under the hold until nothing of it is left. Returns also the last signal that
/// asked it to end.
fn supervise(
    work: &Work,
    warnings: &Warnings,
    held: &Held,
    inbox: &Receiver<Event>,
    events: SyncSender<Event>,
) -> Result<(Ended, Option<Signal>), Failure> {
    let clock = Runtime::system().clock;
    let usual = usual_grace(held, clock.now());
    let grace = if work.command.is_empty() { KILL_BEFORE } else { work.grace.unwrap_or(usual) };
    let warns_before = warns_before(grace, usual, held.ttl);
    let watchdog = clock.watchdog(Arc::new(move || {
        // A full inbox wakes the main thread anyway.
        let _ = events.try_send(Event::Look);
    }));
    let watched = HoldWatch { clock, states: held.states.clone(), grace, warns_before };
    if work.command.is_empty() {
        let kept = bare::keep(&watched, held, warnings, inbox, &watchdog)?;
        return Ok((kept, None));
    }
    if watched.is_over() {
        return Ok((Ended::LockLost(lost(&held.what, COMMAND_STOPPED, &watched)), None));
    }
    let child = Child::start(&work.command, &held.told)?;
    let mut supervisor = Supervisor::new(child, watched, &held.what, (work, warnings), watchdog);
    supervisor.run(inbox)
}

/// What became of the command, in the message about a lost lock.
const COMMAND_STOPPED: &str = ", the command stopped";

fn lost(what: &str, and: &str, hold: &HoldWatch) -> Failure {
    let why = match hold.states.now() {
        GuardState::Lost(reason) => match hold.states.why_taken() {
            Some(why) => format!("{reason}: {}", escaped(&why)),
            None => reason.to_string(),
        },
        _ => "the store was not heard from in time".to_owned(),
    };
    let were = if what.starts_with("the locks ") { "were" } else { "was" };
    Failure::new(LOST, format!("{what} {were} lost{and}: {why}"))
}

/// How the command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this code.
    ByItself(u8),
    /// This process ended it, because the lock was lost or about to be.
    LockLost(Failure),
}
