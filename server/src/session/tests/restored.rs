//! A cluster that was restored from a backup: when it grants (I6, DESIGN §15).

use holdfast_core::{LockTable, RestorePlan};
use holdfast_proto::v1::RefusalReason;

use super::*;

/// A day of 2026.
const NOW_MS: u64 = 1_790_000_000_000;
/// The longest lease of the old cluster: 15 minutes, as by default.
const WAIT: Duration = Duration::from_mins(15);

/// A second before that.
const NEARLY: Duration = Duration::from_secs(15 * 60 - 1);
const SECOND: Duration = Duration::from_secs(1);

/// A node that leads a restored cluster in tenure 2.
async fn restored() -> World {
    let world = World::new().await;
    let plan = RestorePlan { now_ms: NOW_MS, epoch: None, ttl_max_ms: 1, now: false };
    world.fake.follow(None);
    world.settle().await;
    world.fake.replace(LockTable::new().restored(&plan).unwrap());
    world.fake.lead(2);
    world.settle().await;
    world
}

impl World {
    async fn later(&self, length: Duration) {
        self.runtime.sleep(length).await;
    }

    fn waits(&self) -> bool {
        let mut waits = false;
        self.hub.consensus().read(&mut |table, _| waits = table.grants_after_ms().is_some());
        waits
    }
}

#[tokio::test(start_paused = true)]
async fn a_restored_cluster_grants_after_the_longest_lease_and_the_margin_and_not_before() {
    let world = restored().await;
    assert!(world.hub.grants_in().is_some_and(|left| left > WAIT && left < WAIT + MARGIN));
    let (mut client, _) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    assert!(matches!(client.next().await, Body::Queued(_)));
    client.send(try_acquire(2, "more")).await;
    let Body::Denied(denied) = client.next().await else { panic!("not denied") };
    assert_eq!(denied.refusal.unwrap().reason(), RefusalReason::Restored);
    // The client keeps its session meanwhile.
    let begun = world.runtime.clock.now();
    let mut seq = 0;
    while world.runtime.clock.now() < begun + NEARLY {
        assert!(world.waits());
        world.later(TTL / 4).await;
        seq += 1;
        client.send(keep_alive(seq)).await;
        assert!(matches!(client.next().await, Body::KeptAlive(_)));
    }
    assert_eq!(client.granted().await.request_id, 1);
    let waited = world.runtime.clock.now().saturating_since(begun);
    assert!(waited > WAIT, "{waited:?}");
    assert!(!world.waits());
    assert_eq!(world.hub.grants_in(), None);
}

/// No node compares its clock with another's, so a new leader does not know how long the one before waited.
#[tokio::test(start_paused = true)]
async fn a_new_tenure_waits_anew() {
    let world = restored().await;
    world.later(NEARLY).await;
    world.fake.follow(None);
    world.settle().await;
    assert_eq!(world.hub.grants_in(), None, "it does not lead");
    world.fake.lead(3);
    world.later(NEARLY).await;
    assert!(world.waits());
    world.later(2 * SECOND).await;
    assert!(!world.waits());
    // Once it is over, it is over for every later leader.
    world.fake.follow(None);
    world.settle().await;
    world.fake.lead(4);
    world.settle().await;
    assert!(!world.waits() && world.hub.grants_in().is_none());
}

/// The outcome of the command may be unknown; then it is proposed again.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_wait_is_proposed_until_it_is_applied() {
    let world = restored().await;
    world.fake.hold_commits();
    world.later(WAIT + SECOND).await;
    assert!(world.waits());
    assert_eq!(world.fake.held_back(), [holdfast_core::Command::GrantAgain]);
    assert_eq!(world.hub.grants_in(), Some(Duration::ZERO));
    world.fake.give_up_held_back();
    world.later(SECOND).await;
    world.fake.let_commits_go();
    world.settle().await;
    assert!(!world.waits());
}
