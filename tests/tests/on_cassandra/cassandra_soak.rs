//! One lock that is taken and given back for a long time: every hold leaves tombstones, which Cassandra walks at each read of the lock's
//! partition, and of which it fails a read with too many (B5). `holdfast cassandra schema` makes tables in which they do not last.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be; a soak shows what it saw"
)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_recipes::{
    Cassandra, Contact, Layout, LockerOptions, Recipe, RemoteLocker, Schema, SerialScope,
};
use holdfast_runtime::{Runtime, select};
use holdfast_tests::cassandra::Nodes;

use crate::cassandra_soak_work::a_busy_queue_outlives_its_tombstones;

/// The recipes whose rows are rewritten under new names with every hold.
const REWRITTEN: [Recipe; 4] =
    [Recipe::Queue, Recipe::Bakery, Recipe::Shadow, Recipe::TokensOptimistic];
/// Longer than what the tables keep tombstones for.
const AFTERWARDS: Duration = Duration::from_secs(400);
/// A row of a soak.
const WINDOW: Duration = Duration::from_mins(1);
/// Between two looks of a soak at what it writes.
const PAUSE: Duration = Duration::from_millis(500);
/// Rows of a soak in which the tombstones come to as many as there are from then on (`gc_grace_seconds` is five minutes), and the nodes warm up.
const EARLY: usize = 6;
/// How many rows of a soak are its beginning, and its end.
const PART: usize = 5;
const LIMIT: Duration = Duration::from_secs(20);

async fn tables(nodes: &Nodes, keyspace: &str, replicas: u32) -> Cassandra {
    let contact = Contact::new(nodes.contact_points().await).limit(LIMIT);
    let turn = nodes.turn_of_schema().await;
    Schema::new(keyspace).replicated(replicas).apply(&contact).await.unwrap();
    drop(turn);
    Cassandra::connect(&contact, keyspace, &SerialScope::Cluster).await.unwrap()
}

fn locker(recipe: Recipe, cassandra: &Cassandra) -> Arc<dyn RemoteLocker> {
    recipe.locker(cassandra, &LockerOptions::default(), &Layout::default()).unwrap()
}

/// Recipes that share a table have locks of their own there.
async fn hold(recipe: Recipe, locker: &dyn RemoteLocker) {
    let guard = locker.lock_within(recipe.as_str(), LIMIT).await.unwrap();
    guard.release().await.unwrap();
}

/// B5. The node fails a read of more than 250 tombstones, in place of 100,000. The holds of the first part leave 150 or more, because each is
/// a locker's only one, as a short process's is; the client gets those of the second part too, which are some minutes later by the
/// node's clock.
#[tokio::test]
async fn a_busy_lock_outlives_its_tombstones() {
    const HOLDS: usize = 150;
    let nodes = Nodes::start_one_of_few_tombstones().await;
    let cassandra = tables(&nodes, "soak", 1).await;
    for ahead in [Duration::ZERO, AFTERWARDS] {
        nodes.skew(1, ahead).await;
        for recipe in REWRITTEN {
            for _ in 0..HOLDS {
                hold(recipe, &*locker(recipe, &cassandra)).await;
            }
        }
    }
    one_process_leaves_few_tombstones(&cassandra).await;
    let session = nodes.session().await;
    a_busy_queue_outlives_its_tombstones(&session, &cassandra, "soak").await;
}

/// More holds than the node's limit, with no pause in which tombstones end. The queue's places are new names each time, and its whole row
/// is read now and then.
async fn one_process_leaves_few_tombstones(cassandra: &Cassandra) {
    const HOLDS: usize = 300;
    for recipe in REWRITTEN.into_iter().filter(|recipe| *recipe != Recipe::Queue) {
        let (locker, name) = (locker(recipe, cassandra), format!("{recipe} of one process"));
        for _ in 0..HOLDS {
            locker.lock_within(&name, LIMIT).await.unwrap().release().await.unwrap();
        }
    }
}

/// How long something took: the middle one, and the 99th of a hundred.
#[derive(Clone, Copy)]
struct Spread {
    half: Duration,
    most: Duration,
}

impl Spread {
    fn of(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        assert!(!took.is_empty(), "nothing ended in a whole minute");
        Self { half: took[took.len() / 2], most: took[took.len() * 99 / 100] }
    }
}

/// A row of a soak: how many were done in a second, how long each took, and each look at the rows that they left.
struct Minute {
    rate: f64,
    each: Spread,
    look: Spread,
}

impl Minute {
    /// The middle rows of some minutes, each figure by itself.
    fn middle(minutes: &[Self]) -> Self {
        let middle = |of: &dyn Fn(&Self) -> Duration| {
            let mut all: Vec<Duration> = minutes.iter().map(of).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let spread = |of: fn(&Self) -> Spread| Spread {
            half: middle(&|minute| of(minute).half),
            most: middle(&|minute| of(minute).most),
        };
        let mut rates: Vec<f64> = minutes.iter().map(|minute| minute.rate).collect();
        rates.sort_by(f64::total_cmp);
        let rate = rates[rates.len() / 2];
        Self { rate, each: spread(|minute| minute.each), look: spread(|minute| minute.look) }
    }

    fn print(&self, what: &str) {
        let Self { rate, each, look } = self;
        println!(
            "{what}: {rate:.1} a second, each p50 {:.1?}, p99 {:.1?}; a look p50 {:.1?}, p99 {:.1?}",
            each.half, each.most, look.half, look.most
        );
    }
}

/// What a soak has measured since its last row, and how often it did what it does.
#[derive(Default)]
struct Measured {
    done: AtomicU64,
    each: Mutex<Vec<Duration>>,
    looks: Mutex<Vec<Duration>>,
}

impl Measured {
    /// What was measured since the last row.
    fn row(&self, seconds: f64) -> Minute {
        let [each, looks] =
            [&self.each, &self.looks].map(|all| std::mem::take(&mut *all.lock().unwrap()));
        let rate = f64::from(u32::try_from(each.len()).unwrap()) / seconds;
        Minute { rate, each: Spread::of(each), look: Spread::of(looks) }
    }
}

/// Does something `times` over, as fast as it can, and looks at the rows that this writes all the while. Prints a row for each
/// minute, the beginning and the end. Each look has to succeed, and the end has to be at least half as fast as the beginning. A look walks
/// all that a node has not yet written to disk, so what it takes goes up and down.
async fn soak(what: &str, times: u64, once: impl AsyncFn(), look: impl AsyncFn()) {
    let runtime = Runtime::system();
    let clock = &*runtime.clock;
    let measured = Measured::default();
    let doing = async {
        for _ in 0..times {
            let began = clock.now();
            once().await;
            measured.each.lock().unwrap().push(clock.now().saturating_since(began));
            measured.done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let looking = async {
        loop {
            runtime.sleep(PAUSE).await;
            let began = clock.now();
            look().await;
            measured.looks.lock().unwrap().push(clock.now().saturating_since(began));
        }
    };
    let minutes = Mutex::new(Vec::new());
    let rows = async {
        loop {
            let began = clock.now();
            runtime.sleep(WINDOW).await;
            let minute = measured.row(clock.now().saturating_since(began).as_secs_f64());
            let done = measured.done.load(Ordering::Relaxed);
            minute.print(&format!("{what}, {done}"));
            minutes.lock().unwrap().push(minute);
        }
    };
    select! {
        () = doing => {}
        () = looking => {}
        () = rows => {}
    }
    stays_as_fast(what, &minutes.into_inner().unwrap());
}

fn stays_as_fast(what: &str, minutes: &[Minute]) {
    let minutes = minutes.get(EARLY..).unwrap_or_default();
    if minutes.len() < 2 * PART {
        println!("{what}: too short for a beginning and an end");
        return;
    }
    let first = Minute::middle(&minutes[..PART]);
    let last = Minute::middle(&minutes[minutes.len() - PART..]);
    first.print(&format!("{what}, beginning"));
    last.print(&format!("{what}, end"));
    assert!(last.rate > first.rate / 2.0, "{what} became slower");
    assert!(last.look.half < first.look.half * 4, "the rows of {what} are read more slowly");
}

/// Holds of one lock: what tombstones cost before they are gone.
async fn hold_again_and_again(recipe: Recipe, cassandra: &Cassandra, holds: u64) {
    let (locker, layout) = (locker(recipe, cassandra), Layout::default());
    let once = async || hold(recipe, &*locker).await;
    let look = async || {
        recipe.claims_of(cassandra, &layout, recipe.as_str()).await.unwrap();
    };
    soak(recipe.as_str(), holds, once, look).await;
}

/// Of one recipe, if `HOLDFAST_SOAK_RECIPE` names one.
#[tokio::test]
#[ignore = "long: thousands of holds; every change has a lock that outlives its tombstones"]
async fn a_lock_that_is_held_thousands_of_times_is_granted_each_time() {
    let holds = std::env::var("HOLDFAST_SOAK_HOLDS").map_or(3_000, |text| text.parse().unwrap());
    let only = std::env::var("HOLDFAST_SOAK_RECIPE").ok();
    let nodes = Nodes::start().await;
    let cassandra = tables(&nodes, "soak", 3).await;
    let wanted = |recipe: &Recipe| only.as_deref().is_none_or(|only| only == recipe.as_str());
    let recipes: Vec<Recipe> = REWRITTEN.into_iter().filter(wanted).collect();
    assert!(!recipes.is_empty(), "HOLDFAST_SOAK_RECIPE is none of {REWRITTEN:?}");
    for recipe in recipes {
        hold_again_and_again(recipe, &cassandra, holds).await;
    }
}
