//! Holds of names in a scope with fallback: no longer than authority covers them.

use futures_util::FutureExt;
use holdfast::{Error, Guard, GuardState, LostReason};
use holdfast_proto::v1::{self, server_frame::Body};
use holdfast_runtime::Instant;

use super::scripted::{Net, PATIENCE, SAFE, Server, granted, kept_alive_in, ms};
use super::start;

/// A token of that epoch.
fn of_epoch(epoch: u64) -> u64 {
    (epoch << 48) + 41
}

/// The report on the scope of `jobs`.
fn told(epoch: u32, remaining_ms: u64) -> Vec<v1::ScopeAuthority> {
    vec![v1::ScopeAuthority { scope: "jo".into(), epoch, remaining_ms }]
}

/// A client that has received this report on the scope, and the server's end of its stream.
async fn hearing(net: &mut Net, scopes: Vec<v1::ScopeAuthority>) -> (holdfast::Client, Server) {
    let (client, mut server) = net.connected().await;
    server.scopes = scopes;
    server.keep_alive_for(ms(3_000)).await;
    (client, server)
}

/// A client that holds `jobs` in epoch 3, under an authority of ten seconds.
async fn holding(net: &mut Net) -> (holdfast::Client, Server, Guard) {
    let (client, mut server) = hearing(net, told(3, 10_000)).await;
    let (task, outcome) = start(net, client.lock("jobs"));
    server.grant_next(of_epoch(3)).await;
    let guard = outcome.await.unwrap().unwrap();
    drop(task);
    (client, server, guard)
}

fn safe_until(guard: &Guard) -> Instant {
    match guard.state() {
        GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => safe_until,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_handed_out_once_authority_of_its_epoch_covers_it() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, told(3, 0)).await;
    let mut place = client.lock("jobs").enqueue();
    let asked = server.grant_next(of_epoch(3)).await;

    assert!(place.next().await.is_some_and(|at| at.place == 0 && at.awaits_authority));
    server.keep_alive_for(ms(5_000)).await;
    assert!((&mut place).now_or_never().is_none(), "it has no authority");
    server.scopes = told(2, 10_000);
    server.keep_alive_for(ms(5_000)).await;
    assert!((&mut place).now_or_never().is_none(), "one of another epoch does not count");
    server.scopes = told(3, 10_000);
    server.keep_alive_for(ms(2_000)).await;

    let guard = place.now_or_never().unwrap().unwrap();
    assert!(guard.is_safe());
    assert_eq!((asked, guard.token().get()), (1, of_epoch(3)));
}

#[tokio::test(start_paused = true)]
async fn a_grant_outside_of_every_scope_waits_for_none() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, told(3, 0)).await;
    let (_task, outcome) = start(&net, client.lock("other"));

    let request = server.acquire().await.request_id;
    server.say(super::scripted::granted_names(request, 41, &["other"])).await;

    assert!(outcome.await.unwrap().unwrap().is_safe());
}

/// DESIGN §15: a store that was restored may not know the scope, while Cassandra serves its names.
#[tokio::test(start_paused = true)]
async fn a_name_in_a_scope_that_only_the_caller_knows_is_handed_out_once_the_store_names_it() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, Vec::new()).await;
    let mut place = client.lock("jobs").in_scope("jo").enqueue();
    server.grant_next(of_epoch(3)).await;

    assert!(place.next().await.is_some_and(|at| at.place == 0 && at.awaits_authority));
    assert!(client.serves("jobs") && !client.serves_in_scope("jo", "jobs"));
    server.scopes = vec![v1::ScopeAuthority { scope: "other".into(), ..told(3, 10_000).remove(0) }];
    server.keep_alive_for(ms(5_000)).await;
    assert!((&mut place).now_or_never().is_none(), "another scope is not this one");
    server.scopes = told(3, 10_000);
    server.keep_alive_for(ms(2_000)).await;

    assert!(place.now_or_never().unwrap().unwrap().is_safe());
    assert!(client.serves_in_scope("jo", "jobs"));
}

/// The backup is of a time at which the names were in a larger scope.
#[tokio::test(start_paused = true)]
async fn the_authority_over_another_scope_does_not_hand_out_a_name_of_the_callers() {
    let mut net = Net::new();
    let larger = v1::ScopeAuthority { scope: "j".into(), ..told(3, 10_000).remove(0) };
    let (client, mut server) = hearing(&mut net, vec![larger]).await;
    let mut place = client.lock("jobs").in_scope("jo").enqueue();
    server.grant_next(of_epoch(3)).await;

    assert!(place.next().await.is_some_and(|at| at.place == 0 && at.awaits_authority));
    assert!(client.serves("jobs") && !client.serves_in_scope("jo", "jobs"));
    server.keep_alive_for(ms(5_000)).await;
    assert!((&mut place).now_or_never().is_none());
}

/// The scope was removed by an operator: while a session lives its cluster was not restored.
#[tokio::test(start_paused = true)]
async fn a_guard_outlives_the_removal_of_the_scope_that_its_caller_knows() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, told(3, 10_000)).await;
    let (_task, outcome) = start(&net, client.lock("jobs").in_scope("jo"));
    server.grant_next(of_epoch(3)).await;
    let guard = outcome.await.unwrap().unwrap();

    server.scopes = Vec::new();
    server.keep_alive_for(ms(30_000)).await;

    assert!(guard.is_safe());
}

/// `CoverFromSendTime`: the answer takes two seconds, which does not lengthen the cover.
#[tokio::test(start_paused = true)]
async fn a_guard_is_covered_from_when_the_keepalive_was_sent() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let seq = server.keepalive().await;
    let sent = net.runtime.clock.now();
    net.runtime.sleep(ms(2_000)).await;

    server.say(kept_alive_in(seq, told(3, 8_000))).await;

    let covered = sent + ms(7_200 - 20);
    assert!(safe_until(&guard) <= covered, "less than its session's {:?}", sent + SAFE);
    assert!(covered.saturating_since(safe_until(&guard)) <= ms(2));
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_nothing_covers_any_more_is_lost_and_given_back_while_its_session_lives() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    server.scopes = told(3, 0);

    let (lost, token) = tokio::join!(guard.lost(), server.release_lost());

    assert_eq!((lost, token), (LostReason::AuthorityPassed, of_epoch(3)));
    assert!(!guard.is_safe());
    server.scopes = told(3, 10_000);
    server.keep_alive_for(ms(5_000)).await;
    assert!(!guard.is_safe(), "no later authority revives it");
}

/// `CoverOfOwnEpoch`: the scope went to Cassandra and back, and is native in another epoch.
#[tokio::test(start_paused = true)]
async fn a_guard_of_an_epoch_that_is_over_is_lost_at_once() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    let seq = server.keepalive().await;

    server.say(kept_alive_in(seq, told(6, 10_000))).await;

    assert_eq!(guard.lost().now_or_never(), Some(LostReason::AuthorityPassed));
    assert_eq!(server.release_lost().await, of_epoch(3));
}

#[tokio::test(start_paused = true)]
async fn a_guard_from_before_the_scope_was_made_is_bounded_from_the_first_answer_that_names_it() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.grant_next(of_epoch(3)).await;
    let guard = outcome.await.unwrap().unwrap();
    let seq = server.keepalive().await;
    let sent = net.runtime.clock.now();

    server.say(kept_alive_in(seq, told(3, 5_000))).await;
    assert!(safe_until(&guard) <= sent + ms(4_480));
    server.scopes.clear();
    server.keep_alive_for(ms(2_600)).await;
    assert!(safe_until(&guard) > sent + ms(4_480), "the scope is gone, and bounds it no more");
}

#[tokio::test(start_paused = true)]
async fn a_guard_in_a_scope_that_is_new_and_has_no_authority_is_lost() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.grant_next(of_epoch(3)).await;
    let guard = outcome.await.unwrap().unwrap();
    let seq = server.keepalive().await;

    server.say(kept_alive_in(seq, told(3, 0))).await;

    assert_eq!(guard.lost().now_or_never(), Some(LostReason::AuthorityPassed));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_not_covered_within_the_wait_is_given_back() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, told(3, 0)).await;
    let (_task, outcome) = start(&net, client.lock("jobs").wait(ms(5_000)));
    server.grant_next(of_epoch(3)).await;

    assert_eq!(server.release().await, of_epoch(3));

    let error = outcome.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NotGranted { .. }), "{error}");
}

/// The scope's epoch was raised before the grant was ever covered.
#[tokio::test(start_paused = true)]
async fn a_grant_that_ends_uncovered_is_asked_for_anew_by_its_waiter() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, told(3, 0)).await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    let request_id = server.grant_next(of_epoch(3)).await;
    let token = of_epoch(3);
    server.say(Body::Lost(v1::Lost { request_id, token, reason: 0 })).await;

    assert_eq!(server.cancel().await, request_id, "no copy of it may hold");
    let anew = server.acquire().await.request_id;
    server.scopes = told(6, 10_000);
    server.say(granted(anew, of_epoch(6))).await;
    server.keep_alive_for(ms(3_000)).await;

    assert_eq!(outcome.await.unwrap().unwrap().token().get(), of_epoch(6));
}

/// The stream broke, and the frame about it was lost.
#[tokio::test(start_paused = true)]
async fn so_is_one_that_a_resumed_session_does_not_find_any_more() {
    let mut net = Net::new();
    let (client, mut server) = hearing(&mut net, told(3, 0)).await;
    let (_task, mut outcome) = start(&net, client.lock("jobs"));
    server.grant_next(of_epoch(3)).await;
    drop(server);

    let mut server = net.accept_resume(Vec::new(), 2).await;

    assert_eq!(server.cancel().await, 1);
    assert_eq!(server.acquire().await.request_id, 2);
    assert!(outcome.try_recv().is_err(), "it still waits");
}

/// With W of 4 s the rest of an authority is shorter than the time between two keepalives.
#[tokio::test(start_paused = true)]
async fn a_short_authority_is_asked_for_in_time() {
    let mut net = Net::new();
    let (_client, mut server, guard) = holding(&mut net).await;
    server.scopes = told(3, 2_200);

    server.keep_alive_for(ms(30_000)).await;

    assert!(guard.is_safe());
    let asked = server.keepalives.len();
    assert!((30..120).contains(&asked), "{asked} keepalives in 30 s");
    assert!(PATIENCE > ms(30_000));
}
