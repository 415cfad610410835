//! How long `holdfast-migrate import` takes for many leases, and in how much memory: `holdfast-migrate-million`.
//!
//! One Cassandra node with so many rows of two hours, one server, nothing else. The last line says seconds, rows a
//! second and the peaks of memory; it ends with 0 only if every row came in, within the limits.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people, which cannot go on if its nodes do not start"
)]

use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use futures_util::{StreamExt, stream};
use holdfast_recipes::{Contact, Schema};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Nodes;
use holdfast_tests::cluster::{Cluster, Setup, binary, end_with_parent};
use nix::unistd::Pid;
use serde_json::Value;

const KEYSPACE: &str = "million";
/// What is left of each row, seconds: longer than any run.
const LEASE_S: i32 = 7_200;
/// Rows on their way to Cassandra at once.
const LOADED_AT_ONCE: usize = 256;
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(50);

/// Many leases come in: how fast, and in how much memory?
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// How many leases there are.
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// How many owners share them; as many as rows: the worst case, for each owner is a session of its own.
    #[arg(long)]
    owners: Option<u64>,
    /// The longest import that passes, seconds.
    #[arg(long, default_value_t = 60.0)]
    within: f64,
    /// The most memory that passes, of holdfast-migrate, megabytes.
    #[arg(long, default_value_t = 300)]
    memory: u64,
    /// After so many seconds it is ended.
    #[arg(long, default_value_t = 600)]
    give_up: u64,
    /// Further arguments of `holdfast-migrate import`, after `--`.
    #[arg(last = true)]
    import: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { rows, owners, within, memory, give_up, import } = Arguments::parse();
    let nodes = Nodes::start_one().await;
    load(&nodes, rows, owners.unwrap_or(rows)).await;
    let setup = Setup::nodes(1).cluster("max_sessions", rows.max(100_000) + 1);
    // A session for each owner, with its one row.
    let setup = setup.cluster("max_table_bytes", (rows * 2_048).max(1 << 30));
    let cluster = Cluster::start(&setup).await;
    cluster.leader().await;
    let import = Import { line: import, give_up: Duration::from_secs(give_up) };
    let server_before_mb = peak_mb(cluster.pid(0)).unwrap_or(0);
    let Measured { sum, took, peak_mb: own_mb } = import.run(&nodes, &cluster).await;
    let server_mb = peak_mb(cluster.pid(0)).unwrap_or(0);
    println!("{sum}");
    println!("holdfastd: {server_before_mb} MB before the import, {server_mb} MB at its peak");
    let seconds = took.as_secs_f64();
    // Shown to a person.
    #[expect(clippy::cast_precision_loss, reason = "shown with no decimals")]
    let rate = rows as f64 / seconds;
    println!("{rows} rows in {seconds:.1} s, {rate:.0} rows/s, holdfast-migrate {own_mb} MB");
    let whole = sum["imported"] == rows && sum["refused"] == 0;
    let passes = whole && seconds <= within && own_mb <= memory;
    if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Leases of two hours in a table of one replica.
async fn load(nodes: &Nodes, rows: u64, owners: u64) {
    let points = nodes.contact_points().await;
    let contact = Contact::new(&points).limit(Duration::from_secs(30));
    Schema::new(KEYSPACE).replicated(1).apply(&contact).await.unwrap();
    let session = nodes.session().await;
    let insert =
        format!("INSERT INTO {KEYSPACE}.leases (name, owner) VALUES (?, ?) USING TTL {LEASE_S}");
    let insert = session.prepare(insert).await.unwrap();
    let clock = Runtime::system().clock;
    let began = clock.now();
    let inserts = stream::iter(0..rows).map(|row| {
        let owner = format!("worker-{}/0123456789abcdef", row % owners);
        session.execute_unpaged(&insert, (format!("orders/{row:09}"), owner))
    });
    let inserted = inserts.buffer_unordered(LOADED_AT_ONCE);
    inserted.for_each(async |inserted| drop(inserted.unwrap())).await;
    let took = clock.now().saturating_since(began);
    println!("{rows} rows of {owners} owners loaded in {:.0} s", took.as_secs_f64());
}

/// One run of `holdfast-migrate import`.
struct Import {
    line: Vec<String>,
    give_up: Duration,
}

struct Measured {
    sum: Value,
    took: Duration,
    peak_mb: u64,
}

impl Import {
    async fn run(&self, nodes: &Nodes, cluster: &Cluster) -> Measured {
        let runtime = Runtime::system();
        let points = nodes.contact_points().await;
        let mut command = Command::new(binary("holdfast-migrate"));
        command
            .args(["--json", "--contact-points", &points, "--keyspace", KEYSPACE, "import"])
            .args(["--from", "lease", "--writers-stopped", "--endpoints", &cluster.endpoints()])
            .args(&self.line)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        end_with_parent(&mut command);
        let began = runtime.clock.now();
        let mut child = command.spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let mut peak = 0;
        while child.try_wait().unwrap().is_none() {
            peak = peak_mb(pid).unwrap_or(0).max(peak);
            if runtime.clock.now().saturating_since(began) > self.give_up {
                child.kill().unwrap();
            }
            runtime.sleep(LOOK).await;
        }
        let took = runtime.clock.now().saturating_since(began);
        let output = child.wait_with_output().unwrap();
        let sum = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        Measured { sum, took, peak_mb: peak }
    }
}

/// The most memory that a process had at once, megabytes; `None` once it has ended.
fn peak_mb(pid: Pid) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes / 1_000)
}
