//! Keeps the row of a scope on a server that believes that it leads: only the model's rules for servers.

use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::authority::{Authority, AuthorityRow, Change, Durations, Look, Mode};
use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Instant, Runtime};

use super::below;
use super::cluster::Cluster;
use crate::database::Tables;
use crate::model::Model;
use crate::statement::{Action, Ident, Statement, Value};

/// See the module.
pub(super) struct Keeper {
    pub(super) cluster: Cluster,
    /// The index of the server.
    pub(super) at: usize,
    pub(super) scope: &'static str,
    /// Its settings: W, by which it counts its authority, and V, which it writes while no hold is in Cassandra.
    pub(super) durations: Durations,
    /// Since the answer to the first of its consecutive bumps, between which no other server wrote.
    alone_since: Option<Instant>,
    tables: Arc<Tables>,
    authority: Authority,
    runtime: Runtime,
    process: Process,
    /// When the core's epoch may be raised, and to which.
    due: Option<(u16, Instant)>,
}

impl Keeper {
    pub(super) fn new(
        cluster: &Cluster,
        at: usize,
        scope: &'static str,
        durations: Durations,
        model: &Model,
    ) -> Self {
        let process = cluster.server(at);
        let runtime = process.runtime();
        let tables = Arc::new(Tables::new(Arc::new(model.clone()), runtime.clock.clone()));
        let authority = Authority::new(tables.clone(), runtime.clock.clone(), scope);
        let cluster = cluster.clone();
        Self {
            cluster,
            at,
            scope,
            durations,
            alone_since: None,
            tables,
            authority,
            runtime,
            process,
            due: None,
        }
    }

    /// Runs as long as the server believes that it leads.
    pub(super) async fn keep(mut self) {
        let mut row = None;
        while self.cluster.believes(self.at) {
            let Some(known) = row else {
                self.alone_since = None;
                row = match self.authority.read().await {
                    Ok(look) => self.learn(look),
                    Err(_) => None,
                };
                if row.is_none() {
                    self.sleep(self.durations.bump_every() / 4).await;
                }
                continue;
            };
            self.raise_core();
            row = self.step(known).await;
        }
    }

    async fn sleep(&self, length: Duration) {
        self.runtime.sleep(length).await;
    }

    /// Takes in a read: a native row above the core's epoch makes the raise of that epoch due.
    fn learn(&mut self, look: Look) -> Option<AuthorityRow> {
        let row = look.row?;
        let owes = row.mode == Mode::Native && row.epoch > self.cluster.epoch(self.scope);
        let running = self.due.filter(|(epoch, _)| *epoch == row.epoch);
        let due = running.unwrap_or((row.epoch, look.ended + row.durations.return_wait()));
        self.due = owes.then_some(due);
        Some(row)
    }

    fn raise_core(&mut self) {
        let now = self.runtime.clock.now();
        if let Some((epoch, at)) = self.due
            && at <= now
            && self.cluster.leads(self.at)
        {
            self.cluster.raise_epoch(self.scope, epoch);
            self.due = None;
        }
    }

    /// The row after the step; `None`: it has to be read.
    async fn step(&mut self, row: AuthorityRow) -> Option<AuthorityRow> {
        let core = self.cluster.epoch(self.scope);
        let epoch = row.epoch.max(core) + 1;
        let next = |mode| AuthorityRow { mode, epoch, beat: 0, ..row };
        match row.mode {
            Mode::Native if row.epoch < core => self.change(row, next(Mode::Native)).await,
            Mode::Native => {
                let durations = self.durations_to_write(row, core);
                let bumped = self.change(row, AuthorityRow { durations, ..row.bumped() }).await?;
                let pause = self.durations.bump_every().min(self.until_due());
                self.sleep(pause).await;
                Some(bumped)
            }
            Mode::Cassandra => {
                // The minimum time between switches.
                self.sleep(Duration::from_millis(below(&self.process, 15_000))).await;
                self.change(row, next(Mode::Draining)).await
            }
            Mode::Draining => {
                self.drain(row).await;
                self.change(row, next(Mode::Native)).await
            }
            Mode::Preparing | Mode::Retired => panic!("nobody wrote {row}"),
        }
    }

    /// A longer W at once, a shorter one when all authority counted by the longer one is over; V only in the core's epoch.
    fn durations_to_write(&self, row: AuthorityRow, core: u16) -> Durations {
        let (own, was) = (self.durations, row.durations);
        let now = self.runtime.clock.now();
        let alone = self.alone_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        let is_longer = own.take_over_wait() >= was.take_over_wait();
        let may_shorten = row.epoch == core && alone >= was.take_over_wait();
        Durations::of(
            if is_longer || may_shorten { own } else { was },
            if row.epoch == core { own } else { was },
        )
    }

    fn until_due(&self) -> Duration {
        let now = self.runtime.clock.now();
        self.due.map_or(Duration::MAX, |(_, at)| at.saturating_since(now))
    }

    /// A write starts only after a quorum round.
    async fn change(&mut self, from: AuthorityRow, to: AuthorityRow) -> Option<AuthorityRow> {
        if !self.cluster.leads(self.at) {
            self.sleep(Duration::from_millis(100)).await;
            return Some(from);
        }
        let Ok(Change::Done { began, ended }) = self.authority.change(from, to).await else {
            return None;
        };
        self.learn(Look { began, ended, row: Some(to) });
        if from.epoch == to.epoch {
            self.alone_since.get_or_insert(ended);
            let until = began + self.durations.authority();
            self.cluster.set_authority(self.at, self.scope, to.epoch, until);
        }
        Some(to)
    }

    /// Waits until no lease is left, or V is over.
    async fn drain(&self, row: AuthorityRow) {
        let limit = self.runtime.clock.now() + row.durations.v();
        while self.runtime.clock.now() < limit {
            let mut left = false;
            for bucket in row.buckets.all() {
                let key = vec![
                    (Ident::new("scope"), Value::from(self.scope)),
                    (Ident::new("bucket"), Value::from(bucket)),
                ];
                let columns = vec![Ident::new("owner")];
                let look = Statement::new(
                    Ident::new("fallback_leases"),
                    key,
                    Action::AllSerial { columns },
                );
                let rows = self.tables.read_all(look.partitioned_by(2)).await;
                left |= rows.is_ok_and(|rows| !rows.is_empty());
            }
            if !left {
                return;
            }
            self.sleep(Duration::from_millis(500)).await;
        }
    }
}
