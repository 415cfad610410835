//! The process group of a command: whether anything of it still runs, and how much.
//!
//! The kernel gives the number of a group to no other process while anything of the group is left, if only a zombie. So a
//! signal reaches no stranger until a look has found the group empty, and after that none is sent. (Between two looks a
//! stranger could get the number only if all others were given out in the meantime: the kernel takes them in turn.)
//!
//! Zombies run nothing. They can stay for as long as their parent lives and does not ask for them (in a container PID 1 may
//! be one that never does), so they do not count. The kernel counts them, so `/proc` has to tell. To be the subreaper of what
//! the command leaves behind would make us the parent of processes that left the group too, and would not help against a
//! parent that left it and still lives.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// What is left of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// So many processes, if that is known: those of somebody else may be hidden.
    Running(Option<usize>),
}

/// A process group that we started.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    is_empty: bool,
    /// So many looks found something.
    looks: u32,
    /// What the last list of all processes said.
    counted: Counted,
}

impl Group {
    /// The group of a child that was started as the first of it.
    pub(super) fn of(leader: Pid) -> Self {
        Self { id: leader, is_empty: false, looks: 0, counted: Counted::default() }
    }

    /// Sends a signal to all of it. That nothing is left, or that we may not, is no error: [`left`](Self::left) says so.
    pub(super) fn signal(&self, signal: Signal) {
        if !self.is_empty {
            let _ = killpg(self.id, signal);
        }
    }

    /// Whether anything of it runs. To be asked after the leader was waited for: it would count as a zombie.
    pub(super) fn left(&mut self) -> Left {
        if self.is_empty || killpg(self.id, None) == Err(Errno::ESRCH) {
            self.is_empty = true;
            return Left::Nothing;
        }
        // Whatever else it says, something is left: EPERM is about processes of somebody else.
        let were_zombies = self.counted.only_zombies();
        if were_zombies || is_counted(self.looks) {
            self.counted = count(self.id).unwrap_or_default();
            // A process that is forked while the list is read may be missed, once.
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

/// At which looks all processes of the machine are listed: at the first ones, and then every two seconds, for the list may be long.
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
        // It may have ended since it was listed.
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

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    group: i32,
    is_alive: bool,
}

impl Process {
    fn parse(stat: &str) -> Option<Self> {
        // The name before it stands in parentheses, and may hold any character.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let threads: u64 = fields.nth(14)?.parse().ok()?;
        // Of a process whose first thread alone has ended, that thread is a zombie too.
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

    /// Looks come every 200 ms in the end, and a machine may have thousands of processes.
    #[test]
    fn the_processes_of_the_machine_are_listed_often_at_first_and_then_every_tenth_time() {
        let counted: Vec<u32> = (0..45).filter(|look| is_counted(*look)).collect();

        assert_eq!(counted, [0, 1, 2, 3, 4, 5, 6, 7, 10, 20, 30, 40]);
    }

    /// Two processes beside the leader, which is waited for as the supervisor does it.
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
