//! Every frame that is wrong in one way: the answer to it, and that nothing else happens.

use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{AnyOf, Cancel, Refusal, RefusalReason, Refused};

use super::*;

/// Sends a frame on an open session: it is refused before anything is proposed, and the stream goes on.
/// Returns the refusal.
async fn refusal_of(body: Ask) -> (Option<Subject>, Refusal) {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.hold_commits();
    client.send(body).await;
    let Body::Refused(Refused { refusal, subject }) = client.next().await else {
        panic!("not refused");
    };
    assert_eq!(world.fake.held_back(), [], "proposed");
    world.fake.let_commits_go();
    client.send(acquire(1_000, "still/served")).await;
    client.granted().await;
    (subject, refusal.unwrap())
}

/// Sends a first frame; the stream sends one frame and ends.
async fn answer_to_first(body: Ask) -> (Vec<Body>, Result<(), StreamError>) {
    let world = World::new().await;
    let client = world.connect();
    client.send(body).await;
    client.rest().await
}

#[tokio::test(start_paused = true)]
async fn a_bad_name_is_refused_and_named() {
    let long = "x".repeat(513);
    let cases: [(&[u8], &str); 6] = [
        (b"", "a lock name cannot be empty"),
        (long.as_bytes(), "513 bytes is longer than the 512 allowed"),
        (
            b"jobs/\xff\xfe",
            "the lock name \"jobs/\\xff\\xfe\" is not usable: not UTF-8 from byte 5 on",
        ),
        (b"jobs\n", "U+000A at byte 4"),
        (b"\x1b[31m", "U+001B at byte 0"),
        ("jobs\u{202e}".as_bytes(), "U+202E at byte 4"),
    ];
    for (name, words) in cases {
        let (subject, refusal) = refusal_of(acquire_names(7, &[name])).await;
        assert_eq!(subject, Some(Subject::RequestId(7)));
        assert_eq!(refusal.reason(), RefusalReason::Invalid);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

/// Each way in which a request for several locks can be wrong has a message of its own, and is refused
/// before anything is proposed (I27).
#[tokio::test(start_paused = true)]
async fn a_set_is_refused_for_what_is_wrong_with_it_first() {
    let set = |names: &[&str]| names.iter().map(|name| exclusive(name)).collect::<Vec<_>>();
    let many: Vec<Item> = (0..65).map(|number| exclusive(&number.to_string())).collect();
    let odd = vec![exclusive("a"), Item { mode: 7, ..exclusive("b") }];
    let any = |min| Some(AnyOf { min });
    let cases = [
        (vec![], None, RefusalReason::Invalid, "a request names at least one lock"),
        (set(&["a", "b", "a"]), None, RefusalReason::Invalid, "a is named twice"),
        (
            vec![exclusive("a"), shared("a")],
            None,
            RefusalReason::Invalid,
            "both exclusive and shared",
        ),
        (many, None, RefusalReason::Limit, "65 names are more than the 64 allowed"),
        (odd, None, RefusalReason::Invalid, "mode 7 of b is not one that this server knows"),
        (set(&["a", "b"]), any(3), RefusalReason::Invalid, "at least 3 of 2 locks"),
    ];
    for (items, any, reason, words) in cases {
        let (subject, refusal) = refusal_of(acquire_items(7, items, any)).await;
        assert_eq!(subject, Some(Subject::RequestId(7)));
        assert_eq!(refusal.reason(), reason);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_of_a_name_twice_or_of_too_many_is_refused_by_its_token() {
    let many = (0..65).map(|number| number.to_string().into()).collect();
    let cases: [(Vec<Bytes>, RefusalReason, &str); 3] = [
        (vec!["a".into(), "a".into()], RefusalReason::Invalid, "a is named twice"),
        (many, RefusalReason::Limit, "65 names are more"),
        (vec!["a\n".into()], RefusalReason::Invalid, "U+000A"),
    ];
    for (names, reason, words) in cases {
        let (subject, refusal) =
            refusal_of(Ask::Release(Release { token: 5, names, lost: false })).await;
        assert_eq!(subject, Some(Subject::Token(5)));
        assert_eq!(refusal.reason(), reason);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_value_that_cannot_be_done_is_refused_for_its_reason() {
    let set = |bytes: usize| Some(Change::Value(vec![b'x'; bytes].into()));
    let cases = [
        ("jobs", None, RefusalReason::Invalid, "names none: set, clear or confirm it"),
        ("jobs", set(4_097), RefusalReason::Limit, "4097 bytes is larger than the 4096"),
        ("", set(1), RefusalReason::Invalid, "cannot be empty"),
    ];
    for (name, change, reason, words) in cases {
        let (subject, refusal) = refusal_of(set_value(7, 5, name, change)).await;
        assert_eq!(subject, Some(Subject::RequestId(7)));
        assert_eq!(refusal.reason(), reason);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

#[tokio::test(start_paused = true)]
async fn the_request_ids_at_both_ends_are_refused() {
    for id in [0, u64::MAX] {
        for body in [acquire(id, "jobs"), Ask::Cancel(Cancel { request_id: id })] {
            let (subject, refusal) = refusal_of(body).await;
            assert_eq!(subject, Some(Subject::RequestId(id)));
            assert_eq!(refusal.reason(), RefusalReason::Invalid);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_outside_the_bounds_is_refused_and_never_clamped() {
    let year = Duration::from_hours(24 * 365);
    for ttl in [Duration::ZERO, Duration::from_millis(1), year] {
        let (rest, end) = answer_to_first(open(ttl)).await;
        let [Body::Refused(refused)] = &rest[..] else { panic!("not refused: {rest:?}") };
        let refusal = refused.refusal.as_ref().unwrap();
        assert_eq!(refusal.reason(), RefusalReason::TtlOutOfRange);
        let words = format!("a lease of {} ms is outside 1000 to 900000 ms", ttl.as_millis());
        assert_eq!(refusal.message, words);
        assert_eq!(end, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_label_or_secret_is_refused() {
    let label = Open { label: "x".repeat(257), ..Open::default() };
    let secret = Bytes::from_static(b"abc");
    let resume = Resume { secret, cluster_id: CLUSTER, session_id: 1, ..Resume::default() };
    let secret = Open { resume: Some(resume), ..Open::default() };
    for (open, words) in [(label, "257 bytes is longer"), (secret, "the secret has 3 bytes")] {
        let (rest, end) = answer_to_first(Ask::Open(open)).await;
        let [Body::Refused(refused)] = &rest[..] else { panic!("not refused: {rest:?}") };
        let refusal = refused.refusal.as_ref().unwrap();
        assert_eq!(refusal.reason(), RefusalReason::Invalid);
        assert!(refusal.message.contains(words), "{}", refusal.message);
        assert_eq!(end, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_frame_that_is_not_open_ends_the_stream() {
    let (rest, end) = answer_to_first(keep_alive(1)).await;

    assert_eq!(rest, []);
    let words = "the first frame of a stream must be Open".to_owned();
    assert_eq!(end, Err(StreamError::Protocol(words)));
}

#[tokio::test(start_paused = true)]
async fn a_second_open_or_a_frame_without_a_body_ends_the_stream_and_not_the_session() {
    for body in [Some(open(TTL)), None] {
        let world = World::new().await;
        let (client, ticket) = world.session().await;
        let frames = vec![ClientFrame { done_below: 0, body }];
        client.pipe.outgoing.send(ClientFrames { frames }).await.unwrap();
        let (_, end) = client.rest().await;

        assert!(matches!(end, Err(StreamError::Protocol(_))), "{end:?}");
        world.resume(&ticket).await.opened().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_sends_no_open_ends_after_five_seconds() {
    let world = World::new().await;
    let before = world.runtime.clock.now();
    let (rest, end) = world.connect().rest().await;

    assert_eq!(rest, []);
    assert_eq!(end, Err(StreamError::Protocol("no Open came within 5000 ms".to_owned())));
    let waited = world.runtime.clock.now().saturating_since(before);
    assert_eq!(waited, Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_request_id_with_another_payload_is_refused_and_the_request_stays() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    let held = client.granted().await;

    client.send(acquire(1, "other")).await;
    let Body::Refused(refused) = client.next().await else { panic!("not refused") };
    assert_eq!(refused.refusal.unwrap().reason(), RefusalReason::RequestReused);
    client.send(acquire(1, "jobs")).await;
    assert_eq!(client.granted().await, held);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_comes_twice_or_with_a_foreign_token_is_refused() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    let (mut other, _) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    let held = client.granted().await;
    client.send(acquire(2, "jobs")).await;
    client.next().await;
    client.next().await;

    other.send(release(held.token)).await;
    let Body::Refused(foreign) = other.next().await else { panic!("not refused") };
    assert_eq!(foreign.subject, Some(Subject::Token(held.token)));
    assert_eq!(foreign.refusal.unwrap().reason(), RefusalReason::NotHolder);

    client.send(release(held.token)).await;
    assert!(matches!(client.next().await, Body::Released(_)));
    let next = client.granted().await;
    client.send(release(held.token)).await;
    let Body::Refused(twice) = client.next().await else { panic!("not refused") };
    assert_eq!(twice.refusal.unwrap().reason(), RefusalReason::NotHolder);
    client.send(acquire(2, "jobs")).await;
    assert_eq!(client.granted().await, next);
}

/// The id lies below what the client itself confirmed as done.
#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_confirmed_request_is_gone() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    client.send_confirming(6, acquire(5, "jobs")).await;

    let Body::Refused(refused) = client.next().await else { panic!("not refused") };
    assert_eq!(refused.refusal.unwrap().reason(), RefusalReason::RequestGone);
}

/// A frame without a mark of its own travels with the highest mark that the stream has shown.
#[tokio::test(start_paused = true)]
async fn the_mark_of_a_keepalive_goes_with_the_next_command() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    client.send_confirming(6, keep_alive(1)).await;
    client.send_confirming(0, acquire(5, "jobs")).await;

    assert!(matches!(client.next().await, Body::Refused(_)));
}
