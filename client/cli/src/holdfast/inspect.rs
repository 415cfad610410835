//! `holdfast inspect`.

use holdfast::{Holder, LockInfo, Mode, Waiter};
use serde_json::{Value, json};

use crate::args::{Global, InspectArgs};
use crate::failure::Failure;
use crate::{runtime, show};

pub(crate) fn run(global: &Global, args: &InspectArgs) -> Result<u8, Failure> {
    let reader = global.builder().reader()?;
    let lock = runtime::block_on(reader.inspect(&args.name))??;
    let mut lock = lock.unwrap_or_default();
    lock.name.clone_from(&args.name);
    if global.json {
        show::line(as_json(&lock));
    } else {
        print(&lock);
    }
    Ok(0)
}

fn as_json(lock: &LockInfo) -> Value {
    let queue = lock.queue.iter().map(|waiter| {
        json!({
            "session": waiter.session.to_string(),
            "label": waiter.label,
            "waiting_ms": u64::try_from(waiter.waiting.as_millis()).unwrap_or(u64::MAX),
            "mode": waiter.mode.to_string(),
            "names": waiter.names,
            "imported": waiter.is_imported,
        })
    });
    json!({
        "name": lock.name,
        "held_by": lock.held_by,
        "holders": lock.holders.iter().map(show::holder).collect::<Vec<_>>(),
        "waiting": lock.waiting,
        "queue": queue.collect::<Vec<_>>(),
        "value": lock.value.as_ref().map(show::value),
        "scope": lock.scope.as_ref().map(|scope| {
            json!({
                "prefix": scope.prefix,
                "epoch": scope.epoch,
                "suspended": scope.suspended,
            })
        }),
    })
}

fn print(lock: &LockInfo) {
    let name = show::escaped(&lock.name);
    let suspended = lock.scope.as_ref().is_some_and(|scope| scope.suspended);
    if lock.holders.is_empty() && suspended && lock.waiting > 0 {
        show::line(format!("{name} is not held, and waits for the scope's authority"));
    } else if lock.holders.is_empty() {
        show::line(format!("{name} is free"));
    }
    for holder in &lock.holders {
        show::line(held(&name, holder));
    }
    more(lock.held_by, lock.holders.len());
    for (place, waiter) in (0_u64..).zip(&lock.queue) {
        show::line(format!("  {}: {}", show::place(place), waits(waiter)));
    }
    more(lock.waiting, lock.queue.len());
    if let Some(value) = &lock.value {
        let suspect = if value.is_suspect { "; suspect: the grant was lost" } else { "" };
        let text = show::value_text(value);
        show::line(format!("  value {text}, set under token {}{suspect}", value.token));
    }
    if let Some(scope) = &lock.scope {
        let suspended = if scope.suspended { "; suspended: nobody is granted it now" } else { "" };
        let prefix = show::escaped(&scope.prefix);
        show::line(format!("  in the scope {prefix}, epoch {}{suspended}", scope.epoch));
    }
}

/// Prints how many of `all` are not shown.
fn more(all: u64, shown: usize) {
    let shown = u64::try_from(shown).unwrap_or(u64::MAX);
    if all > shown {
        show::line(format!("  and {} more", all - shown));
    }
}

/// `jobs is held by host:1 for 3 s under token 5`.
fn held(name: &str, holder: &Holder) -> String {
    let how = match holder.mode {
        Mode::Shared => "shared",
        Mode::Exclusive => "held",
    };
    let (label, token) = (show::label(&holder.label, holder.is_imported), holder.token);
    format!("{name} is {how} by {label} for {} under token {token}", show::length(holder.held))
}

/// `host:1, waiting for 3 s to share it and 2 more locks`.
fn waits(waiter: &Waiter) -> String {
    let label = show::label(&waiter.label, waiter.is_imported);
    let length = show::length(waiter.waiting);
    let share = if waiter.mode == Mode::Shared { " to share it" } else { "" };
    let others = match waiter.names {
        0 | 1 => String::new(),
        2 => ", and 1 other lock".to_owned(),
        names => format!(", and {} other locks", names - 1),
    };
    format!("{label}, waiting for {length}{share}{others}")
}
