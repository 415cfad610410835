//! `holdfast cassandra work`: adds items to a queue, lists them, and runs a command for each.

mod run;
mod workers;

use std::io::BufRead as _;
use std::num::{NonZeroU16, NonZeroU32};

use clap::{Args, Subcommand};
use holdfast_cli::block_on;
use holdfast_cli::place::failure;
use holdfast_recipes::{Cassandra, ItemId, ItemStatus, Listed, WorkQueue};
use serde_json::json;

use super::Place;
use crate::args::{Global, Work};
use crate::failure::{Failure, OWN_ERROR};
use crate::show;

/// How much of a payload a table shows, characters.
const SHOWN_MAX: usize = 60;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum WorkCommand {
    /// Add an item, or one for each line of standard input; prints the id of each.
    ///
    /// An id is printed when its item is certain to be found. Exit codes: 0 all are added; 122 refused; 123 no answer: the item
    /// without a printed id may be added or not; 125 an error of holdfast itself.
    Add {
        /// The queue.
        queue: String,
        /// The payload, 64 KiB at most [default: each line of standard input is an item].
        payload: Option<String>,
    },
    /// Run a command for one item after the other, each while no other worker has it.
    ///
    /// The command finds the payload on its standard input, and `HOLDFAST_QUEUE`, `HOLDFAST_ITEM` and `HOLDFAST_ATTEMPT` in its
    /// environment. If it ends with 0 the item is done; otherwise it is given back, and comes again as the next attempt. Either
    /// way the next one begins when nothing of the command's process group runs any more, as with lock. A worker that dies
    /// keeps its item for the TTL and the skew; the command dies with it. So an item may be worked on more than once, and never
    /// by two at a time.
    ///
    /// Exit codes: 0 the queue was empty; 128+n ended by signal n; 122 refused; 123 no answer; 126, 127 the
    /// command cannot be run, was not found; 125 an error of holdfast itself.
    Run(RunArgs),
    /// Show the items that wait, those that workers have, and dead letters.
    List {
        /// The queue.
        queue: String,
        /// The most items to show.
        #[arg(long, default_value = "1000")]
        limit: usize,
    },
    /// Add a dead letter again, as another item without attempts; prints its id.
    Retry(ItemArgs),
    /// Remove a dead letter.
    Forget(ItemArgs),
}

#[derive(Clone, Debug, Args)]
pub(super) struct RunArgs {
    /// The queue.
    queue: String,
    /// How many items at a time, each in a process of its own.
    #[arg(long, default_value = "1", overrides_with = "workers")]
    workers: NonZeroU16,
    /// End when no item waits and no worker has one, instead of waiting for more.
    #[arg(long)]
    until_empty: bool,
    /// Make an item a dead letter after this many attempts [default: never]. All workers should use the same.
    #[arg(long, value_name = "N")]
    max_attempts: Option<NonZeroU32>,
    #[command(flatten)]
    work: Work,
}

#[derive(Clone, Debug, Args)]
pub(super) struct ItemArgs {
    /// The queue.
    queue: String,
    /// The item.
    #[arg(value_parser = item)]
    item: ItemId,
}

fn item(text: &str) -> Result<ItemId, String> {
    ItemId::parse(text).ok_or_else(|| format!("{text:?} is no id of an item; list shows them"))
}

pub(super) fn run(global: &Global, place: Place, command: WorkCommand) -> Result<u8, Failure> {
    match command {
        WorkCommand::Add { queue: name, payload } => {
            on(&place, &name, async |queue| add(global, queue, payload).await)
        }
        WorkCommand::List { queue: name, limit } => {
            on(&place, &name, async |queue| list(global, queue, limit).await)
        }
        WorkCommand::Retry(args) => on(&place, &args.queue, async |queue| {
            tell(global, &queue.retry(&args.item).await.map_err(failure)?);
            Ok(())
        }),
        WorkCommand::Forget(args) => {
            on(&place, &args.queue, async |queue| queue.forget(&args.item).await.map_err(failure))
        }
        WorkCommand::Run(args) if args.work.command.is_empty() => {
            Err(Failure::new(OWN_ERROR, "say what to do with an item: work run QUEUE -- CMD"))
        }
        WorkCommand::Run(args) if args.workers.get() > 1 => workers::run(args.workers),
        WorkCommand::Run(args) => run::run(global, place, args),
    }
}

/// The queue on a driver session of its own.
async fn open(place: &Place, name: &str) -> Result<(Cassandra, WorkQueue), Failure> {
    let cassandra = place.connect(Global::connect_limit(None)).await?;
    let tables = place.layout().work;
    let queue = WorkQueue::new(&cassandra, &place.options(), tables, name).map_err(failure)?;
    Ok((cassandra, queue))
}

/// Runs one operation on a queue.
fn on(
    place: &Place,
    name: &str,
    act: impl AsyncFnOnce(&WorkQueue) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    block_on(async {
        let (_, queue) = open(place, name).await?;
        act(&queue).await
    })??;
    Ok(0)
}

async fn add(global: &Global, queue: &WorkQueue, payload: Option<String>) -> Result<(), Failure> {
    if let Some(payload) = payload {
        tell(global, &queue.enqueue(payload).await.map_err(failure)?);
        return Ok(());
    }
    // Nothing else runs on this thread, so a read may block it.
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::own("reading standard input", error))?;
        tell(global, &queue.enqueue(line).await.map_err(failure)?);
    }
    Ok(())
}

fn tell(global: &Global, item: &ItemId) {
    show::either(global.json, json!({ "item": item.as_str() }), item);
}

async fn list(global: &Global, queue: &WorkQueue, limit: usize) -> Result<(), Failure> {
    let listed = queue.list(limit).await.map_err(failure)?;
    if global.json {
        for Listed { id, status, attempts, payload, .. } in &listed {
            let (status, by) = words(status);
            show::line(json!({
                "item": id.as_str(),
                "status": status,
                "by": by,
                "attempts": attempts,
                "payload": payload,
            }));
        }
    } else if listed.is_empty() {
        show::line(format_args!("the queue {} is empty", show::escaped(queue.name())));
    } else {
        show::line(table(&listed));
    }
    Ok(())
}

fn words(status: &ItemStatus) -> (&'static str, Option<&str>) {
    match status {
        ItemStatus::Waiting => ("waiting", None),
        ItemStatus::Taken { by } => ("taken", Some(by)),
        ItemStatus::DeadLetter => ("dead letter", None),
    }
}

fn table(listed: &[Listed]) -> String {
    let row = |Listed { id, status, attempts, payload, .. }: &Listed| {
        let (status, by) = words(status);
        let by = by.map(show::escaped).unwrap_or_default();
        [id.to_string(), status.to_owned(), by, attempts.to_string(), shown(payload)]
    };
    show::table(&["ITEM", "STANDING", "BY", "ATTEMPTS", "PAYLOAD"], listed.iter().map(row))
}

fn shown(payload: &str) -> String {
    let start: String = payload.chars().take(SHOWN_MAX).collect();
    let more = if start.len() < payload.len() { "…" } else { "" };
    format!("{}{more}", show::escaped(&start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_cannot_drive_the_terminal_and_a_long_one_is_cut() {
        assert_eq!(shown("a\u{1b}[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(shown(&"é".repeat(61)), "é".repeat(60) + "…");
        assert!(item("0001").unwrap_err().contains("is no id"));
    }
}
