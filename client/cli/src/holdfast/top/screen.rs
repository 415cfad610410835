//! Draws the screen of `holdfast top`. It fits 80 columns and 24 lines, and uses what there is beyond.

use std::time::UNIX_EPOCH;

use holdfast::{BusyLock, BusyOrder, HistoryEntry, HistoryEvent, LockInfo, Mode};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::app::{Act, App, LockPage, Prompt};
use crate::show;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

const HELP: [(&str, &str); 12] = [
    ("h", "the hottest locks first: most grants and waits a second"),
    ("w", "the longest queues first"),
    ("l", "those that are held longest first"),
    ("/", "only locks whose names begin with what you type"),
    ("j k, arrows", "choose a lock; PgUp and PgDn go faster"),
    ("Enter", "the lock: who holds it, who waits, what happened"),
    ("Esc", "back"),
    ("f", "take the lock away from its holders (forced release); asks for a reason"),
    ("z", "freeze names that begin with the lock's: nothing of them is granted; asks"),
    ("t", "thaw what was frozen by exactly that name; asks"),
    ("?", "this"),
    ("q", "end; so does Ctrl-C"),
];

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(header(app)), head);
    match &app.page {
        Some((name, page)) => lock_page(frame, body, name, page.as_deref()),
        None => locks(frame, body, app),
    }
    frame.render_widget(Paragraph::new(footer(app)), foot);
    if app.shows_help {
        help(frame);
    }
    if let Some(Prompt::Sure { act, name, reason }) = &app.prompt {
        question(frame, *act, name, reason);
    }
}

fn header(app: &App) -> Vec<Line<'static>> {
    let cluster = match &app.cluster {
        Some(cluster) => {
            let members = cluster.members.len();
            let silent = cluster.members.iter().filter(|member| !member.answers).count();
            let silent = if silent == 0 { String::new() } else { format!(" ({silent} silent)") };
            let members =
                if members == 1 { "1 member".into() } else { format!("{members} members{silent}") };
            format!("{members}, node {} leads (term {})", cluster.leader, cluster.term)
        }
        None if app.found.is_some() => "members not shown".to_owned(),
        None => "looking for the leader…".to_owned(),
    };
    let totals = app.found.as_ref().and_then(|found| found.totals);
    let totals = totals.map_or_else(String::new, |totals| {
        format!(
            "{} sessions  {} held  {} wait  {} grants/s  {} waits/s",
            totals.sessions,
            totals.locks_held,
            totals.waiters,
            rate(totals.grants_per_second),
            rate(totals.waits_per_second)
        )
    });
    vec![
        Line::from(vec![Span::styled("holdfast top", BOLD), Span::raw("  "), Span::raw(cluster)]),
        Line::from(Span::styled(totals, FAINT)),
    ]
}

fn footer(app: &App) -> Line<'static> {
    if let Some(Prompt::Prefix(prefix)) = &app.prompt {
        let typed = format!("names that begin with: {}█", show::escaped(prefix));
        return Line::from(vec![Span::styled(typed, BOLD), Span::raw("  Enter, Esc")]);
    }
    if let Some(trouble) = &app.trouble {
        return Line::styled(format!("! {trouble}"), BOLD);
    }
    if let Some(news) = &app.news {
        return Line::styled(news.clone(), BOLD);
    }
    let keys = if app.page.is_some() {
        "Esc back   f take away   z freeze   t thaw   ? help   q end"
    } else {
        "h hottest  w queues  l longest held  / names  Enter look  ? help  q end"
    };
    Line::styled(keys, FAINT)
}

fn locks(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let order = match app.order {
        BusyOrder::LongestQueue => "longest queues",
        BusyOrder::LongestHeld => "longest held",
        _ => "hottest",
    };
    let of = match app.prefix.as_str() {
        "" => String::new(),
        prefix => format!(" of {}…", show::escaped(prefix)),
    };
    let part = app.found.as_ref().filter(|found| !found.is_complete);
    let part = if part.is_some() { ", still looking at the rest" } else { "" };
    let title = Line::styled(format!("{order}{of}{part}"), BOLD);
    let [above, below] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    frame.render_widget(Paragraph::new(title), above);
    let Some(found) = &app.found else { return };
    if found.locks.is_empty() {
        let none = if app.prefix.is_empty() {
            "no lock is held or waited for"
        } else {
            "no such lock is held or waited for"
        };
        frame.render_widget(Paragraph::new(none), below);
        return;
    }
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(11),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(7),
    ];
    let header = Row::new(["LOCK", "HELD BY", "FOR", "WAIT", "GRANTS/S", "WAITS/S"]).style(BOLD);
    let rows = found.locks.iter().map(lock_row);
    let table = Table::new(rows, widths).header(header).row_highlight_style(CHOSEN);
    let mut state = TableState::default().with_selected(app.chosen_row());
    frame.render_stateful_widget(table, below, &mut state);
}

fn lock_row(busy: &BusyLock) -> Row<'static> {
    let lock = &busy.lock;
    let held_for = lock.holders.first().map(|holder| show::length(holder.held));
    let quiet = |number: f64| if number == 0.0 { String::new() } else { rate(number) };
    let waiting = if lock.waiting == 0 { String::new() } else { lock.waiting.to_string() };
    Row::new([
        show::escaped(&lock.name),
        held_by(lock),
        held_for.unwrap_or_default(),
        waiting,
        quiet(busy.grants_per_second),
        quiet(busy.waits_per_second),
    ])
}

fn held_by(lock: &LockInfo) -> String {
    let Some(first) = lock.holders.first() else {
        let frozen = lock.frozen.as_ref().map(|_| "frozen");
        return frozen.unwrap_or("nobody").to_owned();
    };
    let first = show::label(&first.label, &first.identity, first.is_imported);
    match lock.held_by.saturating_sub(1) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn rate(number: f64) -> String {
    if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

fn lock_page(frame: &mut Frame<'_>, area: Rect, name: &str, page: Option<&LockPage>) {
    let name = Line::styled(show::escaped(name), BOLD);
    let lines = match page {
        None => vec![name, Line::raw("…")],
        Some(page) => std::iter::once(name).chain(page_lines(page, area.height)).collect(),
    };
    frame.render_widget(Paragraph::new(lines), area);
}

/// Holders, then the queue, then the past, the newest last; what does not fit of each is left out, and said.
fn page_lines(page: &LockPage, height: u16) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let rest = usize::from(height).saturating_sub(1);
    match &page.lock {
        None => lines.push(Line::raw("nobody holds it, and nobody waits for it")),
        Some(lock) => {
            lines.extend(states(lock));
            let holders = lock.holders.iter().map(|holder| {
                let mode = mode(holder.mode);
                let label = show::label(&holder.label, &holder.identity, holder.is_imported);
                let ending = if holder.is_ending { ", has to give it up" } else { "" };
                let note = show::note(&holder.note);
                let (length, token) = (show::length(holder.held), holder.token);
                format!("  {label}{mode} for {length}{ending}{note} (token {token})")
            });
            section(&mut lines, "held by", lock.held_by, holders, rest / 4);
            let waiters = lock.queue.iter().map(|waiter| {
                let label = show::label(&waiter.label, &waiter.identity, waiter.is_imported);
                let (mode, note) = (mode(waiter.mode), show::note(&waiter.note));
                format!("  {label}{mode} for {}{note}", show::length(waiter.waiting))
            });
            section(&mut lines, "waiting", lock.waiting, waiters, rest / 4);
        }
    }
    lines.push(Line::styled("what happened", BOLD));
    let room = rest.saturating_sub(lines.len());
    match &page.past {
        Err(why) => lines.push(Line::raw(format!("  not known: {why}"))),
        Ok(past) if past.is_empty() => lines.push(Line::raw("  nothing that is remembered")),
        Ok(past) => {
            let hidden = past.len().saturating_sub(room);
            let shown = past.iter().skip(hidden);
            lines.extend(shown.map(|entry| Line::raw(format!("  {}", happened(entry)))));
        }
    }
    lines
}

fn states(lock: &LockInfo) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(freeze) = &lock.frozen {
        lines.push(Line::styled(crate::freeze::text(freeze), BOLD));
    }
    if let Some(closed) = &lock.closed {
        let left = show::length(closed.left);
        lines.push(Line::raw(format!("closed for {left} more: its last hold was too short")));
    }
    if let Some(limit) = &lock.limit {
        lines.push(Line::raw(format!("{} of {} permits are held", limit.used, limit.permits)));
    }
    lines
}

fn section(
    lines: &mut Vec<Line<'static>>,
    title: &str,
    count: u64,
    each: impl Iterator<Item = String>,
    room: usize,
) {
    lines.push(Line::styled(format!("{title}: {count}"), BOLD));
    let before = lines.len();
    lines.extend(each.take(room.max(1)).map(Line::raw));
    let shown = u64::try_from(lines.len() - before).unwrap_or(u64::MAX);
    if count > shown {
        lines.push(Line::styled(format!("  and {} more", count - shown), FAINT));
    }
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Shared => ", shared".to_owned(),
        Mode::Permits { count, .. } => format!(", {count} permits"),
        Mode::Exclusive => String::new(),
    }
}

/// Something that happened, on one line.
fn happened(entry: &HistoryEntry) -> String {
    let since = entry.at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let at = since.map_or_else(|| "…       ".to_owned(), |at| show::time_of_day(show::millis(at)));
    let what = match &entry.event {
        HistoryEvent::Held { label, identity, is_imported, note, token, .. } => {
            let who = show::label(label, identity, *is_imported);
            format!("granted to {who}{} (token {token})", show::note(note))
        }
        HistoryEvent::Over { lost: None, token, .. } => format!("released (token {token})"),
        HistoryEvent::Over { lost: Some(lost), token, .. } => {
            format!("lost: {lost} (token {token})")
        }
        HistoryEvent::Closed { reason, .. } => {
            format!("its holder was told to give it up: \"{}\"", show::escaped(reason))
        }
        HistoryEvent::Act { identity, verb, detail, .. } => {
            let by = if identity.is_empty() {
                String::new()
            } else {
                format!(" by {}", show::escaped(identity))
            };
            format!("{verb}{by}: {}", show::escaped(detail))
        }
        HistoryEvent::Gap { .. } => "not known here".to_owned(),
        _ => String::new(),
    };
    format!("{at}  {what}")
}

fn help(frame: &mut Frame<'_>) {
    let lines = HELP.iter().map(|(key, what)| {
        Line::from(vec![Span::styled(format!("{key:<12}"), BOLD), Span::raw(*what)])
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let height = u16::try_from(HELP.len()).unwrap_or(12) + 2;
    window(frame, " keys ", lines, height);
}

fn question(frame: &mut Frame<'_>, act: Act, name: &str, reason: &str) {
    let name = show::escaped(name);
    let typed = format!("{}█", show::escaped(reason));
    let (title, said, label) = match act {
        Act::Force => (
            " take it away? ",
            format!(
                "{name} is taken away from all who hold it. They are told, and it passes on when they have given it up, or \
                 when their leases have run out: nobody is granted it while they may still rely on it."
            ),
            "reason, which they are told: ",
        ),
        Act::Freeze => (
            " freeze? ",
            format!(
                "Nothing that begins with {name} is granted until it is thawed. Holds stay, queues fill."
            ),
            "message for those who wait: ",
        ),
        Act::Thaw => (
            " thaw? ",
            format!(
                "The freeze of exactly {name} is lifted, and those who wait are granted what is free."
            ),
            "",
        ),
    };
    let entry = if label.is_empty() {
        Line::raw("")
    } else {
        Line::from(vec![Span::raw(label), Span::styled(typed, BOLD)])
    };
    let lines = vec![
        Line::raw(said),
        Line::raw(""),
        entry,
        Line::raw(""),
        Line::styled("Enter does it, Esc does not", FAINT),
    ];
    window(frame, title, lines, 10);
}

/// A window in the middle, over what is there.
fn window(frame: &mut Frame<'_>, title: &'static str, lines: Vec<Line<'_>>, height: u16) {
    let all = frame.area();
    let (width, height) = (all.width.saturating_sub(4).min(86), height.min(all.height));
    let area = Rect {
        x: all.x + (all.width - width) / 2,
        y: all.y + (all.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title);
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(block), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::app::Input;
    use super::*;

    fn screen(app: &App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn before_anything_is_known_the_keys_are_there() {
        let lines = screen(&App::new("jobs/"), 80, 24);
        assert_eq!(lines[0], "holdfast top  looking for the leader…");
        assert_eq!(lines[2], "hottest of jobs/…");
        assert_eq!(
            lines[23],
            "h hottest  w queues  l longest held  / names  Enter look  ? help  q end"
        );
    }

    #[test]
    fn help_and_questions_fit_a_small_terminal() {
        let mut app = App::new("");
        app.shows_help = true;
        let lines = screen(&app, 80, 24);
        for (key, _) in HELP {
            assert!(lines.iter().any(|line| line.contains(key)), "{key}: {lines:#?}");
        }
        app.shows_help = false;
        app.chosen = Some("jobs/nightly".to_owned());
        app.take(Input::Key(KeyEvent::new(KeyCode::Char('f'), KeyModifiers::NONE)));
        let lines = screen(&app, 80, 24).join("\n");
        for word in [
            "take it away?",
            "jobs/nightly is taken away",
            "reason, which they are told",
            "Esc does not",
        ] {
            assert!(lines.contains(word), "{word}: {lines}");
        }
        // A terminal of any size is drawn.
        for (width, height) in [(1, 1), (3, 2), (10, 40), (200, 3)] {
            screen(&app, width, height);
        }
    }

    #[test]
    fn trouble_stands_where_the_keys_were() {
        let mut app = App::new("");
        app.trouble = Some("no server could be reached".to_owned());
        assert_eq!(screen(&app, 80, 24)[23], "! no server could be reached");
    }
}
