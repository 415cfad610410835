//! From locks on Cassandra to the native store and back, on three real Cassandra nodes and three real holdfastd: old clients of
//! `tests/legacy` beside processes in `both`, a whole move under load, the command line. Every run writes a history, which the judge of all
//! runs checks; the native tokens have to rise as well.
//!
//! Needs what `cassandra_legacy` needs.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::Client;
use holdfast_recipes::{
    Cassandra, Contact, Lease, LeaseTable, Locker, LockerMode, LockerOptions, ModesTable,
    MoveRefused, ScopeModes, SerialScope, Stage,
};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{FALLBACK, LEASE, MODES, QUEUE, Stage as Nodes, TOKENS};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::legacy;
use holdfast_tests::program::{Ended, Program, run};
use holdfast_tests::python::Python;
use holdfast_tests::recipe::{LockProcess, Party, Recipe, Times, WORK};
use holdfast_tests::remote::RemoteScribe;
use holdfast_tests::tokens::Tokens;

/// The first client of an old process; ours are below.
const OLD: u64 = 1_000;
const NAMES: [&str; 2] = ["a", "b"];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn sleep(length: Duration) {
    Runtime::system().sleep(length).await;
}

fn python() -> Python {
    legacy::python(env!("CARGO_TARGET_TMPDIR"), "cassandra_modes")
}

/// Processes of ours, as far as locks are concerned: each with a session, a locker and a row of its own.
struct Crew<'a> {
    party: &'a Party<'a>,
    nodes: &'a Nodes,
    cluster: &'a Cluster,
    scope: String,
    tokens: Tokens,
}

impl Crew<'_> {
    async fn enter(&self, id: u64, mode: LockerMode) -> (Locker, RemoteScribe) {
        let service = format!("client-{id}");
        let client = Client::connect(self.cluster.endpoints().split(',')).await.unwrap();
        let locker =
            Locker::builder(&self.nodes.cassandra(), &self.scope, self.party.locker(&service))
                .native(client)
                .start(mode)
                .await
                .unwrap();
        let fenced = self.tokens.of(Arc::new(locker.clone()));
        (locker, self.party.scribe(fenced, id))
    }

    /// Old clients, three threads that hold for 30 ms at a time.
    async fn old(&self, python: &Python, id: u64, names: &[&str]) -> LockProcess {
        let task = [&["work", "3", "30", "20"][..], names].concat();
        let mut old = self.party.foreign(python.program(), &legacy::script("client.py"), id, &task);
        old.says("ready").await;
        old
    }
}

/// By three recipes at the same time: `both` keeps out a client that knows only the recipe's tables, and such a client keeps out `both`.
#[tokio::test]
async fn old_clients_and_processes_in_both_exclude_each_other() {
    let python = python();
    let nodes = Nodes::set("modes_old", &[LEASE, QUEUE, TOKENS, MODES]).await;
    nodes.empty(MODES).await;
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    // For a `Locker` the bakery is like the queue; `cassandra_legacy` tests it with its old clients.
    let recipes = [Recipe::Lease, Recipe::Queue, Recipe::TokensLwt];
    join_all(recipes.map(|recipe| beside_old_clients(&python, &nodes, &cluster, recipe))).await;
}

async fn beside_old_clients(python: &Python, nodes: &Nodes, cluster: &Cluster, recipe: Recipe) {
    // A scope is tied to the first recipe by which a process of it locks.
    let prefix = format!("{}/", recipe.name());
    // An old client that ends in the middle of an insert leaves its token to a housekeeper: another run uses other names.
    let run = Runtime::system().clock.wall_ms();
    let names = NAMES.map(|name| format!("{prefix}{name}/{run}"));
    let names = names.each_ref().map(String::as_str);
    let scope = ScopeModes::new(&nodes.cassandra(), &prefix, ModesTable::default()).unwrap();
    let party = Party::new(nodes, recipe, Times::USUAL);
    let tokens = Tokens::default();
    let crew = Crew { party: &party, nodes, cluster, scope: prefix, tokens };
    let ours: Vec<_> = join_all((1..=4).map(|id| crew.enter(id, LockerMode::Both))).await;
    let old = crew.old(python, OLD, &names).await;
    let over = AtomicBool::new(false);
    let is_over = || over.load(Ordering::Relaxed);
    let working = ours.iter().map(|(_, client)| client.work(&names, WORK, is_over));
    let passing = async {
        party.pass_locks(OLD, 4, secs(8)).await;
        over.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(working), passing);
    old.end().await;
    let names_fenced = crew.tokens.locks();
    drop((ours, crew));
    is_left_by_all(&scope).await;
    let (report, records) = party.judge_and_keep();
    let (to_us, to_them) = legacy::passed(&records, OLD);
    println!("{recipe:?}: {to_us} times from an old client to ours, {to_them} back: {report}");
    assert!(
        to_us >= 4 && to_them >= 4 && names_fenced == 2,
        "{recipe:?}: {to_us} {to_them} {report}"
    );
}

/// The scope of all names, at its first stage and without processes, whatever an earlier run on the same nodes has left.
async fn scope_of_all(nodes: &Nodes) -> ScopeModes {
    nodes.empty(MODES).await;
    ScopeModes::new(&nodes.cassandra(), "", ModesTable::default()).unwrap()
}

/// Waits until every process has taken its row back.
async fn is_left_by_all(scope: &ScopeModes) {
    let emptied = async {
        while !scope.view().await.unwrap().processes.is_empty() {
            sleep(Duration::from_millis(200)).await;
        }
    };
    Runtime::system().timeout(secs(20), emptied).await.unwrap();
}

/// How many processes the refusal of a move names.
fn in_the_way(moved: Result<Stage, MoveRefused>) -> usize {
    match moved.unwrap_err() {
        MoveRefused::InTheWay { processes, .. } => processes.len(),
        other => panic!("{other}"),
    }
}

/// Six processes work all the time. Old clients come and go as the scope allows; every process is moved by itself; no process is stopped.
/// And all the way back.
#[tokio::test]
async fn processes_move_from_cassandra_to_native_and_back_under_load() {
    let python = python();
    let nodes = Nodes::set("modes_move", &[LEASE, MODES]).await;
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    let scope = scope_of_all(&nodes).await;
    let party = Party::new(&nodes, Recipe::Lease, Times::USUAL);
    let (scope_name, tokens) = (String::new(), Tokens::default());
    let crew = Crew { party: &party, nodes: &nodes, cluster: &cluster, scope: scope_name, tokens };
    let entering = (1..=6).map(|id| crew.enter(id, LockerMode::Cassandra));
    let (lockers, clients): (Vec<_>, Vec<_>) = join_all(entering).await.into_iter().unzip();

    let stop = AtomicBool::new(false);
    let working =
        clients.iter().map(|client| client.work(&NAMES, WORK, || stop.load(Ordering::Relaxed)));
    let all_to = async |mode: LockerMode| {
        for locker in &lockers {
            locker.set_mode(mode).await.unwrap();
            sleep(Duration::from_millis(300)).await;
        }
        sleep(secs(2)).await;
    };
    let moving = async {
        let old = crew.old(&python, OLD, &NAMES).await;
        sleep(secs(3)).await;
        assert_eq!(in_the_way(scope.advance().await), 6);
        lockers[0].set_mode(LockerMode::Both).await.unwrap();
        let refused = lockers[0].set_mode(LockerMode::Native).await.unwrap_err().to_string();
        assert!(
            refused.contains("is at cassandra, where no process may enter native"),
            "{refused}"
        );
        assert_eq!(in_the_way(scope.advance().await), 5);
        all_to(LockerMode::Both).await;
        // Old clients are still there: `both` keeps them out.
        party.pass_locks(OLD, 4, Duration::ZERO).await;
        old.end().await;
        assert_eq!(scope.advance().await, Ok(Stage::Both));
        assert_eq!(scope.advance().await, Ok(Stage::Native));
        all_to(LockerMode::Native).await;
        let modes = scope.view().await.unwrap().processes;
        assert!(
            modes.iter().all(|one| one.mode == LockerMode::Native) && modes.len() == 6,
            "{modes:?}"
        );

        assert_eq!(in_the_way(scope.go_back().await), 6);
        all_to(LockerMode::Both).await;
        assert_eq!(scope.go_back().await, Ok(Stage::Both));
        assert_eq!(scope.go_back().await, Ok(Stage::Cassandra));
        let old = crew.old(&python, OLD + 100, &NAMES).await;
        all_to(LockerMode::Cassandra).await;
        old.end().await;
        stop.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all(working), moving);
    drop((clients, lockers));
    is_left_by_all(&scope).await;
    let (report, records) = party.judge_and_keep();
    let (to_us, to_them) = legacy::passed(&records, OLD);
    println!("{to_us} times from an old client to ours, {to_them} back: {report}");
    assert!(to_us >= 4 && to_them >= 4 && report.tally.safe_holds > 50, "{report}");
}

/// A process that ends without taking back its row: the row is in the way for its TTL, and no longer.
#[tokio::test]
async fn a_process_that_died_is_in_the_way_until_the_ttl_of_its_row_is_over() {
    let nodes = Nodes::set("modes_dead", &[LEASE, MODES]).await;
    let scope = scope_of_all(&nodes).await;
    let (points, keyspace) = (nodes.points().to_owned(), nodes.keyspace().to_owned());
    let dying = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let locker = runtime.block_on(async {
            let contact = Contact::new(&points).limit(secs(20));
            let on = Cassandra::connect(&contact, &keyspace, &SerialScope::Cluster).await.unwrap();
            let options = LockerOptions::default().ttl(secs(9)).max_skew(secs(3));
            let lease = Lease::new(&on, &options, LeaseTable::default()).unwrap();
            let locker = Locker::builder(&on, "", lease).row(options);
            locker.start(LockerMode::Cassandra).await.unwrap()
        });
        // Its tasks are gone before they can take back the row.
        drop(runtime);
        drop(locker);
    });
    tokio::task::spawn_blocking(|| dying.join().unwrap()).await.unwrap();
    let clock = Runtime::system().clock;
    let died = clock.now();
    while let Err(refused) = scope.advance().await {
        assert!(matches!(refused, MoveRefused::InTheWay { .. }), "{refused}");
        sleep(Duration::from_millis(200)).await;
    }
    let took = clock.now().saturating_since(died);
    assert!(took > secs(5) && took < secs(14), "{took:?}");
    assert_eq!(scope.advance().await, Ok(Stage::Native), "nothing else is in the way");
}

/// `--mode both` excludes either side and passes on the token; the row is gone with the command.
#[tokio::test]
async fn the_command_line_locks_in_both_stores() {
    let nodes = Nodes::set("modes_line", &[LEASE, MODES, FALLBACK]).await;
    let scope = scope_of_all(&nodes).await;
    let cluster = Cluster::start(&Setup::nodes(3)).await;
    let endpoints = cluster.endpoints();
    let place = ["cassandra", "--contact-points", nodes.points(), "--keyspace", nodes.keyspace()];
    let line = |rest: &[&'static str]| [&place[..], rest].concat();
    let call = async |rest: &[&'static str]| -> Ended {
        let line = [&line(rest)[..], &["--", "true"]].concat();
        run("holdfast", &[&["--endpoints", endpoints.as_str()][..], &line].concat()).await
    };
    let native =
        async || run("holdfast", &["--endpoints", &endpoints, "try", "jobs", "--", "true"]).await;

    let holding = line(&["lease", "lock", "--mode", "both", "jobs", "--", "sh", "-c"]);
    let shell = "echo \"token $HOLDFAST_TOKEN\"; echo held; sleep 60";
    let holding = [&["--endpoints", endpoints.as_str()][..], &holding, &[shell]].concat();
    let mut holder = Program::start("holdfast", &holding);
    holder.line("held", secs(20)).await;
    assert_eq!(call(&["lease", "try", "jobs"]).await.code, Some(124), "an old client is kept out");
    assert_eq!(native().await.code, Some(124), "and a native one");
    let modes: Vec<_> = scope.view().await.unwrap().processes.iter().map(|one| one.mode).collect();
    assert_eq!(modes, [LockerMode::Both]);
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    let ended = holder.end(secs(10)).await;
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
    assert!(ended.out.starts_with("token ") && !ended.out.starts_with("token \n"), "{ended:?}");
    assert_eq!(call(&["lease", "try", "jobs"]).await.code, Some(0));
    assert_eq!(native().await.code, Some(0));
    assert_eq!(scope.view().await.unwrap().processes, []);
    the_command_line_leads_in_both_stores(&endpoints, &place).await;

    let refused = call(&["lease", "try", "--mode", "native", "jobs"]).await;
    assert_eq!(refused.code, Some(122), "{refused:?}");
    assert!(
        refused.err.contains("is at cassandra, where no process may enter native"),
        "{refused:?}"
    );
    let outside = call(&["lease", "try", "--mode", "both", "--scope", "orders/", "jobs"]).await;
    assert_eq!(outside.code, Some(122), "{outside:?}");
    let nowhere =
        [&line(&["lease", "try", "--mode", "both", "jobs"])[..], &["--", "true"]].concat();
    let nowhere = run("holdfast", &nowhere).await;
    assert_eq!(nowhere.code, Some(125), "{nowhere:?}");
    assert!(nowhere.err.contains("say where, with --endpoints"), "{nowhere:?}");
    assert_eq!(scope.advance().await, Ok(Stage::Both));
    assert_eq!(scope.advance().await, Ok(Stage::Native));
    let other = call(&["queue", "try", "--mode", "native", "jobs"]).await;
    assert_eq!(other.code, Some(122), "{other:?}");
    assert!(other.err.contains("is tied to the recipe \"lease"), "{other:?}");
    let moved = call(&["lease", "try", "--mode", "native", "jobs"]).await;
    assert_eq!(moved.code, Some(0), "{moved:?}");
}

/// A leader by `--mode both` is seen by observers of either store, and keeps out whoever asks for the lock.
async fn the_command_line_leads_in_both_stores(endpoints: &str, place: &[&str]) {
    let line = |rest: &[&'static str]| [&["--endpoints", endpoints][..], place, rest].concat();
    let work = ["head", "--value", "db1", "--", "sh", "-c", "echo on; sleep 60"];
    let leading = [&["lease", "elect", "--mode", "both"][..], &work].concat();
    let mut leader = Program::start("holdfast", &line(&leading));
    leader.line("on", secs(20)).await;
    let observed = ["lease", "observe", "--once", "head"];
    for asked in [
        line(&observed),
        line(&[&observed[..], &["--mode", "both"]].concat()),
        vec!["--endpoints", endpoints, "leader", "head"],
    ] {
        let told = run("holdfast", &asked).await;
        assert_eq!((told.code, told.out.trim()), (Some(0), "db1"), "{asked:?}: {told:?}");
    }
    let asks = async |names: &[&'static str]| {
        let asked = [&["lease", "try", "--mode", "both"][..], names, &["--", "true"]].concat();
        run("holdfast", &line(&asked)).await.code
    };
    assert_eq!(asks(&["--any", "head", "jobs"]).await, Some(0), "jobs is free");
    assert_eq!(asks(&["head"]).await, Some(124));
    leader.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(leader.end(secs(10)).await.code, Some(128 + 15));
}

/// The authority row of a scope on real nodes, whose servers are gone: the command line takes it over, locks under tokens that rise,
/// and is stopped when the scope goes back.
#[tokio::test]
async fn the_command_line_takes_a_scope_over_and_is_stopped_when_it_goes_back() {
    let nodes = Nodes::set("modes_fallback", &[LEASE, MODES, FALLBACK]).await;
    for tables in [MODES, FALLBACK] {
        nodes.empty(tables).await;
    }
    let scope = ScopeModes::new(&nodes.cassandra(), "orders/", ModesTable::default()).unwrap();
    while scope.view().await.unwrap().stage < Stage::Fallback {
        scope.advance().await.unwrap();
    }
    let write = async |mode: &str, epoch: u16| {
        let (table, row) = ("modes_fallback.authority", "WHERE scope = 'orders/' IF EXISTS");
        let set = format!("UPDATE {table} SET mode = '{mode}', epoch = {epoch} {row}");
        nodes.query(&set).await;
    };
    nodes.query(
        "INSERT INTO modes_fallback.authority (scope, mode, epoch, beat, take_over_ms, hold_ms) \
         VALUES ('orders/', 'native', 3, 17, 9000, 6000) IF NOT EXISTS",
    )
    .await;
    let place = ["cassandra", "--contact-points", nodes.points(), "--keyspace", nodes.keyspace()];
    let mode = ["--mode", "fallback", "--scope", "orders/"];
    let line = |rest: &[&'static str]| {
        let nobody = ["--endpoints", "127.255.255.1:9"];
        let lock = ["lease", "lock"];
        [&nobody[..], &place, &lock, &mode, &["orders/1", "--"], rest].concat()
    };
    let clock = Runtime::system().clock;
    let began = clock.now();

    let ended = Program::start("holdfast", &line(&["sh", "-c", "echo $HOLDFAST_TOKEN"]));
    let ended = ended.end(secs(60)).await;
    let token = |number: u64| format!("{}\n", (4_u64 << 48) + number);
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), token(1).as_str()), "{ended:?}");
    assert!(clock.now().saturating_since(began) > secs(9), "it waited W");
    let mut holder =
        Program::start("holdfast", &line(&["sh", "-c", "echo $HOLDFAST_TOKEN; sleep 90"]));
    holder.line(token(2).trim(), secs(30)).await;
    write("draining", 5).await;
    sleep(secs(7)).await;
    assert_eq!(scope.view().await.unwrap().processes.len(), 1, "who holds goes on while it drains");
    write("native", 6).await;
    let ended = holder.end(secs(20)).await;
    assert_eq!(ended.code, Some(121), "{ended:?}");
    let left = nodes.query("SELECT owner FROM modes_fallback.fallback_leases").await;
    assert_eq!(left.into_rows_result().unwrap().rows_num(), 0, "the lease is given back");
}
