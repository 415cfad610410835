//! Limits of a node's process, lowered while it runs to its present use.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{Broken, Undo};
use crate::chaos::kind::Kind;
use crate::chaos::stage::Stage;

/// A node logs this when it has no descriptor for a connection.
const REFUSED: &str = "no connection could be accepted";
/// Least memory that a node gets to start with, as a part of what it had.
const LEAST_PERCENT: u64 = 30;
/// A process that could not go on has ended this long after its limit was raised.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// A node with a limit that is too low.
#[derive(Debug)]
pub(super) struct Lowered {
    node: usize,
    kind: Kind,
    /// How much it had logged before.
    logged: usize,
    is_raised: bool,
}

pub(super) fn no_descriptors(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other()?;
    let limit = lowest_free_descriptor(stage, node)?;
    let words = format!("{}: {limit} descriptors", stage.name(node));
    lower(stage, node, Kind::NoDescriptors, limit, words)
}

/// A node at work takes little more memory than it has: so in half of the cases it has to start,
/// and to catch up, with less than it had.
pub(super) fn little_memory(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other()?;
    let had = address_space_kib(stage, node)?;
    let percent = if stage.draw.below(2) == 0 {
        100
    } else {
        stage.cluster.kill(node);
        stage.cluster.start_node(node);
        stage.draw.between(LEAST_PERCENT, 100)
    };
    let words = format!("{}: {percent} % of the memory it had", stage.name(node));
    lower(stage, node, Kind::LittleMemory, (had * percent / 100) << 10, words)
}

/// It is the lowest that the system would give out, so with this limit it gives out none.
fn lowest_free_descriptor(stage: &Stage, node: usize) -> Option<u64> {
    let open = std::fs::read_dir(format!("/proc/{}/fd", stage.cluster.pid(node))).ok()?;
    let open: Vec<u64> =
        open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    (0..=open.len() as u64).find(|number| !open.contains(number))
}

fn address_space_kib(stage: &Stage, node: usize) -> Option<u64> {
    let status = format!("/proc/{}/status", stage.cluster.pid(node));
    let status = std::fs::read_to_string(status).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn lower(stage: &mut Stage, node: usize, kind: Kind, limit: u64, words: String) -> Option<Broken> {
    set(stage, node, kind, Some(limit))?;
    stage.busy.insert(node);
    let logged = stage.cluster.log(node).len();
    let lasts = Duration::from_millis(stage.draw.between(3_000, 15_000));
    let lowered = Lowered { node, kind, logged, is_raised: false };
    Some(Broken::new(words, lasts, Undo::Raise(lowered)))
}

/// Sets the soft limit; `None`: to the hard one. Returns `None` if the process has ended.
fn set(stage: &Stage, node: usize, kind: Kind, limit: Option<u64>) -> Option<()> {
    let resource = if kind == Kind::NoDescriptors { Resource::Nofile } else { Resource::As };
    // A node has the hard limit of the harness.
    let maximum = getrlimit(resource).maximum;
    let limit = Rlimit { current: limit.or(maximum), maximum };
    let pid = Pid::from_raw(stage.cluster.pid(node).as_raw());
    prlimit(pid, resource, limit).ok().map(drop)
}

/// Raises the limit, and then checks the effect on the node.
pub(super) fn raise(stage: &mut Stage, mut lowered: Lowered, note: String) -> Option<Broken> {
    if lowered.is_raised {
        look(stage, &lowered);
        return None;
    }
    // A process that has ended needs no limit.
    let _ = set(stage, lowered.node, lowered.kind, None);
    lowered.is_raised = true;
    Some(Broken::new(note, ENDS_WITHIN, Undo::Raise(lowered)))
}

fn look(stage: &mut Stage, lowered: &Lowered) {
    let &Lowered { node, kind, logged, .. } = lowered;
    stage.busy.remove(&node);
    let log = stage.cluster.log(node);
    let Some(status) = stage.cluster.exited(node) else {
        let refused = log.get(logged..).unwrap_or_default().contains(REFUSED);
        let what = if refused { "connections refused" } else { "nothing was seen of it" };
        stage.came_of(kind, &format!("the node went on; {what}"));
        return;
    };
    // Without descriptors a node waits for one. Without memory no process can go on.
    if kind == Kind::NoDescriptors {
        let last = log.lines().last().unwrap_or_default();
        let (name, kind) = (stage.name(node), kind.name());
        stage.wrong.push(format!("{kind}: {name} ended with {status}: {last}"));
    }
    stage.came_of(kind, &format!("the node ended with {status}"));
    stage.cluster.start_node(node);
}
