//! One lock that is taken and given back for a long time: every hold leaves tombstones, which Cassandra walks at each read of the lock's
//! partition, and of which it fails a read with too many (B5). `holdfast cassandra schema` makes tables in which they do not last.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests stop the test when something is not as it must be; a soak shows what it saw"
)]

use std::sync::Arc;
use std::time::Duration;

use holdfast_recipes::{
    Cassandra, Contact, Layout, LockerOptions, Recipe, RemoteLocker, Schema, SerialScope,
};
use holdfast_runtime::Runtime;
use holdfast_tests::cassandra::Nodes;

use crate::cassandra_soak_work::a_busy_queue_outlives_its_tombstones;

/// The recipes whose rows are rewritten under new names with every hold.
const REWRITTEN: [Recipe; 4] =
    [Recipe::Queue, Recipe::Bakery, Recipe::Shadow, Recipe::TokensOptimistic];
/// Longer than what the tables keep tombstones for.
const AFTERWARDS: Duration = Duration::from_secs(400);
/// A row of a soak.
const WINDOW: Duration = Duration::from_mins(1);
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

/// Holds of one lock at full speed, a row for each minute: what tombstones cost before they are gone.
async fn soak(recipe: Recipe, cassandra: &Cassandra, holds: u64) {
    let (locker, clock) = (locker(recipe, cassandra), Runtime::system().clock);
    let mut had = 0;
    while had < holds {
        let (began, mut took) = (clock.now(), Vec::new());
        while had < holds && clock.now().saturating_since(began) < WINDOW {
            let asked = clock.now();
            hold(recipe, &*locker).await;
            took.push(clock.now().saturating_since(asked));
            had += 1;
        }
        let seconds = clock.now().saturating_since(began).as_secs_f64();
        let rate = f64::from(u32::try_from(took.len()).unwrap()) / seconds;
        took.sort_unstable();
        let (half, most) = (took[took.len() / 2], took[took.len() * 99 / 100]);
        println!("{recipe}: {had} holds, {rate:.1} a second, p50 {half:.1?}, p99 {most:.1?}");
    }
}

#[tokio::test]
#[ignore = "long: thousands of holds; every change has a lock that outlives its tombstones"]
async fn a_lock_that_is_held_thousands_of_times_is_granted_each_time() {
    let holds = std::env::var("HOLDFAST_SOAK_HOLDS").map_or(3_000, |text| text.parse().unwrap());
    let nodes = Nodes::start().await;
    let cassandra = tables(&nodes, "soak", 3).await;
    for recipe in REWRITTEN {
        soak(recipe, &cassandra, holds).await;
    }
}
