//! One result: an object with the same keys for every lock service.

use clap::ValueEnum as _;
use holdfast_runtime::Clock;
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use super::Plan;
use super::probe::{self, Cost};
use super::scene::Scene;
use crate::args::Workload;
use crate::failure::Failure;

/// Keys and figures. A figure that does not apply is left out.
pub(super) type Row = Map<String, Value>;

/// The description of the run, and its time.
pub(super) async fn header(plan: &Plan, scene: &Scene) -> Result<Row, Failure> {
    let load = probe::load()?;
    // Connecting waits for a leader; only then does a server know its members.
    let sessions = scene.sessions(plan, 1).await?;
    let status = scene.status().await?;
    for session in sessions {
        session.close().await?;
    }
    let header = [
        ("peer", json!("holdfast")),
        ("variant", json!(format!("sessions={}", plan.sessions))),
        ("version", json!(status.version)),
        ("topology", json!(format!("{}n", status.members.len()))),
        // The server has no other mode: it answers only after a majority has synced.
        ("durability", json!("fsync")),
        (
            "workload",
            json!(plan.workload.to_possible_value().map(|value| value.get_name().to_owned())),
        ),
        ("n", json!(plan.clients)),
        ("secs", json!(seconds(plan))),
        ("ttl_s", json!(plan.ttl.as_secs_f64())),
        ("run", json!(plan.run)),
        ("ts", json!(timestamp(&*scene.runtime.clock))),
        ("load1", json!(load)),
    ];
    Ok(header.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
}

/// For W5 the number of trials, as in the peers' rows.
fn seconds(plan: &Plan) -> u64 {
    match plan.workload {
        Workload::KilledHolder => plan.trials.into(),
        _ => plan.window.as_secs(),
    }
}

/// The current time, to the second, in RFC 3339.
pub(super) fn timestamp(clock: &dyn Clock) -> String {
    let seconds = i64::try_from(clock.wall_ms() / 1_000).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: 0 }.to_string()
}

/// Adds the cost of a window; `suffix` ends the keys that the peers have twice.
pub(super) fn tell_cost(cost: &Cost, suffix: &str, row: &mut Row) {
    row.insert(format!("client_cpu_s{suffix}"), json!(cost.own_cpu));
    if let Some(servers) = cost.servers_cpu {
        row.insert(format!("server_cpu_s{suffix}"), json!(servers));
    }
    if let Some(others) = cost.other_cores {
        row.insert(format!("other_cores{suffix}"), json!((others * 100.0).round() / 100.0));
    }
}

/// Resident memory of all members together.
pub(super) fn tell_rss(bytes: Option<u64>, row: &mut Row) {
    if let Some(bytes) = bytes {
        row.insert("server_rss_mb".into(), json!(float(bytes) / 1_048_576.0));
    }
}

/// A count as a figure of the row.
#[expect(clippy::cast_precision_loss, reason = "what is counted here is far below 2^52")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}
