//! One result: an object with the same keys for every lock service, and the table that shows it.

use clap::ValueEnum as _;
use holdfast_runtime::Clock;
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use super::Plan;
use super::probe::{self, Cost};
use super::scene::Scene;
use crate::args::{Global, Workload};
use crate::failure::Failure;
use crate::show;

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
        ("variant", json!(variant(plan))),
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

fn variant(plan: &Plan) -> String {
    let shared = if plan.share_connections { " shared" } else { "" };
    format!("sessions={}{shared}", plan.sessions)
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

/// A figure's title, its keys, the factor for the unit shown, and the unit. Several keys are shown
/// beside one another.
type Line = (&'static str, &'static [&'static str], f64, &'static str);

const LINES: &[Line] = &[
    ("operations", &["ops"], 1.0, ""),
    ("operations per second", &["ops_per_s"], 1.0, "/s"),
    ("errors", &["errors"], 1.0, ""),
    (
        "acquire p50 / p99 / p99.9 / max",
        &["acq_p50_us", "acq_p99_us", "acq_p999_us", "acq_max_us"],
        1e-3,
        " ms",
    ),
    (
        "release p50 / p99 / p99.9 / max",
        &["rel_p50_us", "rel_p99_us", "rel_p999_us", "rel_max_us"],
        1e-3,
        " ms",
    ),
    (
        "hand-over p50 / p99 / p99.9 / max",
        &["ho_p50_us", "ho_p99_us", "ho_p999_us", "ho_max_us"],
        1e-3,
        " ms",
    ),
    ("fairness (Jain's index)", &["jain"], 1.0, ""),
    ("clients without a grant", &["starved"], 1.0, ""),
    ("longest run of one client", &["longest_run"], 1.0, ""),
    ("wait mean / longest", &["wait_mean_ms", "wait_max_ms"], 1.0, " ms"),
    ("server CPU per 1,000 operations", &["server_cpu_s_per_kop"], 1e3, " ms"),
    ("server CPU, all members", &["server_cpu_s"], 1.0, " s"),
    ("the same without waiters", &["server_cpu_s_base"], 1.0, " s"),
    ("client CPU", &["client_cpu_s"], 1.0, " s"),
    ("the same without waiters", &["client_cpu_s_base"], 1.0, " s"),
    ("server memory, all members", &["server_rss_mb"], 1.0, " MiB"),
    ("server memory per waiter, all members", &["server_kb_per_waiter"], 1.0, " KiB"),
    ("round trips to a node per acquire and release", &["round_trips_per_op"], 1.0, ""),
    ("statements without an answer", &["unknown"], 1.0, ""),
    ("of all statements", &["unknown_share"], 100.0, " %"),
    ("packets on loopback per operation", &["lo_packets_per_op"], 1.0, ""),
    (
        "packets on loopback, without waiters",
        &["lo_packets_per_s", "lo_packets_per_s_base"],
        1.0,
        "/s",
    ),
    ("take-over after the kill, median", &["takeover_median_s"], 1.0, " s"),
    ("take-over after the lease's end, longest", &["takeover_max_after_lease_s"], 1e3, " ms"),
    ("cores busy with other work", &["other_cores"], 1.0, ""),
];

/// Prints a table or, for programs, one line of JSON.
pub(super) fn print(global: &Global, row: Row) {
    if global.json {
        return show::line(Value::Object(row));
    }
    let mut rows = vec![["measured".to_owned(), title(&row)]];
    let figures = |line: &Line| Some([line.0.to_owned(), figures(&row, line)?]);
    rows.extend(LINES.iter().filter_map(figures));
    if let Some(Value::String(error)) = row.get("first_error") {
        rows.push(["the first error".to_owned(), show::escaped(error)]);
    }
    show::line(show::table(&[], rows));
}

fn title(row: &Row) -> String {
    let text = |key: &str| match row.get(key) {
        Some(Value::String(text)) => show::escaped(text),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let server = match &*text("peer") {
        "holdfast" => format!("holdfastd {}", text("version")),
        other => other.to_owned(),
    };
    format!(
        "{}, {} clients, {}; {}, {server}",
        text("workload"),
        text("n"),
        text("variant"),
        text("topology"),
    )
}

/// The figures of a line that the row has.
fn figures(row: &Row, (_, keys, factor, unit): &Line) -> Option<String> {
    let shown = keys.iter().filter_map(|key| row.get(*key)?.as_f64());
    let shown: Vec<_> = shown.map(|figure| format!("{}{unit}", short(figure * factor))).collect();
    (!shown.is_empty()).then(|| shown.join(" / "))
}

/// Three digits are enough for a comparison.
fn short(figure: f64) -> String {
    match figure.abs() {
        whole if whole >= 100.0 || figure.fract() == 0.0 => format!("{figure:.0}"),
        tens if tens >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_what_the_row_has_in_the_unit_it_names() {
        let row: Row =
            [("acq_p50_us".to_owned(), json!(670.4)), ("acq_p99_us".to_owned(), json!(12_345))]
                .into_iter()
                .collect();
        let shown: Vec<_> = LINES.iter().filter_map(|line| figures(&row, line)).collect();

        assert_eq!(shown, ["0.670 ms / 12.3 ms"]);
    }
}
