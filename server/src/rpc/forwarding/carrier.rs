//! The end at the client of a [`Carry`]: a member that does not lead gives the messages of its clients' session
//! streams to the leader in shared batches, and the leader's to them.
//!
//! What a client has not read yet lies here: at most a window for each stream, and beyond the first 16 KiB within a
//! budget that all streams share. A stream that would go beyond it ends.
//!
//! [`Carry`]: holdfast_proto::v1::relay_service_server::RelayService::carry

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use holdfast_proto::v1::carried::What;
use holdfast_proto::v1::relay_service_client::RelayServiceClient;
use holdfast_proto::v1::{Carried, CarriedBatch, CarriedEnd, Forwarded, PeerHeader};
use holdfast_runtime::{Runtime, Task};
use http_body::Frame;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::batches::{BATCH_MAX, Credit, HandedOn, Outgoing, batches, status_of};
use super::messages::{Messages, framed};
use super::{ForwardingMetrics, last_frame};
use crate::bytes_budget::{BytesBudget, Taken};
use crate::session::StreamError;

/// A call to the leader, and the streams that it carries.
pub(super) struct Carrier {
    outgoing: Arc<Outgoing>,
    streams: Mutex<Streams>,
    metrics: ForwardingMetrics,
}

#[derive(Default)]
struct Streams {
    last: u64,
    open: BTreeMap<u64, Arc<ToClient>>,
    /// Set once, when the call is over.
    over: Option<Status>,
}

/// What is on its way to a client.
struct ToClient {
    queue: Mutex<Queue>,
    filled: AtomicWaker,
    /// What the client may send.
    credit: Credit,
}

struct Queue {
    messages: VecDeque<Bytes>,
    taken: Taken,
    end: Option<Status>,
}

impl Carrier {
    /// Begins a call on this channel. It ends with the channel's connection, or once it is closed; `ended` makes
    /// of its status what the clients of its streams are told.
    pub(super) fn begin(
        runtime: &Runtime,
        (channel, header): (Channel, PeerHeader),
        metrics: ForwardingMetrics,
        ended: impl FnOnce(Option<Status>) -> Status + Send + 'static,
    ) -> Arc<Self> {
        let (outgoing, streams) = (Arc::default(), Mutex::default());
        let carrier = Arc::new(Self { outgoing, streams, metrics });
        let call = carrier.clone();
        let call = async move {
            let mut client = RelayServiceClient::new(channel)
                .max_decoding_message_size(BATCH_MAX)
                .max_encoding_message_size(BATCH_MAX);
            let sent = batches(call.outgoing.clone(), Some(header));
            let end = match client.carry(sent).await {
                Ok(answer) => call.deliver(answer.into_inner()).await,
                Err(status) => Some(status),
            };
            call.end_all(&ended(end));
        };
        runtime.spawn("carrier", call).detach();
        carrier
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it carries anything.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().open.is_empty()
    }

    /// Whether the call is over.
    pub(super) fn is_over(&self) -> bool {
        self.lock().over.is_some()
    }

    /// Ends the call.
    pub(super) fn close(&self) {
        self.outgoing.close();
    }

    /// Carries a stream: what its client sends, and the body of the answer.
    pub(super) fn carry(
        self: &Arc<Self>,
        runtime: &Runtime,
        word: Forwarded,
        (body, longest): (Body, usize),
        budget: &Arc<BytesBudget>,
    ) -> Result<Body, Status> {
        let queue = Queue { messages: VecDeque::new(), taken: budget.nothing(), end: None };
        let to_client = Arc::new(ToClient {
            queue: Mutex::new(queue),
            filled: AtomicWaker::new(),
            credit: Credit::new(),
        });
        let stream = {
            let mut streams = self.lock();
            if let Some(over) = &streams.over {
                return Err(over.clone());
            }
            streams.last += 1;
            let stream = streams.last;
            streams.open.insert(stream, to_client.clone());
            stream
        };
        self.metrics.open.inc();
        self.outgoing.push(stream, What::Opens(word));
        let messages = Messages::new(body, longest);
        let reading = read(self.outgoing.clone(), stream, to_client.clone(), messages);
        let reading = runtime.spawn("carries", reading);
        let carrier = self.clone();
        let (handed_on, is_over) = (HandedOn::default(), false);
        Ok(Body::new(Answer { carrier, stream, to_client, handed_on, is_over, _reading: reading }))
    }

    /// Hands on what the leader sends until the call is over; the status, unless that is a plain end.
    async fn deliver(&self, mut incoming: Streaming<CarriedBatch>) -> Option<Status> {
        loop {
            match incoming.message().await {
                Ok(Some(batch)) => batch.items.into_iter().for_each(|item| self.take(item)),
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    fn take(&self, Carried { stream, what }: Carried) {
        let mut streams = self.lock();
        let Some(to_client) = streams.open.get(&stream) else { return };
        match what {
            Some(What::Message(message)) => {
                if let Err(full) = to_client.push(message) {
                    to_client.end(full);
                    streams.open.remove(&stream);
                    self.outgoing.push(stream, What::End(CarriedEnd::default()));
                }
            }
            Some(What::HandedOn(bytes)) => to_client.credit.give(bytes),
            Some(What::End(end)) => {
                to_client.end(status_of(end));
                streams.open.remove(&stream);
            }
            Some(What::Opens(_)) | None => {}
        }
    }

    fn end_all(&self, status: &Status) {
        self.outgoing.close();
        let mut streams = self.lock();
        streams.over = Some(status.clone());
        for to_client in std::mem::take(&mut streams.open).into_values() {
            self.metrics.failed.inc();
            to_client.end(status.clone());
        }
    }

    /// The client of a stream is gone.
    fn leave(&self, stream: u64) {
        self.metrics.open.dec();
        if self.lock().open.remove(&stream).is_some() {
            self.outgoing.push(stream, What::End(CarriedEnd::default()));
        }
    }
}

impl ToClient {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message for the client; an error if too much lies here for all of them.
    fn push(&self, message: Bytes) -> Result<(), Status> {
        let mut queue = self.lock();
        if !queue.taken.try_add(message.len() as u64) {
            let limit = queue.taken.limit();
            let why = "what clients have not read takes too many bytes";
            let full = StreamError::limit("outbox_bytes_total", limit, why);
            return Err(crate::rpc::status::of_stream_error(&full));
        }
        queue.messages.push_back(message);
        drop(queue);
        self.filled.wake();
        Ok(())
    }

    /// After what is on its way, the stream is over.
    fn end(&self, status: Status) {
        self.lock().end.get_or_insert(status);
        self.filled.wake();
    }
}

/// Reads what a client sends until it sends nothing more.
async fn read(
    outgoing: Arc<Outgoing>,
    stream: u64,
    to_client: Arc<ToClient>,
    mut messages: Messages,
) {
    loop {
        match messages.next().await {
            Ok(Some(message)) => {
                to_client.credit.take(message.len()).await;
                outgoing.push(stream, What::Message(message));
            }
            Ok(None) => break,
            Err(status) => {
                to_client.end(status);
                break;
            }
        }
    }
    outgoing.push(stream, What::End(CarriedEnd::default()));
}

/// The body of the answer to a client. Dropped when the client is gone, or has read all of it.
struct Answer {
    carrier: Arc<Carrier>,
    stream: u64,
    to_client: Arc<ToClient>,
    handed_on: HandedOn,
    is_over: bool,
    _reading: Task,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.to_client.filled.register(context.waker());
        let (message, end) = {
            let mut queue = self.to_client.lock();
            let message = queue.messages.pop_front();
            if let Some(message) = &message {
                queue.taken.give_back(message.len() as u64);
            }
            (message, queue.end.clone())
        };
        if let Some(message) = message {
            let Self { handed_on, carrier, stream, .. } = &mut *self;
            handed_on.note(message.len(), (&carrier.outgoing, *stream));
            return Poll::Ready(Some(Ok(Frame::data(framed(&message)))));
        }
        let Some(end) = end else { return Poll::Pending };
        self.is_over = true;
        Poll::Ready(Some(last_frame(&end)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.carrier.leave(self.stream);
    }
}
