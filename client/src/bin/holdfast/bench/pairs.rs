//! W1, W2 and W3: acquire and release, over and over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast::Client;
use holdfast_seams::{Moment, Seams};
use serde_json::json;
use tokio::sync::mpsc;

use super::probe::Cost;
use super::row::{self, Row, float};
use super::scene::Scene;
use super::score::{Pair, Score};
use super::{Plan, WARM_UP};
use crate::failure::Failure;

/// How long after the window an acquire that began in it may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// After an error, so that a store that refuses everything is not asked without pause.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(5);

/// Runs the closed loop; `shared`: all clients want one lock.
pub(super) async fn measure(plan: &Plan, scene: &Scene, shared: bool) -> Result<Row, Failure> {
    let sessions = scene.sessions(plan, plan.sessions).await?;
    let began = scene.clock().now();
    let window = Window { from: began + WARM_UP, until: began + WARM_UP + plan.window };
    let turns = Arc::new(Turns {
        seams: scene.seams.clone(),
        window,
        shared,
        names: scene.names(),
        tally: Mutex::new(Tally { score: Score::of_clients(plan.clients), left: None }),
    });
    let all = start(&turns, &sessions, plan.clients);
    let cost = cost_of(scene, window).await?;
    wait_for(all).await;
    let rss = scene.probe().servers_rss()?;
    let row = turns.tell(plan.window, &cost, rss);
    for session in &sessions {
        // The measurement is over, and a session that is not closed runs out by itself.
        let _ = session.close().await;
    }
    Ok(row)
}

/// The part of the run that is measured.
#[derive(Clone, Copy, Debug)]
struct Window {
    from: Moment,
    until: Moment,
}

/// What the clients share.
struct Turns {
    seams: Seams,
    window: Window,
    shared: bool,
    names: String,
    tally: Mutex<Tally>,
}

struct Tally {
    score: Score,
    /// When the last holder of the shared lock got it, and was about to release it.
    left: Option<Moment>,
}

/// Starts the clients; the receiver closes when the last of them is done.
fn start(turns: &Arc<Turns>, sessions: &[Client], clients: usize) -> mpsc::Receiver<()> {
    let (done, all) = mpsc::channel(1);
    for (client, session) in (0..clients).zip(sessions.iter().cycle()) {
        let (own, session, done) = (turns.clone(), session.clone(), done.clone());
        let loops = async move {
            own.take(client, &session).await;
            drop(done);
        };
        turns.seams.spawn("bench-client", loops).detach();
    }
    all
}

async fn wait_for(mut all: mpsc::Receiver<()>) {
    // Nobody sends; it closes.
    while all.recv().await.is_some() {}
}

/// What the window costs.
async fn cost_of(scene: &Scene, window: Window) -> Result<Cost, Failure> {
    let probe = scene.probe();
    scene.clock().sleep_until(window.from).await;
    let before = probe.read()?;
    scene.clock().sleep_until(window.until).await;
    Ok(probe.read()?.since(&before))
}

impl Turns {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One client: asks again as soon as its release was acknowledged, until the window ends.
    async fn take(&self, client: usize, session: &Client) {
        let name = if self.shared { self.names.clone() } else { format!("{}{client}", self.names) };
        while self.seams.clock.now() < self.window.until {
            if let Err(error) = self.take_one(client, session, &name).await {
                self.tally().score.failed(&error);
                self.seams.sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }

    async fn take_one(&self, client: usize, session: &Client, name: &str) -> holdfast::Result<()> {
        let clock = &self.seams.clock;
        let asked = clock.now();
        let patience = self.window.until.saturating_since(asked) + PATIENCE;
        let guard = session.lock(name).wait(patience).await?;
        let granted = clock.now();
        let handover = self.handed_over(granted);
        guard.release().await?;
        let released = clock.now();
        if granted >= self.window.until {
            self.tally().score.still_waits(self.window.until.saturating_since(asked));
        } else if granted >= self.window.from {
            self.tally().score.count(Pair {
                client,
                acquire: granted.saturating_since(asked),
                release: released.saturating_since(granted),
                handover,
            });
        }
        Ok(())
    }

    /// How long the hand-over took that ended now; the next one begins.
    fn handed_over(&self, granted: Moment) -> Option<Duration> {
        if !self.shared {
            return None;
        }
        let before = self.tally().left.replace(granted);
        before.map(|left| granted.saturating_since(left))
    }

    fn tell(&self, window: Duration, cost: &Cost, rss: Option<u64>) -> Row {
        let tally = self.tally();
        let mut row = Row::new();
        tally.score.tell(window, &mut row);
        if self.shared {
            tally.score.tell_fairness(&mut row);
        }
        row::tell_cost(cost, "", &mut row);
        row::tell_rss(rss, &mut row);
        let operations = tally.score.operations();
        if operations > 0 {
            let per_operation = float(cost.packets) / float(operations);
            row.insert("lo_packets_per_op".into(), json!(per_operation));
            if let Some(cpu) = cost.servers_cpu {
                let per_thousand = cpu / float(operations) * 1e3;
                row.insert("server_cpu_s_per_kop".into(), json!(per_thousand));
            }
        }
        row
    }
}
