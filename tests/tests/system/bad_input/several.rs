//! Impossible requests for several locks, and impossible modes.

use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::{Acquire, Item, Mode, RefusalReason};
use holdfast_tests::wire::{Wire, item};

use super::{TTL_MS, assert_refusal, assert_serves, holder, look, one_node, release_refused};

fn alone(name: &str) -> Item {
    item(name, Mode::Exclusive)
}

#[tokio::test]
async fn a_set_that_cannot_be_is_refused_with_the_reason_and_the_stream_goes_on() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let many: Vec<Item> = (0..65).map(|number| alone(&number.to_string())).collect();
    let unknown = Item { mode: 7, ..alone("odd") };
    let sets = [
        (vec![], None, RefusalReason::Invalid, &["at least one lock"][..]),
        (vec![], Some(0), RefusalReason::Invalid, &["at least one lock"]),
        (vec![alone("twice"), alone("twice")], None, RefusalReason::Invalid, &["twice"]),
        (
            vec![alone("twice"), item("twice", Mode::Shared)],
            None,
            RefusalReason::Invalid,
            &["twice", "both exclusive and shared"],
        ),
        (vec![alone("twice"), alone("twice")], Some(1), RefusalReason::Invalid, &["twice"]),
        (many.clone(), None, RefusalReason::Limit, &["65", "64"]),
        (many, Some(1), RefusalReason::Limit, &["65", "64"]),
        (vec![alone("good"), alone("bad\n")], None, RefusalReason::Invalid, &["bad", "000A"]),
        (vec![alone("one")], Some(2), RefusalReason::Invalid, &["2", "1"]),
        (vec![alone("one"), alone("two")], Some(u32::MAX), RefusalReason::Invalid, &["4294967295"]),
        (vec![alone("one"), unknown], None, RefusalReason::Invalid, &["mode 7", "odd"]),
    ];

    for (request, (items, any, reason, words)) in (1..).zip(sets) {
        wire.acquire_several(request, items, any, true).await;
        assert_refusal(&wire.refused().await, reason, words);
    }

    assert_serves(&mut wire, 100).await;
    for name in ["twice", "good", "one", "two", "0"] {
        assert_eq!(look(&address, name).await, None, "{name}: nothing is left of it");
    }
}

/// 64 names are not too many.
#[tokio::test]
async fn a_set_as_large_as_may_be_is_granted_whole() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let most: Vec<Item> = (0..64).map(|number| alone(&format!("most/{number}"))).collect();

    wire.acquire_several(1, most, None, false).await;

    let granted = wire.grant(1).await;
    assert_eq!(granted.names.len(), 64);
    assert_eq!(holder(&address, "most/63").await, Some(granted.token));
}

#[tokio::test]
async fn an_any_that_finds_nothing_free_is_denied_and_holds_nothing() {
    let (_cluster, address) = one_node().await;
    let (mut owner, _) = Wire::open(&address, TTL_MS).await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    owner.acquire_several(1, vec![alone("a"), alone("b")], None, true).await;
    let token = owner.granted(1).await;

    for (request, min) in [(1, 0), (2, 1)] {
        wire.acquire_several(request, vec![alone("a"), alone("b")], Some(min), false).await;
        assert_refusal(&wire.refused().await, RefusalReason::NothingFree, &["free"]);
    }

    assert_eq!(holder(&address, "a").await, Some(token));
    assert_eq!(look(&address, "a").await.map(|lock| lock.waiting), Some(0));
}

/// I14: a `try` of a set takes nothing, and names the lock that is not free.
#[tokio::test]
async fn a_set_with_one_name_in_the_way_is_denied_whole_and_names_it() {
    let (_cluster, address) = one_node().await;
    let (mut owner, _) = Wire::open(&address, TTL_MS).await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    owner.acquire(1, "taken", true).await;
    owner.granted(1).await;

    wire.acquire_several(1, vec![alone("free"), alone("taken")], None, false).await;

    assert_refusal(&wire.refused().await, RefusalReason::LockHeld, &["taken"]);
    assert_eq!(look(&address, "free").await, None);
}

/// Two requests are two requests, whichever session makes them.
#[tokio::test]
async fn shared_and_exclusive_requests_of_one_session_exclude_each_other() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    wire.acquire_several(1, vec![item("jobs", Mode::Shared)], None, true).await;
    let reading = wire.granted(1).await;

    wire.acquire(2, "jobs", false).await;
    assert_refusal(&wire.refused().await, RefusalReason::LockHeld, &["jobs"]);
    wire.acquire(3, "jobs", true).await;
    wire.queued(3).await;
    // I9: a reader that does not wait does not pass the writer, whether that is of its own session
    // or not.
    wire.acquire_several(4, vec![item("jobs", Mode::Shared)], None, false).await;
    assert_refusal(&wire.refused().await, RefusalReason::LockHeld, &["jobs"]);
    wire.release(reading).await;
    let writing = wire.granted(3).await;

    assert!(writing > reading);
    assert_eq!(holder(&address, "jobs").await, Some(writing));
}

/// I12: a repeated request is answered as before, a confirmed one is gone, and another payload
/// under the same id is refused; the set stays as it is.
#[tokio::test]
async fn copies_of_a_request_for_several_change_nothing() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let set = || vec![alone("a"), item("b", Mode::Shared)];
    wire.acquire_several(1, set(), None, true).await;
    let token = wire.granted(1).await;

    wire.acquire_several(1, set(), None, true).await;
    assert_eq!(wire.grant(1).await.names.len(), 2);
    for (items, any) in [
        (vec![alone("a"), alone("b")], None),
        (vec![alone("a")], None),
        (set(), Some(1)),
        (vec![alone("a"), item("b", Mode::Shared), alone("c")], None),
    ] {
        wire.acquire_several(1, items, any, true).await;
        assert_refusal(&wire.refused().await, RefusalReason::RequestReused, &["1"]);
    }
    wire.set_done_below(2);
    wire.acquire_several(1, set(), None, true).await;
    assert_refusal(&wire.refused().await, RefusalReason::RequestGone, &["1"]);

    assert_eq!(holder(&address, "a").await, Some(token));
    assert_eq!(holder(&address, "b").await, Some(token));
}

/// I13: a release does nothing unless all names in it are held.
#[tokio::test]
async fn a_release_of_names_that_are_not_held_frees_nothing() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let (mut other, _) = Wire::open(&address, TTL_MS).await;
    other.acquire(1, "others", true).await;
    let others = other.granted(1).await;
    wire.acquire_several(1, vec![alone("a"), alone("b")], None, true).await;
    let token = wire.granted(1).await;

    for name in ["others", "nobodys"] {
        wire.release_names(token, &["a", name]).await;
        assert_refusal(&wire.refused().await, RefusalReason::NotHolder, &[name]);
    }
    wire.release_names(token, &["a", "a"]).await;
    assert_refusal(&wire.refused().await, RefusalReason::Invalid, &["a", "twice"]);
    wire.release_names(others, &["others"]).await;
    let refusal = wire.refused().await;
    assert_refusal(&refusal, RefusalReason::NotHolder, &[&others.to_string()]);
    assert_eq!(holder(&address, "a").await, Some(token));
    assert_eq!(holder(&address, "others").await, Some(others));

    wire.release_names(token, &["a"]).await;
    wire.released(token).await;
    wire.release_names(token, &["a"]).await;
    assert_refusal(&wire.refused().await, RefusalReason::NotHolder, &["a"]);
    assert_eq!(holder(&address, "a").await, None);
    assert_eq!(holder(&address, "b").await, Some(token));
    wire.release(token).await;
    wire.released(token).await;
    let refusal = release_refused(&mut wire, token).await;
    assert_refusal(&refusal, RefusalReason::NotHolder, &[&token.to_string()]);
}

/// A place that is asked for again is the same place, in each of its queues.
#[tokio::test]
async fn a_set_that_waits_and_comes_again_keeps_its_places() {
    let (_cluster, address) = one_node().await;
    let (mut owner, _) = Wire::open(&address, TTL_MS).await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    owner.acquire(1, "a", true).await;
    let token = owner.granted(1).await;
    let set = || vec![alone("a"), alone("b")];
    let ask = |request_id| Acquire { request_id, items: set(), wait: true, ..Acquire::default() };
    wire.send(Ask::Acquire(ask(1))).await;
    wire.queued(1).await;

    wire.send(Ask::Acquire(ask(1))).await;
    assert_eq!(wire.queued(1).await, 0);
    let waiting = |name: &'static str| {
        let address = address.clone();
        async move { look(&address, name).await.map(|lock| lock.waiting) }
    };
    assert_eq!((waiting("a").await, waiting("b").await), (Some(1), Some(1)));
    // The set keeps later requests out, also of the lock that is free.
    owner.acquire(2, "b", false).await;
    assert_refusal(&owner.refused().await, RefusalReason::LockHeld, &["b"]);
    owner.release(token).await;

    let told = wire
        .expect("Granted", |told| match told {
            Told::Granted(granted) => Some(granted.clone()),
            _ => None,
        })
        .await;
    assert_eq!(told.names.len(), 2);
}

/// I15: a set that waits keeps other requests out of a lock that is free. Once it gives up, or its
/// session ends, they are granted at once.
#[tokio::test]
async fn a_set_that_gives_up_lets_in_who_waited_behind_it() {
    let (_cluster, address) = one_node().await;
    let (mut owner, _) = Wire::open(&address, TTL_MS).await;
    let (mut next, _) = Wire::open(&address, TTL_MS).await;
    owner.acquire(1, "taken", true).await;
    owner.granted(1).await;

    for (request, closes) in [(1, false), (2, true)] {
        let (mut wire, _) = Wire::open(&address, TTL_MS).await;
        wire.acquire_several(1, vec![alone("free"), alone("taken")], None, true).await;
        wire.queued(1).await;
        next.acquire(request, "free", true).await;
        next.queued(request).await;
        if closes {
            wire.close().await;
        } else {
            wire.cancel(1).await;
        }
        let token = next.granted(request).await;
        next.release(token).await;
        next.released(token).await;
    }
}
