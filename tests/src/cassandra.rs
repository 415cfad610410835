//! Three real Cassandra nodes, by `tests/cassandra/nodes`: those that `tests/run` has started, or a
//! suite's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tempfile::TempDir;

/// Where `tests/run` says that nodes run.
const RUN: &str = "HOLDFAST_CASSANDRA";

/// Nodes 1 to 3. Those that are a suite's own end when this is dropped.
#[derive(Debug)]
pub struct Nodes {
    run: PathBuf,
    own: Option<TempDir>,
}

impl Nodes {
    /// Starts three nodes, or finds those of `tests/run`.
    pub async fn start() -> Self {
        if let Some(run) = std::env::var_os(RUN) {
            let nodes = Self { run: run.into(), own: None };
            nodes.mend().await;
            return nodes;
        }
        let own = tempfile::tempdir().unwrap();
        let nodes = Self { run: own.path().join("nodes"), own: Some(own) };
        nodes.call("up", &[]).await;
        nodes
    }

    /// An earlier test may have left a node dead, or with a wrong clock.
    async fn mend(&self) {
        for node in 1..=3 {
            let skew = std::fs::read_to_string(self.run.join(format!("n{node}/skew_ms"))).unwrap();
            if skew.trim() != "0" {
                self.kill(node).await;
            }
            self.restart_if_dead(node).await;
        }
    }

    async fn restart_if_dead(&self, node: u8) {
        let folder = self.run.join(format!("n{node}"));
        let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
        let line = std::fs::read(Path::new("/proc").join(pid.trim()).join("cmdline"));
        if line.is_err() {
            std::fs::write(folder.join("skew_ms"), "0").unwrap();
            self.restart(node).await;
        }
    }

    /// `host:port`, separated by commas.
    pub async fn contact_points(&self) -> String {
        self.call("addresses", &[]).await.trim().to_owned()
    }

    /// Ends a node with SIGKILL.
    pub async fn kill(&self, node: u8) {
        self.call("kill", &[&node.to_string()]).await;
    }

    /// Starts a node again, with its data; it is ready when this is done.
    pub async fn restart(&self, node: u8) {
        self.call("start", &[&node.to_string()]).await;
    }

    /// From now on a node's wall clock is ahead by so much.
    pub async fn skew(&self, node: u8, ahead: Duration) {
        self.call("skew", &[&node.to_string(), &ahead.as_millis().to_string()]).await;
        // The shim looks every 100 ms.
        holdfast_seams::Seams::system().sleep(Duration::from_millis(200)).await;
    }

    /// A session of the driver, as a user of the library has one.
    pub async fn session(&self) -> Arc<Session> {
        let points = self.contact_points().await;
        let builder = SessionBuilder::new().known_nodes(points.split(','));
        Arc::new(builder.build().await.unwrap())
    }

    async fn call(&self, command: &str, arguments: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cassandra/nodes");
        let mut command_line = Command::new(script);
        command_line.arg(command).arg(&self.run).args(arguments);
        let called = tokio::task::spawn_blocking(move || command_line.output());
        let output = called.await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nodes {command}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if self.own.is_some() {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cassandra/nodes");
            // A failure leaves processes behind, which the next line of the test's output tells.
            let ended = Command::new(script).arg("down").arg(&self.run).status();
            assert!(ended.is_ok_and(|status| status.success()), "the nodes did not end");
        }
    }
}
