//! Names, times, places and tables for people; what is shown of a lock for programs.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use chrono::{DateTime, Local, SecondsFormat, Utc};
use comfy_table::{
    Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, Width, presets,
};
use holdfast::{Holder, Mode, Waiter};
pub(crate) use holdfast_cli::colour::Tone;
pub(crate) use holdfast_cli::{either, escaped, line};
use serde_json::{Value, json};

/// A session's label, with who opened it; for an imported session, its owner's name in the other store.
pub(crate) fn label(label: &str, identity: &str, is_imported: bool) -> String {
    let imported = if is_imported { " (imported)" } else { "" };
    let who = if identity.is_empty() { String::new() } else { format!(" ({})", escaped(identity)) };
    format!("{}{who}{imported}", escaped(label))
}

/// A cell with a tone: the colours of [`Tone::style`], in the words of tables.
pub(crate) fn cell(tone: Tone, text: impl Into<String>) -> Cell {
    let cell = Cell::new_owned(text.into());
    match tone {
        Tone::Title => cell.add_attribute(Attribute::Bold),
        Tone::Good => cell.fg(Color::DarkGreen),
        Tone::Caution => cell.fg(Color::DarkYellow),
        Tone::Wrong => cell.fg(Color::DarkRed).add_attribute(Attribute::Bold),
    }
}

/// A table without lines; without a header if that is empty. On a terminal it is as wide as that at most: long cells
/// go on in the next line, and if there are too many columns each row becomes a list of its own.
pub(crate) fn table<R: Into<Row>>(header: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let width = Table::new().width();
    arranged(header, rows.into_iter().map(Into::into).collect(), width)
}

/// The narrowest that a column with longer cells gets.
const NARROWEST: usize = 14;
/// Between two columns.
const GAP: usize = 2;

fn arranged(header: &[&str], rows: Vec<Row>, width: Option<u16>) -> String {
    // A terminal that nobody told its size has no column at all, as in a container.
    let width = width.filter(|width| *width > 0);
    let longest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.cell_iter().nth(column));
        cells.map(|cell| cell.content().chars().count()).max().unwrap_or(0)
    };
    let columns = header.iter().enumerate();
    let needed = columns.map(|(at, title)| title.len().max(longest(at).min(NARROWEST)) + GAP);
    if width.is_some_and(|width| needed.sum::<usize>() > usize::from(width)) {
        let lists = rows.iter().map(|row| list(header, row, width).trim_fmt());
        return lists.collect::<Vec<_>>().join("\n\n");
    }
    let mut table = without_lines(width);
    if !header.is_empty() {
        table.set_header(header.iter().map(|title| cell(Tone::Title, *title)));
    }
    table.add_rows(rows);
    for (column, title) in table.column_iter_mut().zip(header) {
        let title = u16::try_from(title.len() + GAP).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(title)));
    }
    table.trim_fmt()
}

/// A row as a list of its cells with their titles.
fn list(header: &[&str], row: &Row, width: Option<u16>) -> Table {
    let mut table = without_lines(width);
    let titles = header.iter().map(|title| cell(Tone::Title, *title));
    table.add_rows(titles.zip(row.cell_iter()).map(|(title, cell)| vec![title, cell.clone()]));
    table
}

fn without_lines(width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).enforce_styling().style_text_only();
    if let Some(width) = width {
        table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
    }
    table
}

/// For programs.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Whole seconds, or minutes and seconds, and so on.
pub(crate) fn length(length: Duration) -> String {
    let seconds = length.as_secs();
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// The time of day here, to the second.
pub(crate) fn time_of_day(wall_ms: u64) -> String {
    at(wall_ms)
        .map_or_else(String::new, |at| at.with_timezone(&Local).format("%H:%M:%S").to_string())
}

/// The date and time here, to the second.
pub(crate) fn date_and_time(wall_ms: u64) -> String {
    let here = at(wall_ms).map(|at| at.with_timezone(&Local));
    here.map_or_else(String::new, |here| here.format("%Y-%m-%d %H:%M:%S").to_string())
}

/// A date and time in UTC, to the millisecond: for programs.
pub(crate) fn instant(wall_ms: u64) -> Option<String> {
    Some(at(wall_ms)?.to_rfc3339_opts(SecondsFormat::Millis, true))
}

fn at(wall_ms: u64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(i64::try_from(wall_ms).ok()?)
}

/// `next in line`, `2nd in line`, `3rd in line`, …
pub(crate) fn place(place: u64) -> String {
    let number = place.saturating_add(1);
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    if place == 0 { "next in line".into() } else { format!("{number}{suffix} in line") }
}

/// What a request says for people, behind what else is shown of it; nothing if it says nothing.
pub(crate) fn note(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(", \"{}\"", escaped(note)) }
}

/// For programs. Tokens are strings: JSON numbers lose digits above 2^53.
pub(crate) fn holder(holder: &Holder) -> Value {
    json!({
        "session": holder.session.to_string(),
        "label": holder.label,
        "token": holder.token.to_string(),
        "held_ms": millis(holder.held),
        "mode": mode(holder.mode),
        "permits": permits(holder.mode),
        "imported": holder.is_imported,
        "identity": holder.identity,
        "ending": holder.is_ending,
        "note": holder.note,
        "max_hold_ms": holder.max_hold.map(millis),
        "hold_at_least_ms": holder.hold_at_least.map(millis),
    })
}

pub(crate) fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

pub(crate) fn permits(mode: Mode) -> Option<u32> {
    mode.is_permits().then(|| mode.permits())
}

/// For programs.
pub(crate) fn waiter(waiter: &Waiter) -> Value {
    json!({
        "session": waiter.session.to_string(),
        "label": waiter.label,
        "waiting_ms": millis(waiter.waiting),
        "mode": mode(waiter.mode),
        "permits": permits(waiter.mode),
        "names": waiter.names,
        "imported": waiter.is_imported,
        "identity": waiter.identity,
        "note": waiter.note,
        "head_start_ms": millis(waiter.head_start),
    })
}

/// What `thing` is when it changes: the time it has lasted begins, or is over.
pub(crate) fn untimed(mut thing: Value) -> Value {
    if let Some(fields) = thing.as_object_mut() {
        fields.retain(|key, _| !key.ends_with("_ms"));
    }
    thing
}

/// For programs: text as it is, anything else in base64. How it is encoded, and the text.
pub(crate) fn encoded(bytes: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(bytes) {
        Ok(text) => ("utf-8", text.to_owned()),
        Err(_) => ("base64", BASE64_STANDARD.encode(bytes)),
    }
}

/// For programs.
pub(crate) fn value(value: &holdfast::Value) -> Value {
    let (encoding, data) = encoded(&value.bytes);
    json!({
        "encoding": encoding,
        "data": data,
        "token": value.token.to_string(),
        "suspect": value.is_suspect,
    })
}

/// For people, on one line: text with every character escaped that a terminal might act on,
/// anything else as bytes.
pub(crate) fn value_text(value: &holdfast::Value) -> String {
    format!("\"{}\"", bytes_text(&value.bytes))
}

/// The same, without quotes.
pub(crate) fn bytes_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => escaped(text),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_for_programs_is_in_utc() {
        assert_eq!(instant(1_795_836_000_123).as_deref(), Some("2026-11-28T03:20:00.123Z"));
        assert_eq!(instant(u64::MAX), None);
    }

    /// Without the codes of colours.
    fn plain(header: &[&str], rows: &[[&str; 3]], width: u16) -> Vec<String> {
        let rows = rows.iter().map(|row| Row::from(row.to_vec())).collect();
        let shown = anstream::adapter::strip_str(&arranged(header, rows, Some(width))).to_string();
        shown.lines().map(str::to_owned).collect()
    }

    const HEADER: [&str; 3] = ["LOCK", "HELD BY", "MODE"];
    const LOCKS: [[&str; 3]; 2] = [
        ["orders/42", "billing", "exclusive"],
        ["a-name-that-is-long/and/longer", "vm:1", "shared"],
    ];

    #[test]
    fn a_table_is_as_wide_as_the_terminal_and_its_titles_are_whole() {
        let wide = plain(&HEADER, &LOCKS, 80);
        assert_eq!(wide.len(), 3, "{wide:?}");
        let narrow = plain(&HEADER, &LOCKS, 44);
        assert!(narrow.iter().all(|line| line.chars().count() <= 44), "{narrow:?}");
        assert!(narrow.len() > 3 && narrow[0].contains("HELD BY"), "{narrow:?}");
    }

    #[test]
    fn a_terminal_without_a_size_is_as_wide_as_the_table() {
        let unknown = plain(&HEADER, &LOCKS, 0);
        assert_eq!(unknown, plain(&HEADER, &LOCKS, 200));
        assert_eq!(unknown.len(), 3, "{unknown:?}");
    }

    #[test]
    fn where_not_even_the_titles_fit_each_row_is_a_list() {
        let said = [
            " LOCK     orders/42",
            " HELD BY  billing",
            " MODE     exclusive",
            "",
            " LOCK     a-name-that-i",
            "          s-long/and/lo",
            "          nger",
            " HELD BY  vm:1",
            " MODE     shared",
        ];
        assert_eq!(plain(&HEADER, &LOCKS, 24), said);
    }

    #[test]
    fn places_are_counted_as_people_count() {
        let shown: Vec<_> = [0, 1, 2, 3, 10, 20, 21, 111].map(place).to_vec();
        assert_eq!(
            shown,
            [
                "next in line",
                "2nd in line",
                "3rd in line",
                "4th in line",
                "11th in line",
                "21st in line",
                "22nd in line",
                "112th in line",
            ]
        );
    }
}
