//! The fixture of a measurement: servers that bench starts, or foreign ones, and sessions there.

use std::time::Duration;

use holdfast::{Builder, Client, NodeStatus};
use holdfast_cli::tls::TlsArgs;
use holdfast_runtime::Runtime;
use tempfile::TempDir;

use super::Plan;
use super::probe::Probe;
use crate::args::Global;
use crate::cluster::Cluster;
use crate::failure::Failure;

/// How long the servers may take to have a leader that opens a session.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Members of a cluster that bench starts, without --members.
const MEMBERS: usize = 3;

/// The servers, their folder and endpoints.
pub(super) struct Scene {
    // In this order: the servers end before their folder is removed.
    own: Option<Cluster>,
    folder: Option<TempDir>,
    pub(super) endpoints: String,
    pub(super) tls: TlsArgs,
    /// Time, tasks and randomness.
    pub(super) runtime: Runtime,
}

impl Scene {
    /// Starts servers, unless foreign ones are measured. Call it on the main thread.
    pub(super) fn set(global: &Global, members: Option<usize>) -> Result<Self, Failure> {
        let runtime = Runtime::system();
        if let (Some(endpoints), None) = (&global.endpoints, members) {
            let endpoints = endpoints.clone();
            let tls = global.tls.clone();
            return Ok(Self { own: None, folder: None, endpoints, tls, runtime });
        }
        let folder = TempDir::with_prefix("holdfast-bench-")
            .map_err(|error| Failure::own("making a temporary folder", error))?;
        let own = Cluster::start(folder.path(), members.unwrap_or(MEMBERS))?;
        let endpoints = own.endpoints();
        let tls = TlsArgs::default();
        Ok(Self { own: Some(own), folder: Some(folder), endpoints, tls, runtime })
    }

    /// Ends the servers that it started. If the measurement failed, it keeps and names their logs.
    pub(super) fn clear<T>(self, measured: Result<T, Failure>) -> Result<T, Failure> {
        drop(self.own);
        match (measured, self.folder) {
            // A signal asked for the end; the logs are not needed.
            (Err(failure), Some(folder)) if failure.code < 128 => {
                let kept = folder.keep();
                let message = format!("{}; logs are kept in {}", failure.message, kept.display());
                Err(Failure::new(failure.code, message))
            }
            (measured, _) => measured,
        }
    }

    /// The probe of a measurement; for foreign servers it reads only this machine.
    pub(super) fn probe(&self) -> Probe {
        let servers = self.own.as_ref().map(Cluster::processes);
        Probe::new(self.runtime.clock.clone(), servers)
    }

    /// Opens this many sessions.
    pub(super) async fn sessions(
        &self,
        plan: &Plan,
        number: usize,
    ) -> Result<Vec<Client>, Failure> {
        let connect = || async {
            let builder =
                self.builder()?.ttl(plan.ttl).label("bench").connect_timeout(CONNECT_LIMIT);
            Ok::<_, Failure>(builder.connect().await?)
        };
        let sessions = (0..number).map(|_| connect());
        futures_util::future::try_join_all(sessions).await
    }

    /// A server's report about itself and its cluster.
    pub(super) async fn status(&self) -> Result<NodeStatus, Failure> {
        Ok(self.builder()?.connect_timeout(CONNECT_LIMIT).reader()?.status().await?)
    }

    fn builder(&self) -> Result<Builder, Failure> {
        let endpoints = holdfast_cli::endpoints(&self.endpoints);
        self.tls.over(Client::builder().endpoints(endpoints))
    }

    /// A prefix of lock names that no other run uses.
    pub(super) fn names(&self) -> String {
        format!("bench/{:016x}/", self.runtime.rng.next_u64())
    }
}
