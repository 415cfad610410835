//! Values as they come with a grant, changes by a holder, and notices of waiters.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use holdfast::{Client, Error, Guard, LostReason, RefusalReason, Value};
use holdfast_proto::v1::{self, refused::Subject, server_frame::Body, set_value::Change};
use holdfast_runtime::{BoxFuture, Clock, Instant, Watchdog};

use super::scripted::{
    Net, SAFE, Server, TTL, grant, granted_names, ms, refused, released_names, state_granted,
    state_granted_names, state_value_set, value_set,
};
use super::{holding, start};

/// A client that holds `jobs` under token 41, with a value of token 7.
async fn holding_value(net: &mut Net) -> (Client, Server, Guard) {
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(net, client.lock("jobs"));
    let request_id = server.acquire().await.request_id;
    let value = v1::Value { value: Bytes::from_static(b"old"), token: 7, suspect: true };
    let values = vec![v1::NamedValue { name: Bytes::from_static(b"jobs"), value: Some(value) }];
    let granted = v1::Granted { values, ..grant(request_id, 41, &["jobs"]) };
    server.say(Body::Granted(granted)).await;
    (client, server, outcome.await.unwrap().unwrap())
}

fn shown(value: Option<Value>) -> Option<(Vec<u8>, u64, bool)> {
    value.map(|value| (value.bytes.to_vec(), value.token.get(), value.is_suspect))
}

fn ended() -> Body {
    Body::SessionEnded(v1::SessionEnded {
        reason: v1::LostReason::SessionExpired.into(),
        why: String::new(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_value_comes_with_the_grant() {
    let mut net = Net::new();
    let (_client, _server, guard) = holding_value(&mut net).await;

    assert_eq!(shown(guard.value()), Some((b"old".to_vec(), 7, true)));
    assert_eq!(guard.lock("other").value(), None);
}

#[tokio::test(start_paused = true)]
async fn a_change_is_done_when_it_is_committed_and_not_before() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_value(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    let set = server.set_value().await;
    assert_eq!((set.request_id, set.token, set.name.as_ref()), (2, 41, &b"jobs"[..]));
    assert_eq!(set.change, Some(Change::Value(Bytes::from_static(b"new"))));
    assert!((&mut change).now_or_never().is_none());
    assert_eq!(shown(guard.value()), Some((b"old".to_vec(), 7, true)));

    server.say(value_set(2)).await;

    assert_eq!(change.await, Ok(()));
    assert_eq!(shown(guard.value()), Some((b"new".to_vec(), 41, false)));
}

#[tokio::test(start_paused = true)]
async fn a_value_is_vouched_for_and_removed() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding_value(&mut net).await;

    let (confirmed, ()) = tokio::join!(guard.confirm_value(), async {
        assert_eq!(server.set_value().await.change, Some(Change::Confirm(v1::Confirm {})));
        server.say(value_set(2)).await;
    });
    let after = guard.value();
    let (cleared, ()) = tokio::join!(guard.clear_value(), async {
        assert_eq!(server.set_value().await.change, Some(Change::Clear(v1::Clear {})));
        server.say(value_set(3)).await;
    });

    assert_eq!((confirmed, cleared), (Ok(()), Ok(())));
    assert_eq!(shown(after), Some((b"old".to_vec(), 7, false)));
    assert_eq!(guard.value(), None);
}

/// I12: the server recognises a repeat by its id.
#[tokio::test(start_paused = true)]
async fn a_change_the_state_does_not_know_is_sent_again_under_its_id() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    let first = server.set_value().await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted(1, 41)], 2).await;

    assert_eq!(server.set_value().await, first);
    server.say(value_set(2)).await;
    assert_eq!(change.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_change_found_made_in_the_state_is_made_and_not_sent_again() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    server.set_value().await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted(1, 41), state_value_set(2)], 3).await;

    assert_eq!(change.await, Ok(()));
    assert_eq!(shown(guard.value()), Some((b"new".to_vec(), 41, false)));
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_the_server_passed_over_is_asked_anew_and_its_old_id_is_spent() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    assert_eq!(server.set_value().await.request_id, 2);
    let (_task, _outcome) = start(&net, client.lock("other"));
    assert_eq!(server.acquire().await.request_id, 3);
    drop(server);

    let known = vec![state_granted(1, 41), super::state_queued(3, 0)];
    let mut server = net.accept_resume(known, 4).await;

    assert_eq!(server.cancel().await, 2);
    assert_eq!(server.set_value().await.request_id, 4);
}

#[tokio::test(start_paused = true)]
async fn a_change_on_its_way_when_the_session_ends_may_or_may_not_have_been_made() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    server.set_value().await;

    server.say(ended()).await;

    let error = change.await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_change_never_sent_before_the_deadline_is_certainly_not_made() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    drop(server);
    let mut server = net.accept().await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    net.runtime.sleep(SAFE).await;

    assert_eq!(change.await, Err(Error::Lost { reason: LostReason::DeadlinePassed }));
    drop(server);
    server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    assert_eq!(server.release_lost().await, 41, "and nothing else is sent");
}

#[tokio::test(start_paused = true)]
async fn a_change_sent_before_the_deadline_passed_is_unknown_and_not_sent_again() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    server.set_value().await;
    net.runtime.sleep(SAFE).await;

    let error = change.await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    drop(server);
    let mut server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    let frame = server.frame().await.unwrap();
    assert!(matches!(frame.body, Some(v1::client_frame::Body::Release(_))), "{frame:?}");
    assert_eq!(frame.done_below, 3, "a late copy of it lies below, and changes nothing");
}

#[tokio::test(start_paused = true)]
async fn under_a_hold_that_is_not_safe_nothing_is_asked() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    net.runtime.sleep(SAFE).await;

    let outcome = guard.set_value("new").now_or_never();

    assert_eq!(outcome, Some(Err(Error::Lost { reason: LostReason::DeadlinePassed })));
    drop(server);
}

/// A clock whose watchdog never fires: the deadline has passed, and the state still shows the hold.
struct Drowsy(Arc<dyn Clock>);

impl Clock for Drowsy {
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }
    fn sleep_until(&self, at: Instant) -> BoxFuture<'static, ()> {
        self.0.sleep_until(at)
    }
    fn watchdog(&self, _on_due: Arc<dyn Fn() + Send + Sync>) -> Watchdog {
        self.0.watchdog(Arc::new(|| {}))
    }
}

/// A guard of `a` and `b` whose deadline has passed without an alarm.
async fn overdue() -> (Client, Server, Guard) {
    let mut net = Net::new();
    net.runtime.clock = Arc::new(Drowsy(net.runtime.clock.clone()));
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock_all(["a", "b"]));
    server.acquire().await;
    server.say(granted_names(1, 41, &["a", "b"])).await;
    let guard = outcome.await.unwrap().unwrap();
    net.runtime.sleep(SAFE).await;
    assert!(!guard.state().is_over(), "nobody noticed");
    (client, server, guard)
}

/// DESIGN §5.6: the deadline counts, not the alarm.
#[tokio::test(start_paused = true)]
async fn a_deadline_nobody_noticed_stops_a_change() {
    let (_client, _server, guard) = overdue().await;

    let outcome = guard.set_value("new").now_or_never();

    assert_eq!(outcome, Some(Err(Error::Lost { reason: LostReason::DeadlinePassed })));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_nobody_noticed_loses_what_is_given_back_in_part() {
    let (_client, _server, guard) = overdue().await;

    let outcome = guard.release_names(["a"]).now_or_never();

    assert_eq!(outcome, Some(Err(Error::Lost { reason: LostReason::DeadlinePassed })));
}

#[tokio::test(start_paused = true)]
async fn what_no_server_would_set_is_refused_here() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let (_task, outcome) = start(&net, client.lock("rates").shared());
    let id = server.acquire().await.request_id;
    server.say(granted_names(id, 42, &["rates"])).await;
    let shared = outcome.await.unwrap().unwrap();

    let large = guard.set_value(vec![0; 4_097]).await.unwrap_err();
    let foreign = guard.lock("other").set_value("new").await.unwrap_err();
    let read_only = shared.set_value("new").await.unwrap_err();

    assert!(large.to_string().contains("4097 bytes is larger than the 4096 allowed"), "{large}");
    assert!(foreign.to_string().contains("other is not held by this guard"), "{foreign}");
    let exclusive = RefusalReason::NotExclusive;
    assert!(matches!(read_only, Error::Refused { reason, .. } if reason == exclusive));
    server.keep_alive_for(ms(3_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_change_says_why_and_leaves_the_hold() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;

    let (outcome, ()) = tokio::join!(guard.set_value("new"), async {
        let id = server.set_value().await.request_id;
        server.say(refused(Some(Subject::RequestId(id)), v1::RefusalReason::Limit)).await;
    });

    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Refused { reason: RefusalReason::Limit, .. }), "{error}");
    assert!(guard.is_safe());
    assert_eq!(guard.value(), None);
}

/// The first copy may be committed all the same: the refusal is of the second alone.
#[tokio::test(start_paused = true)]
async fn a_change_sent_again_and_refused_for_a_limit_may_have_been_done() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    server.set_value().await;
    drop(server);

    let mut server = net.accept_resume(vec![state_granted(1, 41)], 2).await;
    let id = server.set_value().await.request_id;
    server.say(refused(Some(Subject::RequestId(id)), v1::RefusalReason::DiskReserve)).await;

    let error = change.await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert!(guard.is_safe());
}

/// I23: the server's report about the token is the truth.
#[tokio::test(start_paused = true)]
async fn a_change_under_a_token_the_server_does_not_know_loses_the_hold() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;

    let (outcome, ()) = tokio::join!(guard.set_value("new"), async {
        let id = server.set_value().await.request_id;
        server.say(refused(Some(Subject::RequestId(id)), v1::RefusalReason::NotHolder)).await;
    });

    assert_eq!(outcome, Err(Error::Lost { reason: LostReason::Revoked }));
    assert!(!guard.is_safe());
}

#[tokio::test(start_paused = true)]
async fn a_change_asked_before_its_lock_was_given_back_is_sent_again_before_that() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock_all(["a", "b"]));
    server.acquire().await;
    server.say(granted_names(1, 41, &["a", "b"])).await;
    let guard = outcome.await.unwrap().unwrap();
    let mut change = Box::pin(guard.lock("a").set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    let mut part = Box::pin(guard.release_names(["a"]));
    assert!((&mut part).now_or_never().is_none());
    server.set_value().await;
    server.release().await;
    drop(server);

    let known = vec![state_granted_names(1, 41, &["a", "b"])];
    let mut server = net.accept_resume(known, 2).await;

    assert_eq!(server.set_value().await.request_id, 2);
    assert_eq!(server.release_of_names().await, (41, vec!["a".into()]));
    server.say_all(vec![value_set(2), released_names(1, 41, &["a"])]).await;
    assert_eq!((change.await, part.await), (Ok(()), Ok(())));
}

#[tokio::test(start_paused = true)]
async fn changes_and_acquires_share_one_row_of_ids_and_confirm_each_other() {
    let mut net = Net::new();
    let (client, mut server, guard) = holding(&mut net).await;
    let mut change = Box::pin(guard.set_value("new"));
    assert!((&mut change).now_or_never().is_none());
    let frame = server.frame().await.unwrap();
    assert_eq!(frame.done_below, 2, "the change itself has no answer yet");
    let (_task, _outcome) = start(&net, client.lock("other"));
    assert_eq!(server.queue_next(0).await, 3);
    server.say(value_set(2)).await;
    assert_eq!(change.await, Ok(()));

    drop(guard);

    assert_eq!(server.frame().await.unwrap().done_below, 4);
}

#[tokio::test(start_paused = true)]
async fn a_change_without_an_answer_ends_within_the_ttl() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let before = net.runtime.clock.now();
    let (outcome, ()) = tokio::join!(guard.set_value("new"), async {
        server.set_value().await;
        server.keep_alive_for(TTL + ms(1_000)).await;
    });

    assert!(matches!(outcome, Err(Error::OutcomeUnknown { waited, .. }) if waited == TTL));
    assert!(net.runtime.clock.now().saturating_since(before) <= TTL + ms(1_100));
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_that_somebody_waits_and_for_which_lock() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock_all(["a", "b"]));
    server.acquire().await;
    server.say(granted_names(1, 41, &["a", "b"])).await;
    let guard = outcome.await.unwrap().unwrap();
    let mut contended = guard.contended();
    assert!(contended.next().now_or_never().is_none());

    server.say(told("b", 3, 1_500)).await;
    let others = contended.next().now_or_never().unwrap().unwrap();
    assert_eq!((&*others.name, others.waiting, others.head_start), ("b", 3, ms(1_500)));
    assert!(contended.next().now_or_never().is_none(), "told once");

    // One that looks later is told the last of each lock, in the order in which it came.
    server.say(told("a", 0, 0)).await;
    server.say(told("b", 9, 2_000)).await;
    server.say(told("c", 1, 0)).await;
    for contended in [&mut contended, &mut guard.contended()] {
        let others = contended.next().now_or_never().unwrap().unwrap();
        assert_eq!((&*others.name, others.waiting), ("a", 1), "an older server says no number");
        let others = contended.next().now_or_never().unwrap().unwrap();
        assert_eq!((&*others.name, others.waiting, others.head_start), ("b", 9, ms(2_000)));
        assert!(contended.next().now_or_never().is_none(), "c is none of ours");
    }
    let _part = guard.release_names(["b"]).now_or_never();
    let others = guard.contended().next().now_or_never().unwrap().unwrap();
    assert_eq!(&*others.name, "a", "b is none of ours any more");
    server.release().await;
    server.say(ended()).await;
    assert_eq!(contended.next().now_or_never(), Some(None), "the hold is over");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_was_not_told_on_a_broken_stream_learns_after_the_resume_that_others_wait() {
    let mut net = Net::new();
    let (_client, server, guard) = holding(&mut net).await;
    let mut contended = guard.contended();
    let state = |waiting, head_start_ms| {
        let Body::Contended(told) = told("jobs", waiting, head_start_ms) else { unreachable!() };
        v1::RequestState { contended: vec![told], ..state_granted(1, 41) }
    };
    drop(server);
    let server = net.accept_resume(vec![state(2, 500)], 2).await;
    let others = contended.next().await.unwrap();
    assert_eq!((others.waiting, others.head_start), (2, ms(500)));

    // The same again is no news, whatever else may have come.
    drop(server);
    let server = net.accept_resume(vec![state(3, 500)], 2).await;
    assert!(contended.next().now_or_never().is_none());
    drop(server);
    let _server = net.accept_resume(vec![state(3, 700)], 2).await;
    assert_eq!(contended.next().await.unwrap().head_start, ms(700));
}

fn told(name: &'static str, waiting: u64, head_start_ms: u32) -> Body {
    let name = Bytes::from_static(name.as_bytes());
    Body::Contended(v1::Contended { request_id: 1, token: 41, name, waiting, head_start_ms })
}
