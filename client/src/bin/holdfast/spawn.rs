//! Children that do not outlive us.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};

/// Has the kernel kill the command when the thread that starts it ends: start it on the main
/// thread.
pub(crate) fn die_with_us(command: &mut Command) {
    let parent = getpid();
    #[expect(unsafe_code, reason = "the parent-death signal can only be set after the fork")]
    // SAFETY: between fork and exec only async-signal-safe calls may be made; `die_with` makes two
    // plain system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || die_with(parent));
    }
}

/// In the child: die when `parent` does.
fn die_with(parent: Pid) -> std::io::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before the line above: nobody would ever be told.
    if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
}
