//! Modes on the model of the tables, beside a simple native store.

mod both;
mod elections;
mod moves;
mod native;
mod older;
mod races;
mod sequences;
mod ties;

use std::sync::Arc;
use std::time::Duration;

use holdfast_runtime::simulated::{Machine, Process};

use super::{Locker, LockerMode, ModesTable, ScopeModes, Stage};
use crate::Result;
use crate::cassandra::{Cassandra, LockerOptions};
use crate::lease::{Lease, LeaseTable};
use crate::locker::{RemoteGuard, RemoteLocker};
use crate::model::Model;
use crate::test_support::{cassandra, options};
use native::NativeStore;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Both stores, and the processes that use them.
struct World {
    machine: Machine,
    model: Model,
    native: NativeStore,
    /// The TTL of leases and of rows.
    ttl: Duration,
    skew: Duration,
}

impl World {
    fn new(seed: u64) -> Self {
        let machine = Machine::new(seed);
        let (model, native) = (Model::new(&machine), NativeStore::new(&machine));
        Self { machine, model, native, ttl: secs(30), skew: secs(10) }
    }

    fn cassandra(&self, process: &Process) -> Cassandra {
        cassandra(&self.model, process)
    }

    fn options(&self, process: &Process) -> LockerOptions {
        options(&process.name(), self.ttl, self.skew)
    }

    /// An old client: it knows the leases and nothing of modes.
    fn old(&self, process: &Process) -> Lease {
        let options = self.options(process);
        Lease::new(&self.cassandra(process), &options, LeaseTable::default()).unwrap()
    }

    async fn locker(&self, process: &Process, mode: LockerMode) -> Result<Locker> {
        let native = Arc::new(self.native.locker(process));
        Locker::builder(&self.cassandra(process), "", self.old(process))
            .native_like(native)
            .row(self.options(process))
            .start(mode)
            .await
    }

    fn scope(&self) -> ScopeModes {
        let world = self.cassandra(&self.machine.world());
        ScopeModes::new(&world, "", ModesTable::default()).unwrap()
    }

    /// Moves the scope to `stage`, if no process is in the way.
    async fn move_to(&self, stage: Stage) {
        let scope = self.scope();
        while scope.view().await.unwrap().stage < stage {
            scope.advance().await.unwrap();
        }
        while scope.view().await.unwrap().stage > stage {
            scope.go_back().await.unwrap();
        }
    }

    /// The service and the mode of each row of the scope.
    async fn rows(&self) -> Vec<(String, LockerMode)> {
        let view = self.scope().view().await.unwrap();
        view.processes.into_iter().map(|one| (one.service, one.mode)).collect()
    }

    fn since(&self, began: Duration) -> Duration {
        self.machine.now().saturating_sub(began)
    }

    async fn sleep(&self, length: Duration) {
        self.machine.world().runtime().sleep(length).await;
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs a task of the process; the returned future has what it ends with.
fn task<T, W>(process: &Process, work: W) -> impl Future<Output = T> + use<T, W>
where
    T: Send + 'static,
    W: Future<Output = T> + Send + 'static,
{
    let (answer, answered) = tokio::sync::oneshot::channel();
    let work = async move {
        let _ = answer.send(work.await);
    };
    process.runtime().spawn("test", work).detach();
    async move { answered.await.unwrap() }
}

async fn in_time<T>(
    process: &Process,
    limit: Duration,
    wait: impl Future<Output = T>,
) -> Option<T> {
    process.runtime().timeout(limit, wait).await.ok()
}

async fn is_free(locker: &dyn RemoteLocker) -> bool {
    let tried: Option<RemoteGuard> = locker.try_lock("jobs").await.unwrap();
    tried.is_some()
}
