//! DESIGN §5.1 and §5.2 for sessions that are kept alive by calls.

use holdfast_core::{Command, SessionId, Tenure};
use holdfast_proto::v1::{KeepAliveResponse, RefusalReason};

use super::calls::{asked, refusal, unavailable};
use super::leases::until_expiry_is_confirmed;
use super::*;

const QUARTER: Duration = Duration::from_millis(2_500);

/// I7: a session that lives by calls expires like any other.
#[tokio::test(start_paused = true)]
async fn a_client_of_calls_that_dies_loses_its_session_after_its_ttl() {
    let world = World::new().await;
    let (dead, next) = (world.key().await, world.key().await);
    world.acquired(&dead, 1, "jobs").await;
    world.runtime.sleep(NEARLY_TTL).await;
    world.keep_alive(&next).await.unwrap();
    assert!(world.lives(&dead));
    let began = world.runtime.clock.now();

    world.hub.acquire(asked(&next, 1, "jobs")).await.unwrap();

    let waited = world.runtime.clock.now().saturating_since(began);
    assert!(waited <= Duration::from_millis(1_150), "{waited:?}");
    assert!(!world.lives(&dead));
}

/// §5.1: from its receipt, which is before the round.
#[tokio::test(start_paused = true)]
async fn a_keepalive_call_renews_from_the_moment_it_came_in() {
    let world = World::new().await;
    let key = world.key().await;
    world.runtime.sleep(3 * QUARTER).await;
    world.fake.hold_confirms();
    let came_in = world.runtime.clock.now();
    let mut call = world.begin_keep_alive(&key).await;
    world.runtime.sleep(QUARTER).await;
    assert!(call.try_recv().is_err());
    world.fake.let_confirms_go();
    assert_eq!(
        world.told(call).await,
        Ok(KeepAliveResponse { ttl_ms: 10_000, ..KeepAliveResponse::default() })
    );

    while world.lives(&key) {
        world.runtime.sleep(Duration::from_millis(10)).await;
    }
    let lived = world.runtime.clock.now().saturating_since(came_in);
    assert!(lived > TTL + MARGIN, "{lived:?}");
    assert!(lived < TTL + MARGIN + Duration::from_millis(100), "{lived:?}");
}

/// §5.1, I6: by a round begun after it came in, in the tenure whose leases these are.
#[tokio::test(start_paused = true)]
async fn a_keepalive_call_is_answered_only_after_a_round_of_its_tenure() {
    let world = World::new().await;
    let key = world.key().await;
    world.fake.set_quorum(false);
    unavailable(world.keep_alive(&key).await);
    world.fake.set_quorum(true);
    world.fake.confirm_as(2);

    unavailable(world.keep_alive(&key).await);

    world.fake.confirm_as(1);
    world.keep_alive(&key).await.unwrap();
}

/// §5.2: the call came in before the expiry is proposed, so the session is not due, however long the
/// round takes; a call with a wrong secret does not count.
#[tokio::test(start_paused = true)]
async fn only_a_keepalive_call_with_the_right_secret_keeps_a_session_from_expiring() {
    for (right, survives) in [(true, true), (false, false)] {
        let world = World::new().await;
        let mut key = world.key().await;
        if !right {
            key.secret = Bytes::from_static(&[7; 16]);
        }
        until_expiry_is_confirmed(&world).await;
        let call = world.begin_keep_alive(&key).await;

        // The expirer's round, which began before.
        world.fake.let_one_confirm_go();
        world.runtime.sleep(Duration::from_secs(1)).await;
        assert_eq!(world.hub.metrics().expiries.get(), u64::from(!survives));

        world.fake.let_confirms_go();
        assert_eq!(world.told(call).await.is_ok(), survives);
        assert_eq!(world.lives(&key), survives);
    }
}

/// §5.2: from the proposal on nothing is acknowledged until the entry's outcome is known.
#[tokio::test(start_paused = true)]
async fn a_keepalive_call_is_not_answered_while_the_expiry_is_under_way() {
    let world = World::new().await;
    let key = world.key().await;
    world.fake.hold_commits();
    world.runtime.sleep(TTL + Duration::from_secs(1)).await;
    assert!(matches!(world.fake.held_back()[..], [Command::ExpireSession { .. }]));

    let (told, _) = unavailable(world.keep_alive(&key).await);
    assert!(told.message.contains("has run out"), "{}", told.message);

    world.fake.let_commits_go();
    let over = refusal(world.keep_alive(&key).await);
    assert_eq!(over.reason(), RefusalReason::SessionUnknown);
}

/// §5.1: alive in the state that is applied when the round is over.
#[tokio::test(start_paused = true)]
async fn a_keepalive_call_of_a_session_that_ended_meanwhile_is_refused() {
    let world = World::new().await;
    let key = world.key().await;
    world.fake.hold_confirms();
    let call = world.begin_keep_alive(&key).await;
    let session = SessionId::new(key.session_id);
    world.fake.commit(Command::CloseSession { session }, Tenure::new(1));
    world.fake.let_confirms_go();

    assert_eq!(refusal(world.told(call).await).reason(), RefusalReason::SessionUnknown);
}
