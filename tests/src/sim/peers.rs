//! How members reach each other on the virtual network.

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::stream::{BoxStream, StreamExt as _};
use holdfast_proto::v1 as proto;
use holdfast_proto::v1::append_response::Result as Told;
use holdfast_runtime::{BoxFuture, Runtime};
use holdfast_server::raft::{Lane, Member, Peer, PeerError, PeerNetwork, PeerStream};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::connection::{Frame, Reply, pump};
use super::link::Host;
use super::logs::Logs;
use super::network::Network;
use super::port::{Call, Port};

/// The network as one process of a node sees it.
pub(super) struct NodeNetwork {
    pub(super) network: Network,
    pub(super) node: u64,
    /// The process: its own tasks poll what it sends on a stream.
    pub(super) runtime: Runtime,
    pub(super) logs: Arc<Logs>,
}

impl PeerNetwork for NodeNetwork {
    fn peer(&self, member: &Member, _lane: Lane) -> Arc<dyn Peer> {
        Arc::new(Wire {
            network: self.network.clone(),
            from: self.node,
            to: member.node_id,
            runtime: self.runtime.clone(),
            logs: Arc::clone(&self.logs),
        })
    }
}

/// One node's connection to another.
struct Wire {
    network: Network,
    from: u64,
    to: u64,
    runtime: Runtime,
    logs: Arc<Logs>,
}

type Answered<T> = BoxFuture<'static, Result<T, PeerError>>;

impl Wire {
    fn ask<Q, A>(
        &self,
        kind: &'static str,
        may_come_twice: bool,
        request: Q,
        invoke: impl Fn(Port, Q) -> Answered<A> + Send + Sync + 'static,
    ) -> Answered<A>
    where
        Q: Message + Clone + 'static,
        A: Message + 'static,
    {
        let (network, from) = (self.network.clone(), Host::Node(self.from));
        let bytes = request.encode_to_vec();
        let call = Call { from, to: self.to, kind, bytes, may_come_twice };
        async move {
            let asked = network.ask(call, move |port| invoke(port, request.clone()));
            let answer = asked.await.unwrap_or_else(|| Err(unreachable()));
            noted(&network, kind, &answer);
            answer
        }
        .boxed()
    }

    /// Sends `requests` on a connection of their own, from a task of this process; `serve` answers.
    async fn stream<Q, A>(
        network: Network,
        (from, to): (u64, u64),
        runtime: Runtime,
        kind: &'static str,
        requests: BoxStream<'static, Q>,
        serve: impl FnOnce(
            Port,
            BoxStream<'static, Q>,
            mpsc::Sender<Result<A, PeerError>>,
        ) -> BoxFuture<'static, ()>
        + Send,
    ) -> Result<mpsc::Receiver<Result<A, PeerError>>, PeerError>
    where
        Q: Frame,
        A: Message + 'static,
    {
        let dialled = network.dial(Host::Node(from), to, kind, |port, requests, responses| {
            serve(port, ReceiverStream::new(requests).boxed(), responses)
        });
        let (outgoing, incoming) = dialled.await.ok_or_else(unreachable)?;
        runtime.spawn(kind, async move { pump(requests, &outgoing).await }).detach();
        Ok(incoming)
    }
}

impl Peer for Wire {
    fn promise(&self, request: proto::PromiseRequest) -> Answered<proto::PromiseResponse> {
        self.ask("promise", false, request, |port, request| port.peer.promise(request))
    }

    fn admit(&self, request: proto::AdmitRequest) -> Answered<proto::AdmitResponse> {
        self.ask("admit", false, request, |port, request| port.peer.admit(request))
    }

    fn hello(&self, request: proto::HelloRequest) -> Answered<proto::HelloResponse> {
        self.ask("hello", false, request, |port, request| port.peer.hello(request))
    }

    fn append(&self, request: proto::AppendRequest) -> Answered<proto::AppendResponse> {
        let member = self.to;
        self.ask("append", true, request, move |port, request| {
            let term = term_of(&request);
            let answer = port.peer.append(request);
            async move {
                let answer = answer.await?;
                port.pledges.answered(member, term, &answer);
                Ok(answer)
            }
            .boxed()
        })
    }

    fn vote(&self, request: proto::VoteRequest) -> Answered<proto::VoteResponse> {
        let (network, voter) = (self.network.clone(), self.to);
        let asked = request.vote.and_then(|vote| Some((vote.term, vote.node_id?)));
        if let Some((term, candidate)) = asked {
            // A candidate has voted for itself.
            network.votes().given(candidate, term, candidate);
        }
        self.ask("vote", true, request, move |port, request| {
            let (network, answer) = (network.clone(), port.peer.vote(request));
            async move {
                let answer = answer.await?;
                if let Some((term, candidate)) = asked.filter(|_| answer.granted) {
                    network.votes().given(voter, term, candidate);
                    port.pledges.voted(voter, term, candidate);
                }
                Ok(answer)
            }
            .boxed()
        })
    }

    fn pre_vote(&self, request: proto::VoteRequest) -> Answered<proto::VoteResponse> {
        self.ask("pre-vote", true, request, |port, request| port.peer.pre_vote(request))
    }

    fn transfer_leader(
        &self,
        request: proto::TransferLeaderRequest,
    ) -> Answered<proto::TransferLeaderResponse> {
        self.ask("transfer", true, request, |port, request| port.peer.transfer_leader(request))
    }

    fn stream_append(
        &self,
        requests: BoxStream<'static, proto::AppendRequest>,
    ) -> Answered<PeerStream<proto::AppendResponse>> {
        let (network, way, runtime) =
            (self.network.clone(), (self.from, self.to), self.runtime.clone());
        let (hearing, (leader, follower)) = (network.clone(), way);
        async move {
            let serve =
                |port: Port, requests, responses| answer_appends(port, way.1, requests, responses);
            let incoming = Self::stream(
                network,
                way,
                runtime,
                "appends",
                requests,
                |port, requests, responses| serve(port, requests, responses).boxed(),
            );
            let answers = ReceiverStream::new(incoming.await?);
            let heard = move |answer: &Result<proto::AppendResponse, PeerError>| {
                noted(&hearing, "appends", answer);
                if let Ok(answer) = answer
                    && let Some(Told::Matched(proto::Matched { log_id: Some(last), .. })) =
                        &answer.result
                {
                    hearing.answers().acknowledged(leader, follower, last.index);
                }
            };
            Ok(answers.inspect(heard).boxed())
        }
        .boxed()
    }

    fn install_snapshot(
        &self,
        chunks: BoxStream<'static, proto::SnapshotChunk>,
    ) -> Answered<proto::SnapshotResponse> {
        let (network, way, runtime) =
            (self.network.clone(), (self.from, self.to), self.runtime.clone());
        let (hearing, logs) = (network.clone(), Arc::clone(&self.logs));
        let ends = Arc::new(OnceLock::new());
        let told = Arc::clone(&ends);
        let chunks = chunks.inspect(move |chunk| {
            if let Some(upto) = end_of(chunk) {
                told.get_or_init(|| upto);
            }
        });
        let chunks = chunks.boxed();
        async move {
            let incoming = Self::stream(
                network,
                way,
                runtime,
                "snapshot",
                chunks,
                |port, chunks, responses| {
                    async move {
                        let answer = port.peer.install_snapshot(chunks).await;
                        // A failure means that the caller waits no more.
                        let _ = responses.send(answer).await;
                    }
                    .boxed()
                },
            );
            let answer = incoming.await?.recv().await.unwrap_or_else(|| Err(unreachable()));
            noted(&hearing, "snapshot", &answer);
            if let (Ok(_), Some(upto)) = (&answer, ends.get()) {
                logs.arrived(way.0, way.1, *upto);
            }
            answer
        }
        .boxed()
    }
}

/// The answers are pledges of `member`. All requests of a stream come from one leader; an answer on
/// it is given in the term of its first request or later.
async fn answer_appends(
    port: Port,
    member: u64,
    requests: BoxStream<'static, proto::AppendRequest>,
    responses: mpsc::Sender<Result<proto::AppendResponse, PeerError>>,
) {
    let first = Arc::new(OnceLock::new());
    let asked = Arc::clone(&first);
    let requests = requests.inspect(move |request| {
        asked.get_or_init(|| term_of(request));
    });
    match port.peer.stream_append(requests.boxed()).await {
        Ok(answers) => {
            let pledges = port.pledges;
            let answers = answers.inspect(move |answer| {
                if let (Some(term), Ok(answer)) = (first.get(), answer) {
                    pledges.answered(member, *term, answer);
                }
            });
            pump(answers.boxed(), &responses).await;
        }
        Err(error) => {
            // A failure means that the caller waits no more.
            let _ = responses.send(Err(error)).await;
        }
    }
}

/// The last entry in a snapshot, from its first chunk.
fn end_of(chunk: &proto::SnapshotChunk) -> Option<u64> {
    Some(chunk.head.as_ref()?.meta.as_ref()?.last_log_id.as_ref()?.index)
}

/// Notes why a message was refused.
fn noted<T>(network: &Network, kind: &'static str, answer: &Result<T, PeerError>) {
    if let Err(PeerError::Refused(why)) = answer {
        network.answers().refused(kind, why);
    }
}

/// The term of the leader that asks.
fn term_of(request: &proto::AppendRequest) -> u64 {
    request.vote.as_ref().map_or(0, |vote| vote.term)
}

fn unreachable() -> PeerError {
    PeerError::Unreachable("no answer on the virtual network".to_owned())
}

impl Frame for proto::AppendRequest {
    fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

impl Frame for proto::SnapshotChunk {
    fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

impl<T: Message + 'static> Frame for Result<T, PeerError> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Ok(message) => message.encode_to_vec(),
            Err(error) => error.to_string().into_bytes(),
        }
    }
}

impl<T: Message + 'static> Reply for Result<T, PeerError> {
    fn broken() -> Self {
        Err(unreachable())
    }
}
