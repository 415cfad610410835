//! Semaphores: what is asked, what is refused here, and a waiter that a lowered limit refuses.

use holdfast::{Error, LockItem, Mode, RefusalReason};
use holdfast_proto::v1::{self, server_frame::Body};

use super::scripted::{Net, granted_names, ms, queued, refusal};
use super::start;

fn asked(acquire: &v1::Acquire) -> Vec<(v1::Mode, u32, u32)> {
    acquire.items.iter().map(|item| (item.mode(), item.permits, item.limit)).collect()
}

#[tokio::test(start_paused = true)]
async fn permits_are_asked_for_with_the_limit_or_with_that_which_was_set() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;

    let (_task, outcome) = start(&net, client.semaphore("gpu", 4).permits(2));
    let acquire = server.acquire().await;
    assert_eq!(asked(&acquire), [(v1::Mode::Permits, 2, 4)]);
    assert!(acquire.wait && acquire.any.is_none());
    server.say(granted_names(1, 41, &["gpu"])).await;
    let guard = outcome.await.unwrap().unwrap();
    assert_eq!(guard.lock("gpu").mode(), Some(Mode::Permits { count: 2, limit: 4 }));
    // Others hold permits too: a value would be everybody's.
    let set = guard.set_value("v").await;
    assert!(matches!(set, Err(Error::Refused { reason: RefusalReason::NotExclusive, .. })));

    let items = [LockItem::permits("gpu", 1, None), LockItem::exclusive("job")];
    let (_task, _outcome) = start(&net, client.lock_all(items));
    let acquire = server.acquire().await;
    assert_eq!(asked(&acquire), [(v1::Mode::Permits, 1, 0), (v1::Mode::Exclusive, 0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn permits_that_no_limit_has_room_for_are_refused_here() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let wrong = [
        (client.semaphore("gpu", 4).permits(0), "permits of gpu are at least one"),
        (client.semaphore("gpu", None).permits(0), "permits of gpu are at least one"),
        (client.semaphore("gpu", 0).permits(1), "permits of gpu are at least one, and so is"),
        (
            client.semaphore("gpu", 4).permits(5),
            "5 permits of gpu cannot be granted: its limit is 4",
        ),
    ];
    for (acquire, words) in wrong {
        match acquire.await {
            Err(Error::Refused { reason: RefusalReason::Permits, message, .. }) => {
                assert!(message.contains(words), "{message}");
            }
            other => panic!("{words}: {other:?}"),
        }
    }
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_a_lowered_limit_refuses_gets_an_error_and_waits_no_longer() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.semaphore("gpu", None).permits(3));
    let request_id = server.acquire().await.request_id;
    server.say(queued(request_id, 1)).await;

    let refusal = Some(refusal(v1::RefusalReason::Permits, "the limit is 2"));
    server.say(Body::Denied(v1::Denied { request_id, refusal })).await;

    match outcome.await.unwrap() {
        Err(Error::Refused { reason: RefusalReason::Permits, message, .. }) => {
            assert_eq!(message, "the limit is 2");
        }
        other => panic!("{other:?}"),
    }
    drop(client);
}
