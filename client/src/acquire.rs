//! Asking for locks.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use crate::items::{Need, Wanted};
use crate::session::Ask;
use crate::{Client, Guard, LockItem, QueuePlace, Result};

/// A request for locks that was not made yet: `.await` makes it and waits for the guard,
/// [`Acquire::enqueue`] makes it and gives its place in the queue.
///
/// Cancel safe: dropping it, before or while it is awaited, takes the request back; a grant that
/// crosses that is given back, never leaked.
///
/// # Errors
///
/// Awaiting it answers [`Error::NotGranted`](crate::Error::NotGranted) (somebody else has the
/// lock, and the call waits no longer), [`Error::Unreachable`](crate::Error::Unreachable) (no
/// server within the limit), [`Error::Refused`](crate::Error::Refused) (what was asked is wrong,
/// or at a limit), [`Error::SessionLost`](crate::Error::SessionLost) or
/// [`Error::Closed`](crate::Error::Closed). After each, the caller holds none of the locks.
#[must_use = "nothing is asked until it is awaited or enqueued"]
pub struct Acquire {
    client: Client,
    items: Vec<LockItem>,
    need: Need,
    wait: bool,
    limit: Option<Duration>,
    follow: bool,
    claim_owner: Option<String>,
}

impl Acquire {
    pub(crate) fn new(client: Client, items: Vec<LockItem>, need: Need, wait: bool) -> Self {
        let limit = (!wait).then(|| client.connect_timeout());
        Self { client, items, need, wait, limit, follow: false, claim_owner: None }
    }

    /// Holds the lock, or all of several, beside others that share it. Shared requests that are
    /// next to each other in the queue are granted together; one that asks to be alone is never
    /// overtaken by them.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let reading = client.lock("rates").shared().await?;
    /// # Ok(()) }
    /// ```
    pub fn shared(mut self) -> Self {
        for item in &mut self.items {
            *item = LockItem::shared(item.name());
        }
        self
    }

    /// Gives up after `limit`, which covers everything: reaching a server, retries, the queue.
    /// Nothing is left behind in the queue then. The limit is looked at while the acquire, or its
    /// [`QueuePlace`], is polled.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = true;
        self.limit = Some(limit);
        self
    }

    pub(crate) fn claimed_from(mut self, owner: String) -> Self {
        self.claim_owner = Some(owner);
        self
    }

    /// As it is, it gives up when it has no answer after `limit`.
    pub(crate) fn answered_within(mut self, limit: Duration) -> Self {
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

    /// Has the store push the place in the queue whenever it changes, at most once a second, to
    /// be read from the [`QueuePlace`]. Without this it tells the place at which the request
    /// enters, and nothing more.
    pub fn follow_place(mut self) -> Self {
        self.follow = true;
        self
    }

    /// Makes the request now and gives its place in the queue: a stream of places, and the future
    /// of the guard. To be called inside the runtime that the client was made in.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let mut place = client.lock("jobs").follow_place().enqueue();
    /// while let Some(at) = place.next().await {
    ///     println!("{} before us", at.place);
    /// }
    /// let guard = place.await?;
    /// # Ok(()) }
    /// ```
    pub fn enqueue(self) -> QueuePlace {
        let asked = self.ask();
        QueuePlace::new(self.client, self.items, self.limit, self.wait, asked)
    }

    fn ask(&self) -> Result<crate::session::Asked> {
        let wanted = Wanted::new(&self.items, self.need)?.claimed_from(self.claim_owner.clone());
        self.client.session().ask(Ask { wanted, wait: self.wait, follow: self.follow })
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard>;
    type IntoFuture = QueuePlace;

    fn into_future(self) -> QueuePlace {
        self.enqueue()
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("items", &self.items)
            .field("need", &self.need)
            .field("wait", &self.wait)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
