//! The leader's end: calls that members pass on.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use holdfast_proto::v1::PeerHeader;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::server::NamedService;
use tonic::{Extensions, Status};
use tower::Service;
use tower::util::MapResponse;

use super::{ForwardingMetrics, TAKEN_IN, announced, caller_of};
use crate::incoming::Peer;
use crate::members::PeerView;
use crate::raft::Proven;

/// A service on the port for members: each call is a client's, which a member has passed on.
#[derive(Clone)]
pub(in crate::rpc) struct TakesIn<S> {
    service: Marked<S>,
    gate: Gate,
}

/// A service whose answers are marked.
type Marked<S> = MapResponse<S, fn(Response<Body>) -> Response<Body>>;

/// Who may pass on calls.
#[derive(Clone)]
pub(in crate::rpc) struct Gate {
    pub(in crate::rpc) peers: Arc<dyn PeerView>,
    /// The node that a connection has proved to be.
    pub(in crate::rpc) proven: Proven,
    pub(in crate::rpc) metrics: ForwardingMetrics,
}

impl<S> TakesIn<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone,
{
    pub(in crate::rpc) fn new(service: S, gate: Gate) -> Self {
        Self { service: MapResponse::new(service, marked), gate }
    }
}

/// An answer of a release that takes calls in.
fn marked(mut answer: Response<Body>) -> Response<Body> {
    answer.headers_mut().insert(TAKEN_IN, HeaderValue::from_static("1"));
    answer
}

impl Gate {
    /// Lets a member's call in, as its client's.
    fn admit(&self, request: &mut Request<Body>) -> Result<(), Status> {
        let word = announced(request.headers_mut())?;
        self.admit_member(word.header.as_ref(), self.proven_in(request.extensions()))?;
        let passed_on = caller_of(word)?;
        // The connection is the member's, not the client's.
        request.extensions_mut().remove::<Peer>();
        request.extensions_mut().insert(passed_on);
        self.metrics.taken_in.inc();
        Ok(())
    }

    /// Lets a member in, under its own id.
    ///
    /// # Errors
    ///
    /// `PERMISSION_DENIED`.
    pub(super) fn admit_member(
        &self,
        header: Option<&PeerHeader>,
        proven: Option<u64>,
    ) -> Result<(), Status> {
        self.peers.admit(header).map_err(Status::permission_denied)?;
        let from = header.map(|header| header.from_node);
        match proven {
            Some(proven) if from != Some(proven) => Err(Status::permission_denied(format!(
                "the certificate of this connection is that of node {proven}"
            ))),
            _ => Ok(()),
        }
    }

    pub(super) fn proven_in(&self, extensions: &Extensions) -> Option<u64> {
        (self.proven)(extensions)
    }
}

impl<S: NamedService> NamedService for TakesIn<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for TakesIn<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<
        <Marked<S> as Service<Request<Body>>>::Future,
        Ready<Result<Response<Body>, Infallible>>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.gate.admit(&mut request) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(status) => Either::Right(ready(Ok(marked(status.into_http())))),
        }
    }
}
