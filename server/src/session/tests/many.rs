//! Many sessions at once: nothing that is done for all of them keeps other tasks from running (SC1, SC5).

use holdfast_core::{Answer, Command, Label, SessionId, Tenure};
use holdfast_proto::v1::{RefusalReason, Refused};

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

/// A node that lets in ten resumes in a second.
fn slow() -> SessionSettings {
    SessionSettings { resumes_per_second: 10, ..SessionSettings::default() }
}

impl World {
    /// Open sessions whose streams have ended.
    async fn without_streams(&self, count: usize) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        for _ in 0..count {
            tickets.push(self.session().await.1);
        }
        self.settle().await;
        tickets
    }
}

/// When the client has to come back, if it was not let in.
async fn come_back(client: &mut Client) -> Option<Duration> {
    match client.next().await {
        Body::Refused(Refused { subject: None, refusal: Some(refusal) }) => {
            assert_eq!(refusal.reason(), RefusalReason::Unavailable, "0.1 tries again then");
            assert_eq!(refusal.limit, "resumes_per_second");
            refusal.retry_after_ms.map(Duration::from_millis)
        }
        Body::Opened(_) => None,
        other => panic!("neither opened nor refused: {other:?}"),
    }
}

/// SC1: two are let in at once, two more wait here for less than a quarter of a second, and each of
/// the others is told a time of its own.
#[tokio::test(start_paused = true)]
async fn resumes_that_come_together_are_let_in_one_by_one_or_told_when_to_come_back() {
    let world = World::with(slow()).await;
    let tickets = world.without_streams(8).await;
    let came = world.runtime.clock.now();
    let mut clients = Vec::new();
    for ticket in &tickets {
        clients.push(world.resume_in_pages(ticket).await);
        // In the order of their coming.
        tokio::task::yield_now().await;
    }
    let mut told = Vec::new();
    for client in &mut clients {
        let after = come_back(client).await;
        told.push((world.runtime.clock.now().saturating_since(came), after));
    }

    let in_after = |hundreds: usize| {
        let (when, _) = told[hundreds + 1];
        when.as_millis() / 100 == hundreds as u128
    };
    assert!(told[..4].iter().all(|(_, after)| after.is_none()), "{told:?}");
    assert!((0..3).all(in_after), "{told:?}");
    let back: Vec<_> = told[4..].iter().filter_map(|(_, after)| *after).collect();
    assert!(back.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    assert_eq!(back.len(), 4, "{told:?}");
    drop(clients);
}

/// §5.2: its lease would have run out meanwhile, because the node has no time for it.
#[tokio::test(start_paused = true)]
async fn a_session_whose_client_was_told_to_come_back_does_not_end_before() {
    let world = World::with(slow()).await;
    let tickets = world.without_streams(8).await;
    world.runtime.sleep(NEARLY_TTL + Duration::from_millis(900)).await;
    let mut clients = Vec::new();
    for ticket in &tickets {
        clients.push(world.resume_in_pages(ticket).await);
        tokio::task::yield_now().await;
    }
    let last = clients.last_mut().unwrap();
    let after = come_back(last).await.expect("it is not let in");
    drop(clients);

    world.runtime.sleep(after * 5 / 4).await;
    let gone: Vec<_> = world.fake.expired().iter().map(|(session, _)| session.get()).collect();
    let session = tickets.last().unwrap().session_id;
    assert!(!gone.contains(&session), "{session} of {gone:?}");
    let mut client = world.resume_in_pages(tickets.last().unwrap()).await;
    assert_eq!(come_back(&mut client).await, None, "it is let in");

    // Nothing renews it from here on: it ends, and takes its locks along (I31).
    drop(client);
    world.runtime.sleep(TTL).await;
    let gone: Vec<_> = world.fake.expired().iter().map(|(session, _)| session.get()).collect();
    assert!(gone.contains(&session), "{session} of {gone:?}");
}

/// §5.3, I7: the last of them are told to wait for the others. Three have no need of it.
#[tokio::test(start_paused = true)]
async fn leases_of_a_new_tenure_last_until_the_last_client_may_be_back() {
    for (count, longer) in [(3, Duration::ZERO), (100, Duration::from_millis(13_500))] {
        let world = World::with(slow()).await;
        let tickets = world.without_streams(count).await;
        world.fake.follow(None);
        world.settle().await;
        world.fake.lead(2);
        world.runtime.sleep(TTL + MARGIN + longer).await;
        assert_eq!(world.fake.expired(), []);
        world.runtime.sleep(Duration::from_millis(200)).await;
        assert_eq!(world.fake.expired().len(), tickets.len());
    }
}
