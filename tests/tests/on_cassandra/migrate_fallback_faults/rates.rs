//! Servers and clients whose clocks run at different rates, a tenth apart in all: the allowance that every deadline has.

use std::path::PathBuf;
use std::process::Command;

use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Stage as Nodes;
use holdfast_tests::cluster::Cluster;
use holdfast_tests::fallback::{NAMES, TABLES, World};
use holdfast_tests::history::{Record, What, read};
use holdfast_tests::program::Program;
use holdfast_tests::shim::{self, ClockRate};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::secs;

/// Parts per million: together a tenth apart.
const SLOW: u32 = 955_000;
const RIGHT: u32 = 1_000_000;
const FAST: u32 = 1_050_000;

fn shim() -> PathBuf {
    shim::built("shims/clockrate.c")
}

/// A process of the scope that works, with clocks of its own.
struct Worker {
    program: Program,
    history: PathBuf,
}

impl Worker {
    fn start(world: &World, folder: &TempDir, id: u32, ppm: u32) -> Self {
        let history = folder.path().join(id.to_string());
        let (recipe, number) = (format!("fallback@{}", world.cluster.endpoints()), id.to_string());
        let place = [&recipe, world.nodes.points(), world.nodes.keyspace(), "9", "3"];
        let task = [history.to_str().unwrap(), &number, "work"];
        let rate = ClockRate::from_now(ppm).variables();
        let mut variables: Vec<_> =
            rate.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let shim = shim();
        variables.push(("LD_PRELOAD", shim.to_str().unwrap()));
        let arguments = [&place[..], &task, &NAMES].concat();
        let program = Program::start_in("holdfast-cassandra-holder", &arguments, &variables);
        Self { program, history }
    }
}

/// The slow clients believe in their holds for too long, the fast ones wait too briefly before they take the others' locks, over to
/// Cassandra as well as back.
#[tokio::test]
#[ignore = "long: every change has simulated runs of scopes with such clocks (schedule switches)"]
async fn clocks_a_tenth_apart_never_make_two_holders() {
    let nodes = Nodes::set("faults_rates", &TABLES).await;
    let mut setup = World::setup(&nodes);
    setup.preload = vec![shim()];
    let mut cluster = Cluster::prepare(&setup);
    for (server, ppm) in [SLOW, RIGHT, FAST].into_iter().enumerate() {
        cluster.set_variables(server, ClockRate::from_now(ppm).variables());
        cluster.start_node(server);
    }
    cluster.leader().await;
    let mut world = World::of(nodes, cluster).await;
    let folder = tempfile::tempdir().unwrap();
    let rates = [SLOW, FAST, SLOW, FAST];
    let mut others: Vec<_> =
        (100..).zip(rates).map(|(id, ppm)| Worker::start(&world, &folder, id, ppm)).collect();
    for worker in &mut others {
        worker.program.line("ready", secs(30)).await;
    }
    // One client with the right clock, whose tokens are checked.
    let (workers, tokens) = (world.workers(1).await, world.tokens.clone());
    let clock = Runtime::system().clock;
    let switching = async {
        let native = tokens.above(0, 20).await;
        world.kill_all();
        let killed = clock.now();
        let fallen = tokens.above(native, 10).await;
        println!("Cassandra after {:.1?}", clock.now().saturating_since(killed));
        world.start_all();
        let started = clock.now();
        tokens.above(fallen, 10).await;
        println!("native again after {:.1?}", clock.now().saturating_since(started));
    };
    workers.work_during(switching).await;
    drop(workers);
    let mut histories = Vec::new();
    for worker in others {
        worker.program.signal(Signal::SIGTERM);
        let ended = worker.program.end(secs(40)).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        histories.push(read(&worker.history).unwrap());
    }
    let grants: Vec<usize> = histories.iter().map(|history| grants(history)).collect();
    println!("grants of {rates:?}: {grants:?}");
    assert!(grants.iter().all(|count| *count > 0), "{grants:?}");
    world.judge(histories);
}

fn grants(history: &[Record]) -> usize {
    let is_grant = |record: &&Record| matches!(record.what, What::Granted { .. });
    history.iter().filter(is_grant).count()
}

/// How far a clock advanced in a second or more, compared with the kernel's own count. Both are read again until no time passed between the
/// reads.
const MEASURE: &str = "
import time
def kernel(): return float(open('/proc/uptime').read().split()[0])
def both():
    while True:
        before, clock = kernel(), time.clock_gettime(time.CLOCK_BOOTTIME)
        if kernel() - before < 0.015: return before, clock
began = both()
time.sleep(1)
ended = both()
print((ended[1] - began[1]) / (ended[0] - began[0]))
";

#[test]
#[ignore = "long: with the test above, which alone needs it"]
fn the_shim_makes_a_process_see_another_rate() {
    let measured = |ppm| {
        let mut command = Command::new("python3");
        command.args(["-c", MEASURE]).env("LD_PRELOAD", shim());
        let output = command.envs(ClockRate::from_now(ppm).variables()).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().unwrap()
    };
    for (ppm, rate) in [(SLOW, 0.955), (RIGHT, 1.0), (FAST, 1.05)] {
        let seen = measured(ppm);
        assert!((seen - rate).abs() < 0.02, "{seen} instead of {rate}");
    }
}
