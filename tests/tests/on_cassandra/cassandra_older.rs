//! The recipes that their own articles gave up, on three real Cassandra nodes: the older one of the thesis (`shadow`) and the optimistic
//! tokens. Bursts and livelock are measured and printed; the test asserts that no two clients hold at once, which the judge of all runs
//! checks.
//!
//! Old clients of both beside ours are in `cassandra_legacy.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be, and show what they saw"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_recipes::Wait;
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::{OPTIMISTIC, QUEUE, SHADOW, Stage};
use holdfast_tests::draw::Draw;
use holdfast_tests::history::{Record, What};
use holdfast_tests::recipe::{Party, Recipe, Times, WORK};
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The length of each measurement.
const LENGTH: Duration = secs(5);

/// How often each client had the lock, the longest run of one of them, and Jain's index: 1 if all had it the same number of times.
struct Turns {
    holds: BTreeMap<u64, usize>,
    longest_run: usize,
    fairness: f64,
}

impl Turns {
    fn of(records: &[Record], clients: u64) -> Self {
        let granted = records.iter().filter(|record| matches!(record.what, What::Granted { .. }));
        let granted: Vec<u64> = granted.map(|record| record.client.0).collect();
        let mut holds: BTreeMap<u64, usize> = (1..=clients).map(|client| (client, 0)).collect();
        for client in &granted {
            *holds.entry(*client).or_default() += 1;
        }
        let runs = granted.chunk_by(|before, after| before == after).map(<[_]>::len);
        let shares = holds.values().map(|holds| u32::try_from(*holds).map(f64::from).unwrap());
        let (sum, squares) =
            shares.fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
        let number = u32::try_from(holds.len()).map(f64::from).unwrap();
        let fairness = sum * sum / (number * squares);
        Self { longest_run: runs.max().unwrap_or(0), fairness, holds }
    }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, longest_run, fairness } = self;
        let had: Vec<&usize> = holds.values().collect();
        write!(f, "had {had:?} times, longest run {longest_run}, Jain's index {fairness:.2}")
    }
}

/// Two clients that retry at once, by the older recipe and by the one that replaces it in the thesis: each in a keyspace of its own,
/// because both use the same table of main rows.
#[tokio::test]
#[ignore = "long: recipes that promise no progress; every change has simulated runs of them (schedule recipe)"]
async fn a_shadowed_lock_is_granted_in_bursts_and_never_to_two() {
    let stages =
        [Stage::set("older_bursts", &[SHADOW]).await, Stage::set("older_turns", &[QUEUE]).await];
    for (stage, recipe) in stages.iter().zip([Recipe::Shadow, Recipe::Queue]) {
        let party = Party::new(stage, recipe, Times::USUAL);
        let clock = Runtime::system().clock;
        let until = clock.now() + LENGTH;
        let work = async |id| {
            let client = party.client(id);
            while clock.now() < until {
                if let Ok(held) = client.acquire("one", Wait::AtMost(secs(30))).await {
                    held.keep(WORK).await;
                    held.release().await.unwrap();
                }
            }
        };
        join_all([work(1), work(2)]).await;
        let (report, records) = party.judge_and_keep();
        println!("{recipe:?}: {}: {report}", Turns::of(&records, 2));
        assert!(report.tally.safe_holds > 0, "{recipe:?}: {report}");
    }
}

/// Twenty clients at one token: by ours, and then by the article's loop as written. The rate of grants is measured; nothing ensures
/// progress.
#[tokio::test]
#[ignore = "long: recipes that promise no progress; every change has simulated runs of them (schedule recipe)"]
async fn twenty_workers_at_one_optimistic_token_are_never_two_inside() {
    const WORKERS: u64 = 20;
    let stage = Stage::set("older_livelock", &[OPTIMISTIC]).await;
    let party = Party::new(&stage, Recipe::TokensOptimistic, Times::USUAL);
    let clock = Runtime::system().clock;
    let until = clock.now() + LENGTH;
    party.work(WORKERS, &["one"], &|| clock.now() >= until).await;
    let (report, records) = party.judge_and_keep();
    println!("ours: {}: {report}", Turns::of(&records, WORKERS));

    let seed = SeedTokens::prepared(&stage).await;
    let until = clock.now() + LENGTH;
    join_all((0..WORKERS).map(async |worker| {
        let mut draw = Draw::new(worker);
        for turn in 0.. {
            if clock.now() >= until {
                return;
            }
            seed.turn(&format!("{worker}-{turn}")).await;
            Runtime::system().sleep(Duration::from_millis(draw.below(500))).await;
        }
    }))
    .await;
    let [turns, holds] = [&seed.turns, &seed.holds].map(|count| count.load(Ordering::Relaxed));
    println!("the seed's loop: {holds} holds in {turns} turns");
    assert!(turns >= usize::try_from(WORKERS).unwrap());
}

/// The article's loop, with the driver alone.
struct SeedTokens<'a> {
    session: &'a Session,
    write: PreparedStatement,
    read: PreparedStatement,
    delete: PreparedStatement,
    inside: AtomicUsize,
    holds: AtomicUsize,
    turns: AtomicUsize,
}

impl<'a> SeedTokens<'a> {
    async fn prepared(stage: &'a Stage) -> Self {
        let table = format!("{}.optimistic_tokens", stage.keyspace());
        let session = stage.session();
        let prepare = async |text: String| {
            let mut statement = session.prepare(text).await.unwrap();
            statement.set_consistency(scylla::statement::Consistency::Quorum);
            statement
        };
        let row = "\"token\" = 'seed' AND service_session_id = ?";
        Self {
            session,
            write: prepare(format!(
                "INSERT INTO {table} (\"token\", service_session_id) VALUES ('seed', ?)"
            ))
            .await,
            read: prepare(format!(
                "SELECT service_session_id FROM {table} WHERE \"token\" = 'seed'"
            ))
            .await,
            delete: prepare(format!("DELETE FROM {table} WHERE {row}")).await,
            inside: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            turns: AtomicUsize::new(0),
        }
    }

    /// One turn of its loop, with work if it is alone. A write without an answer counts as not held, and is deleted.
    async fn turn(&self, id: &str) {
        self.turns.fetch_add(1, Ordering::Relaxed);
        if self.is_alone(id).await {
            assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "{id} is in beside another");
            self.holds.fetch_add(1, Ordering::Relaxed);
            Runtime::system().sleep(WORK).await;
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
        while self.session.execute_unpaged(&self.delete, (id,)).await.is_err() {
            Runtime::system().sleep(Duration::from_millis(100)).await;
        }
    }

    async fn is_alone(&self, id: &str) -> bool {
        let written = self.session.execute_unpaged(&self.write, (id,)).await;
        let Ok(true) = written.map(|_| true) else { return false };
        let Ok(read) = self.session.execute_unpaged(&self.read, ()).await else { return false };
        let rows = read.into_rows_result().unwrap();
        let sessions: Vec<String> =
            rows.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect();
        sessions == [id]
    }
}
