//! Cassandra as a part of the world: a model of the tables, whose coordinators have clocks and faults of their own, and the hosts that
//! reach them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use holdfast_keyspace::database::{Answer, Database, Fault};
use holdfast_keyspace::model::{Model, Odds};
use holdfast_keyspace::statement::Statement;
use holdfast_runtime::Runtime;
use holdfast_runtime::simulated::Machine;

use super::link::Host;

/// How long the driver of a host that reaches no coordinator waits for an answer.
const NO_ANSWER: Duration = Duration::from_secs(2);
/// Coordinators, each with a wall clock of its own.
pub const COORDINATORS: usize = 3;

/// The tables, and the hosts that do not reach them. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Keyspace {
    model: Model,
    runtime: Runtime,
    cut: Arc<Mutex<BTreeSet<Host>>>,
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace").field("cut", &*self.cut()).finish_non_exhaustive()
    }
}

impl Keyspace {
    /// Empty tables that every host reaches.
    pub(super) fn new(machine: &Machine) -> Self {
        Self { model: Model::new(machine), runtime: machine.world().runtime(), cut: Arc::default() }
    }

    fn cut(&self) -> MutexGuard<'_, BTreeSet<Host>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tables themselves, whatever is cut off: for faults, and for looking at them.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tables as `host` reaches them, or does not.
    pub fn reached_by(&self, host: Host) -> Arc<dyn Database> {
        Arc::new(Line { keyspace: self.clone(), host })
    }

    /// From now on these hosts reach no coordinator.
    pub fn cut_off(&self, hosts: &[Host]) {
        self.cut().extend(hosts);
    }

    /// These hosts reach the tables again.
    pub fn mend(&self, hosts: &[Host]) {
        self.cut().retain(|host| !hosts.contains(host));
    }

    /// Every host reaches the tables, every statement is answered at once, and the coordinators' clocks agree.
    pub fn heal(&self) {
        self.cut().clear();
        self.model.set_odds(Odds::default());
        self.model.set_slow(0);
        (0..COORDINATORS).for_each(|node| self.model.set_skew(node, 0));
    }
}

/// The tables as one host sees them.
struct Line {
    keyspace: Keyspace,
    host: Host,
}

impl Database for Line {
    /// A host that is cut off before the answer does not receive it: the statement may or may not have been applied.
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let (keyspace, host) = (self.keyspace.clone(), self.host);
        async move {
            let is_cut = || keyspace.cut().contains(&host);
            if !is_cut() {
                let answer = keyspace.model.execute(statement).await;
                if !is_cut() {
                    return answer;
                }
            }
            keyspace.runtime.sleep(NO_ANSWER).await;
            Err(Fault::Unknown("no coordinator answers".into()))
        }
        .boxed()
    }

    fn endpoints(&self) -> Vec<String> {
        self.keyspace.model.endpoints()
    }

    fn keyspace(&self) -> String {
        self.keyspace.model.keyspace()
    }
}
