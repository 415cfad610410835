//! More connections than the process may open files, and no files at all: clients that are served
//! stay served, the members reach each other, snapshots are written, and no core is spent on it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use holdfast_runtime::Runtime;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::support::{Node, Setup, cluster_of, eventually, get, leads};
use super::{Stream, small, value_of};

/// How many files a node may open: 108 of them are left for clients.
const OPEN_FILES: u64 = 300;
const CLIENTS: u64 = 108;
/// More than there are files.
const FLOOD: u64 = 400;
/// How long an idle node is watched.
const WATCHED: Duration = Duration::from_secs(2);

/// How many clients a node has room for if it starts with the limits of this process.
pub(super) fn left_for_clients() -> u64 {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    limit - (limit / 16).max(96) - 64 - 32
}

/// Opens connections to a port and keeps all open, also those that the node has closed.
fn flood(port: SocketAddr) -> Vec<TcpStream> {
    (0..FLOOD).map(|_| TcpStream::connect(port).unwrap()).collect()
}

/// Whether the node has closed a connection on which neither side has sent anything.
fn is_closed(connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    // A server sends first only the settings of HTTP/2.
    match (&*connection).read(&mut [0; 256]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Whether the port answers the first bytes of HTTP/2, as a member sends them.
fn answers(port: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(port) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).is_ok() && stream.read(&mut [0; 9]).is_ok_and(|read| read > 0)
}

/// Processor time that a node has used so far.
fn busy(node: &Node) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.process_id())).unwrap();
    // After the name in brackets: the state is the first field, user and system time are the 12th and 13th.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // Linux counts them in hundredths of a second, whatever the kernel's own clock.
    Duration::from_millis(10 * ticks)
}

/// The fraction of one core that an idle node uses.
async fn share_of_a_core(node: &Node) -> f64 {
    let runtime = Runtime::system();
    let (before, since) = (busy(node), runtime.clock.now());
    runtime.sleep(WATCHED).await;
    let took = runtime.clock.now().saturating_since(since);
    busy(node).saturating_sub(before).as_secs_f64() / took.as_secs_f64()
}

/// Takes a lock and releases it, once for each request.
async fn work(node: &Node, stream: &mut Stream, requests: std::ops::Range<u64>) {
    for request in requests {
        assert!(
            stream.is_granted(small("jobs", request)).await,
            "the stream ended: {}",
            node.log()
        );
    }
}

fn metric(node: &Node, name: &str) -> u64 {
    let metrics = eventually(|| get(node.setup.admin_listen, "/metrics").filter(|m| !m.is_empty()));
    value_of(&metrics.expect("the admin port answers"), name)
}

/// Sets how many files a running node may open.
fn set_open_files(node: &Node, limit: u64) {
    let pid = Pid::from_raw(node.process_id().try_into().unwrap()).unwrap();
    let new = Rlimit { current: Some(limit), maximum: Some(OPEN_FILES) };
    prlimit(Some(pid), Resource::Nofile, new).unwrap();
}

/// R3: the flood uses all descriptors for clients. The session continues, and so does the cluster.
#[tokio::test]
async fn more_connections_than_files_are_refused_and_sessions_members_and_snapshots_go_on() {
    let nodes = cluster_of(2, |setup| {
        setup.flags(&["--snapshot-log-bytes", "12288"]).starts_with_open_files(OPEN_FILES)
    });
    let leader = eventually(|| nodes.iter().position(leads)).expect("nobody leads");
    let leader = &nodes[leader];
    let mut stream = Stream::open(leader.setup.listen).await;
    stream.is_opened().await;
    let kept = stream.acquires("kept", 1).await;
    work(leader, &mut stream, 2..10).await;

    let flood = flood(leader.setup.listen);
    work(leader, &mut stream, 10..210).await;

    let snapshot =
        eventually(|| Some(metric(leader, "raft_snapshot_index")).filter(|&index| index >= 100));
    assert!(snapshot.is_some(), "no snapshot is written: {}", leader.log());
    assert!(answers(leader.setup.peer_listen), "no member gets through: {}", leader.log());
    let closed = eventually(|| {
        let closed = flood.iter().filter(|connection| is_closed(connection)).count() as u64;
        (closed > FLOOD - CLIENTS).then_some(closed)
    });
    assert!(closed.is_some(), "the node holds more than its limit");
    let refused = metric(leader, "connections_refused_total{port=\"clients\"}");
    assert!((FLOOD - CLIENTS..=FLOOD).contains(&refused), "{refused} of {FLOOD} were refused");
    let share = share_of_a_core(leader).await;
    assert!(share < 0.5, "{share} of a core, with nothing to do");

    stream.releases(kept).await;
    drop(flood);
    let mut another = Stream::open(leader.setup.listen).await;
    another.is_opened().await;
    another.acquires("kept", 1).await;
}

/// R3: the descriptors are gone, here by a lower limit. A file that was not opened is not a failed
/// write: the node waits, and continues when there are descriptors again.
#[tokio::test]
async fn a_node_without_descriptors_waits_for_them_with_its_snapshot_and_its_new_clients() {
    let setup = Setup::new().flags(&["--snapshot-log-bytes", "12288"]);
    let mut node = setup.starts_with_open_files(OPEN_FILES);
    node.becomes_ready();
    let mut stream = Stream::open(node.setup.listen).await;
    stream.is_opened().await;

    set_open_files(&node, 5);
    let mut waiting = TcpStream::connect(node.setup.listen).unwrap();
    work(&node, &mut stream, 1..210).await;
    let share = share_of_a_core(&node).await;
    node.assert_runs();
    set_open_files(&node, OPEN_FILES);

    assert!(share < 0.5, "{share} of a core, with nothing to do");
    waiting.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    waiting.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    assert!(waiting.read(&mut [0; 9]).unwrap() > 0, "{}", node.log());
    let snapshot =
        eventually(|| Some(metric(&node, "raft_snapshot_index")).filter(|&index| index >= 100));
    assert!(snapshot.is_some(), "no snapshot is written: {}", node.log());
    assert!(metric(&node, "accepts_put_off_total{port=\"clients\"}") >= 1);
    work(&node, &mut stream, 210..220).await;
}
