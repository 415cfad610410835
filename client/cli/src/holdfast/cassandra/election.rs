//! `holdfast cassandra lease elect` and `observe`, and `holdfast cassandra sequence`.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use holdfast::Client;
use holdfast_cli::block_on;
use holdfast_cli::place::failure;
use holdfast_recipes::{
    Cassandra, Leader, LeaderSeen, Leadership, Lease, Locker, LockerLeadership, LockerObserver,
    LockerOptions, Observer, RemoteGuard, Wait, check_lock_name,
};
use holdfast_runtime::{Runtime, select};
use serde_json::{Value, json};

use super::moving::{ModeArgs, Moving};
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
    /// As lock, of which it has the exit codes. Candidates have no order, but with --mode those that wait in the native store.
    Elect(ElectArgs),
    /// Print who leads an election, and each change.
    ///
    /// It reads at QUORUM every 50 ms to 2 s, with --mode in the stores that the mode says; leaders that came and went between two reads are left
    /// out. Exit codes: 0 asked to end, or
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
    moving: ModeArgs,
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
    #[command(flatten)]
    moving: ModeArgs,
}

/// Numbers that are given out once.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum SequenceCommand {
    /// Draw numbers of a sequence (`sequences`) that no other draw returns, and print them, one on each line.
    ///
    /// They begin at 1. A draw without an answer leaves numbers out. With --mode they come from wherever `holdfast-migrate sequences` has put the
    /// sequence. Exit codes: 0 drawn; 122 refused, or moved to the native store; 123 no answer; 125 an error of holdfast itself.
    Next {
        /// The sequence.
        name: String,
        /// How many.
        #[arg(long, default_value = "1")]
        by: NonZeroU32,
        #[command(flatten)]
        moving: ModeArgs,
    },
}

pub(super) fn elect(
    global: &Global,
    place: Place,
    options: LockerOptions,
    args: ElectArgs,
) -> Result<u8, Failure> {
    let ElectArgs { name, value, wait, moving, work } = args;
    check_lock_name(&name).map_err(failure)?;
    let moving = moving.parsed(global)?;
    run_under(&work, global.json, move |events, stop| async move {
        let runtime = Runtime::system();
        let began = runtime.clock.now();
        let limit = Global::connect_limit(wait);
        let opened = Elections::open(&place, options, moving, limit);
        let opened = select! {
            () = stop.cancelled() => return Ok(()),
            opened = opened => opened?,
        };
        let spent = runtime.clock.now().saturating_since(began);
        let campaign = opened.campaign(&name, value, rest_of(wait, spent));
        let led = select! {
            () = stop.cancelled() => return Ok(()),
            elected = campaign => elected.map_err(|error| opened.failure(waited_before_too(error, spent))),
        };
        let led = match led {
            Ok(leads) => {
                let guard = leads.guard();
                let token = guard.token().map(|token| token.to_string());
                let names = std::slice::from_ref(&name);
                hold(Held::of_locks(guard.states(), names, token, guard.ttl()), &events, &stop)
                    .await;
                // The command has ended; whatever the result, the TTL passes the leadership on.
                let _ = runtime.timeout(GOODBYE_LIMIT, leads.resign()).await;
                Ok(())
            }
            Err(failure) => Err(failure),
        };
        opened.close().await;
        led
    })
}

/// The elections of the lease, alone or through a scope that moves.
struct Elections {
    cassandra: Cassandra,
    lease: Lease,
    locker: Option<(Locker, Option<Client>)>,
}

/// A leadership won in either way.
enum Leads {
    Lease(Leadership),
    Locker(LockerLeadership),
}

impl Leads {
    fn guard(&self) -> &RemoteGuard {
        match self {
            Self::Lease(leads) => leads.guard(),
            Self::Locker(leads) => leads.guard(),
        }
    }

    async fn resign(self) -> holdfast::Result<()> {
        match self {
            Self::Lease(leads) => leads.resign().await,
            Self::Locker(leads) => leads.resign().await,
        }
    }
}

impl Elections {
    async fn open(
        place: &Place,
        options: LockerOptions,
        moving: Option<Moving>,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let cassandra = place.connect(limit).await?;
        let options = options.answer_limit(limit);
        let lease = Lease::new(&cassandra, &options, place.layout().lease).map_err(failure)?;
        let Some(moving) = moving else { return Ok(Self { cassandra, lease, locker: None }) };
        let (row, recipe) = (place.row_options(limit), Arc::new(lease.clone()));
        let entered = moving.enter(&cassandra, recipe, row, options, place.layout()).await?;
        Ok(Self { cassandra, lease, locker: Some(entered) })
    }

    async fn campaign(&self, name: &str, value: String, wait: Wait) -> holdfast::Result<Leads> {
        match &self.locker {
            None => self.lease.campaign(name, value, wait).await.map(Leads::Lease),
            Some((locker, _)) => locker.campaign(name, value, wait).await.map(Leads::Locker),
        }
    }

    async fn leader(&self, name: &str) -> Result<Option<Seen>, Failure> {
        let leader = match &self.locker {
            None => self.lease.leader(name).await.map(|leader| leader.map(Seen::from)),
            Some((locker, _)) => locker.leader(name).await.map(|leader| leader.map(Seen::from)),
        };
        leader.map_err(|error| self.failure(error))
    }

    /// Numbers that were drawn wherever the sequence is.
    async fn draw(&self, name: &str, by: NonZeroU32) -> Result<Range<i64>, Failure> {
        let drawn = match &self.locker {
            None => self.lease.sequence(name).draw(by.get()).await,
            Some((locker, _)) => match locker.sequence(name) {
                Ok(sequence) => sequence.draw(by).await,
                Err(error) => Err(error),
            },
        };
        drawn.map_err(|error| self.failure(error))
    }

    /// With a native client the error may be of either store.
    fn failure(&self, error: holdfast::Error) -> Failure {
        match &self.locker {
            Some((_, Some(_))) => Failure::from(error),
            _ => failure(error),
        }
    }

    /// Removes its rows before the process ends.
    async fn close(self) {
        let Self { cassandra, lease, locker } = self;
        let runtime = Runtime::system();
        drop(lease);
        let native = locker.and_then(|(_, native)| native);
        let _ = runtime.timeout(GOODBYE_LIMIT, cassandra.settled()).await;
        if let Some(native) = native {
            let _ = runtime.timeout(GOODBYE_LIMIT, native.close()).await;
        }
    }
}

pub(super) fn observe(
    global: &Global,
    place: &Place,
    options: &LockerOptions,
    args: ObserveArgs,
) -> Result<u8, Failure> {
    let ObserveArgs { name, once, moving } = args;
    let moving = moving.parsed(global)?;
    let opened = Elections::open(place, options.clone(), moving, Global::connect_limit(None));
    if !once {
        return signals::until_asked_to_end(async {
            let opened = opened.await?;
            let observed = observe_on(global, &opened, &name).await;
            opened.close().await;
            observed
        });
    }
    let leader = block_on(async {
        let opened = opened.await?;
        let leader = opened.leader(&name).await;
        opened.close().await;
        leader
    })??;
    match &leader {
        _ if global.json => show::line(json_of(leader.as_ref())),
        Some(leader) => show::line(show::escaped(leader.value.as_deref().unwrap_or_default())),
        None => {}
    }
    Ok(if leader.is_some() { 0 } else { NOBODY })
}

/// Until the reader of the output is gone.
async fn observe_on(global: &Global, elections: &Elections, name: &str) -> Result<(), Failure> {
    let mut observer = match &elections.locker {
        None => Observing::Lease(elections.lease.observe(name)),
        Some((locker, _)) => Observing::Locker(locker.observe(name)),
    };
    let clock = Runtime::system().clock;
    loop {
        let leader = observer.next().await.map_err(|error| elections.failure(error))?;
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

enum Observing {
    Lease(Observer),
    Locker(LockerObserver),
}

impl Observing {
    async fn next(&mut self) -> holdfast::Result<Option<Seen>> {
        match self {
            Self::Lease(observer) => Ok(observer.next().await?.map(Seen::from)),
            Self::Locker(observer) => Ok(observer.next().await?.map(Seen::from)),
        }
    }
}

/// A leader, as either kind of observer tells it.
struct Seen {
    name: String,
    /// The id in its row; `None`: a scope's observer does not tell it.
    owner: Option<String>,
    value: Option<String>,
    /// Whether the native store told it; `None`: there is none.
    is_native: Option<bool>,
}

impl From<Leader> for Seen {
    fn from(Leader { name, owner, value }: Leader) -> Self {
        Self { name, owner: Some(owner), value, is_native: None }
    }
}

impl From<LeaderSeen> for Seen {
    fn from(LeaderSeen { name, value, is_native, .. }: LeaderSeen) -> Self {
        Self { name, owner: None, value, is_native: Some(is_native) }
    }
}

fn text_of(leader: Option<&Seen>) -> String {
    let Some(Seen { name, value, .. }) = leader else {
        return Tone::Caution.of("nobody leads");
    };
    let value = value.as_deref().filter(|value| !value.is_empty());
    let says = value.map_or_else(String::new, |value| format!(": {}", show::escaped(value)));
    format!("{} leads{says}", show::escaped(name))
}

fn json_of(leader: Option<&Seen>) -> Value {
    let Some(Seen { name, owner, value, is_native }) = leader else { return Value::Null };
    let mut shown = json!({ "client": name, "value": value });
    if let Some(owner) = owner {
        shown["owner"] = json!(owner);
    }
    if let Some(is_native) = is_native {
        shown["store"] = json!(if *is_native { "native" } else { "cassandra" });
    }
    shown
}

pub(super) fn sequence(
    global: &Global,
    place: &Place,
    options: &LockerOptions,
    command: SequenceCommand,
) -> Result<u8, Failure> {
    let SequenceCommand::Next { name, by, moving } = command;
    let moving = moving.parsed(global)?;
    let drawn = block_on(async {
        let limit = Global::connect_limit(None);
        let opened = Elections::open(place, options.clone(), moving, limit).await?;
        let drawn = opened.draw(&name, by).await;
        opened.close().await;
        drawn
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
