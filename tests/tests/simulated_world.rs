//! The simulated world does what it says: each fault is injected as it is named, and the same seed
//! is the same run.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail it by a panic")]

use std::time::Duration;

use holdfast_seams::simulated::Machine;
use holdfast_tests::sim::{Settings, Trace, World};

const TTL: Duration = Duration::from_secs(5);

/// Two clients hand a lock over on three nodes; what passed, and every step of the machine.
fn hand_over(seed: u64, trace: &Trace) -> (u64, u64) {
    let machine = Machine::new(seed);
    machine.run(async {
        let settings = Settings { trace: trace.clone(), ..Settings::new(seed, 3) };
        let world = World::start(&machine, settings).await;
        let first = world.connect(1, TTL).await.unwrap();
        let second = world.connect(2, TTL).await.unwrap();
        let held = world.as_client(1, async move { (first.lock("jobs").await.unwrap(), first) });
        let (guard, _first) = held.await.unwrap();
        assert!(guard.is_safe());
        let token = guard.token();
        let waits = world.as_client(2, async move { (second.lock("jobs").await.unwrap(), second) });
        let gives_back = async {
            world.seams().sleep(Duration::from_secs(12)).await;
            assert!(guard.is_safe());
            world.as_client(1, async move { guard.release().await.unwrap() }).await.unwrap();
        };
        let (granted, ()) = futures_util::future::join(waits, gives_back).await;
        let (granted, _second) = granted.unwrap();
        assert!(granted.token() > token);
        world.observe();
        assert_eq!(world.violations(), Vec::<String>::new());
    });
    (trace.digest(), machine.digest())
}

#[test]
fn three_nodes_form_a_cluster_and_hand_a_lock_over() {
    let trace = Trace::kept();
    hand_over(1, &trace);
    assert!(trace.count() > 100);
}

#[test]
fn the_same_seed_is_the_same_run_and_another_one_another() {
    let run = |seed| hand_over(seed, &Trace::default());

    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
