//! Owners: whoever asks again for what it has is told so, instead of waiting for itself (DESIGN §16).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Acquire, Client, TryAcquire};

/// Never the same number twice in this process, so that two owners differ also if one is used with the client of the
/// other.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Who asks for locks within a client: a task, a request, a piece of work ([`Client::owner`]). Cheap to clone; all clones
/// are one owner.
///
/// Two acquires of one client exclude each other like those of two machines: a function that asks for a lock which its
/// own caller holds waits for ever. Asked by an owner that holds the lock or waits for it, the second one returns at once
/// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld), with the token of the first, or
/// [`RefusalReason::AlreadyAsked`](crate::RefusalReason::AlreadyAsked). It is no second hold: the lock is given back with
/// the first guard.
///
/// ```no_run
/// # async fn example(client: holdfast::Client) -> holdfast::Result<()> {
/// use holdfast::Error;
///
/// let order = client.owner();
/// let guard = order.lock("orders/42").await?;
/// // … deep inside, where nobody knows what is held already …
/// match order.lock("orders/42").await {
///     Ok(inner) => println!("only we: {}", inner.token()),
///     Err(Error::AlreadyHeld { token, .. }) => println!("the caller holds it, under {token}"),
///     Err(error) => return Err(error),
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is asked until a lock is"]
pub struct Owner {
    client: Client,
    number: u64,
}

impl Owner {
    /// As [`Client::lock`], by this owner.
    pub fn lock(&self, name: impl Into<String>) -> Acquire {
        self.client.lock(name).by(self)
    }

    /// As [`Client::try_lock`], by this owner.
    pub fn try_lock(&self, name: impl Into<String>) -> TryAcquire {
        self.client.try_lock(name).by(self)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Client {
    /// A new owner. For requests other than its own [`lock`](Owner::lock) and [`try_lock`](Owner::try_lock) there is
    /// [`Acquire::by`].
    pub fn owner(&self) -> Owner {
        Owner { client: self.clone(), number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }
}
