//! What a request may ask for: shared, several at once, any of several; and the value of a lock.

use holdfast_proto::v1::request_state::State as Stands;
use holdfast_proto::v1::{
    Clear, Confirm, Contended, Denied, Moved, NamedValue, Queued, RefusalReason, Released,
    RequestState, State, Value, ValueSet,
};

use super::*;

const ANY_FREE: Option<AnyOf> = Some(AnyOf { min: 0 });
const ANY_ONE: Option<AnyOf> = Some(AnyOf { min: 1 });

fn set(bytes: &'static [u8]) -> Change {
    Change::Value(Bytes::from_static(bytes))
}

fn write(request_id: u64, token: u64, name: &str, change: Change) -> Ask {
    set_value(request_id, token, name, Some(change))
}

async fn queued(client: &mut Client) -> Queued {
    match client.next().await {
        Body::Queued(queued) => queued,
        other => panic!("not Queued: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn readers_hold_together_and_a_writer_sees_all_of_them() {
    let world = World::new().await;
    let (mut first, _) = world.session().await;
    let (mut second, _) = world.session().await;
    let (mut writer, _) = world.session().await;
    first.send(acquire_items(1, vec![shared("plan")], None)).await;
    second.send(acquire_items(1, vec![shared("plan")], None)).await;
    let tokens = [first.granted().await.token, second.granted().await.token];

    writer.send(acquire(1, "plan")).await;
    let holders = queued(&mut writer).await.holders;

    assert_eq!(holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), tokens);
    assert!(holders.iter().all(|holder| holder.mode() == Mode::Shared));
    for (reader, token) in [(&mut first, tokens[0]), (&mut second, tokens[1])] {
        let told =
            Contended { request_id: 1, token, name: "plan".into(), waiting: 1, head_start_ms: 0 };
        assert_eq!(reader.next().await, Body::Contended(told));
    }
}

/// I27: a lock may be shared by any number.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_of_a_hundred_holders_and_no_more() {
    let world = World::new().await;
    let (mut readers, _) = world.session().await;
    for request in 1..=150 {
        readers.send(acquire_items(request, vec![shared("plan")], None)).await;
        readers.granted().await;
    }
    let (mut writer, _) = world.session().await;

    writer.send(acquire(1, "plan")).await;

    assert_eq!(queued(&mut writer).await.holders.len(), 100);
}

/// I14, and names in their order whatever the order of the request.
#[tokio::test(start_paused = true)]
async fn a_set_is_granted_whole_and_given_back_in_parts() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    let (mut waiter, _) = world.session().await;
    client.send(acquire_items(1, vec![exclusive("b"), shared("c"), exclusive("a")], None)).await;
    let granted = client.granted().await;
    assert_eq!(granted.names, ["a", "b", "c"]);
    waiter.send(acquire(1, "b")).await;
    queued(&mut waiter).await;
    assert!(matches!(client.next().await, Body::Contended(_)));

    let Granted { token, request_id, .. } = granted;
    client.send(Ask::Release(Release { token, names: vec!["b".into()], lost: false })).await;
    let part = Released { token, request_id, names: vec!["b".into()], partly: true };
    assert_eq!(client.next().await, Body::Released(part));
    assert_eq!(waiter.granted().await.names, ["b"]);

    client.send(release(token)).await;
    let rest = vec!["a".into(), "c".into()];
    let rest = Released { token, request_id, names: rest, partly: false };
    assert_eq!(client.next().await, Body::Released(rest));
}

#[tokio::test(start_paused = true)]
async fn a_set_that_waits_names_each_holder_once_and_its_last_place() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut waiter, _) = world.session().await;
    holder.send(acquire_items(1, vec![exclusive("a"), exclusive("b")], None)).await;
    let token = holder.granted().await.token;
    waiter.send(acquire(1, "b")).await;
    queued(&mut waiter).await;

    waiter.send(acquire_items(2, vec![exclusive("a"), exclusive("b")], None)).await;

    let Queued { place, holders, .. } = queued(&mut waiter).await;
    assert_eq!(place, 1);
    assert_eq!(holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token]);
}

#[tokio::test(start_paused = true)]
async fn any_takes_what_is_free_or_says_that_nothing_is() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut client, _) = world.session().await;
    holder.send(acquire(1, "a")).await;
    holder.granted().await;

    client.send(acquire_items(1, vec![exclusive("a"), exclusive("b")], ANY_FREE)).await;
    assert_eq!(client.granted().await.names, ["b"]);
    client.send(acquire_items(2, vec![exclusive("a"), exclusive("b")], ANY_FREE)).await;
    let Body::Denied(Denied { refusal, .. }) = client.next().await else { panic!("not denied") };
    assert_eq!(refusal.unwrap().reason(), RefusalReason::NothingFree);
}

/// The request's best place counts, and the requests behind it in the other queue move up when it
/// leaves.
#[tokio::test(start_paused = true)]
async fn any_of_two_moves_with_its_best_place_and_leaves_the_other_queue() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    for (request, name) in [(1, "a"), (2, "b")] {
        holder.send(acquire(request, name)).await;
    }
    let held = holder.granted().await;
    holder.granted().await;
    let (mut before, _) = world.session().await;
    before.send(acquire(1, "b")).await;
    queued(&mut before).await;
    let (mut any, _) = world.session().await;
    any.send(acquire_items(1, vec![exclusive("a"), exclusive("b")], ANY_ONE)).await;
    assert_eq!(queued(&mut any).await.place, 0);
    let (mut behind, _) = world.session().await;
    let Ask::Acquire(plain) = acquire(1, "b") else { unreachable!() };
    behind.send(Ask::Acquire(Acquire { follow_place: true, ..plain })).await;
    assert_eq!(queued(&mut behind).await.place, 2);

    holder.send(release(held.token)).await;

    assert_eq!(any.granted().await.names, ["a"]);
    let Body::Moved(Moved { place, .. }) = behind.next().await else { panic!("not moved") };
    assert_eq!(place, 1);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_follows_its_place_moves_with_the_last_of_its_places() {
    let world = World::new().await;
    let (holder, _) = world.session().await;
    for (request, name) in [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "b")] {
        holder.send(acquire(request, name)).await;
    }
    let (mut waiter, _) = world.session().await;
    let follow = Acquire {
        request_id: 1,
        items: vec![exclusive("a"), exclusive("b")],
        wait: true,
        follow_place: true,
        ..Acquire::default()
    };
    waiter.send(Ask::Acquire(follow)).await;
    assert_eq!(queued(&mut waiter).await.place, 2);

    // Its place in the queue of `a` is not the one that counts.
    holder.send(Ask::Cancel(holdfast_proto::v1::Cancel { request_id: 3 })).await;
    waiter.expect_silence(Duration::from_secs(3)).await;
    holder.send(Ask::Cancel(holdfast_proto::v1::Cancel { request_id: 4 })).await;
    let Body::Moved(Moved { place, .. }) = waiter.next().await else { panic!("not moved") };
    assert_eq!(place, 1);
    drop(waiter);
    world.settle().await;
    assert!(world.hub.registry.lock().follows.is_empty());
    drop(holder);
}

#[tokio::test(start_paused = true)]
async fn a_value_goes_to_the_next_holder_with_the_grant() {
    let world = World::new().await;
    let (mut first, _) = world.session().await;
    let (mut second, _) = world.session().await;
    first.send(acquire(1, "jobs")).await;
    let token = first.granted().await.token;
    first.send(write(2, token, "jobs", set(b"page 7"))).await;
    assert_eq!(first.next().await, Body::ValueSet(ValueSet { request_id: 2 }));
    first.send(release(token)).await;

    second.send(acquire(1, "jobs")).await;

    let value = Value { value: "page 7".into(), token, suspect: false };
    let named = NamedValue { name: "jobs".into(), value: Some(value) };
    assert_eq!(second.granted().await.values, [named]);
}

/// I12: the second copy changes nothing, and is answered as the first.
#[tokio::test(start_paused = true)]
async fn a_value_set_twice_under_one_id_is_set_once_and_known_in_state() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    let token = client.granted().await.token;
    for (request, bytes) in [(2, &b"old"[..]), (3, &b"new"[..]), (2, &b"old"[..])] {
        client.send(write(request, token, "jobs", set(bytes))).await;
        assert_eq!(client.next().await, Body::ValueSet(ValueSet { request_id: request }));
    }

    let mut again = world.resume(&ticket).await;
    again.opened().await;
    let Body::State(State { requests, .. }) = again.next().await else { panic!("not State") };

    let [held, old, new] = &requests[..] else { panic!("not three: {requests:?}") };
    let Some(Stands::Granted(granted)) = &held.state else { panic!("not held: {held:?}") };
    assert_eq!(granted.values[0].value.as_ref().unwrap().value, "new");
    for (request_id, shown) in [(2, old), (3, new)] {
        let state = Some(Stands::ValueSet(ValueSet { request_id }));
        assert_eq!(*shown, RequestState { request_id, state, contended: vec![] });
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_is_suspect_after_an_expiry_until_the_next_holder_confirms_it() {
    let world = World::new().await;
    let (mut dead, _) = world.session().await;
    dead.send(acquire(1, "jobs")).await;
    let token = dead.granted().await.token;
    dead.send(write(2, token, "jobs", set(b"half done"))).await;
    world.runtime.sleep(NEARLY_TTL).await;
    let (mut next, ticket) = world.session().await;
    next.send(acquire(1, "jobs")).await;
    queued(&mut next).await;

    let granted = next.granted().await;
    let value = granted.values[0].value.clone().unwrap();
    assert_eq!((value.token, value.suspect), (token, true));
    next.send(write(2, granted.token, "jobs", Change::Confirm(Confirm {}))).await;
    assert!(matches!(next.next().await, Body::ValueSet(_)));
    next.send(acquire(1, "jobs")).await;
    assert!(!next.granted().await.values[0].value.as_ref().unwrap().suspect);
    next.send(write(3, granted.token, "jobs", Change::Clear(Clear {}))).await;
    assert!(matches!(next.next().await, Body::ValueSet(_)));
    let mut again = world.resume(&ticket).await;
    again.opened().await;
    let Body::State(State { requests, .. }) = again.next().await else { panic!("not State") };
    let Some(Stands::Granted(granted)) = &requests[0].state else { panic!("not held") };
    assert_eq!(granted.values, []);
}

#[tokio::test(start_paused = true)]
async fn only_who_holds_alone_and_under_that_token_changes_a_value() {
    let world = World::new().await;
    let (mut other, _) = world.session().await;
    other.send(acquire(1, "foreign")).await;
    let foreign = other.granted().await.token;
    let (mut client, _) = world.session().await;
    client.send(acquire_items(1, vec![shared("read"), exclusive("own")], None)).await;
    let own = client.granted().await.token;
    let largest = Change::Value(vec![0; 4_096].into());
    let cases = [
        (foreign, "foreign", largest, RefusalReason::NotHolder),
        (own, "foreign", set(b"x"), RefusalReason::NotHolder),
        (own, "read", set(b"x"), RefusalReason::NotExclusive),
        (own, "own", Change::Confirm(Confirm {}), RefusalReason::Invalid),
    ];
    for (token, name, change, reason) in cases {
        client.send(write(9, token, name, change)).await;
        let Body::Refused(refused) = client.next().await else { panic!("not refused: {name}") };
        assert_eq!(refused.refusal.unwrap().reason(), reason, "{name}");
    }
}
