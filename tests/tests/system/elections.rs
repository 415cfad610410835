//! Elections: one leader at a time, each with a larger token, and observers who are told of each in order, while leaders
//! and servers die (I1, I3, I9).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast::{Client, Error, LeaderEvent, Leaders};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::{Program, run};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);
const ELECTION: &str = "scheduler";

async fn client(cluster: &Cluster) -> Client {
    let ttl = Duration::from_secs(2);
    Client::builder().endpoints(cluster.endpoints().split(',')).ttl(ttl).connect().await.unwrap()
}

async fn next(leaders: &mut Leaders) -> LeaderEvent {
    let next = Runtime::system().timeout(LIMIT, leaders.next()).await;
    next.unwrap().unwrap().unwrap()
}

/// The next leader's token and what it proclaims; nobody leads before.
async fn next_leader(leaders: &mut Leaders) -> (u64, String) {
    loop {
        match next(leaders).await {
            LeaderEvent::Leads(leader) => {
                let value = String::from_utf8(leader.value.to_vec()).unwrap();
                return (leader.holder.token.get(), value);
            }
            LeaderEvent::Nobody => {}
            other => panic!("nothing is missed: {other:?}"),
        }
    }
}

/// A candidate that proclaims its number.
fn candidate(endpoints: &str, number: usize) -> Program {
    let value = number.to_string();
    let arguments = ["--endpoints", endpoints, "elect", "--ttl", "2s", "--value", &value, ELECTION];
    let command = ["--", "sh", "-c", "echo token $HOLDFAST_TOKEN; exec sleep 1000"];
    Program::start("holdfast", &[&arguments[..], &command].concat())
}

#[tokio::test]
async fn leaders_and_servers_die_and_observers_are_told_of_each_leader_in_order() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    let endpoints = cluster.endpoints();
    let reader = Client::builder().endpoints(endpoints.split(',')).reader().unwrap();
    let mut leaders = reader.leaders(ELECTION);
    assert_eq!(next(&mut leaders).await, LeaderEvent::Nobody);
    let watch = ["--endpoints", &endpoints, "--json", "leader", "--watch", ELECTION];
    let told = Program::start("holdfast", &watch);

    let mut candidates = Vec::new();
    for number in 0..4 {
        candidates.push(candidate(&endpoints, number));
        // They stand in line in this order.
        waits_for(&reader, number).await;
    }
    let mut tokens = Vec::new();
    for (number, mut leads) in candidates.into_iter().enumerate() {
        let (token, value) = next_leader(&mut leaders).await;
        assert_eq!(value, number.to_string());
        let line = leads.line("token ", LIMIT).await;
        assert_eq!(line, token.to_string(), "who leads has the token that is told");
        let shown = run("holdfast", &["--endpoints", &endpoints, "leader", ELECTION]).await;
        assert_eq!((shown.code, shown.out.trim()), (Some(0), &*value), "{shown:?}");
        tokens.push(token);
        if number == 1 {
            let leader = cluster.leader().await;
            cluster.kill(leader);
            cluster.start_node(leader);
            cluster.all_ready().await;
        }
        // By turns it resigns, and dies.
        let signal = if number % 2 == 0 { Signal::SIGTERM } else { Signal::SIGKILL };
        leads.signal(signal);
        leads.end(LIMIT).await;
        assert_eq!(next(&mut leaders).await, LeaderEvent::Nobody);
    }
    assert!(tokens.is_sorted_by(|one, other| one < other), "{tokens:?}");
    let nobody = run("holdfast", &["--endpoints", &endpoints, "leader", ELECTION]).await;
    assert_eq!((nobody.code, nobody.out.as_str()), (Some(1), ""), "{nobody:?}");
    assert_eq!(told_by(told).await, tokens);
}

/// Waits until so many candidates stand behind the first.
async fn waits_for(reader: &holdfast::Reader, behind: usize) {
    let runtime = Runtime::system();
    let until = runtime.clock.now() + LIMIT;
    loop {
        let lock = reader.inspect(ELECTION).await.unwrap();
        let there = lock.map(|lock| (lock.held_by, lock.waiting));
        if there == Some((1, behind as u64)) {
            return;
        }
        assert!(runtime.clock.now() < until, "{behind} wait: {there:?}");
        runtime.sleep(Duration::from_millis(20)).await;
    }
}

/// The tokens of the leaders that `holdfast leader --watch` has told, each once.
async fn told_by(watch: Program) -> Vec<u64> {
    watch.signal(Signal::SIGINT);
    let ended = watch.end(LIMIT).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let events = ended.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let leads = events.filter(|event| event["event"] == "leads");
    leads
        .map(|event| event["leader"]["holder"]["token"].as_str().unwrap().parse().unwrap())
        .collect()
}

#[tokio::test]
async fn a_leader_proclaims_anew_and_the_next_one_sees_the_last_word() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let (one, two) = (client(&cluster).await, client(&cluster).await);
    let election = one.election(ELECTION);
    let mut leaders = election.observe();
    assert_eq!(next(&mut leaders).await, LeaderEvent::Nobody);
    assert_eq!(election.leader().await.unwrap(), None);

    let leadership = election.campaign("a").await.unwrap();
    assert!(leadership.predecessor().is_none() && leadership.is_safe());
    assert_eq!(next_leader(&mut leaders).await.1, "a");
    leadership.proclaim("b").await.unwrap();
    assert_eq!(next_leader(&mut leaders).await.1, "b");
    let shown = two.election(ELECTION).leader().await.unwrap().unwrap();
    assert_eq!((shown.value.as_ref(), shown.holder.token), (&b"b"[..], leadership.token()));
    let short = Duration::from_millis(100);
    let late = two.election(ELECTION).campaign("c").wait(short).await.unwrap_err();
    assert!(matches!(late, Error::NotGranted { .. }), "{late}");
    leadership.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, LeaderEvent::Nobody);

    let next_one = two.election(ELECTION).campaign("c").await.unwrap();
    let before = next_one.predecessor().unwrap();
    assert_eq!((before.bytes.as_ref(), before.is_suspect), (&b"b"[..], false));
}

/// Nobody is to be led by a candidate that cannot say where it is.
#[tokio::test]
async fn a_candidate_whose_value_is_refused_does_not_lead() {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    cluster.leader().await;
    let (one, two) = (client(&cluster).await, client(&cluster).await);

    let refused = one.election(ELECTION).campaign(vec![0; 5_000]).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let leadership = two.election(ELECTION).campaign("c").wait(LIMIT).await.unwrap();
    assert!(leadership.is_safe());

    let endpoints = cluster.endpoints();
    let long = "x".repeat(5_000);
    let arguments =
        ["--endpoints", &endpoints, "elect", "other", "--value", &long, "--", "echo", "leads"];
    let ended = run("holdfast", &arguments).await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(122), ""), "{ended:?}");
    assert!(ended.err.contains("4096 allowed"), "{ended:?}");
}
