//! Builds lockers on a session of the driver: the caller's own, or one opened for them.

use std::sync::Arc;

use holdfast_keyspace::driver::{self, NotOpen};
pub use holdfast_keyspace::driver::{Contact, Credentials, SerialScope};
use holdfast_runtime::Runtime;
use scylla::client::session::Session;

use super::cassandra::Cassandra;
use super::schema::Schema;
use crate::{Error, Result};

impl Cassandra {
    /// Uses the keyspace `keyspace`, by its exact name, over the caller's own session, for example the one it uses for
    /// its data. This neither uses nor changes the session's execution profile. It sends nothing: it checks what the
    /// session knows of the cluster.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if there is no such keyspace, if the keyspace has fewer nodes, up or down, than replicas (the
    /// nodes present would decide an LWT, and nodes that join later would not know it), if no node is in the datacenter of
    /// `scope`, if locks are to be decided in a datacenter of which the keyspace does not say how many replicas it has, or if the
    /// session does not fetch its schema and so cannot tell.
    pub fn new(session: Arc<Session>, keyspace: &str, scope: &SerialScope) -> Result<Self, Error> {
        let keyspace = driver::keyspace(session, keyspace, scope).map_err(not_open)?;
        Ok(Self::on(keyspace, Runtime::system()))
    }

    /// Opens a session for the lockers: for programs that have none. A lock is exclusive within `scope`.
    ///
    /// Warns in the log of tables that keep tombstones longer than their rows may come back, which makes busy locks fail. Of tables with other names than the
    /// default ones `holdfast cassandra` warns.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no contact point answered, [`Error::Refused`] if the cluster
    /// rejected the login, [`Error::InvalidConfig`] without a contact point; and those of
    /// [`Cassandra::new`].
    pub async fn connect(contact: &Contact, keyspace: &str, scope: &SerialScope) -> Result<Self> {
        let session = open(contact).await?;
        let cassandra = Self::new(session.clone(), keyspace, scope)?;
        // A cluster that does not tell what its tables are like may still serve locks.
        if let Ok(Some(warning)) = Schema::new(keyspace).warning(&session).await {
            tracing::warn!("{warning}");
        }
        Ok(cassandra)
    }
}

/// Opens a session for the caller, without checking a keyspace.
///
/// # Errors
///
/// [`Error::Unreachable`] if no contact point answered, [`Error::Refused`] if the cluster rejected the login,
/// [`Error::InvalidConfig`] without a contact point.
pub async fn open(contact: &Contact) -> Result<Arc<Session>> {
    driver::open(contact).await.map_err(not_open)
}

fn not_open(why: NotOpen) -> Error {
    match why {
        NotOpen::Unreachable { contact_points: endpoints, waited, last } => {
            Error::Unreachable { endpoints, waited, last, answered: false }
        }
        NotOpen::Refused(message) => Error::invalid(message),
        NotOpen::Setting(message) => Error::InvalidConfig { message },
    }
}
