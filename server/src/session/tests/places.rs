//! Moved: sent to the clients that asked for it, at most once a second.

use holdfast_proto::v1::Moved;

use super::*;

fn follow(request_id: u64, name: &str) -> Ask {
    let Ask::Acquire(acquire) = acquire(request_id, name) else { unreachable!() };
    Ask::Acquire(Acquire { follow_place: true, ..acquire })
}

/// One client holds; many wait, and the last of them follows its place.
async fn queue(world: &World, length: u64) -> (Client, Client, Ticket) {
    let (holder, _) = world.session().await;
    for request in 1..=length {
        holder.send(acquire(request, "jobs")).await;
    }
    let (mut follower, ticket) = world.session().await;
    follower.send(follow(1, "jobs")).await;
    let Body::Queued(queued) = follower.next().await else { panic!("not queued") };
    assert_eq!(queued.place, length - 1);
    (holder, follower, ticket)
}

fn cancel(request_id: u64) -> Ask {
    Ask::Cancel(holdfast_proto::v1::Cancel { request_id })
}

#[tokio::test(start_paused = true)]
async fn a_follower_hears_of_its_place_at_once_and_then_once_a_second() {
    let world = World::new().await;
    let (holder, mut follower, _) = queue(&world, 6).await;

    holder.send(cancel(2)).await;
    let Body::Moved(Moved { place, holders, .. }) = follower.next().await else {
        panic!("not moved")
    };
    assert_eq!((place, holders[0].session_id), (4, 1));

    let before = world.runtime.clock.now();
    holder.send(cancel(3)).await;
    holder.send(cancel(4)).await;
    let Body::Moved(Moved { place, .. }) = follower.next().await else { panic!("not moved") };
    assert_eq!(place, 2);
    let waited = world.runtime.clock.now().saturating_since(before);
    assert!(waited > Duration::from_millis(990), "after {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_hears_of_a_place_that_did_not_change_or_was_not_asked_for() {
    let world = World::new().await;
    let (holder, mut follower, _) = queue(&world, 3).await;
    let (mut other, _) = world.session().await;
    other.send(acquire(1, "jobs")).await;
    assert!(matches!(other.next().await, Body::Queued(_)));

    // Behind the follower, before the other.
    holder.send(acquire(9, "jobs")).await;
    holder.send(cancel(9)).await;
    follower.expect_silence(Duration::from_secs(3)).await;
    holder.send(cancel(2)).await;
    assert!(matches!(follower.next().await, Body::Moved(_)));
    other.expect_silence(Duration::from_secs(3)).await;
}

/// Followers live on the stream: a client that resumes asks again with a retry.
#[tokio::test(start_paused = true)]
async fn what_a_stream_follows_is_forgotten_with_it_and_followed_again_by_a_retry() {
    let world = World::new().await;
    let (holder, follower, ticket) = queue(&world, 4).await;
    drop(follower);
    world.settle().await;
    assert!(world.hub.registry.lock().follows.is_empty());

    let mut again = world.resume(&ticket).await;
    again.opened().await;
    again.next().await;
    again.send(follow(1, "jobs")).await;
    assert!(matches!(again.next().await, Body::Queued(_)));
    holder.send(cancel(2)).await;
    assert!(matches!(again.next().await, Body::Moved(_)));
}
