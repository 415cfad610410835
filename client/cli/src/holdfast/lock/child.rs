//! The command: the first of a process group of its own. It cannot outlive this process.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgrp, getpid, tcgetpgrp, tcsetpgrp};

use super::ChildInput;
use super::group::{Group, Left};
use crate::failure::{CANNOT_RUN, Failure, NOT_FOUND, OWN_ERROR};
use crate::signals::{ENDS, as_child, code_of};

/// The child's state since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It runs on.
    Running,
    /// A signal stopped it: it can go on.
    Stopped,
    /// It has ended, with this exit code, which becomes this process's too.
    Ended(u8),
}

/// A running command.
pub(crate) struct Child {
    pid: Pid,
    group: Group,
    /// Whether this process has a terminal to lend.
    has_terminal: bool,
}

impl Child {
    /// Starts the command. Call it on the main thread: the kernel kills the child when the *thread*
    /// that forked it ends. A command with an input of its own is no job of the terminal.
    ///
    /// # Errors
    ///
    /// As in a shell: 127 if there is no such command, 126 if it cannot be run.
    pub(crate) fn start(command: &[OsString], told: &ChildInput) -> Result<Self, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::new(OWN_ERROR, "no command is given"));
        };
        let has_terminal = told.input.is_none() && lends_terminal();
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        if told.input.is_some() {
            command.stdin(Stdio::piped());
        }
        for (name, value) in &told.variables {
            // A variable inherited from another holdfast is not about this lock.
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        as_child(&mut command);
        if has_terminal {
            take_terminal_on_start(&mut command);
        }
        match command.spawn() {
            Ok(mut child) => {
                let pid = Pid::from_raw(child.id().cast_signed());
                let started = Self { pid, group: Group::of(pid), has_terminal };
                if let (Some(pipe), Some(input)) = (child.stdin.take(), told.input.clone()) {
                    // Without its input the command must not run on.
                    feed(pipe, input).inspect_err(|_| started.signal_group(Signal::SIGKILL))?;
                }
                Ok(started)
            }
            Err(error) => Err(cannot_start(program, &error)),
        }
    }

    /// Sends a signal to the command's whole process group. An empty group is no error.
    pub(crate) fn signal_group(&self, signal: Signal) {
        self.group.signal(signal);
    }

    /// Whether anything of its group runs. Call it once the command itself has ended.
    pub(crate) fn left(&mut self) -> Left {
        self.group.left()
    }

    /// Sends a signal to the command alone, unless it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = kill(self.pid, signal);
    }

    /// The state of the command.
    pub(crate) fn word(&self) -> Result<Word, Failure> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        match waitpid(self.pid, Some(flags)) {
            Ok(WaitStatus::Exited(_, code)) => {
                Ok(Word::Ended(u8::try_from(code).unwrap_or(u8::MAX)))
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => Ok(Word::Ended(code_of(signal))),
            Ok(WaitStatus::Stopped(..)) => Ok(Word::Stopped),
            Ok(_) | Err(Errno::EINTR) => Ok(Word::Running),
            Err(error) => Err(Failure::own("waiting for the command", error)),
        }
    }

    /// Whether the child got this process's terminal.
    pub(crate) fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    /// Lends the terminal to the command, if this process has it: one that goes on in the background has not.
    pub(crate) fn give_terminal(&self) {
        self.pass_terminal(getpgrp(), self.pid);
    }

    /// Takes the terminal back, if the command has it.
    pub(crate) fn take_terminal(&self) {
        self.pass_terminal(self.pid, getpgrp());
    }

    fn pass_terminal(&self, from: Pid, to: Pid) {
        let stdin = std::io::stdin();
        if self.has_terminal && tcgetpgrp(&stdin) == Ok(from) {
            // The terminal may be gone: then there is nothing to lend.
            let _ = tcsetpgrp(&stdin, to);
        }
    }
}

/// Writes the input on a thread of its own: the command may read late, or never.
fn feed(mut pipe: ChildStdin, input: String) -> Result<(), Failure> {
    let fed = std::thread::Builder::new().name("holdfast-input".into()).spawn(move || {
        // A command that closes its end does not want the rest.
        let _ = pipe.write_all(input.as_bytes());
    });
    fed.map(drop).map_err(|error| Failure::own("starting a thread", error))
}

/// Whether a command that was asked to end ends with this code.
pub(super) fn ended_as_asked(code: u8) -> bool {
    ENDS.into_iter().any(|signal| code_of(signal) == code)
}

/// Whether standard input is a terminal with this process in its foreground.
fn lends_terminal() -> bool {
    let stdin = std::io::stdin();
    stdin.is_terminal() && tcgetpgrp(&stdin) == Ok(getpgrp())
}

/// Puts the command in the terminal's foreground before it runs.
fn take_terminal_on_start(command: &mut Command) {
    #[expect(unsafe_code, reason = "the terminal has to be the child's before it runs")]
    // SAFETY: between fork and exec only async-signal-safe calls may be made; these are four plain
    // system calls that allocate nothing and take no lock.
    unsafe {
        command.pre_exec(|| {
            // A background group that takes the terminal is stopped unless it blocks this.
            let mut stop = SigSet::empty();
            stop.add(Signal::SIGTTOU);
            stop.thread_block()?;
            let taken = tcsetpgrp(std::io::stdin(), getpid());
            stop.thread_unblock()?;
            Ok(taken?)
        });
    }
}

fn cannot_start(program: &std::ffi::OsStr, error: &std::io::Error) -> Failure {
    let program = program.to_string_lossy();
    let program = program.escape_debug();
    match error.kind() {
        ErrorKind::NotFound => Failure::new(NOT_FOUND, format!("{program}: command not found")),
        _ => Failure::new(CANNOT_RUN, format!("{program} cannot be run: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_a_terminal_or_a_manager_ended_is_told_from_one_that_ended_by_itself() {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
            assert!(ended_as_asked(code_of(signal)), "{signal}");
        }
        for code in [0, 1, 127, 128, code_of(Signal::SIGKILL), code_of(Signal::SIGSEGV)] {
            assert!(!ended_as_asked(code), "{code}");
        }
    }
}
