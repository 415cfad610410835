//! W5: kills a process that holds a lock. How long until the waiter has it?

use std::process::{Command, Stdio};
use std::time::Duration;

use holdfast_runtime::Instant;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::Plan;
use super::row::{self, Row};
use super::scene::Scene;
use crate::args::Global;
use crate::failure::Failure;
use crate::{show, signals};

/// The time limit of each step that does not depend on the TTL.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// The holder is killed this long after the waiter queued, plus a random part of as much again:
/// somewhere between two of its keepalives.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// The prefix of the holder's lines, before an instant of the machine's boot clock in nanoseconds.
const SAFE_UNTIL: &str = "safe-until ";
/// The difference between a safe deadline and the last renewal plus TTL: an allowance, which the
/// holder sets, and a constant (`holdfast::Builder::max_clock_drift`).
const ALLOWANCE: f64 = 0.1;
const SAFETY: Duration = Duration::from_millis(20);

/// Kills one holder after the other.
pub(super) async fn measure(plan: &Plan, scene: &Scene) -> Result<Row, Failure> {
    let probe = scene.probe();
    let before = probe.read()?;
    let (mut after_kill, mut after_lease) = (Vec::new(), Vec::new());
    for _ in 0..plan.trials {
        let trial = one(plan, scene).await?;
        after_kill.push(trial.after_kill.as_secs_f64());
        after_lease.push(trial.after_lease);
    }
    let cost = probe.read()?.since(&before);
    let mut row = Row::new();
    row.insert("ops".into(), json!(plan.trials));
    row.insert("errors".into(), json!(0));
    row::tell_cost(&cost, "", &mut row);
    row::tell_rss(probe.servers_rss()?, &mut row);
    tell(plan, after_kill, after_lease, &mut row);
    Ok(row)
}

fn tell(plan: &Plan, mut after_kill: Vec<f64>, mut after_lease: Vec<f64>, row: &mut Row) {
    after_kill.sort_by(f64::total_cmp);
    after_lease.sort_by(f64::total_cmp);
    let ttl = plan.ttl.as_secs_f64();
    let median = after_kill.get(after_kill.len() / 2).copied();
    if let Some((median, longest)) = median.zip(after_kill.last().copied()) {
        row.insert("takeover_median_s".into(), json!(median));
        row.insert("takeover_median_minus_ttl_s".into(), json!(median - ttl));
        row.insert("takeover_max_minus_ttl_s".into(), json!(longest - ttl));
    }
    row.insert("takeover_max_after_lease_s".into(), json!(after_lease.last()));
    row.insert("takeover_after_lease_s".into(), json!(after_lease));
    row.insert("takeover_s".into(), json!(after_kill));
}

struct Trial {
    after_kill: Duration,
    /// From the last acknowledged renewal plus TTL to the grant, seconds.
    after_lease: f64,
}

async fn one(plan: &Plan, scene: &Scene) -> Result<Trial, Failure> {
    let name = format!("{}k", scene.names());
    let mut holder = Holder::start(plan, scene, &name).await?;
    let sessions = scene.sessions(plan, plan.sessions).await?;
    let waiter = sessions.first().ok_or_else(|| Failure::own("waiting", "there is no session"))?;
    let mut waiting = waiter.lock(&name).wait(plan.ttl * 4 + STEP_LIMIT).enqueue();
    let clock = &scene.runtime.clock;
    if waiting.next().await.is_none() {
        drop(waiting.await?);
        return Err(Failure::own("W5", "the lock was granted while its holder lived"));
    }
    let thousandths = u32::try_from(scene.runtime.rng.next_u64() % 1_000).unwrap_or(0);
    scene.runtime.sleep(KILL_AFTER + KILL_AFTER * thousandths / 1_000).await;
    let killed = clock.now();
    let lease_end = holder.kill(plan.ttl).await?;
    let guard = waiting.await?;
    let granted = clock.now();
    drop(guard);
    let _ = waiter.close().await;
    Ok(Trial {
        after_kill: granted.saturating_since(killed),
        after_lease: granted.since_origin().as_secs_f64() - lease_end.since_origin().as_secs_f64(),
    })
}

/// The process that will be killed.
struct Holder {
    process: Child,
    said: Said,
    /// The safe deadline that it printed last; nanoseconds of the boot clock, which all processes
    /// of a machine share.
    safe_until: u64,
}

type Said = Lines<BufReader<ChildStdout>>;

impl Holder {
    /// Starts the process, and waits until it holds the lock.
    async fn start(plan: &Plan, scene: &Scene, name: &str) -> Result<Self, Failure> {
        let failed = |error| Failure::own("starting the holder", error);
        let own = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(own);
        command.args(["bench-holder", name, "--endpoints", &scene.endpoints]);
        for (variable, value) in scene.tls.variables() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        command.arg("--ttl").arg(format!("{}ms", plan.ttl.as_millis()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        signals::as_child(&mut command);
        let mut command = tokio::process::Command::from(command);
        let mut process = command.kill_on_drop(true).spawn().map_err(failed)?;
        let out =
            process.stdout.take().ok_or_else(|| Failure::own("the holder", "has no output"))?;
        let said = BufReader::new(out).lines();
        let mut holder = Self { process, said, safe_until: 0 };
        let held = scene.runtime.timeout(STEP_LIMIT, holder.hear()).await;
        match held {
            Ok(Ok(true)) => Ok(holder),
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(false)) | Err(_) => Err(Failure::own("the holder", "did not get the lock")),
        }
    }

    /// Reads one line; false at the end of its output.
    async fn hear(&mut self) -> Result<bool, Failure> {
        let line = self.said.next_line().await;
        let line = line.map_err(|error| Failure::own("listening to the holder", error))?;
        let Some(line) = line else { return Ok(false) };
        let instant = line.strip_prefix(SAFE_UNTIL).and_then(|instant| instant.parse().ok());
        self.safe_until = instant.ok_or_else(|| Failure::own("listening to the holder", &line))?;
        Ok(true)
    }

    /// Kills it with SIGKILL. Returns the end of its lease: the TTL after it sent its last
    /// acknowledged renewal.
    async fn kill(&mut self, ttl: Duration) -> Result<Instant, Failure> {
        let failed = |error| Failure::own("killing the holder", error);
        self.process.kill().await.map_err(failed)?;
        // Its output from before its death is in the pipe.
        while self.hear().await? {}
        let safe_until = Duration::from_nanos(self.safe_until);
        Ok(Instant::from_origin(safe_until + ttl.mul_f64(ALLOWANCE) + SAFETY))
    }
}

/// Runs in the process that is killed: acquires the lock and prints each safe deadline.
pub(super) async fn hold(global: &Global, name: &str, ttl: Duration) -> Result<(), Failure> {
    let builder = global.builder()?.ttl(ttl).max_clock_drift(ALLOWANCE).label("bench holder");
    let client = builder.connect().await?;
    let guard = client.lock(name).await?;
    let mut states = guard.states();
    let mut now = states.now();
    while let Some(safe_until) = now.safe_until() {
        show::line(format!("{SAFE_UNTIL}{}", safe_until.since_origin().as_nanos()));
        now = states.changed().await;
    }
    Ok(())
}
