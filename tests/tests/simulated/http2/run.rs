//! A simulated run of a cluster over real HTTP/2: clients at work, and faults of the network and of hosts, all drawn from a seed.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use holdfast_server::raft::ReplicaConfig;
use holdfast_tests::check::Tally;
use holdfast_tests::draw::Draw;
use holdfast_tests::history::ClientId;
use holdfast_tests::traffic::{Mix, Plan, Worker};
use tokio::sync::watch;

use super::stage::{Desk, Settings, Stage, host_of_client, host_of_node};

const CLIENTS: u64 = 6;
const NODES: u64 = 3;
const NAMES: u64 = 6;
/// Faults of one run.
const FAULTS: u64 = 10;
/// How many connections may wait to be accepted. A client that is held off from a node retries several times a second, and all of these
/// attempts arrive when the link is mended: turmoil panics where a system would refuse.
const CONNECTIONS: usize = 4_096;
/// How long clients work on after the last fault.
const WORK_ON: Duration = Duration::from_secs(3);
/// The interval between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(200);
/// The client that comes after all others have finished.
const VISITOR: ClientId = ClientId(100);

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    /// The term at the end; the first is 1.
    pub(super) term: u64,
}

/// How a fault is mended.
enum Mend {
    Link(String, String),
    Node(u64),
    Process(u64),
    Power(u64),
}

/// Makes the run of this seed, and judges it.
pub(super) fn run(seed: u64) -> Outcome {
    let mut draw = Draw::new(seed);
    let mut stage = Stage::set(&settings(&mut draw, seed));
    let plan = Plan {
        names: NAMES,
        ttl: Duration::from_secs(draw.one_of(&[3, 5, 10]).unwrap_or(10)),
        hold: Duration::from_millis(200),
        within: Duration::from_secs(10),
        seed,
        mix: Mix::Everything,
        ..Plan::default()
    };
    let (stop, stopped) = watch::channel(false);
    let mut working = Vec::new();
    for number in 1..=CLIENTS {
        let (plan, stopped) = (plan.clone(), stopped.clone());
        let work = stage.begin(number, |desk| work(desk, plan, stopped));
        working.push((number, work));
    }
    stage.pass(Duration::from_secs(1));
    break_things(&mut stage, &mut draw);
    if draw.below(2) == 0 {
        let (dies, _) = working.swap_remove(0);
        stage.kill_client(dies);
    }
    stage.heal();
    stage.pass(WORK_ON);
    stop.send_replace(true);
    for (_, work) in working {
        stage.finish(&work);
    }
    stage.job(CLIENTS, visit);
    let term = stage.term();
    Outcome { tally: stage.verdict().tally, term }
}

fn settings(draw: &mut Draw, seed: u64) -> Settings {
    let replica = ReplicaConfig {
        snapshot_log_bytes: 256 * draw.between(20, 200),
        log_kept: draw.below(50),
        max_log_bytes: 64 << 10,
        reserve_bytes: 0,
        ..ReplicaConfig::new(0, Vec::new())
    };
    let latency_ms = (1, draw.between(2, 20));
    Settings { latency_ms, segments: CONNECTIONS, replica, ..Settings::new(seed, CLIENTS) }
}

/// Connects, asks and holds until it has to stop, and closes its session.
async fn work(desk: Desk, plan: Plan, stopped: watch::Receiver<bool>) {
    let scribe = loop {
        match desk.connect(plan.ttl).await {
            Ok(scribe) => break scribe,
            Err(_) if *stopped.borrow() => return,
            Err(_) => desk.runtime.sleep(AGAIN).await,
        }
    };
    let grants = Arc::new(AtomicU64::new(0));
    Worker::new(scribe.clone(), &plan, desk.number, &grants, &stopped).work().await;
    scribe.close().await;
}

/// Checks that every lock can be acquired.
async fn visit(desk: Desk) {
    let scribe = desk.connect_as(VISITOR, Duration::from_secs(10)).await.unwrap();
    for number in 0..NAMES {
        let name = format!("traffic/{number}");
        scribe.inspect(&name).await.unwrap();
        let held = scribe.lock(&name, Duration::from_secs(30)).await.unwrap();
        held.release().await.unwrap();
    }
    scribe.close().await;
}

/// Injects one fault after the other, some of them at once.
fn break_things(stage: &mut Stage, draw: &mut Draw) {
    let mut broken: Vec<(Duration, Mend)> = Vec::new();
    for _ in 0..FAULTS {
        let mend = strike(stage, draw);
        let lasts = Duration::from_millis(draw.between(20, 8_000));
        broken.extend(mend.map(|mend| (stage.elapsed() + lasts, mend)));
        stage.pass(Duration::from_millis(draw.between(100, 4_000)));
        let now = stage.elapsed();
        for (_, mend) in broken.extract_if(.., |(until, _)| *until <= now) {
            undo(stage, mend);
        }
    }
}

fn strike(stage: &mut Stage, draw: &mut Draw) -> Option<Mend> {
    // Half of the faults of nodes hit the leader.
    let any = draw.between(1, NODES);
    let node = stage.leader().filter(|_| draw.below(2) == 0).unwrap_or(any);
    let other = 1 + (node + draw.below(NODES - 1)) % NODES;
    let (at, peer) = (host_of_node(node), host_of_node(other));
    let client = host_of_client(draw.between(1, CLIENTS));
    match draw.below(11) {
        0 => stage.cut_off(node),
        1 => stage.hold_off(node),
        2..=4 if stage.is_down(node) => return None,
        2 => {
            stage.crash(node);
            return Some(Mend::Process(node));
        }
        3 => {
            stage.power_off(node);
            return Some(Mend::Power(node));
        }
        4 => {
            stage.stop(node);
            return Some(Mend::Process(node));
        }
        5 => return Some(pair(stage, Stage::cut, &at, &peer)),
        6 => return Some(pair(stage, Stage::hold, &at, &peer)),
        7 => return Some(pair(stage, Stage::cut_one_way, &at, &peer)),
        8 => return Some(pair(stage, Stage::cut, &client, &at)),
        9 => return Some(pair(stage, Stage::hold, &client, &at)),
        _ => return Some(pair(stage, Stage::cut_one_way, &at, &client)),
    }
    Some(Mend::Node(node))
}

fn pair(
    stage: &mut Stage,
    breaks: impl Fn(&mut Stage, &str, &str),
    one: &str,
    other: &str,
) -> Mend {
    breaks(stage, one, other);
    Mend::Link(one.to_owned(), other.to_owned())
}

fn undo(stage: &mut Stage, mend: Mend) {
    match mend {
        Mend::Link(one, other) => stage.mend(&one, &other),
        Mend::Node(id) => stage.join(id),
        Mend::Process(id) => stage.start(id),
        Mend::Power(id) => stage.power_on(id),
    }
}
