//! The time service on three real Cassandra nodes: replicas as processes, some under wrong clocks, killed and frozen; an old replica, by
//! the statements of the thesis' listing 8, on the same cell; the order of a queue with the service and without it; wrong input.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast::Error;
use holdfast_recipes::TimeClient;
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{QUEUE, Stage, TIME};
use holdfast_tests::program::{Ended, Program, run};
use holdfast_tests::shim;
use nix::sys::signal::Signal;

/// How long a process may take to confirm a command, or to end.
const STEP_LIMIT: Duration = Duration::from_mins(1);
const SECOND_US: u64 = 1_000_000;

async fn sleep(milliseconds: u64) {
    Runtime::system().sleep(Duration::from_millis(milliseconds)).await;
}

fn wall_us() -> u64 {
    Runtime::system().clock.wall_ms() * 1_000
}

/// `holdfast cassandra` on this stage, by a wall clock that is ahead by this much.
fn start(stage: &Stage, skew_ms: i64, rest: &[&str]) -> Program {
    let place = ["cassandra", "--contact-points", stage.points(), "--keyspace", stage.keyspace()];
    let arguments: Vec<&str> = place.into_iter().chain(rest.iter().copied()).collect();
    if skew_ms == 0 {
        return Program::start("holdfast", &arguments);
    }
    let (skewed, by) = (shim::built("cassandra/clockskew.c"), skew_ms.to_string());
    let variables = [("LD_PRELOAD", skewed.to_str().unwrap()), ("CLOCK_SKEW_MS", &by)];
    Program::start_in("holdfast", &arguments, &variables)
}

/// A replica and its address.
struct Replica {
    program: Program,
    endpoint: String,
}

impl Replica {
    async fn start(stage: &Stage, skew_ms: i64, options: &[&str]) -> Self {
        let clock = ["clock", "--listen", "127.0.0.1:0", "--interval", "100ms"];
        let mut program = start(stage, skew_ms, &[&clock, options].concat());
        let endpoint = program.line("listening on ", STEP_LIMIT).await;
        Self { program, endpoint }
    }

    async fn many(stage: &Stage, skews_ms: &[i64]) -> Vec<Self> {
        join_all(skews_ms.iter().map(|skew_ms| Self::start(stage, *skew_ms, &[]))).await
    }

    /// Asks with a new client, which has seen no other answer.
    async fn now_us(&self) -> u64 {
        TimeClient::new([&self.endpoint]).unwrap().answer_limit(STEP_LIMIT).now_us().await.unwrap()
    }
}

/// Waits until the replica's time is past `us`.
async fn passes(replica: &Replica, us: u64) -> u64 {
    let limit = Runtime::system().clock.now() + STEP_LIMIT * 2;
    loop {
        let now_us = replica.now_us().await;
        if now_us > us {
            return now_us;
        }
        assert!(Runtime::system().clock.now() < limit, "it stands at {now_us}");
        sleep(50).await;
    }
}

/// §6 of the thesis, with our replicas: one is ten minutes ahead (which this test allows), and is killed.
#[tokio::test]
async fn time_goes_on_over_a_killed_replica_that_was_ahead() {
    let stage = Stage::set("clock_ahead", &[TIME]).await;
    let living = Replica::many(&stage, &[0, -2_000]).await;
    let ahead = Replica::start(&stage, 600_000, &["--max-ahead", "20m"]).await;
    let reached = passes(&living[0], wall_us() + 590 * SECOND_US).await;
    ahead.program.signal(Signal::SIGKILL);
    assert_eq!(ahead.program.end(STEP_LIMIT).await.code, None);

    let (mut last, goal) = (reached, living[1].now_us().await + 2 * SECOND_US);
    assert!(goal > reached);
    let clock = Runtime::system().clock;
    let killed = clock.now();
    while last < goal {
        for replica in &living {
            last = passes(replica, last).await;
        }
    }
    // Two replicas advance at half the rate of a watch as well: 4 s; and while the machine stalls, watches go on.
    let took = clock.now().saturating_since(killed);
    assert!(took < STEP_LIMIT / 3, "the time of the living took {took:?} for two seconds");
    assert!(last > wall_us() + 100 * SECOND_US, "nobody's clock has come so far");
    for Replica { mut program, .. } in living {
        let said = program.line("the time is ", STEP_LIMIT).await;
        assert!(said.contains("s ahead of this machine's clock"), "{said}");
        program.signal(Signal::SIGTERM);
        let ended = program.end(STEP_LIMIT).await;
        assert_eq!((ended.code, ended.out.lines().count()), (Some(0), 2), "{ended:?}");
    }
}

/// The same with an old replica, which does not check how far ahead it may be.
#[tokio::test]
async fn time_goes_on_where_an_old_replica_left_it() {
    let stage = Stage::set("clock_old", &[TIME]).await;
    let living = Replica::many(&stage, &[0, 0]).await;
    let before = living[0].now_us().await;
    let local_time = wall_us() + 600 * SECOND_US;
    let overwrite = format!(
        "INSERT INTO clock_old.global_time (name, value) VALUES ('GlobalTime', {local_time}) \
         USING TIMESTAMP {local_time}"
    );
    stage.query(&overwrite).await;
    let first = passes(&living[1], local_time).await;
    let second = passes(&living[0], first + SECOND_US).await;
    assert!(before < local_time && second > first);

    // A replica whose clock is years ahead gets an error, and changes nothing.
    let mut mad = Replica::start(&stage, 100_000_000_000, &[]).await;
    let said = mad.program.line("this machine's clock is not believed", STEP_LIMIT).await;
    assert!(said.contains("--max-ahead"), "{said}");
    let third = passes(&mad, second).await;
    assert!(third < wall_us() + 700 * SECOND_US, "{third}");
}

/// Eight clients ask any of three replicas, each time as a new client, while one replica is killed and started again, and one is frozen.
#[tokio::test]
async fn no_answer_of_any_replica_is_less_than_one_before() {
    let stage = Stage::set("clock_order", &[TIME]).await;
    let mut replicas = Replica::many(&stage, &[0, 5_000, -5_000]).await;
    let (largest, answers) = (AtomicU64::new(0), AtomicU64::new(0));
    let ask = async |endpoints: &[String], nth: usize| {
        for turn in 0..40 {
            let endpoint = &endpoints[(nth + turn) % endpoints.len()];
            let floor = largest.load(Ordering::SeqCst);
            match TimeClient::new([endpoint]).unwrap().now_us().await {
                Ok(now_us) => {
                    assert!(now_us >= floor, "{endpoint}: {now_us} after {floor}");
                    largest.fetch_max(now_us, Ordering::SeqCst);
                    answers.fetch_add(1, Ordering::SeqCst);
                }
                Err(Error::Unreachable { .. }) => sleep(20).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    for round in 0..3 {
        let endpoints: Vec<String> = replicas.iter().map(|one| one.endpoint.clone()).collect();
        let asking = join_all((0..8).map(|nth| ask(&endpoints, nth)));
        let disturbing = async {
            sleep(100).await;
            replicas[round].program.signal(Signal::SIGSTOP);
            replicas[(round + 1) % 3].program.signal(Signal::SIGKILL);
            sleep(1_000).await;
            replicas[round].program.signal(Signal::SIGCONT);
        };
        futures_util::join!(asking, disturbing);
        replicas[(round + 1) % 3] = Replica::start(&stage, 0, &[]).await;
    }
    println!("{} answers", answers.load(Ordering::SeqCst));
    assert!(answers.load(Ordering::SeqCst) > 100);
}

/// The article's scenario, with an hour instead of a second: `a` waits, `b` comes later with a clock that is behind. Returns the order in
/// which they are granted.
async fn order(stage: &Stage, lock: &str, by: Option<&Replica>) -> String {
    let service = by.map(|replica| ["--time-service", replica.endpoint.as_str()]);
    let service = service.as_ref().map_or(&[][..], |service| &service[..]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("order");
    let says = |name: &str| format!("echo {name} >>{}", file.display());
    let wait = async |skew_ms: i64, shell: &str, place: usize| {
        let command = ["queue", "lock", lock];
        let shell = ["--", "sh", "-c", shell];
        let program = start(stage, skew_ms, &[&command[..], service, &shell[..]].concat());
        in_line(stage, lock, place).await;
        if let Some(replica) = by {
            passes(replica, replica.now_us().await).await;
        }
        program
    };
    let mut holder = wait(0, "echo on; sleep 600", 1).await;
    holder.line("on", STEP_LIMIT).await;
    let a = wait(0, &says("a"), 2).await;
    let b = wait(-3_600_000, &says("b"), 3).await;
    // `a` reads the queue from its own place on, and the whole of it once in ten seconds: then it sees that `b` stands before it.
    sleep(11_000).await;
    holder.signal(Signal::SIGTERM);
    for program in [holder, a, b] {
        let ended = program.end(STEP_LIMIT).await;
        assert!(matches!(ended.code, Some(0 | 143)), "{ended:?}");
    }
    std::fs::read_to_string(file).unwrap().replace('\n', " ")
}

/// Waits until so many clients have their place in the queue.
async fn in_line(stage: &Stage, lock: &str, number: usize) {
    let places =
        format!("SELECT column1 FROM {}.lock_queue WHERE key = '{lock}'", stage.keyspace());
    let limit = Runtime::system().clock.now() + STEP_LIMIT;
    loop {
        let there = stage.query(&places).await;
        if there.into_rows_result().unwrap().rows_num() == number {
            return;
        }
        assert!(Runtime::system().clock.now() < limit, "never {number} in line");
        sleep(50).await;
    }
}

#[tokio::test]
async fn a_clock_that_is_behind_is_first_in_line_but_by_the_time_service() {
    let stage = Stage::set("clock_queue", &[QUEUE, TIME]).await;
    let replica = Replica::start(&stage, 0, &[]).await;
    let (local, served) =
        tokio::join!(order(&stage, "local", None), order(&stage, "served", Some(&replica)));
    assert_eq!((local.as_str(), served.as_str()), ("b a ", "a b "));
}

fn expect(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.err.contains(says), "{says:?} is not in {:?}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{:?}", ended.err);
}

/// A cell that contains no time, an address on which no process can listen.
#[tokio::test]
async fn what_a_replica_cannot_work_with_is_named_and_ends_it() {
    let stage = Stage::set("clock_bad", &[TIME]).await;
    let listening = async |at: &str, rest: &[&str]| {
        start(&stage, 0, &[&["clock", "--listen", at], rest].concat()).end(STEP_LIMIT).await
    };
    let clock = async |names: &[&str]| {
        let line = [names, &["clock", "--listen", "127.0.0.1:0"]].concat();
        start(&stage, 0, &line).end(STEP_LIMIT).await
    };
    let session = stage.session();
    let put = "INSERT INTO clock_bad.global_time (name, value) VALUES";
    for made in [
        "CREATE TABLE IF NOT EXISTS clock_bad.words (name text PRIMARY KEY, value text)",
        "INSERT INTO clock_bad.words (name, value) VALUES ('GlobalTime', 'noon')",
        &format!("{put} ('below', -5)"),
        &format!("{put} ('beyond', 253402300800000000)"),
    ] {
        session.query_unpaged(made, ()).await.unwrap();
    }
    let missing = clock(&["--time-table", "nowhere"]).await;
    expect(&missing, 122, "table nowhere: ");
    assert!(missing.err.contains("holdfast cassandra schema"), "{missing:?}");
    expect(&clock(&["--time-table", "words"]).await, 122, "table words: \"GlobalTime\" has Text(");
    let other = clock(&["--time-table", "words", "--time-cell", "new"]).await;
    expect(&other, 122, "its columns are of other types than the recipe's");
    expect(&clock(&["--time-cell", "below"]).await, 122, "\"below\" has -5, which is no time");
    expect(&clock(&["--time-cell", "beyond"]).await, 122, "has 253402300800000000, which is no");

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    expect(&listening(&taken, &[]).await, 125, &format!("cannot listen at {taken}: "));
    expect(&listening("nonsense", &[]).await, 125, "cannot listen at nonsense: ");
    let often = listening("127.0.0.1:0", &["--interval", "1ms"]).await;
    assert!(often.code == Some(125) && often.err.contains("\"1ms\" is not between"), "{often:?}");
    let nobody = ["cassandra", "--contact-points", "127.255.255.1:9", "--keyspace", "clock_bad"];
    let nobody = [&nobody[..], &["clock", "--listen", "127.0.0.1:0"]].concat();
    expect(&run("holdfast", &nobody).await, 123, "no answer from Cassandra at 127.255.255.1:9");
}

/// A queue with a service that is not running, that does not answer, or of which one replica answers.
#[tokio::test]
async fn a_queue_without_its_time_is_told_so_and_takes_no_other() {
    let stage = Stage::set("clock_silent", &[QUEUE, TIME]).await;
    let replica = Replica::start(&stage, 0, &[]).await;
    // It accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap().to_string();
    let attempt = async |service: &str| {
        let line = ["queue", "try", "--time-service", service, "job", "--", "true"];
        start(&stage, 0, &line).end(STEP_LIMIT).await
    };
    let says = "no answer from the time service at 127.0.0.1:9 within ";
    expect(&attempt("127.0.0.1:9").await, 123, says);
    expect(&attempt(&at).await, 123, &format!("{at}: no answer within 2s"));
    expect(&attempt("somewhere").await, 125, "endpoint somewhere is neither host:port");

    let ended = attempt(&format!("127.0.0.1:9,{at},{}", replica.endpoint)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    drop(silent);
}

/// With the certificates that `holdfast cert` makes.
#[tokio::test]
async fn a_service_with_tls_and_a_token_tells_the_time_to_whoever_proves_itself() {
    let stage = Stage::set("clock_tls", &[QUEUE, TIME]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let certs = folder.path().to_str().unwrap();
    for made in [&["ca"][..], &["node", "--id", "1", "--address", "127.0.0.1"], &["client", "app"]]
    {
        let made = [&["cert"], &made[..1], &["--dir", certs], &made[1..]].concat();
        let ended = run("holdfast", &made).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    std::fs::write(path("token"), "hft_00\n").unwrap();
    let (ca, token) = (path("ca.pem"), path("token"));
    let (node, node_key) = (path("node-1.pem"), path("node-1.key"));
    let (app, app_key) = (path("app.pem"), path("app.key"));
    let shared = ["--ca", &ca, "--token-file", &token];
    let own = ["--cert", &node, "--key", &node_key];
    let replica = Replica::start(&stage, 0, &[shared, own].concat()).await;

    let attempt = async |options: &[&str]| {
        let line = ["queue", "try", "--time-service", &replica.endpoint, "job"];
        start(&stage, 0, &[&line[..], options, &["--", "true"]].concat()).end(STEP_LIMIT).await
    };
    let mine = ["--cert", &app, "--key", &app_key];
    let ended = attempt(&[shared, mine].concat()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    expect(&attempt(&shared).await, 123, "received fatal alert");
    let tokenless = [&shared[..2], &mine].concat();
    expect(&attempt(&tokenless).await, 122, "it wants a token, and none was shown");
    let half = start(&stage, 0, &["clock", "--listen", "127.0.0.1:0", "--ca", &ca]);
    expect(&half.end(STEP_LIMIT).await, 125, "--ca needs --cert and --key here");
}
