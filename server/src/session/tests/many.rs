//! Many sessions at once: nothing that is done for all of them keeps other tasks from running (SC1, SC5).

use holdfast_core::{Answer, Command, Label, SessionId, Tenure};

use super::*;

const SESSIONS: usize = 20_000;

/// A node that follows, with so many sessions in its table, none of which has a stream.
async fn with_sessions(count: usize) -> (World, Vec<SessionId>) {
    let world = World::new().await;
    world.fake.follow(None);
    world.settle().await;
    let sessions = (0..count).map(|_| open_one(&world)).collect();
    (world, sessions)
}

fn open_one(world: &World) -> SessionId {
    let ttl_ms = u64::try_from(TTL.as_millis()).unwrap();
    let label = Label::parse("many").unwrap();
    let open = Command::OpenSession { ttl_ms, label, secret_hash: [0; 32] };
    match world.fake.commit(open, Tenure::new(2)).outcome {
        Ok(Answer::SessionOpened { session }) => session,
        other => panic!("{other:?}"),
    }
}

/// How often other tasks ran until this node serves.
async fn turns_until_it_serves(world: &World) -> usize {
    let mut turns = 0;
    while world.hub.registry.tenure().is_none() {
        tokio::task::yield_now().await;
        turns += 1;
    }
    turns
}

#[tokio::test(start_paused = true)]
async fn a_tenure_with_many_sessions_begins_in_parts_and_serves_nobody_before() {
    let (world, _) = with_sessions(SESSIONS).await;
    let mut early = world.connect();
    world.fake.lead(2);
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(world.hub.registry.tenure(), None, "it has begun, and is not done");
    early.send(open(TTL)).await;
    assert!(turns_until_it_serves(&world).await > 2);

    assert!(matches!(early.next().await, Body::Redirect(_)), "nobody is served before");
    let (mut client, _) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    client.granted().await;
}

/// §5.3, I7: each of them has its whole lease, and none is forgotten.
#[tokio::test(start_paused = true)]
async fn sessions_that_are_opened_and_ended_while_a_tenure_begins_are_kept_and_forgotten() {
    let (world, mut sessions) = with_sessions(SESSIONS).await;
    world.fake.lead(2);
    let began = world.runtime.clock.now();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(world.hub.registry.tenure(), None);
    for ended in [sessions.remove(SESSIONS - 1), sessions.remove(0)] {
        let close = Command::CloseSession { session: ended };
        world.fake.commit(close, Tenure::new(2)).outcome.unwrap();
    }
    sessions.push(open_one(&world));
    turns_until_it_serves(&world).await;

    world.runtime.sleep(TTL * 2).await;
    let expired = world.fake.expired();
    let mut gone: Vec<_> = expired.iter().map(|(session, _)| *session).collect();
    gone.sort_unstable();
    assert_eq!(gone, sessions);
    let early = expired.iter().filter(|(_, at)| *at <= began + TTL + MARGIN).count();
    assert_eq!(early, 0);
}
