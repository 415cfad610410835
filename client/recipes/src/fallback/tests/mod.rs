//! The fallback on the model of the tables, beside a native store of two servers with real clients.

mod cluster;
mod keeper;
mod switches;

use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::authority::Durations;
use holdfast_runtime::Rng;
use holdfast_runtime::simulated::{Machine, Process};

use super::{Fallback, FallbackOptions};
use crate::cassandra::{Cassandra, LockerOptions};
use crate::lease::{Lease, LeaseTable};
use crate::model::Model;
use crate::modes::{Locker, LockerMode, ModesTable, ScopeModes, Stage};
use crate::statement::{Action, Ident, Statement, Value};
use crate::test_support::{cassandra, options};
use holdfast::Client;

use crate::Result;
use cluster::{Cluster, TTL};
use keeper::Keeper;

/// The scopes, which are independent of each other.
const SCOPES: [&str; 2] = ["a/", "b/"];
const W: Duration = secs(6);
const V: Duration = secs(4);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn below(process: &Process, number: u64) -> u64 {
    Rng::next_u64(process) % number
}

/// Both stores, and the processes at them.
struct World {
    machine: Machine,
    model: Model,
    cluster: Cluster,
    durations: Durations,
}

impl World {
    /// The scopes are native in their first epoch and at the last stage, and server 0 leads.
    fn new(seed: u64) -> Self {
        let machine = Machine::new(seed);
        let (model, cluster) = (Model::new(&machine), Cluster::new(&machine, &SCOPES));
        let durations = Durations::new(W, V).unwrap();
        let world = Self { machine, model, cluster, durations };
        for scope in SCOPES {
            world.write_row(scope, "native", 1, durations);
        }
        let expiry = world.cluster.clone().expire();
        world.machine.world().runtime().spawn("expiry", expiry).detach();
        world.elect(0);
        world
    }

    /// Overwrites the row of a scope.
    fn write_row(&self, scope: &str, mode: &str, epoch: i64, durations: Durations) {
        let ms = |length: Duration| Value::from(i64::try_from(length.as_millis()).unwrap());
        let cells = [
            ("mode", Value::from(mode)),
            ("epoch", Value::from(epoch)),
            ("beat", Value::from(0)),
            ("take_over_ms", ms(durations.take_over_wait())),
            ("hold_ms", ms(durations.v())),
        ];
        let cells = cells.map(|(name, value)| (Ident::new(name), Some(value))).into();
        let key = vec![(Ident::new("scope"), Value::from(scope))];
        let write = Action::UpdateIf { cells, ttl_s: None, only_if: Vec::new() };
        self.model.apply(&Statement::new(Ident::new("authority"), key, write));
    }

    /// Makes a server the leader.
    fn elect(&self, at: usize) {
        self.cluster.elect(at);
        let runtime = self.cluster.server(at).runtime();
        for scope in SCOPES {
            let keeper = Keeper::new(&self.cluster, at, scope, self.durations, &self.model);
            runtime.spawn("keeper", keeper.keep()).detach();
        }
    }

    /// Removes all servers, with everything that they had in memory.
    fn kill_servers(&self) {
        for at in 0..2 {
            self.cluster.replace(at, self.machine.process("server"));
        }
    }

    fn cassandra(&self, process: &Process) -> Cassandra {
        cassandra(&self.model, process)
    }

    fn options(process: &Process) -> LockerOptions {
        options(&process.name(), secs(20), secs(5))
    }

    /// A client that does not use Cassandra.
    fn client(&self, process: &Process) -> Client {
        Client::builder()
            .endpoints(["server:0", "server:1"])
            .ttl(TTL)
            .label(process.name())
            .runtime(process.runtime())
            .transport(Arc::new(self.cluster.clone()))
            .connect_lazy()
            .unwrap()
    }

    async fn locker(&self, process: &Process, scope: &str, mode: LockerMode) -> Result<Locker> {
        let (cassandra, options) = (self.cassandra(process), Self::options(process));
        let lease = Lease::new(&cassandra, &options, LeaseTable::default())?;
        let fallback = FallbackOptions::default().lease(options.clone());
        Locker::builder(&cassandra, scope, lease)
            .native(self.client(process))
            .fallback(fallback)
            .row(options.ttl(secs(60)))
            .start(mode)
            .await
    }

    fn scope(&self, scope: &str) -> ScopeModes {
        let world = self.cassandra(&self.machine.world());
        ScopeModes::new(&world, scope, ModesTable::default()).unwrap()
    }

    /// Moves each scope to the last stage.
    async fn open_the_last_stage(&self) {
        for scope in SCOPES {
            let modes = self.scope(scope);
            while modes.view().await.unwrap().stage < Stage::Fallback {
                modes.advance().await.unwrap();
            }
        }
    }
}
