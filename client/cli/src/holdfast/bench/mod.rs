//! `holdfast bench`: measures locks, with the workloads and the result row of the peer systems.
//!
//! All workloads are closed loops: a client sends its next request as soon as its release was
//! acknowledged. The clients are tasks on one thread, and share sessions. Only the window after the
//! warm-up counts; the row also shows the machine's other load in that window.
//!
//! # Invariants
//!
//! - An operation counts only once its release was acknowledged: no figure contains work that the
//!   store could still undo.
//! - A figure that does not apply is left out of the row, never 0.

#[cfg(feature = "cassandra")]
pub(crate) mod cassandra;
mod idle;
mod pairs;
mod probe;
mod row;
mod scene;
mod score;
mod takeover;

use std::time::Duration;

use tokio::sync::mpsc;

use crate::args::{BenchArgs, Global, Workload};
use crate::failure::Failure;
use crate::signals;
use holdfast_cli::block_on;
use row::Row;
use scene::Scene;
pub(crate) use score::jain;

/// The time before the measured window, in which connections, caches and the leader warm up.
const WARM_UP: Duration = Duration::from_secs(2);
/// TTL of the sessions unless --ttl is given; W5 waits for it, so it has a shorter one.
const TTL: Duration = Duration::from_secs(10);
const TTL_KILLED_HOLDER: Duration = Duration::from_secs(5);

/// The checked arguments.
#[derive(Clone, Debug)]
struct Plan {
    workload: Workload,
    clients: usize,
    sessions: usize,
    share_connections: bool,
    window: Duration,
    trials: u32,
    ttl: Duration,
    run: u32,
}

impl Plan {
    fn of(args: &BenchArgs) -> Result<Self, Failure> {
        let (default, alone, ttl) = match args.workload {
            Workload::OneClient => (1, true, TTL),
            Workload::ManyLocks => (64, false, TTL),
            Workload::OneLock => (10, false, TTL),
            Workload::IdleWaiters => (1_000, false, TTL),
            Workload::KilledHolder => (1, true, TTL_KILLED_HOLDER),
        };
        let clients = args.clients.unwrap_or(default);
        if alone && clients != 1 {
            let message = format!("W1 and W5 have one client, not {clients}: leave --clients out");
            return Err(Failure::own("--clients", message));
        }
        Ok(Self {
            workload: args.workload,
            clients: usize::try_from(clients).unwrap_or(usize::MAX),
            sessions: usize::try_from(args.sessions.min(clients)).unwrap_or(usize::MAX),
            share_connections: args.share_connections,
            window: Duration::from_secs(args.secs.into()),
            trials: args.trials,
            ttl: args.ttl.unwrap_or(ttl),
            run: args.run,
        })
    }
}

/// Measures, and prints the result.
pub(crate) fn run(global: &Global, args: &BenchArgs) -> Result<u8, Failure> {
    let plan = Plan::of(args)?;
    let (heard, mut stopped) = mpsc::channel(1);
    signals::listen(&signals::ENDS, move |signal| heard.blocking_send(signal).is_ok())?;
    let scene = Scene::set(global, args)?;
    let measured = block_on(async {
        holdfast_runtime::select! {
            signal = stopped.recv() => {
                let code = signal.map_or(u8::MAX, signals::code_of);
                Err(Failure::new(code, "stopped by a signal"))
            }
            row = measure(&plan, &scene) => row,
        }
    })?;
    let row = scene.clear(measured)?;
    row::print(global, row);
    Ok(0)
}

async fn measure(plan: &Plan, scene: &Scene) -> Result<Row, Failure> {
    let mut row = row::header(plan, scene).await?;
    let figures = match plan.workload {
        Workload::OneClient | Workload::ManyLocks => {
            pairs::measure_native(plan, scene, false).await?
        }
        Workload::OneLock => pairs::measure_native(plan, scene, true).await?,
        Workload::IdleWaiters => idle::measure(plan, scene).await?,
        Workload::KilledHolder => takeover::measure(plan, scene).await?,
    };
    row.extend(figures);
    Ok(row)
}

/// The process that W5 kills: acquires the lock and prints its safe deadlines.
pub(crate) fn hold(global: &Global, name: &str, ttl: Duration) -> Result<u8, Failure> {
    block_on(takeover::hold(global, name, ttl))??;
    Ok(crate::failure::LOST)
}
