//! How a client reaches a server: a stream of frames each way, and single requests.

use std::fmt;

use futures_util::stream::BoxStream;
use holdfast_proto::v1::{
    AdvanceRequest, AdvanceResponse, CheckTokenRequest, CheckTokenResponse, ClientFrames,
    ExplainRequest, ExplainResponse, InspectRequest, InspectResponse, KeptSession, ListRequest,
    ListResponse, RefusalReason, ScopeAuthority, ServerFrames, SessionKey, StatusRequest,
    StatusResponse, WatchRequest, WatchResponse,
};
use tokio::sync::mpsc;

use crate::BoxFuture;

/// One end of a session stream: frames in, frames out, closed.
///
/// Dropping `outgoing` ends the stream towards the other end. `incoming` ends after its first error; a
/// plain end only means that nothing more will come (a dead peer looks like one that closed in order),
/// so nothing may be concluded from it.
pub struct Pipe<Out, In> {
    /// Towards the other end. Bounded: a full pipe makes the sender wait.
    pub outgoing: mpsc::Sender<Out>,
    /// From the other end. Drain it at once, always: unread frames can cost the connection (DESIGN §6,
    /// traps of h2).
    pub incoming: BoxStream<'static, Result<In, TransportError>>,
}

impl<Out, In> fmt::Debug for Pipe<Out, In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe").finish_non_exhaustive()
    }
}

/// The events of a watch. It ends after its first error; a plain end only means that nothing more will
/// come.
pub type Watched = BoxStream<'static, Result<WatchResponse, TransportError>>;

/// The answer to the keepalive of one session that was sent together with those of others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Renewed {
    /// The log index as of which it is true.
    pub index: u64,
    /// What concerns the session.
    pub session: KeptSession,
    /// Every scope with fallback that the store has.
    pub scopes: Vec<ScopeAuthority>,
    /// As in `KeptAlive`.
    pub spread_ms: u64,
}

/// The answer to one call.
pub type Reply<T> = BoxFuture<'static, Result<T, TransportError>>;

/// Reaches servers. An endpoint is `host:port`, as people write it.
pub trait Transport: Send + Sync + 'static {
    /// Opens a session stream.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the server may have seen the stream, but no frame of it.
    fn open(&self, endpoint: &str) -> Reply<Pipe<ClientFrames, ServerFrames>>;

    /// Whether the keepalives of sessions at one server can go together, beside their streams.
    fn keeps_together(&self) -> bool {
        false
    }

    /// Renews the lease of a session, together with those of others that are due.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; whether the lease was renewed is not known.
    fn keep_alive(&self, endpoint: &str, _session: SessionKey) -> Reply<Renewed> {
        let message = format!("{endpoint}: each session has to send its keepalives on its stream");
        let refused = TransportError::Refused { reason: RefusalReason::Unsupported, message };
        Box::pin(async { Err(refused) })
    }

    /// Reads one lock.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the call changes nothing.
    fn inspect(&self, endpoint: &str, request: InspectRequest) -> Reply<InspectResponse>;

    /// Reads a page of locks.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the call changes nothing.
    fn list(&self, endpoint: &str, request: ListRequest) -> Reply<ListResponse>;

    /// Checks whether a grant is current.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the call changes nothing.
    fn check_token(&self, endpoint: &str, request: CheckTokenRequest) -> Reply<CheckTokenResponse>;

    /// Asks why a lock is waited for.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the call changes nothing.
    fn explain(&self, endpoint: &str, request: ExplainRequest) -> Reply<ExplainResponse>;

    /// Takes the next numbers of a sequence.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; if the server is unreachable, it may have given out numbers, which are lost then.
    fn advance(&self, endpoint: &str, request: AdvanceRequest) -> Reply<AdvanceResponse>;

    /// Watches the locks below a prefix: the state, then every change.
    ///
    /// # Errors
    ///
    /// [`TransportError`]: the server does not serve the watch. Watching changes nothing.
    fn watch(&self, endpoint: &str, request: WatchRequest) -> Reply<Watched>;

    /// Queries the status of a node: its identity, and the leader.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the call changes nothing.
    fn status(&self, endpoint: &str, request: StatusRequest) -> Reply<StatusResponse>;
}

/// Why a stream ended or a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No connection, or it broke.
    #[error("{endpoint} cannot be reached: {detail}")]
    Unreachable {
        /// The endpoint that was called.
        endpoint: String,
        /// The network's error.
        detail: String,
    },
    /// The node is up, but does not lead or has no quorum. Another may; so may this one later.
    #[error("{message}")]
    Unavailable {
        /// The node's message.
        message: String,
        /// Where clients reach the leader, if the node knows.
        leader: Option<String>,
    },
    /// A newer stream showed the session's secret; this one is over for good.
    #[error("the session was taken up on another stream")]
    AttachedElsewhere,
    /// This end did not read fast enough. The session lives on.
    #[error("the stream was cut, because it was not read fast enough")]
    TooSlow,
    /// The changes since this watch ended are not all kept any more: it begins with the state.
    #[error("the changes since the watch ended are not all kept")]
    Compacted,
    /// The server refused the stream or the call: repeating it will not help.
    #[error("{message}")]
    Refused {
        /// Why; `Unspecified` if it says no more than its message does.
        reason: RefusalReason,
        /// The node's message.
        message: String,
    },
}
