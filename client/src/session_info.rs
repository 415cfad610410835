//! One session, for operators.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::session_request::State as WireState;

use crate::transport::operator::Services;
use crate::{Admin, FencingToken, Result};

/// A session as of one linearizable read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its id.
    pub session: u64,
    /// Its label; it proves nothing. It may contain any characters: escape it before it goes to a
    /// terminal. For an imported session it is the owner's name in the other store.
    pub label: String,
    /// Its lease.
    pub ttl: Duration,
    /// The time since it was opened, by the leader's wall clock.
    pub age: Duration,
    /// What is left of its lease if nothing renews it, by the leader's clock, when the server answered. `None`: it has ended meanwhile,
    /// or the server is of a release before 0.4.
    pub left: Option<Duration>,
    /// It was imported from another store: no client can renew it, and it ends when its lease runs
    /// out.
    pub is_imported: bool,
    /// As of [`Holder::identity`](crate::Holder::identity).
    pub identity: String,
    /// What an operator gave as the reason for ending it: it waits for nothing, and its holds pass on when
    /// its lease has run out.
    pub revoked: Option<String>,
    /// Its holds and waits, in the order of the requests: at most 1,000.
    pub requests: Vec<SessionRequest>,
    /// How many there are in all.
    pub request_count: u64,
}

/// A request of a session, granted or waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionRequest {
    /// The locks that it holds or waits for: at most 100 names.
    pub names: Vec<String>,
    /// How many names there are in all.
    pub name_count: u64,
    /// The time since the grant, or since it began to wait, by the leader's wall clock.
    pub since: Duration,
    /// Whether it holds or waits.
    pub state: RequestState,
    /// As of [`Holder::is_ending`](crate::Holder::is_ending).
    pub is_ending: bool,
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// It holds, under this token.
    Held {
        /// The grant's fencing token.
        token: FencingToken,
    },
    /// It waits.
    Waits {
        /// How many requests stand before it; 0 is next.
        place: u64,
    },
}

impl Admin {
    /// One session, as of a linearizable read; `None` if it was never opened, or has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if no leader answered within the limit;
    /// [`Error::Refused`](crate::Error::Refused) by a server that does not know this call.
    pub async fn session(&self, session: u64) -> Result<Option<SessionInfo>> {
        let request = v1::InspectSessionRequest { session_id: session };
        let look = |mut at: Services| async move { at.locks.inspect_session(request).await };
        let answer = self.ask("a look at a session", false, look).await?;
        Ok(answer.session.map(SessionInfo::from_wire))
    }
}

impl SessionInfo {
    pub(crate) fn from_wire(session: v1::SessionInfo) -> Self {
        Self {
            session: session.session_id,
            label: session.label,
            ttl: Duration::from_millis(session.ttl_ms),
            age: Duration::from_millis(session.age_ms),
            left: session.left_ms.map(Duration::from_millis),
            is_imported: session.imported,
            identity: session.identity,
            revoked: session.revoked,
            requests: session.requests.into_iter().filter_map(request).collect(),
            request_count: session.request_count,
        }
    }
}

/// `None` for a state of a newer release.
fn request(request: v1::SessionRequest) -> Option<SessionRequest> {
    let state = match request.state? {
        WireState::Held(token) => RequestState::Held { token: FencingToken::from_raw(token) },
        WireState::Place(place) => RequestState::Waits { place },
    };
    Some(SessionRequest {
        names: request.names,
        name_count: request.name_count,
        since: Duration::from_millis(request.since_ms),
        state,
        is_ending: request.ending,
    })
}
