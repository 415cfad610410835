//! The closing table, as text and as JSON.

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::verdict::Verdict;
use super::{FILES, PROCESSES, WORKERS};
use crate::show;

pub(crate) fn json(verdict: &Verdict) -> Value {
    json!({
        "violations": verdict.violations(),
        "increments_made": verdict.made,
        "increments_found": verdict.found,
        "grants": verdict.grants,
        "handovers": verdict.handovers,
        "handover_p50_us": verdict.handover_p50_us,
        "handover_p99_us": verdict.handover_p99_us,
        "gaps_ms": verdict.gaps_ms,
        "longest_gap_ms": verdict.longest_gap_ms(),
        "jain": verdict.jain,
    })
}

pub(crate) fn print(verdict: &Verdict, no_locks: bool) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (what, figure) in rows(verdict, no_locks) {
        table.add_row([what.to_owned(), figure]);
    }
    show::line(table.trim_fmt());
    show::line(conclusion(verdict, no_locks));
}

fn rows(verdict: &Verdict, no_locks: bool) -> Vec<(&'static str, String)> {
    let workers = PROCESSES * WORKERS;
    let who = format!("{workers} in {PROCESSES} processes, one client each; {FILES} files");
    let mut rows = vec![
        ("workers", who),
        ("increments made", verdict.made.to_string()),
        ("increments found in the files", verdict.found.to_string()),
        ("increments lost", verdict.lost_increments().to_string()),
        (
            "violations",
            format!(
                "{} ({} overlaps, {} tokens not above the last, {} turns without a write)",
                verdict.violations(),
                verdict.overlaps,
                verdict.tokens_back,
                verdict.unwritten
            ),
        ),
    ];
    if !no_locks {
        rows.push(("grants", verdict.grants.to_string()));
        rows.push((
            "hand-over p50 / p99",
            format!("{} µs / {} µs", verdict.handover_p50_us, verdict.handover_p99_us),
        ));
        let gaps: Vec<_> = verdict.gaps_ms.iter().map(|gap| format!("{gap} ms")).collect();
        rows.push(("longest gap at each kill of the leader", gaps.join(", ")));
        rows.push(("fairness (Jain's index)", format!("{:.4}", verdict.jain)));
    }
    rows
}

fn conclusion(verdict: &Verdict, no_locks: bool) -> String {
    match (no_locks, verdict.lost_increments()) {
        (true, 0) => "no increment was lost this time; without locks that is luck".into(),
        (true, lost) => format!("without locks, {lost} increments were lost"),
        (false, 0) if verdict.violations() == 0 => {
            "every increment is there, and no two workers ever held the same lock".into()
        }
        (false, _) => "something is off: see above".into(),
    }
}
