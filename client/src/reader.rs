//! Reads that need no session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt;
use holdfast_proto::v1;
use holdfast_runtime::{BoxFuture, Transport, TransportError};

use crate::endpoints::{Asked, NoAnswer, Servers};
use crate::{LockInfo, NodeStatus, Page, Result, Watch};

/// The longest one server may take to answer before the reader tries the next.
pub(crate) const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);
/// Locks, or sequences, on a page.
pub(crate) const PAGE_SIZE: u32 = 1_000;

/// Reads locks and nodes, without a session. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    pub(crate) servers: Servers,
    pub(crate) transport: Arc<dyn Transport>,
}

impl Reader {
    /// One lock as of a linearizable read; `None` if it has no holder, no waiter, no value and no limit, and is neither closed nor frozen.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if no server answered within the connect timeout, [`Error::Refused`](crate::Error::Refused)
    /// if a server refused the read. A read changes nothing.
    pub async fn inspect(&self, name: &str) -> Result<Option<LockInfo>> {
        let request = v1::InspectRequest { name: name.to_owned() };
        let response =
            self.ask(|endpoint| self.transport.inspect(endpoint, request.clone())).await?;
        Ok(response.lock.map(LockInfo::from_wire))
    }

    /// Whether the grant with that token holds the lock `name`, as of a linearizable read. The hold
    /// may end at any time after that: a resource that has to be sure compares tokens itself, with
    /// every write.
    ///
    /// ```no_run
    /// # async fn example() -> holdfast::Result<()> {
    /// let reader = holdfast::Client::builder().endpoints(["127.0.0.1:7420"]).reader()?;
    /// if !reader.check_token("orders/42", 17_u64).await? {
    ///     println!("whoever shows token 17 does not hold orders/42 any more");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`].
    pub async fn check_token(&self, name: &str, token: impl Into<u64>) -> Result<bool> {
        let request = v1::CheckTokenRequest { name: name.to_owned(), token: token.into() };
        let response =
            self.ask(|endpoint| self.transport.check_token(endpoint, request.clone())).await?;
        Ok(response.current)
    }

    /// The locks whose names begin with `prefix`, in name order. It reads page by page; each page
    /// is consistent as of an instant of its own.
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut page = self.page(prefix, PAGE_SIZE, None).await?;
        let mut locks = std::mem::take(&mut page.locks);
        while let Some(after) = page.next {
            page = self.page(prefix, PAGE_SIZE, Some(&after)).await?;
            locks.append(&mut page.locks);
        }
        Ok(locks)
    }

    /// One page of [`Reader::list`]: at most `size` locks (1 to 1,000), after the page whose
    /// [`Page::next`] is passed.
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`].
    pub async fn page(&self, prefix: &str, size: u32, after: Option<&str>) -> Result<Page> {
        let request = v1::ListRequest {
            prefix: prefix.to_owned(),
            page_size: Some(size),
            page_token: after.unwrap_or_default().to_owned(),
        };
        let response = self.ask(|endpoint| self.transport.list(endpoint, request.clone())).await?;
        Ok(Page::from_wire(response))
    }

    /// Watches the locks whose names begin with `prefix` (empty: all): their state, then every
    /// change. It sends nothing before the first poll. See [`Watch`].
    ///
    /// ```no_run
    /// # async fn example() -> holdfast::Result<()> {
    /// use holdfast::WatchEvent;
    ///
    /// let reader = holdfast::Client::builder().endpoints(["127.0.0.1:7420"]).reader()?;
    /// let mut watch = reader.watch("orders/");
    /// while let Some(event) = watch.next().await {
    ///     match event? {
    ///         WatchEvent::Lock(lock) => println!("{} has {} holders", lock.name, lock.held_by),
    ///         WatchEvent::Synced => println!("that is all; what follows are changes"),
    ///         WatchEvent::Change(change) => println!("{}: {:?}", change.name, change.what),
    ///         WatchEvent::Interrupted => println!("this may be out of date for a moment"),
    ///         WatchEvent::Resumed => println!("it goes on; nothing was missed"),
    ///         WatchEvent::Restarted => println!("forget it all; the state comes anew"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::new(self.clone(), prefix.to_owned())
    }

    /// What a node reports about itself and its cluster: the first endpoint that answers.
    ///
    /// # Errors
    ///
    /// As of [`Reader::inspect`].
    pub async fn status(&self) -> Result<NodeStatus> {
        let response =
            self.ask(|endpoint| self.transport.status(endpoint, v1::StatusRequest {})).await?;
        Ok(NodeStatus::from_wire(response))
    }

    /// Calls one endpoint after the other, or the leader that one of them names, until one answers.
    pub(crate) async fn ask<T>(
        &self,
        call: impl Fn(&str) -> BoxFuture<'static, Result<T, TransportError>>,
    ) -> Result<T> {
        let call = |endpoint: &str| call(endpoint).map_err(NoAnswer::from);
        self.servers.ask(ATTEMPT_LIMIT, &mut Asked::default(), call).await
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("endpoints", &self.servers.endpoints).finish_non_exhaustive()
    }
}
