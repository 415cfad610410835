//! One run: a cluster, traffic on it, witnesses of what it acknowledged, and the verdict.

use std::time::Duration;

use holdfast_runtime::Runtime;
use nix::sys::signal::Signal;

use crate::check::{Options, Report, check};
use crate::cluster::{Cluster, Setup};
use crate::history::{ClientId, Record, Recorder, What, merge, save};
use crate::traffic::{Plan, Traffic};
use crate::witness::Witness;

/// The client id of the harness's own records.
const HARNESS: ClientId = ClientId(0);
/// Longest time from a fault to the grants after it: elections, reconnects, a slow machine.
const SERVES_WITHIN: Duration = Duration::from_secs(20);

/// A cluster under traffic, whose history is judged at the end.
#[derive(Debug)]
pub struct Run {
    /// The cluster.
    pub cluster: Cluster,
    /// Writes the run's history.
    pub recorder: Recorder,
    traffic: Traffic,
    witness: Witness,
}

impl Run {
    /// Starts a cluster, takes witnesses and sets clients to work.
    pub async fn start(setup: &Setup, plan: &Plan) -> Self {
        let cluster = Cluster::start(setup).await;
        let endpoints = cluster.endpoints();
        Self::on(cluster, plan, &endpoints).await
    }

    /// The same on a cluster that its clients reach at `endpoints`.
    pub async fn on(cluster: Cluster, plan: &Plan, endpoints: &str) -> Self {
        let recorder = Recorder::in_memory(Runtime::system().clock);
        let leader = cluster.leader().await;
        let witness =
            Witness::take(&cluster.nodes()[leader].listen, &recorder, 1_000_000, 20).await;
        let traffic = Traffic::start(plan, endpoints, &recorder).await;
        let run = Self { cluster, recorder, traffic, witness };
        run.serves().await;
        run
    }

    /// Records that a fault is active from now on.
    pub fn fault(&self, note: &str) {
        self.recorder.write(HARNESS, What::Fault { note: note.into() });
    }

    /// Waits until the clients have been granted a few hundred locks from now on.
    pub async fn serves(&self) {
        self.traffic.more_grants(200, SERVES_WITHIN).await;
    }

    /// Everything that was acknowledged to the witnesses is still there.
    pub async fn nothing_lost(&mut self) {
        let leader = self.cluster.leader().await;
        let address = self.cluster.nodes()[leader].listen.clone();
        self.witness.look_again(&address).await;
    }

    /// Sends SIGKILL to these nodes.
    pub fn kill(&mut self, indexes: &[usize]) {
        self.fault(&format!("kill {indexes:?}"));
        for &index in indexes {
            self.cluster.kill(index);
        }
    }

    /// These nodes lose their power.
    pub async fn cut_power(&mut self, indexes: &[usize]) {
        self.fault(&format!("power cut {indexes:?}"));
        self.cluster.cut_power(indexes).await;
    }

    /// Starts these nodes again.
    pub fn start_again(&mut self, indexes: &[usize]) {
        for &index in indexes {
            self.cluster.start_node(index);
        }
    }

    /// Sends SIGTERM, waits for the end, which must be a clean one, and starts the node again.
    pub async fn restart(&mut self, index: usize) {
        self.fault(&format!("restart {index}"));
        self.cluster.signal(index, Signal::SIGTERM);
        let status = self.cluster.wait_for_exit(index).await;
        assert_eq!(status.code(), Some(0), "a graceful stop is a clean end");
        self.cluster.start_node(index);
        self.cluster.all_ready().await;
    }

    /// No fault is active any more: every client finishes, everything is handed over, and the
    /// history is judged.
    pub async fn heal_and_judge(self) -> Report {
        self.recorder.write(HARNESS, What::Healed);
        self.serves().await;
        self.traffic.finish(Duration::from_secs(40)).await;
        let leader = self.cluster.leader().await;
        self.witness.hand_over(&self.cluster.nodes()[leader].listen).await;
        judge(vec![self.recorder.take()])
    }
}

/// Judges the histories of a run. A run with a violation is kept, and the test fails.
pub fn judge(parts: Vec<Vec<Record>>) -> Report {
    let records = merge(parts);
    let report = check(&records, Options::default());
    if !report.violations.is_empty() {
        let path =
            std::env::temp_dir().join(format!("holdfast-history-{}.jsonl", std::process::id()));
        let kept = save(&records, &path).map(|()| path.display().to_string());
        panic!("{report}the history is kept: {kept:?}");
    }
    report
}
