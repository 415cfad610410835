//! What the clients of a loop lock in: the native store, or a recipe on Cassandra.

use std::time::Duration;

use holdfast::{Client, Guard, Result};
#[cfg(feature = "cassandra")]
use holdfast_recipes::{RemoteGuard, RemoteLocker, Wait};

/// One session at a store.
#[derive(Clone)]
pub(crate) enum Store {
    Native(Client),
    #[cfg(feature = "cassandra")]
    Cassandra(std::sync::Arc<dyn RemoteLocker>),
}

/// A lock that is held in it.
pub(super) enum Held {
    Native(Guard),
    #[cfg(feature = "cassandra")]
    Cassandra(RemoteGuard),
}

impl Store {
    /// Waits for the lock for at most `limit`.
    pub(super) async fn acquire(&self, name: &str, limit: Duration) -> Result<Held> {
        match self {
            Self::Native(client) => client.lock(name).wait(limit).await.map(Held::Native),
            #[cfg(feature = "cassandra")]
            Self::Cassandra(locker) => {
                locker.acquire(name, Wait::AtMost(limit)).await.map(Held::Cassandra)
            }
        }
    }
}

impl Held {
    pub(super) async fn release(self) -> Result<()> {
        match self {
            Self::Native(guard) => guard.release().await,
            #[cfg(feature = "cassandra")]
            Self::Cassandra(guard) => guard.release().await,
        }
    }
}
