//! The closed loops on Cassandra, by one of the recipes: the figures of the native store, and two
//! of their own.

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, value_parser};
use futures_util::future::join_all;
use holdfast_recipes::{Cassandra, RemoteLocker};
use holdfast_runtime::{Clock, Runtime};
use serde_json::json;

use super::pairs::{self, Loops, Store, Window};
use super::probe::{self, Probe};
use super::row::{self, Row, float, timestamp};
use crate::args::Global;
use crate::failure::Failure;
use crate::lock::store_thread::GOODBYE_LIMIT;

/// The measurement.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoopArgs {
    /// Clients that work at the same time.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Locks that they share; as many as clients: each has one of its own.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    names: u32,
    /// Driver sessions that the clients share; for locks, each counts as a process. Never more than
    /// clients.
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=1_000))]
    pub(crate) sessions: u32,
    /// How many seconds are measured, after 2 s of warm-up.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

impl LoopArgs {
    /// The number of sessions to open.
    pub(crate) fn sessions(&self) -> usize {
        count(self.sessions.min(self.clients))
    }

    /// The name of the native workload, where there is one.
    fn workload(&self) -> &'static str {
        match (self.clients, self.names) {
            (1, 1) => "W1",
            (_, 1) => "W3",
            (clients, names) if clients == names => "W2",
            _ => "W2 on fewer locks",
        }
    }
}

/// A lock service: a recipe on a cluster, with one entry for each session.
pub(crate) struct Measured {
    /// The recipe's name on the command line.
    pub(crate) recipe: &'static str,
    pub(crate) sessions: Vec<Cassandra>,
    pub(crate) lockers: Vec<Arc<dyn RemoteLocker>>,
    pub(crate) ttl: Duration,
}

/// Measures, and prints the result.
pub(crate) async fn measure(
    global: &Global,
    args: &LoopArgs,
    measured: Measured,
) -> Result<(), Failure> {
    let runtime = Runtime::system();
    let mut row = header(args, &measured, &*runtime.clock)?;
    let start = format!("bench/{:016x}/", runtime.rng.next_u64());
    let loops = Loops {
        probe: Probe::new(runtime.clock.clone(), None),
        stores: measured.lockers.into_iter().map(Store::Cassandra).collect(),
        clients: count(args.clients),
        names: (0..args.names).map(|lock| format!("{start}{lock}")).collect(),
        runtime: runtime.clone(),
    };
    let window = Window::after_warm_up(Duration::from_secs(args.seconds.into()), &*runtime.clock);
    let asking = asked(&measured.sessions, window, &*runtime.clock);
    let (figures, asked) = tokio::join!(pairs::measure(&loops, window), asking);
    row.extend(figures?);
    tell(asked, &mut row);
    // Abandoned rows are removed from the tables before this process ends.
    let settled = join_all(measured.sessions.iter().map(Cassandra::settled));
    let _ = runtime.timeout(GOODBYE_LIMIT, settled).await;
    row::print(global, row);
    Ok(())
}

fn header(args: &LoopArgs, measured: &Measured, clock: &dyn Clock) -> Result<Row, Failure> {
    let nodes = measured.sessions.first().map_or(0, |session| session.nodes().len());
    let header = [
        ("peer", json!(format!("cassandra-{}", measured.recipe))),
        ("variant", json!(format!("sessions={} names={}", args.sessions(), args.names))),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("topology", json!(format!("{nodes}n"))),
        ("durability", json!("the nodes' commitlog_sync")),
        ("workload", json!(args.workload())),
        ("n", json!(args.clients)),
        ("secs", json!(args.seconds)),
        ("ttl_s", json!(measured.ttl.as_secs_f64())),
        ("run", json!(1)),
        ("ts", json!(timestamp(clock))),
        ("load1", json!(probe::load()?)),
    ];
    Ok(header.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The statements of all sessions in the window, and those of them without an answer.
async fn asked(sessions: &[Cassandra], window: Window, clock: &dyn Clock) -> [u64; 2] {
    let read = || {
        let counts = sessions.iter().map(Cassandra::statements);
        counts.fold([0, 0], |[sent, lost], one| [sent + one.sent, lost + one.unanswered])
    };
    clock.sleep_until(window.from).await;
    let before = read();
    clock.sleep_until(window.until).await;
    let after = read();
    [after[0] - before[0], after[1] - before[1]]
}

fn tell([sent, unanswered]: [u64; 2], row: &mut Row) {
    row.insert("unknown".into(), json!(unanswered));
    let operations = row.get("ops").and_then(serde_json::Value::as_u64).unwrap_or(0);
    if operations > 0 {
        let per_operation = float(sent) / float(operations);
        row.insert("round_trips_per_op".into(), json!(per_operation));
    }
    if sent > 0 {
        row.insert("unknown_share".into(), json!(float(unanswered) / float(sent)));
    }
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
