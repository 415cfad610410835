//! A client: one session, one stream, one task that keeps both.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Acquire, TryAcquire};
use crate::items::Need;
use crate::session::{Machine, Session};
use crate::{Builder, Election, Error, Guard, LockItem, Reader, Result};

/// A session at a Holdfast cluster. Cheap to clone; all clones are one session.
///
/// A task keeps the session: it renews the lease, reconnects, follows the leader and resumes the
/// session, so locks outlive broken connections and changes of leader. When the last clone, acquire
/// and guard is dropped, the task closes the session, if the runtime still runs; [`Client::close`]
/// waits for it.
#[derive(Clone)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
    reader: Reader,
}

/// Keeps the session open. Clients, acquires and guards have one; the session's task does not.
pub(crate) struct Handle {
    pub(crate) session: Arc<Session>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl Client {
    pub(crate) fn new(session: Arc<Session>, reader: Reader) -> Self {
        Self { handle: Arc::new(Handle { session }), reader }
    }

    /// Opens a session with default settings at the servers, each as `host:port`.
    ///
    /// # Errors
    ///
    /// As of [`Builder::connect`].
    pub async fn connect(endpoints: impl IntoIterator<Item: Into<String>>) -> Result<Self> {
        Self::builder().endpoints(endpoints).connect().await
    }

    /// A builder with default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// An acquire of the lock `name`. Awaiting it waits in the lock's queue, for ever unless
    /// [`Acquire::wait`] sets a limit.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// use std::time::Duration;
    ///
    /// let guard = client.lock("orders/42").wait(Duration::from_secs(30)).await?;
    /// println!("{} is held under token {}", guard.name(), guard.token());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> Acquire {
        self.acquire([name.into()], Need::All, true)
    }

    /// Waits for the lock `name`, runs `work` while it is safe, and gives it back.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let token = client.with_lock("nightly", async |guard| guard.token()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// If the future is dropped, `work` is dropped where it stands, and the client gives the lock
    /// back in the background.
    ///
    /// # Errors
    ///
    /// Those of an [`Acquire`]: `work` was not called. [`Error::Lost`]: the lock stopped being safe,
    /// and `work` was dropped at its current await point. Once `work` is done, the outcome of the
    /// release is none of it: the client goes on until the lock is given back.
    pub async fn with_lock<T>(
        &self,
        name: impl Into<String>,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<T> {
        let guard = self.lock(name).await?;
        let done = guard.run(work(&guard)).await?;
        let _ = guard.release().await;
        Ok(done)
    }

    /// The election `name`: candidates, of whom one leads, and observers. It sends nothing.
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(self.clone(), name.into())
    }

    /// An acquire of the lock `name` that does not wait. If another client holds it or waits for
    /// it, awaiting the acquire returns [`Error::NotGranted`]. It may take up to the connect
    /// timeout to reach a server.
    pub fn try_lock(&self, name: impl Into<String>) -> TryAcquire {
        TryAcquire(self.acquire([name.into()], Need::All, false))
    }

    /// Takes over what was imported of the lock `name` for `owner`, as the other store named it:
    /// its hold, under a new token, or its place in the queue (DESIGN §10). From then on it is a
    /// guard, or a wait, of this session like any other. When a wait limit passes or the wait is
    /// dropped, the client gives the place up.
    ///
    /// Awaiting it returns [`Error::Refused`] with
    /// [`RefusalReason::NotImported`](crate::RefusalReason::NotImported) if the store has no such
    /// import: it was never imported, was claimed before, or has expired.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.claim("jobs/7", "billing-3").await?;
    /// # Ok(()) }
    /// ```
    pub fn claim(&self, name: impl Into<String>, owner: impl Into<String>) -> Acquire {
        self.lock(name).claimed_from(owner.into())
    }

    /// An acquire of several locks, all of them or none, under one token: 1 to 64 names, each once.
    ///
    /// It waits in all their queues at once and holds nothing meanwhile, so sets alone never
    /// deadlock, in whatever order they name the locks. While it is first in the queue of a free
    /// lock, it keeps later requests out of that lock, so that it does not starve.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let guard = client.lock_all(["accounts/7", "accounts/9"]).await?;
    /// // … move money from one to the other …
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock_all(&self, items: impl IntoIterator<Item: Into<LockItem>>) -> Acquire {
        self.acquire(items, Need::All, true)
    }

    /// An acquire of several locks that does not wait. If another client holds one of them in a
    /// conflicting mode, or waits for one, awaiting the acquire returns [`Error::NotGranted`] and
    /// the caller holds nothing.
    pub fn try_lock_all(&self, items: impl IntoIterator<Item: Into<LockItem>>) -> TryAcquire {
        TryAcquire(self.acquire(items, Need::All, false))
    }

    /// An acquire of whichever of several locks are free, under one token: 1 to 64 names, each
    /// once. [`Guard::names`](crate::Guard::names) lists the granted ones.
    ///
    /// It waits until one is granted; if several are free at the start, or become so at the same
    /// moment, it gets them all.
    ///
    /// ```no_run
    /// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
    /// let mut rest = vec!["a", "b", "c"];
    /// while !rest.is_empty() {
    ///     let guard = client.any_of(rest.clone()).await?;
    ///     for name in guard.names() {
    ///         println!("working on {name}");
    ///     }
    ///     rest.retain(|name| !guard.holds(name));
    ///     guard.release().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn any_of(&self, items: impl IntoIterator<Item: Into<LockItem>>) -> Acquire {
        self.acquire(items, Need::Any { min: 1 }, true)
    }

    /// An acquire of those of several locks that are free now. If none is, awaiting it returns
    /// [`Error::NotGranted`].
    pub fn try_any_of(&self, items: impl IntoIterator<Item: Into<LockItem>>) -> TryAcquire {
        TryAcquire(self.acquire(items, Need::Any { min: 0 }, false))
    }

    fn acquire(
        &self,
        items: impl IntoIterator<Item: Into<LockItem>>,
        need: Need,
        wait: bool,
    ) -> Acquire {
        Acquire::new(self.clone(), items.into_iter().map(Into::into).collect(), need, wait)
    }

    /// Reads of locks and nodes, and watches, with the endpoints of this client.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The session's TTL, as the server granted it.
    pub fn ttl(&self) -> Duration {
        self.handle.session.ttl()
    }

    /// The name under which others see its session: [`Builder::label`](crate::Builder::label), else
    /// `host:pid`.
    pub fn label(&self) -> String {
        self.session().look(|session| session.label().to_owned())
    }

    /// Whether the session has a stream now to a server that may grant `name`, as far as this client
    /// knows: one with authority over the scope of the name, if the name is in a scope. It sends
    /// nothing.
    pub fn serves(&self, name: &str) -> bool {
        self.session().look(|session| session.serves(name))
    }

    /// As [`Client::serves`], for a caller that knows that the name is in this scope: only while the store names it.
    pub fn serves_in_scope(&self, scope: &str, name: &str) -> bool {
        self.session().look(|session| session.names_scope(scope) && session.serves(name))
    }

    /// The id of the cluster that the session is at, 16 bytes; `None` while the client knows none.
    pub fn cluster(&self) -> Option<Vec<u8>> {
        self.session().look(Machine::cluster)
    }

    /// Ends the session: every guard of it is lost, every wait ends with [`Error::Closed`], and the
    /// store grants its locks to the next waiters at once.
    ///
    /// If the future is dropped, the client closes the session in the background.
    ///
    /// # Errors
    ///
    /// [`Error::OutcomeUnknown`] if no server confirmed it within 5 s. No guard of this client is
    /// safe any more, and the store ends the session when its TTL runs out.
    pub async fn close(&self) -> Result<()> {
        self.handle.session.close();
        self.handle.session.closed().await
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.handle.session
    }

    /// The error after `waited` without a server that served.
    pub(crate) fn unreachable(&self, waited: Duration) -> Error {
        let tried = self.session().look(|session| session.tried().clone());
        tried.unreachable(&self.reader.servers.endpoints, waited)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.reader.servers.endpoints)
            .field("attached", &self.session().look(Machine::is_ready))
            .finish_non_exhaustive()
    }
}
