//! Sessions that live by unary calls.

use std::future::Future;

use holdfast_core::{Caller, Command, FencingToken, RequestId, SessionId, Tenure};
use holdfast_proto::v1::{
    AcquireRequest, AcquireResponse, Cancel, CancelRequest, CloseSessionRequest, KeepAliveRequest,
    KeepAliveResponse, OpenSessionRequest, Refusal, RefusalReason, ReleaseRequest, Released,
    SessionKey, SetValueRequest, Value, cancelled,
};

use super::*;
use crate::session::error::CallError;

/// A call that is under way; the call goes on when this is dropped.
pub(super) type Answer<T> = oneshot::Receiver<Result<T, CallError>>;

impl World {
    /// A session opened by a call, with a lease of [`TTL`].
    pub(super) async fn key(&self) -> SessionKey {
        let ttl_ms = Some(u64::try_from(TTL.as_millis()).unwrap());
        let open = OpenSessionRequest {
            ttl_ms,
            label: "a-call".to_owned(),
            ..OpenSessionRequest::default()
        };
        let opened = self.hub.open_session(&open, &Caller::default()).await.unwrap();
        assert_eq!((opened.ttl_ms, opened.cluster_id), (10_000, CLUSTER));
        opened.session.unwrap()
    }

    /// Lets a call run until it waits for something.
    async fn begin<T, F>(&self, call: impl FnOnce(Arc<Hub>) -> F) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        let (tell, answer) = oneshot::channel();
        let call = call(self.hub.clone());
        let run = async move {
            let _ = tell.send(call.await);
        };
        self.runtime.spawn("call", run).detach();
        self.settle().await;
        answer
    }

    /// The answer to a call that was begun, within a minute.
    pub(super) async fn told<T: std::fmt::Debug>(&self, answer: Answer<T>) -> Result<T, CallError> {
        let answer = self.runtime.timeout(Duration::from_mins(1), answer).await;
        answer.expect("an answer comes").unwrap()
    }

    pub(super) async fn begin_acquire(&self, asked: AcquireRequest) -> Answer<AcquireResponse> {
        self.begin(|hub| async move { hub.acquire(asked).await }).await
    }

    /// Acquires a lock that is free.
    pub(super) async fn acquired(&self, key: &SessionKey, request_id: u64, name: &str) -> Granted {
        let response = self.hub.acquire(asked(key, request_id, name)).await.unwrap();
        response.granted.unwrap()
    }

    pub(super) async fn give_back(
        &self,
        key: &SessionKey,
        token: u64,
    ) -> Result<Released, CallError> {
        let release = Some(Release { token, ..Release::default() });
        let asked = ReleaseRequest { session: Some(key.clone()), done_below: 0, release };
        self.hub.release(asked).await.map(|response| response.released.unwrap())
    }

    async fn cancel(&self, key: &SessionKey, request_id: u64) -> cancelled::Was {
        let cancel = Some(Cancel { request_id });
        let asked = CancelRequest { session: Some(key.clone()), done_below: 0, cancel };
        self.hub.cancel(asked).await.unwrap().cancelled.unwrap().was()
    }

    pub(super) async fn keep_alive(
        &self,
        key: &SessionKey,
    ) -> Result<KeepAliveResponse, CallError> {
        self.hub.keep_alive(&KeepAliveRequest { session: Some(key.clone()) }).await
    }

    pub(super) async fn begin_keep_alive(&self, key: &SessionKey) -> Answer<KeepAliveResponse> {
        let asked = KeepAliveRequest { session: Some(key.clone()) };
        self.begin(|hub| async move { hub.keep_alive(&asked).await }).await
    }

    /// Whether the session is open.
    pub(super) fn lives(&self, key: &SessionKey) -> bool {
        let mut lives = false;
        let session = SessionId::new(key.session_id);
        self.hub.consensus.read(&mut |table, _| lives = table.session(session).is_some());
        lives
    }

    fn calls_that_wait(&self) -> i64 {
        self.hub.metrics().waiting_calls.get()
    }
}

pub(super) fn asked(key: &SessionKey, request_id: u64, name: &str) -> AcquireRequest {
    let Ask::Acquire(acquire) = acquire(request_id, name) else { unreachable!() };
    let session = Some(key.clone());
    AcquireRequest { session, done_below: 0, acquire: Some(acquire), wait_ms: None }
}

/// The release by the holder as a command.
fn release_of(key: &SessionKey, token: u64) -> Command {
    Command::Release {
        session: SessionId::new(key.session_id),
        done_below: RequestId::new(0),
        token: FencingToken::from_raw(token),
        locks: Vec::new(),
    }
}

fn asked_within(key: &SessionKey, request_id: u64, name: &str, wait_ms: u64) -> AcquireRequest {
    AcquireRequest { wait_ms: Some(wait_ms), ..asked(key, request_id, name) }
}

pub(super) fn refusal<T: std::fmt::Debug>(result: Result<T, CallError>) -> Refusal {
    match result {
        Err(CallError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// The error message of an unavailable node, and the leader that it names.
pub(super) fn unavailable<T: std::fmt::Debug>(
    result: Result<T, CallError>,
) -> (Refusal, Option<String>) {
    match result {
        Err(CallError::Unavailable { refusal, leader }) => {
            assert_eq!(refusal.reason(), RefusalReason::Unavailable);
            (refusal, leader)
        }
        other => panic!("not unavailable: {other:?}"),
    }
}

fn not_in_time<T: std::fmt::Debug>(result: &Result<T, CallError>) {
    assert!(matches!(result, Err(CallError::NotInTime(_))), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_of_calls_holds_hands_over_and_closes() {
    let world = World::new().await;
    let (first, second) = (world.key().await, world.key().await);
    let held = world.acquired(&first, 1, "jobs").await;
    assert_eq!((held.request_id, &held.names[..]), (1, &[Bytes::from("jobs")][..]));
    let waits = world.begin_acquire(asked(&second, 1, "jobs")).await;
    assert_eq!(world.calls_that_wait(), 1);

    let Granted { token, names, .. } = held;
    let released = Released { token, request_id: 1, names, partly: false };
    assert_eq!(world.give_back(&first, token).await, Ok(released));
    let next = world.told(waits).await.unwrap().granted.unwrap();

    assert!(next.token > token);
    assert_eq!(refusal(world.give_back(&first, token).await).reason(), RefusalReason::NotHolder);
    assert_eq!(world.calls_that_wait(), 0);
    let close = CloseSessionRequest { session: Some(second.clone()) };
    world.hub.close_session(&close).await.unwrap();
    assert!(!world.lives(&second));
    world.acquired(&first, 2, "jobs").await;
}

#[tokio::test(start_paused = true)]
async fn some_names_are_given_back_and_a_value_is_handed_on() {
    let world = World::new().await;
    let (first, second) = (world.key().await, world.key().await);
    let items = vec![exclusive("a"), exclusive("b")];
    let acquire = Some(Acquire { request_id: 1, items, wait: true, ..Acquire::default() });
    let both = AcquireRequest { acquire, ..asked(&first, 1, "") };
    let token = world.hub.acquire(both).await.unwrap().granted.unwrap().token;
    let Ask::SetValue(set_value) = set_value(2, token, "a", Some(Change::Value("7".into()))) else {
        unreachable!()
    };
    let set_value =
        SetValueRequest { session: Some(first.clone()), done_below: 0, set_value: Some(set_value) };
    world.hub.set_value(set_value).await.unwrap();

    let release = Some(Release { token, names: vec!["a".into()], lost: false });
    let some = ReleaseRequest { session: Some(first.clone()), done_below: 0, release };
    let released = world.hub.release(some).await.unwrap().released.unwrap();

    assert_eq!((&released.names[..], released.partly), (&[Bytes::from("a")][..], true));
    let next = world.acquired(&second, 1, "a").await;
    let value = Value { value: "7".into(), token, suspect: false };
    assert_eq!(next.values[0].value, Some(value));
    not_in_time(&world.hub.acquire(asked_within(&second, 2, "b", 10)).await);
}

/// The first gives back a part while the second is on its way, which gives back the rest.
#[tokio::test(start_paused = true)]
async fn two_calls_that_give_back_one_grant_are_told_each_its_own_names() {
    let world = World::new().await;
    let key = world.key().await;
    let items = vec![exclusive("a"), exclusive("b")];
    let acquire = Some(Acquire { request_id: 1, items, wait: true, ..Acquire::default() });
    let both = AcquireRequest { acquire, ..asked(&key, 1, "") };
    let token = world.hub.acquire(both).await.unwrap().granted.unwrap().token;
    let release = |names: &[&'static str]| {
        let names = names.iter().map(|name| Bytes::from(*name)).collect();
        let release = Some(Release { token, names, lost: false });
        ReleaseRequest { session: Some(key.clone()), done_below: 0, release }
    };
    let (part, rest) = (release(&["a"]), release(&[]));

    world.fake.hold_commits();
    let part = world.begin(|hub| async move { hub.release(part).await }).await;
    let rest = world.begin(|hub| async move { hub.release(rest).await }).await;
    world.fake.let_commits_go();

    for (answer, name, partly) in [(part, "a", true), (rest, "b", false)] {
        let released = world.told(answer).await.unwrap().released.unwrap();
        assert_eq!((&released.names[..], released.partly), (&[Bytes::from(name)][..], partly));
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_says_who_holds_the_lock_by_name() {
    let world = World::new().await;
    let (first, second) = (world.key().await, world.key().await);
    let held = world.acquired(&first, 1, "jobs").await;

    let mut try_it = asked(&second, 1, "jobs");
    try_it.acquire.as_mut().unwrap().wait = false;
    for _first_and_retry in 0..2 {
        let denied = refusal(world.hub.acquire(try_it.clone()).await);
        assert_eq!(denied.reason(), RefusalReason::LockHeld);
        assert_eq!((&*denied.holders[0].label, denied.holders[0].token), ("a-call", held.token));
    }
}

/// DESIGN §4: the server of a unary call keeps its wait limit, and ends the wait when the limit passes.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_limit_and_leaves_the_queue() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    let began = world.runtime.clock.now();

    not_in_time(&world.hub.acquire(asked_within(&waiter, 1, "jobs", 700)).await);

    assert_eq!(world.runtime.clock.now(), began + Duration::from_millis(700));
    assert_eq!(world.cancel(&waiter, 1).await, cancelled::Was::Ended);
    world.give_back(&holder, held.token).await.unwrap();
    world.acquired(&holder, 2, "jobs").await;
}

/// The lock passes to the waiter while the end of its wait is on its way: the grant is the answer.
#[tokio::test(start_paused = true)]
async fn a_grant_that_crosses_the_end_of_a_wait_is_the_answer() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    let waits = world.begin_acquire(asked_within(&waiter, 1, "jobs", 700)).await;
    world.fake.hold_commits();
    world.runtime.sleep(Duration::from_secs(1)).await;
    assert!(matches!(world.fake.held_back()[..], [Command::StopWaiting { .. }]));

    world.fake.commit(release_of(&holder, held.token), Tenure::new(1));
    world.fake.let_commits_go();

    let granted = world.told(waits).await.unwrap().granted.unwrap();
    world.give_back(&waiter, granted.token).await.unwrap();
}

/// I6: a client that lost its first call asks again under the same id, is granted, and relies on it. The
/// first call's limit passes at the server all the same, and takes nothing from the client.
#[tokio::test(start_paused = true)]
async fn a_call_whose_limit_passes_takes_no_grant_that_another_call_told() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    let _lost = world.begin_acquire(asked_within(&waiter, 1, "jobs", 700)).await;
    let again = world.begin_acquire(asked_within(&waiter, 1, "jobs", 5_000)).await;
    world.fake.hold_commits();
    world.runtime.sleep(Duration::from_secs(1)).await;
    assert!(matches!(world.fake.held_back()[..], [Command::StopWaiting { .. }]));

    world.fake.commit(release_of(&holder, held.token), Tenure::new(1));
    let granted = world.told(again).await.unwrap().granted.unwrap();
    world.fake.let_commits_go();

    world.give_back(&waiter, granted.token).await.unwrap();
}

/// The call is registered before its command is proposed.
#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_before_the_answer_to_its_command_is_heard() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    world.fake.hold_commits();
    let waits = world.begin_acquire(asked(&waiter, 1, "jobs")).await;

    // Both are committed before the call receives the first outcome.
    world.fake.let_commits_go();
    world.fake.commit(release_of(&holder, held.token), Tenure::new(1));

    assert!(world.told(waits).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn no_time_to_wait_is_enough_for_a_free_lock_and_any_time_is_taken() {
    let world = World::new().await;
    let (first, second) = (world.key().await, world.key().await);
    let held = world.hub.acquire(asked_within(&first, 1, "jobs", 0)).await.unwrap();
    not_in_time(&world.hub.acquire(asked_within(&second, 1, "jobs", 0)).await);

    let waits = world.begin_acquire(asked_within(&second, 2, "jobs", u64::MAX)).await;
    world.give_back(&first, held.granted.unwrap().token).await.unwrap();
    assert!(world.told(waits).await.is_ok());
}

/// The request leaves the queue of the other lock, which does not count as its end.
#[tokio::test(start_paused = true)]
async fn a_wait_for_any_of_two_is_granted_the_first_that_is_free() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    world.acquired(&holder, 1, "a").await;
    let held = world.acquired(&holder, 2, "b").await;
    let mut any = asked(&waiter, 1, "");
    let acquire = any.acquire.as_mut().unwrap();
    acquire.items = vec![exclusive("a"), exclusive("b")];
    acquire.any = Some(AnyOf { min: 1 });
    let waits = world.begin_acquire(any).await;

    world.give_back(&holder, held.token).await.unwrap();

    let granted = world.told(waits).await.unwrap().granted.unwrap();
    assert_eq!(granted.names, ["b"]);
}

/// I9: the place is the session's, not the call's.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_keeps_its_place_and_the_same_id_finds_it() {
    let world = World::new().await;
    let (holder, early, late) = (world.key().await, world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    {
        let call = world.hub.acquire(asked(&early, 1, "jobs"));
        let cut = world.runtime.timeout(Duration::from_secs(1), call).await;
        assert!(cut.is_err(), "answered: {cut:?}");
    }
    assert_eq!(world.calls_that_wait(), 0);
    let mut behind = world.begin_acquire(asked(&late, 1, "jobs")).await;

    let again = world.begin_acquire(asked(&early, 1, "jobs")).await;
    let also = world.begin_acquire(asked(&early, 1, "jobs")).await;
    world.give_back(&holder, held.token).await.unwrap();

    let (again, also) = (world.told(again).await.unwrap(), world.told(also).await.unwrap());
    assert_eq!(again, also);
    assert!(behind.try_recv().is_err());
    let known = world.hub.acquire(asked(&early, 1, "jobs")).await.unwrap();
    assert_eq!(known.granted, again.granted);
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_cancel_of_its_request_or_the_end_of_its_session() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    world.acquired(&holder, 1, "jobs").await;
    let first = world.begin_acquire(asked(&waiter, 1, "jobs")).await;
    let second = world.begin_acquire(asked(&waiter, 2, "jobs")).await;

    assert_eq!(world.cancel(&waiter, 1).await, cancelled::Was::Waiting);
    assert_eq!(refusal(world.told(first).await).reason(), RefusalReason::Cancelled);
    let close = CloseSessionRequest { session: Some(waiter.clone()) };
    world.hub.close_session(&close).await.unwrap();
    assert_eq!(refusal(world.told(second).await).reason(), RefusalReason::SessionUnknown);
}

#[tokio::test(start_paused = true)]
async fn losing_the_tenure_ends_every_wait_with_the_leader_and_leaves_the_place() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    let waits = world.begin_acquire(asked(&waiter, 1, "jobs")).await;

    world.fake.follow(Some("node-2:7420"));

    let (told, leader) = unavailable(world.told(waits).await);
    assert_eq!((told.outcome_unknown, leader.as_deref()), (false, Some("node-2:7420")));
    let elsewhere = world.hub.acquire(asked(&waiter, 1, "jobs")).await;
    assert_eq!(unavailable(elsewhere).1.as_deref(), Some("node-2:7420"));
    world.fake.lead(2);
    world.settle().await;
    let waits = world.begin_acquire(asked(&waiter, 1, "jobs")).await;
    world.give_back(&holder, held.token).await.unwrap();
    assert!(world.told(waits).await.is_ok());
}

/// I32.
#[tokio::test(start_paused = true)]
async fn a_node_that_stops_ends_every_wait_and_takes_no_new_one() {
    let world = World::new().await;
    let (holder, waiter) = (world.key().await, world.key().await);
    world.acquired(&holder, 1, "jobs").await;
    let waits = world.begin_acquire(asked(&waiter, 1, "jobs")).await;

    world.hub.shutdown().await;

    assert!(unavailable(world.told(waits).await).0.message.contains("keeps its place"));
    let late = world.hub.acquire(asked(&waiter, 2, "jobs")).await;
    assert!(unavailable(late).0.message.contains("this node stops"));
}

/// I27: beyond the limit a call is refused by the limit's name; a release is no wait.
#[tokio::test(start_paused = true)]
async fn more_waits_than_allowed_are_refused_by_the_limit_and_others_go_on() {
    let settings = SessionSettings { max_waiting_calls: 2, ..SessionSettings::default() };
    let world = World::with(settings).await;
    let (holder, waiter) = (world.key().await, world.key().await);
    let held = world.acquired(&holder, 1, "jobs").await;
    let first = world.begin_acquire(asked(&waiter, 1, "jobs")).await;
    let second = world.begin_acquire(asked(&waiter, 2, "jobs")).await;

    let refused = refusal(world.hub.acquire(asked(&waiter, 3, "jobs")).await);

    assert_eq!((refused.reason(), &*refused.limit), (RefusalReason::Limit, "max_waiting_calls"));
    assert!(refused.retry_after_ms.is_some());
    world.give_back(&holder, held.token).await.unwrap();
    assert!(world.told(first).await.is_ok());
    world.acquired(&holder, 2, "other").await;
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_outcome_says_that_it_may_still_take_effect() {
    let world = World::new().await;
    let key = world.key().await;
    world.fake.hold_commits();
    let call = world.begin_acquire(asked(&key, 1, "jobs")).await;

    world.fake.give_up_held_back();

    assert!(unavailable(world.told(call).await).0.outcome_unknown);
}

/// One answer for all of them, so that it does not reveal which sessions exist; and nothing is done.
#[tokio::test(start_paused = true)]
async fn a_wrong_secret_and_an_unknown_session_get_the_same_answer_from_every_call() {
    let world = World::new().await;
    let key = world.key().await;
    let held = world.acquired(&key, 1, "jobs").await;
    let wrong = SessionKey { secret: vec![0; 16].into(), ..key.clone() };
    let unknown = SessionKey { session_id: 999, ..key.clone() };
    for bad in [wrong, unknown] {
        let session = Some(bad.clone());
        let of_close = CloseSessionRequest { session: session.clone() };
        let of_cancel = CancelRequest {
            session: session.clone(),
            done_below: 0,
            cancel: Some(Cancel { request_id: 1 }),
        };
        let Ask::SetValue(change) =
            set_value(2, held.token, "jobs", Some(Change::Value("x".into())))
        else {
            unreachable!()
        };
        let of_set_value = SetValueRequest { session, done_below: 0, set_value: Some(change) };
        let refusals = [
            refusal(world.hub.acquire(asked(&bad, 2, "other")).await),
            refusal(world.give_back(&bad, held.token).await),
            refusal(world.hub.cancel(of_cancel).await),
            refusal(world.hub.set_value(of_set_value).await),
            refusal(world.keep_alive(&bad).await),
            refusal(world.hub.close_session(&of_close).await),
        ];
        for refusal in refusals {
            let same = format!("session {} is not open, or this is not its secret", bad.session_id);
            assert_eq!(refusal.reason(), RefusalReason::SessionUnknown);
            assert!(refusal.message.starts_with(&same), "{}", refusal.message);
        }
    }
    let again = world.acquired(&key, 1, "jobs").await;
    assert_eq!(again, held);
}

/// A deposed node that does not know it yet has not learned of newer sessions: it must not report that
/// they are over (I18).
#[tokio::test(start_paused = true)]
async fn nobody_is_told_that_a_session_is_unknown_without_a_quorum() {
    let world = World::new().await;
    let newer = SessionKey { session_id: 7, secret: vec![1; 16].into() };
    world.fake.set_quorum(false);

    unavailable(world.hub.acquire(asked(&newer, 1, "jobs")).await);
    unavailable(world.keep_alive(&newer).await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_lacks_something_is_refused_by_its_name() {
    let world = World::new().await;
    let key = world.key().await;
    let whole = asked(&key, 1, "jobs");
    let short = SessionKey { secret: "abc".into(), ..key.clone() };
    let cases = [
        (AcquireRequest { session: None, ..whole.clone() }, "the call has no `session`"),
        (AcquireRequest { acquire: None, ..whole.clone() }, "the call has no `acquire`"),
        (asked(&key, 0, "jobs"), "the request id 0 is not usable"),
        (asked(&key, 1, ""), "a lock name cannot be empty"),
        (asked(&short, 1, "jobs"), "the secret has 3 bytes; it must have 16"),
    ];
    for (call, words) in cases {
        let refusal = refusal(world.hub.acquire(call).await);
        assert_eq!(refusal.reason(), RefusalReason::Invalid);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
    let release = ReleaseRequest { session: Some(key.clone()), ..ReleaseRequest::default() };
    assert!(refusal(world.hub.release(release).await).message.contains("`release`"));
    let cancel = CancelRequest { session: Some(key.clone()), ..CancelRequest::default() };
    assert!(refusal(world.hub.cancel(cancel).await).message.contains("`cancel`"));
    let value = SetValueRequest { session: Some(key), ..SetValueRequest::default() };
    assert!(refusal(world.hub.set_value(value).await).message.contains("`set_value`"));
    let open = OpenSessionRequest { ttl_ms: Some(1), ..OpenSessionRequest::default() };
    let refused = refusal(world.hub.open_session(&open, &Caller::default()).await);
    assert_eq!(refused.reason(), RefusalReason::TtlOutOfRange);
}

/// A stream of the same session receives the pushes; the call gets its answer all the same.
#[tokio::test(start_paused = true)]
async fn a_session_may_have_a_stream_and_make_calls() {
    let world = World::new().await;
    let key = world.key().await;
    let ticket = Ticket { session_id: key.session_id, secret: key.secret.clone() };
    let mut stream = world.resume(&ticket).await;
    stream.opened().await;
    assert!(matches!(stream.next().await, Body::State(_)));

    let granted = world.acquired(&key, 1, "jobs").await;

    assert_eq!(stream.granted().await, granted);
}

/// The stream receives the denial when it happens; later it may ask under the same id itself.
#[tokio::test(start_paused = true)]
async fn a_try_denied_to_a_call_is_answered_again_on_the_stream() {
    let world = World::new().await;
    let (holder, key) = (world.key().await, world.key().await);
    world.acquired(&holder, 1, "jobs").await;
    let ticket = Ticket { session_id: key.session_id, secret: key.secret.clone() };
    let mut stream = world.resume(&ticket).await;
    stream.opened().await;
    assert!(matches!(stream.next().await, Body::State(_)));
    let mut try_it = asked(&key, 1, "jobs");
    try_it.acquire.as_mut().unwrap().wait = false;
    refusal(world.hub.acquire(try_it).await);
    assert!(matches!(stream.next().await, Body::Denied(_)));

    stream.send(try_acquire(1, "jobs")).await;

    assert!(matches!(stream.next().await, Body::Denied(_)));
}

/// The outcome goes to a call, and comes once a newer stream of the session is attached.
#[tokio::test(start_paused = true)]
async fn a_denial_that_a_call_asked_for_leaves_no_mark_on_any_stream() {
    let world = World::new().await;
    let (holder, key) = (world.key().await, world.key().await);
    world.acquired(&holder, 1, "jobs").await;
    let ticket = Ticket { session_id: key.session_id, secret: key.secret.clone() };
    let mut streams = vec![world.resumed(&ticket).await];
    for request in 1..=3 {
        world.fake.hold_commits();
        let mut try_it = asked(&key, request, "jobs");
        try_it.acquire.as_mut().unwrap().wait = false;
        let call = world.begin_acquire(try_it).await;
        let mut stream = world.resumed(&ticket).await;
        world.fake.let_commits_go();
        assert!(matches!(stream.next().await, Body::Denied(_)));
        refusal(world.told(call).await);
        assert_eq!(world.denials_without_outcome(&ticket), Some(0), "request {request}");
        streams.push(stream);
    }
}
