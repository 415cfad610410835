//! `holdfast cassandra`: runs a command under a lock of one of the recipes, and makes the recipes' tables.

mod claims;
mod clock;
mod doctor;
mod election;
mod housekeeper;
mod moving;
mod work;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use holdfast::Error;
use holdfast_cli::place::{All, NameArgs, Reach, failure};
use holdfast_cli::{block_on, error_line};
use holdfast_recipes::{
    BakeryForm, Batch, Cassandra, Layout, LockerOptions, Queue, Recipe, RemoteLocker, Replication,
    Schema, TimeAccess, TimeClient, Tokens, Wait, check_lock_name, open,
};
use holdfast_runtime::{Runtime, select};
use tokio_util::sync::CancellationToken;

use crate::args::{Global, Work, duration};
use crate::bench::cassandra::{LoopArgs, Measured, measure};
use crate::failure::{Failure, OWN_ERROR};
use crate::lock::store_thread::{GOODBYE_LIMIT, hold};
use crate::lock::{Event, Held, run_under};
use crate::show::{self, Tone};
use claims::{LsArgs, ShowArgs};
use clock::ClockArgs;
use doctor::DoctorArgs;
use election::{LeaseCommand, SequenceCommand};
use housekeeper::HousekeeperArgs;
use moving::ModeArgs;
use work::WorkCommand;

/// The cluster, and the task there.
#[derive(Clone, Debug, Args)]
pub(crate) struct CassandraArgs {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: CassandraCommand,
}

#[derive(Clone, Debug, Args)]
struct Place {
    #[command(flatten)]
    reach: Reach,
    /// The TTL of locks: whole seconds [default: 180s], and at least three times --max-skew.
    ///
    /// The thesis behind the queue took 15 minutes because of clocks: a cell ends by the clock of whoever writes it,
    /// is looked at by another one, and is gone at once where the two differ by more than the TTL. Here the
    /// largest difference is said, and a hold counts as safe for that much less than the TTL.
    #[arg(long, global = true, value_parser = duration)]
    ttl: Option<Duration>,
    /// The largest difference between the clocks of any two nodes; a third of the TTL at most
    /// [default: 60s].
    #[arg(long, value_parser = duration)]
    max_skew: Option<Duration>,
    #[command(flatten)]
    names: NameArgs<All>,
}

#[derive(Clone, Debug, Subcommand)]
enum CassandraCommand {
    /// Print the tables as CQL, or make them.
    ///
    /// Existing tables stay as they are. Exit codes: 0 done, or so already; 122 refused; 123 no node could be reached; 125 an
    /// error of holdfast itself.
    Schema(SchemaArgs),
    /// Look whether this cluster and keyspace are fit for locks: nodes and versions, replicas, clocks, Paxos, commit log, tables,
    /// tombstones, permissions; and say what to do.
    ///
    /// It asks every node that it reaches, and changes nothing. Each line is `good`, a `note`, a `caution` (slower than need be, or
    /// locks end sooner), or `wrong` (no lock can be had, or two clients may have one). Exit codes: 0 nothing to do; 1 a
    /// caution or something wrong; 122 the cluster refused the login; 123 no node could be reached; 125 an error of holdfast itself.
    Doctor(DoctorArgs),
    /// List the locks of a recipe: who holds each, what is left of its row, how many others wait or try.
    ///
    /// It reads the recipe's tables as a whole, at QUORUM, page by page. Exit codes: 0 listed; 122 refused; 123 no node could be
    /// reached; 125 an error of holdfast itself.
    Ls(LsArgs),
    /// Show who holds a lock of a recipe, and who waits or tries for it, in order.
    ///
    /// It reads the lock's rows at QUORUM. Exit codes as of ls.
    Show(ShowArgs),
    /// A row with an owner and a TTL for each lock (`leases`); 180s unless --ttl says otherwise.
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Numbers that are given out once (`sequences`), drawn under a lease.
    #[command(subcommand)]
    Sequence(SequenceCommand),
    /// Waiters in the order of their arrival (`lock_queue`), the holder in a row of its own (`lock_main`).
    Queue {
        /// Order places in the queue by the time service (`holdfast cassandra clock`) with these
        /// replicas: host:port, several separated by commas. All clients of one queue have to do so.
        /// --ca, --cert and --key, --server-name and --token-file count for it too
        /// [default: this machine's clock].
        #[arg(long, global = true, value_name = "HOST:PORT,…", env = "HOLDFAST_TIME_SERVICE")]
        time_service: Option<String>,
        #[command(subcommand)]
        command: LockCommand,
    },
    /// A row with a session for each lock (`tokens`), with the sessions' heartbeats in a table of their own (`token_times`);
    /// only a housekeeper frees the locks of dead sessions.
    #[command(subcommand)]
    TokensLwt(LockCommand),
    /// Lamport's bakery: a client draws a number (`numbers`) while its flag is up (`choosing`), and the lowest number holds the
    /// lock.
    Bakery {
        /// The article that the other clients follow.
        #[arg(long, value_parser = form(), default_value = "wiki")]
        form: BakeryForm,
        #[command(subcommand)]
        command: LockCommand,
    },
    /// The older recipe of the thesis: a row in which clients check whether they are alone (`lock_shadow`), the holder in
    /// another (`lock_main`). No order: a client that releases and retries mostly gets the lock again.
    #[command(subcommand)]
    Shadow(LockCommand),
    /// A row for each session that wants a lock (`optimistic_tokens`); a session that is alone holds it. For a few workers:
    /// many keep each other out.
    #[command(subcommand)]
    TokensOptimistic(LockCommand),
    /// Free the tokens of sessions without heartbeats, until a signal asks to end.
    ///
    /// Any number may run at once. A session is dead when a housekeeper has seen no heartbeat of it for the grace, on its own
    /// clock; sessions that died before it was started are gone one grace later. Exit codes: 0 asked to end, or done; 122
    /// refused; 123 no node could be reached; 125 an error of holdfast itself.
    Housekeeper(HousekeeperArgs),
    /// Run one replica of the time service (`global_time`) that can order places in a queue, until a signal asks to end.
    ///
    /// Run several, on machines of their own; the time goes on as long as one runs, and never goes back over all of them.
    /// With --cert and --key it speaks TLS only; with --ca as well it answers only clients for which this CA vouches; with
    /// --token-file it answers only clients that show the token in this file. Exit
    /// codes: 0 asked to end; 122 refused: no such table, or a cell whose value is no time; 123 no node could be reached; 125
    /// an error of holdfast itself, or an address that it cannot listen on.
    Clock(ClockArgs),
    /// A queue of work (`work_numbers` and five more): items are added, and each is worked on by one worker at a time.
    #[command(subcommand)]
    Work(WorkCommand),
}

#[derive(Clone, Debug, Args)]
struct SchemaArgs {
    /// Make the missing tables.
    #[arg(long)]
    apply: bool,
    /// No client writes these tables that knows only the articles' recipes, and none will. With --apply, tables of theirs that are there get the
    /// options of new ones: they keep what is deleted for minutes (tokens: three hours) and not for ten days. A row of such a client has no TTL, and would come
    /// back for good after a node was away for longer.
    #[arg(long, requires = "apply")]
    writers_stopped: bool,
    /// Make the keyspace too, with this many replicas in each datacenter (3), or in each of those named and none in others
    /// (dc1=3,dc2=3): three, to tolerate the loss of one node.
    #[arg(long, value_name = "N|DC=N,…")]
    replication: Option<Replication>,
    /// Print what each process has to be granted, as CQL, in place of the tables: of each role the lines that it needs.
    #[arg(long, conflicts_with_all = ["apply", "replication"])]
    grants: bool,
    /// The form of the bakery's tables.
    #[arg(long, value_parser = form(), default_value = "wiki")]
    bakery_form: BakeryForm,
}

/// A form of the bakery by its name.
fn form() -> impl TypedValueParser<Value = BakeryForm> {
    let wiki = "The page of the Cassandra wiki: a flag is 1, and is deleted";
    let php = "The article on the PHP implementation: a flag is `true`, and then `false`";
    let values = [PossibleValue::new("wiki").help(wiki), PossibleValue::new("php").help(php)];
    PossibleValuesParser::new(values)
        .map(|name| if name == "php" { BakeryForm::Php } else { BakeryForm::Wiki })
}

#[derive(Clone, Debug, Subcommand)]
enum LockCommand {
    /// Wait for a lock, run a command while it is held, give it back.
    ///
    /// The command finds the lock in its environment as `HOLDFAST_LOCK`; there is no token.
    Lock {
        /// Give up after this long, e.g. 30s; covers reaching a node too [default: wait for ever].
        #[arg(long, value_parser = duration)]
        wait: Option<Duration>,
        #[command(flatten)]
        job: JobArgs,
    },
    /// Run a command if a lock is free, exit with 124 if it is not.
    ///
    /// With --any, of several locks those that are free: the command finds them in its environment as `HOLDFAST_LOCKS`, one a line.
    Try(TryArgs),
    /// Measure: clients that acquire and release as fast as they can, on this cluster.
    ///
    /// The figures are those of `holdfast bench`, with round trips and statements without an answer. It uses
    /// locks of its own, whose names begin with `bench/`.
    Bench(LoopArgs),
}

#[derive(Clone, Debug, Args)]
struct JobArgs {
    #[command(flatten)]
    moving: ModeArgs,
    /// The lock.
    name: String,
    #[command(flatten)]
    work: Work,
}

#[derive(Clone, Debug, Args)]
struct TryArgs {
    #[command(flatten)]
    moving: ModeArgs,
    /// Run the command under those of the locks that are free, and exit with 124 only if none is. They are held together, and count as lost
    /// together; by tokens-lwt under one session.
    #[arg(long)]
    any: bool,
    /// The lock; with --any several.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    work: Work,
}

/// A command to be run under locks.
struct Job {
    moving: ModeArgs,
    names: Vec<String>,
    /// Under those of them that are free.
    any: bool,
    work: Work,
}

impl From<JobArgs> for Job {
    fn from(JobArgs { moving, name, work }: JobArgs) -> Self {
        Self { moving, names: vec![name], any: false, work }
    }
}

impl TryArgs {
    fn job(self) -> Result<Job, Failure> {
        let Self { moving, any, names, work } = self;
        if names.len() > 1 && !any {
            let message = "a try of several locks is one of any of them: say so with --any";
            return Err(Failure::new(OWN_ERROR, message));
        }
        Ok(Job { moving, names, any, work })
    }
}

impl Place {
    /// A driver session of its own.
    async fn connect(&self, limit: Duration) -> Result<Cassandra, Failure> {
        let (contact, scope) = (self.reach.contact(limit)?, self.reach.serial()?);
        let (session, keyspace) = (open(&contact).await.map_err(failure)?, &self.reach.keyspace);
        let cassandra = Cassandra::new(session.clone(), keyspace, &scope).map_err(failure)?;
        let schema = Schema::new(keyspace).named(self.layout());
        // A cluster that does not tell what its tables are like may still serve locks.
        if let Ok(Some(warning)) = schema.warning(&session).await {
            warn(&warning);
        }
        Ok(cassandra)
    }

    fn layout(&self) -> Layout {
        self.names.layout()
    }

    /// The options of a row of modes: its TTL is longer than that of locks, as in the library.
    fn row_options(&self, limit: Duration) -> LockerOptions {
        let options = LockerOptions::default().ttl(Duration::from_mins(15)).answer_limit(limit);
        self.max_skew.into_iter().fold(options, LockerOptions::max_skew)
    }

    fn options(&self) -> LockerOptions {
        let options = LockerOptions::default();
        let options = self.ttl.into_iter().fold(options, LockerOptions::ttl);
        self.max_skew.into_iter().fold(options, LockerOptions::max_skew)
    }
}

/// A recipe in the form that was asked for.
struct Chosen {
    recipe: Recipe,
    /// The time service by which the queue takes its places; `None`: this machine's clock.
    time: Option<TimeClient>,
    /// The form of the bakery.
    form: BakeryForm,
}

impl From<Recipe> for Chosen {
    fn from(recipe: Recipe) -> Self {
        Self { recipe, time: None, form: BakeryForm::default() }
    }
}

impl Chosen {
    /// A locker of this recipe.
    fn locker(
        &self,
        on: &Cassandra,
        options: &LockerOptions,
        mut layout: Layout,
    ) -> holdfast::Result<Arc<dyn RemoteLocker>> {
        if let Some(time) = &self.time {
            let queue = Queue::new(on, options, layout.queue)?;
            return Ok(Arc::new(queue.with_time(Arc::new(time.clone()))));
        }
        layout.bakery = layout.bakery.of_form(self.form);
        self.recipe.locker(on, options, &layout)
    }

    /// Checks that the services it needs beside Cassandra answer, before a client waits for them silently.
    async fn try_out(&self) -> Result<(), Failure> {
        let Some(time) = &self.time else { return Ok(()) };
        match time.now_us().await {
            Ok(_) => Ok(()),
            Err(Error::Unreachable { endpoints, waited, last, .. }) => {
                let who = "no answer from the time service";
                let advice = "; holdfast cassandra clock is one replica of it";
                Err(Failure::unanswered(who, &endpoints, waited, &last, advice))
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(crate) fn run(global: &Global, args: CassandraArgs) -> Result<u8, Failure> {
    let CassandraArgs { place, command } = args;
    let options = place.options();
    let (command, recipe) = match command {
        CassandraCommand::Schema(wanted) => return schema(global, &place, &wanted),
        CassandraCommand::Ls(args) => return claims::ls(global, &place, &args),
        CassandraCommand::Show(args) => return claims::show(global, &place, &args),
        CassandraCommand::Doctor(args) => return doctor::run(global, &place, args),
        CassandraCommand::Housekeeper(args) => return housekeeper::run(global, &place, &args),
        CassandraCommand::Clock(args) => return clock::run(global, &place, &args),
        CassandraCommand::Work(command) => return work::run(global, place, command),
        CassandraCommand::Lease(LeaseCommand::Elect(args)) => {
            return election::elect(global, place, options, args);
        }
        CassandraCommand::Lease(LeaseCommand::Observe(args)) => {
            return election::observe(global, &place, &options, args);
        }
        CassandraCommand::Sequence(command) => {
            return election::sequence(global, &place, &options, command);
        }
        CassandraCommand::Lease(LeaseCommand::Lock(command)) => {
            (command, Chosen::from(Recipe::Lease))
        }
        CassandraCommand::Queue { time_service, command } => {
            let time = time_service.map(|at| time_client(global, &at)).transpose()?;
            (command, Chosen { time, ..Recipe::Queue.into() })
        }
        CassandraCommand::TokensLwt(command) => (command, Recipe::TokensLwt.into()),
        CassandraCommand::Bakery { form, command } => {
            (command, Chosen { form, ..Recipe::Bakery.into() })
        }
        CassandraCommand::Shadow(command) => (command, Recipe::Shadow.into()),
        CassandraCommand::TokensOptimistic(command) => (command, Recipe::TokensOptimistic.into()),
    };
    match command {
        LockCommand::Lock { wait, job } => lock(global, place, options, wait, job.into(), recipe),
        LockCommand::Try(args) => {
            lock(global, place, options, Some(Duration::ZERO), args.job()?, recipe)
        }
        LockCommand::Bench(args) => bench(global, &place, &options, &args, &recipe),
    }
}

/// Reaches the time service as servers are reached: with the same CA, certificate and token.
fn time_client(global: &Global, at: &str) -> Result<TimeClient, Failure> {
    let mut access = TimeAccess::default();
    if let Some(tls) = global.tls.tls()? {
        access = access.tls(tls);
    }
    if let Some(token) = global.tls.token()? {
        access = access.token(&token)?;
    }
    Ok(TimeClient::with_access(holdfast_cli::endpoints(at), &access)?)
}

fn grants(global: &Global, schema: &Schema) {
    for of in schema.grants() {
        if global.json {
            let (role, does) = (of.role, of.does);
            show::line(
                serde_json::json!({ "role": role, "for": does, "statements": of.statements }),
            );
            continue;
        }
        show::line(format_args!("-- {}: {}", of.role, of.does));
        for statement in of.statements {
            show::line(format_args!("{statement};"));
        }
    }
}

fn warn(warning: &str) {
    error_line(format_args!("{}: {warning}", Tone::Caution.of("holdfast")));
}

fn schema(global: &Global, place: &Place, wanted: &SchemaArgs) -> Result<u8, Failure> {
    let mut layout = place.layout();
    layout.bakery = layout.bakery.of_form(wanted.bakery_form);
    let schema = Schema::new(&place.reach.keyspace).named(layout);
    let schema = wanted.replication.iter().cloned().fold(schema, Schema::replicated);
    let schema = if wanted.writers_stopped { schema.writers_stopped() } else { schema };
    if wanted.grants {
        grants(global, &schema);
    } else if wanted.apply {
        let contact = place.reach.contact(Global::connect_limit(None))?;
        if let Some(left) = block_on(schema.apply(&contact))?.map_err(failure)? {
            warn(&left);
        }
    } else if global.json {
        show::line(serde_json::json!({ "statements": schema.statements() }));
    } else {
        for statement in schema.statements() {
            show::line(format_args!("{statement};"));
        }
    }
    Ok(0)
}

fn bench(
    global: &Global,
    place: &Place,
    options: &LockerOptions,
    args: &LoopArgs,
    recipe: &Chosen,
) -> Result<u8, Failure> {
    block_on(async {
        recipe.try_out().await?;
        let limit = Global::connect_limit(None);
        let connecting = (0..args.sessions()).map(|_| place.connect(limit));
        let sessions = futures_util::future::try_join_all(connecting).await?;
        let make = |session| recipe.locker(session, options, place.layout());
        let lockers = sessions.iter().map(make).collect();
        let lockers: holdfast::Result<Vec<_>> = lockers;
        let lockers = lockers.map_err(failure)?;
        let ttl = try_out(&lockers, limit).await.map_err(failure)?;
        measure(global, args, Measured { recipe: recipe.recipe.as_str(), sessions, lockers, ttl })
            .await
    })??;
    Ok(0)
}

/// Acquires one lock first, so that a common error is reported once; returns the TTL of its rows.
async fn try_out(lockers: &[Arc<dyn RemoteLocker>], limit: Duration) -> holdfast::Result<Duration> {
    let Some(locker) = lockers.first() else { return Ok(Duration::ZERO) };
    let guard = locker.lock_within("bench/first", limit).await?;
    let ttl = guard.ttl();
    guard.release().await?;
    Ok(ttl)
}

fn lock(
    global: &Global,
    place: Place,
    options: LockerOptions,
    wait: Option<Duration>,
    Job { moving, names, any, work }: Job,
    recipe: Chosen,
) -> Result<u8, Failure> {
    names.iter().try_for_each(|name| check_lock_name(name)).map_err(failure)?;
    let moving = moving.parsed(global)?;
    run_under(&work, global.json, move |events, stop| async move {
        let runtime = Runtime::system();
        let began = runtime.clock.now();
        let limit = Global::connect_limit(wait);
        let cassandra = select! {
            () = stop.cancelled() => return Ok(()),
            cassandra = place.connect(limit) => cassandra?,
        };
        select! {
            () = stop.cancelled() => return Ok(()),
            there = recipe.try_out() => there?,
        }
        let options = options.answer_limit(limit);
        let made = recipe.locker(&cassandra, &options, place.layout()).map_err(failure)?;
        let alone = moving.is_none();
        let (locker, native): (Arc<dyn RemoteLocker>, _) = match moving {
            None => (made, None),
            Some(moving) => select! {
                () = stop.cancelled() => return Ok(()),
                moved = moving.enter(&cassandra, made, place.row_options(limit), options.clone(), place.layout()) => {
                    let (locker, native) = moved?;
                    (Arc::new(locker), native)
                }
            },
        };
        let spent = runtime.clock.now().saturating_since(began);
        let wait = rest_of(wait, spent);
        // In mode `both` the last wait is for the native store.
        let failed = if native.is_some() { Failure::from } else { failure };
        let kept = match (names.first(), any) {
            (Some(name), false) => keep(&*locker, name, wait, &events, &stop).await,
            _ if alone && recipe.recipe == Recipe::TokensLwt => {
                let tokens = Tokens::new(&cassandra, &options, place.layout().tokens);
                let tokens = tokens.map_err(failure)?;
                keep_free(tokens.batch(names), wait, &events, &stop).await
            }
            _ => {
                let batch = Batch::of(locker.clone(), &cassandra, names);
                keep_free(batch, wait, &events, &stop).await
            }
        };
        let kept = kept.map_err(|error| failed(waited_before_too(error, spent)));
        drop(locker);
        // Abandoned rows are removed from the table before this process ends.
        let _ = runtime.timeout(GOODBYE_LIMIT, cassandra.settled()).await;
        if let Some(native) = native {
            let _ = runtime.timeout(GOODBYE_LIMIT, native.close()).await;
        }
        kept
    })
}

/// What is left of `--wait` for the request itself.
fn rest_of(wait: Option<Duration>, spent: Duration) -> Wait {
    match wait {
        None => Wait::Forever,
        Some(Duration::ZERO) => Wait::No,
        Some(wait) => Wait::AtMost(wait.saturating_sub(spent)),
    }
}

/// Adds `spent`, the time before the request, to the reported wait: `--wait` covers it.
fn waited_before_too(error: Error, spent: Duration) -> Error {
    match error {
        Error::NotGranted { names, holders, waited } => {
            Error::NotGranted { names, holders, waited: waited.map(|waited| waited + spent) }
        }
        Error::Unreachable { endpoints, waited, last, answered } => {
            Error::Unreachable { endpoints, waited: waited + spent, last, answered }
        }
        other => other,
    }
}

/// The same with those locks of a batch that are free.
async fn keep_free(
    mut batch: Batch,
    wait: Wait,
    events: &SyncSender<Event>,
    stop: &CancellationToken,
) -> holdfast::Result<()> {
    let bunch = select! {
        () = stop.cancelled() => return Ok(()),
        bunch = batch.next_with(wait) => bunch?,
    };
    let Some(bunch) = bunch else { return Ok(()) };
    hold(Held::of_locks(bunch.states(), bunch.tokens(), None, bunch.ttl()), events, stop).await;
    let _ = Runtime::system().timeout(GOODBYE_LIMIT, bunch.release()).await;
    Ok(())
}

/// Acquires, holds until `stop`, releases.
async fn keep(
    locker: &dyn RemoteLocker,
    name: &str,
    wait: Wait,
    events: &SyncSender<Event>,
    stop: &CancellationToken,
) -> holdfast::Result<()> {
    let guard = select! {
        () = stop.cancelled() => return Ok(()),
        guard = locker.acquire(name, wait) => guard?,
    };
    let token = guard.token().map(|token| token.to_string());
    let held = Held::of_locks(guard.states(), &[name.to_owned()], token, guard.ttl());
    hold(held, events, stop).await;
    // The command has ended; whatever the result, the TTL passes the lock on.
    let _ = Runtime::system().timeout(GOODBYE_LIMIT, guard.release()).await;
    Ok(())
}
