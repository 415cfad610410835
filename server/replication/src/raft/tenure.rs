//! Tenures: one term led by one process from start to end (DESIGN §7).
//!
//! A tenure begins when an entry that this node proposed in it is applied, and ends at once when
//! openraft reports anything but "you lead this term". With it the leader's limits become the
//! cluster's.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Command, Limits, Tenure};
use holdfast_mutants::mutant;
use holdfast_runtime::Runtime;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::RaftError;
use openraft::metrics::RaftServerMetrics;
use tokio::sync::watch;

use super::Member;
use super::handler::Raft;
use super::machine::Replicated;
use super::proposer::Proposer;
use super::types::Types;
use crate::consensus::{LeaderHint, Role};

/// Pause between two attempts to write the first entry of a tenure.
const TRY_AGAIN: Duration = Duration::from_millis(20);

pub(super) struct Tenures {
    pub(super) node_id: u64,
    pub(super) raft: Raft,
    pub(super) role: watch::Sender<Role>,
    pub(super) proposer: Arc<Proposer>,
    pub(super) shared: Arc<Replicated>,
    pub(super) configured: Arc<[Member]>,
    /// The limits as configured here; those of the leader apply to the whole cluster.
    pub(super) limits: Limits,
    pub(super) runtime: Runtime,
}

/// The state of this node according to openraft.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Leads(Tenure),
    Follows(Option<LeaderHint>),
}

impl Tenures {
    /// Keeps the role until the task is dropped or openraft stops.
    pub(super) async fn run(self) {
        let mut metrics = self.raft.server_metrics();
        loop {
            let standing = self.standing(&metrics.borrow_watched());
            match standing {
                Standing::Leads(tenure) if self.role.borrow().tenure() == Some(tenure) => {}
                Standing::Leads(tenure) => {
                    self.follow(None);
                    holdfast_runtime::select! {
                        engine_runs = self.until_deposed(tenure) => {
                            if !engine_runs {
                                return;
                            }
                        }
                        () = self.first_entry(tenure) => self.lead(tenure),
                    }
                    continue;
                }
                Standing::Follows(leader) => self.follow(leader),
            }
            if metrics.changed().await.is_err() {
                self.follow(None);
                return;
            }
        }
    }

    fn standing(&self, metrics: &RaftServerMetrics<Types>) -> Standing {
        let vote = &metrics.vote;
        let leads = metrics.state == ServerState::Leader
            && vote.committed
            && vote.leader_id.voted_for == self.node_id;
        if leads {
            return Standing::Leads(Tenure::new(vote.leader_id.term));
        }
        let leader = metrics.current_leader.filter(|leader| *leader != self.node_id);
        Standing::Follows(leader.and_then(|leader| self.hint(leader, metrics)))
    }

    fn hint(&self, leader: u64, metrics: &RaftServerMetrics<Types>) -> Option<LeaderHint> {
        let configured = self.configured.iter().find(|member| member.node_id == leader);
        let advertise = match configured {
            Some(member) => member.advertise.clone(),
            None => metrics.membership_config.get_node(&leader)?.advertise.clone(),
        };
        Some(LeaderHint { node_id: leader, advertise })
    }

    /// Waits until this node no longer leads that term. `false`: openraft has stopped; its last
    /// report stands for ever, even if it is that this node leads.
    async fn until_deposed(&self, tenure: Tenure) -> bool {
        let mut metrics = self.raft.server_metrics();
        loop {
            if self.standing(&metrics.borrow_watched()) != Standing::Leads(tenure) {
                return true;
            }
            if metrics.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Commits and applies an entry of this node's own in this tenure. openraft's report that this
    /// node leads is not enough: it also reports that for an instant while it forms a cluster.
    async fn first_entry(&self, tenure: Tenure) {
        if mutant!(KeepaliveBeforeOwnEntry) {
            return;
        }
        loop {
            match self.raft.write_blank().await {
                Ok(written) if written.log_id.leader_id.term == tenure.get() => return,
                Err(RaftError::APIError(error)) => {
                    tracing::debug!(%error, term = tenure.get(), "the tenure's first entry is not written yet");
                    self.runtime.sleep(TRY_AGAIN).await;
                }
                // Written in another term of this node, or not at all: this tenure is over.
                Ok(_) | Err(RaftError::Fatal(_)) => std::future::pending().await,
            }
        }
    }

    fn lead(&self, tenure: Tenure) {
        tracing::debug!(term = tenure.get(), "leads");
        self.role.send_replace(Role::Leading { tenure });
        let current = self.shared.look(|table, _| table.limits());
        if current != self.limits {
            let limits = self.limits;
            let done = Box::new(move |result| match result {
                Ok(_) => tracing::info!(?limits, "the configured limits apply from here on"),
                Err(error) => tracing::warn!(%error, "the configured limits were not set"),
            });
            self.proposer.submit(Command::Configure { limits }, done);
        }
    }

    fn follow(&self, leader: Option<LeaderHint>) {
        let led = self.role.borrow().tenure();
        self.role.send_if_modified(|role| {
            let now = Role::Following { leader };
            let changed = *role != now;
            *role = now;
            changed
        });
        if let Some(tenure) = led {
            tracing::debug!(term = tenure.get(), "leads no longer");
            self.proposer.tenure_ended();
        }
    }
}

/// Time between two tries of a leader whose table has another limit: the members report their versions
/// as often.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Makes the leader's limit of table bytes the cluster's, once all members know the command for it.
///
/// The other limits go into the log with the first command of a tenure. This one is younger: as long as
/// a member runs a release that does not know it, it is not proposed (I29), no member has it, and all
/// refuse alike. So this task checks again until the table has the limit of the leader's settings.
pub(super) struct TableLimit {
    /// As configured here; the leader's applies to the whole cluster.
    pub(super) max_table_bytes: u64,
    pub(super) role: watch::Receiver<Role>,
    pub(super) proposer: Arc<Proposer>,
    pub(super) shared: Arc<Replicated>,
    pub(super) runtime: Runtime,
}

impl TableLimit {
    /// Maintains the limit until the task is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let leads = self.role.borrow_and_update().tenure().is_some();
            let unset = leads && !self.is_set();
            if unset {
                self.propose();
            }
            let again = async {
                if unset {
                    self.runtime.sleep(TRY_EVERY).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            holdfast_runtime::select! {
                changed = self.role.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }

    fn is_set(&self) -> bool {
        self.shared.look(|table, _| table.max_table_bytes()) == Some(self.max_table_bytes)
    }

    /// A repeated proposal is harmless: it changes nothing.
    fn propose(&self) {
        let max_bytes = self.max_table_bytes;
        let done = Box::new(move |result| match result {
            Ok(_) => {
                tracing::info!(max_bytes, "the configured max_table_bytes applies from here on");
            }
            Err(error) => tracing::debug!(%error, "max_table_bytes is not set yet"),
        });
        self.proposer.submit(Command::LimitTable { max_bytes }, done);
    }
}
