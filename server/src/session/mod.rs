//! Sessions and their streams: which stream a session is attached to, what it is sent, and when a lease
//! ends.
//!
//! A [`Hub`] serves streams ([`Hub::serve`]), listens to everything applied and, while its node leads,
//! keeps the leases. It knows a stream only as a [`Pipe`](holdfast_runtime::Pipe), replication only as
//! [`Consensus`], time and randomness only as [`Runtime`].
//!
//! ```text
//!            frames                submit                      log
//!   client ─────────▶ stream ───────────────▶ Consensus ─────────────────▶ core.apply
//!      ▲                │ keepalives               ▲                           │ events
//!      │ frames         ▼                          │ confirm                   ▼
//!      └── outbox ◀─ registry ◀──────────────── lead                    dispatch (Listener)
//!             ▲                                                                │
//!             └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! - The end of a stream ends nothing else: only the lease decides (DESIGN §6).
//! - A lease is acknowledged only after a quorum round begun after its keepalive came in, in a tenure
//!   that has applied an entry of its own, and only while no expiry of the session is under way (§5.1,
//!   §5.2, I6).
//! - What a client is sent was committed (I4, I23), and is sent in the order of the log.
//! - Nothing waits for a client: a slow one loses its stream, not its session (I27).

mod admission;
pub(crate) mod answers;
mod bounds;
pub(crate) mod busy;
mod calls;
mod dispatch;
pub(crate) mod error;
#[cfg(test)]
pub(crate) mod fake;
mod frames;
mod imports;
mod inbox;
mod lead;
mod leases;
mod lines;
mod metrics;
mod opening;
mod outbox;
pub(crate) mod outside;
mod pages;
mod places;
pub(crate) mod prefixes;
mod queues;
pub(crate) mod refusals;
mod registry;
mod renewals;
mod restored;
mod settings;
mod spans;
mod stream;
#[cfg(test)]
mod tests;
mod times;
mod waiting;
mod watch;

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{Backup, BackupOrigin, Caller, Label, Missing, SessionId};
use holdfast_history::History;
use holdfast_keyspace::database::Tables;
use holdfast_runtime::{Runtime, Task};

pub use error::StreamError;
pub(crate) use metrics::Refusals;
pub use metrics::SessionMetrics;
pub use settings::SessionSettings;

use crate::authority::{FallbackSettings, ScopeAuthorities};
use crate::bytes_budget::BytesBudget;
use crate::consensus::Consensus;
use crate::denials::Noted;
use crate::error::ProposeError;
use crate::incoming::ConnectionCounts;
use busy::Surveys;
use lead::Lead;
use registry::Registry;
use watch::Watches;

/// The cluster that this node belongs to.
pub trait ClusterId: Debug + Send + Sync + 'static {
    /// The cluster's id; `None` until the node belongs to one. It takes no lock: it is asked for under the
    /// table's.
    fn cluster_id(&self) -> Option<Bytes>;
}

impl ClusterId for Bytes {
    fn cluster_id(&self) -> Option<Bytes> {
        Some(self.clone())
    }
}

/// This build, as its backups name it.
fn written_by() -> Label {
    Label::parse(concat!("holdfastd ", env!("CARGO_PKG_VERSION"))).unwrap_or_default()
}

/// The session layer of one node.
#[derive(Debug)]
pub struct Hub {
    registry: Arc<Registry>,
    consensus: Arc<dyn Consensus>,
    cluster_id: Arc<dyn ClusterId>,
    connections: ConnectionCounts,
    /// The authorities of this node's scopes with fallback, once started.
    authorities: OnceLock<ScopeAuthorities>,
    /// The looks for the busiest locks.
    surveys: Surveys,
    /// What this node remembers, if it keeps a history.
    history: OnceLock<Arc<History>>,
    /// The leader's task; it ends with the hub.
    _lead: Task,
}

impl Hub {
    /// Attaches the session layer to a replica. Call it once per replica, before it serves, inside the
    /// runtime.
    pub fn start(
        consensus: Arc<dyn Consensus>,
        cluster_id: Arc<dyn ClusterId>,
        settings: SessionSettings,
        runtime: Runtime,
    ) -> Self {
        let had_at_start = consensus.had_at_start();
        let registry = Arc::new(Registry::new(runtime, settings, had_at_start));
        let (denials, runtime) = (registry.metrics.denials.clone(), registry.runtime.clone());
        let consensus: Arc<dyn Consensus> = Arc::new(Noted { inner: consensus, denials, runtime });
        consensus.attach(registry.clone());
        let lead = Lead { registry: registry.clone(), consensus: consensus.clone() };
        let lead = registry.runtime.spawn("session-lead", lead.run());
        Self {
            registry,
            consensus,
            cluster_id,
            connections: ConnectionCounts::default(),
            authorities: OnceLock::new(),
            surveys: Surveys::default(),
            history: OnceLock::new(),
            _lead: lead,
        }
    }

    /// How many connections each identity has to this node.
    pub(crate) fn connections(&self) -> &ConnectionCounts {
        &self.connections
    }

    /// Keeps the scopes with fallback while this node leads; without `fallback`, it suspends them, so
    /// that nothing in them is granted. Call it once, before the node serves, inside the runtime.
    pub fn keep_scopes(&self, fallback: Option<(FallbackSettings, Arc<Tables>)>) {
        let registry = &self.registry;
        let (consensus, board) = (self.consensus.clone(), registry.board.clone());
        let (cluster, runtime) = (self.cluster_id.clone(), registry.runtime.clone());
        let _ = self
            .authorities
            .set(ScopeAuthorities::start(consensus, board, cluster, fallback, runtime));
    }

    /// Has calls answered from what this node remembers. Call it once, before the node serves.
    pub(crate) fn keep_history(&self, history: Arc<History>) {
        let _ = self.history.set(history);
    }

    /// What this node remembers, if it keeps a history.
    pub(crate) fn history(&self) -> Option<&Arc<History>> {
        self.history.get()
    }

    /// The authorities of the scopes on this node, if they were started.
    pub fn authorities(&self) -> Option<&ScopeAuthorities> {
        self.authorities.get()
    }

    /// The replica behind it.
    pub(crate) fn consensus(&self) -> &Arc<dyn Consensus> {
        &self.consensus
    }

    /// In how long a restored cluster that this node leads grants again; `None` if it grants.
    pub(crate) fn grants_in(&self) -> Option<Duration> {
        self.registry.grants_in()
    }

    /// A backup of everything that was committed before this call.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]: this node does not lead, or no quorum answers.
    pub async fn backup(&self, cluster_name: Label) -> Result<Backup, ProposeError> {
        self.consensus.confirm().await?;
        let mut frozen = None;
        self.consensus.read(&mut |table, _| frozen = Some(table.freeze()));
        let cluster = self.cluster_id.cluster_id();
        let origin = BackupOrigin {
            cluster_id: cluster.and_then(|id| id.as_ref().try_into().ok()).unwrap_or_default(),
            cluster_name,
            written_by: written_by(),
            taken_ms: self.registry.runtime.clock.wall_ms(),
        };
        Ok(Backup::new(origin, frozen.ok_or(ProposeError::ShuttingDown)?))
    }

    /// The time until a session's deadline, if nothing renews it; `None`: it is over, or this node does not lead.
    pub(crate) fn lease_left(&self, session: SessionId) -> Option<Duration> {
        self.registry.lease_left(session)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.registry.runtime
    }

    /// Tells of each change of the rules from now on.
    pub(crate) fn rules_changes(&self) -> tokio::sync::watch::Receiver<()> {
        self.registry.rules_changed.subscribe()
    }

    /// Answers that refuse something.
    pub(crate) fn refusals(&self) -> &Refusals {
        &self.registry.metrics.refusals
    }

    /// A call lacks a right.
    pub(crate) fn note_missing(&self, by: &Caller, missing: &Missing) {
        let now = self.registry.runtime.clock.now();
        self.registry.metrics.denials.missing(now, &by.identity, missing);
    }

    /// A call from that address shows a token that does not count.
    pub(crate) fn note_wrong_token(&self, from: &dyn std::fmt::Display) {
        let now = self.registry.runtime.clock.now();
        self.registry.metrics.denials.wrong_token(now, from);
    }

    /// How many bytes may lie unread of all streams together.
    pub(crate) fn unread_max(&self) -> u64 {
        self.registry.settings.outbox_bytes_total
    }

    /// The budget for what clients send and no session takes yet.
    pub(crate) fn arriving(&self) -> &Arc<BytesBudget> {
        &self.registry.arriving
    }

    fn watches(&self) -> &Arc<Watches> {
        &self.registry.watches
    }

    /// The counters of the session layer.
    pub fn metrics(&self) -> SessionMetrics {
        self.registry.metrics.clone()
    }

    /// Ends every watch, sends every stream away with `GoingAway`, and accepts no new one. Returns once
    /// all have ended, in about a second at most, whether the clients read or not (I32).
    pub async fn shutdown(&self) {
        self.registry.watches.stop(self.leader()).await;
        self.registry.stop(self.leader()).await;
    }

    /// Where clients reach the leader, if it is another node and known.
    fn leader(&self) -> Option<String> {
        lead::leader_of(&self.consensus.role().borrow()).map(str::to_owned)
    }
}
