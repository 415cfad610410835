//! One address is enough: clients that can reach no node by its own address, behind a load balancer that spreads their
//! connections over all of them (DESIGN §15).

use std::time::Duration;

use holdfast_tests::admin::metric;
use holdfast_tests::balancer::Balancer;
use holdfast_tests::cluster::{Cluster, Place, Setup};
use holdfast_tests::program::Program;
use holdfast_tests::run::Run;
use holdfast_tests::traffic::{Mix, Plan};

const LIMIT: Duration = Duration::from_secs(30);

/// Three nodes that clients are told to reach where nothing is.
async fn hidden() -> Cluster {
    let nowhere = |number: u8| {
        let place = Place::on_loopback();
        Place { advertise: format!("127.7.0.{number}:7"), ..place }
    };
    let places = (1..=3).map(nowhere).collect();
    Cluster::start(&Setup { places, ..Setup::nodes(3) }).await
}

fn listens(cluster: &Cluster) -> Vec<String> {
    cluster.nodes().iter().map(|node| node.listen.clone()).collect()
}

/// I1, I9, I31: a relay adds delay, never belief.
#[tokio::test]
async fn three_nodes_behind_a_load_balancer_serve_while_each_of_them_dies() {
    let cluster = hidden().await;
    let balancer = Balancer::start(listens(&cluster)).await.unwrap();
    let plan = Plan { clients: 60, mix: Mix::Everything, ..Plan::default() };
    let mut run = Run::on(cluster, &plan, balancer.address()).await;
    let leader = run.cluster.leader().await;
    let mut passed_on = 0;
    for node in run.cluster.nodes() {
        passed_on += metric(&node.admin_listen, "forwarded_calls_open").await;
    }
    // The others got through to the leader.
    assert!(passed_on >= 20, "{passed_on} sessions are passed on");

    let follower = (leader + 1) % 3;
    for dies in [follower, leader] {
        run.kill(&[dies]);
        run.serves().await;
        run.nothing_lost().await;
        run.start_again(&[dies]);
        run.cluster.all_ready().await;
        run.serves().await;
    }
    let leader = run.cluster.leader().await;
    run.restart(leader).await;
    run.nothing_lost().await;

    let report = run.heal_and_judge().await;
    assert!(report.tally.grants >= 1_000 && report.tally.waits >= 100, "{report}");
}

async fn holdfast(endpoints: &str, arguments: &[&str]) -> String {
    let all = [&["--endpoints", endpoints], arguments].concat();
    let ended = Program::start("holdfast", &all).end(LIMIT).await;
    assert_eq!(ended.code, Some(0), "{arguments:?}: {}{}", ended.out, ended.err);
    ended.out
}

/// Each command of an operator, at each node alone.
#[tokio::test]
async fn every_command_works_at_any_node() {
    let cluster = hidden().await;
    let folder = cluster.folder().to_owned();
    for (number, listen) in listens(&cluster).iter().enumerate() {
        let out = holdfast(listen, &["lock", "jobs/1", "--", "echo", "held"]).await;
        assert_eq!(out, "held\n");
        holdfast(listen, &["inspect", "jobs/1"]).await;
        holdfast(listen, &["list"]).await;
        let status = holdfast(listen, &["cluster", "status"]).await;
        assert!(status.contains("127.7.0.3:7"), "{status}");
        let backup = folder.join(format!("backup-{number}"));
        holdfast(listen, &["cluster", "backup", &backup.display().to_string()]).await;
        holdfast(listen, &["backup", "verify", &backup.display().to_string()]).await;
    }
    let leader = cluster.leader().await;
    let follower = listens(&cluster)[(leader + 1) % 3].clone();
    let to = (leader + 2) % 3 + 1;
    holdfast(&follower, &["cluster", "transfer-leader", &to.to_string()]).await;
    assert_eq!(cluster.leader().await + 1, to);
}

#[tokio::test]
async fn a_name_stands_for_every_address_that_it_has() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let (_, port) = cluster.nodes()[0].listen.rsplit_once(':').unwrap();
    // Nothing listens at the name's other address, ::1, if it has one.
    let endpoint = format!("dns:///localhost:{port}");
    for _ in 0..4 {
        let out = holdfast(&endpoint, &["lock", "jobs/1", "--", "echo", "held"]).await;
        assert_eq!(out, "held\n");
    }
}

/// A node knows who connects to its socket, and says so to the leader.
#[tokio::test]
async fn a_user_of_a_nodes_machine_is_the_same_at_the_leader() {
    let user = format!("uid:{}", rustix::process::getuid().as_raw());
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::nodes(3).cluster("admins", format!("{:?}", [&user]));
    let mut cluster = Cluster::prepare(&setup);
    let socket =
        |index: usize| folder.path().join(format!("node-{index}.sock")).display().to_string();
    for index in 0..3 {
        let variable = ("HOLDFAST_UNIX_SOCKET".to_owned(), socket(index));
        cluster.set_variables(index, vec![variable]);
        cluster.start_node(index);
    }
    cluster.all_ready().await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;

    let here = format!("unix:{}", socket(follower));
    holdfast(&here, &["auth", "enable"]).await;
    holdfast(&here, &["lock", "jobs/1", "--", "true"]).await;
    let expected = format!("by={user} from the Unix socket, user ");
    let act = |line: &str| {
        line.contains(&expected) && line.contains(&format!("through node {}", follower + 1))
    };
    let log = cluster.log(leader);
    assert!(log.lines().any(act), "no act of {expected} through node {} in {log}", follower + 1);
    // Over the network the same user is nobody.
    let nobody = ["--endpoints", &cluster.nodes()[follower].listen, "list"];
    let ended = Program::start("holdfast", &nobody).end(LIMIT).await;
    assert_eq!(ended.code, Some(122), "{ended:?}");
}
