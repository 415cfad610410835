//! Processes that are killed, frozen, or lose their power.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::{Signal, kill as send_signal};
use nix::unistd::Pid;

use super::{Broken, Undo};
use crate::chaos::stage::Stage;

/// A slow node runs for a part of each such period.
const TURN: Duration = Duration::from_millis(200);
/// The part of each period in which it runs, one in so many.
const SLOWER_BY: [u32; 2] = [10, 100];

/// How long a dead node stays dead.
fn dead_for(stage: &mut Stage) -> Duration {
    Duration::from_millis(stage.draw.between(200, 5_000))
}

/// Longer than any lease of the clients ([`workload`](crate::chaos::workload)).
fn frozen_for_long(stage: &mut Stage) -> Duration {
    Duration::from_millis(stage.draw.between(6_000, 20_000))
}

/// How long a process is frozen: mostly about as long as an election, seldom far longer.
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

/// A node or a client process is frozen until every lease that it holds or keeps is over.
pub(super) fn stop_for_long(stage: &mut Stage) -> Option<Broken> {
    let mut broken = if stage.draw.below(2) == 0 {
        let node = stage.idle_leader_or_other()?;
        stop(stage, node)
    } else {
        stop_a_client(stage)
    };
    broken.lasts = frozen_for_long(stage);
    Some(broken)
}

/// A node that stops and continues in turns.
#[derive(Debug)]
pub(super) struct Turns {
    node: usize,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

pub(super) fn slow_down(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other()?;
    let part = stage.draw.one_of(&SLOWER_BY)?;
    stage.busy.insert(node);
    let pid = stage.cluster.pid(node);
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::spawn(move || take_turns(pid, TURN / part, &stopped));
    let lasts = Duration::from_millis(stage.draw.between(10_000, 20_000));
    let words = format!("{}: by {part}", stage.name(node));
    Some(Broken::new(words, lasts, Undo::GoOnAtOnce(Turns { node, stop, thread })))
}

/// Nothing reaps the process while a fault has it in hand, so its id stays its own.
fn take_turns(pid: Pid, runs: Duration, stopped: &Receiver<()>) {
    for (signal, length) in
        [(Signal::SIGSTOP, TURN.saturating_sub(runs)), (Signal::SIGCONT, runs)].into_iter().cycle()
    {
        send_signal(pid, signal).unwrap();
        if stopped.recv_timeout(length) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    send_signal(pid, Signal::SIGCONT).unwrap();
}

pub(super) fn go_on(stage: &mut Stage, turns: Turns) {
    let Turns { node, stop, thread } = turns;
    drop(stop);
    thread.join().expect("signals can be sent to a child");
    stage.busy.remove(&node);
}

pub(super) fn a_client(stage: &mut Stage) -> usize {
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

/// Cuts the power of so many nodes at once; `None` if not so many are idle.
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
