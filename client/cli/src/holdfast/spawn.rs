//! Children that do not outlive this process.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid};

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
