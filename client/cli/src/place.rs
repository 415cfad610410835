//! The address of a Cassandra cluster, and the credentials for it.

use clap::Args;

use crate::failure::Failure;
use holdfast::Error;
use holdfast_recipes::Credentials;

/// The cluster, the keyspace, and who one is to it.
#[derive(Clone, Debug, Args)]
pub struct Reach {
    /// Nodes to begin with: host or host:port, several separated by commas.
    #[arg(long, env = "HOLDFAST_CONTACT_POINTS")]
    pub contact_points: String,
    /// The keyspace of the tables, by its exact name.
    #[arg(long, env = "HOLDFAST_KEYSPACE")]
    pub keyspace: String,
    /// The role to log in as; its password is read from `HOLDFAST_CASSANDRA_PASSWORD`.
    #[arg(long, env = "HOLDFAST_CASSANDRA_USER")]
    pub user: Option<String>,
}

impl Reach {
    /// The role with its password, if there is one.
    pub fn credentials(&self) -> Option<Credentials> {
        let user = self.user.clone()?;
        let password = std::env::var("HOLDFAST_CASSANDRA_PASSWORD").unwrap_or_default();
        Some(Credentials { user, password })
    }
}

/// Converts an error as for a Holdfast server, with another message when Cassandra cannot be
/// reached.
pub fn failure(error: Error) -> Failure {
    if let Error::Unreachable { endpoints, waited, last } = &error {
        return Failure::unanswered("no answer from Cassandra", endpoints, *waited, last, "");
    }
    error.into()
}
