//! Scopes with fallback in a simulated run: an operator sets them, clients lock in them, things go wrong that only they notice, and
//! in the end the native store serves every name again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_core::{Command, ScopePrefix};
use holdfast_keyspace::model::Odds;
use holdfast_recipes::{ModesTable, ScopeModes, Stage as MoveStage, Wait};
use holdfast_server::consensus::{Consensus as _, propose};

use super::client::{Actor, begin};
use super::counts::Counts;
use super::fault::{CutOff, Fault};
use super::move_stage::{END as MOVERS_END, FIRST as MOVERS};
use super::schedule::Schedule;
use super::scope_client::{NAMES, SCOPES, ScopeClient, epoch_of, judged};
use super::scope_plan::ScopesPlan;
use super::stage::{STAGE, Stage, in_history, lock};
use super::work::{END as WORKERS_END, FIRST as WORKERS};
use crate::history::{ClientId, Record, What};
use crate::remote::RemoteScribe;
use crate::sim::{Crash, Host, apart};

/// The number of the first client that locks in scopes. Clients that come in the place of others count on.
pub(super) const FIRST: u64 = 2_300_000;
/// The operator's number, and the last visitor's.
const OPERATOR: u64 = 2_290_000;
const VISITOR: u64 = 2_290_001;
/// Between two tries of the operator.
const AGAIN: Duration = Duration::from_millis(500);
/// How long the last visitor waits for a name: the row comes back to the native store after a switch, a drain, and the waits
/// of a leader that did not make the row what it is, each of which may meet an answer that is late.
const SERVED_WITHIN: Duration = Duration::from_mins(3);

/// Whether it locks in the scopes that do not move: each of its grants has a token.
fn is_of_a_scope_client(client: ClientId) -> bool {
    (in_history(OPERATOR)..in_history(MOVERS)).contains(&client)
}

impl Stage<'_> {
    fn scopes_plan(&self) -> Option<&ScopesPlan> {
        self.plan.scopes.as_ref()
    }

    /// The scopes are set and opened, and clients begin to lock in them.
    pub(super) fn begin_scopes(&self) {
        let Some(plan) = self.scopes_plan() else { return };
        let names = NAMES.map(str::to_owned).into_iter();
        let prefixes = names.chain(self.moved_name()).chain(self.items_prefix()).collect();
        // Tokens of two names of a scope are in no order in Cassandra: each name is judged by itself.
        self.recorder.write(STAGE, What::Scopes { prefixes });
        self.begin_opening();
        for place in 0..plan.clients.len() as u64 {
            self.begin_scope_client(FIRST + place);
        }
        self.begin_movers();
        self.begin_workers();
    }

    /// An operator moves each scope to its last stage, as soon as the tables let it.
    fn begin_opening(&self) {
        let process = self.world.client_process(OPERATOR);
        let cassandra = self.cassandra_of(OPERATOR);
        let (runtime, stopped) = (process.runtime(), self.ends.stop.subscribe());
        let opening = async move {
            for scope in SCOPES {
                let Ok(modes) = ScopeModes::new(&cassandra, scope, ModesTable::default()) else {
                    return;
                };
                while !*stopped.borrow()
                    && !modes.view().await.is_ok_and(|view| view.stage == MoveStage::Fallback)
                {
                    let _ = modes.advance().await;
                    runtime.sleep(AGAIN).await;
                }
            }
        };
        process.runtime().spawn("operator", opening).detach();
    }

    /// The scopes are set in the table, by whoever leads.
    pub(super) async fn set_scopes(&self) {
        if self.scopes_plan().is_none() {
            return;
        }
        let scopes = SCOPES.into_iter().chain(self.moving_scope());
        for scope in scopes.map(|scope| ScopePrefix::parse(scope).expect("a prefix")) {
            loop {
                let is_set = || {
                    let replica = self.world.replica(self.world.leader()?)?;
                    let mut set = false;
                    replica.read(&mut |table, _| {
                        set = table.scopes().any(|view| *view.scope == scope);
                    });
                    Some(set)
                };
                if is_set() == Some(true) || *self.ends.stop.borrow() {
                    break;
                }
                let command = Command::SetScope { scope: scope.clone() };
                let asked = self.world.ask_leader(move |replica| async move {
                    // Whether it was is looked at.
                    let _ = propose(&*replica, command).await;
                });
                let _ = self.runtime.timeout(Duration::from_secs(10), asked).await;
                self.runtime.sleep(AGAIN).await;
            }
        }
    }

    /// Notes in which epochs the native store is.
    pub(super) fn look_at_scopes(&self) {
        let scoped = self.scopes_plan().and_then(|_| self.world.replica(self.world.leader()?));
        let Some(leader) = scoped else { return };
        leader.read(&mut |table, _| {
            let seen = table
                .scopes()
                .map(|view| (view.scope.as_str().to_owned(), u64::from(view.state.epoch)));
            lock(&self.native_epochs).extend(seen);
        });
    }

    /// What was granted in which store: a token's epoch says it.
    pub(super) fn count_scopes(&self, history: &[Record], counts: &mut Counts) {
        if self.scopes_plan().is_none() {
            return;
        }
        counts.scoped_runs = 1;
        self.count_moves(counts);
        self.count_work(counts);
        let native = lock(&self.native_epochs);
        let mut epochs = BTreeSet::new();
        for record in history.iter().filter(|record| is_of_a_scope_client(record.client)) {
            let What::Granted { token, names, .. } = &record.what else { continue };
            for name in names {
                let scope = SCOPES.into_iter().find(|scope| name.starts_with(scope));
                let epoch = (scope.unwrap_or_default().to_owned(), epoch_of(*token));
                let by_store = if native.contains(&epoch) {
                    &mut counts.scope_grants
                } else {
                    &mut counts.fallback_grants
                };
                *by_store += 1;
                epochs.insert(epoch);
            }
        }
        counts.scope_epochs = epochs.len() as u64;
        counts.scheduled += match self.plan.schedule {
            Some(Schedule::Switches) => counts.scope_epochs,
            Some(Schedule::Moves) => counts.scope_moves,
            Some(Schedule::Recipe) => counts.old_grants + counts.moving_grants,
            _ => 0,
        };
    }

    fn begin_scope_client(&self, number: u64) {
        let Some(plan) = self.scopes_plan() else { return };
        let place = usize::try_from(number - FIRST).unwrap_or(0) % plan.clients.len();
        let client = plan.clients[place];
        let base = self.locker_client(number, client.rate, Duration::from_millis(client.ttl_ms));
        let (process, id) = (self.world.client_process(number), base.id);
        let scoped = ScopeClient { base, plan: client };
        let actor: Actor = begin(&process, &self.recorder, id, scoped.work());
        lock(&self.actors).insert(number, actor);
    }

    /// The clients that lock in scopes, also in one that moves, or work on items, and live.
    fn scope_clients(&self) -> Vec<u64> {
        self.living_clients().into_iter().filter(|number| *number >= FIRST).collect()
    }

    fn scope_client(&self, place: u64) -> Option<u64> {
        let clients = self.scope_clients();
        let place = usize::try_from(place).unwrap_or(0) % clients.len().max(1);
        clients.get(place).copied()
    }

    /// Strikes with a fault of scopes; `None` if there was nothing to strike.
    pub(super) async fn strike_scopes(&self, fault: Fault, lasts: Duration) -> Option<()> {
        self.scopes_plan()?;
        let keyspace = self.world.keyspace();
        match fault {
            Fault::Outage => self.outage(lasts).await,
            Fault::StoreAway => {
                let clients: Vec<Host> =
                    self.scope_clients().into_iter().map(Host::Client).collect();
                let nodes: Vec<Host> = self.world.nodes().into_iter().map(Host::Node).collect();
                self.cut(apart(&clients, &nodes), lasts).await?;
            }
            Fault::TablesAway(who) => {
                let hosts = self.hosts_of(who)?;
                keyspace.cut_off(&hosts);
                self.runtime.sleep(lasts).await;
                keyspace.mend(&hosts);
            }
            Fault::TablesUnsure { answer_lost, request_lost, late, unavailable } => {
                keyspace.model().set_odds(Odds { answer_lost, request_lost, late, unavailable });
                self.runtime.sleep(lasts).await;
                keyspace.model().set_odds(Odds::default());
            }
            Fault::SlowTables(per_mille) => {
                keyspace.model().set_slow(per_mille);
                self.runtime.sleep(lasts).await;
                keyspace.model().set_slow(0);
            }
            Fault::TablesClock(coordinator, ahead_ms) => {
                let coordinator = usize::try_from(coordinator).unwrap_or(0);
                keyspace.model().set_skew(coordinator, i64::try_from(ahead_ms).unwrap_or(0));
            }
            Fault::PauseScopeClient(place) => {
                let number = self.scope_client(place)?;
                self.world.pause_client(number);
                self.runtime.sleep(lasts).await;
                self.living(number)?;
                self.world.resume_client(number);
            }
            Fault::KillScopeClient(place) => self.kill_scope_client(place, lasts).await?,
            _ => return None,
        }
        Some(())
    }

    /// Every node is killed, and comes back after so long.
    async fn outage(&self, lasts: Duration) {
        let nodes: Vec<u64> =
            self.world.nodes().into_iter().filter(|id| !self.has_left(*id)).collect();
        let until = self.runtime.clock.now() + lasts;
        // Another fault may bring one of them back meanwhile.
        while self.runtime.clock.now() < until {
            for id in &nodes {
                self.world.crash(*id, Crash::Process);
            }
            self.runtime.sleep(AGAIN).await;
        }
        join_all(nodes.iter().map(|id| self.returns(*id))).await;
    }

    fn hosts_of(&self, who: CutOff) -> Option<Vec<Host>> {
        let clients = self.scope_clients().into_iter().map(Host::Client);
        Some(match who {
            CutOff::Leader => vec![Host::Node(self.world.leader()?)],
            CutOff::Clients => clients.collect(),
            CutOff::Client(place) => vec![Host::Client(self.scope_client(place)?)],
            CutOff::Everybody => {
                clients.chain(self.world.nodes().into_iter().map(Host::Node)).collect()
            }
        })
    }

    async fn kill_scope_client(&self, place: u64, lasts: Duration) -> Option<()> {
        let clients = self.scopes_plan()?.clients.len() as u64;
        let number = self.scope_client(place)?;
        lock(&self.actors).get(&number)?.dies();
        self.world.kill_client(number);
        self.runtime.sleep(lasts).await;
        if number < MOVERS {
            self.begin_scope_client(self.successor(number, FIRST..MOVERS, clients));
        } else if number < MOVERS_END {
            self.begin_mover(self.successor(number, MOVERS..MOVERS_END, self.movers()));
        } else {
            self.begin_worker(self.successor(number, WORKERS..WORKERS_END, self.workers()));
        }
        Some(())
    }

    /// The number of the client that comes in the place of another one, whose numbers are `of`: a new one, at the same place of the
    /// plan, which has so many.
    pub(super) fn successor(&self, number: u64, of: Range<u64>, clients: u64) -> u64 {
        let first = of.start;
        let last = lock(&self.actors).range(of).next_back().map_or(0, |(last, _)| last - first);
        first + last + clients - last % clients + (number - first) % clients
    }

    /// A client that comes when all is healed, and knows the native store alone, is granted every name of the scopes (I31).
    pub(super) async fn scopes_are_served(&self) {
        if self.scopes_plan().is_none() {
            return;
        }
        let process = self.world.client_process(VISITOR);
        let builder = self.world.client_builder(VISITOR).ttl(Duration::from_secs(10));
        let (recorder, runtime) = (self.recorder.of(process.clone()), process.runtime());
        let visit = async move {
            let client = builder.connect().await.map_err(|error| format!("connect: {error}"))?;
            let locker = std::sync::Arc::new(client.clone());
            let scribe =
                RemoteScribe::of(locker, in_history(VISITOR), recorder).on(runtime).fenced(judged);
            for name in NAMES {
                let held = scribe.acquire(name, Wait::AtMost(SERVED_WITHIN)).await;
                let held = held.map_err(|error| format!("{name}: {error}"))?;
                held.release().await.map_err(|error| format!("{name}: {error}"))?;
            }
            client.close().await.map_err(|error| format!("close: {error}"))
        };
        match self.world.as_client(VISITOR, visit).await {
            Some(Ok(())) => {}
            Some(Err(why)) => self.wrong(format!("I31: a scope is not served in the end: {why}")),
            None => self.wrong("I32: the calls of the scopes' last visitor never end".to_owned()),
        }
    }
}
