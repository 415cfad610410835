//! Three real Cassandra nodes, run by `tests/cassandra/nodes`: those that `tests/run` has started,
//! or a suite's own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::{Cassandra, Layout, RemoteLocker, Schema, SerialScope};
use holdfast_runtime::{Runtime, select};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::response::query_result::QueryResult;
use tempfile::TempDir;

use crate::check::Report;
use crate::history::{ClientId, Recorder};
use crate::program::Program;
use crate::remote::RemoteScribe;
use crate::run::judge;

/// The variable in which `tests/run` names its running nodes.
const RUN: &str = "HOLDFAST_TEST_NODES";

/// How often a test's own statement is sent before its time-out fails the test.
const TRIES: usize = 5;

/// Nodes 1 to 3. Dropping this ends those that are a suite's own.
#[derive(Debug)]
pub struct Nodes {
    run: PathBuf,
    own: Option<TempDir>,
}

impl Nodes {
    /// Starts three nodes, or finds those of `tests/run`.
    pub async fn start() -> Self {
        if let Some(run) = std::env::var_os(RUN) {
            let nodes = Self { run: run.into(), own: None };
            nodes.mend().await;
            return nodes;
        }
        Self::start_own(&[]).await
    }

    /// Starts one node of its own.
    pub async fn start_one() -> Self {
        Self::start_own(&["1"]).await
    }

    /// Starts one node of its own that requires a login (role and password: `cassandra`).
    pub async fn start_one_with_login() -> Self {
        Self::start_own(&["1", "login"]).await
    }

    /// Starts one node of its own that takes nobody without TLS, a certificate and a login, and lets each role do what it was granted.
    pub async fn start_one_secured() -> Self {
        Self::start_own(&["1", "secure"]).await
    }

    /// Starts one node of its own that fails a read of more than 250 tombstones, a four-hundredth of what nodes fail at.
    pub async fn start_one_of_few_tombstones() -> Self {
        Self::start_own(&["1", "tombstones"]).await
    }

    /// Starts one node of its own with `RandomPartitioner`.
    pub async fn start_one_of_random_tokens() -> Self {
        Self::start_own(&["1", "random"]).await
    }

    /// The `paxos_variant` of these nodes.
    pub fn paxos(&self) -> String {
        std::fs::read_to_string(self.run.join("paxos")).unwrap().trim().to_owned()
    }

    /// The files of TLS of a node that was started secured.
    pub fn tls_folder(&self) -> PathBuf {
        self.run.join("tls")
    }

    /// Starts four nodes of its own: 1 and 2 in the datacenter `dc1`, 3 and 4 in `dc2`, each datacenter in a network namespace of its
    /// own. Needs root.
    pub async fn start_two_datacenters() -> Self {
        Self::start_own(&["datacenters"]).await
    }

    /// From now on nothing passes between the two datacenters.
    pub async fn cut_datacenters(&self) {
        self.call("cut", &[]).await;
    }

    /// It does again.
    pub async fn mend_datacenters(&self) {
        self.call("mend", &[]).await;
    }

    /// Begins a program in the network of a datacenter.
    pub fn start_in(&self, datacenter: &str, program: &Path, arguments: &[&str]) -> Program {
        let keeper = std::fs::read_to_string(self.run.join(datacenter)).unwrap();
        let network = format!("--net=/proc/{}/ns/net", keeper.trim());
        let line = [network.as_str(), program.to_str().unwrap()];
        let line: Vec<&str> = line.into_iter().chain(arguments.iter().copied()).collect();
        Program::start_at(&PathBuf::from("/usr/bin/nsenter"), &line)
    }

    async fn start_own(how: &[&str]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let nodes = Self { run: own.path().join("nodes"), own: Some(own) };
        nodes.call("up", how).await;
        nodes
    }

    /// An earlier test may have left a node dead, or with a wrong clock. Of tests that begin
    /// together, also in other suites, one mends them.
    async fn mend(&self) {
        let _turn = self.turn("mend").await;
        for node in 1..=3 {
            let skew = std::fs::read_to_string(self.run.join(format!("n{node}/skew_ms"))).unwrap();
            self.signal(node, Signal::SIGCONT);
            if skew.trim() != "0" {
                self.kill(node).await;
            }
            self.restart_if_dead(node).await;
        }
    }

    async fn restart_if_dead(&self, node: u8) {
        let folder = self.run.join(format!("n{node}"));
        let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
        let line = std::fs::read(Path::new("/proc").join(pid.trim()).join("cmdline"));
        if line.is_err() {
            std::fs::write(folder.join("skew_ms"), "0").unwrap();
            self.restart(node).await;
        }
    }

    /// Waits until no other test makes tables; the turn ends when this is dropped. Nodes that are
    /// asked for two changes at once disagree on the schema for a while, and send each other all of
    /// it until they agree.
    pub async fn turn_of_schema(&self) -> File {
        self.turn("schema").await
    }

    /// A turn among all tests and suites on these nodes.
    async fn turn(&self, of: &str) -> File {
        let path = self.run.join(format!("{of}.lock"));
        let waiting = tokio::task::spawn_blocking(move || {
            let file = File::create(path).unwrap();
            file.lock().unwrap();
            file
        });
        waiting.await.unwrap()
    }

    /// `host:port`, separated by commas.
    pub async fn contact_points(&self) -> String {
        self.call("addresses", &[]).await.trim().to_owned()
    }

    /// Ends a node with SIGKILL.
    pub async fn kill(&self, node: u8) {
        self.call("kill", &[&node.to_string()]).await;
    }

    /// Starts a node again, with its data, and waits until it is ready.
    pub async fn restart(&self, node: u8) {
        self.call("start", &[&node.to_string()]).await;
    }

    /// Sends a signal to a node, if it runs.
    fn signal(&self, node: u8, signal: Signal) {
        let folder = self.run.join(format!("n{node}"));
        let pid = std::fs::read_to_string(folder.join("pid")).unwrap();
        let line = std::fs::read(Path::new("/proc").join(pid.trim()).join("cmdline"));
        let is_the_node = line
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(folder.to_str().unwrap()));
        if is_the_node {
            kill(Pid::from_raw(pid.trim().parse().unwrap()), signal).unwrap();
        }
    }

    /// While `work` goes on, all nodes run for `run` and then stand still for `still`, again and again: a statement takes as long as that.
    pub async fn mostly_still<T>(
        &self,
        still: Duration,
        run: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        struct Running<'a>(&'a Nodes);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                (1..=3).for_each(|node| self.0.signal(node, Signal::SIGCONT));
            }
        }
        let runtime = Runtime::system();
        let stopping = async {
            loop {
                (1..=3).for_each(|node| self.signal(node, Signal::SIGSTOP));
                let running = Running(self);
                runtime.sleep(still).await;
                drop(running);
                runtime.sleep(run).await;
            }
        };
        select! {
            done = work => done,
            never = stopping => never,
        }
    }

    /// From now on a node's wall clock is ahead by this much.
    pub async fn skew(&self, node: u8, ahead: Duration) {
        self.call("skew", &[&node.to_string(), &ahead.as_millis().to_string()]).await;
        // The shim reads its file every 100 ms.
        Runtime::system().sleep(Duration::from_millis(200)).await;
    }

    /// A session of the driver, like one of a user of the library.
    pub async fn session(&self) -> Arc<Session> {
        Arc::new(self.builder().await.build().await.unwrap())
    }

    /// The same, for nodes that require a login.
    pub async fn session_as(&self, user: &str, password: &str) -> Arc<Session> {
        Arc::new(self.builder().await.user(user, password).build().await.unwrap())
    }

    async fn builder(&self) -> SessionBuilder {
        let points = self.contact_points().await;
        let agreed_every = Duration::from_millis(50);
        SessionBuilder::new().known_nodes(points.split(',')).schema_agreement_interval(agreed_every)
    }

    async fn call(&self, command: &str, arguments: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cassandra/nodes");
        let mut command_line = Command::new(script);
        command_line.arg(command).arg(&self.run).args(arguments);
        let called = tokio::task::spawn_blocking(move || command_line.output());
        let output = called.await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nodes {command}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if self.own.is_some() {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cassandra/nodes");
            // A failure leaves processes behind; the next line of the test's output reports it.
            let ended = Command::new(script).arg("down").arg(&self.run).status();
            assert!(ended.is_ok_and(|status| status.success()), "the nodes did not end");
        }
    }
}

/// Three nodes with recipes' tables in a keyspace, and a history.
#[derive(Debug)]
pub struct Stage {
    nodes: Nodes,
    points: String,
    keyspace: &'static str,
    session: Arc<Session>,
    recorder: Recorder,
}

/// Tables of the schema, by their purpose.
pub type Tables = &'static [&'static str];
/// The tables of the lease.
pub const LEASE: Tables = &["leases", "sequences"];
/// The tables of the queue.
pub const QUEUE: Tables = &["lock_queue", "lock_main"];
/// The tables of the tokens.
pub const TOKENS: Tables = &["tokens", "token_times"];
/// The tables of the bakery in the wiki's form.
pub const BAKERY: Tables = &["numbers", "choosing"];
/// The tables of the thesis' older recipe; it shares the table of main rows with the queue.
pub const SHADOW: Tables = &["lock_main", "lock_shadow"];
/// The tables of the tokens without LWT.
pub const OPTIMISTIC: Tables = &["optimistic_tokens"];
/// The table of lockers that move.
pub const MODES: Tables = &["locker_modes"];
/// The tables of scopes that fall back.
pub const FALLBACK: Tables = &["authority", "fallback_leases", "fences"];
/// The table of the time service.
pub const TIME: Tables = &["global_time"];
/// The tables of the work queues.
pub const WORK: Tables =
    &["work_details", "work_choosing", "work_numbers", "work_hours", "work_aside", "work_slots"];

impl Stage {
    /// Makes the keyspace, and these tables of the schema, unless they are there: each takes three
    /// nodes on two cores half a second. Tests that share a keyspace have locks of different names.
    pub async fn set(keyspace: &'static str, wanted: &[Tables]) -> Self {
        let nodes = Nodes::start().await;
        let points = nodes.contact_points().await;
        let session = nodes.session().await;
        let recorder = Recorder::in_memory(Runtime::system().clock);
        let stage = Self { nodes, points, keyspace, session, recorder };
        stage.make_of(&Schema::new(keyspace).replicated(3), wanted).await;
        stage
    }

    /// Makes these tables of the layout, unless they are there.
    pub async fn make(&self, layout: Layout, wanted: Tables) {
        self.make_of(&Schema::new(self.keyspace).named(layout), &[wanted]).await;
    }

    async fn make_of(&self, schema: &Schema, wanted: &[Tables]) {
        let is_wanted = |statement: &String| {
            let names = |table: &&str| statement.contains(&format!(".\"{table}\" ("));
            statement.starts_with("CREATE KEYSPACE") || wanted.iter().copied().flatten().any(names)
        };
        let _turn = self.nodes.turn_of_schema().await;
        for statement in schema.statements().into_iter().filter(is_wanted) {
            self.query(&statement).await;
        }
        // Another test may have made them since this session began.
        self.session.refresh_metadata().await.unwrap();
    }

    /// Empties these tables, unless they are empty: emptying takes three nodes a long time.
    pub async fn empty(&self, tables: Tables) {
        for table in tables {
            let table = format!("\"{}\".{table}", self.keyspace);
            let first = format!("SELECT * FROM {table} LIMIT 1");
            let first = self.query(&first).await;
            if first.into_rows_result().unwrap().rows_num() > 0 {
                self.query(&format!("TRUNCATE {table}")).await;
            }
        }
    }

    /// Runs a statement that does no harm when it is applied twice. On a busy machine the nodes let
    /// some run out of time, and whether one of those is applied is not known.
    pub async fn query(&self, statement: &str) -> QueryResult {
        let mut tries = 1;
        loop {
            match self.session.query_unpaged(statement, ()).await {
                Ok(result) => return result,
                Err(error) if tries < TRIES && ran_out_of_time(&error) => tries += 1,
                Err(error) => panic!("{statement}: {error}"),
            }
        }
    }

    /// As [`Stage::query`], with `k.` for the keyspace.
    pub async fn cql(&self, statement: &str) -> QueryResult {
        self.query(&statement.replace("k.", &format!("\"{}\".", self.keyspace))).await
    }

    /// The nodes: a test can kill, restart and skew them.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// `host:port`, separated by commas.
    pub fn points(&self) -> &str {
        &self.points
    }

    /// The name of the keyspace.
    pub fn keyspace(&self) -> &str {
        self.keyspace
    }

    /// The session that all lockers share.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Writes the history.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The keyspace for one more client, which counts as a process of its own for locks.
    pub fn cassandra(&self) -> Cassandra {
        Cassandra::new(self.session.clone(), self.keyspace, &SerialScope::Cluster).unwrap()
    }

    /// Clients 1 to `number`, each with the locker that `make` makes for its service.
    pub fn clients(
        &self,
        number: u64,
        make: impl Fn(&str) -> Arc<dyn RemoteLocker>,
    ) -> Vec<RemoteScribe> {
        let client = |id| {
            let locker = make(&format!("client-{id}"));
            RemoteScribe::of(locker, ClientId(id), self.recorder.clone())
        };
        (1..=number).map(client).collect()
    }

    /// Lets `clients` work on `names` while `act` runs; then judges them.
    pub async fn under_load(
        self,
        clients: Vec<RemoteScribe>,
        names: &[&str],
        act: impl AsyncFnOnce(&Nodes),
    ) -> Report {
        let stop = AtomicBool::new(false);
        let length = Duration::from_millis(20);
        let is_over = || stop.load(Ordering::Relaxed);
        let working = clients.iter().map(|client| client.work(names, length, is_over));
        let acting = async {
            act(&self.nodes).await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(join_all(working), acting);
        judge(vec![self.recorder.take()])
    }
}

/// Whether the nodes did not answer in time: the statement may be applied.
fn ran_out_of_time(error: &ExecutionError) -> bool {
    use RequestAttemptError::DbError as OfNode;
    matches!(
        error,
        ExecutionError::RequestTimeout(_)
            | ExecutionError::LastAttemptError(OfNode(
                DbError::WriteTimeout { .. } | DbError::ReadTimeout { .. },
                _
            ))
    )
}
