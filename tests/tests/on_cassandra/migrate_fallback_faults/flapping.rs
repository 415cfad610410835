//! Servers that come and go, faster than a scope can follow.

use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Stage as Nodes;
use holdfast_tests::draw::Draw;
use holdfast_tests::fallback::{Lines, TABLES, World};
use holdfast_tests::fault::Line;

use super::{secs, sleep};

/// A fault that lasts for a while.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// All servers are dead.
    AllDead,
    /// The leader is dead.
    LeaderDead,
    /// The leader does not reach Cassandra.
    NoCassandra(Line),
    /// Clients do not reach the leader.
    NoClients(Line),
}

/// All servers die twice as often as any other fault: only then no other server can lead.
const FAULTS: [Fault; 7] = [
    Fault::AllDead,
    Fault::AllDead,
    Fault::LeaderDead,
    Fault::NoCassandra(Line::Silent),
    Fault::NoCassandra(Line::Cut),
    Fault::NoClients(Line::Silent),
    Fault::NoClients(Line::Cut),
];

impl Fault {
    async fn strike(self, world: &mut World, lines: &Lines) {
        if let Self::AllDead = self {
            return world.kill_all();
        }
        let leader = world.cluster.leader().await;
        match self {
            Self::AllDead => {}
            Self::LeaderDead => world.cluster.kill(leader),
            Self::NoCassandra(line) => lines.to_cassandra(leader, line),
            Self::NoClients(line) => lines.to_clients(leader, line),
        }
    }
}

fn mend(world: &mut World, lines: &Lines) {
    lines.mend();
    for server in 0..3 {
        if !world.cluster.runs(server) {
            world.cluster.start_node(server);
        }
    }
}

/// A fault every few seconds, of a kind and a length that the seed draws, for so long; then no fault is left, and the scope is served
/// natively as before.
async fn flap(keyspace: &'static str, length: Duration) {
    let seed = Runtime::system().rng.next_u64();
    println!("seed {seed}");
    let mut draw = Draw::new(seed);
    let nodes = Nodes::set(keyspace, &TABLES).await;
    let (lines, cluster) = Lines::start(&nodes).await;
    let mut world = World::of(nodes, cluster).await;
    let (workers, tokens) = (world.workers(6).await, world.tokens.clone());
    let flapping = Box::pin(async {
        let clock = Runtime::system().clock;
        tokens.more(20).await;
        let until = clock.now() + length;
        while clock.now() < until {
            let fault = draw.one_of(&FAULTS).unwrap();
            let lasts = Duration::from_millis(draw.between(1_000, 7_000));
            let rests = Duration::from_millis(draw.between(500, 6_000));
            println!("{fault:?} for {lasts:?}, then nothing for {rests:?}");
            fault.strike(&mut world, &lines).await;
            sleep(lasts).await;
            mend(&mut world, &lines);
            sleep(rests).await;
        }
        world.cluster.leader().await;
        world.row_is("native").await;
        tokens.more(20).await;
    });
    workers.work_during(flapping).await;
    drop(workers);
    world.judge(Vec::new());
    world.is_calm().await;
}

#[tokio::test]
#[ignore = "long: every change has simulated runs of scopes under these faults (schedule switches)"]
async fn servers_that_come_and_go_every_few_seconds_never_make_two_holders() {
    flap("faults_flapping", secs(15)).await;
}

#[tokio::test]
#[ignore = "long: two minutes"]
async fn servers_that_come_and_go_for_two_minutes_never_make_two_holders() {
    flap("faults_flapping_long", secs(120)).await;
}
