//! Connections that the clients of one process share, and the keepalives that go over them together.
//!
//! A process may have far more sessions than it may have files open, and each connection costs both ends
//! memory, a handshake and a wake-up for each packet. HTTP/2 carries many streams over one connection, so
//! up to [`SESSION_STREAMS_MAX`] session streams share one, and up to [`WATCHES_MAX`] watches another. A stream is
//! still a session's own: what becomes of it is no matter of the others, except that all of them end with
//! their connection.
//!
//! The keepalives of sessions at one endpoint that are due within [`GATHERED_WITHIN`] are sent in one
//! call for up to [`SESSIONS_MAX`] of them. A session aligns its keepalives for that
//! (`client/src/lease.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use holdfast_proto::v1::{KeepAliveManyRequest, KeepAliveManyResponse, SessionKey};
use holdfast_runtime::{Renewed, Reply, Runtime, TransportError};
use tokio::sync::oneshot;
use tonic::transport::Channel;

use super::dials::Reach;
use super::pool::{Pool, lock};

/// Session streams of one connection. A server allows 1,024; the rest is for calls, and for streams whose end
/// the server has not noticed yet.
const SESSION_STREAMS_MAX: usize = 512;
/// Watches of one connection: so few that each has room of its own for what nobody reads
/// (`client/src/transport/grpc.rs`).
pub(super) const WATCHES_MAX: usize = 128;
/// How long a keepalive waits for others. It counts from before (DESIGN §5.4), so this only shortens what
/// the answer is worth.
const GATHERED_WITHIN: Duration = Duration::from_millis(10);
/// Sessions of one call; a server takes as many.
const SESSIONS_MAX: usize = 256;
/// Calls under way at once.
const CALLS_AT_ONCE: usize = 8;
/// How long a call may take: a session sends its keepalive on its stream by then.
const CALL_WITHIN: Duration = Duration::from_secs(5);

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
    /// For the streams of sessions, and their keepalives.
    pub(super) sessions: Pool,
    /// For watches. A watch that nobody reads must not hold back a session.
    pub(super) watches: Pool,
    /// Where they could not get: each of thousands would find that out for itself otherwise.
    pub(crate) reach: Arc<Reach>,
    /// By endpoint. There are sessions exactly while a task is about to send them.
    gathered: Mutex<BTreeMap<String, Vec<Asked>>>,
}

impl Shared {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let (sessions, watches) = (Pool::new(SESSION_STREAMS_MAX), Pool::new(WATCHES_MAX));
        let reach = Arc::new(Reach::new(runtime.clone()));
        Self { runtime, sessions, watches, reach, gathered: Mutex::default() }
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
            match self.sessions.present(&endpoint).await {
                Some(connection) => Ok(connection),
                None => self.sessions.connection(&endpoint, way.dial()).await,
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

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::v1::KeptSession;
    use holdfast_runtime::simulated;

    use super::super::pool::tests::dialled;
    use super::*;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(simulated::runtime(1, 0)))
    }

    fn key(session_id: u64) -> SessionKey {
        SessionKey { session_id, secret: vec![9; 16].into() }
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
