//! A resume by a server that supports pages: Opened moves no deadline, State comes in pages, and
//! the answer to the keepalive behind them renews (DESIGN §5.1, §5.5; I6, I23, I31).

use super::*;

/// Opened after a resume that renewed nothing.
fn unmoved() -> Body {
    let Body::Opened(opened) = opened(7) else { unreachable!() };
    Body::Opened(v1::Opened { lease_unmoved: true, secret: Vec::new().into(), ..opened })
}

fn page(requests: Vec<v1::RequestState>, next_request_id: u64, more: bool) -> Body {
    Body::State(v1::State { requests, next_request_id, more })
}

/// The next stream, on which the client resumes the session.
async fn accept_resume(net: &mut Net) -> Server {
    let mut server = net.accept().await;
    let resume = server.open().await.resume.expect("the session is resumed");
    assert!(resume.state_in_pages, "this client knows pages");
    server
}

fn safe_until(guard: &Guard) -> holdfast_runtime::Instant {
    match guard.state() {
        GuardState::Held { safe_until } => safe_until,
        state => panic!("{state:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_opened_that_moves_no_deadline_is_not_believed_and_a_keepalive_follows_state_at_once() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    let before = safe_until(&guard);
    net.runtime.sleep(ms(1_000)).await;
    drop(server);
    let mut server = accept_resume(&mut net).await;

    let index = 50;
    server.say_at(index, unmoved()).await;
    assert_eq!(safe_until(&guard), before, "nothing has renewed the lease (I6)");
    let asked = net.runtime.clock.now();
    server.say_at(index, page(vec![state_granted(1, 41)], 2, false)).await;
    let seq = server.keepalive().await;
    assert!(net.runtime.clock.now().saturating_since(asked) < ms(5), "at once");
    assert_eq!(safe_until(&guard), before, "nor has State");

    net.runtime.sleep(ms(700)).await;
    server.say(kept_alive(seq)).await;
    let late_by = safe_until(&guard).saturating_since(asked + SAFE);
    assert!(safe_until(&guard) >= asked + SAFE && late_by < ms(5), "from when it was sent");
}

/// The first page names neither the hold nor the request that waits: if the client took it for the
/// whole State, it would revoke the hold and send the request again.
#[tokio::test(start_paused = true)]
async fn a_state_that_is_cut_off_between_its_pages_changes_nothing() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_task, mut waiting) = start(&net, client.lock("two"));
    assert_eq!(server.queue_next(0).await, 2);
    drop(server);

    let mut server = accept_resume(&mut net).await;
    server.say_at(50, unmoved()).await;
    server.say_at(50, page(vec![], 3, true)).await;
    server.say_at(50, page(vec![state_queued(2, 0)], 3, true)).await;
    net.runtime.sleep(ms(10)).await;
    assert!(guard.is_safe());
    drop(server);

    let mut server = accept_resume(&mut net).await;
    server.say_at(51, unmoved()).await;
    server.say_at(51, page(vec![state_granted(1, 41)], 3, true)).await;
    server.say_at(51, page(vec![state_queued(2, 0)], 3, false)).await;
    server.keep_alive_for(ms(100)).await;
    assert!(guard.is_safe() && waiting.try_recv().is_err());
    server.say(granted(2, 42)).await;
    assert_eq!(waiting.await.unwrap().unwrap().token().get(), 42);
}

/// The deadline passed while no server could be reached; the session did not end, and the grant
/// came.
#[tokio::test(start_paused = true)]
async fn a_grant_that_state_shows_after_the_deadline_is_handed_out_once_the_lease_is_renewed() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_two, mut second) = start(&net, client.lock("two"));
    assert_eq!(server.queue_next(0).await, 2);
    let (_three, mut third) = start(&net, client.lock("three"));
    assert_eq!(server.queue_next(0).await, 3);
    drop(server);
    net.runtime.sleep(SAFE + ms(10)).await;
    assert!(!guard.is_safe());

    let mut server = accept_resume(&mut net).await;
    let requests = vec![state_granted(1, 41), state_granted(2, 42), state_queued(3, 0)];
    server.say_all_at(50, vec![unmoved(), page(requests, 4, false)]).await;
    let seq = server.keepalive().await;
    server.say_at(51, granted(3, 43)).await;
    net.runtime.sleep(ms(100)).await;
    assert!(second.try_recv().is_err() && third.try_recv().is_err(), "there is no lease yet (I6)");

    server.say(kept_alive(seq)).await;
    assert_eq!(server.release_lost().await, 41, "what was lost stays lost");
    let (two, three) = (second.await.unwrap().unwrap(), third.await.unwrap().unwrap());
    assert!(two.is_safe() && three.is_safe() && !guard.is_safe());
}

/// The answer comes too late to renew: State waits for the next one.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_hands_nothing_out() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, mut outcome) = start(&net, client.lock("jobs"));
    assert_eq!(server.queue_next(0).await, 1);
    drop(server);
    net.runtime.sleep(SAFE + ms(10)).await;

    let mut server = accept_resume(&mut net).await;
    server.say_all_at(50, vec![unmoved(), page(vec![state_granted(1, 41)], 2, false)]).await;
    let _unanswered = server.keepalive().await;
    drop(server);
    let mut server = accept_resume(&mut net).await;
    assert!(outcome.try_recv().is_err());
    server.say_all_at(51, vec![unmoved(), page(vec![state_granted(1, 41)], 2, false)]).await;
    let seq = server.keepalive().await;
    server.say(kept_alive(seq)).await;
    assert!(outcome.await.unwrap().unwrap().is_safe());
}

#[tokio::test(start_paused = true)]
async fn pages_of_two_states_are_not_put_together() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);
    let mut server = accept_resume(&mut net).await;
    server.say_at(50, unmoved()).await;
    server.say_at(50, page(vec![], 2, true)).await;
    server.say_at(51, page(vec![], 2, false)).await;

    let mut server = accept_resume(&mut net).await;
    server.say_all_at(60, vec![unmoved(), page(vec![state_granted(1, 41)], 2, false)]).await;
    server.keep_alive_for(ms(100)).await;
    assert!(guard.is_safe());
}
