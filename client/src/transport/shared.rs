//! Connections that the clients of one process share, and the keepalives that go over them together.
//!
//! A process may have far more sessions than it may have files open, and each connection costs both ends
//! memory, a handshake and a wake-up for each packet. HTTP/2 carries many streams over one connection, so
//! up to [`STREAMS_MAX`] session streams share one. A stream is still a session's own: what becomes of it
//! is no matter of the others, except that all of them end with their connection.
//!
//! The keepalives of sessions at one endpoint that are due within [`GATHERED_WITHIN`] are sent in one
//! call for up to [`SESSIONS_MAX`] of them. A session aligns its keepalives for that
//! (`client/src/lease.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use holdfast_proto::v1::{KeepAliveManyRequest, KeepAliveManyResponse, SessionKey};
use holdfast_runtime::{Renewed, Reply, Runtime, TransportError};
use tokio::sync::oneshot;
use tonic::transport::Channel;

/// Streams of one connection. A server allows 1,024; the rest is for calls, and for streams whose end the
/// server has not noticed yet.
const STREAMS_MAX: usize = 512;
/// How long a keepalive waits for others. It counts from before (DESIGN §5.4), so this only shortens what
/// the answer is worth.
const GATHERED_WITHIN: Duration = Duration::from_millis(10);
/// Sessions of one call; a server takes as many.
const SESSIONS_MAX: usize = 256;
/// Calls under way at once.
const CALLS_AT_ONCE: usize = 8;
/// How long a call may take: a session sends its keepalive on its stream by then.
const CALL_WITHIN: Duration = Duration::from_secs(5);

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

/// How keepalives reach a server.
pub(super) trait Way: Send + Sync + 'static {
    /// Makes a connection to it.
    fn dial(&self) -> Reply<Channel>;

    /// Makes one call for many sessions.
    fn call(&self, channel: Channel, asked: KeepAliveManyRequest) -> Reply<KeepAliveManyResponse>;
}

/// A session whose keepalive is to be sent.
struct Asked {
    session: SessionKey,
    tell: oneshot::Sender<Result<Renewed, TransportError>>,
}

/// What the clients of one process share. All of them have the same TLS and the same token.
pub(crate) struct Shared {
    runtime: Runtime,
    /// By endpoint: those of the settings, and leaders that servers named.
    connections: Mutex<BTreeMap<String, Connections>>,
    /// By endpoint. There are sessions exactly while a task is about to send them.
    gathered: Mutex<BTreeMap<String, Vec<Asked>>>,
}

impl Shared {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime, connections: Mutex::default(), gathered: Mutex::default() }
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
        let has_room = |one: &Arc<Connection>| Arc::strong_count(one) <= STREAMS_MAX;
        if let Some(one) = connections.iter().filter_map(Weak::upgrade).find(has_room) {
            return Ok(one);
        }
        let (channel, is_broken) = (dial.await?, AtomicBool::new(false));
        let connection = Arc::new(Connection { channel, is_broken });
        connections.push(Arc::downgrade(&connection));
        Ok(connection)
    }

    /// Any connection to `endpoint` that sessions have.
    async fn present(&self, endpoint: &str) -> Option<Arc<Connection>> {
        let connections = lock(&self.connections).get(endpoint)?.clone();
        let connections = connections.lock().await;
        connections.iter().filter_map(Weak::upgrade).find(is_whole)
    }

    /// Renews the lease of a session together with others.
    pub(super) fn renew(
        self: &Arc<Self>,
        endpoint: &str,
        session: SessionKey,
        way: impl Way,
    ) -> Reply<Renewed> {
        let (tell, told) = oneshot::channel();
        let is_first = {
            let mut gathered = lock(&self.gathered);
            let asked = gathered.entry(endpoint.to_owned()).or_default();
            asked.push(Asked { session, tell });
            asked.len() == 1
        };
        if is_first {
            let sending = self.clone().send(endpoint.to_owned(), way);
            self.runtime.spawn("keepalives", sending).detach();
        }
        let endpoint = endpoint.to_owned();
        Box::pin(async move { told.await.unwrap_or_else(|_| Err(no_answer(&endpoint))) })
    }

    /// Sends the keepalives that are gathered within a moment. A session that is told to come back later
    /// has no stream; if no other has one either, a connection is made for the call.
    async fn send(self: Arc<Self>, endpoint: String, way: impl Way) {
        self.runtime.sleep(GATHERED_WITHIN).await;
        let mut asked = lock(&self.gathered).remove(&endpoint).unwrap_or_default();
        let connecting = async {
            match self.present(&endpoint).await {
                Some(connection) => Ok(connection),
                None => self.connection(&endpoint, way.dial()).await,
            }
        };
        let Ok(Ok(connection)) = self.runtime.timeout(CALL_WITHIN, connecting).await else {
            return;
        };
        let mut calls = Vec::new();
        while !asked.is_empty() {
            let rest = asked.split_off(asked.len().min(SESSIONS_MAX));
            calls.push(std::mem::replace(&mut asked, rest));
        }
        let send = |asked: Vec<Asked>| {
            let sessions = asked.iter().map(|one| one.session.clone()).collect();
            let call = way.call(connection.channel(), KeepAliveManyRequest { sessions });
            let (runtime, endpoint) = (&self.runtime, &endpoint);
            async move {
                let answer = runtime.timeout(CALL_WITHIN, call).await;
                answer_all(asked, answer.unwrap_or_else(|_| Err(no_answer(endpoint))), endpoint);
            }
        };
        stream::iter(calls).for_each_concurrent(CALLS_AT_ONCE, send).await;
    }
}

/// Gives each session its part of the answer.
fn answer_all(
    asked: Vec<Asked>,
    answer: Result<KeepAliveManyResponse, TransportError>,
    endpoint: &str,
) {
    let answer = answer.and_then(|answer| {
        let is_for_each = answer.sessions.len() == asked.len();
        is_for_each.then_some(answer).ok_or_else(|| no_answer(endpoint))
    });
    // A session that is gone waits for nothing.
    match answer {
        Ok(KeepAliveManyResponse { index, sessions, scopes, spread_ms }) => {
            for (one, session) in asked.into_iter().zip(sessions) {
                let renewed = Renewed { index, session, scopes: scopes.clone(), spread_ms };
                let _ = one.tell.send(Ok(renewed));
            }
        }
        Err(error) => {
            for one in asked {
                let _ = one.tell.send(Err(error.clone()));
            }
        }
    }
}

fn no_answer(endpoint: &str) -> TransportError {
    let detail = "it did not answer the keepalives of many sessions".to_owned();
    TransportError::Unreachable { endpoint: endpoint.to_owned(), detail }
}

fn is_whole(connection: &Arc<Connection>) -> bool {
    !connection.is_broken.load(Ordering::Relaxed)
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::v1::KeptSession;
    use holdfast_runtime::simulated;
    use std::future::{Ready, ready};
    use tonic::transport::Endpoint;

    use super::*;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(simulated::runtime(1, 0)))
    }

    /// A channel that has not connected.
    fn dialled() -> Ready<Result<Channel, TransportError>> {
        ready(Ok(Endpoint::from_static("http://127.0.0.1:1").connect_lazy()))
    }

    fn key(session_id: u64) -> SessionKey {
        SessionKey { session_id, secret: vec![9; 16].into() }
    }

    #[tokio::test(start_paused = true)]
    async fn streams_share_a_connection_until_it_is_full_or_broken_and_it_ends_with_the_last() {
        let shared = shared();
        let mut streams = Vec::new();
        for _ in 0..=STREAMS_MAX {
            streams.push(shared.connection("a:1", dialled()).await.unwrap());
        }
        assert!(Arc::ptr_eq(&streams[0], &streams[STREAMS_MAX - 1]));
        assert!(!Arc::ptr_eq(&streams[0], &streams[STREAMS_MAX]), "one more needs another");
        let elsewhere = shared.connection("b:2", dialled()).await.unwrap();
        assert!(!Arc::ptr_eq(&streams[0], &elsewhere));

        streams[STREAMS_MAX].broke();
        streams.remove(0);
        let next = shared.connection("a:1", dialled()).await.unwrap();
        assert!(Arc::ptr_eq(&streams[0], &next), "it has room again");
        drop((streams, next));
        assert!(shared.present("a:1").await.is_none());
    }

    /// Answers with the session's id as its token, and notes how many sessions a call had.
    #[derive(Clone, Default)]
    struct Server {
        calls: Arc<Mutex<Vec<usize>>>,
        answers: bool,
    }

    impl Way for Server {
        fn dial(&self) -> Reply<Channel> {
            Box::pin(dialled())
        }

        fn call(&self, _: Channel, asked: KeepAliveManyRequest) -> Reply<KeepAliveManyResponse> {
            lock(&self.calls).push(asked.sessions.len());
            let answered = if self.answers { asked.sessions } else { Vec::new() };
            let kept = |key: SessionKey| KeptSession {
                tokens: vec![key.session_id],
                ..KeptSession::default()
            };
            let sessions = answered.into_iter().map(kept).collect();
            Box::pin(async { Ok(KeepAliveManyResponse { sessions, ..Default::default() }) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn keepalives_that_are_due_together_are_sent_in_as_few_calls_as_they_fit_into() {
        let (shared, server) = (shared(), Server { answers: true, ..Server::default() });
        let replies: Vec<_> =
            (0..600).map(|id| shared.renew("a:1", key(id), server.clone())).collect();

        for (id, reply) in (0..).zip(replies) {
            assert_eq!(reply.await.unwrap().session.tokens, [id], "each has its own answer");
        }
        assert_eq!(*lock(&server.calls), [256, 256, 88]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_for_other_sessions_renews_none() {
        let shared = shared();
        assert!(shared.renew("a:1", key(1), Server::default()).await.is_err());
    }
}
