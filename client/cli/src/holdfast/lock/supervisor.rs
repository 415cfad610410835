//! Supervises a command under a hold: passes signals on to it, and asks it to end and kills it when the hold requires that. The
//! command is over when nothing of its process group runs any more (I6); until then the lock is not released, whatever ended
//! the command.

use std::sync::mpsc::Receiver;

use holdfast::Instant;
use holdfast_runtime::Watchdog;
use nix::sys::signal::Signal;

use super::child::{Child, Word, ended_as_asked};
use super::contended::{Notice, Notices};
use super::deadline::{Demand, HoldWatch, Rest, kill_at};
use super::group::Left;
use super::jeopardy::Jeopardy;
use super::warnings::Warnings;
use super::{COMMAND_STOPPED, Ended, Event, lost, next, stop_ourselves};
use crate::args::Work;
use crate::failure::Failure;
use crate::signals;

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one thing that has happened to the command or not, in any combination"
)]
pub(super) struct Supervisor<'a> {
    child: Child,
    hold: HoldWatch,
    /// What is held, for messages.
    what: &'a str,
    /// The user's options for the command's end.
    work: &'a Work,
    warnings: &'a Warnings,
    watchdog: Watchdog,
    jeopardy: Jeopardy,
    notices: Notices,
    /// The command was sent TERM or KILL because of the lock.
    told_to_end: bool,
    /// The last signal that asked this process to end.
    asked_to_end: Option<Signal>,
    /// When the command was first asked to end, for any reason.
    asked_at: Option<Instant>,
    /// This process was asked to stop, and passed it on.
    told_to_stop: bool,
    /// The command was stopped, and this process with it.
    stopped: bool,
    /// Set once the command itself has ended.
    rest: Option<Rest>,
    /// A limit passed, and the rest of the group was killed.
    killed: bool,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        child: Child,
        hold: HoldWatch,
        what: &'a str,
        (work, warnings): (&'a Work, &'a Warnings),
        watchdog: Watchdog,
    ) -> Self {
        let notices = Notices::since(hold.clock.now());
        Self {
            child,
            hold,
            what,
            work,
            warnings,
            watchdog,
            jeopardy: Jeopardy::default(),
            notices,
            told_to_end: false,
            asked_to_end: None,
            asked_at: None,
            told_to_stop: false,
            stopped: false,
            rest: None,
            killed: false,
        }
    }

    /// Runs until nothing of the command runs; with `--release-at-exit`, until the command itself has ended. Returns also the
    /// last signal that asked this process to end.
    ///
    /// After an error it kills the command and its whole group: no thread watches the lock any more.
    pub(super) fn run(
        &mut self,
        inbox: &Receiver<Event>,
    ) -> Result<(Ended, Option<Signal>), Failure> {
        let ended = self.wait_for_end(inbox);
        if ended.is_err() {
            self.child.signal_group(Signal::SIGKILL);
        }
        self.child.take_terminal();
        Ok((ended?, self.asked_to_end))
    }

    fn wait_for_end(&mut self, inbox: &Receiver<Event>) -> Result<Ended, Failure> {
        loop {
            if let Some(end) = self.end() {
                return Ok(end);
            }
            self.meet_demand();
            match next(inbox)? {
                Event::Signal(Signal::SIGCHLD) => self.hear_child()?,
                Event::Signal(signal) => self.pass_on(signal),
                Event::Contended(notice) => self.notices.add(notice),
                _ => {}
            }
        }
    }

    /// How the command ended, if nothing is left that has to be waited for.
    fn end(&mut self) -> Option<Ended> {
        let rest = self.rest.as_mut()?;
        // A group that was asked to end because of the lock must not run on without it.
        let is_over = self.work.release_at_exit && !self.told_to_end;
        let left = if is_over { Left::Nothing } else { self.child.left() };
        if left == Left::Nothing {
            return Some(if self.told_to_end {
                Ended::LockLost(lost(self.what, COMMAND_STOPPED, &self.hold))
            } else {
                Ended::ByItself(rest.code)
            });
        }
        if let Some(line) = rest.line(self.what, left, self.hold.clock.now()) {
            self.warnings.say(&line);
        }
        None
    }

    /// Does what is due now, and sets the watchdog to the next deadline.
    fn meet_demand(&mut self) {
        let now = self.hold.clock.now();
        // Once the command was asked to end, the lock is not held on, whatever the store says.
        if !self.told_to_end
            && let Some(line) = self.jeopardy.line(self.what, &self.hold, true)
        {
            self.warnings.say(&line);
        }
        let demanded = match self.hold.demand() {
            Demand::WaitUntil(at) => Some(at),
            Demand::AskToEnd(kill_at) => {
                self.tell_to_end(now);
                Some(kill_at)
            }
            Demand::Kill => {
                self.told_to_end = true;
                self.child.signal_group(Signal::SIGKILL);
                None
            }
        };
        let ended = self.rest.as_ref().map(|rest| rest.since);
        let limit = kill_at(self.work.kill_after, self.asked_at, ended);
        if limit.is_some_and(|at| now >= at) {
            self.kill_what_is_left();
        }
        let limit = limit.filter(|_| !self.killed);
        if let Some(notice) = self.notices.due(now) {
            self.tell_contended(&notice);
        }
        let look = self.rest.as_mut().map(|rest| rest.next_look(now));
        let warning = self.jeopardy.next_look(&self.hold);
        self.watchdog.set(
            [demanded, warning, limit, look, self.notices.next_look()].into_iter().flatten().min(),
        );
    }

    fn tell_to_end(&mut self, now: Instant) {
        if !self.told_to_end {
            self.told_to_end = true;
            self.asked_at.get_or_insert(now);
            self.child.signal_group(Signal::SIGTERM);
            // A stopped process does not handle TERM.
            self.child.signal_group(Signal::SIGCONT);
        }
    }

    fn kill_what_is_left(&mut self) {
        self.child.signal_group(Signal::SIGKILL);
        if !self.killed {
            self.killed = true;
            self.warnings
                .say("killed what still ran of the command: it had its time to end (--kill-after)");
        }
    }

    fn hear_child(&mut self) -> Result<(), Failure> {
        if self.rest.is_some() {
            return Ok(());
        }
        match self.child.word()? {
            Word::Ended(code) => self.has_ended(code),
            Word::Stopped if self.child.has_terminal() || self.told_to_stop => {
                // Ctrl-Z: the shell waits for this process to stop too, also if only a part of its job has the terminal as input. Nothing renews the lock meanwhile, so nothing of the
                // group may run, not even a process that ignores the signal; before the command goes on, the deadline is
                // checked.
                self.child.signal_group(Signal::SIGSTOP);
                self.child.take_terminal();
                self.stopped = true;
                stop_ourselves();
            }
            Word::Running | Word::Stopped => {}
        }
        Ok(())
    }

    /// Handles the end of the command itself. From here on the terminal belongs to this process: the rest of the group would
    /// not stop for Ctrl-Z, so this process does not stop either.
    fn has_ended(&mut self, code: u8) {
        let now = self.hold.clock.now();
        if ended_as_asked(code) {
            // By a signal that this process did not pass on: Ctrl-C at a terminal that the command had.
            self.asked_at.get_or_insert(now);
        }
        self.rest = Some(Rest::new(code, now));
        self.child.take_terminal();
    }

    fn pass_on(&mut self, signal: Signal) {
        if signals::asks_to_end(signal) {
            self.asked_to_end = Some(signal);
            self.asked_at.get_or_insert(self.hold.clock.now());
        }
        self.told_to_stop = signal == Signal::SIGTSTP;
        match signal {
            Signal::SIGCONT if self.stopped => self.go_on(),
            other => self.signal(other),
        }
        if signals::asks_to_end(signal) {
            // A stopped process does not handle it.
            self.child.signal_group(Signal::SIGCONT);
        }
    }

    /// Others wait for the locks. Nothing is to be done if the command is about to end anyway.
    fn tell_contended(&mut self, Notice { signal, text }: &Notice) {
        if self.rest.is_some() || self.told_to_end {
            return;
        }
        self.warnings.say(&format!("{text}: the command is sent {signal}"));
        if signals::asks_to_end(*signal) {
            self.asked_at.get_or_insert(self.hold.clock.now());
        }
        self.signal(*signal);
    }

    fn signal(&self, signal: Signal) {
        match signal {
            // These signals end a program that does not handle them; only the command itself may expect them.
            Signal::SIGUSR1 | Signal::SIGUSR2 if self.rest.is_none() => self.child.signal(signal),
            Signal::SIGUSR1 | Signal::SIGUSR2 => {}
            other => self.child.signal_group(other),
        }
    }

    /// Continues after a stop of the command and this process. A lock that was lost meanwhile kills the command before it can
    /// take another step.
    fn go_on(&mut self) {
        self.stopped = false;
        self.meet_demand();
        self.child.give_terminal();
        self.child.signal_group(Signal::SIGCONT);
    }
}

impl Drop for Supervisor<'_> {
    /// After a panic no thread watches the lock any more.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.child.signal_group(Signal::SIGKILL);
        }
    }
}
