//! Leader election: the lease's row with a value, and observers that read it.
//!
//! Article: "nodes that want to become master try to grab the lease on start; the one that was
//! elected renews it in the background; the clients poll to verify that the master is still
//! master".

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::Lease;
use super::row::WantedValue;
use crate::database::{Fault, Row};
use crate::locker::{Publishes, RemoteGuard, Wait};
use crate::owner::service_of;
use crate::statement::{Action, Ident, Statement, Value};
use crate::{Error, Result, check_lock_name};
use holdfast_guard::Backoff;

/// The longest pause between two reads of an observer; a waiter has the same.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);

impl Lease {
    /// Stands for `name` and waits to be elected. Observers see `value`, an address for example,
    /// from the moment of the election on.
    ///
    /// Dropping the future withdraws the candidacy.
    ///
    /// # Errors
    ///
    /// As [`RemoteLocker::acquire`](crate::RemoteLocker::acquire).
    pub async fn campaign(
        &self,
        name: &str,
        value: impl Into<String>,
        wait: Wait,
    ) -> Result<Leadership> {
        let (guard, published) = self.lead(name, value.into(), wait).await?;
        Ok(Leadership { guard, published })
    }

    /// The row of a leader, and its value.
    pub(crate) async fn lead(
        &self,
        name: &str,
        value: String,
        wait: Wait,
    ) -> Result<(RemoteGuard, Published)> {
        let value = Arc::new(WantedValue::new(Some(value)));
        let renew_now = Arc::new(Notify::new());
        let guard = self.acquire_with(name, wait, value.clone(), renew_now.clone()).await?;
        Ok((guard, Published { value, renew_now }))
    }

    /// Observes who leads `name`, now and after each change.
    pub fn observe(&self, name: &str) -> Observer {
        Observer { lease: self.clone(), name: name.to_owned(), told: false, last: None }
    }

    /// Reads at SERIAL who leads `name` now.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no answer comes in time, [`Error::Refused`] if Cassandra refuses
    /// the read.
    pub async fn leader(&self, name: &str) -> Result<Option<Leader>> {
        check_lock_name(name)?;
        let began = self.base.now();
        let asking = async {
            let columns = self.leader_columns();
            let statement = self.election(name, Action::SelectSerial { columns });
            self.base.cassandra.tables().read(statement).await
        };
        let asked = self.base.runtime().timeout(self.base.answer_limit, asking);
        let answer = asked.await.unwrap_or(Err(Fault::NotDone("no answer yet".into())));
        let row = answer.map_err(|fault| self.base.cassandra.failed(fault, began))?;
        Ok(row.and_then(|row| self.leader_in(&row)))
    }

    /// At QUORUM: observers in any number keep no leader from renewing (B19).
    pub(crate) async fn ask_for_leader(&self, name: &str) -> Result<Option<Leader>, Fault> {
        let statement = self.election(name, Action::Select { columns: self.leader_columns() });
        let row = self.base.cassandra.tables().peek(statement).await?;
        Ok(row.and_then(|row| self.leader_in(&row)))
    }

    fn election(&self, name: &str, action: Action) -> Statement {
        let key = vec![(self.table.name.clone(), Value::from(name))];
        Statement::new(self.table.table.clone(), key, action)
    }

    fn leader_columns(&self) -> Vec<Ident> {
        vec![self.table.owner.clone(), self.table.value.clone()]
    }

    fn leader_in(&self, row: &Row) -> Option<Leader> {
        let owner = row.text(&self.table.owner)?.to_owned();
        let value = row.text(&self.table.value).map(str::to_owned);
        Some(Leader { name: service_of(&owner).to_owned(), owner, value })
    }
}

/// An election won; it lasts as long as its guard is safe.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: RemoteGuard,
    published: Published,
}

/// The value in a leader's row.
#[derive(Debug)]
pub(crate) struct Published {
    value: Arc<WantedValue>,
    renew_now: Arc<Notify>,
}

impl Publishes for Published {
    /// Waits for as long as the row is not lost, and for ever then.
    fn publish(&self, value: Option<String>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let version = self.value.set(value);
            self.renew_now.notify_one();
            self.value.written(version).await;
            Ok(())
        })
    }
}

impl Leadership {
    /// The guard of the lease.
    pub fn guard(&self) -> &RemoteGuard {
        &self.guard
    }

    /// Changes the value that observers see, and waits until the row has it; `None` removes it.
    ///
    /// Dropping the future leaves the change to the next renewal.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the leadership is lost first: the row may or may not have the change.
    pub async fn set_value(&self, value: Option<String>) -> Result<()> {
        self.guard.while_held(self.published.publish(value)).await
    }

    /// Gives up the leadership, and waits until the row is gone.
    ///
    /// # Errors
    ///
    /// As [`RemoteGuard::release`].
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }
}

/// The leader that a read found. Its leadership may have ended since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The name that the leader gives itself.
    pub name: String,
    /// The owner id in the row: each attempt has another one.
    pub owner: String,
    /// The value that the leader publishes.
    pub value: Option<String>,
}

/// Observes an election and reports each change of leader.
#[derive(Debug)]
pub struct Observer {
    lease: Lease,
    name: String,
    /// Whether `next` has reported anything yet; `last` is its latest report.
    told: bool,
    last: Option<Leader>,
}

impl Observer {
    /// Returns the current leader at the first call, and the new leader after a change at each
    /// further call; `None`: no leader. It reads at QUORUM every 50 ms to 2 s, which is no round of Paxos. It leaves out leaders that came and went between two reads,
    /// and it goes on during outages. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if Cassandra refuses the read.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        check_lock_name(&self.name)?;
        let runtime = self.lease.base.runtime().clone();
        let mut pauses = Backoff::new(LOOK_EVERY_MAX);
        loop {
            match self.lease.ask_for_leader(&self.name).await {
                Ok(leader) if !self.told || self.last != leader => {
                    self.told = true;
                    self.last.clone_from(&leader);
                    return Ok(leader);
                }
                Ok(_) | Err(Fault::Unknown(_) | Fault::NotDone(_)) => {}
                Err(Fault::Refused(message)) => return Err(Error::invalid(message)),
            }
            runtime.sleep(pauses.next(&*runtime.rng)).await;
        }
    }
}
