//! Streams: opened, resumed, and sent events.

use holdfast_core::{Command, Item, LockName, Need, RequestId, SessionId, Tenure};
use holdfast_proto::v1::request_state::State as Stands;
use holdfast_proto::v1::{
    Cancel, Cancelled, Contended, GoingAway, Holder, LostReason, Mode, Queued, Redirect,
    RefusalReason, Released, Resume, SessionEnded, State, cancelled,
};

use super::*;

impl World {
    /// The session on a new stream, whose client has its State.
    pub(super) async fn resumed(&self, ticket: &Ticket) -> Client {
        let mut stream = self.resume(ticket).await;
        stream.opened().await;
        assert!(matches!(stream.next().await, Body::State(_)));
        stream
    }

    /// How many denials the session's stream was told of by an event, and has no outcome of yet.
    pub(super) fn denials_without_outcome(&self, ticket: &Ticket) -> Option<usize> {
        let session = SessionId::new(ticket.session_id);
        let state = self.hub.registry.lock();
        state.attached.get(&session).map(|attached| attached.denied.len())
    }
}

fn released_whole(granted: &Granted) -> Body {
    let Granted { request_id, token, names, .. } = granted.clone();
    Body::Released(Released { token, request_id, names, partly: false })
}

#[tokio::test(start_paused = true)]
async fn a_session_opens_acquires_and_hands_over() {
    let world = World::new().await;
    let (mut first, _) = world.session().await;
    let (mut second, _) = world.session().await;

    first.send(acquire(1, "jobs")).await;
    let held = first.granted().await;
    world.runtime.sleep(Duration::from_secs(3)).await;
    second.send(acquire(1, "jobs")).await;
    let Body::Queued(queued) = second.next().await else { panic!("not queued") };
    let Body::Contended(contended) = first.next().await else { panic!("not told") };
    first.send(release(held.token)).await;
    let released = first.next().await;
    let next = second.granted().await;

    let holder = Holder {
        session_id: 1,
        label: "a-test".to_owned(),
        token: held.token,
        held_ms: 3_000,
        mode: Mode::Exclusive.into(),
        ..Holder::default()
    };
    assert_eq!(queued, Queued { request_id: 1, place: 0, holders: vec![holder], frozen: None });
    let told = Contended {
        request_id: 1,
        token: held.token,
        name: "jobs".into(),
        waiting: 1,
        head_start_ms: 0,
    };
    assert_eq!(contended, told);
    assert_eq!(released, released_whole(&held));
    assert!(next.token > held.token);
}

/// A test asks for a name that is held; the answer names the holder, once.
#[tokio::test(start_paused = true)]
async fn a_try_is_denied_once_with_the_holder_and_again_when_it_is_retried() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut other, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    holder.granted().await;

    other.send(try_acquire(1, "jobs")).await;
    let Body::Denied(denied) = other.next().await else { panic!("not denied") };
    other.expect_silence(Duration::from_millis(10)).await;
    other.send(try_acquire(1, "jobs")).await;
    let Body::Denied(again) = other.next().await else { panic!("not denied") };

    let refusal = denied.refusal.unwrap();
    assert_eq!(refusal.reason(), RefusalReason::LockHeld);
    assert_eq!(refusal.holders[0].label, "a-test");
    assert_eq!(again.refusal.unwrap().holders[0].session_id, 1);
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_told_its_place_or_its_token_again() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut waiter, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    let held = holder.granted().await;
    waiter.send(acquire(1, "jobs")).await;
    let Body::Queued(first) = waiter.next().await else { panic!("not queued") };

    holder.send(acquire(1, "jobs")).await;
    assert!(matches!(holder.next().await, Body::Contended(_)));
    let again = holder.granted().await;
    waiter.send(acquire(1, "jobs")).await;
    let Body::Queued(second) = waiter.next().await else { panic!("not queued") };

    assert_eq!(again, held);
    assert_eq!((second.place, second.holders[0].token), (first.place, held.token));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_says_what_the_request_was() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    let held = client.granted().await;
    client.send(acquire(2, "jobs")).await;
    assert!(matches!(client.next().await, Body::Queued(_)));
    assert!(matches!(client.next().await, Body::Contended(_)));

    let cancel = |request_id| Ask::Cancel(Cancel { request_id });
    let was = |request_id, was: cancelled::Was| {
        Body::Cancelled(Cancelled { request_id, was: was.into() })
    };
    client.send(cancel(2)).await;
    assert_eq!(client.next().await, was(2, cancelled::Was::Waiting));
    client.send(cancel(1)).await;
    assert_eq!(client.next().await, released_whole(&held));
    assert_eq!(client.next().await, was(1, cancelled::Was::Held));
    client.send(cancel(1)).await;
    assert_eq!(client.next().await, was(1, cancelled::Was::Ended));
    client.send(cancel(9)).await;
    assert_eq!(client.next().await, was(9, cancelled::Was::Unknown));
}

/// The stream breaks; the session keeps its hold and its place, and State reports both (I9, I12, I23).
#[tokio::test(start_paused = true)]
async fn a_resume_finds_hold_and_place_in_the_first_message() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    let (mut other, _) = world.session().await;
    client.send(acquire(1, "mine")).await;
    let held = client.granted().await;
    other.send(acquire(1, "theirs")).await;
    other.granted().await;
    client.send(acquire(2, "theirs")).await;
    assert!(matches!(client.next().await, Body::Queued(_)));
    drop(client);
    world.settle().await;

    let mut again = world.resume(&ticket).await;
    let frames = again.message().await.unwrap();

    let [Body::Opened(opened), Body::State(state)] =
        &frames.into_iter().map(|frame| frame.body.unwrap()).collect::<Vec<_>>()[..]
    else {
        panic!("not Opened and State in one message");
    };
    assert_eq!(opened.session_id, ticket.session_id);
    assert_eq!((&opened.secret[..], opened.ttl_ms), (&[][..], 10_000));
    let State { requests, next_request_id, .. } = state;
    assert_eq!(*next_request_id, 3);
    assert!(matches!(&requests[0].state, Some(Stands::Granted(now)) if now.token == held.token));
    assert!(matches!(&requests[1].state, Some(Stands::Queued(now)) if now.place == 0));

    drop(other);
    world.runtime.sleep(TTL).await;
}

/// All requests are done and confirmed: only the mark is kept of them.
#[tokio::test(start_paused = true)]
async fn state_names_the_next_id_also_when_no_request_is_kept() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    client.send(acquire(7, "jobs")).await;
    let held = client.granted().await;
    client.send_confirming(8, release(held.token)).await;
    client.next().await;

    let mut again = world.resume(&ticket).await;
    again.opened().await;
    assert_eq!(again.next().await, Body::State(State { next_request_id: 8, ..State::default() }));
}

/// Grants while no stream was attached are in State; later grants come as events.
#[tokio::test(start_paused = true)]
async fn a_grant_missed_while_away_is_in_state() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut waiter, ticket) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    let held = holder.granted().await;
    waiter.send(acquire(1, "jobs")).await;
    waiter.next().await;
    drop(waiter);
    world.settle().await;
    holder.send(release(held.token)).await;
    world.settle().await;

    let mut again = world.resume(&ticket).await;
    again.opened().await;
    let Body::State(state) = again.next().await else { panic!("not State") };

    assert!(matches!(&state.requests[0].state, Some(Stands::Granted(_))));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_secret_and_an_unknown_session_get_the_same_answer() {
    let world = World::new().await;
    let (_client, ticket) = world.session().await;
    let wrong = Ticket { secret: Bytes::from_static(&[7; 16]), ..ticket.clone() };
    let unknown = Ticket { session_id: 99, ..ticket };

    for (bad, id) in [(wrong, "1"), (unknown, "99")] {
        let (rest, end) = world.resume(&bad).await.rest().await;
        let [Body::Refused(refused)] = &rest[..] else { panic!("not refused: {rest:?}") };
        let refusal = refused.refusal.as_ref().unwrap();
        assert_eq!(refusal.reason(), RefusalReason::SessionUnknown);
        let words =
            format!("session {id} is not open, or this is not its secret; open a new session");
        assert_eq!(refusal.message, words);
        assert_eq!(end, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_of_another_cluster_is_refused_naming_both() {
    let world = World::new().await;
    let (_client, ticket) = world.session().await;
    let resume = Resume {
        session_id: ticket.session_id,
        secret: ticket.secret,
        cluster_id: Bytes::from_static(b"another cluster!"),
        ..Resume::default()
    };
    let client = world.connect();
    client.send(Ask::Open(Open { resume: Some(resume), ..Open::default() })).await;

    let (rest, end) = client.rest().await;
    let [Body::Refused(refused)] = &rest[..] else { panic!("not refused: {rest:?}") };
    let message = &refused.refusal.as_ref().unwrap().message;
    assert!(message.contains(&hex::encode(b"another cluster!")), "{message}");
    assert!(message.contains(&hex::encode(CLUSTER)), "{message}");
    assert_eq!(end, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_newest_stream_owns_the_session_and_the_older_ends_attached_elsewhere() {
    let world = World::new().await;
    let (older, ticket) = world.session().await;
    let mut newer = world.resume(&ticket).await;
    newer.opened().await;
    newer.next().await;

    let (rest, end) = older.rest().await;
    newer.send(acquire(1, "jobs")).await;

    assert_eq!(rest, []);
    assert_eq!(end, Err(StreamError::AttachedElsewhere { session: ticket.session_id }));
    newer.granted().await;
}

/// Two streams show the secret; the confirmation of the first is the slower one.
#[tokio::test(start_paused = true)]
async fn a_stream_that_came_before_does_not_take_the_session_from_a_newer_one() {
    let world = World::new().await;
    let (_gone, ticket) = world.session().await;
    let slow = world.connect();
    let mut newer = world.resume(&ticket).await;
    newer.opened().await;
    newer.next().await;

    slow.send(resume(&ticket)).await;
    let (rest, end) = slow.rest().await;

    assert_eq!(rest, []);
    assert_eq!(end, Err(StreamError::AttachedElsewhere { session: ticket.session_id }));
    newer.send(keep_alive(1)).await;
    assert!(matches!(newer.next().await, Body::KeptAlive(_)));
}

/// DESIGN §15: through another member an Open may arrive after one that its client sent later.
#[tokio::test(start_paused = true)]
async fn an_open_that_lingered_takes_no_session_from_a_later_attempt() {
    let world = World::new().await;
    let (_gone, ticket) = world.session().await;
    let attempt = |attempt| {
        let Ask::Open(open) = resume(&ticket) else { unreachable!() };
        let resume = open.resume.map(|resume| Resume { attempt, ..resume });
        Ask::Open(Open { resume, ..open })
    };
    let mut newer = world.connect();
    newer.send(attempt(8)).await;
    newer.opened().await;
    newer.next().await;

    let lingered = world.connect();
    lingered.send(attempt(7)).await;
    let (rest, end) = lingered.rest().await;
    assert_eq!(rest, []);
    assert_eq!(end, Err(StreamError::AttachedElsewhere { session: ticket.session_id }));
    newer.send(keep_alive(1)).await;
    assert!(matches!(newer.next().await, Body::KeptAlive(_)));

    let mut next = world.connect();
    next.send(attempt(9)).await;
    next.opened().await;
    assert_eq!(newer.rest().await.1, end, "the session is the latest attempt's");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_lead_names_the_leader_and_ends_the_stream() {
    let world = World::new().await;
    world.fake.follow(Some("node-2:7420"));
    world.settle().await;
    let client = world.connect();
    client.send(open(TTL)).await;

    let (rest, end) = client.rest().await;

    let leader = Some("node-2:7420".to_owned());
    assert_eq!(rest, [Body::Redirect(Redirect { leader })]);
    assert_eq!(end, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn losing_the_tenure_sends_every_attached_stream_to_the_leader() {
    let world = World::new().await;
    let (client, _) = world.session().await;
    world.fake.follow(Some("node-2:7420"));

    let (rest, end) = client.rest().await;

    let leader = Some("node-2:7420".to_owned());
    assert_eq!(rest, [Body::Redirect(Redirect { leader })]);
    assert_eq!(end, Ok(()));
}

/// Leadership is lost and won again so fast that only the new tenure is seen.
#[tokio::test(start_paused = true)]
async fn a_new_tenure_of_the_same_node_ends_the_streams_of_the_old_one() {
    let world = World::new().await;
    let (client, ticket) = world.session().await;
    world.fake.lead(2);

    let (rest, _) = client.rest().await;
    assert_eq!(rest, [Body::Redirect(Redirect { leader: None })]);
    world.resume(&ticket).await.opened().await;
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_the_session_and_the_stream_and_hands_over() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    let (mut waiter, _) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    client.granted().await;
    waiter.send(acquire(1, "jobs")).await;
    waiter.next().await;
    assert!(matches!(client.next().await, Body::Contended(_)));

    client.send(close()).await;
    let (rest, end) = client.rest().await;

    let reason = LostReason::SessionClosed.into();
    assert!(matches!(&rest[0], Body::Lost(lost) if lost.reason == reason));
    assert_eq!(rest[1], Body::SessionEnded(SessionEnded { reason, ..SessionEnded::default() }));
    assert_eq!(end, Ok(()));
    waiter.granted().await;
    let (rest, _) = world.resume(&ticket).await.rest().await;
    assert!(matches!(&rest[..], [Body::Refused(_)]));
}

/// A hundred events of one entry concern one client: they travel together.
#[tokio::test(start_paused = true)]
async fn the_pushes_of_one_entry_travel_in_one_message() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    let acquire = |request| Command::Acquire {
        session: SessionId::new(ticket.session_id),
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items: vec![Item::exclusive(LockName::parse(&format!("jobs/{request}")).unwrap())],
        need: Need::All,
        wait: true,
    };
    world.fake.commit_all((1..=100).map(acquire).collect(), Tenure::new(1));

    assert_eq!(client.message().await.unwrap().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_outcome_says_that_the_command_may_still_take_effect() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.hold_commits();
    client.send(acquire(1, "jobs")).await;
    world.settle().await;
    let commands = world.fake.give_up_held_back();

    let Body::Refused(refused) = client.next().await else { panic!("not refused") };
    let refusal = refused.refusal.unwrap();
    assert_eq!(refusal.reason(), RefusalReason::Unavailable);
    assert!(refusal.outcome_unknown);
    for command in commands {
        world.fake.commit(command, Tenure::new(1));
    }
    client.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_resume_without_a_quorum_ends_unavailable() {
    let world = World::new().await;
    let (_client, ticket) = world.session().await;
    world.fake.set_quorum(false);

    let (rest, end) = world.resume(&ticket).await.rest().await;

    assert_eq!(rest, []);
    assert!(matches!(end, Err(StreamError::Unavailable { .. })));
}

/// Frames that a client sends right after its Open are handled in order once it is answered.
#[tokio::test(start_paused = true)]
async fn frames_behind_open_wait_for_the_session() {
    let world = World::new().await;
    let mut client = world.connect();
    world.fake.hold_commits();
    client.send(open(TTL)).await;
    client.send(acquire(1, "jobs")).await;
    world.settle().await;
    world.fake.let_commits_go();

    client.opened().await;
    client.granted().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_says_going_away_on_every_stream_and_takes_no_new_one() {
    let world = World::new().await;
    let (client, _) = world.session().await;
    let silent = world.connect();
    world.settle().await;
    world.hub.shutdown().await;

    for stream in [client, silent] {
        let (rest, end) = stream.rest().await;
        assert_eq!(rest, [Body::GoingAway(GoingAway { leader: None })]);
        assert_eq!(end, Err(StreamError::ShuttingDown { leader: None }));
    }
    let (_, end) = world.connect().rest().await;
    assert!(matches!(end, Err(StreamError::Unavailable { .. })), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_stream_ends_no_session() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    client.send(acquire(1, "jobs")).await;
    let held = client.granted().await;
    drop(client);
    world.runtime.sleep(NEARLY_TTL).await;

    let mut again = world.resume(&ticket).await;
    again.opened().await;
    let Body::State(state) = again.next().await else { panic!("not State") };

    let Some(Stands::Granted(now)) = &state.requests[0].state else { panic!("not held") };
    assert_eq!(now.token, held.token);
}

/// An older stream asked, and the outcome comes once a newer one is attached.
#[tokio::test(start_paused = true)]
async fn a_denial_that_an_older_stream_asked_for_leaves_no_mark_behind() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    holder.granted().await;
    let (mut stream, ticket) = world.session().await;
    for request in 1..=3 {
        world.fake.hold_commits();
        stream.send(try_acquire(request, "jobs")).await;
        world.settle().await;
        stream = world.resumed(&ticket).await;
        world.fake.let_commits_go();
        assert!(matches!(stream.next().await, Body::Denied(_)));
        assert_eq!(world.denials_without_outcome(&ticket), Some(0), "request {request}");
    }
}
