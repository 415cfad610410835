//! The work of one client process of a run: many clients of the real library, each of which records
//! what it asks, which answers it gets and what it believes.
//!
//! The clients of the crowd make every kind of request; a few with a short lease hold for seconds
//! and write to a fenced resource; a watcher checks the reports of its watch. A violation that the
//! watcher finds ends the process, which the run takes for a violation.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast::{ChangeKind, Client, WatchEvent};
use holdfast_runtime::{Runtime, Task};
use tokio::sync::watch;

use crate::draw::Draw;
use crate::history::{ClientId, Recorder};
use crate::resource::write_to;
use crate::traffic::{Held, Mix, Plan, Scribe, Traffic};

/// How many clients of a process belong to the crowd.
const CROWD: u64 = 10;
/// How many hold for long.
const HOLDERS: u64 = 4;
/// How many ids one process takes.
pub const IDS: u64 = CROWD + HOLDERS;
/// How many names the crowd shares.
const NAMES: u64 = 24;
/// How many names the holders share.
const SLOW_NAMES: u64 = 3;
/// The crowd's lease.
const CROWD_TTL: Duration = Duration::from_secs(4);
/// The holders' lease.
const HOLDER_TTL: Duration = Duration::from_secs(2);
/// Longest hold of a holder.
const LONGEST_HOLD_MS: u64 = 3_000;
/// The limit of a waiting call.
const WITHIN: Duration = Duration::from_secs(30);

/// The exit code of a process whose watcher found a violation.
pub const FOUND_A_VIOLATION: i32 = 1;
/// Longest time in which a process finishes after it was asked to.
pub const FINISHES_WITHIN: Duration = Duration::from_mins(1);

/// The arguments of a client process.
#[derive(Clone, Debug)]
pub struct Work {
    /// The addresses of the nodes.
    pub endpoints: String,
    /// The first client's id; [`IDS`] are taken.
    pub first: u64,
    /// The random seed of its draws.
    pub seed: u64,
    /// The address of the fenced resource.
    pub resource: String,
}

/// Every name that the clients of a run ask for.
pub fn names() -> Vec<String> {
    let crowd = (0..NAMES).map(|number| format!("traffic/{number}"));
    crowd.chain((0..SLOW_NAMES).map(slow_name)).collect()
}

/// Whether this name is only ever asked for alone: then the first request in its queue is granted
/// it as soon as it is free.
pub fn is_asked_for_alone(name: &str) -> bool {
    name.starts_with("slow/")
}

/// The lease of the client with this id, if processes begin at multiples of [`IDS`].
pub fn ttl(client: ClientId) -> Duration {
    if client.0 % IDS < CROWD { CROWD_TTL } else { HOLDER_TTL }
}

fn slow_name(number: u64) -> String {
    format!("slow/{number}")
}

/// Works until `stopped` becomes true, then finishes its work and closes its sessions.
pub async fn work(work: &Work, recorder: &Recorder, mut stopped: watch::Receiver<bool>) {
    let watching = watch_everything(&work.endpoints);
    let plan = Plan {
        clients: CROWD,
        first: work.first,
        names: NAMES,
        ttl: CROWD_TTL,
        within: WITHIN,
        seed: work.seed,
        mix: Mix::Everything,
        permits: true,
        head_starts: true,
        floors: true,
        bounds: true,
        ..Plan::default()
    };
    let ids = |from: u64, count: u64| (from..from + count).map(ClientId);
    let crowd = connect(work, ids(work.first, CROWD), CROWD_TTL, recorder, &stopped).await;
    let traffic = Traffic::of(&plan, crowd);
    let holders = ids(work.first + CROWD, HOLDERS);
    let holders = connect(work, holders, HOLDER_TTL, recorder, &stopped).await;
    let holding = (0..).zip(holders).map(|(number, scribe)| {
        let draw = Draw::new(work.seed.wrapping_add(number).wrapping_mul(0x1234_5677));
        Holder { scribe, draw, resource: work.resource.clone() }.work(stopped.clone())
    });
    let holding = futures_util::future::join_all(holding);
    let until_told = async {
        let _ = stopped.wait_for(|stopped| *stopped).await;
        traffic.finish(FINISHES_WITHIN).await;
    };
    tokio::join!(holding, until_told);
    drop(watching);
}

/// Connects one client after the other, however long it takes.
async fn connect(
    work: &Work,
    ids: impl Iterator<Item = ClientId>,
    ttl: Duration,
    recorder: &Recorder,
    stopped: &watch::Receiver<bool>,
) -> Vec<Scribe> {
    let mut connected = Vec::new();
    for id in ids {
        while !*stopped.borrow() {
            let scribe = Scribe::connect(&work.endpoints, ttl, id, recorder.clone()).await;
            if let Ok(scribe) = scribe {
                connected.push(scribe);
                break;
            }
        }
    }
    connected
}

/// A client that holds for long, and writes to the resource meanwhile.
struct Holder {
    scribe: Scribe,
    draw: Draw,
    resource: String,
}

impl Holder {
    async fn work(mut self, stopped: watch::Receiver<bool>) {
        while !*stopped.borrow() {
            let name = slow_name(self.draw.below(SLOW_NAMES));
            match self.scribe.lock(&name, WITHIN).await {
                Ok(held) => self.hold(held, &name).await,
                // A refusal must not become a busy loop.
                Err(_) => self.pause(50).await,
            }
        }
        self.scribe.close().await;
    }

    async fn hold(&mut self, held: Held, name: &str) {
        for _ in 0..=self.draw.below(4) {
            // The resource records its decision.
            let _ = write_to(&self.resource, name, held.token(), self.scribe.id()).await;
            held.keep(Duration::from_millis(self.draw.below(LONGEST_HOLD_MS / 4))).await;
        }
        // Some release without waiting for the answer.
        if self.draw.below(8) == 0 {
            held.drop_guard();
        } else {
            let _ = held.release().await;
        }
    }

    async fn pause(&mut self, longest_ms: u64) {
        let length = Duration::from_millis(1 + self.draw.below(longest_ms));
        Runtime::system().sleep(length).await;
    }
}

/// Watches every lock, for as long as the handle lives. A panic in it ends the process.
fn watch_everything(endpoints: &str) -> Task {
    let endpoints = endpoints.to_owned();
    Runtime::system().spawn("watcher", async move {
        loop {
            let reader = Client::builder().endpoints(endpoints.split(',')).reader().unwrap();
            let mut watch = reader.watch("");
            let mut told = Told::default();
            while let Some(Ok(event)) = watch.next().await {
                if let Err(wrong) = told.take_in(event) {
                    eprintln!("the watcher was told what cannot be: {wrong}");
                    std::process::exit(FOUND_A_VIOLATION);
                }
            }
            // No node served it: try again.
            Runtime::system().sleep(Duration::from_millis(200)).await;
        }
    })
}

/// The reports of a watch since it last began anew.
#[derive(Default)]
struct Told {
    index: u64,
    held: BTreeMap<String, Vec<u64>>,
}

impl Told {
    fn take_in(&mut self, event: WatchEvent) -> Result<(), String> {
        match event {
            WatchEvent::Restarted => *self = Self::default(),
            WatchEvent::Lock(lock) => {
                let tokens = lock.holders.iter().map(|holder| holder.token.get()).collect();
                self.held.insert(lock.name, tokens);
            }
            WatchEvent::Change(change) => {
                if change.index < self.index {
                    return Err(format!("index {} after {}", change.index, self.index));
                }
                self.index = change.index;
                return self.changed(&change.name, &change.what);
            }
            _ => {}
        }
        Ok(())
    }

    fn changed(&mut self, name: &str, what: &ChangeKind) -> Result<(), String> {
        let held = self.held.entry(name.to_owned()).or_default();
        match what {
            ChangeKind::Granted(holder) => {
                let token = holder.token.get();
                if held.contains(&token) {
                    return Err(format!("{name} is granted twice under token {token}"));
                }
                held.push(token);
            }
            ChangeKind::Released(holder) | ChangeKind::Lost(holder, _) => {
                let token = holder.token.get();
                let before = held.len();
                held.retain(|held| *held != token);
                if held.len() == before {
                    return Err(format!("{name} is over for token {token}, which did not hold it"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
