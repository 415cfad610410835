//! The leader's end of a [`Carry`]: each stream is a client's, as if it had come to the leader itself.
//!
//! [`Carry`]: holdfast_proto::v1::relay_service_server::RelayService::carry

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, future, stream};
use holdfast_proto::v1::carried::What;
use holdfast_proto::v1::relay_service_server::RelayService;
use holdfast_proto::v1::{
    Carried, CarriedBatch, ClientFrames, Forwarded, RefusalReason, ServerFrames,
};
use holdfast_runtime::{Pipe, Task, TransportError};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, Streaming};

use super::batches::{Credit, HandedOn, MESSAGES_MAX, Outgoing, batches, end_of};
use super::caller_of;
use super::takes_in::Gate;
use crate::rpc::access::{Door, PassedOn};
use crate::rpc::{refused, status};
use crate::session::Hub;

/// Messages between a stream's outbox and its place in the batches: what waits belongs in the outbox.
const MESSAGES_IN_FLIGHT: usize = 4;
/// How long the last messages of a stream may take that is over.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The service on the port for members.
pub(in crate::rpc) struct CarriedApi {
    pub(in crate::rpc) hub: Arc<Hub>,
    pub(in crate::rpc) door: Door,
    pub(in crate::rpc) gate: Gate,
}

/// A call, with the streams that it carries.
struct Call {
    hub: Arc<Hub>,
    door: Door,
    gate: Gate,
    by_node: u64,
    outgoing: Arc<Outgoing>,
    streams: Mutex<BTreeMap<u64, Served>>,
}

/// A stream that is served.
struct Served {
    /// `None`: its client sends nothing more.
    received: Option<mpsc::Sender<Bytes>>,
    credit: Arc<Credit>,
    /// Ends it when it is dropped.
    _task: Task,
}

#[tonic::async_trait]
impl RelayService for CarriedApi {
    type CarryStream = BoxStream<'static, Result<CarriedBatch, Status>>;

    async fn carry(
        &self,
        request: Request<Streaming<CarriedBatch>>,
    ) -> Result<Response<Self::CarryStream>, Status> {
        let proven = self.gate.proven_in(request.extensions());
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.unwrap_or_default();
        self.gate.admit_member(first.header.as_ref(), proven)?;
        let outgoing = Arc::new(Outgoing::default());
        let call = Arc::new(Call {
            hub: self.hub.clone(),
            door: self.door.clone(),
            gate: self.gate.clone(),
            by_node: first.header.map_or(0, |header| header.from_node),
            outgoing: outgoing.clone(),
            streams: Mutex::default(),
        });
        let taking = call.clone().take_all(first.items, incoming);
        let taking = self.hub.runtime().spawn("carry", taking);
        let ending = Ending { call, _taking: taking };
        let answer = batches(outgoing, None).map(move |batch| {
            let _ending = &ending;
            Ok(batch)
        });
        Ok(Response::new(answer.boxed()))
    }
}

/// The answer of a call: with its end, whichever end it is, the streams end.
struct Ending {
    call: Arc<Call>,
    _taking: Task,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let streams = std::mem::take(&mut *self.call.lock());
        drop(streams);
    }
}

impl Call {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Served>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what comes in until the member ends the call, or is gone.
    async fn take_all(self: Arc<Self>, first: Vec<Carried>, mut incoming: Streaming<CarriedBatch>) {
        let mut items = first;
        loop {
            for Carried { stream, what } in items {
                if let Some(what) = what {
                    self.take(stream, what);
                }
            }
            match incoming.message().await {
                Ok(Some(batch)) => items = batch.items,
                Ok(None) | Err(_) => break,
            }
        }
        self.outgoing.close();
    }

    fn take(self: &Arc<Self>, stream: u64, what: What) {
        match what {
            What::Opens(word) => self.open(stream, word),
            What::Message(message) => {
                let mut streams = self.lock();
                let Some(served) = streams.get_mut(&stream) else { return };
                let received = served.received.as_ref();
                // There is room for all that a member may send; a stream that has just ended here takes nothing.
                if received.is_some_and(|received| received.try_send(message).is_err()) {
                    served.received = None;
                }
            }
            What::HandedOn(bytes) => {
                if let Some(served) = self.lock().get(&stream) {
                    served.credit.give(bytes);
                }
            }
            What::End(_) => {
                if let Some(served) = self.lock().get_mut(&stream) {
                    served.received = None;
                }
            }
        }
    }

    fn open(self: &Arc<Self>, stream: u64, word: Forwarded) {
        self.gate.metrics.taken_in.inc();
        let (received, messages) = mpsc::channel(MESSAGES_MAX);
        let credit = Arc::new(Credit::new());
        let serving = self.clone().serve(stream, word, messages, credit.clone());
        let mut streams = self.lock();
        // It waits for the lock if it ends at once.
        let task = self.hub.runtime().spawn("carried-stream", serving);
        streams.insert(stream, Served { received: Some(received), credit, _task: task });
    }

    /// Serves a stream, and tells how it ended.
    async fn serve(
        self: Arc<Self>,
        stream: u64,
        word: Forwarded,
        messages: mpsc::Receiver<Bytes>,
        credit: Arc<Credit>,
    ) {
        let served = async {
            let passed_on = PassedOn { by_node: self.by_node, ..caller_of(word)? };
            self.served(stream, passed_on, messages, &credit).await
        };
        let end = served.await.err().unwrap_or_else(|| Status::ok(""));
        refused::note(self.hub.refusals(), &end);
        self.outgoing.push(stream, What::End(end_of(&end)));
        // With this the task itself is dropped: nothing may come after it.
        let served = self.lock().remove(&stream);
        drop(served);
    }

    async fn served(
        &self,
        stream: u64,
        passed_on: PassedOn,
        messages: mpsc::Receiver<Bytes>,
        credit: &Credit,
    ) -> Result<(), Status> {
        let token = passed_on.shown.token();
        let caller = self.door.caller_through(passed_on).await?;
        let (outgoing, frames) = mpsc::channel(MESSAGES_IN_FLIGHT);
        let incoming = decoded(messages, (self.outgoing.clone(), stream)).boxed();
        let hub = self.hub.clone();
        let serve = async move { hub.serve(Pipe { outgoing, incoming }, &caller).await };
        let serve = Box::pin(self.door.while_it_counts(token, serve));
        let (tell, is_over) = oneshot::channel();
        let serving = async {
            let end = serve.await;
            drop(tell);
            end
        };
        let sending = self.send_all(stream, frames, credit, is_over);
        let (end, ()) = future::join(serving, sending).await;
        end.map_err(|error| status::of_stream_error(&error))
    }

    /// Sends what a stream's outbox gives, and after the stream's end for as long as last words may take.
    async fn send_all(
        &self,
        stream: u64,
        mut frames: mpsc::Receiver<ServerFrames>,
        credit: &Credit,
        is_over: oneshot::Receiver<()>,
    ) {
        let all = async {
            while let Some(frames) = frames.recv().await {
                let message = frames.encode_to_vec();
                credit.take(message.len()).await;
                self.outgoing.push(stream, What::Message(message.into()));
            }
        };
        let too_late = async {
            // The sender is dropped with the end.
            let _ = is_over.await;
            self.hub.runtime().sleep(LAST_WORDS).await;
        };
        holdfast_runtime::select! {
            () = all => {}
            () = too_late => {}
        }
    }
}

/// The client's messages, as its stream would have them. What is taken off counts as handed on.
fn decoded(
    messages: mpsc::Receiver<Bytes>,
    told: (Arc<Outgoing>, u64),
) -> impl Stream<Item = Result<ClientFrames, TransportError>> + Send {
    let state = (messages, told, HandedOn::default());
    stream::unfold(state, |(mut messages, told, mut handed_on)| async move {
        let message = messages.recv().await?;
        handed_on.note(message.len(), (&told.0, told.1));
        let frames = ClientFrames::decode(message).map_err(|error| TransportError::Refused {
            reason: RefusalReason::Invalid,
            message: error.to_string(),
        });
        Some((frames, (messages, told, handed_on)))
    })
}
