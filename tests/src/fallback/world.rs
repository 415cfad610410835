//! Servers whose scope falls back on real Cassandra nodes, processes that lock its names, and the properties that they check: tokens that
//! rise, and no two safe holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::{Admin, Client, Error, ScopeStatus};
use holdfast_recipes::{Locker, LockerOptions, ModesTable, ScopeModes, Stage, Wait};
use holdfast_runtime::{Runtime, Task};

use super::{SCOPE, TABLES, V, W, locker, settings};
use crate::cassandra::Stage as Nodes;
use crate::cluster::{Cluster, Setup};
use crate::history::{ClientId, Record};
use crate::recipe::{WORK, longest_pause};
use crate::remote::RemoteScribe;
use crate::run::judge;
use crate::tokens::Tokens;

/// The names that workers lock.
pub const NAMES: [&str; 3] = ["job/a", "job/b", "job/c"];
/// The longest time from a fault to the first grant of the store that serves then, as `docs/migration.md` states it, times several for a
/// slow machine.
pub const SWITCHED_WITHIN: Duration = Duration::from_mins(1);
/// The longest time without a grant of a name when a scope changes its store, as `docs/migration.md` states it, on a machine and nodes that
/// never stall: W, the time to find that no node answers, and a round of checks.
const PAUSES_FOR: Duration = Duration::from_secs(W.as_secs() + 3);
/// One statement of unknown outcome may come on top of that.
const UNKNOWN_FOR: Duration = Duration::from_secs(4);
/// The interval between two checks whether everything goes on.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
/// How long an operator's request may take.
const ADMIN_LIMIT: Duration = Duration::from_secs(20);

/// The authority row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The store that serves.
    pub mode: String,
    /// The epoch of the tokens granted meanwhile.
    pub epoch: i64,
    /// How often the leader has bumped the row.
    pub beat: i64,
}

/// Servers whose scope falls back on these nodes, and the rest of what a run needs.
#[derive(Debug)]
pub struct World {
    /// The nodes that the scope falls back on.
    pub nodes: Nodes,
    /// The servers, which serve as long as they can.
    pub cluster: Cluster,
    /// The tokens of all grants.
    pub tokens: Tokens,
    admin: Admin,
    /// The total time of stalls, nanoseconds.
    stood_still: Arc<AtomicU64>,
    _watching: Task,
}

impl World {
    /// The settings of three servers that fall back on these nodes.
    pub fn setup(nodes: &Nodes) -> Setup {
        Setup::nodes(3).with_fallback(&settings(nodes.points(), nodes.keyspace()))
    }

    /// Starts with the scope set, served natively, and open to processes that fall back.
    pub async fn start(keyspace: &'static str) -> Self {
        let nodes = Nodes::set(keyspace, &TABLES).await;
        let cluster = Cluster::start(&Self::setup(&nodes)).await;
        Self::of(nodes, cluster).await
    }

    /// The same with the leases in Cassandra spread over so many partitions.
    pub async fn start_in_partitions(keyspace: &'static str, partitions: u16) -> Self {
        let nodes = Nodes::set(keyspace, &TABLES).await;
        let settings = settings(nodes.points(), nodes.keyspace());
        let settings = format!("{settings}lease_partitions = {partitions}\n");
        let cluster = Cluster::start(&Setup::nodes(3).with_fallback(&settings)).await;
        Self::of(nodes, cluster).await
    }

    /// The same for running servers that have [`World::setup`].
    pub async fn of(nodes: Nodes, cluster: Cluster) -> Self {
        let endpoints = cluster.endpoints();
        let admin = Client::builder().endpoints(endpoints.split(',')).admin(ADMIN_LIMIT).unwrap();
        admin.set_scope(SCOPE).await.unwrap();
        let (stood_still, watching) = watch_the_machine(&nodes);
        let tokens = Tokens::default();
        let world = Self { nodes, cluster, admin, tokens, stood_still, _watching: watching };
        world.row_is("native").await;
        let shown = world.scope().await;
        assert_eq!((shown.take_over, shown.hold), (Some(W), Some(V)), "the row's, as set");
        let scope = ScopeModes::new(&world.nodes.cassandra(), SCOPE, ModesTable::default());
        let scope = scope.unwrap();
        // An earlier run on the same nodes may have moved it already.
        while scope.view().await.unwrap().stage != Stage::Fallback {
            scope.advance().await.unwrap();
        }
        world
    }

    /// The scope as its leader reports it.
    pub async fn scope(&self) -> ScopeStatus {
        self.admin.scopes().await.unwrap().scopes.remove(0)
    }

    /// Waits until the leader knows that the row has this mode.
    pub async fn row_is(&self, mode: &str) {
        let is_so = |scope: &ScopeStatus| scope.row.as_ref().is_some_and(|(said, _)| said == mode);
        self.comes_to(is_so, mode).await;
    }

    /// Waits until the scope is served natively after a switch, and reports no problem.
    pub async fn is_well(&self) {
        let is_so = |scope: &ScopeStatus| {
            scope.switches >= 1 && scope.trouble.is_none() && !scope.suspended
        };
        self.comes_to(is_so, "well").await;
    }

    /// Waits until the scope reports no problem.
    pub async fn is_calm(&self) {
        let is_so = |scope: &ScopeStatus| scope.trouble.is_none() && !scope.suspended;
        self.comes_to(is_so, "calm").await;
    }

    async fn comes_to(&self, is_so: impl Fn(&ScopeStatus) -> bool, what: &str) {
        let coming = async {
            while !is_so(&self.scope().await) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let within = Runtime::system().timeout(SWITCHED_WITHIN, coming).await;
        assert!(within.is_ok(), "the scope is not {what}: {:?}", self.scope().await);
    }

    /// The row itself, whichever node leads. The read does not contend with the processes that decide by the row.
    pub async fn row(&self) -> Row {
        let keyspace = self.nodes.keyspace();
        let text =
            format!("SELECT mode, epoch, beat FROM \"{keyspace}\".authority WHERE scope = ?");
        let read = loop {
            // Nodes that stall for a while answer with an error.
            if let Ok(read) = self.nodes.session().query_unpaged(text.as_str(), (SCOPE,)).await {
                break read.into_rows_result().unwrap();
            }
            sleep(Duration::from_millis(100)).await;
        };
        let (mode, epoch, beat): (String, _, _) = read.first_row().unwrap();
        // Behind it stands the number of partitions, where that is not 16.
        let mode = mode.split('/').next().unwrap_or_default().to_owned();
        Row { mode, epoch, beat }
    }

    /// A process of its own, as far as locks are concerned.
    pub async fn enter(&self, id: u64) -> (Locker, RemoteScribe) {
        self.enter_with(id, LockerOptions::default().ttl(secs(9)).max_skew(secs(3))).await
    }

    /// The same with other leases in Cassandra.
    pub async fn enter_with(&self, id: u64, options: LockerOptions) -> (Locker, RemoteScribe) {
        let options = options.service(format!("client-{id}"));
        let endpoints = self.cluster.endpoints();
        let locker = locker(&self.nodes.cassandra(), &endpoints, &options).await;
        let fenced = self.tokens.of(Arc::new(locker.clone()));
        let scribe = RemoteScribe::of(fenced, ClientId(id), self.nodes.recorder().clone());
        (locker, scribe)
    }

    /// Processes 1 to `number`, which work on [`NAMES`].
    pub async fn workers(&self, number: u64) -> Workers {
        Workers(join_all((1..=number).map(|id| self.enter(id))).await)
    }

    /// The epoch in which `client` held `name` for a moment. On a slow machine authority may pass before it releases.
    pub async fn hold(&self, client: &RemoteScribe, name: &str) -> u64 {
        let held = client.acquire(name, Wait::AtMost(secs(60))).await.unwrap();
        let epoch = self.tokens.last_epoch(name);
        held.keep(Duration::from_millis(50)).await;
        match held.release().await {
            Ok(()) | Err(Error::Lost { .. }) => epoch,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Ends all servers with SIGKILL.
    pub fn kill_all(&mut self) {
        (0..3).for_each(|index| self.cluster.kill(index));
    }

    /// Starts all servers again.
    pub fn start_all(&mut self) {
        (0..3).for_each(|index| self.cluster.start_node(index));
    }

    /// Judges the records of this run and of `others`.
    #[expect(clippy::print_stdout, reason = "what was measured is shown with the test's output")]
    pub fn judge(&self, others: Vec<Vec<Record>>) -> Pauses {
        let records = self.nodes.recorder().take();
        let longest = longest_pause(&records);
        let report = judge([vec![records], others].concat());
        let stood_still = Duration::from_nanos(self.stood_still.load(Ordering::Relaxed));
        println!(
            "{:?} grants by epoch, longest pause {longest:?}, everything stood still for {stood_still:?}\n{report}",
            self.tokens.by_epoch()
        );
        Pauses { longest: longest.map(|(length, _)| length).unwrap_or_default(), stood_still }
    }
}

/// The times without a grant of a name in a run.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// The longest of them.
    pub longest: Duration,
    /// The total time in which the machine, or Cassandra, did not answer a plain request.
    pub stood_still: Duration,
}

impl Pauses {
    /// Fails the test if one was longer than documented, and neither machine nor nodes are to blame.
    pub fn are_as_documented(self) {
        assert!(self.longest <= PAUSES_FOR + UNKNOWN_FOR + self.stood_still, "{self:?}");
    }
}

/// Counts the time of stalls: this process does not run, or no node answers a read of one row.
fn watch_the_machine(nodes: &Nodes) -> (Arc<AtomicU64>, Task) {
    let stood_still = Arc::new(AtomicU64::new(0));
    let (session, counted) = (nodes.session().clone(), stood_still.clone());
    let text = format!("SELECT beat FROM \"{}\".authority WHERE scope = ?", nodes.keyspace());
    let watching = Runtime::system().spawn("watches-the-machine", async move {
        let clock = Runtime::system().clock;
        loop {
            let looked = clock.now();
            sleep(LOOKS_EVERY).await;
            // A read that is refused, or of unknown outcome, took its time as well.
            let _ = session.query_unpaged(text.as_str(), (SCOPE,)).await;
            let blink = clock.now().saturating_since(looked).saturating_sub(2 * LOOKS_EVERY);
            counted
                .fetch_add(u64::try_from(blink.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    });
    (stood_still, watching)
}

/// Processes that lock [`NAMES`] in turn.
pub struct Workers(Vec<(Locker, RemoteScribe)>);

impl Workers {
    /// Lets them work as long as `act` goes on.
    pub async fn work_during(&self, act: impl Future<Output = ()>) {
        let stop = AtomicBool::new(false);
        let is_over = || stop.load(Ordering::Relaxed);
        let working = self.0.iter().map(|(_, client)| client.work(&NAMES, WORK, is_over));
        let acting = async {
            act.await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(join_all(working), acting);
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Workers").field(&self.0.len()).finish()
    }
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}
