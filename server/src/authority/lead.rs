//! The authorities of a node: one for each scope, while the node leads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::{Command, ScopePrefix, Tenure};
use holdfast_keyspace::database::Tables;
use holdfast_runtime::{Runtime, Task};

use super::FallbackSettings;
use super::board::Board;
use super::driver::{Driver, Shared};
use super::machine::AuthorityStatus;
use crate::consensus::{Consensus, propose};
use crate::session::ClusterId;

/// How long a row may take to be retired, before the scope stays.
const RETIRE_WITHIN: Duration = Duration::from_secs(8);
/// Pause before another attempt to suspend a scope.
const SUSPEND_AGAIN: Duration = Duration::from_millis(100);

/// Keeps the scopes of one node while it leads.
#[derive(Debug)]
pub struct ScopeAuthorities {
    runtime: Runtime,
    drivers: Arc<RunningDrivers>,
    has_fallback: bool,
    _lead: Task,
}

type Drivers = BTreeMap<ScopePrefix, (Arc<Driver>, Task)>;

/// The drivers of the current tenure.
#[derive(Debug, Default)]
struct RunningDrivers(Mutex<Drivers>);

impl RunningDrivers {
    fn lock(&self) -> MutexGuard<'_, Drivers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, scope: &ScopePrefix) -> Option<Arc<Driver>> {
        self.lock().get(scope).map(|(driver, _)| driver.clone())
    }
}

/// Why a scope's row could not be retired. The scope is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRetired {
    /// This node has no setting for fallback.
    #[error(
        "this node does not know where the fallback is: set [fallback] (cassandra, cassandra_keyspace, …) \
         on every member"
    )]
    NoFallback,
    /// No machine has the scope on this node now.
    #[error("nobody keeps the scope {scope} at the moment; ask again")]
    NotKept {
        /// Its prefix.
        scope: ScopePrefix,
    },
    /// The row could not be changed in time.
    #[error(
        "the row of the scope {scope} in Cassandra could not be retired: it says {said}; the scope is as \
         it was, ask again when it is native"
    )]
    RowSays {
        /// Its prefix.
        scope: ScopePrefix,
        /// What the leader knows of the row.
        said: String,
    },
}

impl ScopeAuthorities {
    /// Starts to follow the node's role. Without `fallback` it only suspends the existing scopes.
    pub(crate) fn start(
        consensus: Arc<dyn Consensus>,
        board: Arc<Board>,
        cluster: Arc<dyn ClusterId>,
        fallback: Option<(FallbackSettings, Arc<Tables>)>,
        runtime: Runtime,
    ) -> Self {
        let drivers = Arc::new(RunningDrivers::default());
        let has_fallback = fallback.is_some();
        let shared = fallback.map(|(terms, tables)| Shared {
            terms,
            cluster,
            consensus: consensus.clone(),
            runtime: runtime.clone(),
            tables,
            board: board.clone(),
        });
        let lead =
            Lead { consensus, board, shared, runtime: runtime.clone(), drivers: drivers.clone() };
        let lead = runtime.spawn("authority", lead.run());
        Self { runtime, drivers, has_fallback, _lead: lead }
    }

    /// Whether this node has settings for fallback.
    pub fn has_fallback(&self) -> bool {
        self.has_fallback
    }

    /// The status of a scope on this node; `None` if this node does not keep it.
    pub fn status(&self, scope: &ScopePrefix) -> Option<AuthorityStatus> {
        self.drivers.get(scope).map(|driver| driver.status())
    }

    /// The status of every scope that this node keeps.
    pub fn statuses(&self) -> Vec<(ScopePrefix, AuthorityStatus)> {
        let drivers = self.drivers.lock();
        drivers.iter().map(|(scope, (driver, _))| (scope.clone(), driver.status())).collect()
    }

    /// Sets a scope's row to retired before the scope is removed, so that no client takes over any more.
    /// If the scope is not removed soon after, the row goes back.
    ///
    /// # Errors
    ///
    /// [`NotRetired`]; the row may be retired all the same, for a while.
    pub async fn retire(&self, scope: &ScopePrefix) -> Result<(), NotRetired> {
        if !self.has_fallback {
            return Err(NotRetired::NoFallback);
        }
        let driver = self.drivers.get(scope);
        let driver = driver.ok_or_else(|| NotRetired::NotKept { scope: scope.clone() })?;
        if driver.retire(self.runtime.clock.now() + RETIRE_WITHIN).await {
            return Ok(());
        }
        let said = driver.status().row.map_or_else(|| "nothing".to_owned(), |row| row.to_string());
        Err(NotRetired::RowSays { scope: scope.clone(), said })
    }
}

/// Follows the node's role.
struct Lead {
    consensus: Arc<dyn Consensus>,
    board: Arc<Board>,
    shared: Option<Shared>,
    runtime: Runtime,
    drivers: Arc<RunningDrivers>,
}

impl Lead {
    async fn run(self) {
        let mut role = self.consensus.role();
        loop {
            let led = role.borrow_and_update().tenure();
            let open = match led {
                Some(tenure) => {
                    let over =
                        async { role.wait_for(|now| now.tenure() != Some(tenure)).await.is_ok() };
                    let open = holdfast_runtime::select! {
                        open = over => open,
                        () = self.keep(tenure) => false,
                    };
                    // The drivers' tasks end here: nothing of a tenure outlives it.
                    self.drivers.lock().clear();
                    open
                }
                None => role.changed().await.is_ok(),
            };
            if !open {
                return;
            }
        }
    }

    /// Suspends what the previous leader left running, and keeps every existing scope. Never ends.
    async fn keep(&self, tenure: Tenure) {
        loop {
            let scopes = self.scopes();
            match &self.shared {
                Some(shared) => self.match_drivers(shared, tenure, &scopes),
                None => self.suspend(&scopes).await,
            }
            self.board.changed.notified().await;
        }
    }

    fn scopes(&self) -> BTreeMap<ScopePrefix, bool> {
        let mut scopes = BTreeMap::new();
        self.consensus.read(&mut |table, _| {
            scopes =
                table.scopes().map(|view| (view.scope.clone(), view.state.suspended)).collect();
        });
        scopes
    }

    /// A driver begins without authority: the first thing it does is to suspend its scope.
    fn match_drivers(&self, shared: &Shared, tenure: Tenure, scopes: &BTreeMap<ScopePrefix, bool>) {
        let mut drivers = self.drivers.lock();
        // A driver that ended saw its scope removed; the scope may have been set again since.
        drivers.retain(|scope, (_, task)| scopes.contains_key(scope) && !task.is_finished());
        for scope in scopes.keys() {
            drivers.entry(scope.clone()).or_insert_with(|| {
                let driver = Arc::new(Driver::new(shared, scope.clone(), tenure));
                let task = self.runtime.spawn("scope", driver.clone().run());
                (driver, task)
            });
        }
    }

    /// Suspends all scopes: on this node there is no authority over them.
    async fn suspend(&self, scopes: &BTreeMap<ScopePrefix, bool>) {
        for scope in scopes.iter().filter(|(_, suspended)| !**suspended).map(|(scope, _)| scope) {
            tracing::warn!(scope = scope.as_str(), "{}", NotRetired::NoFallback);
            let command = Command::Suspend { scope: scope.clone() };
            if propose(&*self.consensus, command).await.is_err() {
                self.runtime.sleep(SUSPEND_AGAIN).await;
                self.board.changed.notify_one();
            }
        }
    }
}
