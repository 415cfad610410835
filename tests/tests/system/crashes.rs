//! Nodes are killed, restarted and cut off from power while a hundred clients hold, wait and
//! release: no acknowledged hold or place is lost, tokens never repeat, no client is forgotten, and
//! no two clients are safe at once (I1, I3, I9, I10, I12, I15, I19, I23, I31, I32).

use holdfast_tests::check::Report;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::run::Run;
use holdfast_tests::traffic::Plan;

/// A verdict on too few events would prove nothing.
#[expect(clippy::print_stdout, reason = "how much was looked at belongs into the test's output")]
fn assert_enough(report: &Report, grants: usize) {
    let tally = report.tally;
    println!("{report}");
    assert!(tally.grants >= grants && tally.safe_holds >= grants / 2, "{tally:?}");
    assert!(tally.waits >= grants / 10 && tally.states >= 2, "{tally:?}");
    assert!(tally.reads >= grants / 20, "{tally:?}");
}

async fn three_nodes() -> Run {
    Run::start(&Setup::nodes(3), &Plan::default()).await
}

async fn three_nodes_with_power() -> Run {
    Run::start(&Setup::nodes(3).with_power_cuts(), &Plan::default()).await
}

async fn one_node(setup: Setup) -> Run {
    Run::start(&setup, &Plan { clients: 40, ..Plan::default() }).await
}

#[tokio::test]
async fn a_leader_killed_twice_under_load_loses_nothing_acknowledged() {
    let mut run = three_nodes().await;

    for _ in 0..2 {
        let leader = run.cluster.leader().await;
        run.kill(&[leader]);
        run.serves().await;
        run.nothing_lost().await;
        run.start_again(&[leader]);
        run.cluster.all_ready().await;
    }

    assert_enough(&run.heal_and_judge().await, 800);
}

#[tokio::test]
async fn nodes_restarted_one_after_the_other_under_load_lose_nothing_acknowledged() {
    let mut run = three_nodes().await;

    for index in 0..3 {
        run.restart(index).await;
        run.serves().await;
    }
    run.nothing_lost().await;

    assert_enough(&run.heal_and_judge().await, 800);
}

#[tokio::test]
async fn all_nodes_killed_at_once_under_load_lose_nothing_acknowledged() {
    let mut run = three_nodes().await;

    run.kill(&[0, 1, 2]);
    run.start_again(&[0, 1, 2]);
    run.serves().await;
    run.nothing_lost().await;

    assert_enough(&run.heal_and_judge().await, 600);
}

#[tokio::test]
async fn a_single_node_killed_under_load_loses_nothing_acknowledged() {
    let mut run = one_node(Setup::nodes(1)).await;

    for _ in 0..2 {
        run.kill(&[0]);
        run.start_again(&[0]);
        run.serves().await;
        run.nothing_lost().await;
    }

    assert_enough(&run.heal_and_judge().await, 600);
}

#[tokio::test]
async fn a_leader_frozen_under_load_and_thawed_changes_nothing_acknowledged() {
    let mut run = three_nodes().await;

    let leader = run.cluster.leader().await;
    run.fault("freeze");
    run.cluster.freeze(leader);
    run.cluster.leader_among(|index| index != leader).await;
    run.serves().await;
    run.cluster.thaw(leader);
    run.serves().await;
    run.nothing_lost().await;

    assert_enough(&run.heal_and_judge().await, 600);
}

#[tokio::test]
async fn a_leader_without_power_loses_nothing_acknowledged() {
    let mut run = three_nodes_with_power().await;

    let leader = run.cluster.leader().await;
    run.cut_power(&[leader]).await;
    run.serves().await;
    run.nothing_lost().await;
    run.start_again(&[leader]);
    run.cluster.all_ready().await;

    assert_enough(&run.heal_and_judge().await, 600);
}

#[tokio::test]
async fn a_minority_without_power_loses_nothing_acknowledged() {
    let mut run = three_nodes_with_power().await;

    for _ in 0..2 {
        let leader = run.cluster.leader().await;
        let follower = (leader + 1) % 3;
        run.cut_power(&[follower]).await;
        run.serves().await;
        run.start_again(&[follower]);
        run.cluster.all_ready().await;
    }
    run.nothing_lost().await;

    assert_enough(&run.heal_and_judge().await, 800);
}

#[tokio::test]
async fn all_nodes_without_power_at_once_lose_nothing_acknowledged() {
    let mut run = three_nodes_with_power().await;

    for _ in 0..2 {
        run.cut_power(&[0, 1, 2]).await;
        run.start_again(&[0, 1, 2]);
        run.serves().await;
        run.nothing_lost().await;
    }

    assert_enough(&run.heal_and_judge().await, 600);
}

#[tokio::test]
async fn a_single_node_without_power_loses_nothing_acknowledged() {
    let mut run = one_node(Setup::nodes(1).with_power_cuts()).await;

    for _ in 0..2 {
        run.cut_power(&[0]).await;
        run.start_again(&[0]);
        run.serves().await;
        run.nothing_lost().await;
    }

    assert_enough(&run.heal_and_judge().await, 600);
}

/// L1 of the safety review: nothing else would end the node, and its supervisor would take it for
/// started.
#[tokio::test]
async fn a_node_whose_disk_hangs_when_it_starts_ends_by_itself_and_says_where() {
    const DISK_HANGS: i32 = 75;
    let setup = Setup::nodes(1).with_power_cuts().node("disk_stall_ms", 1_000);
    let mut cluster = Cluster::start(&setup).await;
    cluster.kill(0);
    let disk = cluster.folder().join("disk-is");
    std::fs::write(&disk, "hang").unwrap();
    cluster.set_variables(0, vec![("LOSTWRITE_DISK".to_owned(), disk.display().to_string())]);

    cluster.start_node(0);
    let status = cluster.wait_for_exit(0).await;

    let log = cluster.log(0);
    let last = log.lines().last().unwrap_or_default();
    assert_eq!(status.code(), Some(DISK_HANGS), "{last}");
    assert!(last.contains("cannot create and lock ") && last.contains("1000 ms"), "{last}");
}
