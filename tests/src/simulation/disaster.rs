//! A disaster after a run: all nodes are lost, and another cluster is restored from a backup that was taken in the
//! middle of the faults or at the end (DESIGN §15).
//!
//! It begins when the run has come to rest and its own history is complete: what a disaster takes away on purpose is
//! no violation there. So the rules of a restore are checked here:
//!
//! - I6: nobody is granted what a client of the lost cluster still believes to hold;
//! - I3: every token is larger than all before, whichever backup is restored;
//! - a value is that of the backup, and suspect;
//! - I31: once the wait is over, every name of the run is served.

use std::time::Duration;

use futures_util::FutureExt as _;
use holdfast::{Client, Error, FencingToken, Guard, RefusalReason};
use holdfast_core::{Backup, BackupOrigin, Label, LockTable, RestorePlan};
use holdfast_runtime::Runtime;
use holdfast_server::consensus::Consensus as _;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::stage::{Stage, settings_of_one};
use crate::draw::Draw;
use crate::sim::{Crash, Settings, World};

/// In one run of so many.
const ONE_IN: u64 = 10;
/// The lock whose holder outlives its cluster.
const HELD: &str = "disaster/held";
/// The lease of the clients here.
const TTL: Duration = Duration::from_secs(4);
/// The longest lease that is allowed in a run with a disaster: longer than that of any client.
pub(super) const TTL_MAX: Duration = Duration::from_mins(1);
/// 2026-11-24, and something: the wall clock of a restore. Restores are apart by true time.
const NOW_MS: u64 = 1_795_500_000_000;
/// Clients from this number on are those of a disaster.
const FIRST_CLIENT: u64 = 2_200_000;
/// How long a backup may take while no fault is active.
const BACKUP_WITHIN: Duration = Duration::from_secs(20);
/// How long the restored cluster may take to lead, and a call to end beside its wait.
const WITHIN: Duration = Duration::from_mins(1);

/// A disaster, as it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisasterPlan {
    /// When the first backup is taken, milliseconds after the first leader.
    pub backup_at_ms: u64,
    /// The nodes lose their power; else they are killed.
    pub power: bool,
    /// The restored cluster begins with the first backup, not with the last.
    pub older: bool,
    /// Its only node is killed in the middle of its wait, this many thousandths into it.
    pub restarts_at: Option<u64>,
    /// It is lost too, and the other of the two backups is restored.
    pub again: bool,
}

impl DisasterPlan {
    /// That of a run of `length_ms`, if it has one.
    pub(super) fn draw(draw: &mut Draw, length_ms: u64) -> Option<Self> {
        (draw.below(ONE_IN) == 0).then(|| Self {
            backup_at_ms: draw.below(length_ms),
            power: draw.below(2) == 0,
            older: draw.below(2) == 0,
            restarts_at: (draw.below(3) == 0).then(|| draw.below(1_000)),
            again: draw.below(3) == 0,
        })
    }
}

/// What a client has of a cluster that is about to be lost.
struct Held {
    /// Kept, so that its session goes on.
    _client: Client,
    guard: Guard,
    value: &'static [u8],
    /// The last token of that cluster.
    last: FencingToken,
}

impl<'a> Stage<'a> {
    /// Takes the first backup, as soon as a leader with a quorum answers.
    pub(super) async fn back_up_early(&self) {
        let Some(plan) = self.plan.disaster else { return };
        self.runtime.sleep(Duration::from_millis(plan.backup_at_ms)).await;
        let left = self.plan.length().saturating_sub(Duration::from_millis(plan.backup_at_ms));
        let taken = async {
            loop {
                if let Some(backup) = back_up(&self.world).await {
                    return backup;
                }
                self.runtime.sleep(Duration::from_millis(100)).await;
            }
        };
        if let Ok(backup) = self.runtime.timeout(left, taken).await {
            self.backups().push(backup);
        }
    }

    /// Loses the cluster of the run, and restores another, if the run has a disaster.
    pub(super) async fn lose_everything(&self) {
        let Some(plan) = self.plan.disaster else { return };
        if self.has_gone_wrong() {
            return;
        }
        // Nodes of another cluster come to the same addresses, and vote in the same terms.
        self.close_probes();
        let done = self.lose_and_restore(plan).await;
        match done {
            Ok(()) => self.counts().disasters += 1,
            Err(wrong) => self.wrong(wrong),
        }
    }

    async fn lose_and_restore(&self, plan: DisasterPlan) -> Result<(), String> {
        let held = hold(&self.world, FIRST_CLIENT).await?;
        let late = self.runtime.timeout(BACKUP_WITHIN, back_up(&self.world)).await;
        let late = late.ok().flatten().ok_or("I31: no backup of a healed cluster")?;
        let held = grant_more(&self.world, held).await?;
        self.take_some_numbers(&self.world, FIRST_CLIENT + 60).await?;
        let early = self.backups().first().cloned();
        let mut order = vec![(late, held.value)];
        if let Some(early) = early {
            // There the lock has no value.
            order.insert(usize::from(!plan.older), (early, b""));
        }
        order.truncate(if plan.again { 2 } else { 1 });
        if plan.power {
            self.world.power_cut();
        } else {
            lose(&self.world, Crash::Process);
        }
        let mut held = held;
        // A world that is dropped closes the network.
        let mut restored = Vec::new();
        for (number, (backup, value)) in (1..).zip(order) {
            if let Some(before) = restored.last() {
                lose(before, Crash::Power);
            }
            let world = self.world.beside(settings_after(self.plan));
            let held_before = held;
            held = self.restore(&world, (number, &backup, value), held_before, plan).await?;
            restored.push(world);
        }
        Ok(())
    }

    /// Restores a cluster of one node, and holds the lock there as soon as it is granted.
    async fn restore(
        &self,
        world: &World<'a>,
        (number, backup, value): (u64, &[u8], &'static [u8]),
        old: Held,
        plan: DisasterPlan,
    ) -> Result<Held, String> {
        let (_, table) = Backup::read_from(&mut &*backup)
            .map_err(|error| format!("I19: a backup that was taken is not whole: {error}"))?;
        let elapsed = self.runtime.clock.wall_ms();
        let plan_of_restore =
            RestorePlan { now_ms: NOW_MS + elapsed, epoch: None, ttl_max_ms: 1, now: false };
        let restored = table.restored(&plan_of_restore);
        let restored = restored.map_err(|error| format!("I3: it is not restored: {error}"))?;
        let wait = Duration::from_millis(restored.grants_after_ms().unwrap_or(0));
        world.restore_node(1, [number.to_le_bytes()[0]; 16], &restored).await?;
        start(world).await?;
        // The backup may be of an instant at which a group was not allowed to acquire.
        self.allow_all(world).await;
        self.thaw_all(world).await;
        let client = FIRST_CLIENT + number;
        let granted = world.connect(client, TTL).await.map_err(|error| error.to_string())?;
        let asks = take(world, (client, granted), old, value, self.runtime.clone()).boxed_local();
        let restarts = async {
            if let Some(at) = plan.restarts_at {
                self.runtime.sleep(wait * u32::try_from(at).unwrap_or(0) / 1_000).await;
                world.crash(1, Crash::Process);
                start(world).await?;
            }
            std::future::pending::<Result<Held, String>>().await
        };
        let within = self.runtime.timeout(3 * wait + WITHIN, async {
            holdfast_runtime::select! {
                held = asks => held,
                wrong = restarts => wrong,
            }
        });
        let held =
            within.await.map_err(|_| "I31: a restored cluster grants nothing".to_owned())??;
        let held = grant_more(world, held).await?;
        self.take_some_numbers(world, FIRST_CLIENT + 60 + number).await?;
        self.serves_the_names_of_the_run(world, client + 100).await?;
        Ok(held)
    }

    async fn serves_the_names_of_the_run(
        &self,
        world: &World<'a>,
        client: u64,
    ) -> Result<(), String> {
        let connected = world.connect(client, TTL).await.map_err(|error| error.to_string())?;
        let names = self.plan.names;
        let visit = async move {
            for name in (0..names).map(|number| format!("traffic/{number}")) {
                let guard = connected.lock(name).wait(WITHIN).await?;
                guard.release().await?;
            }
            connected.close().await
        };
        match world.as_client(client, visit).await {
            Some(Ok(())) => Ok(()),
            other => Err(format!("I31: a restored cluster does not serve every name: {other:?}")),
        }
    }
}

/// One node, without what a run limits or lets fall back.
fn settings_after(plan: &Plan) -> Settings {
    Settings { fallback: Vec::new(), ..settings_of_one(plan) }
}

/// A client that waits for the lock of a client of the lost cluster.
async fn take(
    world: &World<'_>,
    (number, client): (u64, Client),
    old: Held,
    value: &'static [u8],
    runtime: Runtime,
) -> Result<Held, String> {
    let taken = world.as_client(number, async move {
        let guard = client.lock(HELD).await.map_err(|error| format!("I31: {error}"))?;
        if old.guard.is_safe() {
            return Err("I6: a lock is granted that a client of the lost cluster believes to hold"
                .to_owned());
        }
        let (token, last) = (guard.token(), old.last);
        if token <= last {
            return Err(format!("I3: token {token} after {last}"));
        }
        let found = guard.value().map(|found| (found.bytes.to_vec(), found.is_suspect));
        let expected = (!value.is_empty()).then(|| (value.to_vec(), true));
        if found != expected {
            return Err(format!("a restored value is {found:?}, not {expected:?}"));
        }
        let is_back = runtime.timeout(WITHIN, old.guard.release()).await;
        if matches!(is_back, Ok(Ok(()))) {
            return Err("I13: the new cluster took a grant of the lost one back".to_owned());
        }
        let value =
            with_value(&guard, b"of the next").await.map_err(|error| format!("I31: {error}"))?;
        Ok(Held { _client: client, guard, value, last: token })
    });
    taken.await.unwrap_or_else(|| Err("I32: the client of a restored cluster is gone".to_owned()))
}

async fn hold(world: &World<'_>, number: u64) -> Result<Held, String> {
    let client = world.connect(number, TTL).await.map_err(|error| format!("I31: {error}"))?;
    let held = world.as_client(number, async move {
        let guard = client.lock(HELD).wait(WITHIN).await?;
        let value = with_value(&guard, b"of the first").await?;
        let last = guard.token();
        Ok::<_, Error>(Held { _client: client, guard, value, last })
    });
    match held.await {
        Some(held) => held.map_err(|error| format!("I31: {error}")),
        None => Err("I32: the client of a disaster is gone".to_owned()),
    }
}

/// Gives the lock that value, or none where a limit of the run does not allow it.
async fn with_value(guard: &Guard, value: &'static [u8]) -> holdfast::Result<&'static [u8]> {
    match guard.set_value(value).await {
        Ok(()) => Ok(value),
        Err(Error::Refused { reason: RefusalReason::Limit, .. }) => Ok(b""),
        Err(error) => Err(error),
    }
}

/// Grants that no backup knows.
async fn grant_more(world: &World<'_>, held: Held) -> Result<Held, String> {
    let number = FIRST_CLIENT + 50;
    let client = world.connect(number, TTL).await.map_err(|error| format!("I31: {error}"))?;
    let granted = world.as_client(number, async move {
        let mut last = held.last;
        for _ in 0..5 {
            let guard = client.lock("disaster/more").wait(WITHIN).await?;
            last = last.max(guard.token());
            guard.release().await?;
        }
        client.close().await?;
        Ok::<_, Error>(Held { last, ..held })
    });
    match granted.await {
        Some(held) => held.map_err(|error| format!("I31: {error}")),
        None => Err("I32: the client of a disaster is gone".to_owned()),
    }
}

async fn start(world: &World<'_>) -> Result<(), String> {
    let started = world.start_node(1).await;
    started.map_err(|ended| format!("I19: a restored node does not start: {ended:?}"))?;
    let led = world.until_led(WITHIN).await;
    led.map(drop).ok_or_else(|| "I31: a restored node does not lead".to_owned())
}

fn lose(world: &World<'_>, crash: Crash) {
    for id in world.nodes() {
        world.crash(id, crash);
    }
}

/// A backup as its leader gives it; `None`: no leader with a quorum answered.
async fn back_up(world: &World<'_>) -> Option<Vec<u8>> {
    let frozen = world.ask_leader(|replica| async move {
        replica.confirm().await.ok()?;
        let mut frozen = None;
        replica.read(&mut |table: &LockTable, _| frozen = Some(table.freeze()));
        frozen
    });
    let origin = BackupOrigin {
        cluster_id: [1; 16],
        cluster_name: Label::default(),
        written_by: Label::default(),
        taken_ms: 0,
    };
    let mut bytes = Vec::new();
    Backup::new(origin, frozen.await.flatten()?).write_to(&mut bytes).ok()?;
    Some(bytes)
}
