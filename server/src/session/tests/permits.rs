//! Permits on a session's stream, and how a limit that changes reaches those who wait.

use std::num::NonZeroU32;

use holdfast_core::{Caller, Command, Deed, LockName, Tenure};
use holdfast_proto::v1::{AcquireRequest, Denied, Queued, RefusalReason, Refused};

use super::*;

fn permits(name: &str, permits: u32, limit: u32) -> Item {
    Item { mode: Mode::Permits.into(), permits, limit, ..exclusive(name) }
}

fn ask(request_id: u64, count: u32, limit: u32) -> Ask {
    acquire_items(request_id, vec![permits("gpu", count, limit)], None)
}

impl World {
    fn limit(&self, lock: &str, limit: u32) {
        let (lock, limit) = (LockName::parse(lock).unwrap(), NonZeroU32::new(limit));
        let deed = Deed::SetLimit { lock, limit };
        let command = Command::By { caller: Caller::default(), deed };
        self.fake.commit(command, Tenure::new(1)).outcome.unwrap();
    }
}

async fn queued(client: &mut Client) -> Queued {
    match client.next().await {
        Body::Queued(queued) => queued,
        other => panic!("not Queued: {other:?}"),
    }
}

async fn refused(client: &mut Client) -> String {
    let refusal = match client.next().await {
        Body::Refused(Refused { refusal, .. }) | Body::Denied(Denied { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    };
    let refusal = refusal.unwrap();
    assert_eq!(refusal.reason(), RefusalReason::Permits, "{refusal:?}");
    refusal.message
}

#[tokio::test(start_paused = true)]
async fn permits_are_held_together_up_to_the_limit_and_waiters_see_how_many() {
    let world = World::new().await;
    let (mut first, _) = world.session().await;
    let (mut second, _) = world.session().await;
    first.send(ask(1, 3, 4)).await;
    second.send(ask(1, 1, 4)).await;
    let tokens = [first.granted().await.token, second.granted().await.token];

    second.send(ask(2, 2, 4)).await;

    let holders = queued(&mut second).await.holders;
    let seen: Vec<_> = holders.iter().map(|holder| (holder.token, holder.permits)).collect();
    assert_eq!(seen, [(tokens[0], 3), (tokens[1], 1)]);
    // Clients that know no permits see that others hold it beside them.
    assert!(holders.iter().all(|holder| holder.mode() == Mode::Shared));
    assert!(matches!(first.next().await, Body::Contended(_)));
    first.send(release(tokens[0])).await;
    assert!(matches!(second.next().await, Body::Contended(_)));
    assert_eq!(second.granted().await.request_id, 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_refused_and_the_request_may_be_sent_otherwise() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    client.send(ask(1, 1, 0)).await;
    assert!(refused(&mut client).await.contains("no limit of permits that was set for good"));
    client.send(ask(1, 5, 4)).await;
    assert!(refused(&mut client).await.contains("5 permits of gpu cannot be granted"));
    client.send(ask(1, 0, 4)).await;
    assert!(refused(&mut client).await.contains("0 permits of gpu cannot be granted"));
    client.send(ask(1, 1, 4)).await;
    client.granted().await;
    client.send(ask(2, 1, 5)).await;
    assert!(refused(&mut client).await.contains("a limit of 4 permits, and not of 5"));

    let with_permits = Item { permits: 1, ..exclusive("other") };
    client.send(acquire_items(2, vec![with_permits], None)).await;
    let Body::Refused(Refused { refusal: Some(refusal), .. }) = client.next().await else {
        panic!("it was not refused")
    };
    assert_eq!(refusal.reason(), RefusalReason::Invalid, "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_grants_and_a_lowered_one_refuses_a_waiter_at_its_turn() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut waiter, _) = world.session().await;
    world.limit("gpu", 2);
    holder.send(ask(1, 2, 0)).await;
    let token = holder.granted().await.token;
    waiter.send(ask(1, 2, 0)).await;
    queued(&mut waiter).await;
    assert!(matches!(holder.next().await, Body::Contended(_)));

    world.limit("gpu", 4);

    assert_eq!(waiter.granted().await.request_id, 1);
    waiter.send(ask(2, 3, 0)).await;
    queued(&mut waiter).await;
    assert!(matches!(waiter.next().await, Body::Contended(_)));
    assert!(matches!(holder.next().await, Body::Contended(_)));
    world.limit("gpu", 2);
    assert!(refused(&mut waiter).await.contains("3 permits of gpu cannot be granted"));
    holder.send(release(token)).await;
    assert!(matches!(holder.next().await, Body::Released(_)));
}

/// I10: the call is not left to its wait limit.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_is_told_when_a_lowered_limit_refuses_it() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    world.limit("gpu", 4);
    holder.send(ask(1, 2, 0)).await;
    holder.granted().await;
    let key = world.key().await;
    let Ask::Acquire(acquire) = ask(1, 3, 0) else { unreachable!() };
    let asked =
        AcquireRequest { session: Some(key), acquire: Some(acquire), ..AcquireRequest::default() };
    let call = world.begin_acquire(asked).await;

    world.limit("gpu", 2);

    let refused = format!("{:?}", world.told(call).await.unwrap_err());
    assert!(refused.contains("3 permits of gpu cannot be granted"), "{refused}");
}
