//! Carries out the steps of a scope's [`AuthorityMachine`], and reports the results to it.
//!
//! Two loops run beside each other: one asks Cassandra, with at most one statement under way; the other
//! proposes to the core. So a statement that hangs cannot delay the suspension of the scope.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use holdfast_core::{Command, ScopePrefix, ScopeState, Tenure};
use holdfast_keyspace::authority::{
    AnswerLimit, Authority, AuthorityRow, Buckets, Change, ClusterTag, Look,
};
use holdfast_keyspace::database::{Fault, Tables};
use holdfast_keyspace::statement::{Action, Ident, Statement, Value};
use holdfast_mutants::mutant;
use holdfast_runtime::{Instant, Runtime};
use tokio::sync::Notify;

use super::FallbackSettings;
use super::board::Board;
use super::machine::{AuthorityMachine, AuthorityStatus, CoreStep, RowStep, is_bump};
use crate::consensus::{Consensus, propose};
use crate::session::ClusterId;

/// Pause before a command is proposed again that was refused, or whose outcome is unknown.
const PROPOSE_AGAIN: Duration = Duration::from_millis(100);

/// Partitions of leases that are counted at once.
const COUNTED_AT_ONCE: usize = 8;

/// One scope in one tenure.
pub(super) struct Driver {
    scope: ScopePrefix,
    /// The scope as it was when this driver began.
    begun_with: Option<ScopeState>,
    tenure: Tenure,
    terms: FallbackSettings,
    /// The cluster of this node.
    cluster: Option<ClusterTag>,
    consensus: Arc<dyn Consensus>,
    runtime: Runtime,
    row: Authority,
    tables: Arc<Tables>,
    board: Arc<Board>,
    machine: Mutex<AuthorityMachine>,
    /// Limit for the answer to any statement but a bump.
    limit: Mutex<AnswerLimit>,
    /// Cassandra does not answer, and this was logged.
    complained: AtomicBool,
    /// Wakes a loop when the other one has learned something.
    row_news: Notify,
    core_news: Notify,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// What all drivers of a leader share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) terms: FallbackSettings,
    pub(super) cluster: Arc<dyn ClusterId>,
    pub(super) consensus: Arc<dyn Consensus>,
    pub(super) runtime: Runtime,
    pub(super) tables: Arc<Tables>,
    pub(super) board: Arc<Board>,
}

impl Driver {
    /// Starts to keep a scope that is applied on this node, in a tenure that has begun.
    pub(super) fn new(shared: &Shared, scope: ScopePrefix, tenure: Tenure) -> Self {
        let Shared { terms, cluster, consensus, runtime, tables, board } = shared.clone();
        // A node that leads belongs to a cluster.
        let cluster = cluster.cluster_id().and_then(|id| ClusterTag::new(&id));
        let begun_with = state_of(&*consensus, &scope);
        let told_at = runtime.clock.now() + with_allowance(longest_ttl(&*consensus));
        // Positive, and far below the largest value.
        let first_beat = i64::try_from(runtime.rng.next_u64() >> 2).unwrap_or(0);
        let mut machine = AuthorityMachine::new(terms, told_at, first_beat);
        if is_restored(&*consensus, &scope) {
            machine.restored();
        }
        Self {
            row: Authority::new(tables.clone(), runtime.clock.clone(), scope.as_str()),
            tables,
            machine: Mutex::new(machine),
            limit: Mutex::new(AnswerLimit::between(
                terms.durations.bump_every(),
                terms.durations.take_over_wait() / 2,
            )),
            complained: AtomicBool::new(false),
            row_news: Notify::new(),
            core_news: Notify::new(),
            begun_with,
            scope,
            tenure,
            terms,
            cluster,
            consensus,
            runtime,
            board,
        }
    }

    fn machine(&self) -> MutexGuard<'_, AuthorityMachine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> MutexGuard<'_, AnswerLimit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        self.runtime.clock.now()
    }

    /// The scope as it is applied here. `None`: it was removed, and possibly set again. That is then a
    /// different scope, whose clients do not know of it yet.
    fn core(&self) -> Option<ScopeState> {
        let state = state_of(&*self.consensus, &self.scope)?;
        let same = |first: ScopeState| !state.fresh || first.fresh && first.epoch == state.epoch;
        self.begun_with.is_some_and(same).then_some(state)
    }

    /// The status that is shown to operators and in metrics.
    pub(super) fn status(&self) -> AuthorityStatus {
        let (now, core) = (self.now(), self.core());
        self.machine().status(now, core)
    }

    /// Keeps the scope until it is removed. Dropped when the tenure ends, whatever is under way.
    pub(super) async fn run(self: Arc<Self>) {
        holdfast_runtime::select! {
            () = self.keep_row() => {}
            () = self.keep_core() => {}
        }
        self.board.publish(&self.scope, self.tenure, None);
        // The task that follows the node's role decides which scopes are kept now.
        self.board.changed.notify_one();
    }

    async fn keep_row(&self) {
        while let Some(core) = self.core() {
            let step = self.machine().row_step(self.now(), core);
            if let RowStep::Wait(until) = step {
                self.wait(Some(until), &self.row_news).await;
                continue;
            }
            self.ask(step).await;
            self.tell();
            self.core_news.notify_one();
        }
    }

    /// Publishes the authority for all answers from now on.
    fn tell(&self) {
        let fresh = self.core().is_some_and(|core| core.fresh);
        let authority = self.machine().authority();
        self.board.publish(&self.scope, self.tenure, authority);
        // Clients learn of a scope with its first authority: until then its holds are as they were.
        if fresh && authority.is_some() {
            let told_at = self.now() + with_allowance(longest_ttl(&*self.consensus));
            self.machine().tells_until(told_at);
        }
    }

    async fn wait(&self, until: Option<Instant>, news: &Notify) {
        let time = async {
            match until {
                Some(until) => self.runtime.clock.sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        holdfast_runtime::select! {
            () = news.notified() => {}
            () = time => {}
        }
    }

    async fn ask(&self, step: RowStep) {
        match step {
            RowStep::Wait(_) => {}
            RowStep::Read => {
                let look = self.patiently(self.row.read()).await;
                let look = look.and_then(|look| self.own(look));
                let (now, core) = (self.now(), self.core());
                match (look, core) {
                    (Ok(look), Some(core)) => {
                        self.answered();
                        self.machine().read(look, core);
                    }
                    (Ok(_), None) => {}
                    (Err(fault), _) => {
                        self.complain("be read", &fault);
                        self.machine().not_read(matches!(fault, Fault::Refused(_)), now);
                    }
                }
            }
            RowStep::Confirm => {
                let confirmed = self.consensus.confirm().await;
                let led = confirmed.is_ok_and(|confirmed| confirmed.tenure == self.tenure);
                self.machine().confirmed(led, self.now());
            }
            RowStep::Create(row) => {
                let row = AuthorityRow { cluster: self.cluster, ..row };
                self.machine().writes();
                let created = self.patiently(self.row.create(row)).await;
                self.note(None, row, created);
            }
            RowStep::Change { from, to } => {
                let to = self.adopted(from, to);
                self.machine().writes();
                let change = self.row.change(from, to);
                let changed = if is_bump(from, to) {
                    self.within(self.terms.durations.bump_every(), change).await
                } else {
                    self.patiently(change).await
                };
                self.note(Some(from), to, changed);
            }
            RowStep::Count => {
                let buckets = self.machine().row().map(|row| row.buckets).unwrap_or_default();
                let counted = self.patiently(self.count_leases(buckets)).await;
                self.machine().counted(counted.ok(), self.now());
            }
        }
    }

    /// The number of leases of the scope in the table `fallback_leases`, each counted at some instant
    /// during the call. While no client enters, 0 means that none is left.
    ///
    /// # Errors
    ///
    /// [`Fault`]: there may be some.
    async fn count_leases(&self, buckets: Buckets) -> Result<u64, Fault> {
        let counts = stream::iter(buckets.all()).map(|bucket| self.count_in(bucket));
        counts.buffer_unordered(COUNTED_AT_ONCE).try_fold(0, async |sum, held| Ok(sum + held)).await
    }

    async fn count_in(&self, bucket: i64) -> Result<u64, Fault> {
        let key = vec![
            (Ident::new("scope"), Value::from(self.scope.as_str())),
            (Ident::new("bucket"), Value::from(bucket)),
        ];
        let action = Action::AllSerial { columns: vec![Ident::new("name"), Ident::new("owner")] };
        let all = Statement::new(Ident::new("fallback_leases"), key, action);
        let rows = self.tables.read_all(all.partitioned_by(2).decided_everywhere()).await?;
        Ok(rows.iter().filter(|row| row.text(&Ident::new("owner")).is_some()).count() as u64)
    }

    /// Refuses a row that the leaders of another cluster keep: with both writing it, each would have
    /// authority. (`OwnCluster`) Of a scope that comes from a backup it is the row of the cluster before:
    /// this one takes it over with the write that raises its epoch, after which no leader of the other
    /// cluster can write it any more.
    fn own(&self, look: Look) -> Result<Look, Fault> {
        if self.machine().is_behind() {
            return Ok(look);
        }
        let kept_by = look.row.and_then(|row| row.cluster);
        match (kept_by, self.cluster) {
            (Some(theirs), Some(own)) if theirs != own && !mutant!(RowOfOtherCluster) => {
                Err(Fault::Refused(format!(
                    "table authority: the row of scope {:?} is kept by the cluster {theirs}, and this is {own}: two clusters \
                     cannot serve one scope; give each a keyspace of its own ([fallback] cassandra_keyspace), or remove the \
                     scope here",
                    self.scope.as_str()
                )))
            }
            _ => Ok(look),
        }
    }

    /// Adds this cluster's tag to a row of version 0.1 with the next bump. No client can have taken over
    /// since the row was read, and the change compares that no cluster has set its tag before. Sets it
    /// whatever it was in the write that takes over the row of a restored scope.
    fn adopted(&self, from: AuthorityRow, to: AuthorityRow) -> AuthorityRow {
        if self.machine().is_behind() {
            return AuthorityRow { cluster: self.cluster, ..to };
        }
        let own = self.cluster.filter(|_| is_bump(from, to));
        AuthorityRow { cluster: to.cluster.or(own), ..to }
    }

    fn note(&self, from: Option<AuthorityRow>, to: AuthorityRow, answer: Result<Change, Fault>) {
        let now = self.now();
        let Some(core) = self.core() else { return };
        let mut machine = self.machine();
        let before = machine.row().map(|row| row.mode);
        match answer {
            Ok(change) => machine.written(from, to, change, now, core),
            Err(fault) => {
                machine.not_written(from, to, now, core);
                self.complain("be changed", &fault);
            }
        }
        if machine.row() == Some(to) && before != Some(to.mode) {
            let scope = self.scope.as_str();
            tracing::info!(scope, "the authority row says: {to}");
        }
    }

    /// Runs a bump with a limit of a fourth of W: after two failed bumps there is still time to leave
    /// the scope to another leader before any client has waited for W.
    async fn within<T>(
        &self,
        limit: Duration,
        statement: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match self.runtime.timeout(limit, statement).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::Unknown(format!("no answer in {limit:?}"))),
        }
    }

    /// Runs any other statement. These compete with all clients that read the row at the same time: the
    /// longer there was no answer, the longer the next one may take. With a short limit a leader would
    /// lose against 50 readers in a hurry.
    async fn patiently<T>(
        &self,
        statement: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let (began, limit) = (self.now(), self.limit().get());
        let answer = self.within(limit, statement).await;
        match &answer {
            Ok(_) => self.limit().answered(self.now().saturating_since(began)),
            Err(_) => self.limit().not_answered(),
        }
        answer
    }

    /// Warns once for each outage: the statement is tried again many times a second.
    fn complain(&self, what: &str, fault: &Fault) {
        let first = !self.complained.swap(true, Ordering::Relaxed);
        let scope = self.scope.as_str();
        if first {
            tracing::warn!(scope, "the authority row cannot {what}, and is tried again: {fault}");
        } else {
            tracing::debug!(scope, "the authority row cannot {what}: {fault}");
        }
    }

    fn answered(&self) {
        if self.complained.swap(false, Ordering::Relaxed) {
            let scope = self.scope.as_str();
            tracing::info!(scope, "Cassandra answers for the authority row again");
        }
    }

    async fn keep_core(&self) {
        while let Some(core) = self.core() {
            let step = self.machine().core_step(self.now(), core);
            let scope = self.scope.clone();
            let command = match step {
                CoreStep::Wait(until) => {
                    self.wait(until, &self.core_news).await;
                    continue;
                }
                CoreStep::Suspend => Command::Suspend { scope },
                CoreStep::Resume(epoch) => Command::Resume { scope, epoch },
                CoreStep::Raise(epoch) => Command::RaiseEpoch { scope, epoch },
            };
            tracing::debug!(scope = self.scope.as_str(), ?command, "proposes");
            match propose(&*self.consensus, command).await {
                Ok(committed) if committed.outcome.is_ok() => self.row_news.notify_one(),
                // The core is read again; the proposed command may still take effect.
                Ok(_) | Err(_) => self.runtime.sleep(PROPOSE_AGAIN).await,
            }
        }
    }

    /// Sets the row to retired, so that no client takes over any more; `false` if that is not done by
    /// `until`.
    pub(super) async fn retire(&self, until: Instant) -> bool {
        self.machine().retire(until);
        self.row_news.notify_one();
        while self.now() < until {
            if self.machine().is_retired() {
                return true;
            }
            self.runtime.sleep(PROPOSE_AGAIN).await;
        }
        false
    }
}

fn state_of(consensus: &dyn Consensus, scope: &ScopePrefix) -> Option<ScopeState> {
    let mut state = None;
    consensus.read(&mut |table, _| state = table.scope(scope));
    state
}

/// Whether the scope comes from a backup and its epoch was not raised since.
fn is_restored(consensus: &dyn Consensus, scope: &ScopePrefix) -> bool {
    let mut restored = false;
    consensus.read(&mut |table, _| restored = table.is_scope_restored(scope));
    restored
}

/// The longest TTL of all clients' sessions: for that long a client may not have learned of a scope that
/// was set. The session of an import belongs to no client.
fn longest_ttl(consensus: &dyn Consensus) -> Duration {
    let mut longest_ms = 0;
    consensus.read(&mut |table, _| {
        let of_clients = table.sessions().filter(|session| !session.imported);
        longest_ms = of_clients.map(|session| session.ttl_ms).max().unwrap_or(0);
    });
    Duration::from_millis(longest_ms)
}

/// The length as counted by a clock that runs ahead of the client's.
fn with_allowance(length: Duration) -> Duration {
    length + length / 10
}
