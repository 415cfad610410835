//! The native client behind the interface that all lockers share, against a scripted server.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

#[expect(
    unreachable_pub,
    dead_code,
    reason = "a helper's items are as public as its users are many, and as many"
)]
#[path = "../../tests/scripted/mod.rs"]
mod scripted;

use futures_util::FutureExt;
use holdfast::{Error, FencingToken};
use holdfast_proto::v1::{self, server_frame::Body};
use holdfast_recipes::{RemoteGuard, RemoteLocker};

use scripted::{Net, Server, ms};

async fn guarded(net: &mut Net) -> (holdfast::Client, Server, RemoteGuard) {
    let (client, mut server) = net.connected().await;
    let locker: &dyn RemoteLocker = &client;
    let (guard, _request) = tokio::join!(locker.lock("jobs"), server.grant_next(41));
    let guard = guard.unwrap();
    (client, server, guard)
}

#[tokio::test(start_paused = true)]
async fn a_remote_guard_of_the_native_client_names_lock_holder_and_token() {
    let mut net = Net::new();
    let (client, _server, guard) = guarded(&mut net).await;

    assert_eq!((guard.name(), guard.owner()), ("jobs", "tester"));
    assert_eq!(guard.token().map(FencingToken::get), Some(41));
    assert_eq!(guard.ttl(), client.ttl());
    assert!(guard.is_safe() && guard.lost().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_remote_guard_that_is_dropped_gives_its_lock_back() {
    let mut net = Net::new();
    let (_client, mut server, guard) = guarded(&mut net).await;

    drop(guard);

    assert_eq!(server.release().await, 41);
}

#[tokio::test(start_paused = true)]
async fn a_try_through_the_interface_finds_a_held_lock_held_and_a_mute_server_unreachable() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let held = async {
        let request_id = server.acquire().await.request_id;
        let refusal = Some(scripted::refusal(v1::RefusalReason::LockHeld, "held"));
        server.say(Body::Denied(v1::Denied { request_id, refusal })).await;
    };
    let (tried, ()) = tokio::join!(RemoteLocker::try_lock(&client, "jobs"), held);
    assert!(tried.unwrap().is_none());

    drop(server);
    let before = net.runtime.clock.now();
    let tried = client.try_lock_within("jobs", ms(300)).await;
    assert!(matches!(tried, Err(Error::Unreachable { .. })), "{tried:?}");
    assert_eq!(net.runtime.clock.now().saturating_since(before), ms(300));
}
