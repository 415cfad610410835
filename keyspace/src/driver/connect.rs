//! Opens a session for programs that have none, such as the command line.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::Runtime;
use holdfast_tls::{Tls, refused_by_tls};
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::ClusterState;
use scylla::cluster::metadata::Strategy;
use scylla::errors::{
    BrokenConnectionErrorKind, ConnectionError, ConnectionPoolError,
    ConnectionSetupRequestErrorKind, FrameHeaderParseError, MetadataError, NewSessionError,
};

use super::SerialScope;
use crate::statement::Ident;

/// How often a session checks whether its nodes agree on a table that it has made: the driver's own fifth of a second is longer than they
/// take.
const AGREED_EVERY: Duration = Duration::from_millis(50);

/// The login to the cluster.
#[derive(Clone)]
pub struct Credentials {
    /// The role's name.
    pub user: String,
    /// Its password; never printed.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Why no keyspace is available. Certain: no statement was sent to a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpen {
    /// None of the contact points answered.
    #[error("none of {} answered in {waited:?}: {last}", .contact_points.join(", "))]
    Unreachable {
        /// The contact points that were tried.
        contact_points: Vec<String>,
        /// The time waited.
        waited: Duration,
        /// The last error.
        last: String,
    },
    /// The cluster rejected the login, TLS came to nothing, or the keyspace is not fit for locks.
    #[error("{0}")]
    Refused(String),
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
}

/// Checks that this keyspace can keep locks: it exists, has a node for each of its replicas, and replicas where `scope` decides.
pub(super) fn check_keyspace(
    session: &Session,
    keyspace: &str,
    scope: &SerialScope,
) -> Result<(), NotOpen> {
    let state = session.get_cluster_state();
    let named = Ident::new(keyspace);
    let Some(there) = state.get_keyspace(keyspace) else {
        return Err(NotOpen::Refused(if state.get_keyspace("system").is_some() {
            format!(
                "there is no keyspace {named}; make it with holdfast cassandra schema --apply \
                 --replication 3, or name another one"
            )
        } else {
            format!(
                "the session does not know what keyspace {named} is like: it was told not to fetch the \
                 schema, or that of other keyspaces only (fetch_schema_metadata, keyspaces_to_fetch)"
            )
        }));
    };
    check_datacenter(&state, &named, &there.strategy, scope)?;
    match more_replicas_than_nodes(&state, &there.strategy) {
        None => Ok(()),
        // Plain writes would fail one by one, but the replicas present decide an LWT: one node alone now, and others
        // once they have joined.
        Some((replicas, nodes)) => Err(NotOpen::Refused(format!(
            "keyspace {named} is to have {replicas} replicas, and there are {nodes} nodes for them: no \
             QUORUM could be had; add nodes, or ALTER KEYSPACE"
        ))),
    }
}

/// Checks that the datacenter of `scope` is there, and that the keyspace says how many replicas it has if locks are decided in it.
fn check_datacenter(
    state: &ClusterState,
    keyspace: &Ident,
    strategy: &Strategy,
    scope: &SerialScope,
) -> Result<(), NotOpen> {
    let Some(datacenter) = scope.datacenter() else { return Ok(()) };
    let there = datacenters(state);
    if !there.contains(datacenter) {
        let there: Vec<&str> = there.into_iter().collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        return Err(NotOpen::Refused(format!(
            "no node is in the datacenter {datacenter}; the datacenters of this cluster: {there}"
        )));
    }
    let SerialScope::Datacenter(_) = scope else { return Ok(()) };
    let why = match strategy {
        Strategy::NetworkTopologyStrategy { datacenter_repfactors } => {
            if datacenter_repfactors.get(datacenter).is_some_and(|replicas| *replicas > 0) {
                return Ok(());
            }
            let mut has: Vec<String> = (datacenter_repfactors.iter())
                .map(|(name, replicas)| format!("{replicas} in {name}"))
                .collect();
            has.sort_unstable();
            format!("it has none there ({})", has.join(", "))
        }
        _ if there.len() == 1 => return Ok(()),
        _ => "its replication does not count them by datacenter (ALTER KEYSPACE, NetworkTopologyStrategy)"
            .to_owned(),
    };
    Err(NotOpen::Refused(format!(
        "keyspace {keyspace} cannot decide in the datacenter {datacenter} alone by replicas in it: {why}"
    )))
}

fn datacenters(state: &ClusterState) -> BTreeSet<&str> {
    state.get_nodes_info().iter().filter_map(|node| node.datacenter.as_deref()).collect()
}

/// The number of replicas of a datacenter and of its nodes, up or down, if those are fewer.
fn more_replicas_than_nodes(state: &ClusterState, strategy: &Strategy) -> Option<(usize, usize)> {
    let nodes = state.get_nodes_info();
    let compared: Vec<(usize, usize)> = match strategy {
        Strategy::SimpleStrategy { replication_factor } => vec![(*replication_factor, nodes.len())],
        Strategy::NetworkTopologyStrategy { datacenter_repfactors } => {
            let there = |name: &str| {
                nodes.iter().filter(|node| node.datacenter.as_deref() == Some(name)).count()
            };
            let each = datacenter_repfactors.iter();
            each.map(|(datacenter, replicas)| (*replicas, there(datacenter))).collect()
        }
        _ => Vec::new(),
    };
    compared.into_iter().find(|(replicas, nodes)| replicas > nodes)
}

/// How a cluster is reached by a program that has no session of the driver.
#[derive(Clone, Debug)]
pub struct Contact {
    points: String,
    login: Option<Credentials>,
    tls: Option<Tls>,
    datacenter: Option<String>,
    limit: Duration,
}

impl Contact {
    /// Through these nodes at first: `host` or `host:port`, separated by commas. Within 10 s.
    pub fn new(points: impl Into<String>) -> Self {
        let limit = Duration::from_secs(10);
        Self { points: points.into(), login: None, tls: None, datacenter: None, limit }
    }

    /// With this login, if there is one.
    #[must_use]
    pub fn login(self, login: Option<Credentials>) -> Self {
        Self { login, ..self }
    }

    /// Over TLS, if it is given. Each node's certificate has to name the IP address under which the other nodes know it, or the
    /// server name of `tls`.
    #[must_use]
    pub fn tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// Asks nodes of this datacenter, if one is named, as long as one of them is up; for statements that no [`SerialScope`] is
    /// given for.
    #[must_use]
    pub fn datacenter(self, datacenter: Option<String>) -> Self {
        Self { datacenter, ..self }
    }

    /// How long connecting may take.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
}

/// Opens a session for the caller, without checking a keyspace.
///
/// # Errors
///
/// [`NotOpen::Unreachable`] if no contact point answered within the limit, [`NotOpen::Refused`] if the cluster rejected the login or the
/// client's certificate, or is not the one that the CA vouches for; [`NotOpen::Setting`] without a contact point, or if a file for TLS
/// cannot be used.
pub async fn open(contact: &Contact) -> Result<Arc<Session>, NotOpen> {
    let points = contact.points();
    if points.is_empty() {
        let message = "no contact point is given; e.g. 10.0.0.1,10.0.0.2:9042";
        return Err(NotOpen::Setting(message.into()));
    }
    let builder = contact.builder(&points)?;
    let opened = Runtime::system().timeout(contact.limit, builder.build()).await;
    match opened {
        Ok(Ok(session)) => Ok(Arc::new(session)),
        Ok(Err(error)) => Err(contact.not_open(&points, &error)),
        Err(_) => Err(contact.unreachable(&points, "no answer yet".into())),
    }
}

impl Contact {
    fn points(&self) -> Vec<&str> {
        self.points.split(',').map(str::trim).filter(|point| !point.is_empty()).collect()
    }

    fn builder(&self, points: &[&str]) -> Result<SessionBuilder, NotOpen> {
        let near = self.datacenter.clone().map_or(SerialScope::Cluster, SerialScope::Near);
        let profile = ExecutionProfile::builder();
        let profile = profile.load_balancing_policy(near.load_balancing()).build();
        let mut builder = SessionBuilder::new()
            .known_nodes(points)
            .default_execution_profile_handle(profile.into_handle())
            .connection_timeout(self.limit)
            .schema_agreement_interval(AGREED_EVERY);
        if let Some(Credentials { user, password }) = &self.login {
            builder = builder.user(user, password);
        }
        if let Some(tls) = &self.tls {
            let config = tls.clone().for_driver(Arc::new(|| Runtime::system().clock.wall()));
            let setting = |why| NotOpen::Setting(format!("TLS to Cassandra: {why}"));
            builder = builder.tls_context(Some(config.map_err(setting)?));
        }
        Ok(builder)
    }

    fn not_open(&self, points: &[&str], error: &NewSessionError) -> NotOpen {
        let refusal = refusal(error);
        if let Some(message) = refusal.and_then(said) {
            return NotOpen::Refused(message);
        }
        // A node that wants TLS ends a connection without it at the first request, and says nothing.
        let is_cut = |why| began(why) && ended_by(why).is_some();
        let hint = if self.tls.is_none() && refusal.is_some_and(is_cut) {
            "; if the cluster wants TLS: --cassandra-ca"
        } else {
            ""
        };
        self.unreachable(points, format!("{error}{hint}"))
    }

    fn unreachable(&self, points: &[&str], last: String) -> NotOpen {
        let contact_points = points.iter().map(|&point| point.to_owned()).collect();
        NotOpen::Unreachable { contact_points, waited: self.limit, last }
    }
}

/// Why no contact point let us in: an error of the last one.
fn refusal(error: &NewSessionError) -> Option<&ConnectionError> {
    match error {
        NewSessionError::MetadataError(MetadataError::ConnectionPoolError(
            ConnectionPoolError::Broken { last_connection_error },
        )) => Some(last_connection_error),
        _ => None,
    }
}

/// What a node that answered says for not letting us in; `None` for any other error.
fn said(error: &ConnectionError) -> Option<String> {
    if let Some(why) = ended_by(error).and_then(refused_by_tls) {
        let hint = if why.wants_certificate() {
            ": it wants one of the client (--cassandra-cert, --cassandra-key)"
        } else {
            ""
        };
        return Some(format!("no TLS with the cluster: {why}{hint}"));
    }
    let ConnectionError::ConnectionSetupRequestError(setup) = error else { return None };
    let why = match setup.get_error() {
        ConnectionSetupRequestErrorKind::MissingAuthentication => "it wants a login",
        ConnectionSetupRequestErrorKind::DbError(_, message) => message,
        _ => return None,
    };
    Some(format!(
        "the cluster does not let us in: {why}; give a role (--user) and its password \
         (HOLDFAST_CASSANDRA_PASSWORD)"
    ))
}

/// Whether there was a connection, on which a first request was sent.
fn began(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::ConnectionSetupRequestError(_))
}

/// The error of the network that ended a connection, with what TLS says of it inside.
fn ended_by(error: &ConnectionError) -> Option<&io::Error> {
    let broken = match error {
        ConnectionError::IoError(error) => return Some(error),
        ConnectionError::BrokenConnection(broken) => broken,
        ConnectionError::ConnectionSetupRequestError(setup) => match setup.get_error() {
            ConnectionSetupRequestErrorKind::BrokenConnection(broken) => broken,
            _ => return None,
        },
        _ => return None,
    };
    match broken.downcast_ref()? {
        BrokenConnectionErrorKind::FrameHeaderParseError(FrameHeaderParseError::HeaderIoError(
            error,
        ))
        | BrokenConnectionErrorKind::WriteError(error) => Some(error),
        _ => None,
    }
}
