//! A request that was sent: its place in the queue and its answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use holdfast_runtime::{BoxFuture, Clock, Instant, select};
use tokio::sync::{oneshot, watch};

use crate::hold::Hold;
use crate::info::PlaceReport;
use crate::items::AcquireRequest;
use crate::session::{Key, Machine, PendingAcquire};
use crate::{Client, Error, Guard, Place, Result};

/// A place in a queue. As a future it resolves to the guard, or to the error (see
/// [`Acquire`](crate::Acquire)). As a stream, or by [`QueuePlace::next`], it yields the place when
/// the request enters the queue, and each change if
/// [`Acquire::follow_place`](crate::Acquire::follow_place) was set. The stream ends when there is
/// an answer.
///
/// Cancel safe: the futures of both can be dropped and awaited again. Dropping the `QueuePlace`
/// itself cancels the request; the client releases a grant that crosses the cancel.
#[must_use = "dropping it takes the request back"]
pub struct QueuePlace {
    /// `None` once there is an answer.
    granting: Option<BoxFuture<'static, Result<Guard>>>,
    /// The answer, if the stream found it first.
    answer: Option<Result<Guard>>,
    places: BoxStream<'static, Place>,
    told: Option<watch::Receiver<Option<PlaceReport>>>,
    clock: Arc<dyn Clock>,
}

impl QueuePlace {
    pub(crate) fn new(
        client: Client,
        request: AcquireRequest,
        limit: Option<Duration>,
        asked: Result<PendingAcquire>,
    ) -> Self {
        let clock = client.session().runtime.clock.clone();
        match asked {
            Ok(asked) => {
                let told = asked.place.clone();
                let began = clock.now();
                let PendingAcquire { key, answer, place } = asked;
                let pending = Pending { client, request, key, armed: true, answer, place };
                let granting = pending.granting(began, limit);
                let (granting, places) = (Some(Box::pin(granting) as _), places(told.clone()));
                Self { granting, answer: None, places, told: Some(told), clock }
            }
            Err(error) => Self {
                granting: None,
                answer: Some(Err(error)),
                places: stream::empty().boxed(),
                told: None,
                clock,
            },
        }
    }

    /// The place that the store reported last, with the ages of its holders as of now; `None` while
    /// the request has no place in the queue, as far as the client knows.
    pub fn place(&self) -> Option<Place> {
        let told = self.told.as_ref()?.borrow();
        told.as_ref().map(|told| told.aged(self.clock.now()))
    }

    /// Waits for the next place; `None` when there is an answer. It skips places that newer ones
    /// have replaced. Cancel safe.
    pub async fn next(&mut self) -> Option<Place> {
        StreamExt::next(self).await
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(granting) = &mut self.granting {
            let Poll::Ready(answer) = granting.as_mut().poll(context) else {
                return Poll::Pending;
            };
            self.granting = None;
            self.answer = Some(answer);
        }
        Poll::Ready(())
    }
}

impl Future for QueuePlace {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.poll_answer(context) {
            // A poll after the answer was taken stays pending.
            Poll::Ready(()) => self.answer.take().map_or(Poll::Pending, Poll::Ready),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Stream for QueuePlace {
    type Item = Place;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Place>> {
        // The wait limit also counts while the caller polls only the stream.
        match self.poll_answer(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.places.poll_next_unpin(context),
        }
    }
}

impl fmt::Debug for QueuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePlace").field("place", &self.place()).finish_non_exhaustive()
    }
}

fn places(told: watch::Receiver<Option<PlaceReport>>) -> BoxStream<'static, Place> {
    let next = async |mut told: watch::Receiver<Option<PlaceReport>>| {
        loop {
            if told.changed().await.is_err() {
                // The request is answered; the guard or the error comes next.
                return std::future::pending().await;
            }
            let place = told.borrow_and_update().as_ref().map(|told| told.place.clone());
            if let Some(place) = place {
                return Some((place, told));
            }
        }
    };
    stream::unfold(told, next).boxed()
}

/// A sent request. Dropping it cancels the request, unless its grant became a guard.
struct Pending {
    client: Client,
    request: AcquireRequest,
    key: Key,
    armed: bool,
    answer: oneshot::Receiver<Result<Arc<Hold>>>,
    place: watch::Receiver<Option<PlaceReport>>,
}

impl Pending {
    async fn granting(mut self, began: Instant, limit: Option<Duration>) -> Result<Guard> {
        let runtime = self.client.session().runtime.clone();
        let granted = select! {
            answer = &mut self.answer => Some(answer.unwrap_or(Err(Error::Closed))),
            () = passing(limit.map(|limit| began + limit), &*runtime.clock) => None,
        };
        let waited = runtime.clock.now().saturating_since(began);
        match granted {
            Some(Ok(hold)) => {
                // From here on the guard releases the locks.
                self.armed = false;
                Ok(Guard { hold, key: self.key, handle: self.client.handle.clone() })
            }
            // The server denied the try, or ended the wait; the client measures the time.
            Some(Err(Error::NotGranted { names, holders, .. })) if self.request.wait => {
                Err(Error::NotGranted { names, holders, waited: Some(waited) })
            }
            Some(Err(error)) => Err(error),
            None => Err(self.given_up(waited)),
        }
    }

    /// The error when the limit passed without a grant.
    fn given_up(&self, waited: Duration) -> Error {
        let now = self.client.session().runtime.clock.now();
        let place = self.place.borrow().as_ref().map(|told| told.aged(now));
        if place.is_none() && !self.client.session().look(Machine::is_ready) {
            return self.client.unreachable(waited);
        }
        let holders = place.map(|place| place.holders).unwrap_or_default();
        Error::NotGranted { names: self.request.names(), holders, waited: Some(waited) }
    }
}

/// Ends when the limit passes; never without one.
async fn passing(limit: Option<Instant>, clock: &dyn Clock) {
    match limit {
        Some(limit) => clock.sleep_until(limit).await,
        None => std::future::pending().await,
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.armed {
            self.client.session().abandon(self.key);
        }
    }
}
