//! How the process ends: one code per kind of cause, as in sysexits(3).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::panic;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use crate::telemetry;

/// The codes, as `holdfastd --help` shows them.
pub const HELP: &str = "\
Exit codes:
   0  stopped by SIGTERM or SIGINT, or by the end of a command
  64  a flag or variable that does not exist or cannot be read
  65  the backup cannot be restored; no folder was made
  69  cannot listen: the address is in use or not of this machine
  70  a fault inside the node; the log line before says which
  73  the data folder cannot be used; nothing was changed in it
  74  a write to the data folder failed; what was acknowledged is safe
  75  the data folder's disk hangs (disk_stall_ms); what was acknowledged is safe, start again
  77  this node was removed from its cluster, for ever under this node id
  78  a setting cannot be used; the message names it
 130  a second signal came before the node had stopped; what was acknowledged is safe";

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It was asked to stop.
    Stopped = 0,
    /// The command line cannot be read.
    Usage = 64,
    /// A backup is damaged, or of another kind, or its tokens might not rise.
    Backup = 65,
    /// A listener could not be opened.
    Listen = 69,
    /// A fault inside the node: a bug, or replicas that disagree.
    Fault = 70,
    /// The data folder cannot be used.
    DataFolder = 73,
    /// A write or sync failed.
    Storage = 74,
    /// An operation on the data folder does not end.
    DiskHangs = 75,
    /// The cluster goes on without this node.
    Removed = 77,
    /// A setting cannot be used.
    Settings = 78,
    /// It was asked to stop a second time.
    Interrupted = 130,
}

impl Exit {
    /// The number the operating system sees.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Reports on standard error why the process ends, after the log lines before it.
pub fn say(exit: Exit, why: &dyn Display) -> Exit {
    telemetry::say(&format_args!("holdfastd: {why}"));
    exit
}

/// Reports why and ends the process at once. Everything that was acknowledged is on disk, so there is
/// nothing to clean up.
pub fn now(exit: Exit, why: &dyn Display) -> ! {
    std::process::exit(say(exit, why).code().into())
}

/// Like [`now`], but works even if standard error leads to the disk that hangs: the message has a moment
/// to be written, then the process ends without it.
pub fn at_once(exit: Exit, why: String) -> ! {
    let (told, tells) = std::sync::mpsc::channel();
    let says = move || {
        say(exit, &why);
        // The receiver is gone if this took too long.
        let _ = told.send(());
    };
    if thread::Builder::new().name("holdfast-words".to_owned()).spawn(says).is_ok() {
        let _ = tells.recv_timeout(WORDS_WITHIN);
    }
    std::process::exit(exit.code().into())
}

const WORDS_WITHIN: Duration = Duration::from_secs(1);

/// Threads that catch panics themselves, sled's among them, and report them as faults of the store.
const CATCHES_PANICS: [&str; 2] = ["holdfast-open", "holdfast-log"];

/// From here on a panic ends the process, whatever task it happens in.
///
/// A panic is a bug, and other tasks may wait in vain for the task that is gone: for the keeper of
/// leases, say. A process that ends is started again, and its peers serve meanwhile.
pub fn on_panic() {
    panic::set_hook(Box::new(move |panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        // The same text as that of the default hook, which would wait for a pipe that no process reads.
        let trace = Backtrace::capture();
        let shown = trace.status() == BacktraceStatus::Captured;
        let trace = if shown { format!("\n{trace}") } else { String::new() };
        telemetry::say(&format_args!("thread '{name}' {panic}{trace}"));
        if !thread.name().is_some_and(|name| CATCHES_PANICS.contains(&name)) {
            now(Exit::Fault, &"this is a bug; please report the lines above");
        }
    }));
}
