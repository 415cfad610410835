//! What requests say besides their locks: head starts, notes, owners.

use holdfast::{Error, FencingToken, RefusalReason};
use holdfast_proto::v1::{self, server_frame::Body};

use super::scripted::{Net, granted_names, ms, refusal};
use super::start;

fn names(items: &[v1::Item]) -> Vec<&[u8]> {
    items.iter().map(|item| &*item.name).collect()
}

/// A server of a release before 0.4 finds no items, and refuses the request.
#[tokio::test(start_paused = true)]
async fn a_request_that_says_something_has_its_items_where_older_servers_find_none() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let urgent = client.lock_all(["a", "b"]).head_start(ms(1_500)).note("ticket 4711");
    let (_task, _outcome) = start(&net, urgent);

    let acquire = server.acquire().await;

    assert!(acquire.items.is_empty() && acquire.wait);
    let on = acquire.on.unwrap();
    assert_eq!((on.head_start_ms, &*on.note, on.owner), (1_500, "ticket 4711", 0));
    assert_eq!(names(&on.items), [b"a", b"b"]);

    let (_task, _outcome) = start(&net, client.lock("plain").head_start(ms(0)).note(""));
    let plain = server.acquire().await;
    assert_eq!((names(&plain.items), plain.on), (vec![&b"plain"[..]], None));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_holds_the_lock_gets_its_token() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let owner = client.owner();
    let (_task, outcome) = start(&net, owner.lock("jobs"));
    let first = server.acquire().await;
    server.say(granted_names(first.request_id, 41, &["jobs"])).await;
    let guard = outcome.await.unwrap().unwrap();

    let (_task, outcome) = start(&net, client.semaphore("jobs", 2).permits(1).by(&owner.clone()));
    let second = server.acquire().await;
    let own = second.on.as_ref().unwrap().owner;
    assert!(own != 0 && first.on.unwrap().owner == own);
    let held = v1::Refusal {
        holders: vec![v1::Holder { token: 41, ..v1::Holder::default() }],
        ..refusal(v1::RefusalReason::AlreadyHeld, "this owner holds jobs already")
    };
    let subject = Some(v1::refused::Subject::RequestId(second.request_id));
    server.say(Body::Refused(v1::Refused { subject, refusal: Some(held) })).await;

    let error = outcome.await.unwrap().unwrap_err();
    let (token, words) =
        (FencingToken::from_raw(41), "not asked for again: this owner holds jobs already");
    assert!(matches!(error, Error::AlreadyHeld { token: of, .. } if of == token), "{error:?}");
    assert_eq!(error.to_string(), words);
    assert!(!error.may_retry() && guard.is_safe());

    let (_task, _outcome) = start(&net, client.owner().try_lock("jobs"));
    let other = server.acquire().await;
    assert!(!other.wait && other.on.unwrap().owner != own);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_waits_already_is_told_so() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.owner().lock("jobs"));
    let subject = Some(v1::refused::Subject::RequestId(server.acquire().await.request_id));
    let waits = refusal(v1::RefusalReason::AlreadyAsked, "this owner waits for jobs already");
    server.say(Body::Refused(v1::Refused { subject, refusal: Some(waits) })).await;

    let error = outcome.await.unwrap().unwrap_err();
    let reason = RefusalReason::AlreadyAsked;
    assert!(matches!(error, Error::Refused { reason: of, .. } if of == reason), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn terms_that_no_server_takes_are_refused_here() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let wrong = [
        (
            client.lock("a").head_start(ms(600_001)),
            RefusalReason::Limit,
            "longer than the 600000 ms",
        ),
        (client.lock("a").note("x".repeat(257)), RefusalReason::Invalid, "the note is not usable"),
        (client.lock("a").note("a\u{7}b"), RefusalReason::Invalid, "the note is not usable"),
    ];
    for (acquire, expected, words) in wrong {
        match acquire.await {
            Err(Error::Refused { reason, message, .. }) => {
                assert_eq!(reason, expected);
                assert!(message.contains(words), "{message}");
            }
            other => panic!("{words}: {other:?}"),
        }
    }
    server.keep_alive_for(ms(3_000)).await;
}
