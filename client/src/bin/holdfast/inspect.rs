//! `holdfast inspect`.

use holdfast::LockInfo;
use serde_json::{Value, json};

use crate::args::{Global, InspectArgs};
use crate::failure::Failure;
use crate::{runtime, show};

pub(crate) fn run(global: &Global, args: &InspectArgs) -> Result<u8, Failure> {
    let reader = global.builder()?.reader();
    let lock = runtime::block_on(reader.inspect(&args.name))??;
    let lock = lock.unwrap_or_else(|| LockInfo {
        name: args.name.clone(),
        holders: Vec::new(),
        waiting: 0,
        queue: Vec::new(),
        value: None,
        has_value: false,
    });
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
        })
    });
    json!({
        "name": lock.name,
        "holders": lock.holders.iter().map(show::holder).collect::<Vec<_>>(),
        "waiting": lock.waiting,
        "queue": queue.collect::<Vec<_>>(),
    })
}

fn print(lock: &LockInfo) {
    let name = show::escaped(&lock.name);
    if lock.holders.is_empty() {
        show::line(format!("{name} is free"));
    }
    for holder in &lock.holders {
        show::line(format!(
            "{name} is held by {} for {} under token {}",
            show::escaped(&holder.label),
            show::length(holder.held),
            holder.token,
        ));
    }
    for (place, waiter) in (0_u64..).zip(&lock.queue) {
        let label = show::escaped(&waiter.label);
        let waiting = show::length(waiter.waiting);
        show::line(format!("  {}: {label}, waiting for {waiting}", show::place(place)));
    }
    let shown = u64::try_from(lock.queue.len()).unwrap_or(u64::MAX);
    if lock.waiting > shown {
        show::line(format!("  and {} more", lock.waiting - shown));
    }
}
