//! `holdfast lock` and `holdfast try`: a command runs while a lock is held, and never longer.
//!
//! Three threads: the main one starts the command and waits for events (it has to, because the
//! command dies with the thread that forked it); one talks to the store; one hears signals. A
//! watchdog of the clock wakes the main thread when the safe deadline comes near, also after the
//! machine was suspended and while the store's thread stalls.

mod child;
mod held;
pub(crate) mod keeper;
mod line;

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use holdfast::{GuardState, Moment};
use holdfast_seams::{Clock, Seams, Watchdog};
use nix::sys::signal::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, Job, Work};
use crate::failure::{Failure, LOST, OWN_ERROR};
use crate::signals;
use child::{Child, Word, by_signal};
pub(crate) use held::{Held, Told};
use keeper::{Keeper, Wanted};

/// Events that may wait for the main thread, which does nothing slow.
const EVENTS_MAX: usize = 64;
/// How long before the safe deadline the command is killed: the time a kill needs to be done.
const KILL_BEFORE: Duration = Duration::from_millis(200);

/// What a terminal, a shell or a service manager sends to end, stop or tell a job, and word of the
/// command.
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

/// What the main thread waits for.
pub(crate) enum Event {
    /// A signal came.
    Signal(Signal),
    /// The lock is held.
    Granted(Held),
    /// It will not be.
    Failed(Failure),
    /// The state of the hold has changed, or a deadline has come.
    Look,
    /// There is nothing more to be held.
    #[cfg(feature = "cassandra")]
    Over,
}

/// Acquires the lock, runs the command, gives the lock back; the exit code is the command's.
///
/// With `claim`, what was imported for that owner is taken over.
pub(crate) fn run(
    global: &Global,
    wait: Option<Duration>,
    claim: Option<String>,
    job: &Job,
) -> Result<u8, Failure> {
    if claim.is_some() && job.names.len() > 1 {
        return Err(Failure::new(OWN_ERROR, "--claim takes over one lock; claim each by itself"));
    }
    let builder = global.builder()?.connect_timeout(Global::connect_limit(wait));
    let (names, shared, any) = (job.names.clone(), job.shared, job.any);
    let wanted = Wanted { builder, names, shared, any, claim, wait };
    run_under(&job.work, move |events, stop| keeper::keep(wanted, events, stop))
}

/// Runs the command under what `keep` acquires, holds until told to stop, and gives back.
pub(crate) fn run_under<F: Future<Output = Result<(), Failure>>>(
    work: &Work,
    keep: impl FnOnce(SyncSender<Event>, CancellationToken) -> F + Send + 'static,
) -> Result<u8, Failure> {
    let (events, inbox) = sync_channel(EVENTS_MAX);
    let heard = events.clone();
    signals::listen(&HEARD, move |signal| heard.send(Event::Signal(signal)).is_ok())?;
    let keeper = Keeper::start(events.clone(), keep)?;
    let outcome = work_on(work, &inbox, &events);
    keeper.finish();
    outcome
}

/// The exit code: the command's, where one lock is held. Where one thing is held after the other, the last
/// one's is not told.
fn work_on(
    work: &Work,
    inbox: &Receiver<Event>,
    events: &SyncSender<Event>,
) -> Result<u8, Failure> {
    loop {
        let mut held = match wait_for_grant(inbox)? {
            Granted::Held(held) => held,
            Granted::GivenUp(code) => return Ok(code),
        };
        let asks = held.told.ended.take();
        let (ended, asked_to_end) = supervise(work, &held, inbox, events.clone())?;
        let Some(asks) = asks else {
            return match ended {
                Ended::ByItself(code) => Ok(code),
                Ended::LockLost(failure) => Err(failure),
            };
        };
        // Nobody listens if what was held is lost.
        let _ = asks.send(ended);
        if let Some(signal) = asked_to_end {
            return Ok(by_signal(signal));
        }
    }
}

enum Granted {
    Held(Held),
    /// A signal came first, or there is nothing; the exit code.
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
                return Ok(Granted::GivenUp(by_signal(signal)));
            }
            Event::Signal(Signal::SIGTSTP) => stop_ourselves(),
            Event::Signal(_) | Event::Look => {}
        }
    }
}

fn next(inbox: &Receiver<Event>) -> Result<Event, Failure> {
    let gone = |_| Failure::new(OWN_ERROR, "the thread that keeps the lock has ended");
    inbox.recv().map_err(gone)
}

/// As Ctrl-Z does it. Returns when somebody continues us.
fn stop_ourselves() {
    // Fails for no process that may signal itself.
    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
}

/// Runs the command under the hold; and the last signal that asked it to end.
fn supervise(
    work: &Work,
    held: &Held,
    inbox: &Receiver<Event>,
    events: SyncSender<Event>,
) -> Result<(Ended, Option<Signal>), Failure> {
    let clock = Seams::system().clock;
    let grace = work.grace.unwrap_or_else(|| usual_grace(held, clock.now()));
    let watchdog = clock.watchdog(Arc::new(move || {
        // A full inbox has something to look at anyway.
        let _ = events.try_send(Event::Look);
    }));
    let watched = HoldWatch { clock, state: held.state.clone(), grace };
    if watched.is_over() {
        return Ok((Ended::LockLost(lost(&held.what, &watched)), None));
    }
    let child = Child::start(&work.command, &held.told)?;
    let mut supervisor = Supervisor {
        child,
        hold: watched,
        watchdog,
        told_to_end: false,
        asked_to_end: None,
        stopped: false,
    };
    let outcome = supervisor.run(inbox);
    supervisor.child.take_terminal();
    let ended = match outcome? {
        End::ByItself(code) => Ended::ByItself(code),
        End::ByUs => Ended::LockLost(lost(&held.what, &supervisor.hold)),
    };
    Ok((ended, supervisor.asked_to_end))
}

/// A quarter of the TTL. In a scope with fallback a hold may be certain for much less than that at any time, and
/// is moved on as often: then a third of what it is when it begins.
fn usual_grace(held: &Held, now: Moment) -> Duration {
    let ahead = match *held.state.borrow() {
        GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
            safe_until.saturating_since(now)
        }
        GuardState::Lost(_) | GuardState::Released => Duration::ZERO,
    };
    if ahead < held.ttl / 2 { ahead / 3 } else { held.ttl / 4 }
}

fn lost(what: &str, hold: &HoldWatch) -> Failure {
    let why = match *hold.state.borrow() {
        GuardState::Lost(reason) => reason.to_string(),
        _ => "the store was not heard from in time".to_owned(),
    };
    let were = if what.starts_with("the locks ") { "were" } else { "was" };
    Failure::new(LOST, format!("{what} {were} lost, the command stopped: {why}"))
}

/// What the hold's state asks for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    /// Nothing before this moment.
    WaitUntil(Moment),
    /// The command has to be asked to end, and killed at this moment.
    AskToEnd(Moment),
    Kill,
}

struct HoldWatch {
    clock: Arc<dyn Clock>,
    state: watch::Receiver<GuardState>,
    grace: Duration,
}

impl HoldWatch {
    fn demand(&self) -> Demand {
        match *self.state.borrow() {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                demand(safe_until, self.grace, self.clock.now())
            }
            GuardState::Lost(_) | GuardState::Released => Demand::Kill,
        }
    }

    fn is_over(&self) -> bool {
        self.demand() == Demand::Kill
    }
}

/// TERM at `safe_until − grace`, KILL at `safe_until − 200 ms` (DESIGN §8).
fn demand(safe_until: Moment, grace: Duration, now: Moment) -> Demand {
    let (ask_at, kill_at) = (safe_until - grace, safe_until - KILL_BEFORE);
    if now >= kill_at {
        Demand::Kill
    } else if now >= ask_at {
        Demand::AskToEnd(kill_at)
    } else {
        Demand::WaitUntil(ask_at)
    }
}

/// How the command ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this code.
    ByItself(u8),
    /// We ended it, because the lock was lost or about to be.
    LockLost(Failure),
}

/// The same, without why.
enum End {
    ByItself(u8),
    ByUs,
}

struct Supervisor {
    child: Child,
    hold: HoldWatch,
    watchdog: Watchdog,
    /// It was sent TERM or KILL because of the lock.
    told_to_end: bool,
    /// Somebody sent us this.
    asked_to_end: Option<Signal>,
    /// It was stopped, and we with it.
    stopped: bool,
}

impl Supervisor {
    fn run(&mut self, inbox: &Receiver<Event>) -> Result<End, Failure> {
        loop {
            self.meet_demand();
            match next(inbox)? {
                Event::Signal(Signal::SIGCHLD) => {
                    if let Some(ended) = self.hear_child()? {
                        return Ok(ended);
                    }
                }
                Event::Signal(signal) => self.pass_on(signal),
                _ => {}
            }
        }
    }

    fn meet_demand(&mut self) {
        match self.hold.demand() {
            Demand::WaitUntil(at) => self.watchdog.set(Some(at)),
            Demand::AskToEnd(kill_at) => {
                if !self.told_to_end {
                    self.told_to_end = true;
                    self.child.signal_group(Signal::SIGTERM);
                    // What is stopped does not hear it.
                    self.child.signal_group(Signal::SIGCONT);
                }
                self.watchdog.set(Some(kill_at));
            }
            Demand::Kill => {
                self.told_to_end = true;
                self.child.signal_group(Signal::SIGKILL);
                self.watchdog.set(None);
            }
        }
    }

    fn hear_child(&mut self) -> Result<Option<End>, Failure> {
        match self.child.word()? {
            Word::Ended(_) if self.told_to_end => Ok(Some(End::ByUs)),
            Word::Ended(code) => Ok(Some(End::ByItself(code))),
            Word::Stopped if self.child.has_terminal() => {
                // Ctrl-Z: the shell waits for us to stop too. Nothing renews the lock meanwhile;
                // before the command goes on, the deadline is looked at.
                self.child.take_terminal();
                self.stopped = true;
                stop_ourselves();
                Ok(None)
            }
            Word::Running | Word::Stopped => Ok(None),
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if signals::asks_to_end(signal) {
            self.asked_to_end = Some(signal);
        }
        match signal {
            Signal::SIGCONT if self.stopped => self.go_on(),
            // A program that does not know them is ended by them: only the command itself asked.
            Signal::SIGUSR1 | Signal::SIGUSR2 => self.child.signal(signal),
            other => self.child.signal_group(other),
        }
    }

    /// After a stop of both of us. A lock that was lost meanwhile kills the command before it can
    /// take another step.
    fn go_on(&mut self) {
        self.stopped = false;
        self.meet_demand();
        self.child.give_terminal();
        self.child.signal_group(Signal::SIGCONT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    /// DESIGN §8 with a TTL of 10 s.
    #[test]
    fn the_command_is_asked_to_end_a_grace_before_the_deadline_and_killed_200_ms_before() {
        let grace = Duration::from_millis(2_500);
        let at_time = |now| demand(at(9_000), grace, at(now));

        assert_eq!(at_time(0), Demand::WaitUntil(at(6_500)));
        assert_eq!(at_time(6_500), Demand::AskToEnd(at(8_800)));
        assert_eq!(at_time(8_799), Demand::AskToEnd(at(8_800)));
        assert_eq!(at_time(8_800), Demand::Kill);
    }

    #[test]
    fn a_hold_that_is_certain_for_less_than_its_ttl_leaves_a_grace_in_proportion() {
        let grace_of = |safe_until| {
            let state = watch::Sender::new(GuardState::Held { safe_until }).subscribe();
            let ttl = Duration::from_secs(10);
            let held = Held::of_locks(state, &[], None, ttl);
            usual_grace(&held, at(1_000))
        };
        assert_eq!(grace_of(at(9_000)), Duration::from_millis(2_500));
        assert_eq!(grace_of(at(4_000)), Duration::from_secs(1), "an authority of 4 s, say");
    }

    #[test]
    fn a_grace_shorter_than_the_kill_still_kills_in_time() {
        assert_eq!(demand(at(9_000), Duration::ZERO, at(8_800)), Demand::Kill);
    }
}
