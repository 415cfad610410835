//! Members come and go while clients hold, wait and hand over; the command line that makes them
//! (DESIGN §7; I1, I3, I9, I19, I22, I32).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup, free_port};
use holdfast_tests::program::{Ended, Program};
use holdfast_tests::run::Run;
use holdfast_tests::traffic::Plan;
use serde_json::Value;

/// Longer than any command's own limit.
const LIMIT: Duration = Duration::from_mins(1);
/// How often a condition is checked before the test fails.
const LOOKS: usize = 300;

async fn pause() {
    Runtime::system().sleep(Duration::from_millis(100)).await;
}

fn begin(cluster: &Cluster, arguments: &[&str]) -> Program {
    let endpoints = cluster.endpoints();
    let asked = [&["--endpoints", &endpoints, "cluster"], arguments, &["--timeout", "30s"]];
    Program::start("holdfast", &asked.concat())
}

/// Runs `holdfast cluster …` to its end.
async fn holdfast(cluster: &Cluster, arguments: &[&str]) -> Ended {
    begin(cluster, arguments).end(LIMIT).await
}

/// Like [`holdfast`], expecting success.
async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let ended = holdfast(cluster, arguments).await;
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended.out
}

/// Like [`holdfast`], expecting a refusal with these words.
async fn refused(cluster: &Cluster, arguments: &[&str], words: &str) {
    let ended = holdfast(cluster, arguments).await;
    assert_eq!(ended.code, Some(122), "{arguments:?}: {ended:?}");
    assert!(ended.err.contains(words), "{arguments:?}: {ended:?}");
}

async fn add(cluster: &Cluster, index: usize) -> String {
    let node = &cluster.nodes()[index];
    let id = node.id.to_string();
    let addresses = ["--advertise", &node.listen, "--peer-advertise", &node.peer_listen];
    done(cluster, &[&["add", &id], &addresses[..]].concat()).await
}

/// Makes a learner a voter as soon as it has caught up.
async fn promote(cluster: &Cluster, id: u64) {
    for _ in 0..LOOKS {
        let ended = holdfast(cluster, &["promote", &id.to_string()]).await;
        match ended.code {
            Some(0) => return,
            Some(122) if ended.err.contains("behind") || ended.err.contains("answer") => {
                pause().await;
            }
            _ => panic!("{ended:?}"),
        }
    }
    panic!("node {id} never caught up");
}

async fn join(cluster: &mut Cluster, id: u64) -> usize {
    let index = cluster.prepare_joining(id);
    cluster.start_node(index);
    until_logged(cluster, index, "waits to be added").await;
    add(cluster, index).await;
    promote(cluster, id).await;
    index
}

async fn until_logged(cluster: &Cluster, index: usize, words: &str) {
    for _ in 0..LOOKS {
        if cluster.log(index).contains(words) {
            return;
        }
        pause().await;
    }
    panic!("node {} never said {words:?}: {}", cluster.nodes()[index].id, cluster.log(index));
}

async fn status(cluster: &Cluster) -> Value {
    let out = done(cluster, &["status", "--json"]).await;
    serde_json::from_str(&out).expect("it is JSON")
}

/// The members by id, each with its role.
async fn roles(cluster: &Cluster) -> Vec<(u64, String)> {
    let status = status(cluster).await;
    let members = status["members"].as_array().expect("a list");
    let role = |member: &Value| {
        (member["node"].as_u64().unwrap(), member["role"].as_str().unwrap().to_owned())
    };
    members.iter().map(role).collect()
}

/// The history of a cluster: it grows, the new member leads, the old leader is removed, another one
/// dies with its disk and is replaced. A hundred clients go on meanwhile, holds that were
/// acknowledged at the start are there after each step, and the history is judged.
#[tokio::test]
async fn clients_hold_wait_and_hand_over_while_members_come_lead_go_and_die() {
    let setup = Setup::nodes(3).node("snapshot_log_bytes", 64 << 10);
    let mut run = Run::start(&setup, &Plan::default()).await;
    let first = run.cluster.leader().await;

    run.fault("node 4 joins");
    let new = join(&mut run.cluster, 4).await;
    run.serves().await;
    run.nothing_lost().await;

    run.fault("node 4 leads");
    assert_eq!(done(&run.cluster, &["transfer-leader", "4"]).await, "node 4 leads\n");
    assert_eq!(run.cluster.leader().await, new);
    run.serves().await;
    // Leadership goes back, so that the test removes a leader that formed the cluster.
    let first_id = run.cluster.nodes()[first].id.to_string();
    done(&run.cluster, &["transfer-leader", &first_id]).await;
    run.serves().await;

    run.fault("the leader is removed");
    done(&run.cluster, &["remove", &first_id]).await;
    let ended = run.cluster.wait_for_exit(first).await;
    assert_eq!(ended.code(), Some(77), "{}", run.cluster.log(first));
    run.serves().await;
    run.nothing_lost().await;

    let leader = run.cluster.leader().await;
    let dies = (0..3).find(|index| *index != first && *index != leader).unwrap();
    let dead_id = run.cluster.nodes()[dies].id;
    run.kill(&[dies]);
    run.serves().await;
    std::fs::remove_dir_all(&run.cluster.nodes()[dies].data).unwrap();
    run.cluster.start_node(dies);
    let wiped = run.cluster.wait_for_exit(dies).await;
    assert_eq!(wiped.code(), Some(73), "{}", run.cluster.log(dies));
    let words = format!("holdfast cluster remove {dead_id}");
    assert!(run.cluster.log(dies).contains(&words), "{}", run.cluster.log(dies));

    run.fault("the dead one is replaced by node 5");
    done(&run.cluster, &["remove", &dead_id.to_string()]).await;
    join(&mut run.cluster, 5).await;
    run.serves().await;
    run.nothing_lost().await;

    let votes: Vec<u64> = roles(&run.cluster).await.into_iter().map(|(id, _)| id).collect();
    let stayed = 6 - dead_id - first_id.parse::<u64>().unwrap();
    assert_eq!(votes, [stayed, 4, 5]);
    let report = run.heal_and_judge().await;
    assert!(report.tally.grants >= 1_000 && report.tally.waits >= 100, "{report}");
}

/// The command line finds the next leader and repeats its request; a half-done change is finished.
#[tokio::test]
async fn a_leader_killed_in_the_middle_of_a_change_leaves_a_cluster_that_takes_it_again() {
    let setup = Setup::nodes(3).node("snapshot_log_bytes", 64 << 10);
    let mut run = Run::start(&setup, &Plan { clients: 40, ..Plan::default() }).await;

    for (id, after_ms) in [(4, 20), (5, 40)] {
        let index = run.cluster.prepare_joining(id);
        run.cluster.start_node(index);
        until_logged(&run.cluster, index, "waits to be added").await;
        add(&run.cluster, index).await;
        let leader = run.cluster.leader().await;

        let change = begin(&run.cluster, &["promote", &id.to_string()]);
        Runtime::system().sleep(Duration::from_millis(after_ms)).await;
        run.kill(&[leader]);
        run.serves().await;
        run.start_again(&[leader]);
        let ended = change.end(LIMIT).await;
        assert!(matches!(ended.code, Some(0 | 122 | 123)), "{ended:?}");
        promote(&run.cluster, id).await;
        run.nothing_lost().await;

        let roles = roles(&run.cluster).await;
        assert!(roles.len() == 4 && roles.iter().all(|(_, role)| role != "learner"), "{roles:?}");
        done(&run.cluster, &["remove", &id.to_string()]).await;
        assert_eq!(run.cluster.wait_for_exit(index).await.code(), Some(77));
    }

    run.heal_and_judge().await;
}

#[tokio::test]
async fn the_command_line_shows_the_members_and_refuses_what_makes_no_sense() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let leader = cluster.leader().await;

    let table = done(&cluster, &["status"]).await;
    let heading = format!("node {} leads, a quorum answers", cluster.nodes()[leader].id);
    assert!(table.contains(&heading) && table.contains("id is 4 or above"), "{table}");
    assert_eq!(status(&cluster).await["highest_node_id"], 3);

    let nowhere = format!("127.0.0.1:{}", free_port());
    let at = |advertise: &'static str| ["add", "4", "--advertise", advertise, "--peer-advertise"];
    let nobody = [&at("node-4:7420")[..], &[&nowhere]].concat();
    refused(&cluster, &nobody, "does not answer").await;
    refused(&cluster, &[&at("node-4")[..], &[&nowhere]].concat(), "`node-4`").await;
    refused(&cluster, &["promote", "9"], "node 9 is no member").await;
    refused(&cluster, &["remove", "9"], "node 9 is no member").await;
    refused(&cluster, &["transfer-leader", "9"], "node 9 is no member").await;
    let other = ["add", "2", "--advertise", "a:1", "--peer-advertise", "b:1"];
    refused(&cluster, &other, "node 2 is a member already").await;
    let peer = cluster.nodes()[1].peer_listen.clone();
    refused(&cluster, &[&at("node-4:7420")[..], &[&peer]].concat(), "node 2's").await;
    for wrong in [&["promote", "0"][..], &["promote", "four"], &["add", "4"], &["frobnicate"]] {
        assert_eq!(holdfast(&cluster, wrong).await.code, Some(125), "{wrong:?}");
    }
    let unreached = ["--endpoints", &nowhere, "cluster", "status", "--timeout", "500ms", "--json"];
    let ended = Program::start("holdfast", &unreached).end(LIMIT).await;
    assert_eq!(ended.code, Some(123), "{ended:?}");
    assert!(ended.err.contains("\"exit_code\":123"), "{ended:?}");

    // A node that forms a cluster instead of joining is refused.
    let forms = cluster.prepare_joining(4);
    let config = cluster.nodes()[forms].config.clone();
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("join = true", "join = false")).unwrap();
    cluster.start_node(forms);
    let ended = cluster.wait_for_exit(forms).await;
    assert_eq!(ended.code(), Some(73), "{}", cluster.log(forms));
    std::fs::write(&config, text).unwrap();
    cluster.start_node(forms);
    until_logged(&cluster, forms, "holdfast cluster add 4 --advertise").await;

    // Added twice, and a learner that is asked to lead.
    assert!(add(&cluster, forms).await.contains("holdfast cluster promote 4"));
    add(&cluster, forms).await;
    refused(&cluster, &["transfer-leader", "4"], "promote it first").await;
    assert_eq!(done(&cluster, &["remove", "4"]).await, "node 4 is no member any more\n");
    assert_eq!(done(&cluster, &["remove", "4"]).await, "node 4 is no member any more\n");
    assert_eq!(cluster.wait_for_exit(forms).await.code(), Some(77));
    let node = &cluster.nodes()[forms];
    let addresses = ["--advertise", &node.listen, "--peer-advertise", &node.peer_listen];
    let again = [&["add", "4"], &addresses[..]].concat();
    refused(&cluster, &again, "start the node with id 5 or above").await;
    // Also when it comes back with an empty folder, waiting to be added.
    std::fs::remove_dir_all(&cluster.nodes()[forms].data).unwrap();
    cluster.start_node(forms);
    assert_eq!(cluster.wait_for_exit(forms).await.code(), Some(78), "{}", cluster.log(forms));
}

#[tokio::test]
async fn of_two_changes_at_once_one_is_made_and_the_other_can_be_asked_for_again() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    for id in [4, 5] {
        let index = cluster.prepare_joining(id);
        cluster.start_node(index);
        until_logged(&cluster, index, "waits to be added").await;
        add(&cluster, index).await;
    }

    for _ in 0..3 {
        let both = [begin(&cluster, &["promote", "4"]), begin(&cluster, &["promote", "5"])];
        for change in both {
            let ended = change.end(LIMIT).await;
            let good = ended.code == Some(0)
                || ended.code == Some(122)
                    && ["under way", "behind", "answer"].iter().any(|why| ended.err.contains(why));
            assert!(good, "{ended:?}");
        }
    }
    for id in [4, 5] {
        promote(&cluster, id).await;
    }

    assert_eq!(roles(&cluster).await.len(), 5);
    assert!(roles(&cluster).await.iter().all(|(_, role)| role != "learner"));
}

/// Started without `members`, a node has no peer port, and nobody could vote with it.
#[tokio::test]
async fn a_node_without_a_peer_port_is_not_joined_and_says_what_is_missing() {
    let mut cluster = Cluster::start(&Setup::nodes(1)).await;
    let index = cluster.prepare_joining(2);
    cluster.start_node(index);
    until_logged(&cluster, index, "waits to be added").await;

    let node = &cluster.nodes()[index];
    let addresses = ["--advertise", &node.listen, "--peer-advertise", &node.peer_listen];
    refused(&cluster, &[&["add", "2"], &addresses[..]].concat(), "peer_advertise").await;

    assert_eq!(roles(&cluster).await, [(1, "leader".to_owned())]);
}
