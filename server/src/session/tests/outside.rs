//! What is ended from outside passes on when its client lets go, or the leader's deadline has passed, and
//! never before (DESIGN §14, I35).

use holdfast_core::{
    Command, Deed, FencingToken, Identity, Item, Label, LockName, Need, RequestId, SessionId,
    Tenure,
};
use holdfast_mutants::{Mutant, arm};
use holdfast_proto::v1::{
    AcquireRequest, ClosedHold, Ended, KeptAlive, LostReason, OpenSessionRequest, RefusalReason,
    SessionEnded, SessionKey, State, request_state,
};

use super::*;
use crate::session::error::CallError;
use crate::session::outside::Ending;

const REASON: &str = "on fire";

fn by_somebody(deed: Deed) -> Command {
    Command::By { caller: Caller::default(), deed }
}

impl World {
    fn end(&self, session: u64) {
        let (session, reason) = (SessionId::new(session), Label::parse(REASON).unwrap());
        let deed = Deed::EndSession { session, reason, now: false };
        self.fake.commit(by_somebody(deed), Tenure::new(1)).outcome.unwrap();
    }

    fn close(&self, lock: &str) {
        let (lock, reason) = (LockName::parse(lock).unwrap(), Label::parse(REASON).unwrap());
        let deed = Deed::CloseHolds { lock, token: None, reason, now: false };
        self.fake.commit(by_somebody(deed), Tenure::new(1)).outcome.unwrap();
    }

    /// An open session whose client knows closed holds.
    async fn knowing(&self) -> (Client, Ticket) {
        let mut client = self.connect();
        let Ask::Open(open) = open(TTL) else { unreachable!() };
        client.send(Ask::Open(Open { knows_closed: true, ..open })).await;
        let opened = client.opened().await;
        let ticket = Ticket { session_id: opened.session_id, secret: opened.secret };
        (client, ticket)
    }

    /// A client that waits for a lock, and when it was granted it.
    async fn waiter(&self, name: &str) -> Client {
        let (mut waiter, _) = self.session().await;
        waiter.send(acquire(1, name)).await;
        assert!(matches!(waiter.next().await, Body::Queued(_)));
        waiter
    }
}

fn revoked() -> Body {
    Body::SessionEnded(SessionEnded { reason: LostReason::Revoked.into(), why: REASON.to_owned() })
}

fn closed(token: u64) -> Vec<ClosedHold> {
    vec![ClosedHold { token, reason: REASON.to_owned(), lasted_too_long: false }]
}

/// Waits for the grant; returns how long it took since `since`. The waiter keeps its session alive.
async fn granted_after(
    world: &World,
    waiter: &mut Client,
    since: holdfast_runtime::Instant,
) -> Duration {
    for seq in 1.. {
        waiter.send(keep_alive(seq)).await;
        let wait = world.runtime.timeout(Duration::from_secs(2), async {
            loop {
                match waiter.next().await {
                    Body::KeptAlive(_) => {}
                    other => break other,
                }
            }
        });
        if let Ok(came) = wait.await {
            assert!(matches!(came, Body::Granted(_)), "{came:?}");
            break;
        }
    }
    world.runtime.clock.now().saturating_since(since)
}

fn assert_at_the_deadline(after: Duration, planned: Duration) {
    assert!(after > planned, "passed on after {after:?}, before {planned:?}: too early");
    assert!(after < planned + Duration::from_millis(100), "passed on only after {after:?}");
}

/// A keepalive that waits for its round when the session is ended neither renews it nor puts its end off.
#[tokio::test(start_paused = true)]
async fn a_revoked_session_is_told_at_once_and_passes_on_at_its_deadline() {
    let world = World::new().await;
    let (mut holder, ticket) = world.knowing().await;
    let opened = world.runtime.clock.now();
    holder.send(acquire(1, "jobs")).await;
    holder.granted().await;
    let mut waiter = world.waiter("jobs").await;
    assert!(matches!(holder.next().await, Body::Contended(_)));
    world.runtime.sleep(TTL / 2).await;
    world.fake.hold_confirms();
    holder.send(keep_alive(1)).await;
    world.settle().await;

    world.end(ticket.session_id);
    assert_eq!(holder.rest().await, (vec![revoked()], Ok(())));
    world.fake.let_confirms_go();

    let mut again = world.resume_in_pages(&ticket).await;
    assert_eq!(again.next().await, revoked(), "no resume renews it");
    let after = granted_after(&world, &mut waiter, opened).await;
    assert_at_the_deadline(after, TTL + MARGIN);
}

/// From the unary calls, too.
#[tokio::test(start_paused = true)]
async fn nothing_but_its_ends_is_taken_from_a_revoked_session() {
    let world = World::new().await;
    let key = world.key().await;
    let held = world.acquired(&key, 1, "jobs").await;
    world.end(key.session_id);

    let refused = world.keep_alive(&key).await.unwrap_err();
    let CallError::Refused(refused) = refused else { panic!("not refused: {refused:?}") };
    assert_eq!(refused.reason(), RefusalReason::SessionRevoked);
    assert!(refused.message.ends_with(REASON), "{refused:?}");
    let other = world.key().await;
    let asked = |key: &SessionKey, request_id| {
        let Ask::Acquire(acquire) = acquire(request_id, "jobs") else { unreachable!() };
        let (session, acquire) = (Some(key.clone()), Some(acquire));
        AcquireRequest { session, acquire, ..AcquireRequest::default() }
    };
    for request_id in [1, 2] {
        let refused = world.hub.acquire(asked(&key, request_id)).await.unwrap_err();
        assert!(matches!(refused, CallError::Refused(_)), "{refused:?}");
    }
    let waiting = world.begin_acquire(asked(&other, 1)).await;
    world.give_back(&key, held.token).await.unwrap();
    world.told(waiting).await.unwrap();
}

/// Every answer that renews the session names the hold, and the State of a resume says that it is over.
#[tokio::test(start_paused = true)]
async fn a_closed_hold_is_named_with_each_renewal_until_it_is_released() {
    let world = World::new().await;
    let (mut holder, ticket) = world.knowing().await;
    holder.send(acquire(1, "jobs")).await;
    let token = holder.granted().await.token;
    let mut waiter = world.waiter("jobs").await;
    assert!(matches!(holder.next().await, Body::Contended(_)));

    world.close("jobs");
    let Body::HoldsClosed(told) = holder.next().await else { panic!("not told") };
    assert_eq!(told.closed, closed(token));
    holder.send(keep_alive(1)).await;
    let kept = KeptAlive { seq: 1, closed: closed(token), ..KeptAlive::default() };
    assert_eq!(holder.next().await, Body::KeptAlive(kept));

    let mut again = world.resume(&ticket).await;
    assert_eq!(again.opened().await.closed, closed(token));
    let Body::State(State { requests, .. }) = again.next().await else { panic!("no State") };
    let ended = request_state::State::Ended(Ended { token });
    assert_eq!(requests[0].state, Some(ended));
    waiter.expect_silence(Duration::from_secs(1)).await;

    again.send(release(token)).await;
    assert!(matches!(again.next().await, Body::Released(_)));
    waiter.granted().await;
    again.send(keep_alive(2)).await;
    let kept = KeptAlive { seq: 2, ..KeptAlive::default() };
    assert_eq!(again.next().await, Body::KeptAlive(kept));
}

/// The session lives on, however often it is renewed: only the hold ends, at the deadline that the session
/// had when it was closed.
#[tokio::test(start_paused = true)]
async fn a_closed_hold_ends_at_the_deadline_that_its_session_had() {
    let world = World::new().await;
    let (mut holder, _) = world.knowing().await;
    let opened = world.runtime.clock.now();
    holder.send(acquire(1, "jobs")).await;
    let token = holder.granted().await.token;
    let mut waiter = world.waiter("jobs").await;
    assert!(matches!(holder.next().await, Body::Contended(_)));
    world.close("jobs");
    assert!(matches!(holder.next().await, Body::HoldsClosed(_)));
    for seq in 1..4 {
        world.runtime.sleep(Duration::from_secs(2)).await;
        holder.send(keep_alive(seq)).await;
        assert!(matches!(holder.next().await, Body::KeptAlive(_)));
        waiter.send(keep_alive(seq + 100)).await;
        assert!(matches!(waiter.next().await, Body::KeptAlive(_)));
    }

    let after = granted_after(&world, &mut waiter, opened).await;
    assert_at_the_deadline(after, TTL + MARGIN);
    let Body::Lost(lost) = holder.next().await else { panic!("not told of the end") };
    assert_eq!((lost.token, lost.reason()), (token, LostReason::Forced));
    holder.send(keep_alive(9)).await;
    let kept = KeptAlive { seq: 9, closed: closed(token), ..KeptAlive::default() };
    assert_eq!(holder.next().await, Body::KeptAlive(kept), "it was not released yet");
}

/// The leader before may have acknowledged a keepalive just before its tenure ended (§5.3).
#[tokio::test(start_paused = true)]
async fn a_new_leader_waits_a_full_lease_before_it_ends_a_closed_hold() {
    let world = World::new().await;
    let (mut holder, _) = world.knowing().await;
    holder.send(acquire(1, "jobs")).await;
    let token = holder.granted().await.token;
    world.close("jobs");
    world.runtime.sleep(NEARLY_TTL).await;
    world.fake.follow(None);
    world.settle().await;
    world.fake.lead(2);
    let begun = world.runtime.clock.now();
    world.settle().await;

    let mut waiter = world.waiter("jobs").await;
    let after = granted_after(&world, &mut waiter, begun).await;
    assert_at_the_deadline(after, TTL + MARGIN);
    let mut current = true;
    world.hub.consensus().read(&mut |table, _| {
        let name = LockName::parse("jobs").unwrap();
        current = table.grant_is_current(&name, FencingToken::from_raw(token));
    });
    assert!(!current);
}

/// A client of an older release could not be told of one hold.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_know_closed_holds_loses_its_session() {
    let world = World::new().await;
    let (mut holder, _) = world.session().await;
    holder.send(acquire(1, "jobs")).await;
    holder.granted().await;
    world.close("jobs");
    assert_eq!(holder.rest().await, (vec![revoked()], Ok(())));
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_keepalive_call_names_closed_holds() {
    let world = World::new().await;
    let open = OpenSessionRequest { knows_closed: true, ..OpenSessionRequest::default() };
    let opened = world.hub.open_session(&open, &Caller::default()).await.unwrap();
    let key = opened.session.unwrap();
    let token = world.acquired(&key, 1, "jobs").await.token;
    assert_eq!(world.keep_alive(&key).await.unwrap().closed, []);
    world.close("jobs");
    assert_eq!(world.keep_alive(&key).await.unwrap().closed, closed(token));
    arm(Some(Mutant::ClosedNotNamed));
    assert_ne!(world.keep_alive(&key).await.unwrap().closed, closed(token), "without the rule");
    arm(None);
    world.give_back(&key, token).await.unwrap();
    assert_eq!(world.keep_alive(&key).await.unwrap().closed, []);
}

/// All its sessions in one entry, and no other's.
#[tokio::test(start_paused = true)]
async fn an_identity_that_is_cut_off_loses_all_its_sessions() {
    let world = World::new().await;
    let (first, _) = world.knowing().await;
    let (second, _) = world.knowing().await;
    let reason = Label::parse(REASON).unwrap();
    let deed = Deed::CutOff { identity: Identity::default(), reason, now: false };
    world.fake.commit(by_somebody(deed), Tenure::new(1)).outcome.unwrap();
    for client in [first, second] {
        assert_eq!(client.rest().await, (vec![revoked()], Ok(())));
    }
}

/// One command closes a few holders only. Of more each is closed by its own.
#[tokio::test(start_paused = true)]
async fn every_holder_of_a_lock_with_many_is_closed() {
    const READERS: u64 = 300;
    let world = World::new().await;
    let tenure = Tenure::new(1);
    let (lock, reason) = (LockName::parse("config").unwrap(), Label::parse(REASON).unwrap());
    world.fake.commit(Command::LimitWork { steps: 100 }, tenure);
    for session in 1..=READERS {
        let label = Label::parse("reader").unwrap();
        let open = Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [0; 32] };
        world.fake.commit(open, tenure).outcome.unwrap();
        let read = Command::Acquire {
            session: SessionId::new(session),
            done_below: RequestId::new(0),
            request: RequestId::new(1),
            items: vec![Item::shared(lock.clone())],
            need: Need::All,
            wait: true,
        };
        world.fake.commit(read, tenure).outcome.unwrap();
    }
    let ending = || Ending { reason: reason.clone(), now: true };
    let all = (lock.clone(), None);
    let (_, closed) = world.hub.close_holds(&Caller::default(), all, ending()).await.unwrap();
    assert_eq!(closed.len() as u64, READERS);
    let mut held = true;
    world.hub.consensus().read(&mut |table, _| held = table.lock(&lock).is_some());
    assert!(!held);
    let none = (lock, None);
    let refused = world.hub.close_holds(&Caller::default(), none, ending()).await.unwrap_err();
    let CallError::Refused(refused) = refused else { panic!("not refused: {refused:?}") };
    assert_eq!(refused.reason(), RefusalReason::NotHeld);
}
