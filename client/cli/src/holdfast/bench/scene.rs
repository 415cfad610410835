//! The fixture of a measurement: servers that bench starts, or foreign ones, and sessions there.

use std::time::Duration;

use holdfast::{Builder, Client, NodeStatus};
use holdfast_cli::tls::TlsArgs;
use holdfast_runtime::Runtime;
use tempfile::TempDir;

use super::Plan;
use super::probe::Probe;
use crate::args::{BenchArgs, Global};
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
    /// Their processes; `None`: they may run anywhere.
    servers: Option<Vec<u32>>,
    pub(super) endpoints: String,
    pub(super) tls: TlsArgs,
    /// Time, tasks and randomness.
    pub(super) runtime: Runtime,
}

impl Scene {
    /// Starts servers, unless foreign ones are measured. Call it on the main thread.
    pub(super) fn set(global: &Global, args: &BenchArgs) -> Result<Self, Failure> {
        let BenchArgs { members, server_pids, .. } = args;
        let runtime = Runtime::system();
        if let (Some(endpoints), None) = (&global.endpoints, members) {
            let endpoints = endpoints.clone();
            let tls = global.tls.clone();
            let servers = Some(server_pids.clone()).filter(|pids| !pids.is_empty());
            return Ok(Self { own: None, folder: None, servers, endpoints, tls, runtime });
        }
        if !server_pids.is_empty() {
            let message = "they are of the servers at --endpoints, which are missing";
            return Err(Failure::own("--server-pids", message));
        }
        let folder = TempDir::with_prefix("holdfast-bench-")
            .map_err(|error| Failure::own("making a temporary folder", error))?;
        let own = Cluster::start(folder.path(), (*members).unwrap_or(MEMBERS))?;
        let (endpoints, servers) = (own.endpoints(), Some(own.processes()));
        let tls = TlsArgs::default();
        Ok(Self { own: Some(own), folder: Some(folder), servers, endpoints, tls, runtime })
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

    /// The probe of a measurement; of servers whose processes it does not know it reads nothing.
    pub(super) fn probe(&self) -> Probe {
        Probe::new(self.runtime.clock.clone(), self.servers.clone())
    }

    /// Opens this many sessions.
    pub(super) async fn sessions(
        &self,
        plan: &Plan,
        number: usize,
    ) -> Result<Vec<Client>, Failure> {
        let builder = self.builder()?.ttl(plan.ttl).label("bench").connect_timeout(CONNECT_LIMIT);
        let builder = if plan.share_connections { builder.share_connections() } else { builder };
        let connect = || async { Ok::<_, Failure>(builder.clone().connect().await?) };
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
