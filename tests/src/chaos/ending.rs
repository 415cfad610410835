//! The end of a run, without faults: the cluster has to come back, serve every lock, hold
//! everything that it acknowledged, and agree on one state.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_proto::v1::StatusResponse;
use holdfast_runtime::Runtime;

use super::schedule::Schedule;
use super::stage::Stage;
use super::workload;
use crate::history::{self, ClientId, Record};
use crate::scribe::Scribe;
use crate::wire;

/// How long clients go on after the last fault.
const GOES_ON: Duration = Duration::from_secs(5);
/// The client that asks for every lock at the end. Client processes begin above.
const LAST: ClientId = ClientId(1);
/// Longest wait for one lock at the end: the longest lease of a dead client, and time to spare.
const SERVED_WITHIN: Duration = Duration::from_mins(1);
/// Longest time until all members have applied the same entries.
const AGREE_WITHIN: Duration = Duration::from_mins(1);

/// The result of a run.
#[derive(Debug)]
pub struct Ending {
    /// Every record, in order.
    pub history: Vec<Record>,
    /// What each node logged.
    pub logs: Vec<String>,
    /// The violations besides those that the judge finds in the history.
    pub violations: Vec<String>,
}

/// Ends a run whose faults are all undone.
///
/// # Panics
///
/// If no leader comes back, or a history cannot be read.
pub async fn end(mut stage: Stage, schedule: &mut Schedule) -> Ending {
    stage.cluster.all_ready().await;
    stage.note_healed();
    Runtime::system().sleep(GOES_ON).await;
    stage.watch_processes();
    let mut violations = std::mem::take(&mut stage.wrong);
    violations.extend(stage.clients.finish().await);
    violations.extend(serves_every_lock(&stage).await);
    schedule.note_what_was_seen(&stage);
    let leader = stage.cluster.leader().await;
    violations.extend(other_members(&stage).await);
    let Stage { cluster, witness, clients, folder, .. } = stage;
    witness.hand_over(&cluster.nodes()[leader].listen).await;
    let members = cluster.members().into_iter();
    let addresses: Vec<&str> = members.map(|node| &*cluster.nodes()[node].listen).collect();
    violations.extend(disagreement(&addresses).await);
    let own = folder.join("harness.jsonl");
    let files = clients.histories().iter().chain([&own]);
    let parts = files.map(|file| history::read(file).unwrap_or_else(|error| panic!("{error}")));
    let logs = node_logs(&folder);
    Ending { history: history::merge(parts.collect()), logs, violations }
}

/// The logs of all nodes that were ever started.
fn node_logs(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let of_a_node = |file: &PathBuf| {
        let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("node-") && file.extension() == Some(OsStr::new("log"))
    };
    files.filter(of_a_node).map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Why the members are not the expected ones, if they are not: each of them votes, and no removed
/// node is among them (I22).
async fn other_members(stage: &Stage) -> Option<String> {
    let left = stage.members().into_iter();
    let mut left: Vec<(u64, bool)> =
        left.map(|node| (stage.cluster.nodes()[node].id, true)).collect();
    left.sort_unstable();
    let known = match stage.admin().cluster().await {
        Ok(status) => status.members,
        Err(error) => return Some(format!("nobody says who the members are (I31): {error}")),
    };
    let known: Vec<(u64, bool)> =
        known.into_iter().map(|member| (member.node, member.votes)).collect();
    (known != left).then(|| {
        format!("the members, and whether each votes, are {known:?} and should be {left:?} (I22)")
    })
}

/// Every name that a client ever asked for is granted once more.
async fn serves_every_lock(stage: &Stage) -> Vec<String> {
    let endpoints = stage.cluster.endpoints();
    let ttl = Duration::from_secs(10);
    let scribe = Scribe::connect(&endpoints, ttl, LAST, stage.recorder.clone()).await;
    let scribe = match scribe {
        Ok(scribe) => scribe,
        Err(error) => return vec![format!("after everything was mended: {error}")],
    };
    let mut wrong = Vec::new();
    for name in workload::names() {
        match scribe.lock(&name, SERVED_WITHIN).await {
            Ok(held) => {
                let _ = held.release().await;
            }
            Err(error) => wrong.push(format!("{name} is not granted any more (I31): {error}")),
        }
    }
    scribe.close().await;
    wrong
}

/// Why the members do not agree, if they do not in time (I16).
async fn disagreement(addresses: &[&str]) -> Option<String> {
    let runtime = Runtime::system();
    let give_up = runtime.clock.now() + AGREE_WITHIN;
    loop {
        let asked = addresses.iter().map(|address| wire::status(address, Duration::from_secs(1)));
        let answers = futures_util::future::join_all(asked).await;
        let states: Option<Vec<(u64, String)>> =
            answers.iter().map(|status| status.as_ref().map(state)).collect();
        if states.as_ref().is_some_and(|states| states.windows(2).all(|two| two[0] == two[1])) {
            return None;
        }
        if runtime.clock.now() > give_up {
            return Some(format!("the members do not agree (I16): {states:?}"));
        }
        runtime.sleep(Duration::from_millis(200)).await;
    }
}

fn state(status: &StatusResponse) -> (u64, String) {
    (status.applied_index, hex::encode(&status.state_hash))
}
