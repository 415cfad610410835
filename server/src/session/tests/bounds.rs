//! How long holds last at least and at most, as the leader counts them (DESIGN §16).

use holdfast_core::Command;
use holdfast_proto::v1::{AcquireOn, ClosedHold, HoldsClosed, RefusalReason, Refused};
use holdfast_runtime::Instant;

use super::*;

const LEAST: Duration = Duration::from_secs(5);
const MOST: Duration = Duration::from_secs(3);
/// Longer than anything here takes.
const LONG: Duration = Duration::from_mins(2);

fn bound(request_id: u64, max_hold_ms: u64, hold_at_least_ms: u64) -> Ask {
    let items = vec![exclusive("jobs")];
    let on = Some(AcquireOn { items, max_hold_ms, hold_at_least_ms, ..AcquireOn::default() });
    Ask::Acquire(Acquire { request_id, on, wait: true, ..Acquire::default() })
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap()
}

impl World {
    /// A session that outlives the test, whose client knows closed holds.
    async fn lasting(&self) -> Client {
        let mut client = self.connect();
        let Ask::Open(open) = open(LONG) else { unreachable!() };
        client.send(Ask::Open(Open { knows_closed: true, ..open })).await;
        client.opened().await;
        client
    }

    fn since(&self, then: Instant) -> Duration {
        self.runtime.clock.now().saturating_since(then)
    }

    /// One that holds `jobs` with these bounds, and one that waits for it; and when it was granted.
    async fn held(&self, most: Duration, least: Duration) -> (Client, u64, Client, Instant) {
        let (mut holder, mut waiter) = (self.lasting().await, self.lasting().await);
        holder.send(bound(1, millis(most), millis(least))).await;
        let (token, at) = (holder.granted().await.token, self.runtime.clock.now());
        waiter.send(acquire(1, "jobs")).await;
        assert!(matches!(waiter.next().await, Body::Queued(_)));
        assert!(matches!(holder.next().await, Body::Contended(_)));
        (holder, token, waiter, at)
    }
}

fn assert_about(after: Duration, planned: Duration) {
    assert!(after >= planned, "after {after:?}: before {planned:?}");
    assert!(after < planned + Duration::from_millis(50), "only after {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_given_back_early_is_granted_when_its_least_has_passed_since_the_grant() {
    let world = World::new().await;
    let (mut holder, token, mut waiter, at) = world.held(Duration::ZERO, LEAST).await;
    world.runtime.sleep(LEAST / 2).await;

    holder.send(release(token)).await;
    assert!(matches!(holder.next().await, Body::Released(_)));
    holder.send(try_acquire(2, "jobs")).await;
    let Body::Denied(denied) = holder.next().await else { panic!("it was not denied") };
    let refusal = denied.refusal.unwrap();
    assert_eq!(refusal.reason(), RefusalReason::LockHeld);
    assert!(refusal.message.starts_with("jobs is closed until its last hold"), "{refusal:?}");

    assert_eq!(waiter.granted().await.request_id, 1);
    assert_about(world.since(at), LEAST);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_held_for_its_least_is_granted_at_once() {
    let world = World::new().await;
    let (holder, token, mut waiter, _) = world.held(Duration::ZERO, LEAST).await;
    world.runtime.sleep(2 * LEAST).await;

    let released = world.runtime.clock.now();
    holder.send(release(token)).await;
    assert_eq!(waiter.granted().await.request_id, 1);
    assert_about(world.since(released), Duration::ZERO);
}

/// It saw neither the grant nor the end.
#[tokio::test(start_paused = true)]
async fn a_new_leader_counts_the_least_in_full_of_what_is_held_and_of_what_is_closed() {
    let world = World::new().await;
    let (mut holder, token, waiter, _) = world.held(Duration::ZERO, LEAST).await;
    holder.send(release(token)).await;
    assert!(matches!(holder.next().await, Body::Released(_)));
    world.runtime.sleep(LEAST * 9 / 10).await;
    drop((holder, waiter));

    world.fake.follow(None);
    world.settle().await;
    world.fake.lead(2);
    let led = world.runtime.clock.now();
    world.runtime.sleep(LEAST * 9 / 10).await;
    let opened = |of: &Command| matches!(of, Command::OpenLock { .. });
    world.fake.hold_commits();
    world.settle().await;
    assert!(!world.fake.held_back().iter().any(opened), "{:?} after it led", world.since(led));
    world.runtime.sleep(LEAST / 9).await;
    assert!(world.fake.held_back().iter().any(opened));
}

/// A proposal without an outcome is made again.
#[tokio::test(start_paused = true)]
async fn a_lock_is_opened_although_the_first_proposal_came_to_nothing() {
    let world = World::new().await;
    let (mut holder, token, mut waiter, _) = world.held(Duration::ZERO, LEAST).await;
    holder.send(release(token)).await;
    assert!(matches!(holder.next().await, Body::Released(_)));
    world.fake.hold_commits();
    world.runtime.sleep(LEAST * 2).await;
    let given_up = world.fake.give_up_held_back();
    assert!(given_up.iter().any(|of| matches!(of, Command::OpenLock { .. })), "{given_up:?}");
    world.fake.let_commits_go();

    assert_eq!(waiter.granted().await.request_id, 1);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_has_lasted_its_most_is_closed_and_passes_on_when_its_client_lets_go() {
    let world = World::new().await;
    let (mut holder, token, mut waiter, at) = world.held(MOST, Duration::ZERO).await;

    let reason = "it was held for as long as its max_hold allows".to_owned();
    let closed = vec![ClosedHold { token, reason, lasted_too_long: true }];
    assert_eq!(holder.next().await, Body::HoldsClosed(HoldsClosed { closed }));
    assert_about(world.since(at), MOST);
    // It holds still, as long as its client may rely on it.
    waiter.expect_silence(Duration::from_secs(1)).await;
    holder.send(release(token)).await;
    assert_eq!(waiter.granted().await.request_id, 1);
}

#[tokio::test(start_paused = true)]
async fn bounds_beyond_a_day_are_refused_by_the_limits_name() {
    let world = World::new().await;
    let mut client = world.lasting().await;
    for (request, most, least) in [(1, 86_400_001, 0), (2, 0, u64::MAX)] {
        client.send(bound(request, most, least)).await;
        let Body::Refused(Refused { refusal, .. }) = client.next().await else {
            panic!("it was not refused")
        };
        let refusal = refusal.unwrap();
        assert_eq!((refusal.reason(), &*refusal.limit), (RefusalReason::Limit, "hold_bound_ms"));
    }
}
