//! The process group of a command: whether anything of it still runs, and how much.
//!
//! The kernel gives the number of a group to no other process while anything of the group is left, even a zombie. So a signal
//! reaches no foreign process until a check has found the group empty, and after that none is sent. (Between two checks a
//! foreign group could get the number only if the kernel, which takes them in turn, gave out all others in the meantime.)
//!
//! Zombies run nothing. They can stay as long as their parent runs and does not reap them (in a container PID 1 may never do
//! so), so they do not count. The kernel counts them, so this module reads `/proc`. As the subreaper of the command's orphans,
//! this process would become the parent of processes that left the group too, and it would not help against a parent that left
//! the group and still runs.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The rest of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// This many processes, if known: `/proc` may hide those of other users.
    Running(Option<usize>),
}

/// A process group that this process started.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    is_empty: bool,
    /// How many checks found something.
    looks: u32,
    /// The result of the last list of all processes.
    counted: Counted,
}

impl Group {
    /// The group of a child that was started as the first of it.
    pub(super) fn of(leader: Pid) -> Self {
        Self { id: leader, is_empty: false, looks: 0, counted: Counted::default() }
    }

    /// Sends a signal to all of it. An empty group, or a missing permission, is no error: [`left`](Self::left) reports it.
    pub(super) fn signal(&self, signal: Signal) {
        if !self.is_empty {
            let _ = killpg(self.id, signal);
        }
    }

    /// Whether anything of it runs. Call it after the leader was reaped, which would count as a zombie.
    pub(super) fn left(&mut self) -> Left {
        if self.is_empty || killpg(self.id, None) == Err(Errno::ESRCH) {
            self.is_empty = true;
            return Left::Nothing;
        }
        // Any other result means that something is left: EPERM is about processes of other users.
        let were_zombies = self.counted.only_zombies();
        if were_zombies || is_counted(self.looks) {
            self.counted = count(self.id).unwrap_or_default();
            // The list may miss a process that is forked while it is read, but only once.
            self.is_empty = were_zombies && self.counted.only_zombies();
        }
        self.looks = self.looks.saturating_add(1);
        if self.is_empty {
            Left::Nothing
        } else {
            Left::Running(Some(self.counted.alive).filter(|alive| *alive > 0))
        }
    }
}

/// Whether a check lists all processes of the machine: the first checks do, and then one every two seconds, because the list
/// may be long.
fn is_counted(look: u32) -> bool {
    look < 8 || look.is_multiple_of(10)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    alive: usize,
    zombies: usize,
}

impl Counted {
    fn only_zombies(self) -> bool {
        self.alive == 0 && self.zombies > 0
    }
}

fn count(group: Pid) -> io::Result<Counted> {
    let mut counted = Counted::default();
    for entry in fs::read_dir("/proc")? {
        let Ok(entry) = entry else { continue };
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_process {
            continue;
        }
        // The process may have ended since it was listed.
        let Ok(stat) = fs::read(entry.path().join("stat")) else { continue };
        match Process::parse(&String::from_utf8_lossy(&stat)) {
            Some(process) if process.group != group.as_raw() => {}
            Some(Process { is_alive: true, .. }) => counted.alive += 1,
            Some(Process { is_alive: false, .. }) => counted.zombies += 1,
            None => {}
        }
    }
    Ok(counted)
}

/// The fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    group: i32,
    is_alive: bool,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        // The name before it is in parentheses, and may contain any character.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let threads: u64 = fields.nth(14)?.parse().ok()?;
        // When only the first thread of a process has ended, that thread is a zombie too.
        let is_alive = !matches!(state, "Z" | "X" | "x") || threads > 1;
        Some(Self { group, is_alive })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn stat(name: &str, state: &str, threads: u32) -> String {
        format!(
            "17 ({name}) {state} 1 4321 99 34816 4321 4194304 100 0 0 0 1 2 0 0 20 0 {threads} 0 5 0"
        )
    }

    #[test]
    fn a_zombie_does_not_count_unless_other_threads_of_it_run() {
        let parsed = |state, threads| Process::parse(&stat("sh", state, threads));
        let process = |is_alive| Some(Process { group: 4_321, is_alive });

        assert_eq!(parsed("S", 1), process(true));
        assert_eq!(parsed("T", 1), process(true), "it can be continued");
        assert_eq!(parsed("D", 1), process(true));
        assert_eq!(parsed("Z", 1), process(false));
        assert_eq!(parsed("Z", 2), process(true), "its first thread alone has ended");
    }

    #[test]
    fn a_name_cannot_pass_for_a_state() {
        let parsed = Process::parse(&stat("a) Z 1 1 (b", "R", 1));

        assert_eq!(parsed, Some(Process { group: 4_321, is_alive: true }));
        assert_eq!(Process::parse("17 (sh) S 1"), None, "cut off");
        assert_eq!(Process::parse(""), None);
    }

    /// In the end there is a check every 200 ms, and a machine may have thousands of processes.
    #[test]
    fn the_processes_of_the_machine_are_listed_often_at_first_and_then_every_tenth_time() {
        let counted: Vec<u32> = (0..45).filter(|look| is_counted(*look)).collect();

        assert_eq!(counted, [0, 1, 2, 3, 4, 5, 6, 7, 10, 20, 30, 40]);
    }

    /// Two processes beside the leader, which the test reaps as the supervisor does.
    #[test]
    fn a_group_is_empty_only_when_the_last_process_of_it_has_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & sleep 60 & exit 0"]).process_group(0);
        let mut leader = command.stdin(Stdio::null()).spawn().unwrap();
        let id = Pid::from_raw(leader.id().cast_signed());
        let mut group = Group::of(id);
        leader.wait().unwrap();

        assert_eq!(group.left(), Left::Running(Some(2)));
        group.signal(Signal::SIGKILL);
        while group.left() != Left::Nothing {
            std::thread::yield_now();
        }
        assert!(group.is_empty);
    }
}
