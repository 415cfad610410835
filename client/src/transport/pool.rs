//! Connections that streams of many clients share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use holdfast_runtime::TransportError;
use tonic::transport::Channel;

/// A connection with the streams over it; it is closed when the last of them has ended.
pub(super) struct Connection {
    channel: Channel,
    is_broken: AtomicBool,
}

impl Connection {
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A stream over it broke: no other is begun there.
    pub(super) fn broke(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }
}

/// The connections to one endpoint. Locked while one is made, so that sessions that come at the same time
/// share it.
type Connections = Arc<tokio::sync::Mutex<Vec<Weak<Connection>>>>;

/// The connections to all endpoints: those of the settings, and leaders that servers named.
pub(super) struct Pool {
    /// Streams of one connection.
    streams_max: usize,
    connections: Mutex<BTreeMap<String, Connections>>,
}

impl Pool {
    pub(super) fn new(streams_max: usize) -> Self {
        Self { streams_max, connections: Mutex::default() }
    }

    /// A connection to `endpoint` that has room for a stream: one that there is, or a new one.
    ///
    /// # Errors
    ///
    /// Those of `dial`.
    pub(super) async fn connection(
        &self,
        endpoint: &str,
        dial: impl Future<Output = Result<Channel, TransportError>>,
    ) -> Result<Arc<Connection>, TransportError> {
        let connections = lock(&self.connections).entry(endpoint.to_owned()).or_default().clone();
        let mut connections = connections.lock().await;
        connections.retain(|one| one.upgrade().is_some_and(|one| is_whole(&one)));
        // Each stream has a reference, and so has this look.
        let has_room = |one: &Arc<Connection>| Arc::strong_count(one) <= self.streams_max;
        if let Some(one) = connections.iter().filter_map(Weak::upgrade).find(has_room) {
            return Ok(one);
        }
        let (channel, is_broken) = (dial.await?, AtomicBool::new(false));
        let connection = Arc::new(Connection { channel, is_broken });
        connections.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// Any connection to `endpoint` that sessions have.
    pub(super) async fn present(&self, endpoint: &str) -> Option<Arc<Connection>> {
        let connections = lock(&self.connections).get(endpoint)?.clone();
        let connections = connections.lock().await;
        connections.iter().filter_map(Weak::upgrade).find(is_whole)
    }
}

fn is_whole(connection: &Arc<Connection>) -> bool {
    !connection.is_broken.load(Ordering::Relaxed)
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests {
    use std::future::{Ready, ready};

    use tonic::transport::Endpoint;

    use super::*;

    /// A channel that has not connected.
    pub(in crate::transport) fn dialled() -> Ready<Result<Channel, TransportError>> {
        ready(Ok(Endpoint::from_static("http://127.0.0.1:1").connect_lazy()))
    }

    #[tokio::test(start_paused = true)]
    async fn streams_share_a_connection_until_it_is_full_or_broken_and_it_ends_with_the_last() {
        let pool = Pool::new(3);
        let mut streams = Vec::new();
        for _ in 0..=3 {
            streams.push(pool.connection("a:1", dialled()).await.unwrap());
        }
        assert!(Arc::ptr_eq(&streams[0], &streams[2]));
        assert!(!Arc::ptr_eq(&streams[0], &streams[3]), "one more needs another");
        let elsewhere = pool.connection("b:2", dialled()).await.unwrap();
        assert!(!Arc::ptr_eq(&streams[0], &elsewhere));

        streams[3].broke();
        streams.remove(0);
        let next = pool.connection("a:1", dialled()).await.unwrap();
        assert!(Arc::ptr_eq(&streams[0], &next), "it has room again");
        drop((streams, next));
        assert!(pool.present("a:1").await.is_none());
    }
}
