//! The tables, as Markdown.

use std::fmt::Write as _;

use super::row::find;
use super::{Cell, Figure, Keys, STORES, THREADS};

/// The tables, each with its keys and its figure.
const TABLES: [(Keys, Figure); 9] = [
    (Keys::One, Figure::Rate),
    (Keys::One, Figure::Median),
    (Keys::One, Figure::Slow),
    (Keys::One, Figure::Fairness),
    (Keys::One, Figure::LongestRun),
    (Keys::One, Figure::Operations),
    (Keys::Distinct, Figure::Rate),
    (Keys::Distinct, Figure::Median),
    (Keys::Distinct, Figure::Slow),
];

/// All tables. A cell that was not measured, and a figure that its store does not have, is a dash.
pub fn tables(cells: &[Cell]) -> String {
    let mut page = String::new();
    for (keys, figure) in TABLES {
        // Infallible, here and below: a String takes whatever is written to it.
        let _ = writeln!(page, "**{keys}: {figure}**\n");
        let names: Vec<&str> = STORES.iter().map(|store| store.name).collect();
        let _ = writeln!(page, "| threads | {} |", names.join(" | "));
        let _ = writeln!(page, "|{}", "---:|".repeat(names.len() + 1));
        for threads in THREADS {
            let shown = STORES.map(|store| shown(find(cells, store, threads, keys), figure));
            let _ = writeln!(page, "| {threads} | {} |", shown.join(" | "));
        }
        page.push('\n');
    }
    page
}

fn shown(cell: Option<&Cell>, figure: Figure) -> String {
    let Some(value) = cell.and_then(|cell| cell.figure(figure)) else { return "–".into() };
    let shown = short(figure, value);
    if figure != Figure::Rate {
        return shown;
    }
    let range =
        cell.and_then(|cell| cell.range(figure)).map_or_else(String::new, |(least, most)| {
            format!(" ({} to {})", short(figure, least), short(figure, most))
        });
    // Failed acquires had no time to get the lock.
    match cell.map_or(0, Cell::errors) {
        0 => shown + &range,
        errors => format!("{shown}{range}, {errors} failed"),
    }
}

/// Three digits; an index has two after the decimal point.
fn short(figure: Figure, value: f64) -> String {
    match figure {
        Figure::Fairness => format!("{value:.2}"),
        Figure::LongestRun => format!("{value:.0}"),
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PROGRAM, cells};
    use super::*;
    use crate::marks::put_between;

    const ROWS: &str = "\
{\"peer\":\"cassandra-queue\",\"n\":10,\"workload\":\"W3\",\"ops_per_s\":1.25,\"acq_p50_us\":734000.0,\"jain\":0.894,\"longest_run\":3,\"errors\":2}
{\"peer\":\"holdfast\",\"n\":10,\"workload\":\"W3\",\"ops_per_s\":902.4,\"jain\":1.0,\"longest_run\":1,\"errors\":0}
{\"peer\":\"holdfast\",\"n\":1,\"workload\":\"W1\",\"ops_per_s\":500,\"errors\":0}
{\"peer\":\"holdfast\",\"n\":1,\"workload\":\"W1\",\"ops_per_s\":564.4,\"errors\":1}
{\"peer\":\"holdfast\",\"n\":1,\"workload\":\"W1\",\"ops_per_s\":580,\"errors\":0}
";

    fn line<'a>(page: &'a str, title: &str, threads: &str) -> &'a str {
        let table = page.split("**").skip_while(|part| *part != title).nth(1).unwrap();
        table.lines().find(|line| line.starts_with(&format!("| {threads} |"))).unwrap()
    }

    #[test]
    fn a_figure_stands_where_its_store_and_threads_meet() {
        let page = tables(&cells(ROWS).unwrap());

        let rate = "one key: locks per second";
        assert_eq!(line(&page, rate, "10"), "| 10 | – | 1.25, 2 failed | – | – | – | – | 902 |");
        let thrice = "| 1 | – | – | – | – | – | – | 564 (500 to 580), 1 failed |";
        assert_eq!(line(&page, rate, "1"), thrice, "the middle one of three");
        let alone = line(&page, "distinct keys: locks per second", "1");
        assert_eq!(alone, thrice, "one thread has one key");
        let median = line(&page, "one key: time to get the lock, p50, ms", "10");
        assert_eq!(median, "| 10 | – | 734 | – | – | – | – | – |");
        let fair = line(&page, "one key: fairness (Jain's index)", "10");
        assert_eq!(fair, "| 10 | – | 0.89 | – | – | – | – | 1.00 |");
    }

    /// No figure on the page is typed by hand.
    #[test]
    fn the_page_shows_what_its_rows_say() {
        let page = include_str!("../../../docs/thesis-benchmark.md");
        let rows = include_str!("../../../docs/thesis-benchmark/rows.jsonl");
        let made = put_between(page, PROGRAM, &tables(&cells(rows).unwrap())).unwrap();

        assert_eq!(made, page, "holdfast-thesis-table makes it anew");
    }

    #[test]
    fn what_is_no_row_of_the_table_is_named() {
        let named = |rows: &str| cells(rows).unwrap_err().to_string();

        assert!(named("{\"peer\":\"etcd\"}").starts_with("line 1 is of no cell"));
        assert!(named(&format!("{ROWS}x")).starts_with("line 6 is no row"));
        let other = ROWS.replace("\"n\":10", "\"n\":11");
        assert_eq!(named(&other), "line 1 is of no cell of the table: n is 11");
    }
}
