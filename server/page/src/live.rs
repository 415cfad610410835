//! Live pages: the part of a page that moves, made anew once a second, sent when it has changed.
//!
//! A browser that does not take an event within [`TAKEN_WITHIN`] is cut: nothing is kept for it. Each stream ends after
//! [`LASTS`]; the browser comes back by itself, and shows its cookie again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::{Extension, Query, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::calls::{Client, Visitor};
use crate::views::{Known, Main, View};
use crate::{Shared, starting};

/// Live pages at once; others are told to come back, and show what they have.
pub(crate) const STREAMS_MAX: usize = 64;
/// How often a page is made anew.
const EVERY: Duration = Duration::from_secs(1);
/// An unchanged page is heard of so often, so that a browser knows that it is not cut off.
const QUIET: u32 = 10;
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// Rounds of [`EVERY`]: ten minutes.
const LASTS: u32 = 600;

/// The live pages.
#[derive(Default)]
pub(crate) struct Live(Arc<AtomicUsize>);

/// One of them, while it lasts.
struct Place(Arc<AtomicUsize>);

impl Live {
    fn place(&self) -> Option<Place> {
        let taken = self.0.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.0.clone());
        (taken < STREAMS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which page.
#[derive(Deserialize)]
pub(crate) struct At {
    at: String,
}

/// Streams a page.
pub(crate) async fn stream(
    State(page): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    Query(At { at }): Query<At>,
    request: Request,
) -> Response {
    let view = at.parse::<Uri>().ok().and_then(|at| View::at(&at));
    let Some(view) = view else { return StatusCode::NOT_FOUND.into_response() };
    let Some(client) = page.client(&visitor, &request) else { return starting() };
    let Some(place) = page.live.place() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many live pages\n").into_response();
    };
    let (outgoing, sent) = mpsc::channel(1);
    let runtime = page.settings.runtime.clone();
    let form_token = page.guard.form_token(client.token());
    let watch = Watch { view, client, form_token, outgoing };
    let clock = runtime.clone();
    // It ends with the browser's interest, or with its time.
    let watching = async move {
        let _place = place;
        watch.run(&clock).await;
    };
    runtime.spawn("live page", watching).detach();
    Sse::new(ReceiverStream::new(sent).map(Ok::<_, std::convert::Infallible>)).into_response()
}

/// A page that is watched.
struct Watch {
    view: View,
    client: Client,
    form_token: String,
    outgoing: mpsc::Sender<Event>,
}

impl Watch {
    async fn run(self, runtime: &holdfast_runtime::Runtime) {
        let mut last: Option<Main> = None;
        let mut quiet = 0_u32;
        let mut known = Known::default();
        for _ in 0..LASTS {
            let event = match self.view.main(&self.client, &self.form_token, &mut known).await {
                Ok(main) if last.as_ref() == Some(&main) => {
                    quiet += 1;
                    quiet.is_multiple_of(QUIET).then(|| Event::default().event("same").data(""))
                }
                Ok(main) => {
                    quiet = 0;
                    let event = Event::default().event("main").data(&main.html);
                    last = Some(main);
                    Some(event)
                }
                Err(problem) => {
                    last = None;
                    Some(Event::default().event("trouble").data(one_line(problem.why())))
                }
            };
            if let Some(event) = event {
                let taken = runtime.timeout(TAKEN_WITHIN, self.outgoing.send(event)).await;
                if !matches!(taken, Ok(Ok(()))) {
                    return;
                }
            }
            if self.outgoing.is_closed() {
                return;
            }
            runtime.sleep(EVERY).await;
        }
    }
}

/// An event of one line.
fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, Response};
    use tower::util::BoxCloneSyncService;

    use super::*;

    /// A node whose services answer nothing.
    fn silent(runtime: &holdfast_runtime::Runtime) -> Client {
        let refuse = tower::service_fn(async |_: Request<tonic::body::Body>| {
            let refused: Response<tonic::body::Body> =
                tonic::Status::unavailable("no leader").into_http();
            Ok::<_, std::convert::Infallible>(refused)
        });
        let calls = BoxCloneSyncService::new(refuse);
        Client::new(calls, Visitor::default(), None, runtime.clock.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_browser_that_takes_nothing_is_cut() {
        let runtime = holdfast_runtime::simulated::runtime(1, 1_000_000);
        let (outgoing, mut sent) = mpsc::channel(1);
        let view = View::at(&"/scopes".parse().unwrap()).unwrap();
        let watch = Watch { view, client: silent(&runtime), form_token: String::new(), outgoing };
        // The channel takes one event; the next one waits, and nobody takes it.
        let began = runtime.clock.now();
        watch.run(&runtime).await;
        let lasted = runtime.clock.now().saturating_since(began);
        assert!((TAKEN_WITHIN..TAKEN_WITHIN + 3 * EVERY).contains(&lasted), "{lasted:?}");
        assert!(sent.recv().await.is_some() && sent.recv().await.is_none());
    }

    #[test]
    fn there_are_places_for_so_many_and_no_more() {
        let live = Live::default();
        let places: Vec<_> = (0..STREAMS_MAX).map(|_| live.place()).collect();
        assert!(places.iter().all(Option::is_some) && live.place().is_none());
        drop(places);
        assert!(live.place().is_some());
    }
}
