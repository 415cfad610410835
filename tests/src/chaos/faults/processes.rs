//! Processes that are killed, frozen, or lose their power.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Broken, Undo};
use crate::chaos::stage::Stage;

/// How long a dead node stays dead.
fn dead_for(stage: &mut Stage) -> Duration {
    Duration::from_millis(stage.draw.between(200, 5_000))
}

/// How long something is frozen: mostly about as long as an election, seldom far longer.
fn frozen_for(stage: &mut Stage) -> Duration {
    let longest = if stage.draw.below(4) == 0 { 20_000 } else { 5_000 };
    Duration::from_millis(stage.draw.between(1_000, longest))
}

pub(super) fn kill_a_node(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let node = stage.draw.one_of(&idle)?;
    Some(kill(stage, node))
}

pub(super) fn kill_the_leader(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader()?;
    Some(kill(stage, node))
}

fn kill(stage: &mut Stage, node: usize) -> Broken {
    stage.busy.insert(node);
    stage.cluster.kill(node);
    Broken::new(stage.name(node), dead_for(stage), Undo::Start(vec![node]))
}

pub(super) fn start(stage: &mut Stage, nodes: &[usize]) {
    for node in nodes {
        stage.busy.remove(node);
        stage.cluster.start_node(*node);
    }
}

pub(super) fn stop_a_follower(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_follower()?;
    Some(stop(stage, node))
}

pub(super) fn stop_the_leader(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader()?;
    Some(stop(stage, node))
}

fn stop(stage: &mut Stage, node: usize) -> Broken {
    stage.busy.insert(node);
    stage.cluster.freeze(node);
    Broken::new(stage.name(node), frozen_for(stage), Undo::Thaw(node))
}

pub(super) fn thaw(stage: &mut Stage, node: usize) {
    stage.busy.remove(&node);
    stage.cluster.thaw(node);
}

fn a_client(stage: &mut Stage) -> usize {
    usize::try_from(stage.draw.below(stage.clients.count() as u64)).unwrap_or(0)
}

pub(super) fn kill_a_client(stage: &mut Stage) -> Broken {
    let client = a_client(stage);
    stage.clients.replace(client, &stage.recorder);
    Broken::new(format!("client process {client}"), Duration::ZERO, Undo::Nothing)
}

pub(super) fn stop_a_client(stage: &mut Stage) -> Broken {
    let client = a_client(stage);
    stage.clients.signal(client, Signal::SIGSTOP);
    Broken::new(format!("client process {client}"), frozen_for(stage), Undo::ThawClient(client))
}

pub(super) fn thaw_client(stage: &mut Stage, client: usize) {
    stage.clients.signal(client, Signal::SIGCONT);
}

/// So many nodes at once lose their power; `None` if not so many are idle.
pub(super) async fn cut_power(stage: &mut Stage, count: usize) -> Option<Broken> {
    let mut idle = stage.idle_nodes();
    if idle.len() < count {
        return None;
    }
    while idle.len() > count {
        let spared = stage.draw.one_of(&idle)?;
        idle.retain(|node| *node != spared);
    }
    stage.busy.extend(&idle);
    stage.cluster.cut_power(&idle).await;
    Some(Broken::new(stage.names(&idle), dead_for(stage), Undo::Start(idle)))
}
