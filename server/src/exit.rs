//! How the process ends: one code per kind of cause, as in sysexits(3).

use std::fmt::Display;
use std::process::ExitCode;

/// The codes, as `holdfastd --help` shows them.
pub const HELP: &str = "\
Exit codes:
   0  stopped by SIGTERM or SIGINT, or by the end of a command
  64  a flag or variable that does not exist or cannot be read
  69  cannot listen: the address is in use or not of this machine
  70  a fault inside the node; the log line before says which
  73  the data folder cannot be used; nothing was changed in it
  74  a write to the data folder failed; what was acknowledged is safe
  78  a setting cannot be used; the message names it";

/// Why the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to.
    Stopped,
    /// The command line cannot be read.
    Usage,
    /// A listener could not be opened.
    Listen,
    /// A fault inside the node: a bug, or replicas that disagree.
    Fault,
    /// The data folder cannot be used.
    DataFolder,
    /// A write or sync failed.
    Storage,
    /// A setting cannot be used.
    Settings,
}

impl Exit {
    /// The number the operating system sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Stopped => 0,
            Self::Usage => 64,
            Self::Listen => 69,
            Self::Fault => 70,
            Self::DataFolder => 73,
            Self::Storage => 74,
            Self::Settings => 78,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Says on standard error why the process ends.
#[expect(clippy::print_stderr, reason = "the last words of a process go to standard error")]
pub fn say(exit: Exit, why: &dyn Display) -> Exit {
    eprintln!("holdfastd: {why}");
    exit
}
