//! Several workers: one process each, because each forks and waits on its main thread.

use std::ffi::OsString;
use std::num::NonZeroU16;
use std::process::{Child, Command};
use std::sync::mpsc::sync_channel;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::failure::{Failure, OWN_ERROR};
use crate::signals;

/// Most signals that wait.
const SIGNALS_MAX: usize = 64;
const HEARD: [Signal; 5] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGCHLD];

/// Runs this program's own command line in this many processes. When one fails, the others get
/// SIGTERM; the exit code is the first that is not 0.
pub(super) fn run(workers: NonZeroU16) -> Result<u8, Failure> {
    let (events, inbox) = sync_channel(SIGNALS_MAX);
    signals::listen(&HEARD, move |signal| events.send(signal).is_ok())?;
    let mut running = Vec::new();
    for _ in 0..workers.get() {
        running.push(start()?);
    }
    let mut first = 0;
    while !running.is_empty() {
        let gone = |_| Failure::new(OWN_ERROR, "the thread that hears signals has ended");
        let signal = inbox.recv().map_err(gone)?;
        if signals::asks_to_end(signal) {
            tell_all(&running, signal);
        }
        let ended = reap(&mut running)?;
        if let Some(code) = ended.into_iter().find(|code| *code != 0)
            && first == 0
        {
            first = code;
            tell_all(&running, Signal::SIGTERM);
        }
    }
    Ok(first)
}

/// Starts one worker. It cannot outlive this process.
fn start() -> Result<Child, Failure> {
    let failed = |error| Failure::own("starting a worker", error);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(for_one(std::env::args_os().skip(1).collect()));
    signals::as_child(&mut command);
    command.spawn().map_err(failed)
}

/// The same command line with one worker: the option before the command overrides an earlier one.
fn for_one(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let before_command =
        arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    arguments.insert(before_command, "--workers=1".into());
    arguments
}

fn tell_all(running: &[Child], signal: Signal) {
    for worker in running {
        // A worker that has just ended gets no signal.
        let _ = kill(Pid::from_raw(worker.id().cast_signed()), signal);
    }
}

/// Removes the processes that have ended, and returns their codes; 128+n, as in shells.
fn reap(running: &mut Vec<Child>) -> Result<Vec<u8>, Failure> {
    use std::os::unix::process::ExitStatusExt as _;
    let mut codes = Vec::new();
    let mut left = Vec::new();
    for mut worker in running.drain(..) {
        match worker.try_wait().map_err(|error| Failure::own("waiting for a worker", error))? {
            None => left.push(worker),
            Some(status) => {
                let by_signal = status.signal().map(|signal| 128 + signal);
                let code = status.code().or(by_signal).unwrap_or(i32::from(OWN_ERROR));
                codes.push(u8::try_from(code).unwrap_or(u8::MAX));
            }
        }
    }
    *running = left;
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_is_asked_for_before_the_command_begins() {
        let line = ["work", "run", "q", "--workers", "4", "--", "sh", "--", "x"];
        let line = for_one(line.into_iter().map(OsString::from).collect());
        let expected = ["work", "run", "q", "--workers", "4", "--workers=1", "--", "sh", "--", "x"];
        assert_eq!(line, expected);
    }
}
