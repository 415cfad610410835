//! `holdfast list`.

use comfy_table::{Table, presets};
use holdfast::{LockInfo, Reader};
use serde_json::json;

use crate::args::{Global, ListArgs};
use crate::failure::Failure;
use crate::{runtime, show};

/// Locks in one page.
const PAGE_SIZE: u32 = 1_000;

pub(crate) fn run(global: &Global, args: &ListArgs) -> Result<u8, Failure> {
    let reader = global.builder().reader()?;
    runtime::block_on(async {
        if global.json {
            print_json(&reader, &args.prefix).await
        } else {
            print_table(&reader, &args.prefix).await
        }
    })??;
    Ok(0)
}

/// Prints one line for each lock, page by page, so that a program can read them as they come.
async fn print_json(reader: &Reader, prefix: &str) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let page = reader.page(prefix, PAGE_SIZE, after.as_deref()).await?;
        for lock in &page.locks {
            show::line(json!({
                "name": lock.name,
                "held_by": lock.held_by,
                "holders": lock.holders.iter().map(show::holder).collect::<Vec<_>>(),
                "waiting": lock.waiting,
                "has_value": lock.has_value,
            }));
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

async fn print_table(reader: &Reader, prefix: &str) -> Result<(), Failure> {
    let locks = reader.list(prefix).await?;
    if locks.is_empty() {
        let about = if prefix.is_empty() {
            String::new()
        } else {
            format!(" below {}", show::escaped(prefix))
        };
        show::line(format!("no lock{about} is held, waited for or has a value"));
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["LOCK", "HELD BY", "MODE", "FOR", "TOKEN", "WAITING", "VALUE"]);
    for lock in &locks {
        table.add_row(row(lock));
    }
    show::line(table.trim_fmt());
    Ok(())
}

fn row(lock: &LockInfo) -> [String; 7] {
    let holder = lock.holders.first();
    let of_holder =
        |show: &dyn Fn(&holdfast::Holder) -> String| holder.map(show).unwrap_or_default();
    let others = match lock.held_by {
        0 | 1 => String::new(),
        number => format!(" and {} more", number - 1),
    };
    [
        show::escaped(&lock.name),
        of_holder(&|holder| format!("{}{others}", show::label(&holder.label, holder.is_imported))),
        of_holder(&|holder| holder.mode.to_string()),
        of_holder(&|holder| show::length(holder.held)),
        of_holder(&|holder| holder.token.to_string()),
        lock.waiting.to_string(),
        if lock.has_value { "yes".into() } else { String::new() },
    ]
}
