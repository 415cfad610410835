//! Whose a session is (DESIGN §14): its opener's, or the first caller's with a name who shows its secret.

use holdfast_core::{
    AccessName, Command, Deed, Identity, NamePrefix, Right, RuleChange, SessionId, Tenure, Verb,
};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::{RefusalReason, SessionKey, State, request_state};

use super::*;

fn named(identity: &str) -> Caller {
    Caller { identity: Identity::parse(identity).unwrap(), is_admin: false }
}

impl World {
    fn change(&self, change: RuleChange) {
        let caller = Caller { is_admin: true, ..named("cn:ops") };
        let command = Command::By { caller, deed: Deed::Rule { change } };
        self.fake.commit(command, Tenure::new(1)).outcome.unwrap();
    }

    /// Turns rules on under which `cn:app` may acquire, and nobody else anything.
    fn turn_rules_on(&self) {
        let (role, prefix) = (AccessName::parse("app").unwrap(), NamePrefix::parse("").unwrap());
        let rights = [Right { verb: Verb::Acquire, prefix }].into();
        self.change(RuleChange::SetRole { role: role.clone(), rights });
        let identity = named("cn:app").identity;
        self.change(RuleChange::SetRoles { identity, roles: [role].into() });
        self.change(RuleChange::Turn { on: true });
    }

    /// The owner of a session.
    fn owner(&self, ticket: &Ticket) -> Caller {
        let mut owner = None;
        let session = SessionId::new(ticket.session_id);
        self.hub.consensus.read(&mut |table, _| {
            owner = table.session(session).map(|view| view.caller.clone());
        });
        owner.unwrap()
    }

    async fn resume_by(&self, identity: &str, ticket: &Ticket) -> Client {
        let client = self.connect_by(named(identity), 64);
        client.send(resume(ticket)).await;
        client
    }
}

/// Before, the session was refused as somebody else's, and its client lost its locks.
#[tokio::test(start_paused = true)]
async fn a_session_of_nobody_keeps_its_locks_when_rules_go_on_and_is_its_clients_from_its_next_resume()
 {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    client.send(acquire(1, "a")).await;
    assert!(matches!(client.next().await, Body::Granted(_)));
    drop(client);
    world.turn_rules_on();

    arm(Some(Mutant::NobodysIsAnothers));
    let (rest, _) = world.resume_by("cn:app", &ticket).await.rest().await;
    assert!(matches!(rest[..], [Body::Refused(_)]), "without the rule: {rest:?}");
    arm(None);
    let mut again = world.resume_by("cn:app", &ticket).await;
    again.opened().await;
    let Body::State(State { requests, .. }) = again.next().await else { panic!("no State") };
    assert!(matches!(requests[0].state, Some(request_state::State::Granted(_))), "{requests:?}");
    again.send(acquire(2, "b")).await;
    assert!(matches!(again.next().await, Body::Granted(_)));
    assert_eq!(world.owner(&ticket), named("cn:app"));

    // It is no other identity's any more, also for a caller that shows its secret.
    let (rest, _) = world.resume_by("cn:other", &ticket).await.rest().await;
    let Some(Body::Refused(refused)) = rest.last() else { panic!("{rest:?}") };
    let refusal = refused.refusal.as_ref().unwrap();
    assert_eq!(refusal.reason(), RefusalReason::SessionUnknown);
}

/// Somebody who guesses a session's number must not take it from its client.
#[tokio::test(start_paused = true)]
async fn nobody_takes_a_session_without_its_secret() {
    let world = World::new().await;
    let (_client, ticket) = world.session().await;
    let guessed = Ticket { secret: Bytes::from_static(&[7; 16]), ..ticket.clone() };

    let (rest, _) = world.resume_by("cn:thief", &guessed).await.rest().await;
    assert!(matches!(rest.last(), Some(Body::Refused(_))), "{rest:?}");
    let key = SessionKey { session_id: guessed.session_id, secret: guessed.secret };
    world.hub.own_by_key(&key, &named("cn:thief")).await;
    assert_eq!(world.owner(&ticket), Caller::default());

    let key = SessionKey { session_id: ticket.session_id, secret: ticket.secret.clone() };
    world.hub.own_by_key(&key, &named("cn:app")).await;
    assert_eq!(world.owner(&ticket), named("cn:app"));
}

/// An administrator that was taken out of the settings is none any more from its next resume on.
#[tokio::test(start_paused = true)]
async fn a_resume_brings_up_to_date_whether_its_caller_is_an_administrator() {
    let world = World::new().await;
    let mut client = world.connect_by(Caller { is_admin: true, ..named("cn:app") }, 64);
    client.send(open(TTL)).await;
    let opened = client.opened().await;
    let ticket = Ticket { session_id: opened.session_id, secret: opened.secret };
    assert!(world.owner(&ticket).is_admin);

    let mut again = world.resume_by("cn:app", &ticket).await;
    again.opened().await;
    again.send(keep_alive(1)).await;
    while !matches!(again.next().await, Body::KeptAlive(_)) {}

    assert_eq!(world.owner(&ticket), named("cn:app"));
}
