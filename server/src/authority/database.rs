//! Cassandra as the authorities reach it. The connection is made with the first statement, so that the
//! server starts and serves all other names whatever the state of Cassandra.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_keyspace::database::{Answer, Database, Fault};
use holdfast_keyspace::driver::{self, Contact, Credentials, SerialScope};
use holdfast_keyspace::statement::Statement;
use holdfast_runtime::Runtime;
use tokio::sync::{OnceCell, oneshot};

use crate::config::FallbackConfig;

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A keyspace that is opened with the first statement, or with the next one if that failed.
struct Lazy {
    fallback: FallbackConfig,
    opened: Opened,
}

type Opened = Arc<OnceCell<Arc<dyn Database>>>;

/// The keyspace that the settings name.
pub(super) fn of(fallback: &FallbackConfig) -> Arc<dyn Database> {
    Arc::new(Lazy { fallback: fallback.clone(), opened: Arc::default() })
}

impl Database for Lazy {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let (opened, fallback) = (self.opened.clone(), self.fallback.clone());
        Box::pin(async move {
            connected(opened, async move { open(&fallback).await }).await?.execute(statement).await
        })
    }

    fn endpoints(&self) -> Vec<String> {
        self.fallback.cassandra.split(',').map(|point| point.trim().to_owned()).collect()
    }
}

/// The shared connection, made by a task of its own if there is none yet.
///
/// A statement times out sooner than a connection attempt may. The attempt goes on without it: otherwise
/// a leader that connects slowly would start over with each statement and never be connected.
async fn connected(
    opened: Opened,
    open: impl Future<Output = Result<Arc<dyn Database>, Fault>> + Send + 'static,
) -> Result<Arc<dyn Database>, Fault> {
    if let Some(database) = opened.get() {
        return Ok(database.clone());
    }
    let (answer, answered) = oneshot::channel();
    let connecting = async move {
        let connected = opened.get_or_try_init(|| open).await.cloned();
        // The caller may have given up.
        let _ = answer.send(connected);
    };
    Runtime::system().spawn("cassandra", connecting).detach();
    let over = |_| Fault::NotDone("the server ends".into());
    answered.await.map_err(over)?
}

async fn open(fallback: &FallbackConfig) -> Result<Arc<dyn Database>, Fault> {
    let datacenter = Some(fallback.cassandra_datacenter.clone()).filter(|name| !name.is_empty());
    let scope = datacenter.clone().map_or(SerialScope::Cluster, SerialScope::Near);
    let contact =
        Contact::new(&fallback.cassandra).login(credentials(fallback)?).tls(fallback.tls());
    let session = driver::open(&contact.datacenter(datacenter).limit(CONNECT_LIMIT)).await;
    let opened =
        session.and_then(|session| driver::keyspace(session, &fallback.cassandra_keyspace, &scope));
    opened.map_err(|why| Fault::NotDone(why.to_string()))
}

/// The credentials, read again for each attempt: the password may change while the server runs.
fn credentials(fallback: &FallbackConfig) -> Result<Option<Credentials>, Fault> {
    if fallback.cassandra_user.is_empty() {
        return Ok(None);
    }
    let path: &Path = &fallback.cassandra_password_file;
    let text = fs::read_to_string(path).map_err(|error| {
        Fault::NotDone(format!("cassandra_password_file {}: {error}", path.display()))
    })?;
    let password = text.lines().next().unwrap_or_default().to_owned();
    Ok(Some(Credentials { user: fallback.cassandra_user.clone(), password }))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Somewhere;

    impl Database for Somewhere {
        fn execute(&self, _: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
            Box::pin(std::future::pending())
        }

        fn endpoints(&self) -> Vec<String> {
            vec!["somewhere".to_owned()]
        }
    }

    /// The first statement is given up before there is a connection; the second one uses the connection
    /// that the first began.
    #[tokio::test]
    async fn a_connection_goes_on_without_the_statement_that_began_it() {
        let opened = Opened::default();
        let (slowly, slow) = oneshot::channel();
        let begun = connected(opened.clone(), async move { Ok(slow.await.unwrap()) });
        let given_up = Runtime::system().timeout(Duration::from_millis(20), begun).await;
        assert!(given_up.is_err());

        let somewhere: Arc<dyn Database> = Arc::new(Somewhere);
        assert!(slowly.send(somewhere).is_ok(), "nobody connects any more");
        let anew = async { Err(Fault::NotDone("begun anew".into())) };
        let database = connected(opened, anew).await.unwrap();
        assert_eq!(database.endpoints(), ["somewhere"]);
    }
}
