//! Followers that are slow, hang, or install a snapshot more slowly than the leader fills its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use holdfast_core::Command;
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1 as proto;
use holdfast_runtime::{BoxFuture, Runtime};

use super::cluster::{Cluster, commit, open};
use crate::raft::{Peer, PeerError, PeerStream, ReplicaConfig, ReplicaStore};

type Answer<T> = BoxFuture<'static, Result<T, PeerError>>;

/// A member that delays its answers, and is otherwise unchanged.
#[derive(Clone)]
struct Slow {
    member: Arc<dyn Peer>,
    runtime: Runtime,
    pace: Arc<Pace>,
}

/// The delays, milliseconds; they can change at any time.
#[derive(Default)]
struct Pace {
    /// Takes requests of the append stream and answers none; takes no piece of a snapshot.
    hangs: AtomicBool,
    /// Time between two answers of the append stream.
    append: AtomicU64,
    /// Time from the last piece of a snapshot until it is installed.
    snapshot: AtomicU64,
    /// How many snapshots were sent.
    snapshots: AtomicU64,
}

impl Slow {
    /// Makes node `node_id` answer as slowly as the returned pace says.
    fn follower(cluster: &Cluster, node_id: u64) -> Arc<Pace> {
        let pace = Arc::new(Pace::default());
        let member = cluster.replica(node_id).peer();
        let slow = Self { member, runtime: cluster.runtime.clone(), pace: Arc::clone(&pace) };
        cluster.network.join(node_id, Arc::new(slow));
        // Ends the connections to the member itself; new ones reach this one.
        cluster.network.heal();
        pace
    }

    fn wait(&self, millis: &AtomicU64) -> BoxFuture<'static, ()> {
        match millis.load(Ordering::Relaxed) {
            0 => std::future::ready(()).boxed(),
            millis => self.runtime.sleep(Duration::from_millis(millis)),
        }
    }
}

impl Peer for Slow {
    fn admit(&self, request: proto::AdmitRequest) -> Answer<proto::AdmitResponse> {
        self.member.admit(request)
    }

    fn promise(&self, request: proto::PromiseRequest) -> Answer<proto::PromiseResponse> {
        self.member.promise(request)
    }

    fn hello(&self, request: proto::HelloRequest) -> Answer<proto::HelloResponse> {
        self.member.hello(request)
    }

    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> Answer<PeerStream<proto::AppendResponse>> {
        let slow = self.clone();
        async move {
            let answers = slow.member.stream_append(requests).await?;
            let late = answers.then(move |answer| {
                let wait = if slow.pace.hangs.load(Ordering::Relaxed) {
                    std::future::pending().boxed()
                } else {
                    slow.wait(&slow.pace.append)
                };
                async move {
                    wait.await;
                    answer
                }
            });
            Ok(late.boxed())
        }
        .boxed()
    }

    fn append(&self, request: proto::AppendRequest) -> Answer<proto::AppendResponse> {
        self.member.append(request)
    }

    fn vote(&self, request: proto::VoteRequest) -> Answer<proto::VoteResponse> {
        self.member.vote(request)
    }

    fn pre_vote(&self, request: proto::VoteRequest) -> Answer<proto::VoteResponse> {
        self.member.pre_vote(request)
    }

    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> Answer<proto::SnapshotResponse> {
        let slow = self.clone();
        async move {
            slow.pace.snapshots.fetch_add(1, Ordering::Relaxed);
            if slow.pace.hangs.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let chunks: Vec<_> = chunks.collect().await;
            slow.wait(&slow.pace.snapshot).await;
            slow.member.install_snapshot(stream::iter(chunks).boxed()).await
        }
        .boxed()
    }

    fn transfer_leader(
        &self,
        request: proto::TransferLeaderRequest,
    ) -> Answer<proto::TransferLeaderResponse> {
        self.member.transfer_leader(request)
    }
}

/// Bytes of log that about 300 small sessions fill.
const SMALL_LOG: u64 = 64 << 10;
/// The bytes of the entry of a small session, about.
const SMALL_ENTRY: u64 = 220;
/// What the log may have beyond that: what is not worth a purge yet.
const NOT_WORTH_A_PURGE: u64 = 20 * SMALL_ENTRY / 4;

fn small_log(config: &mut ReplicaConfig) {
    config.snapshot_log_bytes = 20 * SMALL_ENTRY;
    config.log_kept = 0;
    config.max_log_bytes = SMALL_LOG;
}

fn records(cluster: &Cluster, node_id: u64) -> usize {
    cluster.nodes[&node_id].store.log().len()
}

fn any_follower(cluster: &Cluster, leader: u64) -> u64 {
    cluster.members.iter().map(|member| member.node_id).find(|id| *id != leader).unwrap()
}

fn log_bytes(cluster: &Cluster, node_id: u64) -> u64 {
    cluster.replica(node_id).status().log_bytes
}

/// Opens `count` sessions, one after the other, with `every` between two; returns the longest log
/// that the leader had, in bytes.
async fn traffic(cluster: &Cluster, leader: u64, count: u32, every: Duration) -> u64 {
    let mut longest = 0;
    for _ in 0..count {
        open(cluster.replica(leader)).await;
        cluster.runtime.sleep(every).await;
        longest = longest.max(log_bytes(cluster, leader));
    }
    longest
}

/// L1 of the safety review: the follower answers 50 requests a minute on an open connection.
#[tokio::test(start_paused = true)]
async fn a_follower_that_answers_slowly_does_not_keep_the_leaders_log() {
    let cluster = Cluster::started(3, small_log).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;
    let slow = Slow::follower(&cluster, any_follower(&cluster, leader));
    slow.append.store(1_200, Ordering::Relaxed);

    let longest = traffic(&cluster, leader, 1_500, Duration::from_millis(10)).await;

    assert!(longest <= SMALL_LOG + NOT_WORTH_A_PURGE, "the leader's log had {longest} bytes");
    assert!(records(&cluster, leader) > 0);
    let counted = cluster.replica(leader).metrics();
    assert!(counted.followers_cut_off.get() > 0 && counted.snapshots_sent.get() > 0);
    slow.append.store(0, Ordering::Relaxed);
    cluster.level().await;
    assert_alike(&cluster);
    cluster.shutdown().await;
}

/// The rule of the next test taken away.
#[tokio::test(start_paused = true)]
async fn without_its_limit_a_snapshot_to_a_follower_that_hangs_is_never_given_up() {
    let cluster = Cluster::started(3, small_log).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;
    let hung = Slow::follower(&cluster, any_follower(&cluster, leader));
    hung.hangs.store(true, Ordering::Relaxed);

    arm(Some(Mutant::SnapshotWithoutEnd));
    traffic(&cluster, leader, 1_500, Duration::from_millis(20)).await;
    arm(None);

    assert_eq!(hung.snapshots.load(Ordering::Relaxed), 1);
    cluster.shutdown().await;
}

/// As with a disk that hangs: the follower answers heartbeats, takes appends, and never answers
/// one.
#[tokio::test(start_paused = true)]
async fn a_follower_that_hangs_keeps_nothing_beyond_the_bound_and_catches_up_afterwards() {
    let cluster = Cluster::started(3, small_log).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;
    let hung = Slow::follower(&cluster, any_follower(&cluster, leader));
    hung.hangs.store(true, Ordering::Relaxed);

    let longest = traffic(&cluster, leader, 1_500, Duration::from_millis(20)).await;

    assert!(longest <= SMALL_LOG + NOT_WORTH_A_PURGE, "the leader's log had {longest} bytes");
    let sent = hung.snapshots.load(Ordering::Relaxed);
    assert!((2..=4).contains(&sent), "{sent} snapshots set out in 30 s, each given up after 10");
    hung.hangs.store(false, Ordering::Relaxed);
    cluster.level().await;
    assert_alike(&cluster);
    cluster.shutdown().await;
}

fn assert_alike(cluster: &Cluster) {
    let hashes = cluster.hashes();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

fn few_kept(config: &mut ReplicaConfig) {
    config.snapshot_log_bytes = 100 * SMALL_ENTRY;
    config.log_kept = 20;
    // A member that lags by more than a sixteenth of it, about 100 entries, gets a snapshot.
    config.max_log_bytes = 384 << 10;
}

/// Opens and closes `count` sessions: the table does not grow.
async fn churn(cluster: &Cluster, leader: u64, count: u32, every: Duration) {
    for _ in 0..count {
        let session = open(cluster.replica(leader)).await;
        commit(cluster.replica(leader), Command::CloseSession { session }).await.outcome.unwrap();
        cluster.runtime.sleep(every).await;
    }
}

/// L2 of the safety review: 30 entries a second, a snapshot each 100 to 200 entries, 10 s to move one.
#[tokio::test(start_paused = true)]
async fn a_follower_whose_snapshot_takes_longer_than_the_log_lasts_catches_up() {
    let mut cluster = Cluster::started(3, few_kept).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;
    let away = any_follower(&cluster, leader);
    let left = cluster.kill(away).await;
    churn(&cluster, leader, 250, Duration::from_millis(20)).await;
    cluster.start(away, left).await;
    let slow = Slow::follower(&cluster, away);
    slow.snapshot.store(10_000, Ordering::Relaxed);

    churn(&cluster, leader, 400, Duration::from_millis(66)).await;

    let at = |node_id| cluster.replica(node_id).status().last_log.unwrap();
    let behind = at(leader).saturating_sub(at(away));
    let sent = slow.snapshots.load(Ordering::Relaxed);
    assert!(behind < 20, "{behind} entries behind after {sent} snapshots");
    assert_eq!(sent, 1, "snapshots that were sent");
    cluster.shutdown().await;
}

/// SC4 of the safety review.
#[tokio::test(start_paused = true)]
async fn members_do_not_make_their_snapshots_at_the_same_index() {
    let cluster = Cluster::started(3, few_kept).await;
    let (leader, _) = cluster.leader().await;
    cluster.formed().await;

    traffic(&cluster, leader, 350, Duration::from_millis(1)).await;

    let made = |node: &super::cluster::Node| node.replica.status().snapshot.unwrap();
    let made: Vec<u64> = cluster.nodes.values().map(made).collect();
    // A third of 64 entries, less what is logged until a member notices its turn.
    let apart = |one: u64, other: u64| one.abs_diff(other) >= 8;
    assert!(
        apart(made[0], made[1]) && apart(made[1], made[2]) && apart(made[0], made[2]),
        "{made:?}"
    );
    cluster.shutdown().await;
}

/// Only the leader is below its disk reserve. The cluster would refuse commands that take room.
#[tokio::test(start_paused = true)]
async fn a_leader_below_its_disk_reserve_hands_over_to_one_that_is_not() {
    let cluster = Cluster::started(3, |_| ()).await;
    let (old, tenure) = cluster.leader().await;
    cluster.formed().await;
    cluster.runtime.sleep(Duration::from_secs(20)).await;
    let full = cluster.replica(old);

    cluster.nodes[&old].store.set_free_space(0);
    let (new, _) = cluster.leader_after(tenure).await;

    assert_ne!(new, old);
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    open(cluster.replica(new)).await;
    assert_eq!(full.metrics().relieved.get(), 1);
    // No other member is better off: leadership stays.
    for node in cluster.nodes.values() {
        node.store.set_free_space(0);
    }
    cluster.runtime.sleep(Duration::from_mins(1)).await;
    assert_eq!(cluster.leader().await.0, new);
    cluster.shutdown().await;
}

/// A gray failure: the leader's disk takes 300 ms for what the other disks do at once.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_disk_is_much_slower_hands_over_once() {
    let cluster = Cluster::started(3, |_| ()).await;
    let (old, tenure) = cluster.leader().await;
    cluster.formed().await;
    traffic(&cluster, old, 60, Duration::from_millis(250)).await;
    assert_eq!(cluster.leader().await, (old, tenure), "nothing is wrong yet");

    cluster.nodes[&old].store.slow_down(&cluster.runtime, Duration::from_millis(300));
    let begun = cluster.runtime.clock.now();
    while cluster.leader().await.1 == tenure {
        drop(
            crate::consensus::propose(&**cluster.replica(old), super::cluster::open_session())
                .await,
        );
        cluster.runtime.sleep(Duration::from_millis(100)).await;
        let took = cluster.runtime.clock.now().saturating_since(begun);
        assert!(took < Duration::from_mins(1), "it leads on");
    }
    let (new, later) = cluster.leader().await;
    assert_ne!(new, old);
    let slow = cluster.replica(old).status().append_p99_us;
    assert!(slow >= Some(300_000), "{slow:?}");
    traffic(&cluster, new, 120, Duration::from_millis(250)).await;
    assert_eq!(cluster.replica(old).metrics().relieved.get(), 1);
    assert_eq!(cluster.leader().await, (new, later), "leadership flaps");
    cluster.shutdown().await;
}
