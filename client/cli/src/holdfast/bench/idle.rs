//! W4: locks that are held, first without and then with a waiter each. What does waiting cost?

use std::time::Duration;

use holdfast::{Client, Guard};
use serde_json::json;

use super::Plan;
use super::row::{self, Row, float};
use super::scene::Scene;
use crate::failure::Failure;

/// Time for the store's work after many grants, such as a snapshot, before memory is read.
const SETTLE: Duration = Duration::from_secs(2);
/// How long all waiters may take to enter their queues.
const QUEUE_LIMIT: Duration = Duration::from_secs(30);

/// Measures; every waiter is in its queue before the second window begins.
pub(super) async fn measure(plan: &Plan, scene: &Scene) -> Result<Row, Failure> {
    let names = scene.names();
    let names: Vec<_> = (0..plan.clients).map(|lock| format!("{names}{lock}")).collect();
    let holder = scene.sessions(plan, 1).await?;
    let held = hold_all(&holder, &names).await?;
    let waiting_sessions = scene.sessions(plan, plan.sessions).await?;
    scene.runtime.sleep(SETTLE).await;
    let probe = scene.probe();
    let rss_before = probe.servers_rss()?;
    let mut row = Row::new();
    tell_window(plan, scene, "_base", &mut row).await?;
    queue_all(scene, &waiting_sessions, &names).await?;
    tell_window(plan, scene, "", &mut row).await?;
    let rss = probe.servers_rss()?;
    row::tell_rss(rss, &mut row);
    if let Some((before, after)) = rss_before.zip(rss) {
        let grown = float(after) - float(before);
        let waiters = float(u64::try_from(names.len()).unwrap_or(u64::MAX));
        row.insert("server_kb_per_waiter".into(), json!(grown / 1_024.0 / waiters));
    }
    let lost = held.iter().filter(|guard| !guard.is_safe()).count();
    row.insert("ops".into(), json!(names.len()));
    row.insert("errors".into(), json!(lost));
    end(holder.iter().chain(&waiting_sessions)).await;
    Ok(row)
}

async fn hold_all(holder: &[Client], names: &[String]) -> Result<Vec<Guard>, Failure> {
    let acquires = holder.iter().flat_map(|holder| names.iter().map(|name| holder.lock(name)));
    let acquires = acquires.map(|acquire| acquire.wait(QUEUE_LIMIT).into_future());
    Ok(futures_util::future::try_join_all(acquires).await?)
}

/// Starts a waiter for each lock, and returns once each of them has a place in its queue.
async fn queue_all(scene: &Scene, sessions: &[Client], names: &[String]) -> Result<(), Failure> {
    let waiters = names.iter().zip(sessions.iter().cycle());
    let mut places: Vec<_> = waiters.map(|(name, session)| session.lock(name).enqueue()).collect();
    let all = async {
        for place in &mut places {
            let _ = place.next().await;
        }
    };
    scene.runtime.timeout(QUEUE_LIMIT, all).await.map_err(|_| {
        let message = format!("{} locks have no waiter within {QUEUE_LIMIT:?}", names.len());
        Failure::own("queueing", message)
    })?;
    for place in places {
        scene.runtime.spawn("bench-waiter", async move { drop(place.await) }).detach();
    }
    Ok(())
}

/// Adds the cost of one window, under keys that end in `suffix`.
async fn tell_window(
    plan: &Plan,
    scene: &Scene,
    suffix: &str,
    row: &mut Row,
) -> Result<(), Failure> {
    let probe = scene.probe();
    let before = probe.read()?;
    scene.runtime.sleep(plan.window).await;
    let cost = probe.read()?.since(&before);
    row::tell_cost(&cost, suffix, row);
    let per_second = float(cost.packets) / cost.seconds;
    row.insert(format!("lo_packets_per_s{suffix}"), json!(per_second));
    Ok(())
}

async fn end(sessions: impl Iterator<Item = &Client>) {
    for session in sessions {
        // The measurement is over, and a session that is not closed expires.
        let _ = session.close().await;
    }
}
