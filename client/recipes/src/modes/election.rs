//! Elections of a scope that moves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::LockerMode;
use super::locker::{Locker, Wish};
use super::state::State;
use crate::lease::Leader;
use crate::locker::{Publishes, RemoteGuard, Wait};
use crate::{Error, Result, check_lock_name};
use holdfast_guard::Backoff;

/// The longest pause between two looks of an observer.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);

impl Locker {
    /// Stands for election of `name` and waits to be elected, in the stores that the mode of this process says; at most one candidate leads,
    /// over both stores. Observers see `value` from then on.
    ///
    /// In Cassandra only the recipe `lease` has elections.
    ///
    /// Dropping the future withdraws the candidacy.
    ///
    /// # Errors
    ///
    /// As [`RemoteLocker::acquire`](crate::RemoteLocker::acquire); [`Error::Refused`] too in mode [`LockerMode::Fallback`], of whose holds Cassandra
    /// keeps no value, and with another recipe than the lease in a mode that locks in Cassandra.
    pub async fn campaign(
        &self,
        name: &str,
        value: impl Into<String>,
        wait: Wait,
    ) -> Result<LockerLeadership> {
        let value = value.into();
        let elected = self.inner.acquire(&self.life, name, Wish::Lead(&value), wait).await;
        elected.map(|(guard, published)| LockerLeadership { guard, published })
    }

    /// Returns the present leader of `name`, by the stores that the mode of this process says: in `cassandra` by a read at QUORUM, in `native` by a linearizable
    /// read of the native store, in `both` by both, of which the native one goes first.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if a store does not answer, [`Error::Refused`] if it refuses the read, or elections are not kept in this mode.
    pub async fn leader(&self, name: &str) -> Result<Option<LeaderSeen>> {
        check_lock_name(name)?;
        self.inner.check_scope("election", name)?;
        let began = self.inner.base.now();
        let mode = self.inner.shared.get(State::acting).unwrap_or(LockerMode::Both);
        let native = self.inner.native.as_deref().filter(|_| mode != LockerMode::Cassandra);
        if let Some(native) = native
            && let Some((name, value)) = native.leader(name).await?
        {
            return Ok(Some(LeaderSeen { name, value: Some(value), is_native: true }));
        }
        let in_cassandra = matches!(mode, LockerMode::Cassandra | LockerMode::Both);
        let rows = self.inner.elections.as_ref().filter(|_| in_cassandra);
        let Some(rows) = rows else { return Ok(None) };
        let row = rows.ask_for_leader(name).await;
        let row = row.map_err(|fault| self.inner.base.cassandra.failed(fault, began))?;
        Ok(row.map(|Leader { name, value, .. }| LeaderSeen { name, value, is_native: false }))
    }

    /// Observes who leads `name`, now and after each change.
    pub fn observe(&self, name: &str) -> LockerObserver {
        LockerObserver { locker: self.clone(), name: name.to_owned(), told: false, last: None }
    }
}

/// An election won through a [`Locker`]; it lasts as long as its guard is safe.
#[must_use = "dropping it resigns"]
pub struct LockerLeadership {
    guard: RemoteGuard,
    /// In each store that knows of it.
    published: Vec<Arc<dyn Publishes>>,
}

impl LockerLeadership {
    /// Its guard.
    pub fn guard(&self) -> &RemoteGuard {
        &self.guard
    }

    /// Changes the value that observers see, and waits until each store that has it has the new one; `None` removes it.
    ///
    /// Dropping the future leaves open which of them have it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the leadership is lost first, [`Error::Refused`] if the native store refuses the value: some stores may have it.
    pub async fn set_value(&self, value: Option<String>) -> Result<()> {
        let publishing = async {
            for published in &self.published {
                published.publish(value.clone()).await?;
            }
            Ok(())
        };
        self.guard.while_held(publishing).await
    }

    /// Gives up the leadership, and waits until that is certain.
    ///
    /// # Errors
    ///
    /// As [`RemoteGuard::release`].
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }
}

impl fmt::Debug for LockerLeadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockerLeadership").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// The leader that a look through a [`Locker`] found. Its leadership may have ended since.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderSeen {
    /// The name that the leader gives itself.
    pub name: String,
    /// The value that it publishes. It may contain anything: escape it before it goes to a terminal.
    pub value: Option<String>,
    /// Whether the native store told it, or Cassandra.
    pub is_native: bool,
}

/// Observes an election through a [`Locker`].
#[derive(Debug)]
pub struct LockerObserver {
    locker: Locker,
    name: String,
    /// Whether `next` has reported anything yet; `last` is its latest report.
    told: bool,
    last: Option<LeaderSeen>,
}

impl LockerObserver {
    /// The current leader at the first call, and at each further one what has changed: the leader, its value, or the store that tells of it; `None`:
    /// nobody leads. It looks each 50 ms to 2 s, leaves out leaders that came and went between two looks, and goes on during outages. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if a store refuses the read.
    pub async fn next(&mut self) -> Result<Option<LeaderSeen>> {
        let runtime = self.locker.inner.base.runtime().clone();
        let mut pauses = Backoff::new(LOOK_EVERY_MAX);
        loop {
            match self.locker.leader(&self.name).await {
                Ok(leader) if !self.told || self.last != leader => {
                    self.told = true;
                    self.last.clone_from(&leader);
                    return Ok(leader);
                }
                Ok(_) | Err(Error::Unreachable { .. }) => {}
                Err(error) => return Err(error),
            }
            runtime.sleep(pauses.next(&*runtime.rng)).await;
        }
    }
}
