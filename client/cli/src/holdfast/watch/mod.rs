//! `holdfast watch`.

mod labels;

use std::io::Write as _;

use holdfast::{
    ChangeKind, Holder, LockChange, LockInfo, LostReason, Mode, Reader, Waiter, WatchEvent,
};
use holdfast_runtime::Runtime;
use serde_json::{Value, json};

use crate::args::Global;
use crate::failure::Failure;
use crate::show::Tone;
use crate::{show, signals};
use labels::Labels;

/// Prints until a signal asks to end, or the reader of the output is gone: both are the normal end.
pub(crate) fn run(global: &Global, prefix: &str) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    signals::until_asked_to_end(print_all(&reader, prefix, global.json))
}

async fn print_all(reader: &Reader, prefix: &str, as_json: bool) -> Result<(), Failure> {
    let clock = Runtime::system().clock;
    let mut watch = reader.watch(prefix);
    let (mut known, mut labels) = (0, Labels::default());
    while let Some(event) = watch.next().await {
        let event = labels.complete(event?);
        match &event {
            WatchEvent::Lock(_) => known += 1,
            WatchEvent::Restarted => known = 0,
            _ => {}
        }
        let now = clock.wall_ms();
        let line =
            if as_json { Some(json_of(&event, now).to_string()) } else { text(&event, known) };
        let line = line
            .map(|line| if as_json { line } else { format!("{}  {line}", show::time_of_day(now)) });
        let printed = line.map_or(Ok(()), |line| writeln!(anstream::stdout().lock(), "{line}"));
        if printed.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// An event for people: one line.
fn text(event: &WatchEvent, known: u64) -> Option<String> {
    match event {
        WatchEvent::Lock(lock) => Some(lock_text(lock)),
        WatchEvent::Synced if known == 1 => Some("# that is the only lock; changes follow".into()),
        WatchEvent::Synced => Some(format!("# {known} locks; changes follow")),
        WatchEvent::Restarted => Some("# the watch broke; the state anew".into()),
        WatchEvent::Interrupted => {
            let what = "# the watch lost its server; what is above may be out of date";
            Some(Tone::Caution.of(what))
        }
        WatchEvent::Resumed => Some("# the watch goes on; all changes since then follow".into()),
        WatchEvent::Compacted => {
            Some("# the servers do not keep all changes since then any more".into())
        }
        WatchEvent::Change(change) => change_text(change),
        _ => None,
    }
}

fn lock_text(lock: &LockInfo) -> String {
    let mut parts: Vec<_> = lock.holders.iter().map(held_by).collect();
    if parts.is_empty() {
        parts.push("free".to_owned());
    }
    if lock.waiting > 0 {
        parts.push(format!("{} waiting", lock.waiting));
    }
    if let Some(value) = &lock.value {
        parts.push(value_text(value));
    }
    format!("{}  {}", show::escaped(&lock.name), parts.join("; "))
}

fn change_text(change: &LockChange) -> Option<String> {
    let waiting = change.waiting;
    let what = match &change.what {
        ChangeKind::Queued(waiter) => format!("{} waits ({waiting} waiting)", who(waiter)),
        ChangeKind::Left(waiter) => format!("{} waits no more ({waiting} waiting)", who(waiter)),
        ChangeKind::Granted(holder) => held_by(holder),
        ChangeKind::Released(holder) => format!("released{}", by(holder)),
        ChangeKind::Lost(holder, reason) => {
            Tone::Wrong.of(format_args!("lost{}: {reason}", by(holder)))
        }
        ChangeKind::ValueChanged(Some(value)) => value_text(value),
        ChangeKind::ValueChanged(None) => "value removed".to_owned(),
        _ => return None,
    };
    Some(format!("{}  {what}", show::escaped(&change.name)))
}

fn held_by(holder: &Holder) -> String {
    let shared = match holder.mode {
        Mode::Exclusive => String::new(),
        Mode::Shared | Mode::Permits { .. } => format!(", {}", holder.mode),
    };
    let label = show::label(&holder.label, &holder.identity, holder.is_imported);
    format!("held by {label} (token {}{shared})", holder.token)
}

/// The holder; the label of a session that has ended is not known any more.
fn by(holder: &Holder) -> String {
    let label = show::escaped(&holder.label);
    let by = if label.is_empty() { String::new() } else { format!(" by {label}") };
    format!("{by} (token {})", holder.token)
}

fn who(waiter: &Waiter) -> String {
    if waiter.label.is_empty() {
        return format!("session {}", waiter.session);
    }
    show::label(&waiter.label, &waiter.identity, waiter.is_imported)
}

fn value_text(value: &holdfast::Value) -> String {
    let suspect = if value.is_suspect { ", suspect" } else { "" };
    format!("value {} bytes{suspect}", value.bytes.len())
}

/// An event for programs, and when this program read it. Numbers of 64 bits that may be large are strings: JSON numbers lose
/// digits above 2^53.
fn json_of(event: &WatchEvent, now_ms: u64) -> Value {
    let mut line = json_without_time(event);
    if let Some(line) = line.as_object_mut() {
        line.insert("at".to_owned(), show::instant(now_ms).into());
    }
    line
}

fn json_without_time(event: &WatchEvent) -> Value {
    match event {
        WatchEvent::Lock(lock) => json!({
            "event": "lock",
            "name": lock.name,
            "holders": lock.holders.iter().map(show::holder).collect::<Vec<_>>(),
            "waiting": lock.waiting,
            "value": lock.value.as_ref().map(show::value),
        }),
        WatchEvent::Synced => json!({ "event": "synced" }),
        WatchEvent::Restarted => json!({ "event": "restarted" }),
        WatchEvent::Interrupted => json!({ "event": "interrupted" }),
        WatchEvent::Resumed => json!({ "event": "resumed" }),
        WatchEvent::Compacted => json!({ "event": "compacted" }),
        WatchEvent::Change(change) => json_of_change(change),
        _ => json!({ "event": "unknown" }),
    }
}

fn json_of_change(change: &LockChange) -> Value {
    let (event, key, thing) = match &change.what {
        ChangeKind::Queued(waiter) => ("queued", "waiter", show::untimed(show::waiter(waiter))),
        ChangeKind::Left(waiter) => ("left", "waiter", show::untimed(show::waiter(waiter))),
        ChangeKind::Granted(holder) => ("granted", "holder", show::untimed(show::holder(holder))),
        ChangeKind::Released(holder) => ("released", "holder", show::untimed(show::holder(holder))),
        ChangeKind::Lost(holder, _) => ("lost", "holder", show::untimed(show::holder(holder))),
        ChangeKind::ValueChanged(value) => {
            ("value", "value", value.as_ref().map_or(Value::Null, show::value))
        }
        _ => ("unknown", "unknown", Value::Null),
    };
    let mut line = json!({
        "event": event,
        "name": change.name,
        key: thing,
        "waiting": change.waiting,
        "index": change.index.to_string(),
    });
    if let (ChangeKind::Lost(_, reason), Some(line)) = (&change.what, line.as_object_mut()) {
        line.insert("reason".to_owned(), reason_code(*reason).into());
    }
    line
}

fn reason_code(reason: LostReason) -> &'static str {
    match reason {
        LostReason::SessionExpired => "session-expired",
        LostReason::SessionClosed => "session-closed",
        LostReason::SessionRevoked => "session-revoked",
        LostReason::Forced => "forced",
        _ => "unknown",
    }
}
