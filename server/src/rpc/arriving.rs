//! Clients' messages that have not arrived completely, and the bytes they take meanwhile.
//!
//! A decoder keeps the bytes of a message until the last one has arrived. One message has at most
//! `max_message_bytes`, but each connection may have a thousand of them under way, and none of them ever
//! has to end. So they share a budget: [`Measured`] follows the frames of gRPC in the bytes that come in
//! for its service, and a call that needs more when the budget is full is refused.
//!
//! # Invariants
//!
//! - What a body has taken is what its decoder keeps: nothing of a complete message, all bytes of an
//!   incomplete one. It is given back when the message is complete, or the call is over.
//! - The first [`FREE`](crate::bytes_budget::FREE) bytes of a message are never refused: what the
//!   library sends arrives even while another client fills the budget.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use holdfast_mutants::mutant;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::server::NamedService;
use tower::Service;

use super::status;
use crate::bytes_budget::{BytesBudget, Taken};
use crate::session::StreamError;

/// The length of the header before each message: a byte that says whether it is compressed, and four of
/// its length.
const HEADER: usize = 5;

/// A service whose calls share a budget for messages under way.
#[derive(Clone, Debug)]
pub(super) struct Measured<S> {
    service: S,
    budget: Arc<BytesBudget>,
}

/// The body of one call, measured as it comes in.
struct MeasuredBody {
    body: Body,
    message: Message,
    taken: Taken,
    budget: Arc<BytesBudget>,
}

/// How much of the message under way has come in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Message {
    /// The bytes of its header that have come in.
    header: [u8; HEADER],
    /// Bytes of the header that have come in.
    headed: usize,
    /// Bytes after the header that have come in.
    arrived: u64,
}

impl<S> Measured<S> {
    pub(super) fn new(service: S, budget: Arc<BytesBudget>) -> Self {
        Self { service, budget }
    }
}

impl<S: NamedService> NamedService for Measured<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Measured<S>
where
    S: Service<Request<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let budget = self.budget.clone();
        self.service.call(request.map(|body| {
            let taken = budget.nothing();
            Body::new(MeasuredBody { body, message: Message::default(), taken, budget })
        }))
    }
}

impl MeasuredBody {
    /// Counts incoming bytes; an error if the decoder may not keep them.
    fn measure(&mut self, data: &[u8]) -> Result<(), Status> {
        self.message.follow(data);
        let (kept, before) = (self.message.kept(), self.taken.bytes());
        if kept <= before {
            self.taken.give_back(before - kept);
            return Ok(());
        }
        if self.taken.try_add(kept - before) || mutant!(ArrivingBytesNotCounted) {
            return Ok(());
        }
        Err(status::of_stream_error(&full(&self.budget)))
    }
}

fn full(budget: &BytesBudget) -> StreamError {
    let message = "the messages of all clients that have not arrived whole take too many bytes";
    StreamError::limit("arriving_bytes_total", budget.limit(), message)
}

impl http_body::Body for MeasuredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.measure(data)?;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Message {
    /// Advances by the bytes that came in, over as many messages as they contain.
    fn follow(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            data =
                if self.headed < HEADER { self.take_header(data) } else { self.take_bytes(data) };
            if self.headed == HEADER && self.arrived == self.length() {
                *self = Self::default();
            }
        }
    }

    fn take_header<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let missing = self.header.iter_mut().skip(self.headed);
        let taken = missing.zip(data).map(|(place, byte)| *place = *byte).count();
        self.headed += taken;
        data.get(taken..).unwrap_or_default()
    }

    fn take_bytes<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let missing = usize::try_from(self.length() - self.arrived).unwrap_or(usize::MAX);
        let taken = missing.min(data.len());
        self.arrived += taken as u64;
        data.get(taken..).unwrap_or_default()
    }

    /// The length of the message, once its header is there.
    fn length(&self) -> u64 {
        let [_, a, b, c, d] = self.header;
        u64::from(u32::from_be_bytes([a, b, c, d]))
    }

    /// The bytes that a decoder keeps of it.
    fn kept(&self) -> u64 {
        self.headed as u64 + self.arrived
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.resize(HEADER + length as usize, 7);
        bytes
    }

    /// However the bytes are cut, what is kept is what has come in of the incomplete message.
    #[test]
    fn what_is_kept_is_the_message_that_is_not_whole() {
        let all: Vec<u8> = [message(0), message(3), message(1), message(300)].concat();
        let ends = [5, 13, 19, 324];
        assert_eq!(all.len(), 324);
        for piece in [1, 2, 3, 5, 7, 64, 324] {
            let mut followed = Message::default();
            let mut come = 0;
            for data in all.chunks(piece) {
                followed.follow(data);
                come += data.len();
                let whole = ends.iter().filter(|end| **end <= come).max().unwrap_or(&0);
                assert_eq!(followed.kept(), (come - whole) as u64, "{come} in pieces of {piece}");
            }
            assert_eq!(followed, Message::default());
        }
    }

    fn body(budget: &Arc<BytesBudget>) -> MeasuredBody {
        let (body, message) = (Body::empty(), Message::default());
        MeasuredBody { body, message, taken: budget.nothing(), budget: budget.clone() }
    }

    #[test]
    fn a_full_budget_refuses_long_messages_and_no_short_ones() {
        let shown = Gauge::default();
        let budget = BytesBudget::new(100_000, shown.clone());
        let (mut one, mut other, mut short) = (body(&budget), body(&budget), body(&budget));
        let long = message(90_000);

        one.measure(&long[..80_000]).unwrap();
        let refused = other.measure(&long[..40_000]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("100000"), "{}", refused.message());
        assert_eq!(shown.get(), 80_000, "what was refused is not kept");
        for data in message(16_000).chunks(4_000) {
            short.measure(data).unwrap();
        }
        one.measure(&long[80_000..]).unwrap();
        assert_eq!(shown.get(), 0, "whole messages are the decoder's no more");
        other.message = Message::default();
        other.measure(&long[..40_000]).unwrap();
        drop(other);
        assert_eq!(shown.get(), 0, "a call that is over gives back what it had");
    }
}
