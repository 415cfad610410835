//! Keepalives that go to the server beside the stream, together with those of other sessions of the process
//! (DESIGN §5.4, I6, I35).

use holdfast_runtime::{Renewed, TransportError};

use holdfast::Builder;

use super::scripted::Apart;
use super::*;

/// Opened by a server that takes such keepalives.
fn keeps_many() -> v1::Opened {
    keeps_many_of(7)
}

fn keeps_many_of(session_id: u64) -> v1::Opened {
    let Body::Opened(opened) = opened(session_id) else { unreachable!() };
    v1::Opened { keeps_many: true, ..opened }
}

/// The answer of a server at which the session holds these tokens, as of an index.
fn lists(index: u64, tokens: &[u64]) -> Renewed {
    let session =
        v1::KeptSession { ttl_ms: 10_000, tokens: tokens.to_vec(), ..v1::KeptSession::default() };
    Renewed { index, session, ..Renewed::default() }
}

/// A client that holds `jobs` under token 41, at a server that takes keepalives beside streams.
async fn apart(net: &mut Net) -> (holdfast::Client, Server, Guard) {
    let builder = net.builder();
    apart_of(net, builder).await
}

async fn apart_of(net: &mut Net, builder: Builder) -> (holdfast::Client, Server, Guard) {
    net.keep_together();
    let (client, mut server) = tokio::join!(builder.connect(), async {
        let mut server = net.accept().await;
        server.open().await;
        server.say(Body::Opened(keeps_many())).await;
        server
    });
    let client = client.unwrap();
    let (task, outcome) = start(net, client.lock("jobs"));
    server.grant_next(41).await;
    let guard = outcome.await.unwrap().unwrap();
    drop(task);
    (client, server, guard)
}

fn safe_until(guard: &Guard) -> holdfast_runtime::Instant {
    match guard.state() {
        GuardState::Held { safe_until } => safe_until,
        state => panic!("{state:?}"),
    }
}

/// The answer, and time for the client to take it.
async fn answer(net: &Net, asked: Apart, renewed: Result<Renewed, TransportError>) {
    asked.answer.send(renewed).unwrap();
    net.runtime.sleep(Duration::from_micros(10)).await;
}

/// DESIGN §5.4.
#[tokio::test(start_paused = true)]
async fn a_keepalive_beside_the_stream_renews_from_when_it_was_sent() {
    let mut net = Net::new();
    let (_client, mut server, guard) = apart(&mut net).await;
    for index in 100..110 {
        let asked = net.apart().await;
        assert_eq!((asked.endpoint.as_str(), asked.key.session_id), ("a:1", 7));
        assert_eq!(asked.key.secret.as_ref(), [9; 16]);
        let sent = net.runtime.clock.now();
        net.runtime.sleep(ms(500)).await;
        answer(&net, asked, Ok(lists(index, &[40, 41]))).await;

        assert!(safe_until(&guard) <= sent + SAFE, "from when it was sent (I6)");
        assert!(safe_until(&guard) + ms(5) >= sent + SAFE);
    }
    assert_eq!(server.keepalives, [], "none on the stream");
    let quiet = net.runtime.timeout(ms(1), server.frame()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

/// I6: the frame that reports the loss may still be under way on the stream.
#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_list_a_hold_moves_nothing_and_the_stream_decides() {
    let mut net = Net::new();
    let (_client, mut server, guard) = apart(&mut net).await;
    let before = safe_until(&guard);
    let asked = net.apart().await;
    answer(&net, asked, Ok(lists(100, &[40, 42]))).await;

    assert_eq!(safe_until(&guard), before, "nothing was renewed");
    let asked = net.runtime.clock.now();
    let seq = server.keepalive().await;
    assert!(net.runtime.clock.now().saturating_since(asked) < ms(5), "at once");
    server.say(Body::Lost(v1::Lost { request_id: 1, token: 41, reason: 3 })).await;
    server.say(kept_alive(seq)).await;
    assert!(!guard.is_safe());
    let again = net.apart().await;
    answer(&net, again, Ok(lists(101, &[]))).await;
    assert!(
        net.runtime.timeout(ms(100), server.frame()).await.is_err(),
        "there is nothing to lose"
    );
}

/// I35.
#[tokio::test(start_paused = true)]
async fn an_answer_that_names_a_hold_as_closed_makes_it_no_safer() {
    let mut net = Net::new();
    let (_client, _server, guard) = apart(&mut net).await;
    let asked = net.apart().await;
    let mut renewed = lists(100, &[41]);
    renewed.session.closed =
        vec![v1::ClosedHold { token: 41, reason: "on fire".into(), lasted_too_long: false }];
    answer(&net, asked, Ok(renewed)).await;

    assert!(!guard.is_safe());
    assert_eq!(guard.lost().now_or_never(), Some(LostReason::Forced));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_gets_its_keepalives_on_the_stream() {
    let refused = |message: &str| TransportError::Refused {
        reason: v1::RefusalReason::Unsupported,
        message: message.to_owned(),
    };
    for is_silent in [true, false] {
        let mut net = Net::new();
        let (_client, mut server, guard) = apart(&mut net).await;
        let asked = net.apart().await;
        let kept = if is_silent {
            Some(asked)
        } else {
            answer(&net, asked, Err(refused("no"))).await;
            None
        };
        server.keep_alive_for(ms(20_000)).await;

        assert!(guard.is_safe() && server.keepalives.len() >= 7, "{:?}", server.keepalives);
        assert!(net.is_apart_quiet_for(ms(3_000)).await, "it is not asked again on this stream");
        drop(kept);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_know_them_gets_no_keepalive_beside_the_stream() {
    let mut net = Net::new();
    net.keep_together();
    let (_client, mut server, guard) = holding(&mut net).await;
    server.keep_alive_for(ms(20_000)).await;

    assert!(guard.is_safe() && server.keepalives.len() >= 7);
    assert!(net.is_apart_quiet_for(ms(1)).await);
}

/// I6: the answer is of a state in which the hold is over already. If the client handed the grant out, and
/// the stream broke before the loss comes, the guard would be safe for as long as the answer says.
#[tokio::test(start_paused = true)]
async fn a_grant_that_was_over_before_the_answer_is_not_handed_out() {
    let mut net = Net::new();
    let (client, mut server, guard) = apart(&mut net).await;
    let (_task, mut outcome) = start(&net, client.lock("two"));
    let id = server.queue_next(0).await;
    let asked = net.apart().await;
    answer(&net, asked, Ok(lists(100, &[41]))).await;
    server.say_at(99, granted(id, 42)).await;

    assert!(outcome.try_recv().is_err());
    let mut server = net.accept_resume(vec![state_granted(1, 41), state_queued(id, 0)], 3).await;
    server.say_at(101, granted(id, 43)).await;
    assert_eq!(outcome.await.unwrap().unwrap().token().get(), 43);
    assert!(guard.is_safe());
}

/// The server lets the session expire until it hears on the stream that State was taken (I31).
#[tokio::test(start_paused = true)]
async fn the_keepalive_behind_state_goes_out_on_the_stream() {
    let mut net = Net::new();
    let (_client, server, guard) = apart(&mut net).await;
    drop(server);
    let mut server = net.accept().await;
    server.open().await;
    let opened = v1::Opened { lease_unmoved: true, ..keeps_many() };
    let state = v1::State { requests: vec![state_granted(1, 41)], next_request_id: 2, more: false };
    server.say_all_at(50, vec![Body::Opened(opened), Body::State(state)]).await;

    let seq = server.keepalive().await;
    server.say(kept_alive(seq)).await;
    let asked = net.apart().await;
    answer(&net, asked, Ok(lists(60, &[41]))).await;
    assert!(guard.is_safe());
}

/// SC1: no guard is lost because all clients of a dead leader come back at once.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_its_turn_renews_its_lease_meanwhile() {
    for still_holds in [true, false] {
        let mut net = Net::new();
        let (_client, server, guard) = apart(&mut net).await;
        drop(server);
        let mut leader = net.accept().await;
        leader.open().await;
        let refusal = scripted::refusal(v1::RefusalReason::Unavailable, "too many come back");
        let refusal = v1::Refusal { retry_after_ms: Some(20_000), ..refusal };
        leader.say(Body::Refused(v1::Refused { subject: None, refusal: Some(refusal) })).await;
        let told = net.runtime.clock.now();

        let mut count = 0;
        while net.runtime.clock.now().saturating_since(told) < ms(15_000) {
            let asked = net.apart().await;
            assert_eq!((&asked.endpoint, asked.key.session_id), (&leader.endpoint, 7));
            let tokens: &[u64] = if still_holds { &[41] } else { &[] };
            answer(&net, asked, Ok(lists(100, tokens))).await;
            count += 1;
        }
        assert!((6..=9).contains(&count), "at once, and then each 2.5 s: {count}");
        assert_eq!(guard.is_safe(), still_holds, "what it does not hold is no safer (I6)");
    }
}

/// SC1: no guard is lost because the client's own process has many sessions to bring back.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_its_own_process_renews_its_lease_where_the_others_are_served() {
    let mut net = Net::new();
    let builder = net.builder().share_connections();
    let (_client, server, guard) = apart_of(&mut net, builder.clone()).await;
    // As many as may attach at once, and one that is in front of the client in the line.
    let _others: Vec<_> = (0..257).map(|_| builder.clone().connect_lazy().unwrap()).collect();
    let mut attaching = Vec::new();
    for _ in 0..256 {
        let mut server = net.accept().await;
        assert_eq!((server.open().await.resume, server.endpoint.as_str()), (None, "a:1"));
        attaching.push(server);
    }
    drop(server);
    assert!(net.is_quiet_for(ms(100)).await, "it waits in the line");
    assert!(net.is_apart_quiet_for(ms(1)).await, "nobody is served anywhere, as far as it knows");

    attaching[0].say(Body::Opened(keeps_many_of(8))).await;
    let sent = net.runtime.clock.now();
    let asked = net.apart().await;
    assert_eq!((asked.endpoint.as_str(), asked.key.session_id), ("a:1", 7));
    answer(&net, asked, Ok(lists(100, &[41]))).await;
    assert!(safe_until(&guard) + ms(5) >= sent + SAFE);
    let mut in_front = net.accept().await;
    assert_eq!(in_front.open().await.resume, None, "the one in front of it in the line");

    attaching[1].say(Body::Opened(keeps_many_of(9))).await;
    let server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    assert_eq!(server.endpoint, "a:1");
    assert!(guard.is_safe());
}
