//! Signals as events, so that one place decides what they do, and children that do not outlive this
//! process.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{Pid, getpid, getppid};
use tokio::signal::unix::{SignalKind, signal};

use holdfast_cli::block_on;

use crate::failure::Failure;

/// The signals that ask a job to end.
pub(crate) const ENDS: [Signal; 4] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Blocks the signals `heard` and passes each to `tell`, on a thread of its own, until `tell`
/// returns false. Call it before any other thread is started: threads inherit the blocked signals.
/// So do children, unless [`as_child`] was applied.
///
/// A signal to end or to stop that this process was started to ignore stays ignored, as under nohup, or for what a script
/// runs in the background.
pub(crate) fn listen(
    heard: &[Signal],
    tell: impl Fn(Signal) -> bool + Send + 'static,
) -> Result<(), Failure> {
    let mut blocked: SigSet = heard.iter().copied().collect();
    // Taking the terminal back from a child's group must not stop this process.
    blocked.add(Signal::SIGTTOU);
    let failed = |error| Failure::own("blocking signals", error);
    blocked.thread_block().map_err(failed)?;
    let mut listened = SigSet::empty();
    for signal in heard {
        if !stays_ignored(*signal).map_err(failed)? {
            listened.add(*signal);
        }
    }
    std::thread::Builder::new()
        .name("holdfast-signals".into())
        .spawn(move || {
            while let Ok(signal) = listened.wait() {
                if !tell(signal) {
                    return;
                }
            }
        })
        .map_err(|error| Failure::own("starting a thread", error))?;
    Ok(())
}

/// Whether this process was started to ignore the signal, and the signal is one that asks to end or to stop. The others get
/// their usual effect: an ignored SIGCHLD would hide the end of a command.
///
/// The signal has to be blocked: for a moment it has its usual effect.
fn stays_ignored(signal: Signal) -> nix::Result<bool> {
    let usual = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    let before = set_action(signal, &usual)?;
    let stays = matches!(before.handler(), SigHandler::SigIgn)
        && (asks_to_end(signal) || signal == Signal::SIGTSTP);
    if stays {
        set_action(signal, &before)?;
    }
    Ok(stays)
}

fn set_action(signal: Signal, action: &SigAction) -> nix::Result<SigAction> {
    #[expect(unsafe_code, reason = "the action of a signal can be set in no other way")]
    // SAFETY: the callers set the default, or what was set before: no handler of this process.
    unsafe {
        sigaction(signal, action)
    }
}

/// Whether the signal asks a job to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    ENDS.contains(&signal)
}

/// 128+n, as in shells.
pub(crate) fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)
}

/// Runs `work` in a runtime until it fails or ends, or the first SIGINT or SIGTERM comes.
pub(crate) fn until_asked_to_end(
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<u8, Failure> {
    block_on(async {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::own("listening to signals", error));
        let mut interrupt = listen(SignalKind::interrupt())?;
        let mut terminate = listen(SignalKind::terminate())?;
        holdfast_runtime::select! {
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
            ended = work => ended,
        }
    })??;
    Ok(0)
}

/// Makes the kernel kill the command when the thread that starts it ends, so start it on the main
/// thread; and lets the command receive every signal, although this process blocks some.
pub(crate) fn as_child(command: &mut Command) {
    let parent = getpid();
    #[expect(unsafe_code, reason = "the parent-death signal can only be set after the fork")]
    // SAFETY: between fork and exec only async-signal-safe calls may be made; `prepare` makes
    // plain system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || prepare(parent));
    }
}

/// Runs in the child of `parent`, between fork and exec.
fn prepare(parent: Pid) -> std::io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the line above: then no signal would ever come.
    if getppid() != parent {
        return Err(Errno::ESRCH.into());
    }
    Ok(SigSet::empty().thread_set_mask()?)
}
