//! Holds that an operator closes, and sessions that one ends (DESIGN §14, I35).

use super::*;

fn closed(token: u64) -> Vec<v1::ClosedHold> {
    vec![v1::ClosedHold { token, reason: "on fire".to_owned(), lasted_too_long: false }]
}

fn kept_alive_closing(seq: u64, token: u64) -> Body {
    let closed = closed(token);
    Body::KeptAlive(v1::KeptAlive { seq, closed, ..v1::KeptAlive::default() })
}

fn ended(request_id: u64, token: u64) -> v1::RequestState {
    let state = Some(v1::request_state::State::Ended(v1::Ended { token }));
    v1::RequestState { request_id, state, contended: vec![] }
}

#[tokio::test(start_paused = true)]
async fn a_closed_hold_is_lost_at_once_and_released_when_its_guard_is_gone() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;

    server.say(Body::HoldsClosed(v1::HoldsClosed { closed: closed(41) })).await;
    assert_eq!(guard.lost().await, LostReason::Forced);
    assert!(!guard.is_safe());
    assert_eq!(guard.why_taken().as_deref(), Some("on fire"));

    // What the holder was doing may go on for a moment: the lock is not given back before.
    for _ in 0..3 {
        let seq = server.keepalive().await;
        server.say(kept_alive_closing(seq, 41)).await;
    }
    drop(guard);
    assert_eq!(server.release_lost().await, 41);
    server.say(released(1, 41)).await;
    let seq = server.keepalive().await;
    server.say(kept_alive(seq)).await;
}

/// The answer that renews the session is the first to say so.
#[tokio::test(start_paused = true)]
async fn an_answer_that_names_a_hold_makes_it_no_safer() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let before = guard.state().safe_until().unwrap();
    let seq = server.keepalive().await;
    server.say(kept_alive_closing(seq, 41)).await;

    let mut states = guard.states();
    assert_eq!(states.changed().await, GuardState::Lost(LostReason::Forced));
    assert!(net.runtime.clock.now() < before, "it was not lost by its deadline");
    assert_eq!(guard.release().await, Err(Error::Lost { reason: LostReason::Forced }));
    assert_eq!(server.release_lost().await, 41);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_its_end_is_never_handed_out() {
    for (lasted_too_long, reason) in [(false, LostReason::Forced), (true, LostReason::HeldTooLong)]
    {
        let mut net = Net::new();
        let (client, mut server) = net.connected().await;
        let (_task, outcome) = start(&net, client.lock("jobs"));
        let request = server.acquire().await.request_id;
        let closed = closed(41).into_iter();
        let closed = closed.map(|hold| v1::ClosedHold { lasted_too_long, ..hold }).collect();
        server.say(Body::HoldsClosed(v1::HoldsClosed { closed })).await;
        assert_eq!(server.release_lost().await, 41, "no guard of this client has it");

        server.say(granted(request, 41)).await;
        assert_eq!(outcome.await.unwrap().unwrap_err(), Error::Lost { reason });
        assert_eq!(server.release_lost().await, 41);
    }
}

/// The State of a resume does not list it any more; the guard is released all the same.
#[tokio::test(start_paused = true)]
async fn a_resume_that_names_a_closed_hold_leaves_its_release_to_the_guard() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);
    let mut server = net.accept().await;
    server.open().await;
    let Body::Opened(opened) = opened(7) else { unreachable!() };
    let opened = v1::Opened { closed: closed(41), ..opened };
    let state = v1::State { requests: vec![ended(1, 41)], next_request_id: 2, more: false };
    server.say_all(vec![Body::Opened(opened), Body::State(state)]).await;

    assert_eq!(guard.lost().await, LostReason::Forced);
    let seq = server.keepalive().await;
    server.say(kept_alive_closing(seq, 41)).await;
    drop(guard);
    assert_eq!(server.release_lost().await, 41);
    // The server has ended it meanwhile.
    server.say(refused(Some(Subject::Token(41)), v1::RefusalReason::NotHolder)).await;
    let seq = server.keepalive().await;
    server.say(kept_alive(seq)).await;
}

/// Seed 9900002036: it was granted and closed while the client was cut off. Its caller was told that the session was lost, which goes on.
/// An older server does not name the grant.
#[tokio::test(start_paused = true)]
async fn a_wait_that_was_granted_and_closed_while_the_client_was_away_says_so() {
    for (token, reason) in [(41, LostReason::Forced), (0, LostReason::Revoked)] {
        let mut net = Net::new();
        let (client, mut server) = net.connected().await;
        let (_task, waiting) = start(&net, client.lock("jobs"));
        server.queue_next(0).await;
        drop(server);
        let mut server = net.accept().await;
        server.open().await;
        let Body::Opened(opened) = opened(7) else { unreachable!() };
        let opened = v1::Opened { closed: closed(41), ..opened };
        let state = v1::State { requests: vec![ended(1, token)], next_request_id: 2, more: false };
        server.say_all(vec![Body::Opened(opened), Body::State(state)]).await;

        assert_eq!(waiting.await.unwrap().unwrap_err(), Error::Lost { reason });
        if token == 0 {
            let seq = server.keepalive().await;
            server.say(kept_alive_closing(seq, 41)).await;
        }
        assert_eq!(server.release_lost().await, 41, "nobody uses it");
        let (_task, afterwards) = start(&net, client.lock("more"));
        server.grant_next(50).await;
        assert_eq!(afterwards.await.unwrap().unwrap().token().get(), 50);
    }
}

/// The client opens another session, and goes on.
#[tokio::test(start_paused = true)]
async fn a_session_that_an_operator_ends_takes_its_holds_and_waits_with_it() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_task, waiting) = start(&net, client.lock("more"));
    server.queue_next(0).await;
    let reason = v1::LostReason::Revoked.into();
    let ended = v1::SessionEnded { reason, why: "on fire".to_owned() };
    server.say(Body::SessionEnded(ended)).await;

    assert_eq!(guard.lost().await, LostReason::SessionRevoked);
    assert_eq!(guard.why_taken().as_deref(), Some("on fire"));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error, Error::SessionLost { reason: LostReason::SessionRevoked });
    let mut server = net.accept_fresh().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.grant_next(50).await;
    assert_eq!(outcome.await.unwrap().unwrap().token().get(), 50);
}

/// What a server says to a request of a session that was ended just then.
#[tokio::test(start_paused = true)]
async fn a_refusal_for_a_revoked_session_ends_it_too() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_task, waiting) = start(&net, client.lock("more"));
    let request = server.acquire().await.request_id;
    let revoked = v1::RefusalReason::SessionRevoked;
    server.say(refused(Some(Subject::RequestId(request)), revoked)).await;

    assert_eq!(guard.lost().await, LostReason::SessionRevoked);
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error, Error::SessionLost { reason: LostReason::SessionRevoked });
}

/// The leader closed it, and no operator: its own bound says why.
#[tokio::test(start_paused = true)]
async fn a_hold_that_has_lasted_its_most_is_lost_for_that() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let bound = client.lock("jobs").max_hold(ms(3_000)).hold_at_least(ms(1_000));
    let (_task, outcome) = start(&net, bound);
    let on = server.acquire().await.on.unwrap();
    assert_eq!((on.max_hold_ms, on.hold_at_least_ms), (3_000, 1_000));
    server.say(granted(1, 41)).await;
    let guard = outcome.await.unwrap().unwrap();

    let reason = "it was held for as long as its max_hold allows".to_owned();
    let closed = vec![v1::ClosedHold { token: 41, reason, lasted_too_long: true }];
    server.say(Body::HoldsClosed(v1::HoldsClosed { closed })).await;
    assert_eq!(guard.lost().await, LostReason::HeldTooLong);
    assert_eq!(guard.why_taken(), None);
}

#[tokio::test(start_paused = true)]
async fn bounds_that_cross_are_refused_here() {
    let mut net = Net::new();
    let (client, _server) = net.connected().await;
    let crossed = client.lock("jobs").max_hold(ms(999)).hold_at_least(ms(1_000)).await;
    assert!(matches!(crossed, Err(Error::Refused { reason: RefusalReason::Invalid, .. })));
}
