//! The admin port: whether the process is alive, whether it can serve, and its metrics.
//!
//! It runs on a runtime and a thread of its own: it answers while the node is busy, and its own slowness
//! does not slow the node. Names of locks are on the page alone (`server/page`), which is a client like all others.
//!
//! | path | answer |
//! |---|---|
//! | `/` and others | the page, unless the setting `page` is off |
//! | `/healthz` | 200 while the process lives |
//! | `/readyz` | 200 if the node leads with a quorum, or follows a leader that it hears; else 503 with the reason |
//! | `/metrics` | everything that is counted, as `OpenMetrics` text (see [`crate::metrics`]); 403 where clients need a certificate and none is shown, and with rules on without the verb `metrics` |

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use holdfast_page::Visitor;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::incoming::{Admission, Arrivals, Peer, Port};
use crate::listen::{Claim, ListenError, LocalAddress};

/// How long the thread may take to end after a request to stop.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

const PLAIN: &str = "text/plain";
/// The media type of `OpenMetrics` text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether the node can serve, and why, as a text for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Clients that connect here are served or shown the leader.
    pub ready: bool,
    /// One line.
    pub why: String,
}

/// What the admin port shows.
pub trait Inspected: Send + Sync + 'static {
    /// Whether the node can serve right now. Quick; called from the admin thread.
    fn readiness(&self) -> Readiness;

    /// Whether whoever is at the other end may see the metrics, by the header `authorization` or the
    /// certificate. Quick; called from the admin thread.
    fn may_see_metrics(&self, authorization: Option<&[u8]>, peer: &Peer) -> bool;

    /// Calls `look` with the metrics, brought up to date. Quick; called from the admin thread.
    fn metrics(&self, look: &mut dyn FnMut(&Registry));
}

type Shared = Arc<dyn Inspected>;

/// The paths of the admin port, with those of the page if there is one.
pub fn router(inspected: Shared, page: Option<Router>) -> Router {
    let page = page.unwrap_or_else(|| Router::new().route("/", get(index)));
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(inspected)
        .merge(page.layer(middleware::from_fn(as_visitor)))
}

/// Says of whoever looks at the page what their connection shows.
async fn as_visitor(
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = peer.address.map(|address| address.ip().to_string()).unwrap_or_default();
    let has_tls = peer.has_tls;
    let mut connection = Extensions::new();
    connection.insert(peer);
    request.extensions_mut().insert(Visitor { address, has_tls, connection });
    next.run(request).await
}

async fn index() -> &'static str {
    "holdfastd\n\n/healthz  the process lives\n/readyz   it can serve\n/metrics  what it counts\n"
}

async fn readyz(State(inspected): State<Shared>) -> impl IntoResponse {
    let Readiness { ready, why } = inspected.readiness();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, format!("{why}\n"))
}

async fn metrics(
    State(inspected): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    if !inspected.may_see_metrics(authorization, &peer) {
        let why = "not allowed: metrics\n".to_owned();
        return (StatusCode::FORBIDDEN, [(header::CONTENT_TYPE, PLAIN)], why);
    }
    let mut text = String::new();
    let mut encoded = Ok(());
    inspected.metrics(&mut |registry| encoded = encode(&mut text, registry));
    match encoded {
        Ok(()) => (StatusCode::OK, [(header::CONTENT_TYPE, OPEN_METRICS)], text),
        // Writing into a string cannot fail; a metric that cannot be written is a bug that has to show.
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(header::CONTENT_TYPE, PLAIN)],
            format!("{error}\n"),
        ),
    }
}

impl Connected<IncomingStream<'_, Arrivals>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Arrivals>) -> Self {
        tonic::transport::server::Connected::connect_info(stream.io())
    }
}

/// The running admin port; it is closed when this is dropped.
#[derive(Debug)]
pub struct AdminPort {
    stop: CancellationToken,
    ended: std::sync::mpsc::Receiver<()>,
}

impl AdminPort {
    /// Serves `router` on the claimed port, on a runtime and a thread of its own.
    ///
    /// # Errors
    ///
    /// [`ListenError`], also if the system provides no thread or no event queue.
    pub fn start(claim: Claim, router: Router, admission: &Admission) -> Result<Self, ListenError> {
        let (key, address) = (claim.key, claim.address);
        let fail = |source| ListenError { key, address: LocalAddress::Port(address), source };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
        let incoming = {
            let _context = runtime.enter();
            admission.arrivals(Port::Admin, claim.listen()?).map_err(fail)?
        };
        let stop = CancellationToken::new();
        let (end, ended) = std::sync::mpsc::sync_channel(1);
        let asked = stop.clone();
        let thread = std::thread::Builder::new().name("holdfast-admin".to_owned());
        let serve = move || {
            if let Err(error) = runtime.block_on(serve(incoming, router, asked)) {
                tracing::error!(%error, "the admin port is closed");
            }
            // The receiver is gone if the port was closed by the error above.
            let _ = end.send(());
        };
        thread.spawn(serve).map_err(fail)?;
        Ok(Self { stop, ended })
    }
}

/// Serves until the token is cancelled; open connections are then dropped as they are.
async fn serve(incoming: Arrivals, router: Router, stop: CancellationToken) -> io::Result<()> {
    holdfast_runtime::select! {
        () = stop.cancelled() => Ok(()),
        served = axum::serve(incoming, router.into_make_service_with_connect_info::<Peer>()).into_future() => served,
    }
}

impl Drop for AdminPort {
    fn drop(&mut self) {
        self.stop.cancel();
        // A thread that does not end in time ends with the process.
        let _ = self.ended.recv_timeout(ENDS_WITHIN);
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use prometheus_client::metrics::counter::Counter;
    use tower::Service;

    use super::*;

    struct Node {
        ready: bool,
    }

    impl Inspected for Node {
        fn readiness(&self) -> Readiness {
            Readiness { ready: self.ready, why: "forming: waiting for node 2".to_owned() }
        }

        fn may_see_metrics(&self, authorization: Option<&[u8]>, _peer: &Peer) -> bool {
            authorization.is_none()
        }

        fn metrics(&self, look: &mut dyn FnMut(&Registry)) {
            let mut registry = Registry::default();
            registry.register("grants", "Locks granted", Counter::<u64>::default());
            look(&registry);
        }
    }

    async fn get(ready: bool, path: &str) -> Response {
        let request = Request::get(path).extension(ConnectInfo(Peer::default()));
        answer(ready, request.body(Body::empty()).unwrap()).await
    }

    async fn answer(ready: bool, request: Request<Body>) -> Response {
        router(Arc::new(Node { ready }), None).call(request).await.unwrap()
    }

    async fn text(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_node_that_cannot_serve_is_alive_but_not_ready_and_says_why() {
        assert_eq!(get(false, "/healthz").await.status(), StatusCode::OK);
        let unready = get(false, "/readyz").await;
        assert_eq!(unready.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(text(unready).await, "forming: waiting for node 2\n");
    }

    #[tokio::test]
    async fn a_node_that_can_serve_is_ready() {
        assert_eq!(get(true, "/readyz").await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_are_open_metrics_text() {
        let metrics = get(true, "/metrics").await;
        assert_eq!(metrics.headers()[header::CONTENT_TYPE], OPEN_METRICS);
        let text = text(metrics).await;
        assert!(text.contains("grants_total 0") && text.ends_with("# EOF\n"), "{text}");
    }

    #[tokio::test]
    async fn metrics_are_for_those_who_may_see_them() {
        let request = Request::get("/metrics").extension(ConnectInfo(Peer::default()));
        let request = request.header(header::AUTHORIZATION, "Bearer wrong");
        let refused = answer(true, request.body(Body::empty()).unwrap()).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert_eq!(text(refused).await, "not allowed: metrics\n");
    }

    #[tokio::test]
    async fn an_unknown_path_is_not_found() {
        assert_eq!(get(true, "/locks").await.status(), StatusCode::NOT_FOUND);
    }
}
