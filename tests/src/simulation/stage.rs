//! One simulated run: the world of a plan, its clients, and the steps from the first start to the
//! last check.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, join_all};
use holdfast_core::{LEASE_PARTS, SessionView};
use holdfast_runtime::simulated::Machine;
use holdfast_runtime::{Instant, Runtime};
use holdfast_server::consensus::Consensus as _;
use holdfast_server::raft::{Members, ReplicaConfig};
use holdfast_server::session::SessionSettings;

use super::byzantine_client::ByzantineClient;
use super::caller::Board;
use super::client::{Actor, Calling, Ends, begin_caller, begin_client};
use super::counts::Counts;
use super::disaster::TTL_MAX;
use super::limits::{self, Sizes};
use super::looks::Looks;
use super::mover::Moving;
use super::plan::{Air, ClientPlan, LARGE, LARGE_SNAPSHOT_EVERY, Plan};
use super::schedule::Schedule;
use super::scope_plan::ScopesPlan;
use super::table::{self, Hoarders};
use super::work::Items;
use crate::check::{Options, check};
use crate::draw::Draw;
use crate::history::{ClientId, Record, Recorder, What, merge};
use crate::resource::Resources;
use crate::sim::{Ended, Expiry, Link, Right, Settings, Trace, World, client_of, label_of};
use crate::traffic;

/// The client id of records that the run itself writes.
pub(super) const STAGE: ClientId = ClientId(0);
/// The number of the client that does what the library never would.
pub(super) const ROGUE: u64 = 2_000_000;
/// Clients from this number on have another purpose than to share locks.
const FIRST_HELPER: u64 = 1_000_000;
/// No client that shares locks wants to hold one for so long.
const STUCK_AFTER: Duration = Duration::from_secs(45);
/// The interval between two looks at every node.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a start may take on a disk that works.
const START_WITHIN: Duration = Duration::from_secs(30);
/// I31: with a majority connected and no fault active, some node leads after this time.
const LEADER_WITHIN: Duration = Duration::from_secs(30);
/// Longest time that a look at a clock takes in a run whose schedule is one of scopes, microseconds.
const LOOK_TAKES_US: u64 = 4;
/// The disk reserve of each node.
const RESERVE_BYTES: u64 = 1 << 20;
/// Two attempts of a leader to hand over, each ten seconds after it began to lead, or after the
/// attempt before.
const HANDED_OVER_WITHIN: Duration = Duration::from_secs(40);

/// How long the judge lets a watch take to learn of the last change, and a little more.
const WATCHERS_LEARN_WITHIN: Duration = Duration::from_secs(7);

/// What a run leaves to its judge.
pub(super) struct RunRecord {
    pub(super) counts: Counts,
    pub(super) violations: Vec<String>,
    pub(super) digest: u64,
    pub(super) trace: Vec<String>,
    pub(super) history: Vec<Record>,
}

/// Everything that takes part in a run.
pub(super) struct Stage<'a> {
    pub(super) plan: &'a Plan,
    pub(super) world: World<'a>,
    pub(super) runtime: Runtime,
    pub(super) recorder: Recorder,
    /// The resources that holders write to.
    resources: Resources,
    pub(super) counts: Mutex<Counts>,
    pub(super) draw: Mutex<Draw>,
    /// Every client that ever existed, by number.
    pub(super) actors: Mutex<BTreeMap<u64, Actor>>,
    /// The violations that were found by looking, each with its invariant's number.
    pub(super) wrong: Arc<Mutex<Vec<String>>>,
    leaders: Mutex<Option<(u64, u64)>>,
    /// One change of the members at a time.
    pub(super) crew: tokio::sync::Mutex<()>,
    /// Nodes that never come back, as long as they are members.
    pub(super) lost: Mutex<BTreeSet<u64>>,
    /// Nodes whose disk is full.
    pub(super) starved: Mutex<BTreeSet<u64>>,
    /// Nodes that can open no file.
    pub(super) closed: Mutex<BTreeSet<u64>>,
    pub(super) looks: Mutex<Looks>,
    pub(super) grants: Arc<AtomicU64>,
    pub(super) ends: Ends,
    /// The epochs in which the native store granted, or could have, by scope.
    pub(super) native_epochs: Mutex<BTreeSet<(String, u64)>>,
    /// What the processes in a scope that moves see of each other.
    pub(super) moving: Arc<Moving>,
    /// What all workers know of their items together.
    pub(super) items: Arc<Items>,
    /// The backups that were taken during the run.
    backups: Mutex<Vec<Vec<u8>>>,
    /// What the probes of the run had found before a disaster.
    probed: Mutex<Option<Vec<String>>>,
    /// The number of the next order of an operator.
    pub(super) orders: AtomicU64,
    /// The clients that hold the table that is there from the beginning.
    pub(super) hoarders: Mutex<Hoarders>,
}

impl<'a> Stage<'a> {
    fn set(machine: &'a Machine, plan: &'a Plan, trace: Trace) -> Self {
        let world = World::new(machine, settings(plan, trace));
        world.network().set_usual(usual(&plan.air));
        if plan.rules {
            world.network().identify_clients();
        }
        let runtime = world.runtime();
        let recorder = Recorder::in_memory(runtime.clock.clone());
        Self {
            plan,
            world,
            resources: Resources::new(recorder.clone()),
            recorder,
            counts: Mutex::new(Counts { runs: 1, ..Counts::default() }),
            draw: Mutex::new(Draw::new(plan.seed ^ 0x5741_4745)),
            actors: Mutex::default(),
            wrong: Arc::default(),
            leaders: Mutex::default(),
            crew: tokio::sync::Mutex::default(),
            lost: Mutex::default(),
            starved: Mutex::default(),
            closed: Mutex::default(),
            looks: Mutex::default(),
            grants: Arc::default(),
            ends: Ends::default(),
            native_epochs: Mutex::default(),
            moving: Arc::default(),
            items: Arc::default(),
            backups: Mutex::default(),
            probed: Mutex::default(),
            orders: AtomicU64::new(0),
            hoarders: Mutex::default(),
            runtime,
        }
    }

    /// Makes the whole run.
    pub(super) fn run(machine: &'a Machine, plan: &'a Plan, trace: Trace) -> RunRecord {
        let stage = Self::set(machine, plan, trace);
        if plan.schedule.is_some_and(Schedule::is_of_scopes) {
            // In most of these runs a process takes a while to think.
            machine.set_look_takes(Duration::from_micros(stage.draw().below(LOOK_TAKES_US)));
        }
        machine.run(async {
            let earlier = stage.prepare_schedule().await;
            if stage.first_start().await {
                stage.act(earlier.as_ref()).await;
                stage.heal().await;
                Box::pin(stage.last_act()).await;
                Box::pin(stage.lose_everything()).await;
            }
        });
        stage.judge(machine)
    }

    /// Starts the nodes, not all at once, and waits until one of them leads.
    async fn first_start(&self) -> bool {
        for id in self.world.nodes() {
            self.furnish(id);
            self.world.begin_node(id);
            let pause = self.draw().below(400);
            self.runtime.sleep(Duration::from_millis(pause)).await;
        }
        let led = self.world.until_led(2 * LEADER_WITHIN).await.is_some();
        if !led {
            self.wrong(format!("I31: nobody leads within {:?} of the start", 2 * LEADER_WITHIN));
        }
        led
    }

    /// Gives a node the clock and the disk of the plan.
    pub(super) fn furnish(&self, id: u64) {
        let place = usize::try_from(id).unwrap_or(0) % self.plan.node_rates.len().max(1);
        self.world.set_rate(id, self.plan.node_rates.get(place).copied().unwrap_or(0));
        self.usual_pace(id);
    }

    /// Gives the disk its usual pace.
    pub(super) fn usual_pace(&self, id: u64) {
        let pace = self.plan.disk;
        let us = Duration::from_micros;
        self.world.disk(id).set_pace(us(pace.sync_min_us), us(pace.sync_max_us));
    }

    /// The clients work while the run injects every fault of the plan.
    async fn act(&self, earlier: Option<&World<'a>>) {
        let begun = self.runtime.clock.now();
        self.begin_table();
        if limits::tells_slowly(&self.plan.limits) {
            self.world.network().set_watch_window(1);
        }
        if limits::answers_slowly(&self.plan.limits) {
            self.world.network().set_session_window(1);
        }
        for number in 0..self.plan.clients.len() as u64 {
            self.begin_client(number);
        }
        if self.plan.rogue || limits::needs_frames(&self.plan.limits) {
            self.begin_rogue();
        }
        if self.plan.imports {
            self.begin_imports();
        }
        self.begin_scopes();
        self.begin_numbers();
        let strikes =
            self.plan.strikes.iter().map(|strike| self.strike(begun, strike).boxed_local());
        let end = self.runtime.sleep(self.plan.length()).boxed_local();
        let schedule = self.act_schedule(earlier).boxed_local();
        let scopes = self.set_scopes().boxed_local();
        let moves = self.operate_moves().boxed_local();
        let rules = self.turn_rules_on().boxed_local();
        let backup = self.back_up_early().boxed_local();
        let acts: Vec<LocalBoxFuture<'_, ()>> =
            strikes.chain([end, schedule, scopes, moves, rules, backup]).collect();
        self.watched(join_all(acts)).await;
        let ran = self.runtime.clock.now().saturating_since(begun);
        self.counts().simulated_ms = u64::try_from(ran.as_millis()).unwrap_or(0);
    }

    /// Looks at every node again and again while a future runs.
    pub(super) async fn watched<T>(&self, something: impl Future<Output = T>) -> T {
        holdfast_runtime::select! {
            done = something => done,
            () = self.look_on() => unreachable!("looking on never ends"),
        }
    }

    async fn look_on(&self) {
        loop {
            self.look();
            self.runtime.sleep(LOOK_EVERY).await;
        }
    }

    fn look(&self) {
        self.world.observe();
        self.look_at_scopes();
        self.look_for_others();
        let Some(leader) = self.world.leader() else { return };
        let term = self.world.replica(leader).and_then(|replica| replica.role().borrow().tenure());
        let now = term.map(|term| (term.get(), leader));
        let mut leaders = lock(&self.leaders);
        if now.is_some() && *leaders != now {
            *leaders = now;
            self.counts().leaders += 1;
        }
    }

    /// Client `number`, or its replacement, begins to work.
    pub(super) fn begin_client(&self, number: u64) {
        let place = usize::try_from(number).unwrap_or(0) % self.plan.clients.len();
        let plan = limits::sized(&self.plan.limits, place, self.plan.clients[place]);
        let process = self.world.client_process(number);
        process.set_rate(plan.rate);
        let resources = Some(self.resources.clone());
        let traffic = traffic::Plan { resources, ..self.plan.traffic(in_history(number).0, &plan) };
        let written = (&self.recorder, &self.grants);
        let actor = if plan.calls {
            let calls = self.world.calls_of(number);
            begin_caller(&process, calls, (&traffic, Calling::Locks), written, &self.ends)
        } else {
            let builder = self.world.client_builder(number);
            begin_client(&builder, &process, (&traffic, &plan), written, &self.ends)
        };
        lock(&self.actors).insert(number, actor);
    }

    /// One client that imports holds of another store, and three that claim them.
    fn begin_imports(&self) {
        const FIRST: u64 = 2_100_000;
        let board = Board::default();
        for number in FIRST..FIRST + 4 {
            let calling = if number == FIRST { Calling::Imports } else { Calling::Claims };
            let process = self.world.client_process(number);
            let traffic = self.plan.traffic(in_history(number).0, &ClientPlan::of_claims());
            let resources = Some(self.resources.clone());
            let traffic = traffic::Plan { resources, ..traffic };
            let calls = self.world.calls_of(number);
            let calling = (&traffic, calling(board.clone()));
            let written = (&self.recorder, &self.grants);
            let actor = begin_caller(&process, calls, calling, written, &self.ends);
            lock(&self.actors).insert(number, actor);
        }
    }

    /// The client that does what the library never would.
    fn begin_rogue(&self) {
        let process = self.world.client_process(ROGUE);
        let (transport, endpoints) = self.world.line_of(ROGUE);
        // Long before the end: then every client has to get back to its session.
        let crowds_until = process.runtime().clock.now() + self.plan.length() / 2;
        let rogue = ByzantineClient {
            transport,
            endpoints,
            runtime: process.runtime(),
            draw: Draw::new(self.plan.seed ^ ROGUE),
            label: label_of(ROGUE),
            names: self.plan.names,
            excess: limits::goes_beyond(&self.plan.limits),
            flood: limits::flood(&self.plan.limits),
            nonsense: limits::gets_much(&self.plan.limits),
            crowd: limits::crowd(&self.plan.limits).map(|streams| (streams, crowds_until)),
            stopped: self.ends.stop.subscribe(),
            wrong: Arc::clone(&self.wrong),
        };
        process.runtime().spawn("rogue", rogue.work()).detach();
    }

    /// Starts a node that should run; returns why it does not.
    pub(super) async fn bring_back(&self, id: u64) -> Result<(), Ended> {
        if self.world.is_running(id) {
            return Ok(());
        }
        self.begins_anew(id);
        let started = self.runtime.timeout(START_WITHIN, self.world.start_node(id)).await;
        match started {
            Ok(result) => result,
            // Another fault holds it up: it is checked again when all is healed.
            Err(_) => Ok(()),
        }
    }

    /// Ends every fault: nothing is cut off, slow, full, paused or down.
    async fn heal(&self) {
        self.world.network().heal();
        self.world.keyspace().heal();
        self.world.network().set_usual(usual(&self.plan.air));
        for id in self.world.nodes() {
            self.world.resume(id);
            self.world.disk(id).set_free_space(None);
            self.usual_pace(id);
        }
        for number in self.living_clients() {
            self.world.resume_client(number);
        }
        self.note("healed");
        self.watched(async {
            for id in self.world.nodes() {
                if !self.has_left(id)
                    && let Err(ended) = self.bring_back(id).await
                {
                    self.wrong(format!("I19: node {id} does not start after all: {ended:?}"));
                }
            }
            let lost: Vec<u64> = lock(&self.lost).iter().copied().collect();
            for id in lost {
                self.remove_lost(id).await;
            }
            self.allow_all(&self.world).await;
            self.thaw_all(&self.world).await;
        })
        .await;
        self.recorder.write(STAGE, What::Healed);
    }

    /// The cluster serves, forgets nothing, and comes to rest in one state.
    async fn last_act(&self) {
        let act = async {
            if self.world.until_led(LEADER_WITHIN).await.is_none() {
                self.wrong(format!("I31: nobody leads within {LEADER_WITHIN:?} after healing"));
                return;
            }
            if self.plan.full_leader {
                self.full_leader_hands_over().await;
            }
            // Long enough for waits to be granted and keepalives answered.
            self.runtime.sleep(Duration::from_secs(5)).await;
            self.nothing_is_stuck().await;
            self.ends.stop.send_replace(true);
            self.everybody_finishes().await;
            self.scopes_are_served().await;
            self.moved_scope_is_served().await;
            self.work_is_done().await;
            self.table_is_given_back().await;
            self.serves_every_name().await;
            self.comes_to_rest().await;
            self.watchers_see_it().await;
        };
        self.watched(Box::pin(act)).await;
    }

    /// A leader whose disk is below its reserve would refuse every request that takes room: it
    /// hands over to a voter that can lead (DESIGN §7). No other fault is active now, so it has
    /// time for two attempts.
    async fn full_leader_hands_over(&self) {
        let Some(full) = self.world.leader() else { return };
        let voters = self.world.replica(full).and_then(|leader| leader.members().ok());
        let voters = voters.map_or(0, |known| known.members.iter().filter(|one| one.votes).count());
        if voters < 2 {
            return;
        }
        let disk = self.world.disk(full);
        lock(&self.starved).insert(full);
        let another_leads = async {
            while self.world.leader().is_none_or(|leader| leader == full) {
                // What the node itself frees, an old snapshot or a purged log, others take.
                disk.set_free_space(Some(RESERVE_BYTES * 3 / 4));
                self.runtime.sleep(LOOK_EVERY).await;
            }
        };
        if self.runtime.timeout(HANDED_OVER_WITHIN, another_leads).await.is_err() {
            self.wrong(format!(
                "I31: node {full} still leads, {HANDED_OVER_WITHIN:?} after its disk went below its \
                 reserve, with {voters} voters"
            ));
        }
        disk.set_free_space(None);
        self.look_for_ends();
        lock(&self.starved).remove(&full);
        self.returns(full).await;
    }

    /// I31: a lock that a client has released does not stay held because the client lives on. None
    /// of them wants to hold a lock for so long.
    ///
    /// After a long time without a leader the holds of dead sessions are as old, until the new leader has
    /// given each session its TTL anew: they have gone at the second look.
    async fn nothing_is_stuck(&self) {
        let old = self.old_holds();
        if old.is_empty() {
            return;
        }
        let longest = self.plan.clients.iter().map(|client| client.ttl_ms).max().unwrap_or(0);
        self.runtime.sleep(Duration::from_millis(longest) * 2 + Duration::from_secs(5)).await;
        let still = self.old_holds();
        for (_, said) in old.into_iter().filter(|(token, _)| still.contains_key(token)) {
            self.wrong(format!("I31: {said}"));
        }
    }

    /// What clients hold for longer than any of them wants to: by token, as text.
    fn old_holds(&self) -> BTreeMap<u64, String> {
        let leader = self.world.leader().and_then(|leader| self.world.replica(leader));
        let Some(leader) = leader else { return BTreeMap::new() };
        let now = self.runtime.clock.now();
        let mut old = BTreeMap::new();
        leader.read(&mut |table, _| {
            let locks = table.locks_after("traffic/", None, usize::MAX);
            for (name, holder) in
                locks.flat_map(|lock| lock.holders().map(move |one| (lock.name, one)))
            {
                let (token, label) = (holder.grant.token.get(), holder.label.as_str());
                let shares = client_of(label).is_some_and(|client| client < FIRST_HELPER);
                let since = self.world.granted_at(token).unwrap_or(now);
                let held = now.saturating_since(since);
                if shares && held > STUCK_AFTER {
                    let name = name.as_str();
                    let said = format!(
                        "{name} is still held under token {token} by {label}, after {held:?}"
                    );
                    old.insert(token, said);
                }
            }
        });
        old
    }

    pub(super) fn living_clients(&self) -> Vec<u64> {
        let actors = lock(&self.actors);
        actors.iter().filter(|(_, actor)| actor.is_alive()).map(|(number, _)| *number).collect()
    }

    /// Every call of every client ends (I32), and every client closes its session.
    async fn everybody_finishes(&self) {
        let longest = self.plan.clients.iter().map(|client| client.within_ms).max().unwrap_or(0);
        let within = Duration::from_millis(longest) + Duration::from_mins(1);
        let unfinished = || {
            let actors = lock(&self.actors);
            let left = actors.iter().filter(|(_, actor)| actor.is_alive() && !actor.is_done());
            left.map(|(number, _)| *number).collect::<Vec<u64>>()
        };
        let all = async {
            while !unfinished().is_empty() {
                self.runtime.sleep(LOOK_EVERY).await;
            }
        };
        if self.runtime.timeout(within, all).await.is_err() {
            self.wrong(format!("I32: clients {:?} never finish", unfinished()));
        }
    }

    /// A client that comes now sees every name free, and is granted it.
    async fn serves_every_name(&self) {
        let number = 1_000_000;
        let names: Vec<String> = (0..self.plan.names).map(|n| format!("traffic/{n}")).collect();
        let recorder = self.recorder.clone();
        let process = self.world.client_process(number);
        let builder = self.world.client_builder(number);
        let work = super::client::visit(builder, process, recorder, in_history(number), names);
        match self.runtime.timeout(Duration::from_mins(2), self.world.as_client(number, work)).await
        {
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(wrong))) => self.wrong(format!("I31: after healing {wrong}")),
            Ok(None) | Err(_) => self.wrong("I32: the last visitor's calls never end".to_owned()),
        }
    }

    /// All sessions end, and every node shows the same state, with nothing left behind (I16, I33).
    async fn comes_to_rest(&self) {
        let within = Duration::from_mins(1);
        let give_up = self.runtime.clock.now() + within;
        // The leader's clock may be slow by a tenth.
        let lost_end = give_up + table::TTL * 5 / 4;
        loop {
            match self.unrest() {
                None => return,
                Some(_)
                    if self.runtime.clock.now() <= lost_end && self.waits_for_lost_openings() =>
                {
                    self.runtime.sleep(LOOK_EVERY).await;
                }
                Some(why) if self.runtime.clock.now() > give_up => {
                    return self.wrong(format!("{why}, {within:?} after the last client left"));
                }
                Some(_) => self.runtime.sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Every watcher learns of the last change, and of nothing more.
    async fn watchers_see_it(&self) {
        let clients = self.plan.clients.iter().enumerate();
        let watches = |(place, plan): (usize, &ClientPlan)| {
            limits::sized(&self.plan.limits, place, *plan).watches
        };
        if clients.into_iter().any(watches) {
            self.runtime.sleep(WATCHERS_LEARN_WITHIN).await;
            self.ends.at_rest.send_replace(true);
            self.runtime.sleep(LOOK_EVERY).await;
        }
    }

    /// What has not yet reached its final state.
    fn unrest(&self) -> Option<String> {
        let states: BTreeMap<u64, _> = (self.world.nodes().into_iter())
            .filter(|id| !self.has_left(*id))
            .map(|id| (id, self.world.state_of(id)))
            .collect();
        let first = states.values().next().copied().flatten();
        if first.is_none() || states.values().any(|state| *state != first) {
            let indexes: Vec<_> =
                states.iter().map(|(id, state)| (id, state.map(|(index, _)| index))).collect();
            return Some(format!("I16: nodes are not of one state: {indexes:?}"));
        }
        if let Some(differ) = self.members_differ() {
            return Some(differ);
        }
        let leader = self.world.replica(self.world.leader()?)?;
        let (mut counts, mut open, mut closed) = (None, Vec::new(), 0_usize);
        leader.read(&mut |table, _| {
            counts = Some(table.counts());
            open = table.sessions().map(|view| view.session.get()).collect();
            closed = (0..LEASE_PARTS).map(|part| table.closed_locks_in(part).count()).sum();
        });
        let counts = counts?;
        let left = (counts.sessions, counts.held, counts.waiting);
        if closed > 0 {
            return Some(format!("I31: {closed} locks are still closed"));
        }
        (left != (0, 0, 0)).then(|| {
            format!("I33: sessions, holds and waits are left: {left:?}, sessions {open:?}")
        })
    }

    /// Whether all that is left is sessions that were opened although the answer was lost: no client knows their secret, so each of them
    /// lasts for its TTL (`server/src/session/opening.rs`). Only that of the table's holders is longer than the wait for rest.
    fn waits_for_lost_openings(&self) -> bool {
        let leader = self.world.leader().and_then(|leader| self.world.replica(leader));
        let Some(leader) = leader else { return false };
        let mut all_lost = false;
        leader.read(&mut |table, _| {
            let is_lost = |session: SessionView<'_>| {
                let of = client_of(session.label.as_str()).filter(|number| *number >= table::FIRST);
                let known =
                    of.map(|number| self.world.last_right(number).map(|right| right.session));
                session.requests == 0
                    && known.is_some_and(|known| known != Some(session.session.get()))
            };
            all_lost = table.sessions().all(is_lost);
        });
        all_lost
    }

    /// I22: every node knows the same members, whatever its source.
    fn members_differ(&self) -> Option<String> {
        let ids = self.world.nodes().into_iter().filter(|id| !self.has_left(*id));
        let known: BTreeMap<u64, Vec<u64>> = ids
            .filter_map(|id| {
                let members = self.world.replica(id)?.status().members;
                Some((id, members.into_iter().map(|member| member.node_id).collect()))
            })
            .collect();
        let first = known.values().next();
        let differ = known.values().any(|members| Some(members) != first);
        differ.then(|| format!("I22: nodes know different members: {known:?}"))
    }

    /// Whether a node is no longer a member.
    pub(super) fn has_left(&self, id: u64) -> bool {
        lock(&self.lost).contains(&id) || !self.world.nodes().contains(&id)
    }

    /// Judges the history, and collects every violation that was found.
    fn judge(self, machine: &Machine) -> RunRecord {
        let expiries = self.world.expiries();
        // An acknowledgement stands before what its client concludes from it at that instant.
        let rights = self.world.rights().iter().map(given).collect();
        let expired = expiries.iter().filter_map(told).collect();
        let known = self.world.versions().into_iter().map(all_know).collect();
        let granted = self.world.grants().into_iter().map(grant_seen).collect();
        let revoked = self.world.revoked().iter().filter_map(revoked).collect();
        let left = self.world.work_left().into_iter().map(work_left).collect();
        let history =
            merge(vec![rights, granted, revoked, self.recorder.take(), expired, known, left]);
        let usual = Options::default();
        let grace = usual.grace + limits::longer_leases(&self.plan.limits);
        let report = check(&history, Options { grace, ..usual });
        let mut violations = std::mem::take(&mut *lock(&self.wrong));
        violations.extend(lock(&self.probed).take().unwrap_or_else(|| self.world.violations()));
        violations.extend(report.violations.iter().map(ToString::to_string));
        let mut counts = self.counts().clone();
        counts.grants = report.tally.grants as u64;
        counts.waits = report.tally.waits as u64;
        counts.unknown = report.tally.unknown as u64;
        counts.watch_news = report.tally.watch_news as u64;
        counts.watches_begun_anew = report.tally.watches_begun_anew as u64;
        counts.writes = report.tally.accepted as u64;
        counts.refused_writes = report.tally.fenced as u64;
        counts.numbers = report.tally.numbers as u64;
        counts.too_long = report.tally.too_long as u64;
        counts.looks_shut = report.tally.looks_shut as u64;
        counts.under_kept_limits = report.tally.under_kept_limits as u64;
        counts.expiries = expiries.len() as u64;
        self.count_scopes(&history, &mut counts);
        counts.snapshots = self.world.taken_over();
        counts.torn_snapshots = self.world.torn_snapshots();
        counts.large_tables = u64::from(self.plan.table >= LARGE);
        if self.world.log_limit_reached() {
            self.world.network().reached("max_log_bytes");
        }
        if !self.world.work_left().is_empty() {
            self.world.network().reached(limits::WORK_STEPS);
        }
        let reached = self.world.network().limits();
        let ours = limits::names().filter(|name| reached.contains(*name));
        counts.limits = ours.map(|name| (name.to_owned(), 1)).collect();
        let trace = self.world.trace().lines();
        let digest = machine.digest() ^ self.world.trace().digest().rotate_left(32);
        RunRecord { counts, violations, digest, trace, history }
    }

    /// Nothing of what comes now belongs to the run itself.
    pub(super) fn close_probes(&self) {
        *lock(&self.probed) = Some(self.world.violations());
    }

    pub(super) fn has_gone_wrong(&self) -> bool {
        !lock(&self.wrong).is_empty()
    }

    pub(super) fn backups(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        lock(&self.backups)
    }

    pub(super) fn wrong(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    /// A fault begins or ends: a note for readers of the history.
    pub(super) fn note(&self, note: &str) {
        self.recorder.write(STAGE, What::Fault { note: note.to_owned() });
    }

    pub(super) fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    pub(super) fn draw(&self) -> MutexGuard<'_, Draw> {
        lock(&self.draw)
    }
}

/// The judge's record of an expiry. Sessions of no client in the history are left out.
fn told(expiry: &Expiry) -> Option<Record> {
    let number = client_of(&expiry.label)?;
    let (of, tokens) = (in_history(number), Some(expiry.tokens.clone()));
    let what = What::Expired { of, tokens, session: Some(expiry.session) };
    Some(Record { at_ns: nanos(expiry.at), client: STAGE, what })
}

/// The judge's record of a session that was revoked.
fn revoked((at, label): &(Instant, String)) -> Option<Record> {
    let of = in_history(client_of(label)?);
    Some(Record { at_ns: nanos(*at), client: STAGE, what: What::Revoked { of } })
}

/// The judge's record of a version that every member knows.
fn all_know((version, at): (u16, Instant)) -> Record {
    Record { at_ns: nanos(at), client: STAGE, what: What::AllKnow { version } }
}

/// The judge's record of the first time that a node applied a grant.
fn grant_seen((token, at): (u64, Instant)) -> Record {
    Record { at_ns: nanos(at), client: STAGE, what: What::GrantSeen { token } }
}

/// The judge's record of the time during which a command had left work.
fn work_left((from, until): (Instant, Option<Instant>)) -> Record {
    Record {
        at_ns: nanos(from),
        client: STAGE,
        what: What::WorkLeft { until_ns: until.map(nanos) },
    }
}

/// The judge's record of an acknowledgement.
fn given(right: &Right) -> Record {
    let what = What::Acknowledged { session: right.session, until_ns: nanos(right.until) };
    Record { at_ns: nanos(right.at), client: in_history(right.client), what }
}

/// The id of a client by its number. The run itself is client 0 of the history.
pub(super) fn in_history(number: u64) -> ClientId {
    ClientId(number + 1)
}

fn nanos(at: Instant) -> u64 {
    u64::try_from(at.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of an entry of a simulated run, about.
const ENTRY_BYTES: u64 = 256;

fn settings(plan: &Plan, trace: Trace) -> Settings {
    let knobs = plan.knobs;
    let mut replica = ReplicaConfig {
        heartbeat_ms: knobs.heartbeat_ms,
        election_min_ms: knobs.election_min_ms,
        election_max_ms: knobs.election_max_ms,
        propose_deadline_ms: knobs.propose_deadline_ms,
        snapshot_log_bytes: ENTRY_BYTES * knobs.snapshot_every,
        log_kept: knobs.log_kept,
        // So little that lagging members are cut off and get snapshots.
        max_log_bytes: 2 * ENTRY_BYTES * (knobs.snapshot_every + knobs.log_kept),
        reserve_bytes: RESERVE_BYTES,
        disk_stall_ms: 0,
        ..ReplicaConfig::new(0, Vec::new())
    };
    if plan.disaster.is_some() {
        replica.limits.ttl_max_ms = u64::try_from(TTL_MAX.as_millis()).unwrap_or(u64::MAX);
    }
    if plan.table >= LARGE {
        let least = ENTRY_BYTES * LARGE_SNAPSHOT_EVERY;
        replica.snapshot_log_bytes = replica.snapshot_log_bytes.max(least);
        replica.max_log_bytes = replica.max_log_bytes.max(8 * least);
    }
    let mut sessions = SessionSettings::default();
    limits::set(&plan.limits, &mut Sizes { replica: &mut replica, sessions: &mut sessions });
    let fallback = plan.scopes.as_ref().map(ScopesPlan::terms).unwrap_or_default();
    let Plan { seed, nodes, keeps_together, .. } = *plan;
    Settings { seed, nodes, replica, sessions, fallback, trace, keeps_together }
}

/// A world of one node, with the settings of the plan otherwise.
pub(super) fn settings_of_one(plan: &Plan) -> Settings {
    Settings { nodes: 1, ..settings(plan, Trace::default()) }
}

/// The links without faults.
pub(super) fn usual(air: &Air) -> Link {
    Link {
        delay_min: Duration::from_micros(air.delay_min_us),
        delay_max: Duration::from_micros(air.delay_max_us),
        lost_per_million: air.lost_per_million,
        twice_per_million: air.twice_per_million,
        ..Link::default()
    }
}
