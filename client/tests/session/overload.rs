//! Frames that free something and that an overloaded server refused: sent again on the same stream,
//! later.

use futures_util::FutureExt;
use holdfast::{Client, Error, GuardState, RefusalReason};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::{self, cancelled::Was, refused::Subject, server_frame::Body};

use super::scripted::{
    Net, Server, cancelled, granted, granted_names, ms, refused, released, released_names,
    state_granted, value_set,
};
use super::{holding, start};

/// The pause that the overloaded server names, milliseconds.
const RETRY_AFTER_MS: u64 = 100;

/// A refusal for load.
fn overloaded(subject: Option<Subject>) -> Body {
    refused_by("max_pending_commands", subject)
}

fn refused_by(limit: &str, subject: Option<Subject>) -> Body {
    let refusal = v1::Refusal {
        reason: v1::RefusalReason::Limit.into(),
        message: "a limit is reached".into(),
        limit: limit.into(),
        retry_after_ms: Some(RETRY_AFTER_MS),
        ..v1::Refusal::default()
    };
    Body::Refused(v1::Refused { subject, refusal: Some(refusal) })
}

/// DESIGN §5.6: the guard is unsafe from the moment its release is queued, however often it is sent.
#[tokio::test(start_paused = true)]
async fn a_release_refused_for_load_is_sent_again_later_on_the_same_stream() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let states = guard.states();
    let mut release = Box::pin(guard.release());
    assert!((&mut release).now_or_never().is_none());
    assert_eq!(server.release().await, 41);
    let refused_at = net.runtime.clock.now();

    server.say(overloaded(Some(Subject::Token(41)))).await;

    assert_eq!(server.release().await, 41, "the same stream");
    let waited = net.runtime.clock.now().saturating_since(refused_at);
    assert!(waited >= ms(RETRY_AFTER_MS) && waited < ms(2 * RETRY_AFTER_MS), "{waited:?}");
    assert_eq!(states.now(), GuardState::Released);
    server.say(released(1, 41)).await;
    assert_eq!(release.await, Ok(()));
    assert!(net.is_quiet_for(ms(100)).await, "no other stream was opened");
}

/// The rule taken away.
#[tokio::test(start_paused = true)]
async fn without_the_rule_a_release_refused_for_load_costs_the_stream() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    drop(guard);
    assert_eq!(server.release().await, 41);

    arm(Some(Mutant::RefusedReleaseEndsStream));
    server.say(overloaded(Some(Subject::Token(41)))).await;
    let is_quiet = net.is_quiet_for(ms(2_000)).await;
    arm(None);

    assert!(!is_quiet, "another stream is opened");
}

/// The refused copy did nothing, so it explains no "not the holder" either.
#[tokio::test(start_paused = true)]
async fn a_release_that_was_refused_for_load_did_not_end_a_hold_that_is_gone() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut release = Box::pin(guard.release());
    assert!((&mut release).now_or_never().is_none());
    server.release().await;
    server.say(overloaded(Some(Subject::Token(41)))).await;
    server.release().await;

    server.say(refused(Some(Subject::Token(41)), v1::RefusalReason::NotHolder)).await;

    let outcome = release.await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
}

/// Each pause is up to twice as long as the one before, and none is longer than two seconds and its
/// jitter; a success starts from the first pause again.
#[tokio::test(start_paused = true)]
async fn pauses_between_retries_grow_to_a_bound_and_begin_anew() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    drop(guard);
    assert_eq!(server.release().await, 41);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let refused_at = net.runtime.clock.now();
        server.say(overloaded(Some(Subject::Token(41)))).await;
        assert_eq!(server.release().await, 41);
        pauses.push(net.runtime.clock.now().saturating_since(refused_at));
    }
    server.say(released(1, 41)).await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.grant_next(42).await;
    drop(outcome.await.unwrap().unwrap());
    server.release().await;
    let refused_at = net.runtime.clock.now();
    server.say(overloaded(Some(Subject::Token(42)))).await;
    server.release().await;
    let anew = net.runtime.clock.now().saturating_since(refused_at);

    let first = *pauses.first().unwrap();
    let last = *pauses.last().unwrap();
    assert!(first < ms(2 * RETRY_AFTER_MS), "{pauses:?}");
    assert!(last >= ms(2_000) && last <= ms(3_001), "{pauses:?}");
    assert!(anew < ms(2 * RETRY_AFTER_MS), "{anew:?}");
}

/// `done_below` must not pass a request whose end is unknown (I12).
#[tokio::test(start_paused = true)]
async fn a_cancel_refused_for_load_is_sent_again_and_confirms_nothing_before() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (task, outcome) = start(&net, client.lock("jobs"));
    assert_eq!(server.acquire().await.request_id, 1);
    drop((task, outcome));
    assert_eq!(server.cancel().await, 1);

    server.say(overloaded(Some(Subject::RequestId(1)))).await;

    let again = server.hear_frame().await;
    assert_eq!(again.done_below, 1, "its end is not known");
    assert_eq!(again.body, Some(v1::client_frame::Body::Cancel(v1::Cancel { request_id: 1 })));
    server.say(cancelled(1, Was::Waiting)).await;
    server.keep_alive_for(ms(5_000)).await;
    let (_task, _outcome) = start(&net, client.lock("other"));
    let later = server.hear_frame().await;
    assert_eq!(later.done_below, 2);
}

/// I31: requests that are over, under higher ids, take the room; they stay while `done_below` does.
/// I12: an Acquire that comes later lies below `done_below`.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_the_table_has_no_room_for_is_confirmed_when_it_is_sent_again() {
    for limit in ["max_requests_per_session", "max_table_bytes"] {
        let mut net = Net::new();
        let (client, mut server) = net.connected().await;
        assert_eq!(mark_of_a_cancel_refused_by(limit, (&net, &client, &mut server)).await, 2);

        server.say(refused(Some(Subject::RequestId(1)), v1::RefusalReason::RequestGone)).await;

        server.keep_alive_for(ms(5_000)).await;
        let (_task, _outcome) = start(&net, client.lock("other"));
        assert_eq!(server.acquire().await.request_id, 2, "nothing more about the first");
    }
}

/// The rule taken away.
#[tokio::test(start_paused = true)]
async fn without_the_rule_a_cancel_without_room_confirms_nothing() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    arm(Some(Mutant::CancelHoldsMark));
    let limit = "max_requests_per_session";
    let mark = mark_of_a_cancel_refused_by(limit, (&net, &client, &mut server)).await;
    arm(None);
    assert_eq!(mark, 1);
}

/// The `done_below` with which the cancel of request 1 is sent again.
async fn mark_of_a_cancel_refused_by(
    limit: &str,
    (net, client, server): (&Net, &Client, &mut Server),
) -> u64 {
    let (task, outcome) = start(net, client.lock("jobs"));
    assert_eq!(server.acquire().await.request_id, 1);
    drop((task, outcome));
    assert_eq!(server.cancel().await, 1);
    server.say(refused_by(limit, Some(Subject::RequestId(1)))).await;
    let again = server.hear_frame().await;
    assert_eq!(again.body, Some(v1::client_frame::Body::Cancel(v1::Cancel { request_id: 1 })));
    again.done_below
}

/// The client cancels a grant that it does not know; a refusal must not leave it held for ever.
#[tokio::test(start_paused = true)]
async fn the_cancel_of_a_forgotten_grant_refused_for_load_is_sent_again() {
    let mut net = Net::new();
    let (_client, mut server) = net.connected().await;
    server.say(granted(9, 50)).await;
    assert_eq!(server.cancel().await, 9);

    server.say(overloaded(Some(Subject::RequestId(9)))).await;

    assert_eq!(server.cancel().await, 9);
}

#[tokio::test(start_paused = true)]
async fn a_close_refused_for_load_is_sent_again() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut closing = Box::pin(client.close());
    assert!((&mut closing).now_or_never().is_none());
    server.close().await;

    server.say(overloaded(None)).await;

    server.close().await;
    let over =
        v1::SessionEnded { reason: v1::LostReason::SessionClosed.into(), why: String::new() };
    server.say(Body::SessionEnded(over)).await;
    assert_eq!(closing.await, Ok(()));
}

/// I12: under the same id.
#[tokio::test(start_paused = true)]
async fn a_clear_refused_for_load_is_sent_again_and_a_new_value_is_refused_to_the_caller() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut clear = Box::pin(guard.clear_value());
    assert!((&mut clear).now_or_never().is_none());
    let first = server.set_value().await;
    server.say(overloaded(Some(Subject::RequestId(first.request_id)))).await;
    let again = server.set_value().await;
    assert_eq!(again, first);
    server.say(value_set(first.request_id)).await;
    assert_eq!(clear.await, Ok(()));

    let (set, ()) = tokio::join!(guard.set_value("new"), async {
        let id = server.set_value().await.request_id;
        server.say(overloaded(Some(Subject::RequestId(id)))).await;
    });

    let error = set.unwrap_err();
    let Error::Refused { reason, retry_after, .. } = &error else { panic!("{error}") };
    assert_eq!((*reason, *retry_after), (RefusalReason::Limit, Some(ms(RETRY_AFTER_MS))));
    assert!(guard.is_safe());
}

/// I31: under its id it would be refused for as long as requests that are over take the room.
#[tokio::test(start_paused = true)]
async fn a_clear_that_the_table_has_no_room_for_is_refused_to_the_caller() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let (cleared, ()) = tokio::join!(guard.clear_value(), async {
        let id = server.set_value().await.request_id;
        server.say(refused_by("max_table_bytes", Some(Subject::RequestId(id)))).await;
    });

    let error = cleared.unwrap_err();
    assert!(matches!(error, Error::Refused { reason: RefusalReason::Limit, .. }), "{error}");
    assert!(guard.is_safe());
}

/// The caller of an acquire decides: the error shows that a retry makes sense, and when.
#[tokio::test(start_paused = true)]
async fn an_acquire_refused_for_load_says_when_a_retry_makes_sense() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    let id = server.acquire().await.request_id;

    server.say(overloaded(Some(Subject::RequestId(id)))).await;

    let error = outcome.await.unwrap().unwrap_err();
    assert!(error.may_retry(), "{error}");
    let Error::Refused { retry_after, limit, .. } = &error else { panic!("{error}") };
    assert_eq!(*retry_after, Some(ms(RETRY_AFTER_MS)));
    assert_eq!(limit.as_deref(), Some("max_pending_commands"));
    server.keep_alive_for(ms(1_000)).await;
}

/// A refusal names the grant, but not which of its releases it means; the release of one part must
/// not count as done because another was.
#[tokio::test(start_paused = true)]
async fn of_two_parts_on_their_way_the_refused_one_is_sent_again() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock_all(["a", "b", "c"]));
    let id = server.acquire().await.request_id;
    server.say(granted_names(id, 41, &["a", "b", "c"])).await;
    let guard = outcome.await.unwrap().unwrap();
    let mut a = Box::pin(guard.release_names(["a"]));
    let mut b = Box::pin(guard.release_names(["b"]));
    assert!((&mut a).now_or_never().is_none());
    assert!((&mut b).now_or_never().is_none());
    assert_eq!(server.release_of_names().await, (41, vec!["a".into()]));
    assert_eq!(server.release_of_names().await, (41, vec!["b".into()]));

    server.say(overloaded(Some(Subject::Token(41)))).await;
    server.keep_alive_for(ms(500)).await;
    assert!((&mut a).now_or_never().is_none() && (&mut b).now_or_never().is_none());
    server.say(released_names(id, 41, &["a"])).await;

    assert_eq!(a.await, Ok(()));
    let refused_one = (41, vec!["b".into()]);
    assert_eq!(server.release_of_names().await, refused_one);
    assert!(guard.holds("c") && !guard.holds("b"));
    server.say(released_names(id, 41, &["b"])).await;
    assert_eq!(b.await, Ok(()));
}

/// After any other refusal of a release a retry makes no sense: State shows the truth.
#[tokio::test(start_paused = true)]
async fn a_release_refused_for_anything_else_ends_the_stream() {
    for reason in [v1::RefusalReason::Invalid, v1::RefusalReason::Unavailable] {
        let mut net = Net::new();
        let (_client, mut server, guard) = holding(&mut net).await;
        drop(guard);
        server.release().await;

        server.say(refused(Some(Subject::Token(41)), reason)).await;

        assert!(net.accept().await.open().await.resume.is_some(), "{reason:?}");
    }
}

/// Retries belong to a stream: after a resume State decides.
#[tokio::test(start_paused = true)]
async fn after_a_resume_nothing_is_sent_twice() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    drop(guard);
    server.release().await;
    server.say(overloaded(Some(Subject::Token(41)))).await;
    drop(server);
    let mut server = net.accept_resume(vec![state_granted(1, 41)], 2).await;

    assert_eq!(server.release().await, 41);
    server.keep_alive_for(ms(2_000)).await;
}
