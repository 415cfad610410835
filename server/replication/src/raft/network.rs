//! Connects openraft to other members over [`PeerNetwork`].
//!
//! Appends travel on one long-lived, pipelined stream per follower. Heartbeats and votes are separate
//! calls beside it, so that queued appends do not delay them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use futures_util::{Stream, pin_mut};
use holdfast_mutants::mutant;
use holdfast_proto::v1 as proto;
use holdfast_runtime::{Clock, Instant};
use openraft::OptionalSend;
use openraft::base::{BoxFuture, BoxStream as RaftBoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::machine::{SnapshotData, off_runtime, stored_meta};
use super::metrics::ReplicationMetrics;
use super::peers::{Heard, Lane, Peer, PeerError, Peers};
use super::sending::{Floor, Sending};
use super::types::{Addresses, Snapshot, Types, Vote};
use super::wire::{self, Malformed};
use crate::storage::KeptSnapshot;

type Failure = RPCError<Types>;
type AppendAnswer = Result<StreamAppendResult<Types>, Failure>;

/// Makes the links to other members.
#[derive(Clone)]
pub(super) struct Network {
    pub(super) peers: Peers,
    pub(super) heard: Arc<Heard>,
    pub(super) may_block: bool,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) sending: Arc<Sending>,
    /// See [`ReplicaConfig::snapshot_stall_ms`](super::ReplicaConfig::snapshot_stall_ms).
    pub(super) stalls_after: Duration,
    pub(super) metrics: ReplicationMetrics,
}

impl Network {
    fn link(&self, target: u64, node: &Addresses, lane: Lane) -> Link {
        let member = self.peers.as_configured(node.member(target));
        Link {
            peer: self.peers.network.peer(&member, lane),
            control: self.peers.control(&member),
            lane,
            target,
            network: self.clone(),
        }
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &Addresses) -> Link {
        self.link(target, node, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Addresses) -> Link {
        self.link(target, node, Lane::Control)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &Addresses) -> Link {
        self.link(target, node, Lane::Bulk)
    }
}

/// The link to one member.
pub(super) struct Link {
    peer: Arc<dyn Peer>,
    /// Votes never use the log's connection: they are needed most when that connection is dead.
    control: Arc<dyn Peer>,
    lane: Lane,
    target: u64,
    network: Network,
}

impl Link {
    fn header(&self) -> proto::PeerHeader {
        self.network.peers.me.header(self.target)
    }

    /// Reads one answer and stores the member's report of its disk.
    fn answer(
        heard: &Heard,
        target: u64,
        response: Result<proto::AppendResponse, PeerError>,
    ) -> AppendAnswer {
        let response = response.map_err(|e| failure(&e))?;
        heard.note_reserve(target, response.below_disk_reserve);
        wire::append_result_from_wire(&response).map_err(malformed)
    }

    /// Sends each heartbeat as a separate call: each with the header, none waiting for another.
    fn one_by_one<S>(&self, requests: S) -> RaftBoxStream<'_, AppendAnswer>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(requests.then(move |request| async move {
            let without_prev = request.prev_log_id.is_none();
            let message = wire::append_to_wire(&request, Some(self.header()));
            let response = self.peer.append(message).await;
            let result = Self::answer(&self.network.heard, self.target, response)?;
            match result {
                // openraft assumes that nothing conflicts with the empty log.
                Err(StreamAppendError::Conflict(_)) if without_prev => {
                    Err(malformed(Malformed("a conflict with the empty log")))
                }
                result => Ok(result),
            }
        }))
    }

    async fn streamed<S>(&self, mut requests: S) -> Result<RaftBoxStream<'_, AppendAnswer>, Failure>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        // After a failure openraft backs off when it takes the next request, not before it opens the
        // next stream. Without this wait, a link that fails before it has taken a request would be
        // retried at once, for ever.
        let Some(first) = requests.next().await else { return Ok(stream::empty().boxed()) };
        let matched = first.prev_log_id.map(|id| id.index);
        let mut floor = self.network.sending.floor();
        // A request without entries needs nothing of the log: news of a commit goes out also while a
        // snapshot is being sent.
        if floor.is_above(matched) && !first.entries.is_empty() {
            return Err(self.cut_off());
        }
        let first = wire::append_to_wire(&first, Some(self.header()));
        let has_entries = |request: &AppendEntriesRequest<Types>| !request.entries.is_empty();
        let later = with_next_entry(requests, has_entries, Arc::clone(&self.network.clock));
        let later = later.map(|request| wire::append_to_wire(&request, None));
        let messages = stream::once(std::future::ready(first)).chain(later).boxed();
        let opened = holdfast_runtime::select! {
            opened = self.peer.stream_append(messages) => opened,
            () = floor.raised_above(matched) => return Err(self.cut_off()),
        };
        let (heard, target) = (Arc::clone(&self.network.heard), self.target);
        let responses = opened.map_err(|e| failure(&e))?;
        let answers = responses.map(move |response| Self::answer(&heard, target, response));
        Ok(while_kept(answers.boxed(), floor, matched, || self.cut_off()))
    }

    /// Makes openraft send a snapshot: it does so once the log that the member needs is purged.
    fn cut_off(&self) -> Failure {
        self.network.metrics.followers_cut_off.inc();
        tracing::warn!(
            member = self.target,
            "a member is too far behind for the log and gets a snapshot"
        );
        let why = "it is behind what is kept of the log (max_log_bytes), and gets a snapshot";
        failure(&PeerError::Unreachable(why.to_owned()))
    }
}

/// The answers, until the log is no longer kept for a member that has come no further.
///
/// The entries that a stream needs may have been purged before it began, above all while openraft
/// replaces it by a snapshot. Then it only has requests without entries, for ever. As long as
/// openraft's task has anything to send, it does not check whether it should send the log after the
/// snapshot instead. So such a stream ends with its first answer, and the task checks. That is no
/// failure: a failure would undo what openraft has begun meanwhile.
fn while_kept<'a>(
    answers: BoxStream<'a, AppendAnswer>,
    floor: Floor,
    matched: Option<u64>,
    cut_off: impl Fn() -> Failure + OptionalSend + 'a,
) -> RaftBoxStream<'a, AppendAnswer> {
    let state = Some((answers, floor, matched, cut_off));
    Box::pin(stream::unfold(state, move |state| async move {
        let (mut answers, mut floor, mut matched, cut_off) = state?;
        holdfast_runtime::select! {
            answer = answers.next() => {
                let answer = answer?;
                if let Ok(Ok(upto)) = &answer {
                    matched = matched.max(upto.as_ref().map(|id| id.index));
                }
                let lacks_entries = answer.is_ok() && floor.stands_above(matched);
                let rest = (!lacks_entries).then_some((answers, floor, matched, cut_off));
                Some((answer, rest))
            }
            () = floor.raised_above(matched) => Some((Err(cut_off()), None)),
        }
    }))
}

/// How long news of a commit waits for an entry to travel with. Long enough for the next request of
/// a client that was just answered, short compared with an election.
const HELD_BACK: Duration = Duration::from_millis(5);

/// The requests, without those that have no entries and are overtaken by another one: a follower learns
/// about a commit together with the next entry, where there is one.
///
/// openraft tells each follower about each commit at once, by a request without entries, which is
/// answered like any other: four of the ten messages of a commit. No caller waits for it: a
/// follower applies what it then knows to be committed, and answers no client from that. So such a
/// request is held back for a moment, and dropped if another one follows: that one says the same of
/// the log before it, and names a commit that is at least as new.
///
/// openraft does not pair answers with requests: an answer settles all requests up to the entry
/// where the follower's log matches. So the answer to the next request also settles one that was
/// dropped.
fn with_next_entry<S, T>(
    requests: S,
    has_entries: fn(&T) -> bool,
    clock: Arc<dyn Clock>,
) -> impl Stream<Item = T> + Send
where
    S: Stream<Item = T> + Send + Unpin,
    T: Send,
{
    let patience = Patience { clock, timer: None };
    stream::unfold((requests.fuse(), patience), move |(mut requests, mut patience)| async move {
        let mut next = requests.next().await?;
        let until = patience.clock.now() + HELD_BACK;
        while !has_entries(&next) {
            holdfast_runtime::select! {
                later = requests.next() => match later {
                    Some(later) => next = later,
                    None => break,
                },
                () = patience.ends(until) => break,
            }
        }
        Some((next, (requests, patience)))
    })
}

/// Waits for one time after the other, each later than the one before, with one timer: a nearer
/// timer for each commit would wake the runtime once more.
struct Patience {
    clock: Arc<dyn Clock>,
    /// Of an earlier wait, perhaps, that was given up.
    timer: Option<BoxFuture<'static, ()>>,
}

impl Patience {
    /// Waits until a time. Cancel safe: the next wait goes on with the timer.
    async fn ends(&mut self, until: Instant) {
        while self.clock.now() < until {
            let clock = &self.clock;
            self.timer.get_or_insert_with(|| clock.sleep_until(until)).await;
            self.timer = None;
        }
    }
}

impl NetStreamAppend<Types> for Link {
    fn stream_append<S>(
        &mut self,
        input: S,
        _option: RPCOption,
    ) -> BoxFuture<'_, Result<RaftBoxStream<'_, AppendAnswer>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let link = &*self;
        match link.lane {
            Lane::Control => Box::pin(async move { Ok(link.one_by_one(input)) }),
            Lane::Log | Lane::Bulk => Box::pin(link.streamed(input)),
        }
    }
}

impl NetVote<Types> for Link {
    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failure> {
        let message = wire::vote_request_to_wire(&request, self.header());
        let response = self.control.vote(message).await.map_err(|e| failure(&e))?;
        wire::vote_response_from_wire(&response).map_err(malformed)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failure> {
        let message = wire::vote_request_to_wire(&request, self.header());
        let response = self.control.pre_vote(message).await.map_err(|e| failure(&e))?;
        wire::vote_response_from_wire(&response).map_err(malformed)
    }
}

impl NetTransferLeader<Types> for Link {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, Failure> {
        let message = wire::transfer_to_wire(&request, self.header());
        self.control.transfer_leader(message).await.map_err(|e| failure(&e))?;
        Ok(Ok(()))
    }
}

impl NetSnapshot<Types> for Link {
    type SnapshotData = SnapshotData;

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot<SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let SnapshotData::Kept(kept) = snapshot.snapshot else {
            return Err(RPCError::from(malformed_network("a snapshot that is not finished")).into());
        };
        let Ok(meta) = stored_meta(&kept) else {
            return Err(RPCError::from(malformed_network("a snapshot without its head")).into());
        };
        let head = proto::SnapshotHead {
            header: Some(self.header()),
            vote: Some(wire::vote_to_wire(&vote)),
            meta: Some(meta),
            size: kept.info().length,
            sha256: kept.info().sha256.to_vec().into(),
        };
        let upto = kept.info().last.map_or(0, |last| last.index);
        let underway = self.network.sending.begin(self.target, upto);
        self.network.metrics.snapshots_sent.inc();
        let progress = Arc::new(Progress::new(&*self.network.clock, kept.info().length));
        let (noted, clock) = (Arc::clone(&progress), Arc::clone(&self.network.clock));
        let body = chunks(head, kept, self.network.may_block)
            .inspect(move |chunk| noted.note(&*clock, chunk));
        let sending = self.peer.install_snapshot(body.boxed());
        pin_mut!(cancel);
        let stalls_after = match self.network.stalls_after {
            _ if mutant!(SnapshotWithoutEnd) => Duration::from_hours(24),
            limit => limit,
        };
        holdfast_runtime::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            () = progress.stalled(&*self.network.clock, stalls_after) => {
                let why = "a snapshot on its way to it makes no progress";
                Err(failure(&PeerError::Unreachable(why.to_owned())).into())
            }
            response = sending => {
                let response = response.map_err(|e| failure(&e))?;
                underway.arrived();
                let vote = wire::vote_from_wire(response.vote.as_ref()).map_err(malformed)?;
                Ok(SnapshotResponse::new(vote))
            }
        }
    }
}

impl NetBackoff<Types> for Link {
    fn backoff(&self) -> Option<Backoff> {
        None
    }
}

/// The progress of a snapshot that is being sent.
struct Progress {
    size: u64,
    taken: AtomicU64,
    /// Milliseconds, on this node's clock.
    last: AtomicU64,
    whole: AtomicBool,
}

impl Progress {
    fn new(clock: &dyn Clock, size: u64) -> Self {
        let last = AtomicU64::new(clock.now().as_millis());
        Self { size, taken: AtomicU64::new(0), last, whole: AtomicBool::new(size == 0) }
    }

    /// The transport takes a chunk: it has room, so the member took earlier ones.
    fn note(&self, clock: &dyn Clock, chunk: &proto::SnapshotChunk) {
        let more = chunk.data.len() as u64;
        let taken = self.taken.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        self.last.store(clock.now().as_millis(), Ordering::Relaxed);
        self.whole.store(taken >= self.size, Ordering::Relaxed);
    }

    /// Waits until no chunk was taken for `patience`, or the member has not installed the whole
    /// snapshot in time.
    async fn stalled(&self, clock: &dyn Clock, patience: Duration) {
        loop {
            let whole = self.whole.load(Ordering::Relaxed);
            let patience = if whole { install_within(self.size) } else { patience };
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = Instant::from_origin(last) + patience;
            if until <= clock.now() {
                return;
            }
            clock.sleep_until(until).await;
        }
    }
}

/// How long a member may take to install a snapshot that it has received. A million holds (60 MB) take
/// 6 to 9 s to hash, sync, read back and restore: this is more than ten times that. A member whose
/// disk hangs ends itself before.
fn install_within(bytes: u64) -> Duration {
    Duration::from_mins(1) + Duration::from_secs(bytes >> 20)
}

/// The head, then the body in chunks of at most 64 KiB. A chunk that cannot be read ends the stream;
/// the receiver then finds the snapshot too short.
fn chunks(
    head: proto::SnapshotHead,
    kept: Arc<dyn KeptSnapshot>,
    may_block: bool,
) -> BoxStream<'static, proto::SnapshotChunk> {
    let first = proto::SnapshotChunk { head: Some(head), data: bytes::Bytes::new() };
    let body = stream::unfold((kept, 0_u64), move |(kept, offset)| async move {
        let source = Arc::clone(&kept);
        let data = off_runtime(may_block, move || source.chunk(offset)).await;
        let data = data.inspect_err(|error| tracing::warn!(%error, "a snapshot cannot be sent"));
        let data = data.ok().filter(|data| !data.is_empty())?;
        let next = offset.saturating_add(data.len() as u64);
        Some((proto::SnapshotChunk { head: None, data }, (kept, next)))
    });
    stream::once(std::future::ready(first)).chain(body).boxed()
}

fn failure(error: &PeerError) -> Failure {
    // A refused call is backed off like one to an unreachable node: an immediate retry does not help.
    RPCError::Unreachable(Unreachable::new(error))
}

fn malformed(error: Malformed) -> Failure {
    RPCError::Network(NetworkError::new(&error))
}

fn malformed_network(what: &'static str) -> NetworkError<Types> {
    NetworkError::new(&Malformed(what))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use holdfast_runtime::simulated;
    use tokio::sync::{mpsc, watch};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// A member that repeats the same answer.
    fn always(upto: u64) -> BoxStream<'static, AppendAnswer> {
        let upto = wire::log_id_from_wire(&proto::LogId { term: 1, node_id: 1, index: upto });
        stream::repeat_with(move || Ok(Ok(Some(upto)))).boxed()
    }

    fn cut_off() -> Failure {
        failure(&PeerError::Unreachable("cut off".to_owned()))
    }

    /// The first ten answers at most, on a stream that has seen this floor.
    async fn ten(floor: u64, upto: u64) -> Vec<bool> {
        let raised = watch::Sender::new(Some(floor));
        let mut floor = Floor::of(&raised);
        floor.is_above(Some(upto));
        let answers = while_kept(always(upto), floor, Some(upto), cut_off);
        answers.map(|answer| answer.is_ok()).take(10).collect().await
    }

    /// The stream began after the floor was raised, so no later raise reaches it.
    #[tokio::test]
    async fn a_stream_that_lacks_entries_ends_with_its_first_answer_and_without_a_failure() {
        assert_eq!(ten(20, 19).await, [true]);
    }

    #[tokio::test]
    async fn a_stream_whose_entries_are_kept_goes_on() {
        assert_eq!(ten(20, 20).await, [true; 10]);
    }

    /// A request: the number of entries, and the commit that it names.
    type Request = (usize, u64);

    fn asked() -> (mpsc::Sender<Request>, impl Stream<Item = Request> + Unpin) {
        asked_by(simulated::runtime(1, 0).clock)
    }

    fn asked_by(
        clock: Arc<dyn Clock>,
    ) -> (mpsc::Sender<Request>, impl Stream<Item = Request> + Unpin) {
        let (ask, requests) = mpsc::channel(8);
        let kept =
            with_next_entry(ReceiverStream::new(requests), |(entries, _)| *entries > 0, clock);
        (ask, kept.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn news_of_a_commit_is_left_out_when_an_entry_follows() {
        let (ask, mut kept) = asked();
        for request in [(0, 1), (0, 2), (3, 2)] {
            ask.send(request).await.expect("it is read");
        }

        assert_eq!(kept.next().now_or_never(), Some(Some((3, 2))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_never_held_back_or_left_out() {
        let (ask, mut kept) = asked();
        for request in [(1, 0), (1, 0), (1, 1)] {
            ask.send(request).await.expect("it is read");
        }

        assert_eq!(kept.next().now_or_never(), Some(Some((1, 0))));
        assert_eq!(kept.next().now_or_never(), Some(Some((1, 0))));
        assert_eq!(kept.next().now_or_never(), Some(Some((1, 1))));
    }

    /// Also while commits go on: the time counts from the first.
    #[tokio::test(start_paused = true)]
    async fn news_that_nothing_follows_is_told_after_a_moment() {
        let clock = simulated::runtime(1, 0).clock;
        let (ask, mut kept) = asked_by(Arc::clone(&clock));
        let begun = clock.now();
        ask.send((0, 1)).await.expect("it is read");
        assert_eq!(kept.next().now_or_never(), None, "it is held back");
        tokio::time::advance(HELD_BACK / 2).await;
        ask.send((0, 2)).await.expect("it is read");

        assert_eq!(kept.next().await, Some((0, 2)));
        let waited = clock.now().saturating_since(begun);
        assert!((HELD_BACK..HELD_BACK * 3 / 2).contains(&waited), "{waited:?}");
    }

    /// Counts the timers that are set.
    struct Timers(Arc<dyn Clock>, AtomicU64);

    impl Clock for Timers {
        fn now(&self) -> Instant {
            self.0.now()
        }

        fn wall_ms(&self) -> u64 {
            self.0.wall_ms()
        }

        fn sleep_until(&self, at: Instant) -> holdfast_runtime::BoxFuture<'static, ()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.sleep_until(at)
        }

        fn watchdog(&self, on_due: Arc<dyn Fn() + Send + Sync>) -> holdfast_runtime::Watchdog {
            self.0.watchdog(on_due)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn news_that_an_entry_follows_sets_no_timer_of_its_own() {
        let clock = Arc::new(Timers(simulated::runtime(1, 0).clock, AtomicU64::new(0)));
        let (ask, mut kept) = asked_by(Arc::clone(&clock) as Arc<dyn Clock>);
        for commit in 1..=50 {
            ask.send((0, commit)).await.expect("it is read");
            assert_eq!(kept.next().now_or_never(), None, "it is held back");
            tokio::time::advance(HELD_BACK / 10).await;
            ask.send((1, commit)).await.expect("it is read");
            assert_eq!(kept.next().now_or_never(), Some(Some((1, commit))));
        }
        // 25 ms have passed.
        assert!(clock.1.load(Ordering::Relaxed) <= 10, "{:?}", clock.1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_news_is_told_when_the_requests_end() {
        let (ask, mut kept) = asked();
        ask.send((0, 1)).await.expect("it is read");
        drop(ask);

        assert_eq!(kept.next().now_or_never(), Some(Some((0, 1))));
        assert_eq!(kept.next().now_or_never(), Some(None));
    }
}
