//! What requests say besides their locks, on a session's stream: head starts, owners, notes.

use holdfast_core::{AccessName, Caller, Command, Deed, Identity, Label, NamePrefix, Tenure};
use holdfast_proto::v1::{
    AcquireOn, Contended, Denied, Moved, Queued, Refusal, RefusalReason, Refused, State,
};

use super::*;

fn ask(request_id: u64, name: &str, terms: AcquireOn) -> Ask {
    let on = Some(AcquireOn { items: vec![exclusive(name)], ..terms });
    Ask::Acquire(Acquire { request_id, on, wait: true, ..Acquire::default() })
}

fn ahead(head_start_ms: u64) -> AcquireOn {
    AcquireOn { head_start_ms, ..AcquireOn::default() }
}

fn owned(owner: u64) -> AcquireOn {
    AcquireOn { owner, ..AcquireOn::default() }
}

fn noted(note: &str) -> AcquireOn {
    AcquireOn { note: note.to_owned(), ..AcquireOn::default() }
}

async fn queued(client: &mut Client) -> Queued {
    match client.next().await {
        Body::Queued(queued) => queued,
        other => panic!("not Queued: {other:?}"),
    }
}

async fn refused(client: &mut Client) -> Refusal {
    match client.next().await {
        Body::Refused(Refused { refusal, .. }) => refusal.unwrap(),
        other => panic!("not Refused: {other:?}"),
    }
}

/// A client that follows its place learns that it has grown.
#[tokio::test(start_paused = true)]
async fn a_request_with_a_head_start_goes_before_others_who_learn_of_it() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut early, _) = world.session().await;
    let (mut urgent, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    let token = holder.granted().await.token;
    // From the first command that says something on the table has an age.
    holder.send(ask(2, "other", noted("to begin with"))).await;
    holder.granted().await;
    let follows = Acquire {
        follow_place: true,
        ..match acquire(1, "jobs") {
            Ask::Acquire(acquire) => acquire,
            _ => unreachable!(),
        }
    };
    early.send(Ask::Acquire(follows)).await;
    assert_eq!(queued(&mut early).await.place, 0);
    assert!(matches!(holder.next().await, Body::Contended(_)));

    urgent.send(ask(1, "jobs", ahead(60_000))).await;

    assert_eq!(queued(&mut urgent).await.place, 0);
    match early.next().await {
        Body::Moved(Moved { place, .. }) => assert_eq!(place, 1),
        other => panic!("not Moved: {other:?}"),
    }
    holder.send(release(token)).await;
    let token = urgent.granted().await.token;
    assert!(matches!(urgent.next().await, Body::Contended(_)));
    urgent.send(release(token)).await;
    loop {
        match early.next().await {
            Body::Granted(granted) => break assert_eq!(granted.request_id, 1),
            other => assert!(matches!(other, Body::Moved(_)), "{other:?}"),
        }
    }
}

/// A holder learns how many wait and how urgent they are; after a resume too, where the frame may have been lost.
#[tokio::test(start_paused = true)]
async fn a_holder_is_told_of_larger_head_starts_and_again_after_a_resume() {
    let world = World::new().await;
    let (mut holder, ticket) = world.session().await;
    let (mut others, _) = world.session().await;
    holder.send(ask(1, "jobs", noted("to begin with"))).await;
    let token = holder.granted().await.token;
    holder.send(ask(2, "free", noted("nobody waits for it"))).await;
    holder.granted().await;
    let told = |waiting, head_start_ms| {
        let name = "jobs".into();
        Contended { request_id: 1, token, name, waiting, head_start_ms }
    };
    for (request, head_start_ms) in [(1, 0), (2, 500), (3, 500), (4, 900)] {
        others.send(ask(request, "jobs", ahead(head_start_ms))).await;
        queued(&mut others).await;
    }

    for expected in [told(1, 0), told(2, 500), told(4, 900)] {
        assert_eq!(holder.next().await, Body::Contended(expected));
    }
    let mut again = world.resume(&ticket).await;
    again.opened().await;
    let Body::State(State { requests, .. }) = again.next().await else { panic!("not State") };
    let contended: Vec<_> = requests.into_iter().map(|request| request.contended).collect();
    assert_eq!(contended, [vec![told(4, 900)], vec![]]);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_asks_again_gets_its_token_or_learns_that_it_waits() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    let (mut other, _) = world.session().await;
    client.send(ask(1, "jobs", owned(7))).await;
    let token = client.granted().await.token;

    client.send(ask(2, "jobs", owned(7))).await;

    let refusal = refused(&mut client).await;
    assert_eq!(refusal.reason(), RefusalReason::AlreadyHeld, "{refusal:?}");
    assert_eq!(refusal.holders.iter().map(|own| own.token).collect::<Vec<_>>(), [token]);
    // The same number means another owner in another session.
    other.send(ask(1, "jobs", owned(7))).await;
    assert_eq!(queued(&mut other).await.place, 0);
    assert!(matches!(client.next().await, Body::Contended(_)));
    other.send(ask(2, "jobs", owned(7))).await;
    let refusal = refused(&mut other).await;
    assert_eq!(refusal.reason(), RefusalReason::AlreadyAsked, "{refusal:?}");
    // Refused is not recorded: the id serves for another request.
    client.send(ask(2, "other", owned(7))).await;
    assert_eq!(client.granted().await.request_id, 2);
}

#[tokio::test(start_paused = true)]
async fn a_note_is_shown_to_those_who_wait() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    let (mut waiter, _) = world.session().await;
    holder.send(ask(1, "jobs", noted("nightly \u{1F319} import"))).await;
    holder.granted().await;

    waiter.send(acquire(1, "jobs")).await;

    let holders = queued(&mut waiter).await.holders;
    assert_eq!(
        holders.iter().map(|holder| &*holder.note).collect::<Vec<_>>(),
        ["nightly \u{1F319} import"]
    );
}

#[tokio::test(start_paused = true)]
async fn terms_that_cannot_be_are_refused_and_nothing_of_the_request_is_done() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    let (long, turned) = ("x".repeat(257), "a\u{202e}b");
    let twice = Acquire {
        request_id: 1,
        items: vec![exclusive("jobs")],
        on: Some(AcquireOn { items: vec![exclusive("jobs")], ..ahead(1) }),
        wait: true,
        ..Acquire::default()
    };
    let none = Acquire { items: Vec::new(), on: Some(ahead(1)), ..twice.clone() };
    let claim = Acquire { items: Vec::new(), claim_owner: Some("old".into()), ..twice.clone() };
    let wrong = [
        (
            ask(1, "jobs", ahead(600_001)),
            RefusalReason::Limit,
            "600001 ms is longer than the 600000",
        ),
        (ask(1, "jobs", ahead(u64::MAX)), RefusalReason::Limit, "is longer than the 600000"),
        (ask(1, "jobs", noted(&long)), RefusalReason::Invalid, "the note is not usable"),
        (ask(1, "jobs", noted("a\nb")), RefusalReason::Invalid, "the note is not usable"),
        (ask(1, "jobs", noted(turned)), RefusalReason::Invalid, "the note is not usable"),
        (Ask::Acquire(twice), RefusalReason::Invalid, "beside what it says besides"),
        (Ask::Acquire(none), RefusalReason::Invalid, "at least one lock"),
        (Ask::Acquire(claim), RefusalReason::Invalid, "none of its own"),
    ];
    for (frame, reason, words) in wrong {
        client.send(frame).await;
        let refusal = refused(&mut client).await;
        assert_eq!(refusal.reason(), reason, "{refusal:?}");
        assert!(refusal.message.contains(words), "{refusal:?}");
    }
    client.send(ask(1, "jobs", ahead(600_000))).await;
    client.granted().await;
}

impl World {
    fn commit_as_operator(&self, deed: Deed) {
        let identity = Identity::of_token(&AccessName::parse("ops").unwrap());
        let command = Command::By { caller: Caller { identity, is_admin: true }, deed };
        self.fake.commit(command, Tenure::new(1)).outcome.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_learn_that_names_are_frozen_and_a_try_why() {
    let world = World::new().await;
    let (mut waiter, _) = world.session().await;
    let (mut follower, _) = world.session().await;
    let prefix = || NamePrefix::parse("jo").unwrap();
    let message = Label::parse("the disk is full").unwrap();
    waiter.send(acquire(1, "jobs")).await;
    let token = waiter.granted().await.token;
    let Ask::Acquire(follows) = acquire(1, "jobs") else { unreachable!() };
    follower.send(Ask::Acquire(Acquire { follow_place: true, ..follows })).await;
    assert_eq!(queued(&mut follower).await.frozen, None);
    assert!(matches!(waiter.next().await, Body::Contended(_)));

    world.commit_as_operator(Deed::Freeze { prefix: prefix(), message });

    let Body::Moved(moved) = follower.next().await else { panic!("it was not told") };
    let frozen = moved.frozen.unwrap();
    assert_eq!((moved.place, &*frozen.prefix, &*frozen.message), (0, "jo", "the disk is full"));
    assert_eq!(frozen.identity, "token:ops");
    waiter.send(release(token)).await;
    assert!(matches!(waiter.next().await, Body::Released(_)));
    waiter.send(try_acquire(2, "jobs")).await;
    let Body::Denied(Denied { refusal: Some(refusal), .. }) = waiter.next().await else {
        panic!("it was not denied")
    };
    assert_eq!(refusal.reason(), RefusalReason::Frozen);
    let words =
        "jobs is frozen by token:ops, and nobody is granted it at the moment: the disk is full";
    assert_eq!(refusal.message, words);
    waiter.send(acquire(3, "jobs")).await;
    assert_eq!(queued(&mut waiter).await.frozen.unwrap().message, "the disk is full");

    world.commit_as_operator(Deed::Thaw { prefix: prefix() });

    loop {
        match follower.next().await {
            Body::Granted(granted) => break assert_eq!(granted.request_id, 1),
            other => assert!(matches!(other, Body::Moved(_)), "{other:?}"),
        }
    }
}
