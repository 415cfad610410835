//! Sessions on a thread of their own, and on Raft's: the same service, and locks that both threads take in
//! one order.

use holdfast_proto::v1::ListRequest;
use tokio::task::JoinSet;

use super::*;

/// Sessions that work at once, and what each of them does how often.
const SESSIONS: usize = 16;
const ROUNDS: u64 = 20;

/// One session: opened, resumed, and in between locks that others want, keepalives and reads.
async fn works(address: SocketAddr, number: usize) {
    let mut stream = Stream::open(address).await;
    let opened = stream.answer(|body| matches!(body, ServerBody::Opened(_))).await;
    let ServerBody::Opened(opened) = opened else { panic!("{opened:?}") };
    let mut client = LockServiceClient::new(channel(address).await);
    for round in 1..=ROUNDS {
        let token = stream.acquires("jobs/hot", 2 * round - 1).await;
        let own = stream.acquires(&format!("jobs/{number}"), 2 * round).await;
        stream.keeps_alive().await;
        let list = ListRequest { prefix: "jobs/".to_owned(), ..ListRequest::default() };
        assert!(!client.list(list).await.unwrap().into_inner().locks.is_empty());
        stream.releases(token).await;
        stream.releases(own).await;
        if round % 5 == 0 {
            stream = Stream::resume(address, resume_of(&opened)).await;
            stream.is_opened().await;
        }
    }
}

fn resume_of(opened: &holdfast_proto::v1::Opened) -> Resume {
    Resume {
        session_id: opened.session_id,
        secret: opened.secret.clone(),
        cluster_id: opened.cluster_id.clone(),
        state_in_pages: true,
        ..Resume::default()
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "real processes live in real time")]
async fn many_sessions_work_at_once_on_either_thread_and_the_node_stops_in_order() {
    for thread in ["own", "shared"] {
        let mut node = Setup::new().flags(&["--session-thread", thread]).starts();
        let mut tasks = JoinSet::new();
        for number in 0..SESSIONS {
            tasks.spawn(works(node.setup.listen, number));
        }
        let admin = node.setup.admin_listen;
        let scraped = tokio::task::spawn_blocking(move || {
            (0..50).filter_map(|_| get(admin, "/metrics")).count()
        });
        let work = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
        tokio::time::timeout(2 * PATIENCE, work).await.expect("the node stands still");
        assert_eq!(scraped.await.unwrap(), 50, "{thread}");

        let has_thread = std::fs::read_dir(format!("/proc/{}/task", node.process_id())).unwrap();
        let mut names = has_thread.map(|task| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        });
        // The system cuts names off after 15 bytes.
        assert_eq!(names.any(|name| name.starts_with("holdfast-sessio")), thread == "own");
        node.signal(Signal::SIGTERM);
        assert_eq!(node.ends().code(), Some(0), "{thread}");
    }
}

/// I31: the members elect a leader, and its sessions are served on their own thread.
#[tokio::test]
async fn sessions_on_their_own_thread_follow_a_change_of_leader() {
    let folder = TempDir::new().unwrap();
    let mut nodes = cluster_in(folder.path(), 3, &["--session-thread", "own"]);
    let leader = eventually(|| nodes.iter().position(leads)).unwrap();
    let mut stream = Stream::open(nodes[leader].setup.listen).await;
    let opened = stream.answer(|body| matches!(body, ServerBody::Opened(_))).await;
    let ServerBody::Opened(opened) = opened else { panic!("{opened:?}") };
    let token = stream.acquires("jobs", 1).await;
    nodes.remove(leader);

    let next = eventually(|| nodes.iter().position(leads)).unwrap();
    let mut stream = Stream::resume(nodes[next].setup.listen, resume_of(&opened)).await;
    stream.is_opened().await;
    stream.keeps_alive().await;
    stream.releases(token).await;
}
