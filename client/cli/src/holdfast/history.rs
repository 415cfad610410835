//! `holdfast history`: who held what, from when to when, why that ended, and what operators did.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Local, NaiveDateTime, NaiveTime};
use holdfast::{Admin, HistoryEntry, HistoryEvent, HistoryQuery, LostReason, Mode};
use holdfast_cli::block_on;
use holdfast_runtime::Runtime;
use serde_json::{Value, json};

use crate::args::{Global, HistoryArgs};
use crate::failure::Failure;
use crate::show;

/// Most entries that a server gives at once.
const PAGE: usize = 10_000;

/// Prints what a node remembers.
pub(crate) fn run(global: &Global, args: &HistoryArgs) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(args.timeout.timeout)?;
    let past = block_on(read(&admin, args))??;
    if global.json {
        if let Some(after) = past.begins_after.filter(|after| *after > 0) {
            show::line(json!({ "what": "beginning", "after": after.to_string() }));
        }
        for entry in &past.entries {
            show::line(json_of(entry));
        }
        return Ok(0);
    }
    for line in past.text(now_ms()) {
        show::line(line);
    }
    Ok(0)
}

/// What was found.
struct Past {
    node_id: u64,
    entries: Vec<HistoryEntry>,
    /// There are earlier ones.
    is_cut: bool,
    begins_after: Option<u64>,
}

/// Reads page by page, backwards, until there is as much as was asked for.
async fn read(admin: &Admin, args: &HistoryArgs) -> Result<Past, Failure> {
    let wanted = usize::try_from(args.limit.get()).unwrap_or(usize::MAX);
    let (mut pages, mut found, mut earlier) = (Vec::new(), 0, None::<String>);
    let (node_id, begins_after) = loop {
        let size = u32::try_from(PAGE.min(wanted - found)).unwrap_or(u32::MAX);
        let query = earlier.iter().fold(query(args).limit(size), |query, at| query.before(at));
        let page = admin.history(query).await?;
        found += page.entries.len();
        pages.push(page.entries);
        earlier = page.earlier;
        if earlier.is_none() || found >= wanted {
            break (page.node_id, page.begins_after);
        }
    };
    let entries = pages.into_iter().rev().flatten().collect();
    Ok(Past { node_id, entries, is_cut: earlier.is_some(), begins_after })
}

fn query(args: &HistoryArgs) -> HistoryQuery {
    let query = match (&args.name, &args.prefix, args.session) {
        (Some(name), ..) => HistoryQuery::lock(name),
        (_, Some(prefix), _) => HistoryQuery::prefix(prefix),
        (_, _, Some(session)) => HistoryQuery::session(session),
        (None, None, None) => HistoryQuery::all(),
    };
    let query = args.since.iter().fold(query, |query, since| query.since(since.0));
    args.until.iter().fold(query, |query, until| query.until(until.0))
}

/// A time in the past: `2h` is two hours ago, `03:10` today here, `2026-11-29 03:10` here, or with date, time and offset as
/// RFC 3339 has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When(pub(crate) SystemTime);

/// Reads a time.
///
/// # Errors
///
/// What is wrong with it, for the user who wrote it.
pub(crate) fn when(text: &str) -> Result<When, String> {
    when_from(text, now_ms())
}

fn when_from(text: &str, now_ms: u64) -> Result<When, String> {
    let now = UNIX_EPOCH + Duration::from_millis(now_ms);
    if let Some(ago) = ago(text) {
        return Ok(When(now.checked_sub(ago).unwrap_or(UNIX_EPOCH)));
    }
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return Ok(When(at.into()));
    }
    let here = |at: NaiveDateTime| at.and_local_timezone(Local).earliest();
    let times = ["%H:%M:%S", "%H:%M"];
    let of_day = times.iter().find_map(|form| NaiveTime::parse_from_str(text, form).ok());
    let today = of_day.map(|time| DateTime::<Local>::from(now).date_naive().and_time(time));
    let forms = ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"];
    let dated = forms.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok());
    let at = today.or(dated).and_then(here);
    at.map(|at| When(at.into())).ok_or_else(|| {
        format!(
            "{text:?} is no time; write 2h or 3d for so long ago, 03:10 for today, or 2026-11-29 03:10"
        )
    })
}

/// A length of time, which may be in days.
fn ago(text: &str) -> Option<Duration> {
    if let Some(days) = text.strip_suffix('d') {
        let seconds = days.parse::<u64>().ok()?.checked_mul(24 * 3_600)?;
        return Some(Duration::from_secs(seconds));
    }
    holdfast_cli::duration(text).ok()
}

fn now_ms() -> u64 {
    Runtime::system().clock.wall_ms()
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    show::millis(since)
}

/// A hold of one lock.
#[derive(Clone, Debug, Default)]
struct Held {
    from_ms: Option<u64>,
    lock: String,
    mode: Option<Mode>,
    who: String,
    token: String,
    note: String,
    closed: Option<String>,
    end: Option<(u64, Option<LostReason>)>,
}

/// A line of the table.
enum Line {
    Held(Held),
    /// Time, what it is about, who, what.
    Said([String; 4]),
}

impl Past {
    /// For people: a hold is one line, however long it lasted.
    fn text(&self, now_ms: u64) -> Vec<String> {
        let mut text = Vec::new();
        let rows: Vec<[String; 4]> =
            self.lines().into_iter().map(|line| row(line, now_ms)).collect();
        if rows.is_empty() {
            text.push("nothing of that kind is remembered".to_owned());
        } else {
            text.push(show::table(&["WHEN", "WHAT", "WHO", "HOW"], rows));
        }
        if self.is_cut {
            text.push("# there is more before that; --limit shows more of it".to_owned());
        }
        match self.begins_after {
            Some(0) | None => {}
            Some(after) => text.push(format!(
                "# node {} remembers nothing before entry {} of the log; another node may",
                self.node_id,
                after + 1
            )),
        }
        text
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        // By grant and lock, where its line is.
        let mut open: BTreeMap<(u64, String), usize> = BTreeMap::new();
        for entry in &self.entries {
            let at_ms = entry.at.map(unix_ms).unwrap_or_default();
            match &entry.event {
                HistoryEvent::Held { token, locks, .. } => {
                    for (lock, mode) in locks {
                        open.insert((token.get(), lock.clone()), lines.len());
                        lines.push(Line::Held(held(&entry.event, at_ms, lock, *mode)));
                    }
                }
                HistoryEvent::Closed { token, locks, reason, .. } => {
                    for (lock, _) in locks {
                        let at = open.get(&(token.get(), lock.clone()));
                        if let Some(Line::Held(held)) = at.and_then(|at| lines.get_mut(*at)) {
                            held.closed = Some(reason.clone());
                        }
                    }
                }
                HistoryEvent::Over { session, token, locks, lost } => {
                    for (lock, mode) in locks {
                        let end = Some((at_ms, *lost));
                        let at = open.remove(&(token.get(), lock.clone()));
                        match at.and_then(|at| lines.get_mut(at)) {
                            Some(Line::Held(held)) => held.end = end,
                            _ => lines.push(Line::Held(Held {
                                lock: lock.clone(),
                                mode: Some(*mode),
                                who: format!("session {session}"),
                                token: token.to_string(),
                                end,
                                ..Held::default()
                            })),
                        }
                    }
                }
                other => lines.extend(said(other, at_ms).map(Line::Said)),
            }
        }
        lines
    }
}

fn held(event: &HistoryEvent, at_ms: u64, lock: &str, mode: Mode) -> Held {
    let HistoryEvent::Held { session, token, label, identity, note, is_imported, .. } = event
    else {
        return Held::default();
    };
    let who = show::label(label, identity, *is_imported);
    let who = if who.is_empty() { format!("session {session}") } else { who };
    Held {
        from_ms: Some(at_ms),
        lock: lock.to_owned(),
        mode: Some(mode),
        who,
        token: token.to_string(),
        note: note.clone(),
        ..Held::default()
    }
}

/// What is about no hold.
fn said(event: &HistoryEvent, at_ms: u64) -> Option<[String; 4]> {
    let at = show::date_and_time(at_ms);
    Some(match event {
        HistoryEvent::Act { identity, verb, on, detail } => [
            at,
            show::escaped(on),
            show::escaped(identity),
            format!("{verb}: {}", show::escaped(detail)),
        ],
        HistoryEvent::Elected { tenure } => {
            [at, "cluster".into(), String::new(), format!("a leader was elected (tenure {tenure})")]
        }
        HistoryEvent::Members { voters, learners } => {
            let learning = match learners.as_slice() {
                [] => String::new(),
                ids => format!("; {} without a vote", numbers(ids)),
            };
            let what = format!("its members are {}{learning}", numbers(voters));
            [at, "cluster".into(), String::new(), what]
        }
        HistoryEvent::Gap { after, through } => {
            let what = format!("not known here: entries {} to {through} of the log", after + 1);
            ["…".into(), String::new(), String::new(), what]
        }
        _ => return None,
    })
}

fn numbers(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn row(line: Line, now_ms: u64) -> [String; 4] {
    let held = match line {
        Line::Said(row) => return row,
        Line::Held(held) => held,
    };
    let when = held.from_ms.map_or_else(|| "before".to_owned(), show::date_and_time);
    let mode = match held.mode {
        Some(Mode::Shared) => " shared".to_owned(),
        Some(Mode::Permits { count, .. }) => format!(" {count} permits"),
        _ => String::new(),
    };
    let lasted = |until_ms: u64| match held.from_ms {
        Some(from_ms) => {
            let length = Duration::from_millis(until_ms.saturating_sub(from_ms));
            format!(" for {}", show::length(length))
        }
        None => String::new(),
    };
    let how = match held.end {
        None => format!("holds it{mode}{} by now", lasted(now_ms)),
        Some((at_ms, None)) => format!("held{mode}{}, then released it", lasted(at_ms)),
        Some((at_ms, Some(lost))) => format!("held{mode}{}, then lost it: {lost}", lasted(at_ms)),
    };
    let closed =
        held.closed.map(|reason| format!(", told to give it up: \"{}\"", show::escaped(&reason)));
    let (closed, note) = (closed.unwrap_or_default(), show::note(&held.note));
    let how = format!("{how}{closed}{note} (token {})", held.token);
    [when, show::escaped(&held.lock), held.who, how]
}

/// For programs: one thing that happened.
fn json_of(entry: &HistoryEntry) -> Value {
    let at = entry.at.and_then(|at| show::instant(unix_ms(at)));
    let mut said = match &entry.event {
        HistoryEvent::Held { session, token, locks, label, identity, note, is_imported } => json!({
            "what": "held",
            "session": session.to_string(),
            "token": token.to_string(),
            "locks": locks_of(locks),
            "label": label,
            "identity": identity,
            "note": note,
            "imported": is_imported,
        }),
        HistoryEvent::Over { session, token, locks, lost } => json!({
            "what": if lost.is_some() { "lost" } else { "released" },
            "session": session.to_string(),
            "token": token.to_string(),
            "locks": locks_of(locks),
            "reason": lost.map(|lost| lost.to_string()),
        }),
        HistoryEvent::Closed { session, token, locks, reason } => json!({
            "what": "closed",
            "session": session.to_string(),
            "token": token.to_string(),
            "locks": locks_of(locks),
            "reason": reason,
        }),
        HistoryEvent::Act { identity, verb, on, detail } => json!({
            "what": "act",
            "identity": identity,
            "verb": verb,
            "on": on,
            "detail": detail,
        }),
        HistoryEvent::Elected { tenure } => {
            json!({ "what": "elected", "tenure": tenure.to_string() })
        }
        HistoryEvent::Members { voters, learners } => {
            json!({ "what": "members", "voters": voters, "learners": learners })
        }
        HistoryEvent::Gap { after, through } => {
            json!({ "what": "gap", "after": after.to_string(), "through": through.to_string() })
        }
        _ => json!({ "what": "unknown" }),
    };
    if let Some(fields) = said.as_object_mut() {
        fields.insert("index".into(), entry.index.to_string().into());
        fields.insert("at".into(), at.into());
    }
    said
}

fn locks_of(locks: &[(String, Mode)]) -> Vec<Value> {
    let lock = |(name, mode): &(String, Mode)| json!({ "name": name, "mode": show::mode(*mode), "permits": show::permits(*mode) });
    locks.iter().map(lock).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_so_long_ago_or_of_today_or_with_a_date() {
        let now_ms = 1_795_836_000_000;
        let at = |text: &str| when_from(text, now_ms).map(|when| unix_ms(when.0));
        assert_eq!(at("2h"), Ok(now_ms - 7_200_000));
        assert_eq!(at("3d"), Ok(now_ms - 3 * 86_400_000));
        assert_eq!(at("2026-11-28T03:20:00Z"), Ok(1_795_836_000_000));
        let (here, dated) = (
            at("00:00"),
            at(&DateTime::<Local>::from(UNIX_EPOCH + Duration::from_millis(now_ms))
                .format("%Y-%m-%d 00:00")
                .to_string()),
        );
        assert!(here.is_ok() && here == dated, "{here:?} {dated:?}");
        for wrong in
            ["", "yesterday", "25:00", "2026-13-01 00:00", "d", "-1h", "99999999999999999d"]
        {
            assert!(at(wrong).is_err(), "{wrong:?}");
        }
    }
}
