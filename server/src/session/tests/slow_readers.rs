//! A client that does not read loses its stream and nothing else.

use holdfast_core::{Item, LockName, Need, RequestId, SessionId, Tenure};
use holdfast_mutants::{Mutant, arm};
use prost::Message as _;

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

    // Ten thousand grants and releases that the client never reads.
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
    let before = world.runtime.clock.now();
    world.hub.shutdown().await;

    assert!(world.runtime.clock.now().saturating_since(before) <= Duration::from_secs(1));
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

/// R1, I27: each stream is within its own bounds, and thousands may wait to be opened.
#[tokio::test(start_paused = true)]
async fn what_all_streams_send_before_they_are_open_has_a_budget_together() {
    const BUDGET: u64 = 1 << 20;
    let settings = SessionSettings { arriving_bytes_total: BUDGET, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let kept = || u64::try_from(world.hub.metrics().arriving_bytes.get()).unwrap();
    world.fake.hold_commits();
    let name = vec![b'n'; 512];
    let mut streams = Vec::new();
    for _ in 0..8 {
        let client = world.connect();
        client.send(open(TTL)).await;
        for request in 1..=6 {
            // 33 KiB on the wire.
            client.send(acquire_names(request, &[&name[..]; 64])).await;
        }
        world.settle().await;
        streams.push(client);
    }

    assert!((BUDGET / 2..=BUDGET).contains(&kept()), "{}", kept());
    for cut in streams.split_off(4) {
        let (_, end) = cut.rest().await;
        let limit = matches!(end, Err(StreamError::Limit { limit: "arriving_bytes_total", .. }));
        assert!(limit, "{end:?}");
    }
    world.fake.let_commits_go();
    for mut client in streams {
        client.opened().await;
        assert!(matches!(client.next().await, Body::Refused(_)), "a name is there twice");
    }
    assert_eq!(kept(), 0, "what is handled is given back");
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

/// Names of one set, whose values have the largest size.
const NAMES: usize = 64;

impl World {
    /// Grants a set with the largest values to the session and takes it back, `times` times: pushes of
    /// 270 KB each.
    fn push_large(&self, ticket: &Ticket, set: &str, times: u64) {
        let session = SessionId::new(ticket.session_id);
        let name = |nth| LockName::parse(&format!("{set}/{nth}")).unwrap();
        let locks: Vec<LockName> = (0..NAMES).map(name).collect();
        let mut next = 0;
        let mut request = || {
            next += 1;
            RequestId::new(next)
        };
        let commit = |commands| self.fake.commit_all(commands, Tenure::new(1));
        for round in 0..=times {
            let asked = request();
            let items = locks.iter().cloned().map(Item::exclusive).collect();
            let (need, wait, done_below) = (Need::All, true, asked);
            let acquire = holdfast_core::Command::Acquire {
                session,
                done_below,
                request: asked,
                items,
                need,
                wait,
            };
            let granted = commit(vec![acquire]).remove(0).outcome.unwrap();
            let holdfast_core::Answer::Acquired {
                state: holdfast_core::Acquired::Granted { token, .. },
                ..
            } = granted
            else {
                panic!("not granted: {granted:?}")
            };
            if round == 0 {
                let set = |lock: &LockName| holdfast_core::Command::SetValue {
                    session,
                    done_below,
                    request: request(),
                    token,
                    lock: lock.clone(),
                    change: holdfast_core::ValueChange::Set(vec![7; 4 << 10]),
                };
                commit(locks.iter().map(set).collect());
            }
            let cancel = holdfast_core::Command::Cancel { session, done_below, request: asked };
            commit(vec![cancel]);
        }
    }

    /// A session whose client reads nothing after Opened.
    async fn unread(&self) -> (Client, Ticket) {
        let mut client = self.connect_holding(1);
        client.send(open(TTL)).await;
        let opened = client.opened().await;
        (client, Ticket { session_id: opened.session_id, secret: opened.secret })
    }
}

/// Far fewer frames than `outbox_frames`, and more bytes than `outbox_bytes`.
async fn many_bytes_unread() -> (World, Client) {
    let settings = SessionSettings { outbox_bytes: 1 << 20, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let (client, ticket) = world.unread().await;
    world.push_large(&ticket, "large", 12);
    world.settle().await;
    (world, client)
}

/// The rule of the test below taken away: all of it is kept.
#[tokio::test(start_paused = true)]
async fn without_the_bound_of_bytes_the_stream_goes_on() {
    arm(Some(Mutant::OutboxCountsFramesOnly));
    let (world, _client) = many_bytes_unread().await;
    arm(None);
    assert_eq!(world.hub.metrics().outbox_overflows.get(), 0);
    assert!(world.hub.metrics().outbox_bytes.get() > 1 << 20);
}

/// I27.
#[tokio::test(start_paused = true)]
async fn a_few_unread_pushes_of_many_bytes_cost_the_stream() {
    let (world, client) = many_bytes_unread().await;

    assert_eq!(world.hub.metrics().outbox_overflows.get(), 1);
    assert_eq!(world.hub.metrics().outbox_bytes.get(), 0, "nothing is kept for it");
    let (_, end) = client.rest().await;
    assert!(matches!(end, Err(StreamError::Limit { limit: "outbox_bytes", .. })), "{end:?}");
}

/// I27: the outboxes together are full, each within its own bounds. A push to the last session does not
/// end that session's stream: the largest outbox ends.
#[tokio::test(start_paused = true)]
async fn when_all_outboxes_are_full_together_the_largest_end_and_the_small_ones_go_on() {
    let settings = SessionSettings { outbox_bytes_total: 8 << 20, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let mut streams = Vec::new();
    for (name, pushes) in [("largest", 20), ("large", 12), ("small", 2), ("late", 5)] {
        let (client, ticket) = world.unread().await;
        world.settle().await;
        world.push_large(&ticket, name, pushes);
        streams.push((name, client));
    }
    world.settle().await;

    let metrics = world.hub.metrics();
    assert_eq!((metrics.outbox_evictions.get(), metrics.outbox_overflows.get()), (1, 0));
    assert!(metrics.outbox_bytes.get() < 8 << 20);
    for (name, mut client) in streams {
        if name == "largest" {
            let (_, end) = client.rest().await;
            let limit = matches!(end, Err(StreamError::Limit { limit: "outbox_bytes_total", .. }));
            assert!(limit, "{end:?}");
        } else {
            client.send(keep_alive(1)).await;
            while !matches!(client.next().await, Body::KeptAlive(_)) {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_message_is_large_unless_one_frame_alone_is() {
    let world = World::new().await;
    let (mut client, ticket) = world.unread().await;
    world.push_large(&ticket, "large", 10);
    for request in 1..=3_000 {
        client.send(try_acquire(1_000 + request, "large/0")).await;
    }
    world.settle().await;

    let (mut large, mut together) = (0, 0);
    while let Ok(Some(frames)) =
        world.runtime.timeout(Duration::from_secs(1), client.message()).await
    {
        let (count, bytes) = (frames.len(), (ServerFrames { frames }).encoded_len());
        assert!(count == 1 || bytes <= 256 << 10, "{count} frames of {bytes} bytes");
        (large, together) = (large + u32::from(bytes > 256 << 10), together.max(count));
    }
    assert!(large == 10 && together > 100 && together <= 1_024, "{large}, {together}");
}
