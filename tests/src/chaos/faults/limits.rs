//! Limits of a process, lowered while it runs to its present use.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::processes::a_client;
use super::{Broken, Undo};
use crate::chaos::kind::Kind;
use crate::chaos::stage::Stage;

/// A node logs this when it has no descriptor for a connection.
const REFUSED: &str = "no connection could be accepted";
/// Least memory that a process gets to start with, as a part of what it had.
const LEAST_PERCENT: u64 = 30;
/// A process that could not go on has ended this long after its limit was raised.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// A process with a limit that is too low.
#[derive(Debug)]
pub(super) struct Lowered {
    whose: Whose,
    kind: Kind,
    /// How much it had logged before, if it is a node.
    logged: usize,
    /// Whether it is a node that had not opened its data folder yet.
    was_starting: bool,
    is_raised: bool,
}

/// The process.
#[derive(Clone, Copy, Debug)]
enum Whose {
    Node(usize),
    Client(usize),
}

impl Whose {
    fn name(self, stage: &Stage) -> String {
        match self {
            Self::Node(node) => stage.name(node),
            Self::Client(client) => format!("client process {client}"),
        }
    }

    fn pid(self, stage: &Stage) -> i32 {
        let pid = match self {
            Self::Node(node) => stage.cluster.pid(node),
            Self::Client(client) => stage.clients.pid(client),
        };
        pid.as_raw()
    }

    fn starts_again(self, stage: &mut Stage) {
        match self {
            Self::Node(node) => {
                stage.cluster.kill(node);
                stage.cluster.start_node(node);
            }
            Self::Client(client) => stage.clients.replace(client, &stage.recorder),
        }
    }

    /// From now on it may end.
    fn take_in_hand(self, stage: &mut Stage) {
        match self {
            Self::Node(node) => {
                stage.busy.insert(node);
            }
            Self::Client(client) => stage.clients.starve(client, &stage.recorder),
        }
    }
}

pub(super) fn no_descriptors(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other()?;
    let limit = lowest_free_descriptor(stage, node)?;
    let words = format!("{}: {limit} descriptors", stage.name(node));
    lower(stage, Whose::Node(node), Kind::NoDescriptors, limit, words)
}

/// A process at work takes little more memory than it has: so in half of the cases it has to start,
/// and a node to catch up, with less than it had.
pub(super) fn little_memory(stage: &mut Stage) -> Option<Broken> {
    let whose = if stage.draw.below(2) == 0 {
        Whose::Node(stage.idle_leader_or_other()?)
    } else {
        let client = a_client(stage);
        if !stage.clients.runs(client) {
            return None;
        }
        Whose::Client(client)
    };
    let had = address_space_kib(whose.pid(stage))?;
    let percent = if stage.draw.below(2) == 0 {
        100
    } else {
        whose.starts_again(stage);
        stage.draw.between(LEAST_PERCENT, 100)
    };
    let words = format!("{}: {percent} % of the memory it had", whose.name(stage));
    lower(stage, whose, Kind::LittleMemory, (had * percent / 100) << 10, words)
}

/// It is the lowest that the system would give out, so with this limit it gives out none.
fn lowest_free_descriptor(stage: &Stage, node: usize) -> Option<u64> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", stage.cluster.pid(node))).ok()?;
    let open: Vec<u64> =
        open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    (0..=open.len() as u64).find(|number| !open.contains(number))
}

/// `None` if the process has ended.
fn address_space_kib(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn lower(stage: &mut Stage, whose: Whose, kind: Kind, limit: u64, words: String) -> Option<Broken> {
    // Before the limit is set: a client process was seen to run then.
    whose.take_in_hand(stage);
    if set(stage, whose, kind, Some(limit)).is_none() {
        let_go(stage, whose);
        return None;
    }
    let (logged, was_starting) = match whose {
        Whose::Node(node) => (stage.cluster.log(node).len(), !stage.has_opened(node)),
        Whose::Client(_) => (0, false),
    };
    let lasts = Duration::from_millis(stage.draw.between(3_000, 15_000));
    let lowered = Lowered { whose, kind, logged, was_starting, is_raised: false };
    Some(Broken::new(words, lasts, Undo::Raise(lowered)))
}

/// From now on it may not end any more. Returns whether it was in hand: a client process is not if
/// it was replaced.
fn let_go(stage: &mut Stage, whose: Whose) -> bool {
    match whose {
        Whose::Node(node) => stage.busy.remove(&node),
        Whose::Client(client) => stage.clients.feed(client),
    }
}

/// Sets the soft limit; `None`: to the hard one. Returns `None` if the process has ended.
fn set(stage: &Stage, whose: Whose, kind: Kind, limit: Option<u64>) -> Option<()> {
    let resource = if kind == Kind::NoDescriptors { Resource::Nofile } else { Resource::As };
    // Every process of the run has the hard limit of the harness.
    let maximum = getrlimit(resource).maximum;
    let limit = Rlimit { current: limit.or(maximum), maximum };
    prlimit(Pid::from_raw(whose.pid(stage)), resource, limit).ok().map(drop)
}

/// Raises the limit, and then checks the effect on the process.
pub(super) fn raise(stage: &mut Stage, mut lowered: Lowered, note: String) -> Option<Broken> {
    if lowered.is_raised {
        look(stage, &lowered);
        return None;
    }
    // A process that has ended needs no limit.
    let _ = set(stage, lowered.whose, lowered.kind, None);
    lowered.is_raised = true;
    Some(Broken::new(note, ENDS_WITHIN, Undo::Raise(lowered)))
}

fn look(stage: &mut Stage, lowered: &Lowered) {
    if let Whose::Client(client) = lowered.whose {
        stage.replace_starved(client);
    }
    let is_the_same = let_go(stage, lowered.whose);
    if let Whose::Node(node) = lowered.whose {
        look_at_node(stage, node, lowered);
    } else if is_the_same {
        // One that ended was counted when it was replaced.
        stage.came_of(lowered.kind, "the client process went on");
    }
}

fn look_at_node(stage: &mut Stage, node: usize, lowered: &Lowered) {
    let &Lowered { kind, logged, was_starting, .. } = lowered;
    let log = stage.cluster.log(node);
    let Some(status) = stage.cluster.exited(node) else {
        let refused = log.get(logged..).unwrap_or_default().contains(REFUSED);
        let what = if refused { "connections refused" } else { "nothing was seen of it" };
        stage.came_of(kind, &format!("the node went on; {what}"));
        return;
    };
    // Without descriptors a node waits for one, unless it is starting: then it may be started again.
    // Without memory no process can go on.
    let may_start_again = was_starting && status.code() == Some(70);
    if kind == Kind::NoDescriptors && !may_start_again {
        let last = log.lines().last().unwrap_or_default();
        let (name, kind) = (stage.name(node), kind.name());
        stage.wrong.push(format!("{kind}: {name} ended with {status}: {last}"));
    }
    stage.came_of(kind, &format!("the node ended with {status}"));
    stage.cluster.start_node(node);
}
