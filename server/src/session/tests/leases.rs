//! DESIGN §5.1–5.3 and §5.8, sentence by sentence.

use holdfast_core::{Command, SessionId, Tenure};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::{KeptAlive, LostReason, SessionEnded};

use super::*;

const QUARTER: Duration = Duration::from_millis(2_500);

fn expired() -> Body {
    Body::SessionEnded(SessionEnded {
        reason: LostReason::SessionExpired.into(),
        ..SessionEnded::default()
    })
}

/// How long from now until the client learns that its session expired.
async fn until_expired(world: &World, client: &mut Client) -> Duration {
    let before = world.runtime.clock.now();
    assert_eq!(client.next().await, expired());
    world.runtime.clock.now().saturating_since(before)
}

fn assert_on_time(after: Duration, planned: Duration) {
    assert!(after > planned, "expired after {after:?}, before {planned:?}: too early");
    let late = after.checked_sub(planned).unwrap();
    assert!(late <= Duration::from_millis(100), "expired {late:?} late");
}

/// I6, I7.
#[tokio::test(start_paused = true)]
async fn a_silent_session_expires_after_its_ttl_and_margin_and_soon_after() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;

    assert_on_time(until_expired(&world, &mut client).await, TTL + MARGIN);
}

#[tokio::test(start_paused = true)]
async fn an_expiry_hands_the_lock_to_the_next() {
    let world = World::new().await;
    let (mut dead, _) = world.session().await;
    dead.send(acquire(1, "jobs")).await;
    dead.granted().await;
    world.runtime.sleep(QUARTER).await;
    let (mut waiter, _) = world.session().await;
    waiter.send(acquire(1, "jobs")).await;
    waiter.next().await;

    waiter.granted().await;

    assert!(matches!(dead.next().await, Body::Contended(_)));
    assert!(matches!(dead.next().await, Body::Lost(_)));
    assert_eq!(dead.next().await, expired());
}

#[tokio::test(start_paused = true)]
async fn a_keepalive_renews_from_the_moment_it_came_in() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.runtime.sleep(3 * QUARTER).await;
    world.fake.hold_confirms();
    client.send(keep_alive(1)).await;
    client.expect_silence(Duration::from_secs(1)).await;
    world.fake.let_confirms_go();
    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );

    let after = until_expired(&world, &mut client).await;
    assert_on_time(after + Duration::from_secs(1), TTL + MARGIN);
}

/// §5.1: a round that began before the keepalive came in proves nothing about the time after.
#[tokio::test(start_paused = true)]
async fn a_keepalive_waits_for_a_round_begun_after_it_came_in() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.hold_confirms();
    client.send(keep_alive(1)).await;
    world.settle().await;
    client.send(keep_alive(2)).await;
    world.settle().await;
    // The round of the first keepalive ends; before the next can end, the quorum is gone.
    world.fake.set_quorum(false);
    world.fake.let_confirms_go();

    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );
    client.expect_silence(TTL).await;
    world.fake.set_quorum(true);
    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 2, scopes: Vec::new(), ..KeptAlive::default() })
    );
}

#[tokio::test(start_paused = true)]
async fn a_keepalive_is_not_acknowledged_without_a_quorum() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.set_quorum(false);
    client.send(keep_alive(1)).await;

    client.expect_silence(TTL).await;
}

/// §5.1: the node was elected in tenure 2 and has not applied an entry of its own yet; a round
/// confirms the new tenure, the leases are those of the old.
#[tokio::test(start_paused = true)]
async fn a_keepalive_is_not_acknowledged_by_a_round_of_another_tenure() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.confirm_as(2);
    client.send(keep_alive(1)).await;

    client.expect_silence(TTL).await;
}

/// §5.1: no client is served before the tenure's own first entry is applied.
#[tokio::test(start_paused = true)]
async fn nobody_is_attached_before_the_tenures_own_entry_is_applied() {
    let world = World::new().await;
    let (_client, ticket) = world.session().await;
    world.fake.follow(None);
    world.fake.confirm_as(2);
    world.settle().await;

    let (rest, _) = world.resume(&ticket).await.rest().await;

    assert!(matches!(&rest[..], [Body::Redirect(_)]), "{rest:?}");
}

/// §5.1, "a session that is alive in that state": the session ended while its keepalive waited.
#[tokio::test(start_paused = true)]
async fn a_keepalive_of_a_session_that_ended_meanwhile_is_not_acknowledged() {
    let world = World::new().await;
    let (client, ticket) = world.session().await;
    world.fake.hold_confirms();
    client.send(keep_alive(1)).await;
    world.settle().await;
    let session = SessionId::new(ticket.session_id);
    world.fake.commit(Command::CloseSession { session }, Tenure::new(1));
    world.fake.let_confirms_go();

    let (rest, _) = client.rest().await;

    assert!(matches!(&rest[..], [Body::SessionEnded(_)]), "{rest:?}");
    assert_eq!(world.hub.metrics().keepalives_acknowledged.get(), 0);
}

/// §5.2: the expiry is in the log and not committed yet when the client's next keepalive comes in.
#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_while_an_expiry_is_under_way() {
    let world = World::new().await;
    let (mut client, ticket) = world.session().await;
    world.fake.hold_commits();
    client.expect_silence(TTL + MARGIN + Duration::from_millis(100)).await;
    assert_eq!(world.fake.held_back().len(), 1);

    client.send(keep_alive(1)).await;
    client.expect_silence(Duration::from_secs(1)).await;
    let (rest, end) = world.resume(&ticket).await.rest().await;
    assert_eq!(rest, []);
    assert!(matches!(end, Err(StreamError::Unavailable { .. })));

    world.fake.let_commits_go();
    assert_eq!(client.next().await, expired());
}

/// §5.2: it is unknown whether the first entry will still be committed, so only an outcome lets the
/// session be acknowledged again; the expiry is proposed until there is one.
#[tokio::test(start_paused = true)]
async fn an_expiry_of_unknown_fate_is_proposed_again_and_nothing_acknowledged_meanwhile() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.hold_commits();
    client.expect_silence(TTL + MARGIN + Duration::from_millis(100)).await;
    let lost = world.fake.give_up_held_back();
    client.send(keep_alive(1)).await;
    client.expect_silence(Duration::from_millis(300)).await;
    assert_eq!(world.fake.held_back(), lost);

    for command in lost {
        world.fake.commit(command, Tenure::new(1));
    }
    assert_eq!(client.next().await, expired());
    world.fake.let_commits_go();
    world.settle().await;
    assert_eq!(world.hub.metrics().keepalives_acknowledged.get(), 0);
}

/// Waits until the expirer has seen the deadline pass of a session that was renewed just now, and asks
/// its quorum whether it may propose.
pub(super) async fn until_expiry_is_confirmed(world: &World) {
    world.runtime.sleep(TTL).await;
    world.fake.hold_confirms();
    world.runtime.sleep(MARGIN + Duration::from_millis(30)).await;
}

/// §5.2: the expirer's round is answered, that of the keepalive is still under way.
#[tokio::test(start_paused = true)]
async fn a_session_whose_keepalive_waits_for_its_round_is_not_expired() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    until_expiry_is_confirmed(&world).await;
    client.send(keep_alive(1)).await;
    world.settle().await;
    world.fake.let_one_confirm_go();
    client.expect_silence(Duration::from_secs(1)).await;
    world.fake.let_confirms_go();

    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );
}

/// §5.2: a resume that waits for its round keeps its session from becoming due; one with a wrong secret
/// does not.
#[tokio::test(start_paused = true)]
async fn only_a_resume_with_the_right_secret_keeps_a_session_from_expiring() {
    for (right, survives) in [(true, true), (false, false)] {
        let world = World::new().await;
        let (gone, mut ticket) = world.session().await;
        drop(gone);
        if !right {
            ticket.secret = Bytes::from_static(&[7; 16]);
        }
        until_expiry_is_confirmed(&world).await;
        let mut client = world.resume(&ticket).await;
        world.settle().await;
        world.fake.let_one_confirm_go();
        client.expect_silence(Duration::from_secs(1)).await;
        assert_eq!(world.hub.metrics().expiries.get(), u64::from(!survives));
        world.fake.let_confirms_go();

        let answer = client.next().await;
        assert_eq!(matches!(answer, Body::Opened(_)), survives, "{answer:?}");
    }
}

/// §5.1, I6, I23: whoever takes a session up proves that it leads first, by a round of its own. Without the rule a node that was cut off
/// renews a session that the next leader ends.
#[tokio::test(start_paused = true)]
async fn a_resume_is_answered_after_its_own_round_and_without_the_rule_at_once() {
    for is_broken in [false, true] {
        let world = World::new().await;
        let (gone, ticket) = world.session().await;
        drop(gone);
        world.fake.hold_confirms();
        arm(is_broken.then_some(Mutant::ResumeWithoutQuorum));
        let mut client = world.resume(&ticket).await;
        let early = world.runtime.timeout(Duration::from_secs(1), client.next()).await;
        arm(None);
        assert_eq!(early.is_ok(), is_broken, "{early:?}");
        if !is_broken {
            world.fake.let_confirms_go();
            let answer = client.next().await;
            assert!(matches!(answer, Body::Opened(_)), "{answer:?}");
        }
    }
}

/// §5.3: the session's last keepalive came in just before the old leader died.
#[tokio::test(start_paused = true)]
async fn a_new_tenure_gives_every_session_a_full_ttl_and_margin() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    world.runtime.sleep(3 * QUARTER).await;
    world.fake.follow(None);
    world.settle().await;
    drop(gone);
    world.runtime.sleep(2 * QUARTER).await;
    world.fake.lead(2);

    world.runtime.sleep(TTL + MARGIN).await;
    assert_eq!(world.hub.metrics().expiries.get(), 0);
    world.runtime.sleep(Duration::from_millis(100)).await;
    assert_eq!(world.hub.metrics().expiries.get(), 1);
    let (rest, _) = world.resume(&ticket).await.rest().await;
    assert!(matches!(&rest[..], [Body::Refused(_)]));
}

/// §5.2: the deadlines that the deposed leader knew are void.
#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_lead_expires_nobody() {
    let world = World::new().await;
    let (_client, _) = world.session().await;
    world.fake.follow(None);

    world.runtime.sleep(10 * TTL).await;

    assert_eq!(world.hub.metrics().expiries.get(), 0);
}

/// §5.8: the client sends its keepalives all the time; the store cannot answer for a minute.
#[tokio::test(start_paused = true)]
async fn an_outage_ends_no_session_that_is_heard_all_along() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.fake.set_quorum(false);
    for seq in 1..=24 {
        client.send(keep_alive(seq)).await;
        client.expect_silence(QUARTER).await;
    }
    assert_eq!(world.fake.held_back(), []);
    world.fake.set_quorum(true);

    let outage_over = world.runtime.clock.now();
    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 24, scopes: Vec::new(), ..KeptAlive::default() })
    );
    assert_eq!(client.next().await, expired());
    // The outage began right after Open: nothing of the lease was used up before it.
    let after = world.runtime.clock.now().saturating_since(outage_over);
    assert!(after > TTL + MARGIN && after < TTL + Duration::from_secs(1), "after {after:?}");
}

/// §5.8 for a client whose stream broke with the outage: after it the client has as much of its lease
/// left as before.
#[tokio::test(start_paused = true)]
async fn an_outage_takes_nothing_off_the_lease_of_a_client_that_is_away() {
    let world = World::new().await;
    let (gone, ticket) = world.session().await;
    drop(gone);
    world.runtime.sleep(NEARLY_TTL).await;
    world.fake.set_quorum(false);
    let (_, end) = world.resume(&ticket).await.rest().await;
    assert!(matches!(end, Err(StreamError::Unavailable { .. })));
    world.runtime.sleep(10 * TTL).await;
    assert_eq!(world.hub.metrics().expiries.get(), 0);
    world.fake.set_quorum(true);
    world.settle().await;

    world.resume(&ticket).await.opened().await;
}

/// §5.2: the leader was paused past the deadline, and the keepalive sent meanwhile takes a moment to be
/// read.
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_paused_handles_what_arrived_before_it_expires_anybody() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    tokio::time::advance(3 * TTL).await;
    world.runtime.sleep(Duration::from_millis(100)).await;
    client.send(keep_alive(1)).await;

    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );
    assert_eq!(world.hub.metrics().expiries.get(), 0);
}

/// All members were paused for longer than the lease, as when their machines are copied or suspended.
async fn after_a_long_pause() -> (World, Client) {
    let world = World::new().await;
    let (client, _) = world.session().await;
    world.runtime.sleep(TTL / 4).await;
    tokio::time::advance(5 * TTL).await;
    world.runtime.sleep(TTL / 2).await;
    (world, client)
}

/// A session that was healthy before has as much time left as it had then.
#[tokio::test(start_paused = true)]
async fn a_pause_longer_than_the_lease_takes_nothing_off_it() {
    let (world, mut client) = after_a_long_pause().await;
    client.send(keep_alive(1)).await;

    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );
    assert_eq!(world.hub.metrics().expiries.get(), 0);
}

/// The rule taken away.
#[tokio::test(start_paused = true)]
async fn a_pause_that_counts_ends_the_session() {
    arm(Some(Mutant::PauseCountsForLeases));
    let (_world, mut client) = after_a_long_pause().await;
    assert_eq!(client.next().await, expired());
    arm(None);
}

/// I7: and no more than that.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_silent_after_a_pause_expires_when_the_rest_of_its_lease_is_over() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    world.runtime.sleep(TTL / 4).await;
    tokio::time::advance(5 * TTL).await;

    let after = until_expired(&world, &mut client).await;

    let left = TTL * 3 / 4 + MARGIN;
    assert!(after >= left.saturating_sub(Duration::from_millis(300)), "{after:?}");
    assert!(after <= left + Duration::from_millis(600), "{after:?}");
}

/// The pause ends right at a deadline: no timer is late.
#[tokio::test(start_paused = true)]
async fn a_pause_that_no_timer_noticed_costs_nobody_its_session() {
    let world = World::new().await;
    let (mut client, _) = world.session().await;
    tokio::time::advance(TTL + MARGIN).await;
    world.runtime.sleep(Duration::from_millis(10)).await;
    client.send(keep_alive(1)).await;

    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );
}

/// The leader is paused while its quorum answers: a session whose deadline passed meanwhile had no
/// chance to renew, another whose deadline passed before had one.
#[tokio::test(start_paused = true)]
async fn a_pause_within_the_expirers_own_round_costs_nobody_else_its_session() {
    let world = World::new().await;
    let (mut dead, _) = world.session().await;
    world.runtime.sleep(Duration::from_secs(1)).await;
    let (mut client, _) = world.session().await;
    world.runtime.sleep(NEARLY_TTL).await;
    world.fake.hold_confirms();
    world.runtime.sleep(MARGIN + Duration::from_millis(30)).await;
    world.fake.let_confirms_go();
    tokio::time::advance(TTL).await;
    world.runtime.sleep(Duration::from_millis(100)).await;
    client.send(keep_alive(1)).await;

    assert_eq!(dead.next().await, expired());
    assert_eq!(
        client.next().await,
        Body::KeptAlive(KeptAlive { seq: 1, scopes: Vec::new(), ..KeptAlive::default() })
    );
}

/// Many sessions end at once: all are expired, in time, in more than one batch.
#[tokio::test(start_paused = true)]
async fn three_thousand_sessions_that_die_at_once_all_expire_in_time() {
    let world = World::new().await;
    for _ in 0..3_000 {
        let (gone, _) = world.session().await;
        drop(gone);
    }
    world.runtime.sleep(TTL + MARGIN + Duration::from_millis(100)).await;

    assert_eq!(world.hub.metrics().expiries.get(), 3_000);
}
