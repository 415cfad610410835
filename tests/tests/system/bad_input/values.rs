//! Impossible changes of values: the value stays as it was (I13).

use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{Clear, Confirm, Mode, Refusal, RefusalReason, Value};
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::wire::{Wire, item};

use super::{TTL_MS, assert_refusal, assert_serves, look, one_node};

async fn value(address: &str, name: &str) -> Option<Value> {
    look(address, name).await?.value
}

async fn bytes(address: &str, name: &str) -> Option<Vec<u8>> {
    value(address, name).await.map(|value| value.value.to_vec())
}

/// A stream that holds `jobs` exclusively under request 1, with the value "good", set by request 2.
async fn holder_of_jobs(address: &str) -> (Wire, u64) {
    let (mut wire, _) = Wire::open(address, TTL_MS).await;
    wire.acquire(1, "jobs", true).await;
    let token = wire.granted(1).await;
    wire.set_value(2, token, "jobs", b"good").await;
    wire.value_set(2).await;
    (wire, token)
}

#[tokio::test]
async fn a_change_of_a_value_that_cannot_be_is_refused_with_the_reason() {
    let (_cluster, address) = one_node().await;
    let (mut wire, token) = holder_of_jobs(&address).await;
    let large = |length: usize| Some(Change::Value(vec![b'x'; length].into()));
    let named = token.to_string();
    let changes = [
        (token, "jobs", large(4_097), RefusalReason::Limit, &["4097", "4096"][..]),
        (token, "jobs", large(100_000), RefusalReason::Limit, &["100000", "4096"]),
        (token, "jobs", None, RefusalReason::Invalid, &["set, clear or confirm"]),
        (token, "", large(1), RefusalReason::Invalid, &["empty"]),
        (token, "jo\nbs", large(1), RefusalReason::Invalid, &["000A"]),
        (token, "other", large(1), RefusalReason::NotHolder, &["other", &named]),
        (token + 1, "jobs", large(1), RefusalReason::NotHolder, &[]),
        (0, "jobs", large(1), RefusalReason::NotHolder, &["token 0"]),
        (u64::MAX, "jobs", large(1), RefusalReason::NotHolder, &["18446744073709551615"]),
    ];

    for (request, (token, name, change, reason, words)) in (3..).zip(changes) {
        wire.change_value(request, token, name, change).await;
        assert_refusal(&wire.refused().await, reason, words);
    }

    assert_eq!(bytes(&address, "jobs").await.as_deref(), Some(&b"good"[..]));
    wire.set_value(100, token, "jobs", &[b'x'; 4_096]).await;
    wire.value_set(100).await;
    assert_eq!(bytes(&address, "jobs").await.map(|value| value.len()), Some(4_096));
    assert_serves(&mut wire, 101).await;
}

async fn refused_change(wire: &mut Wire, request: u64, token: u64, change: Change) -> Refusal {
    wire.change_value(request, token, "jobs", Some(change)).await;
    wire.refused().await
}

/// All three changes, by a session that never held the lock, by its last holder, and by a reader.
#[tokio::test]
async fn nobody_but_the_holder_changes_a_value() {
    let (_cluster, address) = one_node().await;
    let (mut last, old) = holder_of_jobs(&address).await;
    let (mut stranger, _) = Wire::open(&address, TTL_MS).await;
    let (mut reader, _) = Wire::open(&address, TTL_MS).await;
    let good = value(&address, "jobs").await;
    let changes =
        || [Change::Value(b"bad"[..].into()), Change::Clear(Clear {}), Change::Confirm(Confirm {})];

    for (request, change) in (10..).zip(changes()) {
        let refusal = refused_change(&mut stranger, request, old, change).await;
        assert_refusal(&refusal, RefusalReason::NotHolder, &[&old.to_string()]);
    }
    last.release(old).await;
    last.released(old).await;
    for (request, change) in (10..).zip(changes()) {
        let refusal = refused_change(&mut last, request, old, change).await;
        assert_refusal(&refusal, RefusalReason::NotHolder, &[&old.to_string()]);
    }
    reader.acquire_several(1, vec![item("jobs", Mode::Shared)], None, true).await;
    let reading = reader.granted(1).await;
    for (request, change) in (10..).zip(changes()) {
        let refusal = refused_change(&mut reader, request, reading, change).await;
        assert_refusal(&refusal, RefusalReason::NotExclusive, &["jobs", &reading.to_string()]);
    }

    assert!(good.is_some());
    assert_eq!(value(&address, "jobs").await, good);
}

#[tokio::test]
async fn a_value_that_is_not_there_cannot_be_confirmed_and_may_be_cleared() {
    let (_cluster, address) = one_node().await;
    let (mut wire, token) = holder_of_jobs(&address).await;

    for request in [3, 4] {
        wire.change_value(request, token, "jobs", Some(Change::Clear(Clear {}))).await;
        wire.value_set(request).await;
    }
    let refusal = refused_change(&mut wire, 5, token, Change::Confirm(Confirm {})).await;

    assert_refusal(&refusal, RefusalReason::Invalid, &["jobs", "no value"]);
    assert_eq!(value(&address, "jobs").await, None);
}

/// I12: the copy of a change that comes after a later one is answered, and does not undo it.
#[tokio::test]
async fn copies_of_a_change_change_nothing() {
    let (_cluster, address) = one_node().await;
    let (mut wire, token) = holder_of_jobs(&address).await;
    wire.set_value(3, token, "jobs", b"better").await;
    wire.value_set(3).await;

    wire.set_value(2, token, "jobs", b"good").await;
    wire.value_set(2).await;
    assert_eq!(bytes(&address, "jobs").await.as_deref(), Some(&b"better"[..]));
    for other in [Change::Value(b"bad"[..].into()), Change::Clear(Clear {})] {
        let refusal = refused_change(&mut wire, 2, token, other).await;
        assert_refusal(&refusal, RefusalReason::RequestReused, &["2"]);
    }
    // Requests and changes share one space of ids.
    let refusal = refused_change(&mut wire, 1, token, Change::Clear(Clear {})).await;
    assert_refusal(&refusal, RefusalReason::RequestReused, &["1"]);
    wire.acquire(3, "other", true).await;
    assert_refusal(&wire.refused().await, RefusalReason::RequestReused, &["3"]);
    wire.set_done_below(4);
    let refusal = refused_change(&mut wire, 3, token, Change::Value(b"better"[..].into())).await;
    assert_refusal(&refusal, RefusalReason::RequestGone, &["3"]);

    assert_eq!(bytes(&address, "jobs").await.as_deref(), Some(&b"better"[..]));
}

/// I27: each value counts some bytes besides its own, so three of these are too many. A refused
/// change leaves the values alone, and may be repeated under its id once there is room.
#[tokio::test]
async fn more_value_bytes_than_allowed_are_refused_by_the_limits_name() {
    let setup = Setup::nodes(1).cluster("max_value_bytes", 9_000);
    let cluster = Cluster::start(&setup).await;
    let address = cluster.nodes()[0].listen.clone();
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let names = ["a", "b", "c"];
    let items = names.map(|name| item(name, Mode::Exclusive));
    wire.acquire_several(1, items.into(), None, true).await;
    let token = wire.granted(1).await;
    let full = [b'x'; 4_096];
    for (request, name) in [(2, "a"), (3, "b")] {
        wire.set_value(request, token, name, &full).await;
        wire.value_set(request).await;
    }

    wire.set_value(4, token, "c", &full).await;
    let refusal = wire.refused().await;

    assert_refusal(&refusal, RefusalReason::Limit, &["max_value_bytes", "9000"]);
    assert_eq!(refusal.limit, "max_value_bytes");
    assert_eq!(value(&address, "c").await, None);
    wire.change_value(5, token, "a", Some(Change::Clear(Clear {}))).await;
    wire.value_set(5).await;
    wire.set_value(4, token, "c", &full).await;
    wire.value_set(4).await;
    assert_eq!(bytes(&address, "c").await.map(|value| value.len()), Some(4_096));
}
