//! Keepalives of several sessions in one call (DESIGN §5.1, §5.2, I6, I35).

use holdfast_core::{Command, Deed, Label, LockName, SessionId, Tenure};
use holdfast_proto::v1::{
    ClosedHold, KeepAliveManyRequest, KeepAliveManyResponse, OpenSessionRequest, RefusalReason,
    SessionKey,
};

use super::calls::{refusal, unavailable};
use super::*;
use crate::session::error::CallError;

impl World {
    async fn keep_many(&self, keys: &[SessionKey]) -> Result<KeepAliveManyResponse, CallError> {
        let asked = KeepAliveManyRequest { sessions: keys.to_vec() };
        self.hub.keep_alive_many(&asked, &Caller::default()).await
    }

    async fn keys(&self, count: usize) -> Vec<SessionKey> {
        let mut keys = Vec::new();
        for _ in 0..count {
            keys.push(self.key().await);
        }
        keys
    }

    fn done_outside(&self, deed: Deed) {
        let command = Command::By { caller: Caller::default(), deed };
        self.fake.commit(command, Tenure::new(1)).outcome.unwrap();
    }
}

/// What each session was told: its tokens, or why it was not renewed.
fn told(answer: KeepAliveManyResponse) -> Vec<Result<Vec<u64>, RefusalReason>> {
    let told = |session: holdfast_proto::v1::KeptSession| match session.refused {
        Some(refusal) => Err(refusal.reason()),
        None => Ok(session.tokens),
    };
    answer.sessions.into_iter().map(told).collect()
}

#[tokio::test(start_paused = true)]
async fn one_call_renews_the_leases_of_many_sessions_and_of_no_other() {
    let world = World::new().await;
    let keys = world.keys(5).await;
    world.runtime.sleep(NEARLY_TTL).await;

    let answer = world.keep_many(&keys[..3]).await.unwrap();
    assert!(answer.sessions.iter().all(|session| session.ttl_ms == 10_000));
    assert_eq!(told(answer), vec![Ok(vec![]); 3]);
    world.runtime.sleep(NEARLY_TTL).await;
    let lives: Vec<_> = keys.iter().map(|key| world.lives(key)).collect();
    assert_eq!(lives, [true, true, true, false, false]);
}

/// §5.1: from the receipt of the call, however long its round takes; §5.2: none is due meanwhile.
#[tokio::test(start_paused = true)]
async fn a_call_for_many_renews_from_its_receipt_by_a_round_of_its_tenure() {
    let world = World::new().await;
    let keys = world.keys(2).await;
    world.fake.set_quorum(false);
    unavailable(world.keep_many(&keys).await);
    world.fake.set_quorum(true);
    world.fake.confirm_as(2);
    unavailable(world.keep_many(&keys).await);
    world.fake.confirm_as(1);
    assert_eq!(world.hub.metrics().keepalives_acknowledged.get(), 0, "nothing was renewed");

    world.runtime.sleep(NEARLY_TTL).await;
    let came_in = world.runtime.clock.now();
    world.fake.hold_confirms();
    let (answer, ()) = tokio::join!(world.keep_many(&keys), async {
        world.runtime.sleep(Duration::from_secs(2)).await;
        world.fake.let_confirms_go();
    });
    assert_eq!(told(answer.unwrap()), vec![Ok(vec![]); 2]);
    while world.lives(&keys[0]) {
        world.runtime.sleep(Duration::from_millis(10)).await;
    }
    let lived = world.runtime.clock.now().saturating_since(came_in);
    assert!(lived > TTL + MARGIN && lived < TTL + MARGIN + Duration::from_millis(200), "{lived:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_renewed_does_not_keep_the_others_from_it() {
    let world = World::new().await;
    let mut keys = world.keys(4).await;
    keys[0].secret = Bytes::from_static(&[7; 16]);
    keys[1].session_id = 99;
    let session = SessionId::new(keys[2].session_id);
    let reason = Label::parse("on fire").unwrap();
    world.done_outside(Deed::EndSession { session, reason, now: false });
    world.runtime.sleep(NEARLY_TTL).await;

    let answer = world.keep_many(&keys).await.unwrap();
    let unknown = Err(RefusalReason::SessionUnknown);
    let revoked = Err(RefusalReason::SessionRevoked);
    assert_eq!(told(answer), [unknown.clone(), unknown, revoked, Ok(vec![])]);
    world.runtime.sleep(NEARLY_TTL).await;
    assert!(!world.lives(&keys[2]), "nothing renews it (I35)");
    assert!(world.lives(&keys[3]));
}

/// A client takes the answer only if it relies on nothing else (I6, I35).
#[tokio::test(start_paused = true)]
async fn the_answer_names_what_each_session_holds_and_which_of_it_is_closed() {
    let world = World::new().await;
    let open = OpenSessionRequest { knows_closed: true, ..OpenSessionRequest::default() };
    let opened = world.hub.open_session(&open, &Caller::default()).await.unwrap();
    let keys = [opened.session.unwrap(), world.key().await];
    let first = world.acquired(&keys[0], 1, "one").await.token;
    let second = world.acquired(&keys[0], 2, "two").await.token;
    let other = world.acquired(&keys[1], 1, "three").await.token;

    let answer = world.keep_many(&keys).await.unwrap();
    assert!(answer.index > 0);
    assert_eq!(told(answer), [Ok(vec![first, second]), Ok(vec![other])]);
    world.give_back(&keys[1], other).await.unwrap();
    let (lock, reason) = (LockName::parse("one").unwrap(), Label::parse("on fire").unwrap());
    world.done_outside(Deed::CloseHolds { lock, token: None, reason, now: false });

    let answer = world.keep_many(&keys).await.unwrap();
    let closed = ClosedHold { token: first, reason: "on fire".to_owned(), lasted_too_long: false };
    assert_eq!(answer.sessions[0].closed, [closed]);
    assert_eq!(told(answer)[1], Ok(vec![]), "what was given back is not held");
}

/// I27.
#[tokio::test(start_paused = true)]
async fn a_call_for_too_many_sessions_or_holds_is_refused_by_the_limits_name() {
    let world = World::new().await;
    let key = world.key().await;
    let limit = refusal(world.keep_many(&vec![key.clone(); 257]).await);
    assert_eq!((limit.reason(), &*limit.limit), (RefusalReason::Limit, "sessions_kept_together"));
    for nth in 1..=65 {
        world.acquired(&key, nth, &format!("lock/{nth}")).await;
    }
    let answer = world.keep_many(&vec![key; 2]).await.unwrap();
    assert_eq!(told(answer), vec![Err(RefusalReason::Limit); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_server_says_that_it_takes_keepalives_of_many() {
    let world = World::new().await;
    let mut client = world.connect();
    client.send(open(TTL)).await;
    assert!(client.opened().await.keeps_many);
}
