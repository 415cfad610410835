//! Scopes with fallback: every answer that renews a lease names each of them; a client that is not
//! granted because of a suspension is told so; a client that loses a hold with an epoch keeps its
//! session.

use std::sync::Arc;

use holdfast_core::{Command, Rejection, ScopePrefix, Tenure};
use holdfast_keyspace::authority::{Authority, AuthorityRow, Durations, Mode};
use holdfast_keyspace::database::Tables;
use holdfast_keyspace::model::Model;
use holdfast_proto::v1::{KeptAlive, LostReason, RefusalReason, ScopeAuthority};
use holdfast_runtime::simulated::Machine;

use super::*;
use crate::authority::FallbackSettings;
use crate::consensus::propose_until_finished;

fn prefix() -> ScopePrefix {
    ScopePrefix::parse("pay/").unwrap()
}

fn told(epoch: u32, remaining_ms: u64) -> Vec<ScopeAuthority> {
    vec![ScopeAuthority { scope: "pay/".to_owned(), epoch, remaining_ms }]
}

fn kept(seq: u64, scopes: Vec<ScopeAuthority>) -> Body {
    Body::KeptAlive(KeptAlive { seq, scopes, ..KeptAlive::default() })
}

/// Not before the scope can be granted in: a client that holds a name of a new scope would lose it for
/// nothing.
#[tokio::test(start_paused = true)]
async fn a_client_is_told_of_every_scope_that_was_resumed_once_until_it_is_removed() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    client.send(keep_alive(1)).await;
    assert_eq!(client.next().await, kept(1, Vec::new()));

    world.fake.commit(Command::SetScope { scope: prefix() }, Tenure::new(1));
    client.send(keep_alive(2)).await;
    assert_eq!(client.next().await, kept(2, Vec::new()));
    world.fake.commit(Command::Resume { scope: prefix(), epoch: 1 }, Tenure::new(1));
    client.send(keep_alive(3)).await;
    assert_eq!(client.next().await, kept(3, told(1, 0)));
    let mut another = world.connect();
    another.send(open(TTL)).await;
    assert_eq!(another.opened().await.scopes, told(1, 0));
    let mut resumed = world.resume(&ticket).await;
    assert_eq!(resumed.opened().await.scopes, told(1, 0));

    world.fake.commit(Command::RemoveScope { scope: prefix() }, Tenure::new(1));
    another.send(keep_alive(1)).await;
    assert_eq!(another.next().await, kept(1, Vec::new()));
}

/// This holds also for a scope that came with a whole state, or was applied before this node led.
#[tokio::test(start_paused = true)]
async fn a_new_leader_tells_of_the_scopes_of_before() {
    let world = World::new().await;
    let (client, ticket) = world.session().await;
    world.fake.commit(Command::SetScope { scope: prefix() }, Tenure::new(1));
    world.fake.commit(Command::Resume { scope: prefix(), epoch: 1 }, Tenure::new(1));
    world.fake.follow(None);
    world.settle().await;
    world.fake.restore();
    world.fake.lead(2);
    world.settle().await;
    drop(client);
    let mut resumed = world.resume(&ticket).await;
    assert_eq!(resumed.opened().await.scopes, told(1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_try_in_a_suspended_scope_is_denied_by_that_reason_and_a_wait_is_granted_on_resume() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.commit(Command::SetScope { scope: prefix() }, Tenure::new(1));
    client.send(try_acquire(1, "pay/1")).await;
    let Body::Denied(denied) = client.next().await else { panic!("not denied") };
    assert_eq!(denied.refusal.unwrap().reason(), RefusalReason::Suspended);
    client.send(acquire(2, "pay/1")).await;
    assert!(matches!(client.next().await, Body::Queued(_)));
    world.fake.commit(Command::Resume { scope: prefix(), epoch: 1 }, Tenure::new(1));
    assert_eq!(client.granted().await.request_id, 2);
}

#[tokio::test(start_paused = true)]
async fn a_hold_lost_with_its_epoch_leaves_the_session_alone() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.commit(Command::SetScope { scope: prefix() }, Tenure::new(1));
    world.fake.commit(Command::Resume { scope: prefix(), epoch: 1 }, Tenure::new(1));
    client.send(acquire(1, "pay/1")).await;
    let token = client.granted().await.token;
    world.fake.commit(Command::RaiseEpoch { scope: prefix(), epoch: 4 }, Tenure::new(1));
    let Body::Lost(lost) = client.next().await else { panic!("not lost") };
    assert_eq!((lost.token, lost.reason()), (token, LostReason::EpochRaised));
    client.send(keep_alive(1)).await;
    assert_eq!(client.next().await, kept(1, told(4, 0)));
}

/// With authorities: the row is made, the scope is granted in, and answers carry the rest of the authority;
/// without quorum the authority runs out, and the scope is suspended before it does.
#[test]
fn a_leader_with_a_fallback_has_authority_over_its_scope_while_a_quorum_answers() {
    let machine = Machine::new(7);
    let node = machine.process("node");
    let model = Model::new(&machine);
    let life = async {
        let world = World::on(node.runtime(), SessionSettings::default()).await;
        let tables = Tables::new(Arc::new(model.clone()), world.runtime.clock.clone());
        let tables = Arc::new(tables);
        let terms = FallbackSettings {
            durations: Durations::new(Duration::from_secs(10), Duration::from_secs(5)).unwrap(),
            ..FallbackSettings::default()
        };
        world.hub.keep_scopes(Some((terms, tables.clone())));
        let (mut client, _) = world.session().await;
        world.fake.commit(Command::SetScope { scope: prefix() }, Tenure::new(1));
        client.send(acquire(1, "pay/1")).await;
        assert!(matches!(client.next().await, Body::Queued(_)));
        assert_eq!(client.granted().await.request_id, 1);
        client.send(keep_alive(1)).await;
        let Body::KeptAlive(KeptAlive { scopes, .. }) = client.next().await else {
            panic!("silent")
        };
        let [ScopeAuthority { epoch: 1, remaining_ms: 1_000..=8_000, .. }] = scopes[..] else {
            panic!("{scopes:?}")
        };

        let row = Authority::new(tables, world.runtime.clock.clone(), "pay/");
        let seen = row.read().await.unwrap().row.unwrap();
        assert_eq!((seen.mode, seen.epoch), (Mode::Preparing, 1));
        assert_eq!(seen.durations, terms.durations, "as the settings have them");
        world.runtime.sleep(2 * TTL).await;
        let seen = row.read().await.unwrap().row.unwrap();
        assert_eq!((seen.mode, seen.epoch), (Mode::Native, 1), "all clients know of it");

        world.fake.set_quorum(false);
        world.runtime.sleep(Duration::from_secs(9)).await;
        let status = world.hub.authorities().unwrap().status(&prefix()).unwrap();
        assert_eq!(status.authority, None);
        assert!(status.row.is_some_and(|row| row.mode == Mode::Native));
        let bumped: AuthorityRow = row.read().await.unwrap().row.unwrap();
        world.runtime.sleep(Duration::from_secs(9)).await;
        assert_eq!(
            row.read().await.unwrap().row,
            Some(bumped),
            "nobody says that the leader lives"
        );
        let mut suspended = false;
        world.hub.consensus().read(&mut |table, _| {
            suspended = table.scope(&prefix()).unwrap().suspended;
        });
        assert!(suspended);
    };
    machine.run(life);
}

/// A leader without settings for fallback grants nothing.
#[tokio::test(start_paused = true)]
async fn a_leader_without_a_fallback_suspends_the_scopes_there_are() {
    let world = World::new().await;
    world.hub.keep_scopes(None);
    world.fake.commit(Command::SetScope { scope: prefix() }, Tenure::new(1));
    world.fake.commit(Command::Resume { scope: prefix(), epoch: 1 }, Tenure::new(1));
    world.settle().await;
    let (mut client, _) = world.session().await;
    client.send(try_acquire(1, "pay/1")).await;
    let Body::Denied(denied) = client.next().await else { panic!("not denied") };
    assert_eq!(denied.refusal.unwrap().reason(), RefusalReason::Suspended);
}

/// One command looks at a few locks only, and says so; the server goes on.
#[tokio::test(start_paused = true)]
async fn a_scope_is_set_by_as_many_commands_as_its_locks_take() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.commit(Command::LimitWork { steps: 3 }, Tenure::new(1));
    for request in 1..=20 {
        client.send(acquire(request, &format!("pay/{request}"))).await;
        client.granted().await;
    }
    let set = || Command::SetScope { scope: prefix() };
    let unfinished = world.fake.commit(set(), Tenure::new(1)).outcome;
    assert_eq!(unfinished, Err(Rejection::Unfinished { scope: prefix() }));

    let consensus = &**world.hub.consensus();
    let committed = propose_until_finished(consensus, &world.runtime, set()).await.unwrap();
    assert!(committed.outcome.is_ok(), "{committed:?}");
}
