//! Unary calls over real connections: answers, codes, and the refusal beside the code.

use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    AcquireRequest, CheckTokenRequest, Granted, KeepAliveRequest, Mode, OpenSessionRequest,
    Refusal, RefusalReason, Release, ReleaseRequest, SessionKey, SetValue, SetValueRequest,
};
use prost::Message;

use super::*;

type Client = LockServiceClient<Channel>;

async fn open_session(client: &mut Client) -> SessionKey {
    let request = OpenSessionRequest {
        ttl_ms: None,
        label: "a-call".to_owned(),
        ..OpenSessionRequest::default()
    };
    client.open_session(request).await.unwrap().into_inner().session.unwrap()
}

fn item(name: &str, mode: Mode) -> Item {
    Item { name: name.as_bytes().to_vec().into(), mode: mode.into(), ..Item::default() }
}

/// An Acquire that waits for a second at most.
fn wanted(key: &SessionKey, request_id: u64, items: Vec<Item>) -> AcquireRequest {
    let acquire = Acquire { request_id, items, wait: true, ..Acquire::default() };
    AcquireRequest {
        session: Some(key.clone()),
        done_below: 0,
        acquire: Some(acquire),
        wait_ms: Some(1_000),
    }
}

async fn acquire(client: &mut Client, request: AcquireRequest) -> Result<Granted, Status> {
    client.acquire(request).await.map(|response| response.into_inner().granted.unwrap())
}

/// The refusal among the details of a status, which has the same code and message.
pub(super) fn refusal_of(status: &Status) -> Refusal {
    let details = tonic_types::Status::decode(status.details()).unwrap();
    assert_eq!((details.code, &*details.message), (status.code() as i32, status.message()));
    let [detail] = &details.details[..] else { panic!("not one detail: {details:?}") };
    assert_eq!(detail.type_url, "type.googleapis.com/holdfast.v1.Refusal");
    Refusal::decode(&*detail.value).unwrap()
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, Status>,
    code: Code,
    reason: RefusalReason,
) -> Refusal {
    let status = result.unwrap_err();
    let refusal = refusal_of(&status);
    assert_eq!((status.code(), refusal.reason()), (code, reason), "{status:?}");
    assert_eq!(status.message(), refusal.message);
    refusal
}

/// Whichever part refuses: the session layer, a read, the access of the caller.
#[tokio::test]
async fn a_call_that_is_refused_is_counted_once_by_its_reason() {
    let node = node().await;
    let mut client = node.client().await;
    let key = open_session(&mut client).await;
    let jobs = vec![item("jobs", Mode::Exclusive)];
    let held = acquire(&mut client, wanted(&key, 1, jobs)).await.unwrap();
    let counted = |reason| {
        let refusals = node.hub.metrics().refusals;
        refusals.counted.get_or_create(&[("reason", reason)]).get()
    };
    assert_eq!(counted("not_holder") + counted("invalid"), 0, "what succeeds is none");

    let release = Some(Release { token: held.token + 1, ..Release::default() });
    let foreign = ReleaseRequest { session: Some(key.clone()), done_below: 0, release };
    client.release(foreign).await.unwrap_err();
    client.inspect(InspectRequest { name: String::new() }).await.unwrap_err();
    let (name, token) = (String::new(), held.token);
    client.check_token(CheckTokenRequest { name, token }).await.unwrap_err();

    assert_eq!((counted("not_holder"), counted("invalid")), (1, 2));
}

#[tokio::test]
async fn a_refusal_comes_as_a_code_and_as_a_typed_detail() {
    let node = node().await;
    let mut client = node.client().await;
    let (key, other) = (open_session(&mut client).await, open_session(&mut client).await);
    let jobs = || vec![item("jobs", Mode::Exclusive)];
    let held = acquire(&mut client, wanted(&key, 1, jobs())).await.unwrap();

    let mut try_it = wanted(&other, 1, jobs());
    try_it.acquire.as_mut().unwrap().wait = false;
    let result = acquire(&mut client, try_it).await;
    let refusal = assert_refused(result, Code::FailedPrecondition, RefusalReason::LockHeld);
    assert_eq!(refusal.holders[0].token, held.token);

    let result = acquire(&mut client, wanted(&key, 1, vec![item("other", Mode::Shared)])).await;
    assert_refused(result, Code::AlreadyExists, RefusalReason::RequestReused);

    let result = acquire(&mut client, wanted(&other, 2, jobs())).await;
    assert_refused(result, Code::DeadlineExceeded, RefusalReason::Cancelled);

    let wrong = SessionKey { secret: vec![0; 16].into(), ..key.clone() };
    let result = client.keep_alive(KeepAliveRequest { session: Some(wrong) }).await;
    assert_refused(result, Code::NotFound, RefusalReason::SessionUnknown);

    let release = Some(Release { token: held.token, ..Release::default() });
    let foreign = ReleaseRequest { session: Some(other.clone()), done_below: 0, release };
    let result = client.release(foreign).await;
    assert_refused(result, Code::FailedPrecondition, RefusalReason::NotHolder);

    let many = (0..65).map(|number| item(&number.to_string(), Mode::Shared)).collect();
    let result = acquire(&mut client, wanted(&key, 2, many)).await;
    let refusal = assert_refused(result, Code::ResourceExhausted, RefusalReason::Limit);
    assert_eq!(refusal.limit, "names_per_request");

    let result = client.inspect(InspectRequest { name: String::new() }).await;
    assert_refused(result, Code::InvalidArgument, RefusalReason::Invalid);
}

#[tokio::test]
async fn a_call_to_a_node_that_does_not_lead_names_the_leader_in_its_metadata() {
    let node = node().await;
    let mut client = node.client().await;
    let key = open_session(&mut client).await;
    node.fake.follow(Some("node-2:7420"));
    Runtime::system().sleep(Duration::from_millis(10)).await;

    let status = client.keep_alive(KeepAliveRequest { session: Some(key) }).await.unwrap_err();

    assert_eq!(status.metadata().get(status::LEADER).unwrap(), "node-2:7420");
    assert_refused::<()>(Err(status), Code::Unavailable, RefusalReason::Unavailable);
}

/// A client that goes away leaves no waiting call at the server, and keeps its place.
#[tokio::test]
async fn a_call_that_its_client_drops_ends_at_the_server_and_keeps_its_place() {
    let node = node().await;
    let mut client = node.client().await;
    let (holder, waiter) = (open_session(&mut client).await, open_session(&mut client).await);
    let jobs = vec![item("jobs", Mode::Exclusive)];
    let held = acquire(&mut client, wanted(&holder, 1, jobs.clone())).await.unwrap();
    let call = AcquireRequest { wait_ms: None, ..wanted(&waiter, 1, jobs) };
    let mut second = node.client().await;
    let waiting = async |count| {
        while node.hub.metrics().waiting_calls.get() != count {
            Runtime::system().sleep(Duration::from_millis(1)).await;
        }
    };

    holdfast_runtime::select! {
        answer = second.acquire(call.clone()) => panic!("answered: {answer:?}"),
        () = waiting(1) => {}
    }
    waiting(0).await;

    let release = Some(Release { token: held.token, ..Release::default() });
    let release = ReleaseRequest { session: Some(holder.clone()), done_below: 0, release };
    client.release(release).await.unwrap();
    let mut try_it = wanted(&holder, 2, vec![item("jobs", Mode::Exclusive)]);
    try_it.acquire.as_mut().unwrap().wait = false;
    let result = acquire(&mut client, try_it).await;
    assert_refused(result, Code::FailedPrecondition, RefusalReason::LockHeld);
    acquire(&mut client, call).await.unwrap();
}

#[tokio::test]
async fn inspect_and_list_show_modes_values_and_how_many_hold() {
    let node = node().await;
    let mut client = node.client().await;
    let key = open_session(&mut client).await;
    let set = vec![item("own", Mode::Exclusive), item("plan", Mode::Shared)];
    let token = acquire(&mut client, wanted(&key, 1, set.clone())).await.unwrap().token;
    for request in 2..=12 {
        let shared = vec![item("plan", Mode::Shared)];
        acquire(&mut client, wanted(&key, request, shared)).await.unwrap();
    }
    let change = Some(Change::Value("7".into()));
    let set_value = SetValue { request_id: 13, token, name: "own".into(), change };
    let session = Some(key.clone());
    let request = SetValueRequest { session, done_below: 0, set_value: Some(set_value) };
    client.set_value(request).await.unwrap();
    let waits = AcquireRequest { wait_ms: None, ..wanted(&key, 14, set) };
    let mut other = node.client().await;
    let waiting = async {
        while node.hub.metrics().waiting_calls.get() != 1 {
            Runtime::system().sleep(Duration::from_millis(1)).await;
        }
    };
    holdfast_runtime::select! {
        answer = other.acquire(waits) => panic!("answered: {answer:?}"),
        () = waiting => {}
    }

    let mut inspect = async |name: &str| {
        let response = client.inspect(InspectRequest { name: name.to_owned() }).await;
        response.unwrap().into_inner().lock.unwrap()
    };
    let (own, plan) = (inspect("own").await, inspect("plan").await);
    let value = own.value.unwrap();
    assert_eq!((&value.value[..], value.token, value.suspect), (&b"7"[..], token, false));
    assert_eq!((own.has_value, own.held_by, own.holders[0].mode()), (true, 1, Mode::Exclusive));
    assert_eq!((own.queue[0].names, own.queue[0].mode()), (2, Mode::Exclusive));
    assert_eq!((plan.held_by, plan.holders.len(), plan.value), (12, 12, None));
    assert_eq!((plan.holders[0].mode(), plan.queue[0].mode()), (Mode::Shared, Mode::Shared));

    let listed = client.list(ListRequest::default()).await.unwrap().into_inner().locks;
    let shown: Vec<_> = listed
        .iter()
        .map(|lock| (&*lock.name, lock.held_by, lock.holders.len(), lock.has_value))
        .collect();
    assert_eq!(shown, [("own", 1, 1, true), ("plan", 12, 4, false)]);
    assert!(listed.iter().all(|lock| lock.value.is_none()));
}

#[tokio::test]
async fn a_token_is_current_for_its_names_while_they_are_held() {
    let node = node().await;
    let mut client = node.client().await;
    let key = open_session(&mut client).await;
    let set = vec![item("a", Mode::Exclusive), item("b", Mode::Shared)];
    let token = acquire(&mut client, wanted(&key, 1, set)).await.unwrap().token;
    let release = Some(Release { token, names: vec!["a".into()], lost: false });
    let release = ReleaseRequest { session: Some(key), done_below: 0, release };
    client.release(release).await.unwrap();

    for (name, token, current) in
        [("a", token, false), ("b", token, true), ("b", token + 1, false), ("c", token, false)]
    {
        let request = CheckTokenRequest { name: name.to_owned(), token };
        let answer = client.check_token(request).await.unwrap().into_inner();
        assert_eq!(answer.current, current, "{name}");
    }
    let bad = CheckTokenRequest { name: "a\n".to_owned(), token };
    assert_refused(client.check_token(bad).await, Code::InvalidArgument, RefusalReason::Invalid);
}
