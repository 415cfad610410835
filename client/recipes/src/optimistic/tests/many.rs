//! Many workers at one token: how often they succeed, by the article's loop and by the recipe.

use std::sync::Mutex;

use futures_util::future::join_all;
use holdfast_runtime::Rng;

use super::*;

const WORKERS: usize = 20;
const LENGTH: Duration = secs(20);
/// The length of a hold.
const WORK: Duration = Duration::from_millis(20);
/// "Random sleep between lock retries"; the article gives no length.
const SEED_SLEEP: Duration = Duration::from_millis(500);

/// How many workers hold the token now, and the number of holds so far.
#[derive(Default)]
struct Inside(Mutex<(usize, usize)>);

impl Inside {
    async fn work(&self, process: &Process) {
        {
            let mut inside = self.0.lock().unwrap();
            assert_eq!(inside.0, 0, "two are in");
            *inside = (1, inside.1 + 1);
        }
        process.runtime().sleep(WORK).await;
        self.0.lock().unwrap().0 = 0;
    }

    fn holds(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

/// The number of holds in that time, by the article's loop.
fn by_the_seed(seed: u64) -> usize {
    let (machine, model) = world(seed);
    let inside = Inside::default();
    let runtime = machine.world().runtime();
    let until = runtime.clock.now() + LENGTH;
    let work = async |number: usize| {
        let process = machine.process("worker");
        let mut turn = 0;
        while runtime.clock.now() < until {
            turn += 1;
            let mut worker = SeedWorker::new(&machine, &format!("{number}-{turn}"));
            if worker.finish(&model).await {
                inside.work(&process).await;
                worker.release(&model).await;
            }
            let pause = u64::try_from(SEED_SLEEP.as_millis()).unwrap();
            runtime.sleep(Duration::from_millis(Rng::next_u64(&process) % pause)).await;
        }
    };
    machine.run(join_all((0..WORKERS).map(work)));
    inside.holds()
}

/// The same by the recipe.
fn by_ours(seed: u64) -> usize {
    let (machine, model) = world(seed);
    let inside = Inside::default();
    let runtime = machine.world().runtime();
    let until = runtime.clock.now() + LENGTH;
    let work = async |_| {
        let process = machine.process("worker");
        let tokens = locker(&model, &process, "worker", secs(180), secs(60));
        while runtime.clock.now() < until {
            if let Ok(guard) = tokens.lock_within("foo", secs(20)).await {
                inside.work(&process).await;
                guard.release().await.unwrap();
            }
        }
    };
    machine.run(join_all((0..WORKERS).map(work)));
    inside.holds()
}

/// Nothing ensures that any worker succeeds; this measures how many holds there are.
#[test]
fn twenty_at_one_token_mostly_hinder_each_other_by_the_seeds_loop_and_less_by_ours() {
    let (theirs, ours) = (by_the_seed(1), by_ours(1));
    println!("{WORKERS} workers, {LENGTH:?}: {theirs} holds by the article, {ours} by ours");
    assert!(ours > 2 * theirs, "{theirs} {ours}");
}
