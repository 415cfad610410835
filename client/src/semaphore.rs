//! Semaphores: up to so many permits of one lock are held together (DESIGN §16).

use holdfast_proto::v1;

use crate::transport::operator::Services;
use crate::{Acquire, Admin, Client, LockItem, Result, TryAcquire};

/// A lock of which up to a limit of permits are held together: [`Client::semaphore`].
///
/// A guard holds its permits as it would hold a lock: under a fencing token, for as long as the client's lease lasts.
/// The store grants in strict order: a request for many permits keeps those for few behind it, so that none starves.
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// let gpus = client.semaphore("gpu", 4);
/// let two = gpus.permits(2).await?;
/// println!("two of four, under token {}", two.token());
/// two.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until permits are"]
pub struct Semaphore {
    client: Client,
    name: String,
    limit: Option<u32>,
}

impl Semaphore {
    /// An acquire of `count` permits, from 1 to the limit.
    ///
    /// # Errors
    ///
    /// As of [`Acquire`]. [`RefusalReason::Permits`](crate::RefusalReason::Permits): it is no number from 1 to the limit;
    /// the lock has another limit, or none was set for good and this semaphore names none; the limit was lowered below
    /// `count` while the request waited; or the lock is in a scope with fallback. The caller holds nothing then.
    pub fn permits(&self, count: u32) -> Acquire {
        self.client.lock_all([self.item(count)])
    }

    /// The same, which never waits.
    ///
    /// # Errors
    ///
    /// As of [`TryAcquire`] and [`Semaphore::permits`].
    pub fn try_permits(&self, count: u32) -> TryAcquire {
        self.client.try_lock_all([self.item(count)])
    }

    fn item(&self, count: u32) -> LockItem {
        LockItem::permits(&self.name, count, self.limit)
    }
}

impl Client {
    /// The lock `name` as a semaphore with that many permits. All who ask for permits of it have to name the same
    /// limit; or `None`, if one was set for good ([`Admin::set_limit`], `holdfast limit`), which may change while they
    /// hold and wait.
    pub fn semaphore(&self, name: impl Into<String>, limit: impl Into<Option<u32>>) -> Semaphore {
        Semaphore { client: self.clone(), name: name.into(), limit: limit.into() }
    }
}

impl Admin {
    /// Sets up to how many permits of the lock `name` are held together, for good and at once; `None`: the limit goes
    /// once nobody holds permits or waits for some. Waiters that fit are granted; a limit that is lowered ends nothing,
    /// and refuses waiters that want more when their turn comes. Needs the verb `limit` on the name.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; [`RefusalReason::Invalid`](crate::RefusalReason::Invalid) for 0,
    /// [`RefusalReason::Permits`](crate::RefusalReason::Permits) for a lock in a scope with fallback,
    /// [`RefusalReason::Limit`](crate::RefusalReason::Limit) if there are too many bytes of values, as one of which it
    /// counts.
    pub async fn set_limit(&self, name: &str, limit: Option<u32>) -> Result<()> {
        let request = v1::SetLimitRequest { name: name.to_owned(), limit };
        let set = |mut at: Services| {
            let request = request.clone();
            async move { at.locks.set_limit(request).await }
        };
        self.ask("setting a limit", true, set).await.map(drop)
    }
}
