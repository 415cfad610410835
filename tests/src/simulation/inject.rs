//! What each fault does to the world, and how it is mended.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_runtime::Instant;

use super::client::Actor;
use super::fault::{Fault, Shape, Way, Who};
use super::plan::Strike;
use super::scope_stage::FIRST as FIRST_OF_SCOPES;
use super::stage::{Stage, lock, usual};
use crate::sim::{
    Crash, Cuts, Ended, Hold, Host, Link, Part, VirtualDisk, apart, bridge, one_way, ring,
};

/// How long a crash waits for a moment at which a write is not synced.
const SOMETHING_UNSYNCED_WITHIN: Duration = Duration::from_millis(500);
/// How long it waits for a snapshot that is being written.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(3);
/// Largest rate that a clock gets, above or below true time: as in the plan.
const RATE_WITHIN: u64 = 47_000;

impl Stage<'_> {
    /// Waits for its time, injects the fault, and mends what can be mended.
    pub(super) async fn strike(&self, begun: Instant, strike: &Strike) {
        let at = begun + Duration::from_millis(strike.at_ms);
        self.runtime.clock.sleep_until(at).await;
        let lasts = Duration::from_millis(strike.lasts_ms);
        self.note(&format!("{:?} for {lasts:?}", strike.fault));
        if self.strikes(strike.fault, lasts).await.is_some() {
            self.counts().struck(strike.fault.kind());
            self.note(&format!("{:?} is over", strike.fault));
        }
    }

    /// `None` if there was no target.
    #[expect(clippy::too_many_lines, reason = "a table")]
    async fn strikes(&self, fault: Fault, lasts: Duration) -> Option<()> {
        match fault {
            Fault::Kill(who) => self.down(who, Crash::Process, lasts).await,
            Fault::Crash(who) => self.crash(who, lasts).await,
            Fault::PowerCut => self.power_cut(lasts).await,
            Fault::Stop(who) => self.stop_node(who, lasts).await,
            Fault::Pause(who) => self.pause(who, lasts).await,
            Fault::PauseClient(number) => self.pause_client(number, lasts).await,
            Fault::KillClient(number) => self.kill_client(number, lasts).await,
            Fault::Partition(shape) => self.cut(self.cuts_of(shape)?, lasts).await,
            Fault::Loss | Fault::Delay | Fault::Duplication | Fault::SlowLinks => {
                self.links_worsen(fault, lasts).await
            }
            Fault::Break(who) => self.break_connections(who),
            Fault::Silence(number) => {
                let cuts = apart(&[Host::Client(number)], &self.all_nodes());
                self.cut(cuts, lasts).await
            }
            Fault::DeafClient(number) => {
                let cuts = one_way(&self.all_nodes(), &[Host::Client(number)]);
                self.cut(cuts, lasts).await
            }
            Fault::SlowDisk(who) => self.slow_disk(who, lasts).await,
            Fault::StuckDisk(who) => self.stuck_disk(who, lasts).await,
            Fault::FullDisk(who) => self.full_disk(who, lasts).await,
            Fault::Rates => {
                self.rates();
                Some(())
            }
            Fault::WallStep(who) => self.wall_step(who),
            Fault::Damage(who, damage) => self.damage(who, damage, lasts).await,
            Fault::Wipe(who) => self.wipe(who, lasts).await,
            Fault::Grow => self.grow(lasts).await,
            Fault::Shrink(who) => self.shrink_by(who).await,
            Fault::Transfer => self.transfer().await,
            Fault::HoldBack(way) => self.hold_back(way, lasts).await,
            Fault::Retransmission(who) => self.retransmission(who, lasts).await,
            Fault::PartialPartition => self.partial_partition(lasts).await,
            Fault::CrawlingDisk(..)
            | Fault::HungDisk(_)
            | Fault::SlowNode(..)
            | Fault::SlowSnapshots(_)
            | Fault::NoDescriptors(_)
            | Fault::DecodeLimit(..)
            | Fault::NeverReads(_)
            | Fault::LongPause(_)
            | Fault::LongPauseClient(_) => self.lasting(fault, lasts).await,
            Fault::Outage
            | Fault::StoreAway
            | Fault::TablesAway(_)
            | Fault::TablesUnsure { .. }
            | Fault::SlowTables(_)
            | Fault::TablesClock(..)
            | Fault::PauseScopeClient(_)
            | Fault::KillScopeClient(_) => self.strike_scopes(fault, lasts).await,
            Fault::EndSession(_) | Fault::TakeLock(_) | Fault::Forbid(_) => {
                self.operate(fault, lasts).await
            }
            Fault::Freeze(which) => self.freeze(which, lasts).await,
            Fault::SetLimit(which) => self.set_limit(which).await,
        }
    }

    /// Makes all links worse in one way.
    async fn links_worsen(&self, fault: Fault, lasts: Duration) -> Option<()> {
        match fault {
            Fault::Loss => {
                let lost_per_million = self.below(300_000);
                self.air(lasts, |link| link.lost_per_million = lost_per_million).await
            }
            Fault::Delay => {
                let spikes_per_million = self.below(500_000);
                let spike = Duration::from_millis(20 + u64::from(self.below(1_500)));
                self.air(lasts, |link| {
                    (link.spikes_per_million, link.spike) = (spikes_per_million, spike);
                })
                .await
            }
            Fault::Duplication => {
                let twice_per_million = self.below(500_000);
                self.air(lasts, |link| link.twice_per_million = twice_per_million).await
            }
            _ => {
                let bytes_per_second = 2_000 + u64::from(self.below(60_000));
                self.air(lasts, |link| link.bytes_per_second = Some(bytes_per_second)).await
            }
        }
    }

    pub(super) fn below(&self, bound: u64) -> u32 {
        u32::try_from(self.draw().below(bound)).unwrap_or(0)
    }

    /// A running node.
    pub(super) fn pick(&self, who: Who) -> Option<u64> {
        let leader = self.world.leader();
        let running = self.world.running();
        let from: Vec<u64> = match who {
            Who::Leader => return leader,
            Who::Follower => running.into_iter().filter(|id| Some(*id) != leader).collect(),
            Who::Node(_) => running,
        };
        let place = match who {
            Who::Node(place) => place,
            Who::Leader | Who::Follower => self.draw().below(from.len() as u64),
        };
        let place = usize::try_from(place).unwrap_or(0) % from.len().max(1);
        from.get(place).copied()
    }

    async fn down(&self, who: Who, crash: Crash, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        self.world.crash(id, crash);
        self.runtime.sleep(lasts).await;
        self.returns(id).await;
        Some(())
    }

    /// A node that was down comes back; a failure to do so is a violation.
    pub(super) async fn returns(&self, id: u64) {
        // The fault that filled a disk makes it larger again, and the one that closed files opens
        // them again.
        let cannot = lock(&self.starved).contains(&id) || lock(&self.closed).contains(&id);
        if self.has_left(id) || cannot {
            return;
        }
        if let Err(ended) = self.bring_back(id).await {
            // Another fault may hit it while it starts, and brings it back in its turn.
            let is_hit = match &ended {
                Ended::Killed | Ended::Stopped | Ended::Storage(_) => true,
                Ended::Refused(why) => self.lacks_files(id, why),
                Ended::Fault(_) => false,
            };
            if !is_hit {
                self.wrong(format!("I19: node {id} does not come back: {ended:?}"));
            }
        }
    }

    async fn crash(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        self.until_something_unsynced(&self.world.disk(id)).await;
        self.cut_power(id);
        self.runtime.sleep(lasts).await;
        self.returns(id).await;
        Some(())
    }

    /// Waits for an unfinished snapshot in half of the cases, otherwise for any unsynced write. If
    /// there is none within a moment, a loss of power loses nothing.
    async fn until_something_unsynced(&self, disk: &VirtualDisk) {
        let in_snapshot = self.draw().below(2) == 0;
        let within = if in_snapshot { SNAPSHOT_WITHIN } else { SOMETHING_UNSYNCED_WITHIN };
        let has_come = || {
            if in_snapshot { disk.has_unfinished_snapshot() } else { disk.unsynced() > 0 }
        };
        let waits = async {
            while !has_come() {
                self.runtime.sleep(Duration::from_micros(200)).await;
            }
        };
        let _ = self.runtime.timeout(within, waits).await;
    }

    /// Cuts a node's power, and counts whether that lost a write.
    fn cut_power(&self, id: u64) {
        let lost = || self.world.disk(id).injected().writes_lost;
        let before = lost();
        self.world.crash(id, Crash::Power);
        self.counts().lost_writes += u64::from(lost() > before);
    }

    async fn power_cut(&self, lasts: Duration) -> Option<()> {
        // A disk that is being damaged keeps what its process wrote: when an older store is put
        // back, only the guard's hint, which is not synced, shows it (docs/reliability.md).
        for id in self.world.nodes().into_iter().filter(|id| !self.has_left(*id)) {
            self.cut_power(id);
        }
        self.runtime.sleep(lasts).await;
        for id in self.world.nodes() {
            self.returns(id).await;
        }
        Some(())
    }

    async fn stop_node(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        // A stop ends within its own deadline (I32), unless the process is held up.
        let limit = Duration::from_secs(30);
        if self.runtime.timeout(limit, self.world.stop(id)).await.is_err() {
            self.world.crash(id, Crash::Process);
        }
        self.runtime.sleep(lasts).await;
        self.returns(id).await;
        Some(())
    }

    pub(super) async fn pause(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        self.world.pause(id);
        self.runtime.sleep(lasts).await;
        self.world.resume(id);
        Some(())
    }

    /// A client, and in half of the cases the other clients on its machine.
    async fn pause_client(&self, number: u64, lasts: Duration) -> Option<()> {
        const MACHINES: u64 = 3;
        self.living(number)?;
        let beside = self.draw().below(2) == 0;
        let others = self
            .living_clients()
            .into_iter()
            .filter(|other| beside && *other != number && other % MACHINES == number % MACHINES);
        let paused = others.chain([number]).map(|client| self.stop_client(client, lasts));
        join_all(paused).await;
        Some(())
    }

    /// One client does nothing for a time; in half of the cases until just after its safe deadline,
    /// when everything seems to it to be as before (§5.6).
    async fn stop_client(&self, number: u64, lasts: Duration) {
        self.world.pause_client(number);
        let (until_late, late) = {
            let mut draw = self.draw();
            (draw.below(2) == 0, Duration::from_millis(draw.below(150)))
        };
        let deadline = self.world.certain_until(number).filter(|_| until_late);
        match deadline {
            Some(deadline) => self.runtime.clock.sleep_until(deadline + late).await,
            None => self.runtime.sleep(lasts).await,
        }
        if self.living(number).is_some() {
            self.world.resume_client(number);
        }
    }

    pub(super) fn living(&self, number: u64) -> Option<()> {
        lock(&self.actors).get(&number).filter(|actor| actor.is_alive()).map(|_| ())
    }

    /// Kills the client for good; a while later a new one comes in its place.
    async fn kill_client(&self, number: u64, lasts: Duration) -> Option<()> {
        {
            let actors = lock(&self.actors);
            let actor = actors.get(&number).filter(|actor| actor.is_alive())?;
            actor.dies();
        }
        self.world.kill_client(number);
        self.runtime.sleep(lasts).await;
        let clients = self.plan.clients.len() as u64;
        let below = |actors: &BTreeMap<u64, Actor>| {
            actors.range(..FIRST_OF_SCOPES).next_back().map(|(number, _)| *number)
        };
        let last = below(&lock(&self.actors)).unwrap_or(0);
        // The place in the plan stays the same; the number is a new one.
        let next = last + clients - (last % clients) + number % clients;
        self.begin_client(next);
        Some(())
    }

    fn all_nodes(&self) -> Vec<Host> {
        self.world.nodes().into_iter().map(Host::Node).collect()
    }

    fn cuts_of(&self, shape: Shape) -> Option<Cuts> {
        let (leader, others) = self.leader_and_others()?;
        let clients: Vec<Host> = lock(&self.actors).keys().copied().map(Host::Client).collect();
        let with_leader: Vec<Host> = [leader].into_iter().chain(others.iter().copied()).collect();
        let minority = with_leader.len().saturating_sub(1) / 2;
        let (few, many) = with_leader.split_at(minority.max(1));
        Some(match shape {
            Shape::LeaderAlone => {
                let everybody: Vec<Host> = others.into_iter().chain(clients).collect();
                apart(&[leader], &everybody)
            }
            Shape::LeaderInMinority => apart(few, many),
            Shape::LeaderWithClients => {
                let half = clients.len().div_ceil(2);
                let few: Vec<Host> = few.iter().chain(&clients[..half]).copied().collect();
                let many: Vec<Host> = many.iter().chain(&clients[half..]).copied().collect();
                apart(&few, &many)
            }
            Shape::FollowerAlone => apart(&others[..1], &with_leader),
            Shape::Ring => ring(&with_leader),
            Shape::Bridge => bridge(&with_leader),
            Shape::Shattered => {
                with_leader.iter().flat_map(|one| apart(&[*one], &with_leader)).collect()
            }
            Shape::LeaderMute => one_way(&[leader], &others),
            Shape::LeaderDeaf => one_way(&others, &[leader]),
        })
    }

    pub(super) async fn cut(&self, cuts: Cuts, lasts: Duration) -> Option<()> {
        self.world.network().cut(cuts.clone());
        self.runtime.sleep(lasts).await;
        self.world.network().mend(&cuts);
        Some(())
    }

    /// The leader, and the other nodes that run.
    fn leader_and_others(&self) -> Option<(Host, Vec<Host>)> {
        let leader = Host::Node(self.world.leader()?);
        let others: Vec<Host> =
            self.all_nodes().into_iter().filter(|host| *host != leader).collect();
        (!others.is_empty()).then_some((leader, others))
    }

    async fn hold_back(&self, way: Way, lasts: Duration) -> Option<()> {
        let nodes = self.all_nodes();
        let ways = match way {
            Way::LeaderBothWays => {
                let (leader, others) = self.leader_and_others()?;
                self.hold_both_ways(leader, &others, lasts).await;
                return Some(());
            }
            Way::ToLeader => {
                let (leader, others) = self.leader_and_others()?;
                one_way(&others, &[leader])
            }
            Way::FromLeader => {
                let (leader, others) = self.leader_and_others()?;
                one_way(&[leader], &others)
            }
            Way::ToClient(number) => one_way(&nodes, &[Host::Client(number)]),
            Way::FromClient(number) => one_way(&[Host::Client(number)], &nodes),
        };
        self.hold(&ways, Hold::Kept, lasts).await;
        Some(())
    }

    async fn hold(&self, ways: &Cuts, hold: Hold, lasts: Duration) {
        self.world.network().hold(ways, Part::ALL, hold);
        self.runtime.sleep(lasts).await;
        self.world.network().release(ways, Part::ALL);
    }

    /// Answers to `host` are held back first, and a little later all other traffic between it and
    /// the others: so answers are under way that it does not know of. They arrive first afterwards.
    async fn hold_both_ways(&self, host: Host, others: &[Host], lasts: Duration) {
        let (before, after) = {
            let mut draw = self.draw();
            let mut below = |ms| Duration::from_millis(draw.below(ms));
            (below(800), below(300))
        };
        let (back, there) = (one_way(others, &[host]), one_way(&[host], others));
        let network = self.world.network();
        network.hold(&back, &[Part::Answered], Hold::Kept);
        self.runtime.sleep(before).await;
        network.hold(&back, &[Part::Asked], Hold::Kept);
        network.hold(&there, Part::ALL, Hold::Kept);
        self.runtime.sleep(lasts).await;
        network.release(&back, &[Part::Answered]);
        self.runtime.sleep(after).await;
        network.release(&back, &[Part::Asked]);
        network.release(&there, Part::ALL);
    }

    async fn retransmission(&self, who: Who, lasts: Duration) -> Option<()> {
        let host = Host::Node(self.pick(who)?);
        let others: Vec<Host> =
            self.all_nodes().into_iter().filter(|other| *other != host).collect();
        self.hold(&apart(&[host], &others), Hold::Outlived, lasts).await;
        (!others.is_empty()).then_some(())
    }

    /// The leader comes back among the others while the clients still reach no other node. That
    /// takes at least an election, and no client may have given up by then.
    async fn partial_partition(&self, lasts: Duration) -> Option<()> {
        let (leader, others) = self.leader_and_others()?;
        let clients: Vec<Host> = lock(&self.actors).keys().copied().map(Host::Client).collect();
        let half = clients.len().div_ceil(2);
        let elected = Duration::from_millis(self.plan.knobs.election_min_ms);
        let away = elected + Duration::from_millis(u64::from(self.below(3_000)));
        let cuts = apart(&clients[..half], &others);
        let apart = self.hold_both_ways(leader, &others, away.min(lasts));
        futures_util::future::join(self.cut(cuts, lasts), apart).await;
        Some(())
    }

    /// Changes every link for a time.
    async fn air(&self, lasts: Duration, change: impl FnOnce(&mut Link)) -> Option<()> {
        let mut link = usual(&self.plan.air);
        change(&mut link);
        self.world.network().set_usual(link);
        self.runtime.sleep(lasts).await;
        self.world.network().set_usual(usual(&self.plan.air));
        Some(())
    }

    fn break_connections(&self, who: Who) -> Option<()> {
        let host = Host::Node(self.pick(who)?);
        if self.draw().below(2) == 0 {
            self.world.network().break_connections(host);
            return Some(());
        }
        // Half-open: the others notice only when keepalives are missed.
        let clients: Vec<Host> = lock(&self.actors).keys().copied().map(Host::Client).collect();
        for other in self.all_nodes().into_iter().chain(clients).filter(|other| *other != host) {
            let told = if self.draw().below(2) == 0 { (host, other) } else { (other, host) };
            self.world.network().half_open(told.0, told.1);
        }
        Some(())
    }

    async fn slow_disk(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        let slowest = Duration::from_millis(50 + u64::from(self.below(2_000)));
        self.world.disk(id).set_pace(Duration::from_millis(10), slowest);
        self.runtime.sleep(lasts).await;
        self.usual_pace(id);
        Some(())
    }

    async fn stuck_disk(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        self.world.disk(id).stick();
        self.runtime.sleep(lasts).await;
        // A task that waits for such a disk ends only with the power, or with the process.
        if self.draw().below(2) == 0 {
            self.cut_power(id);
        } else {
            self.world.crash(id, Crash::Process);
        }
        self.runtime.sleep(lasts / 2).await;
        self.returns(id).await;
        Some(())
    }

    async fn full_disk(&self, who: Who, lasts: Duration) -> Option<()> {
        let id = self.pick(who)?;
        let left = u64::from(self.below(200_000));
        lock(&self.starved).insert(id);
        self.world.disk(id).set_free_space(Some(left));
        self.runtime.sleep(lasts).await;
        self.world.disk(id).set_free_space(None);
        self.look_for_ends();
        lock(&self.starved).remove(&id);
        self.returns(id).await;
        Some(())
    }

    fn rates(&self) {
        for id in self.world.nodes() {
            let rate = self.draw().below(2 * RATE_WITHIN + 1);
            let rate = i32::try_from(rate).unwrap_or(0) - i32::try_from(RATE_WITHIN).unwrap_or(0);
            self.world.set_rate(id, rate);
        }
    }

    fn wall_step(&self, who: Who) -> Option<()> {
        let id = self.pick(who)?;
        let step = i64::try_from(self.draw().below(2 * 86_400_000)).unwrap_or(0) - 86_400_000;
        self.world.set_wall_skew(id, step);
        Some(())
    }
}
