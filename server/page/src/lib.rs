//! The web page of a node: who holds what, why everybody waits, what happened last night.
//!
//! It is a client of the node's own services, in the same process: what it shows and does goes through the same calls as
//! everybody's, with the identity of whoever looks, so that the same rules decide, and on a node that does not lead the
//! calls are passed on to the leader. HTML is made here, from templates; one stylesheet and one small script come from the
//! same binary, and nothing from anywhere else.
//!
//! # Invariants
//!
//! - Names, labels, notes and values are text, whatever is in them: templates escape everything, and nothing is marked as
//!   safe but what a template of ours made.
//! - Nothing is changed by a request that did not come from a form of this page (module `guard`).
//! - A token is in a cookie that no script can read, and in no address, log line or page.
//! - What a reader does not take in time is not kept for it (module `live`).
//!
//! # Bounds
//!
//! As many live pages as `live::STREAMS_MAX`; forms of [`FORM_BYTES_MAX`]; failed logins as module `guard` says.

mod acts;
mod calls;
mod chain;
mod guard;
mod live;
mod login;
mod past;
mod views;
mod words;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use holdfast_runtime::Runtime;

use calls::Client;
pub use calls::{Calls, Visitor};
use guard::Guard;
use live::Live;
use views::{Known, Shell, View};

/// Bytes of a form, at most.
pub const FORM_BYTES_MAX: usize = 16 << 10;

const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");
const ICON: &str = include_str!("../assets/icon.svg");

/// What the page stands on.
pub struct Settings {
    /// The services of this node, once it has them.
    pub calls: Box<dyn Fn() -> Option<Calls> + Send + Sync>,
    /// Whether it listens on loopback alone. Otherwise a browser that comes without TLS is shown no page.
    pub is_loopback: bool,
    /// Time, tasks and randomness.
    pub runtime: Runtime,
}

/// The page of a node.
pub(crate) struct Page {
    settings: Settings,
    guard: Guard,
    live: Live,
}

type Shared = Arc<Page>;

/// The paths of the page. Each request has to carry a [`Visitor`] as an extension.
pub fn router(settings: Settings) -> Router {
    let guard = Guard::new(&settings);
    let page = Arc::new(Page { settings, guard, live: Live::default() });
    let pages = Router::new()
        .route("/", get(show))
        .route("/locks", get(show))
        .route("/lock", get(show))
        .route("/sessions", get(show))
        .route("/session", get(show))
        .route("/scopes", get(show))
        .route("/history", get(show))
        .route("/live", get(live::stream))
        .route("/login", get(login::form).post(login::enter))
        .route("/logout", post(login::leave))
        .merge(acts::router())
        .route("/page.css", get(async || asset("text/css; charset=utf-8", STYLE)))
        .route("/page.js", get(async || asset("text/javascript; charset=utf-8", SCRIPT)))
        .route("/icon.svg", get(async || asset("image/svg+xml", ICON)));
    pages
        .layer(DefaultBodyLimit::max(FORM_BYTES_MAX))
        .layer(middleware::from_fn_with_state(page.clone(), guarded))
        .with_state(page)
}

/// Refuses what may not come in at all, and says on every answer what a browser may do with it.
async fn guarded(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
    next: Next,
) -> Response {
    let (method, headers) = (request.method(), request.headers());
    let mut response = match page.guard.admit(visitor.has_tls, method, headers) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    guard::set_headers(response.headers_mut());
    response
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    // It belongs to this build: another one may have another.
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text)
}

/// Shows a page.
async fn show(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    uri: Uri,
    request: Request,
) -> Response {
    let Some(client) = page.client(&visitor, &request) else { return starting() };
    let Some(view) = View::at(&uri) else { return StatusCode::NOT_FOUND.into_response() };
    let who = client.identity().await;
    let shell = Shell::new(&view, &uri, who, page.guard.form_token(client.token()));
    match view.main(&client, shell.form_token(), &mut Known::default()).await {
        Ok(main) => html(StatusCode::OK, &shell.around(&main)),
        Err(problem) if problem.asks_to_log_in() => login::redirect(&uri),
        Err(problem) => html(problem.status(), &shell.around(&problem.main())),
    }
}

impl Page {
    /// The services, for whoever looks; `None` while the node starts.
    fn client(&self, visitor: &Visitor, request: &Request) -> Option<Client> {
        let token = guard::token_in(visitor.has_tls, request.headers());
        self.client_with(visitor.clone(), token)
    }

    fn client_with(&self, visitor: Visitor, token: Option<String>) -> Option<Client> {
        let calls = (self.settings.calls)()?;
        Some(Client::new(calls, visitor, token, self.settings.runtime.clock.clone()))
    }
}

fn html(status: StatusCode, text: &str) -> Response {
    (status, [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Html(text.to_owned()))
        .into_response()
}

fn starting() -> Response {
    let text = "this node is starting; load the page again in a moment\n";
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], text).into_response()
}
