//! W1, W2 and W3: acquire and release, over and over, in any store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast::{Client, Guard};
#[cfg(feature = "cassandra")]
use holdfast_recipes::{RemoteGuard, RemoteLocker, Wait};
use holdfast_runtime::{Clock, Instant, Runtime};
use serde_json::json;
use tokio::sync::mpsc;

use super::probe::{Cost, Probe};
use super::row::{self, Row, float};
use super::scene::Scene;
use super::score::{Pair, Score};
use super::{Plan, WARM_UP};
use crate::failure::Failure;

/// How long after the window an acquire that began in it may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause after an error, so that a store that refuses everything is not called without pause.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(5);

/// Clients that acquire and release as fast as they can.
pub(super) struct Loops {
    pub(super) runtime: Runtime,
    pub(super) probe: Probe,
    /// Shared by the clients.
    pub(super) stores: Vec<Store>,
    pub(super) clients: usize,
    /// At least one; shared by the clients, if there are fewer.
    pub(super) names: Vec<String>,
}

/// One session at a store.
#[derive(Clone)]
pub(crate) enum Store {
    Native(Client),
    #[cfg(feature = "cassandra")]
    Cassandra(Arc<dyn RemoteLocker>),
}

/// A lock that is held in it.
pub(super) enum Held {
    Native(Guard),
    #[cfg(feature = "cassandra")]
    Cassandra(RemoteGuard),
}

impl Store {
    /// Waits for the lock for at most `limit`.
    pub(super) async fn acquire(&self, name: &str, limit: Duration) -> holdfast::Result<Held> {
        match self {
            Self::Native(client) => client.lock(name).wait(limit).await.map(Held::Native),
            #[cfg(feature = "cassandra")]
            Self::Cassandra(locker) => {
                locker.acquire(name, Wait::AtMost(limit)).await.map(Held::Cassandra)
            }
        }
    }
}

impl Held {
    pub(super) async fn release(self) -> holdfast::Result<()> {
        match self {
            Self::Native(guard) => guard.release().await,
            #[cfg(feature = "cassandra")]
            Self::Cassandra(guard) => guard.release().await,
        }
    }
}

/// The part of the run that is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from: Instant,
    pub(super) until: Instant,
}

impl Window {
    /// A window of this length, after a warm-up that begins now.
    pub(super) fn after_warm_up(length: Duration, clock: &dyn Clock) -> Self {
        let from = clock.now() + WARM_UP;
        Self { from, until: from + length }
    }
}

/// The state that the clients share.
struct Turns {
    runtime: Runtime,
    window: Window,
    names: Vec<String>,
    /// Whether a lock passes from one client to another.
    shared: bool,
    tally: Mutex<Tally>,
}

struct Tally {
    score: Score,
    /// The last hold of each lock.
    last: Vec<Option<Last>>,
}

/// A hold of a lock that clients share.
#[derive(Clone, Copy)]
struct Last {
    client: usize,
    /// When it was granted, shortly before its release.
    granted: Instant,
    /// How many grants of that lock its client has had in a row.
    run: u64,
}

/// Runs the closed loop until the window ends, and returns its figures.
pub(super) async fn measure(loops: &Loops, window: Window) -> Result<Row, Failure> {
    let names = loops.names.clone();
    let score = Score::of_clients(loops.clients);
    let turns = Arc::new(Turns {
        runtime: loops.runtime.clone(),
        window,
        shared: names.len() < loops.clients,
        tally: Mutex::new(Tally { score, last: vec![None; names.len()] }),
        names,
    });
    let all = start(&turns, &loops.stores, loops.clients);
    let cost = cost_of(loops, window).await?;
    wait_for(all).await;
    let rss = loops.probe.servers_rss()?;
    Ok(turns.tell(&cost, rss))
}

/// W1 to W3; `shared`: all clients use one lock.
pub(super) async fn measure_native(
    plan: &Plan,
    scene: &Scene,
    shared: bool,
) -> Result<Row, Failure> {
    let sessions = scene.sessions(plan, plan.sessions).await?;
    let start = scene.names();
    let locks = if shared { 1 } else { plan.clients };
    let loops = Loops {
        runtime: scene.runtime.clone(),
        probe: scene.probe(),
        stores: sessions.iter().cloned().map(Store::Native).collect(),
        clients: plan.clients,
        names: (0..locks).map(|lock| format!("{start}{lock}")).collect(),
    };
    let window = Window::after_warm_up(plan.window, &*scene.runtime.clock);
    let row = measure(&loops, window).await?;
    for session in &sessions {
        // The measurement is over, and a session that is not closed expires.
        let _ = session.close().await;
    }
    Ok(row)
}

/// Starts the clients; the receiver closes when the last of them is done.
fn start(turns: &Arc<Turns>, stores: &[Store], clients: usize) -> mpsc::Receiver<()> {
    let (done, all) = mpsc::channel(1);
    for (client, store) in (0..clients).zip(stores.iter().cycle()) {
        let (own, store, done) = (turns.clone(), store.clone(), done.clone());
        let loops = async move {
            own.take(client, &store).await;
            drop(done);
        };
        turns.runtime.spawn("bench-client", loops).detach();
    }
    all
}

async fn wait_for(mut all: mpsc::Receiver<()>) {
    // Nothing is ever sent; the channel closes.
    while all.recv().await.is_some() {}
}

/// The cost of the window.
async fn cost_of(loops: &Loops, window: Window) -> Result<Cost, Failure> {
    let clock = &loops.runtime.clock;
    clock.sleep_until(window.from).await;
    let before = loops.probe.read()?;
    clock.sleep_until(window.until).await;
    Ok(loops.probe.read()?.since(&before))
}

impl Turns {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one client: the next request follows as soon as its release was acknowledged, until the
    /// window ends.
    async fn take(&self, client: usize, store: &Store) {
        let name = client % self.names.len();
        while self.runtime.clock.now() < self.window.until {
            if let Err(error) = self.take_one(client, store, name).await {
                self.tally().score.failed(&error);
                self.runtime.sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }

    async fn take_one(&self, client: usize, store: &Store, name: usize) -> holdfast::Result<()> {
        let clock = &self.runtime.clock;
        let asked = clock.now();
        let wait = self.window.until.saturating_since(asked) + PATIENCE;
        let guard = store.acquire(&self.names[name], wait).await?;
        let granted = clock.now();
        let handover = self.handed_over(name, client, granted);
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

    /// The time of the hand-over that ended now; the next one begins. Runs count grants in the
    /// window.
    fn handed_over(&self, name: usize, client: usize, granted: Instant) -> Option<Duration> {
        if !self.shared {
            return None;
        }
        let mut tally = self.tally();
        let before = tally.last[name];
        let again = before.filter(|last| last.client == client && last.granted >= self.window.from);
        let run = again.map_or(1, |last| last.run + 1);
        tally.last[name] = Some(Last { client, granted, run });
        if granted >= self.window.from && granted < self.window.until {
            tally.score.ran(run);
        }
        before.map(|last| granted.saturating_since(last.granted))
    }

    fn tell(&self, cost: &Cost, rss: Option<u64>) -> Row {
        let tally = self.tally();
        let mut row = Row::new();
        tally.score.tell(self.window.until.saturating_since(self.window.from), &mut row);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_origin(Duration::from_millis(ms))
    }

    #[test]
    fn a_run_is_of_grants_in_the_window_that_no_other_client_came_between() {
        let score = Score::of_clients(2);
        let turns = Turns {
            runtime: Runtime::system(),
            window: Window { from: at(10), until: at(100) },
            names: vec!["jobs".into()],
            shared: true,
            tally: Mutex::new(Tally { score, last: vec![None] }),
        };
        let grants = [(0, 5), (0, 11), (0, 12), (1, 20), (0, 30), (0, 99), (0, 101)];
        for (client, ms) in grants {
            turns.handed_over(0, client, at(ms));
        }
        let (mut row, pair) = (
            Row::new(),
            Pair { client: 0, acquire: Duration::ZERO, release: Duration::ZERO, handover: None },
        );
        turns.tally().score.count(pair);
        turns.tally().score.tell_fairness(&mut row);

        assert_eq!(row.get("longest_run"), Some(&json!(2)), "11 and 12, or 30 and 99: {row:?}");
    }
}
