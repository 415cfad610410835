//! A client that does not read loses its stream and nothing else.

use holdfast_core::{Item, LockName, Need, RequestId, SessionId, Tenure};

use super::*;

/// I27: 10,000 pushes, none of them read.
#[tokio::test(start_paused = true)]
async fn ten_thousand_unread_pushes_cost_the_stream_and_state_heals_the_session() {
    let world = World::new().await;
    let mut client = world.connect_holding(1);
    client.send(open(TTL)).await;
    let opened = client.opened().await;
    let ticket = Ticket { session_id: opened.session_id, secret: opened.secret };
    let (mut other, _) = world.session().await;

    // Ten thousand grants and releases that the client never looks at.
    let session = SessionId::new(ticket.session_id);
    for round in 0..5_000 {
        let request = RequestId::new(round + 1);
        let lock = LockName::parse("jobs").unwrap();
        let acquire = holdfast_core::Command::Acquire {
            session,
            done_below: request,
            request,
            items: vec![Item::exclusive(lock)],
            need: Need::All,
            wait: true,
        };
        let cancel = holdfast_core::Command::Cancel { session, done_below: request, request };
        world.fake.commit_all(vec![acquire, cancel], Tenure::new(1));
        if round % 500 == 0 {
            world.settle().await;
        }
    }
    world.settle().await;
    assert_eq!(world.hub.metrics().outbox_overflows.get(), 1);
    assert_eq!(world.hub.metrics().attached_streams.get(), 1);

    // The store goes on meanwhile, and the session lives.
    other.send(acquire(1, "jobs")).await;
    other.granted().await;
    let mut again = world.resume(&ticket).await;
    again.opened().await;
    let Body::State(state) = again.next().await else { panic!("not State") };
    assert_eq!(state.next_request_id, 5_001);
    let (_, end) = client.rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "outbox_frames", .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_a_client_that_does_not_read() {
    let world = World::new().await;
    let client = world.connect_holding(1);
    client.send(open(TTL)).await;
    for request in 1..=10 {
        client.send(acquire(request, "jobs")).await;
        world.settle().await;
    }
    let before = world.seams.clock.now();
    world.hub.shutdown().await;

    assert!(world.seams.clock.now().saturating_since(before) <= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_floods_its_stream_loses_it_by_the_name_of_the_limit() {
    let settings = SessionSettings { frames_per_second: 100, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let (client, _) = world.session().await;
    for seq in 0..200 {
        let frames = vec![ClientFrame { done_below: 0, body: Some(keep_alive(seq)) }];
        // Fails once the stream was cut.
        let _ = client.pipe.outgoing.send(ClientFrames { frames }).await;
    }

    let (_, end) = client.rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "frames_per_second", .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn frames_without_end_behind_an_open_that_is_not_answered_end_the_stream() {
    let world = World::new().await;
    world.fake.hold_commits();
    let client = world.connect();
    client.send(open(TTL)).await;
    for _ in 0..5 {
        let frame = |seq| ClientFrame { done_below: 0, body: Some(keep_alive(seq)) };
        let frames = (0..1_000).map(frame).collect();
        client.pipe.outgoing.send(ClientFrames { frames }).await.unwrap();
    }

    let (_, end) = client.rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "frames_before_opened", .. })));
}

#[tokio::test(start_paused = true)]
async fn streams_past_a_limit_are_refused_by_its_name() {
    let settings = SessionSettings {
        max_unopened_streams: 2,
        max_attached_streams: 1,
        ..SessionSettings::default()
    };
    let world = World::with(settings).await;
    let (_attached, _) = world.session().await;
    let second = world.connect();
    second.send(open(TTL)).await;
    let (_, end) = second.rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "max_attached_streams", .. })));

    let _waiting = [world.connect(), world.connect()];
    world.settle().await;
    let (_, end) = world.connect().rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "max_unopened_streams", .. })));
}
