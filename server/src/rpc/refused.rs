//! Counts the refusals of calls where they leave, whichever part refused: a call that fails answers with a
//! status alone, and tonic leaves that in the extensions of the response.
//!
//! What refuses within a stream, or within the answer of a call that succeeds, is counted where it is put in.

use std::convert::Infallible;
use std::task::{Context, Poll};

use holdfast_runtime::BoxFuture;
use tonic::Status;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tower::Service;

use super::status;
use crate::session::Refusals;

/// A service whose refusals are counted.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    service: S,
    refusals: Refusals,
}

impl<S> Counted<S> {
    pub(super) fn new(service: S, refusals: Refusals) -> Self {
        Self { service, refusals }
    }
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, C> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<C>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<C>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<C>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (answered, refusals) = (self.service.call(request), self.refusals.clone());
        Box::pin(async move {
            let response = answered.await?;
            if let Some(failed) = response.extensions().get::<Status>() {
                note(&refusals, failed);
            }
            Ok(response)
        })
    }
}

/// A status leaves, which may carry a refusal.
pub(super) fn note(refusals: &Refusals, status: &Status) {
    if let Some(reason) = status::reason_in(status) {
        refusals.note(reason);
    }
}
