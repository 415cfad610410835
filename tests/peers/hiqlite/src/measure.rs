//! The clients of a measurement.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use hiqlite::Client;
use serde_json::{Map, Value, json};
use tokio::time::{sleep, timeout_at};

use crate::member::SECRET;
use crate::{Given, Outcome};

const CONNECTIONS: u64 = 8;
const WARM_UP: Duration = Duration::from_secs(2);
/// How long clients may take to come to an end after the window.
const PATIENCE: Duration = Duration::from_secs(5);

struct Run {
    begun: Instant,
    from: Instant,
    until: Instant,
    shared: bool,
    name: String,
    /// When the lock was last released, in W3: nanoseconds since the run began, 0 for never.
    released: AtomicU64,
}

#[derive(Default)]
struct Tally {
    acquires: Vec<u64>,
    hand_overs: Vec<u64>,
    grants: u64,
    errors: u64,
}

/// Lets every client acquire and release, over and over: one lock for all, or one for each.
pub async fn run(given: &Given) -> Outcome<Value> {
    let (clients, secs, pids) = (given.number("n")?, given.number("secs")?, given.text("pids")?);
    let endpoints = given.list("endpoints")?;
    let mut connections = Vec::new();
    for _ in 0..clients.min(CONNECTIONS) {
        let secret = SECRET.into();
        connections.push(Client::remote(endpoints.clone(), false, false, secret, false, None).await?);
    }
    let begun = Instant::now();
    let from = begun + WARM_UP;
    let run = Arc::new(Run {
        begun,
        from,
        until: from + Duration::from_secs(secs),
        shared: given.text("workload")? == "W3",
        name: format!("b/{}/k", std::process::id()),
        released: AtomicU64::new(0),
    });
    let tasks: Vec<_> = (0..clients)
        .zip(connections.iter().cycle())
        .map(|(client, connection)| {
            let (run, connection) = (run.clone(), connection.clone());
            tokio::spawn(async move { run.client(client, &connection).await })
        })
        .collect();
    sleep(run.from.saturating_duration_since(Instant::now())).await;
    let before = (cpu(pids), cpu("self"), loopback_packets());
    sleep(run.until.saturating_duration_since(Instant::now())).await;
    let (servers, own) = (cpu(pids) - before.0, cpu("self") - before.1);
    let packets = loopback_packets() - before.2;
    let mut tallies = Vec::new();
    for task in tasks {
        tallies.push(task.await?);
    }
    let mut row = sum(tallies, secs);
    row.insert("server_cpu_s".into(), json!(servers));
    row.insert("client_cpu_s".into(), json!(own));
    if let Some(grants) = row["ops"].as_f64().filter(|grants| *grants > 0.0) {
        row.insert("server_cpu_s_per_kop".into(), json!(servers / grants * 1e3));
        row.insert("lo_packets_per_op".into(), json!(packets as f64 / grants));
    }
    Ok(Value::Object(row))
}

impl Run {
    async fn client(&self, client: u64, connection: &Client) -> Tally {
        let mut tally = Tally::default();
        while Instant::now() < self.until {
            self.once(client, connection, &mut tally).await;
        }
        tally
    }

    async fn once(&self, client: u64, connection: &Client, tally: &mut Tally) {
        let name = if self.shared { self.name.clone() } else { format!("{}{client}", self.name) };
        let asked = Instant::now();
        let Ok(Ok(lock)) = timeout_at((self.until + PATIENCE).into(), connection.lock(name)).await
        else {
            // What is cut off after the window is no error.
            if Instant::now() < self.until {
                tally.errors += 1;
                sleep(Duration::from_millis(5)).await;
            }
            return;
        };
        let granted = Instant::now();
        let last = self.released.swap(self.since_begun(Instant::now()), SeqCst);
        // The library sends the release in the background; there is nothing to wait for.
        drop(lock);
        if granted < self.from || granted >= self.until {
            return;
        }
        tally.grants += 1;
        tally.acquires.push(nanos(granted - asked));
        if self.shared && last != 0 {
            tally.hand_overs.push(self.since_begun(granted).saturating_sub(last));
        }
    }

    fn since_begun(&self, instant: Instant) -> u64 {
        nanos(instant - self.begun)
    }
}

fn nanos(length: Duration) -> u64 {
    length.as_nanos() as u64
}

fn sum(tallies: Vec<Tally>, secs: u64) -> Map<String, Value> {
    let clients = tallies.len() as f64;
    let (mut acquires, mut hand_overs) = (Vec::new(), Vec::new());
    let (mut grants, mut errors, mut squares) = (0, 0, 0);
    for tally in tallies {
        acquires.extend(tally.acquires);
        hand_overs.extend(tally.hand_overs);
        grants += tally.grants;
        errors += tally.errors;
        squares += tally.grants * tally.grants;
    }
    let mut row = Map::new();
    row.insert("ops".into(), json!(grants));
    row.insert("errors".into(), json!(errors));
    row.insert("ops_per_s".into(), json!(grants as f64 / secs as f64));
    percentiles(&mut row, "acq", acquires);
    percentiles(&mut row, "ho", hand_overs);
    if squares > 0 {
        let total = grants as f64;
        row.insert("jain".into(), json!(total * total / (clients * squares as f64)));
    }
    row
}

fn percentiles(row: &mut Map<String, Value>, name: &str, mut values: Vec<u64>) {
    values.sort_unstable();
    for (key, part) in [("p50", 0.5), ("p99", 0.99)] {
        let at = ((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1));
        if let Some(value) = values.get(at) {
            row.insert(format!("{name}_{key}_us"), json!(*value as f64 / 1e3));
        }
    }
}

/// User and system time of processes, seconds.
fn cpu(pids: &str) -> f64 {
    let of_one = |pid: &str| -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let words: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = |at: usize| words.get(at)?.parse::<f64>().ok();
        Some((ticks(11)? + ticks(12)?) / 100.0)
    };
    pids.split(',').filter_map(of_one).sum()
}

/// Packets over lo in this network namespace.
fn loopback_packets() -> u64 {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}
