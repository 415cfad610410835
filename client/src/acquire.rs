//! Asking for a lock.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use holdfast_seams::{BoxFuture, Moment, select};
use tokio::sync::{oneshot, watch};

use crate::client::Handle;
use crate::hold::Hold;
use crate::session::{Ask, Asked, Key};
use crate::{Client, Error, Guard, Place, Result};

type OnPlace = Box<dyn FnMut(&Place) + Send>;

/// A request for a lock that was not made yet: `.await` makes it.
///
/// Cancel safe: dropping it, before or while it is awaited, takes the request back; a grant that
/// crosses that is given back, never leaked.
///
/// # Errors
///
/// Awaiting it answers [`Error::NotGranted`] (somebody else has the lock, and the call waits no
/// longer), [`Error::Unreachable`] (no server within the limit), [`Error::Refused`],
/// [`Error::SessionLost`] or [`Error::Closed`]. After each, the caller does not hold the lock.
#[must_use = "nothing is asked until it is awaited"]
pub struct Acquire {
    client: Client,
    name: String,
    wait: bool,
    limit: Option<Duration>,
    on_place: Option<OnPlace>,
}

impl Acquire {
    pub(crate) fn new(client: Client, name: String, wait: bool) -> Self {
        let limit = (!wait).then(|| client.connect_timeout());
        Self { client, name, wait, limit, on_place: None }
    }

    /// Gives up after `limit`, which covers everything: reaching a server, retries, the queue.
    /// Nothing is left behind in the queue then.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = true;
        self.limit = Some(limit);
        self
    }

    /// Waits until the lock is granted, over outages and changes of leader too. The default of
    /// [`Client::lock`].
    pub fn wait_forever(mut self) -> Self {
        self.wait = true;
        self.limit = None;
        self
    }

    /// Calls `on_place` with the place in the queue, when the request enters it and at most once a
    /// second when it changes. Called by the task that awaits, between two polls.
    pub fn on_place(mut self, on_place: impl FnMut(&Place) + Send + 'static) -> Self {
        self.on_place = Some(Box::new(on_place));
        self
    }

    async fn run(self) -> Result<Guard> {
        let seams = self.client.session().seams().clone();
        let began = seams.clock.now();
        let mut pending = Pending::new(&self)?;
        let mut on_place = self.on_place;
        let granted = select! {
            granted = pending.granted(&mut on_place) => Some(granted),
            () = limit(self.limit, &self.client) => None,
        };
        match granted {
            Some(Ok(hold)) => Ok(pending.into_guard(hold)),
            // The try was denied, or the wait ended; the time is ours to tell.
            Some(Err(Error::NotGranted { name, holders, .. })) if self.wait => {
                Err(Error::NotGranted { name, holders, waited: Some(since(began, &self.client)) })
            }
            Some(Err(error)) => Err(error),
            None => Err(pending.given_up(&self.client, self.name, since(began, &self.client))),
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        Acquiring(Box::pin(self.run()))
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("name", &self.name)
            .field("wait", &self.wait)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// An [`Acquire`] being awaited.
#[must_use = "futures do nothing unless polled"]
pub struct Acquiring(BoxFuture<'static, Result<Guard>>);

impl Future for Acquiring {
    type Output = Result<Guard>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").finish_non_exhaustive()
    }
}

fn since(began: Moment, client: &Client) -> Duration {
    client.session().seams().clock.now().saturating_since(began)
}

/// Ends when the call waits no longer.
async fn limit(limit: Option<Duration>, client: &Client) {
    match limit {
        Some(limit) => client.session().seams().sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// A request that was made: undone when dropped, unless its grant became a guard.
struct Pending {
    handle: Arc<Handle>,
    key: Key,
    /// Whether dropping this undoes the request.
    armed: bool,
    answer: oneshot::Receiver<Result<Arc<Hold>>>,
    place: watch::Receiver<Option<Place>>,
}

impl Pending {
    fn new(acquire: &Acquire) -> Result<Self> {
        let handle = acquire.client.handle().clone();
        let Asked { key, answer, place } = handle.session.ask(Ask {
            name: acquire.name.as_str().into(),
            wait: acquire.wait,
            follow: acquire.on_place.is_some(),
        })?;
        Ok(Self { handle, key, armed: true, answer, place })
    }

    async fn granted(&mut self, on_place: &mut Option<OnPlace>) -> Result<Arc<Hold>> {
        loop {
            select! {
                answer = &mut self.answer => return answer.unwrap_or(Err(Error::Closed)),
                Ok(()) = self.place.changed(), if on_place.is_some() => {
                    let place = self.place.borrow_and_update().clone();
                    if let (Some(tell), Some(place)) = (on_place.as_mut(), place) {
                        tell(&place);
                    }
                }
            }
        }
    }

    fn into_guard(mut self, hold: Arc<Hold>) -> Guard {
        // From here on the guard gives back what there is to give back.
        self.armed = false;
        Guard::new(hold, self.key, self.handle.clone())
    }

    /// Why nothing was granted until the limit.
    fn given_up(&self, client: &Client, name: String, waited: Duration) -> Error {
        match self.place.borrow().clone() {
            Some(place) => Error::NotGranted { name, holders: place.holders, waited: Some(waited) },
            None if client.session().is_attached() => {
                Error::NotGranted { name, holders: Vec::new(), waited: Some(waited) }
            }
            None => client.unreachable(waited),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.armed {
            self.handle.session.abandon(self.key);
        }
    }
}
