//! `holdfast cassandra lease elect` and `observe`, and `holdfast cassandra sequence`.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, Subcommand};
use holdfast_cli::block_on;
use holdfast_cli::place::failure;
use holdfast_recipes::{Leader, Lease, LockerOptions, check_lock_name};
use holdfast_runtime::{Runtime, select};
use serde_json::{Value, json};

use super::{LockCommand, Place, rest_of, waited_before_too};
use crate::args::{Global, Work, duration};
use crate::failure::Failure;
use crate::lock::store_thread::{GOODBYE_LIMIT, hold};
use crate::lock::{Held, run_under};
use crate::show::Tone;
use crate::{show, signals};

/// Nobody leads.
const NOBODY: u8 = 1;

/// What a lease is for.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum LeaseCommand {
    #[command(flatten)]
    Lock(LockCommand),
    /// Stand for election, run a command while leading, resign.
    ///
    /// As lock, of which it has the exit codes. Candidates have no order. Elections of Cassandra do not move to the native store.
    Elect(ElectArgs),
    /// Print who leads an election, and each change.
    ///
    /// It reads at QUORUM every 50 ms to 2 s; leaders that came and went between two reads are left out. Exit codes: 0 asked to end, or
    /// with --once somebody leads; 1 with --once nobody does; 122 refused; 123 no node could be reached; 125 an error of holdfast itself.
    Observe(ObserveArgs),
}

/// A candidate.
#[derive(Clone, Debug, Args)]
pub(super) struct ElectArgs {
    /// The election: the row of that name.
    name: String,
    /// What observers are told, for example an address.
    #[arg(long, value_name = "TEXT", default_value = "")]
    value: String,
    /// Give up after this long, e.g. 30s; covers reaching a node too [default: wait for ever].
    #[arg(long, value_parser = duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    work: Work,
}

/// An observer.
#[derive(Clone, Debug, Args)]
pub(super) struct ObserveArgs {
    /// The election.
    name: String,
    /// Read once, print what the leader proclaims, and end.
    #[arg(long)]
    once: bool,
}

/// Numbers that are given out once.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum SequenceCommand {
    /// Draw numbers of a sequence (`sequences`) that no other draw returns, and print them, one on each line.
    ///
    /// They begin at 1. A draw without an answer leaves numbers out. Sequences of Cassandra do not move to the native store: `holdfast sequence
    /// begin NAME N` begins one there at the next number. Exit codes: 0 drawn; 122 refused; 123 no answer; 125 an error of holdfast itself.
    Next {
        /// The sequence.
        name: String,
        /// How many.
        #[arg(long, default_value = "1")]
        by: NonZeroU32,
    },
}

pub(super) fn elect(
    global: &Global,
    place: Place,
    options: LockerOptions,
    args: ElectArgs,
) -> Result<u8, Failure> {
    let ElectArgs { name, value, wait, work } = args;
    check_lock_name(&name).map_err(failure)?;
    run_under(&work, global.json, move |events, stop| async move {
        let runtime = Runtime::system();
        let began = runtime.clock.now();
        let limit = Global::connect_limit(wait);
        let cassandra = select! {
            () = stop.cancelled() => return Ok(()),
            cassandra = place.connect(limit) => cassandra?,
        };
        let options = options.answer_limit(limit);
        let lease = Lease::new(&cassandra, &options, place.layout().lease).map_err(failure)?;
        let spent = runtime.clock.now().saturating_since(began);
        let campaign = lease.campaign(&name, value, rest_of(wait, spent));
        let leadership = select! {
            () = stop.cancelled() => return Ok(()),
            elected = campaign => {
                elected.map_err(|error| failure(waited_before_too(error, spent)))?
            }
        };
        let guard = leadership.guard();
        let held = Held::of_locks(guard.states(), std::slice::from_ref(&name), None, guard.ttl());
        hold(held, &events, &stop).await;
        // The command has ended; whatever the result, the TTL passes the leadership on.
        let _ = runtime.timeout(GOODBYE_LIMIT, leadership.resign()).await;
        let _ = runtime.timeout(GOODBYE_LIMIT, cassandra.settled()).await;
        Ok(())
    })
}

pub(super) fn observe(
    global: &Global,
    place: &Place,
    options: &LockerOptions,
    args: &ObserveArgs,
) -> Result<u8, Failure> {
    if !args.once {
        return signals::until_asked_to_end(observe_on(global, place, options, &args.name));
    }
    let leader = block_on(async {
        let lease = lease(place, options).await?;
        lease.leader(&args.name).await.map_err(failure)
    })??;
    match &leader {
        _ if global.json => show::line(json_of(leader.as_ref())),
        Some(leader) => show::line(show::escaped(leader.value.as_deref().unwrap_or_default())),
        None => {}
    }
    Ok(if leader.is_some() { 0 } else { NOBODY })
}

async fn lease(place: &Place, options: &LockerOptions) -> Result<Lease, Failure> {
    let cassandra = place.connect(Global::connect_limit(None)).await?;
    Lease::new(&cassandra, options, place.layout().lease).map_err(failure)
}

/// Until the reader of the output is gone.
async fn observe_on(
    global: &Global,
    place: &Place,
    options: &LockerOptions,
    name: &str,
) -> Result<(), Failure> {
    let mut observer = lease(place, options).await?.observe(name);
    let clock = Runtime::system().clock;
    loop {
        let leader = observer.next().await.map_err(failure)?;
        let now = clock.wall_ms();
        let line = if global.json {
            json!({ "at": show::instant(now), "leader": json_of(leader.as_ref()) }).to_string()
        } else {
            format!("{}  {}", show::time_of_day(now), text_of(leader.as_ref()))
        };
        if writeln!(anstream::stdout().lock(), "{line}").is_err() {
            return Ok(());
        }
    }
}

fn text_of(leader: Option<&Leader>) -> String {
    let Some(Leader { name, value, .. }) = leader else {
        return Tone::Caution.of("nobody leads");
    };
    let value = value.as_deref().filter(|value| !value.is_empty());
    let says = value.map_or_else(String::new, |value| format!(": {}", show::escaped(value)));
    format!("{} leads{says}", show::escaped(name))
}

fn json_of(leader: Option<&Leader>) -> Value {
    leader.map_or(
        Value::Null,
        |Leader { name, owner, value }| json!({ "client": name, "owner": owner, "value": value }),
    )
}

pub(super) fn sequence(
    global: &Global,
    place: &Place,
    options: &LockerOptions,
    command: &SequenceCommand,
) -> Result<u8, Failure> {
    let SequenceCommand::Next { name, by } = command;
    let drawn = block_on(async {
        let lease = lease(place, options).await?;
        lease.sequence(name).draw(by.get()).await.map_err(failure)
    })??;
    if global.json {
        let last = drawn.end.saturating_sub(1);
        show::line(
            json!({ "name": name, "first": drawn.start.to_string(), "last": last.to_string() }),
        );
    } else {
        drawn.for_each(show::line);
    }
    Ok(0)
}
