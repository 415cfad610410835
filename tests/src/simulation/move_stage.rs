//! A scope that moves through all modes in a simulated run: an operator moves it to and fro, ends old clients in time, and in the end
//! a process in mode `both` gets its lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join;
use holdfast_recipes::{
    Housekeeper, LockerMode, ModesTable, RemoteLocker as _, ScopeModes, Stage as MoveStage,
    TokenTables, Wait,
};

use super::client::{Actor, begin};
use super::counts::Counts;
use super::locker_client::TTL;
use super::move_plan::MovesPlan;
use super::mover::{MOVED, MOVING, Mover, start};
use super::schedule::Schedule;
use super::stage::{Stage, in_history, lock};
use crate::draw::Draw;
use crate::recipe::Recipe;

/// The number of the first client of a scope that moves. Those that come in the place of others count on.
pub(super) const FIRST: u64 = 2_400_000;
/// No client has this number, or one above it.
pub(super) const END: u64 = 2_500_000;
/// The operator's number, and the last visitor's.
const OPERATOR: u64 = 2_290_002;
const VISITOR: u64 = 2_290_003;
/// The TTL of the clients' sessions.
const SESSION: Duration = Duration::from_secs(3);
/// Between two tries of the last visitor, and two sweeps of the housekeeper.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the last visitor waits for the scope to come where it may enter, and then for the lock.
const SERVED_WITHIN: Duration = Duration::from_mins(3);
/// How far the wall clock of a client of [`Recipe::TokensLwt`] is wrong at most in a run of little else, milliseconds, either way.
const WALL_SKEW_MS: u64 = 300_000;
/// Once in so many looks the operator turns round.
const TURNS_ONE_IN: u64 = 8;
/// At the first and at the last stage it turns round once in so many looks.
const STAYS: u64 = 3;

impl Stage<'_> {
    pub(super) fn moves_plan(&self) -> Option<&MovesPlan> {
        self.plan.scopes.as_ref()?.moves.as_ref()
    }

    /// The scopes with fallback beside those that only fall back.
    pub(super) fn moving_scope(&self) -> Option<&'static str> {
        self.moves_plan().map(|_| MOVING)
    }

    /// What is locked in the scope that moves.
    pub(super) fn moved_name(&self) -> Option<String> {
        self.moves_plan().map(|_| MOVED.to_owned())
    }

    /// Clients begin to lock in the scope that moves.
    pub(super) fn begin_movers(&self) {
        let Some(plan) = self.moves_plan() else { return };
        self.moving.onward.store(plan.onward, Ordering::Relaxed);
        // Every scope begins where old clients are.
        self.moving.old_may_come.store(true, Ordering::Relaxed);
        if plan.recipe == Recipe::TokensLwt {
            self.begin_housekeeper(OPERATOR);
        }
        for place in 0..plan.clients.len() as u64 {
            self.begin_mover(FIRST + place);
        }
    }

    /// A housekeeper in the process of that number.
    fn begin_housekeeper(&self, number: u64) {
        let process = self.world.client_process(number);
        let (runtime, cassandra) = (process.runtime(), self.cassandra_of(number));
        let Ok(mut housekeeper) = Housekeeper::new(&cassandra, TokenTables::default(), TTL) else {
            return self.wrong("the housekeeper of the tokens does not start".to_owned());
        };
        let sweeping = async move {
            loop {
                // What was not answered is swept the next time.
                let _ = housekeeper.sweep().await;
                runtime.sleep(AGAIN).await;
            }
        };
        process.runtime().spawn("housekeeper", sweeping).detach();
    }

    /// Starts a client of the scope that moves: the first, or one in the place of another.
    pub(super) fn begin_mover(&self, number: u64) {
        let Some(moves) = self.moves_plan() else { return };
        let place = usize::try_from(number - FIRST).unwrap_or(0) % moves.clients.len();
        let plan = moves.clients[place];
        let base = self.locker_client(number, plan.rate, SESSION);
        let (process, id) = (self.world.client_process(number), base.id);
        let recipe = plan.mistaken.unwrap_or(moves.recipe);
        if recipe == Recipe::TokensLwt && self.plan.schedule == Some(Schedule::Recipe) {
            // Several housekeepers die, stall and meet, and the wall clocks of processes mean nothing.
            let wrong = i64::try_from(Draw::new(!base.seed).below(2 * WALL_SKEW_MS)).unwrap_or(0);
            process.set_wall_skew(wrong - WALL_SKEW_MS.cast_signed());
            self.begin_housekeeper(number);
        }
        let (wishes, numbers) = (moves.wishes, moves.numbers);
        let (moving, wrong) = (self.moving.clone(), self.wrong.clone());
        let client = Mover { base, recipe, plan, wishes, numbers, moving, wrong };
        let actor: Actor = begin(&process, &self.recorder, id, client.work());
        lock(&self.actors).insert(number, actor);
    }

    /// How many clients the scope that moves has.
    pub(super) fn movers(&self) -> u64 {
        self.moves_plan().map_or(0, |plan| plan.clients.len() as u64)
    }

    /// Operators move the scope and its sequences until the run's faults are over.
    pub(super) async fn operate_moves(&self) {
        join(self.move_to_and_fro(), self.move_sequences()).await;
    }

    async fn move_to_and_fro(&self) {
        let Some(plan) = self.moves_plan().filter(|plan| !plan.stays) else { return };
        let mut draw = Draw::new(self.plan.seed ^ OPERATOR);
        let end = self.runtime.clock.now() + self.plan.length();
        let Ok(scope) =
            ScopeModes::new(&self.cassandra_of(OPERATOR), MOVING, ModesTable::default())
        else {
            return self.wrong("no scope can be called as the moving one is".to_owned());
        };
        while self.runtime.clock.now() < end {
            self.runtime.sleep(Duration::from_millis(draw.below(plan.every_ms))).await;
            if draw.below(TURNS_ONE_IN) == 0 {
                self.moving.onward.fetch_xor(true, Ordering::Relaxed);
            }
            let left = end.saturating_since(self.runtime.clock.now());
            // Whether a move that was given up was made is seen by the next one.
            let _ = self.runtime.timeout(left, self.move_scope(&scope, draw.below(STAYS))).await;
        }
    }

    /// One stage on, or back. The table of modes shows no old client: the operator sees to it that none is there while a process may be native.
    async fn move_scope(&self, scope: &ScopeModes, stays: u64) {
        let moving = &self.moving;
        let moved = if moving.onward.load(Ordering::Relaxed) {
            // Those that come later wait until they may.
            if moving.old_may_come.swap(false, Ordering::Relaxed) {
                self.end_old_clients();
            }
            let Ok(seen) = scope.view().await else { return };
            if seen.stage == MoveStage::Both && self.old_clients_hold() {
                return;
            }
            scope.advance_from(&seen).await
        } else {
            let moved = scope.go_back().await;
            // At `both` a process that slipped in may be in `native` still.
            let there = moved.as_ref().is_ok_and(|stage| *stage == MoveStage::Cassandra);
            if there {
                moving.old_may_come.store(true, Ordering::Relaxed);
            }
            moved
        };
        if let Ok(stage) = &moved {
            moving.moves.fetch_add(1, Ordering::Relaxed);
            let native = stage.admits(LockerMode::Native);
            moving.moves_to_store.fetch_add(u64::from(native), Ordering::Relaxed);
        } else if let Ok(view) = scope.view().await {
            // There is nothing beyond: it stays there for a while.
            match view.stage {
                MoveStage::Fallback if stays == 0 => moving.onward.store(false, Ordering::Relaxed),
                MoveStage::Cassandra if stays == 0 => moving.onward.store(true, Ordering::Relaxed),
                _ => {}
            }
        }
    }

    /// All that live are killed; others come in their place, and wait until they may.
    fn end_old_clients(&self) {
        let Some(plan) = self.moves_plan() else { return };
        let is_old = |number: &u64| {
            let place = usize::try_from(number - FIRST).unwrap_or(0) % plan.clients.len();
            plan.clients[place].old
        };
        let living = self.living_clients().into_iter();
        let old: Vec<u64> =
            living.filter(|number| (FIRST..END).contains(number)).filter(is_old).collect();
        for number in old {
            self.replace_mover(number);
            *lock(&self.moving.old_ended) = Some(self.runtime.clock.now());
        }
    }

    /// What an old client was promised stands for a TTL after its end.
    fn old_clients_hold(&self) -> bool {
        lock(&self.moving.old_ended).is_some_and(|ended| self.runtime.clock.now() < ended + TTL)
    }

    fn replace_mover(&self, number: u64) {
        if let Some(actor) = lock(&self.actors).get(&number) {
            actor.dies();
        }
        self.world.kill_client(number);
        self.begin_mover(self.successor(number, FIRST..END, self.movers()));
    }

    /// What came of the moves.
    pub(super) fn count_moves(&self, counts: &mut Counts) {
        if self.moves_plan().is_none() {
            return;
        }
        let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        counts.moving_runs = 1;
        counts.scope_moves = of(&self.moving.moves);
        counts.moves_to_store = of(&self.moving.moves_to_store);
        counts.mode_changes = of(&self.moving.changes);
        counts.old_grants = of(&self.moving.old_grants);
        counts.moving_grants = of(&self.moving.our_grants);
        counts.moving_leaders = of(&self.moving.leaders);
        counts.moving_bunches = of(&self.moving.bunches);
        counts.sequence_moves = of(&self.moving.sequence_moves);
    }

    /// A process in `both`, which every stage but the last admits, gets the lock when all is healed (I31).
    pub(super) async fn moved_scope_is_served(&self) {
        let Some(recipe) = self.moves_plan().map(|plan| plan.recipe) else { return };
        let process = self.world.client_process(VISITOR);
        let builder = self.world.client_builder(VISITOR).ttl(Duration::from_secs(10));
        let (cassandra, runtime) = (self.cassandra_of(VISITOR), process.runtime());
        let visit = async move {
            let client = builder.connect().await.map_err(|error| format!("connect: {error}"))?;
            let scope = ScopeModes::new(&cassandra, MOVING, ModesTable::default());
            let scope = scope.map_err(|error| format!("the scope: {error}"))?;
            let back = async {
                // Rows of processes that were killed stand for a time.
                while scope.view().await.is_ok_and(|view| view.stage == MoveStage::Fallback) {
                    let _ = scope.go_back().await;
                    runtime.sleep(AGAIN).await;
                }
            };
            if runtime.timeout(SERVED_WITHIN, back).await.is_err() {
                return Err("it does not come back from its last stage".to_owned());
            }
            let by = (recipe, in_history(VISITOR));
            let locker = start(&cassandra, client.clone(), by, LockerMode::Both).await;
            let locker = locker.map_err(|error| format!("enter: {error}"))?;
            let guard = locker.acquire(MOVED, Wait::AtMost(SERVED_WITHIN)).await;
            let guard = guard.map_err(|error| format!("acquire: {error}"))?;
            guard.release().await.map_err(|error| format!("release: {error}"))?;
            drop(locker);
            cassandra.settled().await;
            client.close().await.map_err(|error| format!("close: {error}"))
        };
        match self.world.as_client(VISITOR, visit).await {
            Some(Ok(())) => {}
            Some(Err(why)) => {
                self.wrong(format!("I31: the scope that moves is not served in the end: {why}"));
            }
            None => {
                self.wrong(
                    "I32: the calls of the moving scope's last visitor never end".to_owned(),
                );
            }
        }
    }
}
