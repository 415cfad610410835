//! The session against a scripted server, on virtual time.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "helpers of tests stop the test when something is not as it must be"
)]

#[expect(unreachable_pub, reason = "a helper's items are as public as its users are many")]
#[path = "../scripted/mod.rs"]
mod scripted;

mod apart;
mod closed;
mod overload;
mod places;
mod resumes;
mod returning;
mod scopes;
mod semaphores;
mod sequences;
mod several;
mod terms;
mod values;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use holdfast::{Error, Guard, GuardState, LostReason, RefusalReason};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::{self, cancelled::Was, refused::Subject, server_frame::Body};
use holdfast_runtime::Task;
use scripted::{
    Net, PATIENCE, SAFE, Server, TTL, cancelled, granted, kept_alive, ms, opened, queued, refused,
    released, state_granted, state_queued,
};
use tokio::sync::oneshot;

type Outcome = oneshot::Receiver<holdfast::Result<Guard>>;

/// Acquires in a task of its own, so that the test can act as the server meanwhile.
fn start<F>(net: &Net, acquire: F) -> (Task, Outcome)
where
    F: IntoFuture<Output = holdfast::Result<Guard>> + Send + 'static,
    F::IntoFuture: Send,
{
    let (done, outcome) = oneshot::channel();
    let runtime = net.runtime.clone();
    let task = net.runtime.spawn("acquire", async move {
        if let Ok(outcome) = runtime.timeout(PATIENCE, acquire.into_future()).await {
            let _ = done.send(outcome);
        }
    });
    (task, outcome)
}

/// A client that holds `jobs` under token 41, as request 1.
async fn holding(net: &mut Net) -> (holdfast::Client, Server, Guard) {
    let (client, mut server) = net.connected().await;
    let (task, outcome) = start(net, client.lock("jobs"));
    server.grant_next(41).await;
    let guard = outcome.await.unwrap().unwrap();
    drop(task);
    (client, server, guard)
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_granted_with_its_token_and_given_back() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;

    assert!(guard.is_safe());
    assert_eq!((guard.name(), guard.token().get()), ("jobs", 41));
    let (outcome, ()) = tokio::join!(guard.release(), async {
        assert_eq!(server.release().await, 41);
        server.say(released(1, 41)).await;
    });
    assert_eq!(outcome, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_try_that_finds_the_lock_held_names_the_holder() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.try_lock("jobs"));

    let acquire = server.acquire().await;
    assert!(!acquire.wait);
    let mut refusal = scripted::refusal(v1::RefusalReason::LockHeld, "held");
    refusal.holders = vec![scripted::holder()];
    let denied = v1::Denied { request_id: acquire.request_id, refusal: Some(refusal) };
    server.say(Body::Denied(denied)).await;

    let error = outcome.await.unwrap().unwrap_err();
    assert_eq!(error.holders().first().map(|holder| holder.label.as_str()), Some("other:1"));
    assert!(error.may_retry());
    assert_eq!(error.to_string(), "jobs is not granted: held by other:1 for 12 s");
}

/// DESIGN §5.4: the answer takes three seconds, which does not move the deadline.
#[tokio::test(start_paused = true)]
async fn the_safe_deadline_counts_from_when_the_keepalive_was_sent() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let seq = server.keepalive().await;
    let sent = net.runtime.clock.now();

    net.runtime.sleep(ms(2_400)).await;
    server.say(kept_alive(seq)).await;

    let state = guard.state();
    let GuardState::Held { safe_until } = state else { panic!("{state:?}") };
    let late_by = safe_until.saturating_since(sent + SAFE);
    assert!(late_by <= ms(2), "the timer is a little late, the deadline not: {late_by:?}");
    assert!(safe_until < net.runtime.clock.now() + SAFE - ms(2_000));
}

/// I6, DESIGN §5.6.
#[tokio::test(start_paused = true)]
async fn a_hold_whose_deadline_passed_is_lost_for_ever_and_released_when_the_session_resumes() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    let cancelled = guard.cancellation_token();
    // Silence, then a network that drops everything.
    net.runtime.sleep(ms(8_970)).await;
    assert!(guard.is_safe());
    net.runtime.sleep(ms(11)).await;

    assert!(!guard.is_safe());
    assert_eq!(guard.lost().now_or_never(), Some(LostReason::DeadlinePassed));
    assert!(cancelled.is_cancelled());
    drop(server);
    let mut server = net.accept_resume(vec![state_granted(1, 41)], 2).await;

    assert_eq!(server.release_lost().await, 41, "the server still saw it as held");
    assert!(!guard.is_safe(), "no State revives it");
    assert_eq!(guard.release().await, Err(Error::Lost { reason: LostReason::DeadlinePassed }));
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_on_the_same_stream_does_not_revive_a_hold() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let seq = server.keepalive().await;
    // The client leaves the stream after a quarter of the TTL without an answer; the answer below
    // arrives together with the next stream's.
    net.runtime.sleep(ms(2_600)).await;
    let mut newer = net.accept().await;
    newer.open().await;
    net.runtime.sleep(ms(1_000)).await;
    server.say(kept_alive(seq)).await;
    net.runtime.sleep(SAFE).await;

    assert!(!guard.is_safe());
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_in_jeopardy_while_a_keepalive_is_unanswered_for_half_the_ttl() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut states = guard.states();
    let held = |state: &GuardState| matches!(state, GuardState::Held { .. });
    server.keepalive().await;
    net.runtime.sleep(ms(4_990)).await;
    let before = states.now();
    assert!(held(&before));

    net.runtime.sleep(ms(20)).await;
    let late = states.changed().await;
    assert!(matches!(late, GuardState::Jeopardy { .. }), "{late:?}");
    assert!(guard.is_safe());

    drop(server);
    let _server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    let after = states.now();
    assert!(held(&after), "{after:?}");
    assert!(guard.is_safe());
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_sends_again_what_the_server_does_not_know_under_the_same_ids() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_one, first) = start(&net, client.lock("one"));
    assert_eq!(server.queue_next(0).await, 2);
    let (_two, mut second) = start(&net, client.lock("two"));
    assert_eq!(server.acquire().await.request_id, 3);
    drop(server);

    // Only the hold and the first wait had reached the server.
    let requests = vec![state_granted(1, 41), state_queued(2, 0)];
    let mut server = net.accept_resume(requests, 3).await;

    let again = server.acquire().await;
    assert_eq!((again.request_id, again.items[0].name.as_ref()), (3, &b"two"[..]));
    server.say(granted(2, 42)).await;
    assert_eq!(first.await.unwrap().unwrap().token().get(), 42);
    assert!(guard.is_safe());
    assert!(second.try_recv().is_err(), "it still waits");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_pushed_into_a_broken_stream_is_found_in_the_state() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.queue_next(0).await;
    drop(server);

    let _server = net.accept_resume(vec![state_granted(1, 41)], 2).await;

    assert!(outcome.await.unwrap().unwrap().is_safe());
}

/// I10: the server refused a copy that the client had sent again after a resume, for load, while the first one was under way and got
/// its place. Without the rule the wait ends, and the grant that comes has no caller.
#[tokio::test(start_paused = true)]
async fn the_refusal_of_a_copy_does_not_end_a_wait_and_without_the_rule_it_does() {
    for is_broken in [false, true] {
        let mut net = Net::new();
        let (client, mut server) = net.connected().await;
        let (_task, outcome) = start(&net, client.lock("jobs"));
        assert_eq!(server.acquire().await.request_id, 1);
        drop(server);
        let mut server = net.accept_resume(vec![], 1).await;
        assert_eq!(server.acquire().await.request_id, 1, "the copy");
        server.say(queued(1, 0)).await;
        arm(is_broken.then_some(Mutant::RefusedCopyEndsWait));
        let limit = v1::RefusalReason::Limit;
        server.say(refused(Some(Subject::RequestId(1)), limit)).await;
        server.say(granted(1, 41)).await;
        let ended = outcome.await.unwrap();
        arm(None);
        assert_eq!(ended.is_err(), is_broken, "{ended:?}");
    }
}

/// The server refused it before proposing it, and the refusal was lost with the stream.
#[tokio::test(start_paused = true)]
async fn a_request_the_server_passed_over_is_asked_anew_and_its_old_id_is_spent() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_one, _first) = start(&net, client.lock("one"));
    assert_eq!(server.acquire().await.request_id, 1);
    let (_two, _second) = start(&net, client.lock("two"));
    assert_eq!(server.acquire().await.request_id, 2);
    drop(server);

    let mut server = net.accept_resume(vec![state_queued(2, 0)], 3).await;

    assert_eq!(server.cancel().await, 1);
    let anew = server.acquire().await;
    assert_eq!((anew.request_id, anew.items[0].name.as_ref()), (3, &b"one"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_followed_to_the_leader_it_names() {
    let mut net = Net::new();
    let builder = net.builder();
    let (client, endpoint) = tokio::join!(builder.connect(), async {
        let mut follower = net.accept().await;
        follower.open().await;
        follower.say(Body::Redirect(v1::Redirect { leader: Some("leader:9".into()) })).await;
        net.accept_fresh().await.endpoint
    });

    assert!(client.is_ok());
    assert_eq!(endpoint, "leader:9");
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_leader_goes_away_is_resumed_at_the_next_one_without_a_gap() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let before = net.runtime.clock.now();
    server.say(Body::GoingAway(v1::GoingAway { leader: Some("c:3".into()) })).await;

    let server = net.accept_resume(vec![state_granted(1, 41)], 2).await;

    assert_eq!(server.endpoint, "c:3");
    assert!(net.runtime.clock.now().saturating_since(before) < ms(10), "no delay");
    assert!(guard.is_safe());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_falls_silent_is_left_for_the_next_in_time() {
    let mut net = Net::new();
    let (_client, mut silent, guard) = holding(&mut net).await;
    silent.keepalive().await;

    // It sends nothing more; its connection stays up.
    let server = net.accept_resume(vec![state_granted(1, 41)], 2).await;

    assert_ne!(server.endpoint, silent.endpoint);
    assert!(guard.is_safe());
}

/// A State of megabytes takes long on a slow line, and nothing shows that it is on its way. Every
/// resume renews the lease: a client that always gave up as early would keep its locks for ever and
/// never learn that it has them (I31).
#[tokio::test(start_paused = true)]
async fn a_server_that_takes_long_to_attach_the_session_is_given_more_time_after_each_try() {
    let mut net = Net::new();
    let (client, server, _guard) = holding(&mut net).await;
    drop(server);
    let mut given_up = 0;
    let mut server = loop {
        let mut slow = net.accept().await;
        slow.open().await;
        match net.runtime.timeout(TTL * 3 / 4, slow.frame()).await {
            Err(_) => break slow,
            Ok(frame) => assert_eq!(frame, None, "the client has nothing to say yet"),
        }
        given_up += 1;
        assert!(given_up < 10, "it is given up as early every time");
    };
    let state = v1::State { requests: vec![state_granted(1, 41)], next_request_id: 2, more: false };
    server.say_all(vec![opened(7), Body::State(state)]).await;

    assert!(given_up > 0, "a server that is silent is not waited for that long at first");
    // Too late for the hold: the client releases it.
    assert_eq!(server.release_lost().await, 41);
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.grant_next(42).await;
    assert_eq!(outcome.await.unwrap().unwrap().token().get(), 42);
}

/// DESIGN §5.6: the grant was made, but no caller may act on it any more.
#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_the_safe_deadline_is_released_and_not_delivered() {
    let mut net = Net::new();
    let builder = net.builder().max_clock_drift(0.5);
    let (client, mut server) = tokio::join!(builder.connect(), net.accept_fresh());
    let client = client.unwrap();
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.queue_next(0).await;
    // Half of ten seconds less 20 ms; the stream itself times out only later.
    let seq = server.keepalive().await;
    net.runtime.sleep(ms(2_490)).await;

    server.say(granted(1, 41)).await;

    let error = outcome.await.unwrap().unwrap_err();
    assert_eq!(error, Error::SessionLost { reason: LostReason::DeadlinePassed });
    server.keepalives.clear();
    server.say(kept_alive(seq)).await;
    assert_eq!(server.release().await, 41);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_is_cancelled() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (task, _outcome) = start(&net, client.lock("jobs"));
    let id = server.queue_next(3).await;

    drop(task);

    assert_eq!(server.cancel().await, id);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_crosses_a_cancel_is_given_back_by_it() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (task, _outcome) = start(&net, client.lock("jobs"));
    let id = server.queue_next(0).await;
    drop(task);
    server.say(granted(id, 41)).await;

    assert_eq!(server.cancel().await, id, "one command ends it, whatever it came to");
    drop(server);
    // The cancel was lost with the stream: the client sends it again until it is answered.
    let mut server = net.accept_resume(vec![state_granted(id, 41)], 2).await;
    assert_eq!(server.cancel().await, id);
    server.say(cancelled(id, Was::Held)).await;
    server.keep_alive_for(ms(6_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_nobody_picked_up_is_released() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut acquiring = Box::pin(client.lock("jobs").into_future());
    assert!((&mut acquiring).now_or_never().is_none());
    server.grant_next(41).await;

    // The grant has arrived, and the future is dropped without another poll.
    drop(acquiring);

    assert_eq!(server.release().await, 41);
}

#[tokio::test(start_paused = true)]
async fn a_hold_nobody_here_remembers_is_ended() {
    let mut net = Net::new();
    let (_client, server) = net.connected().await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted(8, 41)], 9).await;

    assert_eq!(server.cancel().await, 8);
}

/// DESIGN §5.6: between the release and its answer a State still shows the hold.
#[tokio::test(start_paused = true)]
async fn no_state_revives_a_guard_whose_release_was_queued() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let states = guard.states();
    let mut release = Box::pin(guard.release());

    assert!((&mut release).now_or_never().is_none());
    let queued = states.now();
    assert_eq!(queued, GuardState::Released, "unsafe before anything was sent");
    assert_eq!(server.release().await, 41);
    drop(server);
    let mut server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    let resumed = states.now();
    assert_eq!(resumed, GuardState::Released);
    assert_eq!(server.release().await, 41, "sent again");
    server.say(refused(Some(Subject::Token(41)), v1::RefusalReason::NotHolder)).await;

    assert_eq!(release.await, Ok(()), "the first copy had done it");
}

#[tokio::test(start_paused = true)]
async fn a_release_found_done_in_the_state_is_done() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut release = Box::pin(guard.release());
    assert!((&mut release).now_or_never().is_none());
    server.release().await;
    drop(server);

    let _server = net.accept_resume(vec![], 2).await;

    assert_eq!(release.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_says_that_its_outcome_is_unknown() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);
    for endpoint in ["a:1", "b:2", "c:3"] {
        net.take_down(endpoint);
    }

    let error = guard.release().await.unwrap_err();

    assert_eq!(error, Error::OutcomeUnknown { what: "a release", waited: TTL });
}

#[tokio::test(start_paused = true)]
async fn a_hold_missing_from_the_state_is_lost() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);

    let _server = net.accept_resume(vec![], 2).await;

    assert!(!guard.is_safe());
    assert_eq!(guard.lost().await, LostReason::Revoked);
}

#[tokio::test(start_paused = true)]
async fn a_frame_older_than_what_was_seen_of_its_request_changes_nothing() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut place = client.lock("jobs").enqueue();
    let id = server.acquire().await.request_id;

    server.say_at(50, queued(id, 1)).await;
    server.say_at(49, queued(id, 7)).await;
    server.say_at(48, granted(id, 41)).await;
    let before = place.next().now_or_never().flatten();
    server.say_at(50, queued(id, 0)).await;
    let after = place.next().now_or_never().flatten();

    assert_eq!(before.map(|place| place.place), Some(1));
    assert_eq!(after.map(|place| place.place), Some(0));
}

#[tokio::test(start_paused = true)]
async fn no_keepalive_seq_is_sent_twice_over_any_number_of_streams() {
    let mut net = Net::new();
    let (_client, mut server) = net.connected().await;
    let mut seqs = Vec::new();
    for _ in 0..3 {
        seqs.push(server.keepalive().await);
        drop(server);
        server = net.accept_resume(vec![], 1).await;
        server.keep_alive_for(ms(6_000)).await;
        seqs.append(&mut server.keepalives);
    }

    let mut unique = seqs.clone();
    unique.dedup();
    assert!(seqs.is_sorted() && unique == seqs && seqs.len() >= 9, "{seqs:?}");
}

#[tokio::test(start_paused = true)]
async fn done_below_is_the_first_request_without_an_answer() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut tasks = Vec::new();
    for name in ["one", "two", "three"] {
        tasks.push(start(&net, client.lock(name)));
        let frame = server.frame().await.unwrap();
        assert_eq!(frame.done_below, 1);
    }
    server.say(queued(1, 0)).await;
    server.say(queued(3, 0)).await;
    let frame = server.frame().await.unwrap();
    assert_eq!(frame.done_below, 2, "two is still unanswered");
    server.say_all(vec![queued(2, 0), kept_alive(1)]).await;

    assert_eq!(server.frame().await.unwrap().done_below, 4);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_is_cancelled_and_names_the_holder() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs").wait(ms(1_500)));
    let id = server.queue_next(2).await;

    let error = outcome.await.unwrap().unwrap_err();

    let Error::NotGranted { holders, waited, .. } = &error else { panic!("{error}") };
    // Twelve seconds when the server reported it, and one and a half since.
    assert_eq!(holders.first().map(|holder| holder.held.as_secs()), Some(13));
    assert!(waited.is_some_and(|waited| waited >= ms(1_500)));
    assert_eq!(server.cancel().await, id);
}

#[tokio::test(start_paused = true)]
async fn a_wait_covers_the_time_without_a_server() {
    let mut net = Net::new();
    let (client, server) = net.connected().await;
    for endpoint in ["a:1", "b:2", "c:3"] {
        net.take_down(endpoint);
    }
    drop(server);
    net.runtime.sleep(ms(10)).await;

    let error = client.lock("jobs").wait(ms(700)).await.unwrap_err();

    let Error::Unreachable { endpoints, last, .. } = &error else { panic!("{error}") };
    assert_eq!(endpoints.len(), 3);
    assert!(last.contains("connection refused"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn connect_names_whom_it_tried_when_nobody_answers() {
    let net = Net::new();
    for endpoint in ["a:1", "b:2", "c:3"] {
        net.take_down(endpoint);
    }

    let error = net.builder().connect_timeout(ms(800)).connect().await.unwrap_err();

    let said = error.to_string();
    assert!(
        said.starts_with("no server could be reached after 0.8 s (tried a:1, b:2, c:3)"),
        "{said}"
    );
}

#[tokio::test(start_paused = true)]
async fn connect_tells_at_once_when_the_server_refuses_the_session() {
    let mut net = Net::new();
    let builder = net.builder();
    let before = net.runtime.clock.now();
    let (client, ()) = tokio::join!(builder.connect(), async {
        let mut server = net.accept().await;
        server.open().await;
        server.say(refused(None, v1::RefusalReason::TtlOutOfRange)).await;
    });

    let error = client.unwrap_err();
    let Error::Refused { reason, message, .. } = &error else { panic!("{error}") };
    assert_eq!((*reason, message.as_str()), (RefusalReason::TtlOutOfRange, "the server's words"));
    assert!(net.runtime.clock.now().saturating_since(before) < ms(100));
}

#[tokio::test(start_paused = true)]
async fn an_expired_session_ends_its_holds_and_waits_and_a_new_one_takes_what_was_never_sent() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_one, waiting) = start(&net, client.lock("one"));
    server.queue_next(0).await;
    drop(server);
    let mut server = net.accept().await;
    assert!(server.open().await.resume.is_some());
    let (_two, unsent) = start(&net, client.lock("two"));
    net.runtime.sleep(ms(1)).await;
    server.say(refused(None, v1::RefusalReason::SessionUnknown)).await;

    assert_eq!(guard.lost().await, LostReason::SessionExpired);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error, Error::SessionLost { reason: LostReason::SessionExpired });
    let mut server = net.accept_fresh().await;
    assert_eq!(server.grant_next(50).await, 1, "ids begin anew");
    assert!(unsent.await.unwrap().unwrap().is_safe());
    assert!(!guard.is_safe());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_attached_loses_its_holds() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let ended =
        v1::SessionEnded { reason: v1::LostReason::SessionExpired.into(), why: String::new() };
    server.say(Body::SessionEnded(ended)).await;

    assert!(!guard.is_safe());
    assert_eq!(guard.lost().await, LostReason::SessionExpired);
    net.accept_fresh().await;
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_server_is_resumed_with_a_delay_until_it_serves() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    let id = server.acquire().await.request_id;
    server.say(refused(Some(Subject::RequestId(id)), v1::RefusalReason::Unavailable)).await;

    let mut server = net.accept_resume(vec![], 1).await;

    assert_eq!(server.grant_next(41).await, id, "the same id");
    assert!(outcome.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn closing_ends_everything_at_once_and_waits_for_the_server() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_one, waiting) = start(&net, client.lock("one"));
    server.queue_next(0).await;

    let (closed, ()) = tokio::join!(client.close(), async {
        server.close().await;
        assert!(!guard.is_safe());
        let ended =
            v1::SessionEnded { reason: v1::LostReason::SessionClosed.into(), why: String::new() };
        server.say(Body::SessionEnded(ended)).await;
    });

    assert_eq!(closed, Ok(()));
    assert_eq!(guard.lost().await, LostReason::SessionClosed);
    assert_eq!(waiting.await.unwrap().unwrap_err(), Error::Closed);
    assert_eq!(client.lock("jobs").await.unwrap_err(), Error::Closed);
    assert!(net.is_quiet_for(Duration::from_mins(1)).await);
}

#[tokio::test(start_paused = true)]
async fn closing_without_a_server_ends_within_its_limit() {
    let mut net = Net::new();
    let (client, server) = net.connected().await;
    for endpoint in ["a:1", "b:2", "c:3"] {
        net.take_down(endpoint);
    }
    drop(server);

    let error = client.close().await.unwrap_err();

    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_guard_keeps_the_session_and_the_last_one_dropped_closes_it() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    drop(client);
    server.keep_alive_for(ms(30_000)).await;
    assert!(guard.is_safe());

    drop(guard);

    assert_eq!(server.hear().await, v1::client_frame::Body::Close(v1::Close {}));
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_where_it_stands_when_the_lock_is_lost() {
    let mut net = Net::new();
    let (_client, _server, guard) = holding(&mut net).await;
    let dropped = Arc::new(());
    let kept = dropped.clone();
    let before = net.runtime.clock.now();

    let outcome = guard
        .run(async move {
            std::future::pending::<()>().await;
            drop(kept);
        })
        .await;

    assert_eq!(outcome, Err(Error::Lost { reason: LostReason::DeadlinePassed }));
    assert_eq!(Arc::strong_count(&dropped), 1);
    assert!(net.runtime.clock.now().saturating_since(before) <= SAFE + ms(1));
    assert_eq!(guard.run(async { 5 }).await.ok(), None, "nothing runs under a lost lock");
}

#[tokio::test(start_paused = true)]
async fn work_under_a_lock_gets_its_guard_and_the_lock_is_given_back_after_it() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let work = client.with_lock("jobs", async |guard| (guard.token().get(), guard.is_safe()));
    let (done, ()) = tokio::join!(work, async {
        server.grant_next(41).await;
        assert_eq!(server.release().await, 41);
        server.say(released(1, 41)).await;
    });
    assert_eq!(done, Ok((41, true)));

    let work = client.with_lock("jobs", async |_| std::future::pending::<()>().await);
    let lost = async {
        server.grant_next(42).await;
        drop(server);
    };
    let (done, ()) = tokio::join!(work, lost);
    assert_eq!(done, Err(Error::Lost { reason: LostReason::DeadlinePassed }));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_guards_state_is_awaited_and_one_that_is_over_at_once() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    server.keepalive().await;

    let late = guard.changed().await;

    assert!(matches!(late, GuardState::Jeopardy { .. }), "{late:?}");
    let lost = GuardState::Lost(LostReason::DeadlinePassed);
    assert_eq!((guard.changed().await, guard.changed().await), (lost, lost));
    let mut states = guard.states();
    drop(guard);
    assert_eq!((states.now(), states.changed().await), (lost, lost));
}

#[tokio::test(start_paused = true)]
async fn a_name_too_long_for_any_server_is_refused_here() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;

    let error = client.lock("n".repeat(100_000)).await.unwrap_err();

    let Error::Refused { reason, message, .. } = &error else { panic!("{error}") };
    assert_eq!(*reason, RefusalReason::Invalid);
    assert!(message.contains("100000 bytes is longer than the 512 allowed"), "{message}");
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_page_by_page_from_the_leader_a_follower_names() {
    let net = Net::new();

    let locks = net.builder().reader().unwrap().list("").await.unwrap();

    let names: Vec<_> = locks.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
}
