//! The place in the queue, as a future and as a stream.

use futures_util::FutureExt;
use holdfast::{Error, RefusalReason};
use holdfast_proto::v1::{self, refused::Subject, server_frame::Body};

use super::scripted::{Net, granted, holder, ms, queued, refused};
use super::start;

fn moved(request_id: u64, place: u64) -> Body {
    Body::Moved(v1::Moved { request_id, place, holders: vec![holder()], frozen: None })
}

#[tokio::test(start_paused = true)]
async fn a_queue_place_tells_places_until_there_is_an_answer_and_then_is_the_guard() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut place = client.lock("jobs").follow_place().enqueue();
    let asked = server.acquire().await;
    assert!(asked.follow_place, "the store is told to push changes");
    assert_eq!(place.place(), None);

    let mut seen = Vec::new();
    for told in [queued(1, 2), moved(1, 1), moved(1, 0)] {
        server.say(told).await;
        seen.extend(place.next().await.map(|place| place.place));
    }
    assert_eq!(place.place().map(|place| place.place), Some(0));
    server.say(granted(1, 41)).await;

    assert_eq!((seen, place.next().await), (vec![2, 1, 0], None));
    assert_eq!(place.await.unwrap().token().get(), 41);
}

#[tokio::test(start_paused = true)]
async fn changes_of_place_are_asked_for_only_by_callers_that_follow_them() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;

    let _place = client.lock("jobs").enqueue();

    assert!(!server.acquire().await.follow_place);
}

#[tokio::test(start_paused = true)]
async fn an_enqueued_request_is_made_before_anything_is_awaited_and_taken_back_when_dropped() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let place = client.lock("jobs").enqueue();
    let id = server.queue_next(3).await;

    drop(place);

    assert_eq!(server.cancel().await, id);
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_the_stream_found_is_given_back_with_the_place() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut place = client.lock("jobs").enqueue();
    server.grant_next(41).await;
    assert_eq!(place.next().await, None, "the grant came first");

    drop(place);

    assert_eq!(server.release().await, 41);
}

#[tokio::test(start_paused = true)]
async fn the_wait_limit_passes_while_only_places_are_looked_at() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let mut place = client.lock("jobs").wait(ms(1_500)).enqueue();
    let id = server.queue_next(2).await;
    assert!(place.next().await.is_some());

    assert_eq!(place.next().await, None);

    let error = place.await.unwrap_err();
    assert!(matches!(error, Error::NotGranted { waited: Some(_), .. }), "{error}");
    assert_eq!(error.to_string(), "jobs is not granted after 1.5 s: held by other:1 for 13 s");
    assert_eq!(server.cancel().await, id);
}

#[tokio::test(start_paused = true)]
async fn a_holder_grows_older_between_two_words_of_it() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let place = client.lock("jobs").enqueue();
    server.queue_next(2).await;

    server.keep_alive_for(ms(5_000)).await;

    let holders = place.place().map(|place| place.holders).unwrap_or_default();
    assert_eq!(holders.first().map(|holder| holder.held.as_secs()), Some(17));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_wrong_has_no_places_and_one_answer() {
    let mut net = Net::new();
    let (client, _server) = net.connected().await;
    let mut place = client.lock_all(["jobs", "jobs"]).enqueue();

    assert_eq!((place.place(), place.next().await), (None, None));
    assert!(matches!((&mut place).await, Err(Error::Refused { .. })));
    assert!((&mut place).now_or_never().is_none(), "the answer is given once");
}

/// The first copy may take a place all the same, and no caller would ever give that up.
#[tokio::test(start_paused = true)]
async fn an_acquire_sent_again_and_refused_for_a_limit_is_taken_back() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.acquire().await;
    drop(server);

    let mut server = net.accept_resume(Vec::new(), 1).await;
    let id = server.acquire().await.request_id;
    server.say(refused(Some(Subject::RequestId(id)), v1::RefusalReason::Limit)).await;

    let error = outcome.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Refused { reason: RefusalReason::Limit, .. }), "{error}");
    assert_eq!(server.cancel().await, id);
}

/// I10: the first copy has a place, about which the refusal proves nothing (seed 1000006405 of the
/// simulator).
#[tokio::test(start_paused = true)]
async fn an_acquire_that_waits_keeps_its_place_when_a_copy_of_it_is_refused() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.lock("jobs"));
    server.acquire().await;
    drop(server);

    let mut server = net.accept_resume(Vec::new(), 1).await;
    let id = server.acquire().await.request_id;
    server.say(queued(id, 1)).await;
    server.say(refused(Some(Subject::RequestId(id)), v1::RefusalReason::DiskReserve)).await;
    server.say(granted(id, 41)).await;

    assert_eq!(outcome.await.unwrap().unwrap().token().get(), 41);
}

/// DESIGN §10: a claim is a frame of its own kind, also when it is sent again.
#[tokio::test(start_paused = true)]
async fn a_claim_names_the_owner_each_time_it_is_sent() {
    let mut net = Net::new();
    let (client, mut server) = net.connected().await;
    let (_task, outcome) = start(&net, client.claim("jobs", "old/1"));
    let first = server.acquire().await;
    drop(server);

    let mut server = net.accept_resume(Vec::new(), 1).await;
    let again = server.acquire().await;

    assert_eq!(first.claim_owner.as_deref(), Some("old/1"));
    assert!(first.wait);
    assert_eq!(again, first);
    let refusal = v1::RefusalReason::NotImported;
    server.say(refused(Some(Subject::RequestId(again.request_id)), refusal)).await;
    let error = outcome.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Refused { reason: RefusalReason::NotImported, .. }), "{error}");
}
