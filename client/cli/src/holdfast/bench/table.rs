//! A row as text.

use serde_json::Value;

use super::row::Row;
use crate::show;

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

pub(super) fn print(row: &Row) {
    let mut rows = vec![["measured".to_owned(), title(row)]];
    let figures = |line: &Line| Some([line.0.to_owned(), figures(row, line)?]);
    rows.extend(LINES.iter().filter_map(figures));
    if let Some(Value::String(error)) = row.get("first_error") {
        rows.push(["the first error".to_owned(), show::escaped(error)]);
    }
    show::line(show::table(&[], rows).trim_fmt());
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
    use serde_json::json;

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
