//! The page of this node: its own services, called in the same process.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use holdfast_page::{Calls, Settings};
use holdfast_runtime::{BoxFuture, Runtime};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tower::Service;
use tower::util::BoxCloneSyncService;

use super::view::View;
use crate::config::Config;

/// The paths of the page, unless the settings turn it off.
pub(super) fn router(config: &Config, view: &Arc<View>, runtime: &Runtime) -> Option<Router> {
    let view = view.clone();
    config.node.page.then(|| {
        holdfast_page::router(Settings {
            calls: Box::new(move || view.calls()),
            is_loopback: config.node.admin_listen.is_loopback(),
            runtime: runtime.clone(),
        })
    })
}

/// The services as the page calls them: on the node's event queue, where they belong.
pub(super) fn calls(routes: Routes, runtime: Runtime) -> Calls {
    BoxCloneSyncService::new(OnNode { routes, runtime })
}

#[derive(Clone)]
struct OnNode {
    routes: Routes,
    runtime: Runtime,
}

impl Service<Request<Body>> for OnNode {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let mut routes = self.routes.clone();
        let (tell, told) = oneshot::channel();
        let task = self.runtime.spawn("page", async move {
            let answer = match routes.call(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            // The page may not wait any more.
            let _ = tell.send(answer);
        });
        Box::pin(async move {
            // It ends with whoever waits for it.
            let _task = task;
            Ok(told.await.unwrap_or_else(|_| Status::unavailable("this node stops").into_http()))
        })
    }
}
