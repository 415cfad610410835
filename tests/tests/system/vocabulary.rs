//! Every kind of request, while nodes are killed and cut off from power: readers beside readers,
//! sets, those of several names that are free, releases of single names, values that are set,
//! cleared, confirmed and suspect (I2, I3, I9, I13, I14, I19, I24).
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast_tests::check::Report;
use holdfast_tests::cluster::{Node, Setup};
use holdfast_tests::history::{Change, ClientId, What};
use holdfast_tests::run::Run;
use holdfast_tests::traffic::{Mix, Plan, Scribe, Wish};
use holdfast_tests::wire::Wire;

/// Enough names that a set of four gets its turn, few enough that clients meet.
const NAMES: u64 = 16;
/// Lease of a client that dies, milliseconds.
const DOOMED_TTL_MS: u64 = 3_000;
/// Ids of those clients in the history; the heir's is the one after them.
const DOOMED: u64 = 2_000_000;
/// The number of clients that die.
const DEATHS: u64 = 3;
/// Longest wait for a lock whose holder died, over the worst of faults.
const INHERITED_WITHIN: Duration = Duration::from_secs(40);

fn plan(clients: u64) -> Plan {
    let (names, mix) = (NAMES, Mix::Everything);
    Plan {
        clients,
        names,
        mix,
        permits: true,
        head_starts: true,
        floors: true,
        seed: 4,
        ..Plan::default()
    }
}

/// So few names that each has a long queue, and sets meet.
fn crowded(seed: u64) -> Plan {
    Plan { names: 6, seed, ..plan(60) }
}

/// A verdict on too few events would prove nothing: so much of each kind has to have been checked.
#[expect(clippy::print_stdout, reason = "how much was looked at belongs into the test's output")]
fn assert_enough(report: &Report) {
    println!("{report}");
    let tally = report.tally;
    let kinds = [
        (tally.grants, 600),
        (tally.safe_holds, 600),
        (tally.waits, 60),
        (tally.reads, 30),
        (tally.states, 4),
        (tally.shared, 100),
        (tally.together, 20),
        (tally.permits_beside, 20),
        (tally.overtakes, 20),
        (tally.sets, 50),
        (tally.anys, 50),
        (tally.released_in_part, 30),
        (tally.writes, 100),
        (tally.values_seen, 100),
        (tally.suspects, usize::try_from(DEATHS).unwrap()),
    ];
    for (number, (found, wanted)) in kinds.into_iter().enumerate() {
        assert!(found >= wanted, "number {number}: {found} of {wanted}: {tally:?}");
    }
}

/// Clients take a lock each, leave a value in it and fall silent for good.
async fn die_holding(run: &Run) {
    let leader = run.cluster.leader().await;
    let address = &run.cluster.nodes()[leader].listen;
    for number in 0..DEATHS {
        let id = ClientId(DOOMED + number);
        let mut wire = Wire::dial(address).await.unwrap().recorded(run.recorder.clone(), id);
        wire.begin(DOOMED_TTL_MS).await;
        let name = doomed(number);
        wire.acquire(1, &name, true).await;
        let token = wire.granted(1).await;
        wire.set_value(2, token, &name, b"half done").await;
        wire.value_set(2).await;
        run.recorder.write(id, What::Killed);
    }
}

fn doomed(number: u64) -> String {
    format!("doomed/{number}")
}

/// One client takes over the locks of the dead ones, confirms some of the values and replaces the
/// others, and looks at them again. The judge knows what it has to see.
async fn inherit(run: &Run) {
    let (endpoints, id) = (run.cluster.endpoints(), ClientId(DOOMED + DEATHS));
    let ttl = Duration::from_secs(10);
    let heir = Scribe::connect(&endpoints, ttl, id, run.recorder.clone()).await.unwrap();
    for number in 0..DEATHS {
        let name = doomed(number);
        let held = heir.lock(&name, INHERITED_WITHIN).await.unwrap();
        let change = match number % 2 {
            0 => Change::Confirm,
            _ => Change::Set("done".into()),
        };
        held.change_value(&name, change).await.unwrap();
        held.release().await.unwrap();
        let held = heir.acquire(&Wish::shared(&name), INHERITED_WITHIN).await.unwrap();
        held.release().await.unwrap();
    }
    heir.close().await;
}

/// Whether the node has made a snapshot, besides the empty one it may have begun with.
fn has_a_snapshot(node: &Node) -> bool {
    let mut files = std::fs::read_dir(node.data.join("snapshots")).unwrap();
    files.any(|file| file.unwrap().file_name().as_encoded_bytes().starts_with(b"0"))
}

/// The end of every run.
async fn judge(run: Run) {
    inherit(&run).await;
    assert!(run.cluster.nodes().iter().all(has_a_snapshot), "snapshots were made");
    assert_enough(&run.heal_and_judge().await);
}

/// Snapshots are so frequent that nodes restart from one, and not from the log alone.
async fn start(setup: Setup, plan: &Plan) -> Run {
    let run = Run::start(&setup.node("snapshot_log_bytes", 20 << 10), plan).await;
    die_holding(&run).await;
    run
}

#[tokio::test]
async fn a_leader_killed_twice_loses_no_reader_set_or_value() {
    let mut run = start(Setup::nodes(3), &plan(60)).await;

    for _ in 0..2 {
        let leader = run.cluster.leader().await;
        run.kill(&[leader]);
        run.serves().await;
        run.nothing_lost().await;
        run.start_again(&[leader]);
        run.cluster.all_ready().await;
    }

    judge(run).await;
}

#[tokio::test]
async fn all_nodes_killed_at_once_lose_no_reader_set_or_value() {
    let mut run = start(Setup::nodes(3), &plan(60)).await;

    run.kill(&[0, 1, 2]);
    run.start_again(&[0, 1, 2]);
    run.serves().await;
    run.nothing_lost().await;

    judge(run).await;
}

#[tokio::test]
async fn all_nodes_without_power_at_once_lose_no_reader_set_or_value() {
    let mut run = start(Setup::nodes(3).with_power_cuts(), &plan(60)).await;

    for _ in 0..2 {
        run.cut_power(&[0, 1, 2]).await;
        run.start_again(&[0, 1, 2]);
        run.serves().await;
        run.nothing_lost().await;
    }

    judge(run).await;
}

#[tokio::test]
async fn a_single_node_killed_twice_loses_no_reader_set_or_value() {
    let mut run = start(Setup::nodes(1), &plan(40)).await;

    for _ in 0..2 {
        run.kill(&[0]);
        run.start_again(&[0]);
        run.serves().await;
        run.nothing_lost().await;
    }

    judge(run).await;
}

#[tokio::test]
#[ignore = "a long run"]
async fn many_kills_of_every_kind_lose_no_reader_set_or_value() {
    for seed in 10..14 {
        let mut run = start(Setup::nodes(3).with_power_cuts(), &crowded(seed)).await;
        for _ in 0..3 {
            let leader = run.cluster.leader().await;
            let follower = (leader + 1) % 3;
            run.kill(&[leader]);
            run.serves().await;
            run.start_again(&[leader]);
            run.cut_power(&[follower]).await;
            run.serves().await;
            run.start_again(&[follower]);
            run.cluster.all_ready().await;
            let leader = run.cluster.leader().await;
            run.restart(leader).await;
            run.nothing_lost().await;
            run.cut_power(&[0, 1, 2]).await;
            run.start_again(&[0, 1, 2]);
            run.serves().await;
            run.nothing_lost().await;
        }
        judge(run).await;
    }
}
