//! Which call needs which right (I26, I36): every call of every service, with each kind of caller.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;
use holdfast_core::{
    AccessName, Caller, Deed, Identity, NamePrefix, Right, RuleChange, Token, Verb,
};
use holdfast_fuzz::{Outcome, Target};
use holdfast_proto::v1::auth_service_client::AuthServiceClient;
use holdfast_proto::v1::cluster_service_client::ClusterServiceClient;
use holdfast_proto::v1::import_row::Has;
use holdfast_proto::v1::scope_service_client::ScopeServiceClient;
use holdfast_proto::v1::{self, change_rules_request};
use prost::Message as _;
use tonic::Request;
use tonic::metadata::MetadataValue;

use super::super::access::{TOKEN_BYTES, hash_of, token_of, token_text};
use super::*;

/// The name, or prefix, that the calls of the matrix are about.
const NAME: &str = "jobs/1";

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Needs {
    /// The verb on [`NAME`].
    On(Verb),
    /// The verb on all names.
    OnAll(Verb),
    /// A verb without names.
    Whole(Verb),
    /// Any right.
    Any,
}

/// A call, with a message that is in order.
pub(super) struct Call {
    pub(super) path: &'static str,
    needs: Needs,
    pub(super) send: Send,
}

/// Makes a call with that header.
pub(super) type Send = fn(Channel, Option<&'static str>) -> BoxFuture<'static, Result<(), Status>>;

pub(in crate::rpc) fn with<T>(message: T, authorization: Option<&'static str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(header) = authorization {
        request.metadata_mut().insert("authorization", header.parse().unwrap());
    }
    request
}

macro_rules! call {
    ($path:literal, $needs:expr, $client:ident, $method:ident, $message:expr) => {
        Call {
            path: $path,
            needs: $needs,
            send: |channel, authorization| {
                Box::pin(async move {
                    let request = with($message, authorization);
                    $client::new(channel).$method(request).await.map(drop)
                })
            },
        }
    };
}

/// The calls that a session's key opens, which [`a_key_opens_for_its_owner_alone`] makes, and the stream.
const WITH_A_KEY: [&str; 8] = [
    "LockService/Session",
    "LockService/KeepAlive",
    "LockService/KeepAliveMany",
    "LockService/Acquire",
    "LockService/Cancel",
    "LockService/Release",
    "LockService/SetValue",
    "LockService/CloseSession",
];

#[rustfmt::skip]
pub(super) fn calls() -> Vec<Call> {
    use Needs::{Any, On, OnAll, Whole};
    vec![
        call!("LockService/Inspect", On(Verb::Read), LockServiceClient, inspect, InspectRequest { name: NAME.to_owned() }),
        call!("LockService/List", On(Verb::Read), LockServiceClient, list, ListRequest { prefix: NAME.to_owned(), ..ListRequest::default() }),
        call!("LockService/Status", Whole(Verb::Status), LockServiceClient, status, StatusRequest {}),
        call!("LockService/Watch", On(Verb::Read), LockServiceClient, watch, v1::WatchRequest { prefix: NAME.to_owned(), resume: None }),
        call!("LockService/CheckToken", On(Verb::Read), LockServiceClient, check_token, v1::CheckTokenRequest { name: NAME.to_owned(), token: 1 }),
        call!("LockService/OpenSession", Any, LockServiceClient, open_session, v1::OpenSessionRequest::default()),
        call!("LockService/Import", On(Verb::Import), LockServiceClient, import, import()),
        call!("LockService/InspectSession", OnAll(Verb::Read), LockServiceClient, inspect_session, v1::InspectSessionRequest { session_id: 1 }),
        call!("LockService/Explain", OnAll(Verb::Read), LockServiceClient, explain, v1::ExplainRequest { name: NAME.to_owned() }),
        call!("LockService/Freeze", On(Verb::Freeze), LockServiceClient, freeze, v1::FreezeRequest { prefix: NAME.to_owned(), message: "x".to_owned() }),
        call!("LockService/Thaw", On(Verb::Freeze), LockServiceClient, thaw, v1::ThawRequest { prefix: NAME.to_owned() }),
        call!("LockService/ListFreezes", OnAll(Verb::Read), LockServiceClient, list_freezes, v1::ListFreezesRequest {}),
        call!("LockService/Busiest", On(Verb::Read), LockServiceClient, busiest, v1::BusiestRequest { prefix: NAME.to_owned(), ..v1::BusiestRequest::default() }),
        call!("LockService/ListSessions", OnAll(Verb::Read), LockServiceClient, list_sessions, v1::ListSessionsRequest::default()),
        call!("LockService/History", On(Verb::History), LockServiceClient, history, v1::HistoryRequest { name: Some(NAME.to_owned()), ..v1::HistoryRequest::default() }),
        call!("LockService/Advance", On(Verb::Sequence), LockServiceClient, advance, v1::AdvanceRequest { name: NAME.to_owned(), by: 1 }),
        call!("LockService/BeginSequence", On(Verb::Sequence), LockServiceClient, begin_sequence, v1::BeginSequenceRequest { name: NAME.to_owned(), at: 1 }),
        call!("LockService/ListSequences", On(Verb::Read), LockServiceClient, list_sequences, v1::ListSequencesRequest { prefix: NAME.to_owned(), ..v1::ListSequencesRequest::default() }),
        call!("LockService/SetLimit", On(Verb::Limit), LockServiceClient, set_limit, v1::SetLimitRequest { name: NAME.to_owned(), limit: Some(2) }),
        call!("ClusterService/ClusterStatus", Whole(Verb::Status), ClusterServiceClient, cluster_status, v1::ClusterStatusRequest {}),
        call!("ClusterService/AddLearner", Whole(Verb::Members), ClusterServiceClient, add_learner, v1::AddLearnerRequest { node_id: 9, advertise: "a:1".to_owned(), peer_advertise: "a:2".to_owned() }),
        call!("ClusterService/Promote", Whole(Verb::Members), ClusterServiceClient, promote, v1::PromoteRequest { node_id: 9 }),
        call!("ClusterService/Remove", Whole(Verb::Members), ClusterServiceClient, remove, v1::RemoveRequest { node_id: 9 }),
        call!("ClusterService/TransferLeader", Whole(Verb::Members), ClusterServiceClient, transfer_leader, v1::TransferLeadershipRequest { to: None }),
        call!("ClusterService/Backup", Whole(Verb::Backup), ClusterServiceClient, backup, v1::BackupRequest {}),
        call!("ScopeService/SetScope", On(Verb::Scope), ScopeServiceClient, set_scope, v1::SetScopeRequest { scope: NAME.to_owned() }),
        call!("ScopeService/RemoveScope", On(Verb::Scope), ScopeServiceClient, remove_scope, v1::RemoveScopeRequest { scope: NAME.to_owned() }),
        call!("ScopeService/ListScopes", Whole(Verb::Status), ScopeServiceClient, list_scopes, v1::ListScopesRequest {}),
        call!("AuthService/AuthStatus", Any, AuthServiceClient, auth_status, v1::AuthStatusRequest {}),
        call!("AuthService/ListQuotas", Whole(Verb::Rules), AuthServiceClient, list_quotas, v1::ListQuotasRequest {}),
        call!("AuthService/ListRules", Whole(Verb::Rules), AuthServiceClient, list_rules, v1::ListRulesRequest {}),
        call!("AuthService/ChangeRules", Whole(Verb::Rules), AuthServiceClient, change_rules, v1::ChangeRulesRequest { change: Some(change_rules_request::Change::On(true)) }),
        call!("AuthService/CreateToken", Whole(Verb::Rules), AuthServiceClient, create_token, v1::CreateTokenRequest { name: "new".to_owned(), ..v1::CreateTokenRequest::default() }),
        call!("AuthService/TestRight", Whole(Verb::Rules), AuthServiceClient, test_right, v1::TestRightRequest { identity: "cn:x".to_owned(), verb: "status".to_owned(), name: None }),
        call!("AuthService/Revoke", Whole(Verb::Revoke), AuthServiceClient, revoke, v1::RevokeRequest { identity: "cn:x".to_owned(), reason: "test".to_owned(), now: false }),
        call!("AuthService/EndSession", Whole(Verb::Revoke), AuthServiceClient, end_session, v1::EndSessionRequest { session_id: 999, reason: "test".to_owned(), now: false }),
        call!("AuthService/CloseHolds", On(Verb::Force), AuthServiceClient, close_holds, v1::CloseHoldsRequest { name: NAME.to_owned(), token: None, reason: "test".to_owned(), now: false }),
    ]
}

fn import() -> v1::ImportRequest {
    let has = Some(Has::Hold(v1::ImportHold::default()));
    let row = v1::ImportRow { name: NAME.as_bytes().to_vec().into(), has };
    let group = v1::ImportGroup { owner: "old".to_owned(), remaining_ms: 60_000, rows: vec![row] };
    v1::ImportRequest { groups: vec![group] }
}

/// A call that is in neither list is one whose right nobody has thought of.
#[test]
fn every_call_of_a_client_is_in_the_matrix() {
    let set = prost_types::FileDescriptorSet::decode(holdfast_proto::FILE_DESCRIPTOR_SET).unwrap();
    let services = set.file.iter().flat_map(|file| &file.service);
    let of_members = ["PeerService", "RelayService"];
    let of_clients = services.filter(|service| !of_members.contains(&service.name()));
    let all: BTreeSet<String> = of_clients
        .flat_map(|service| {
            service.method.iter().map(|method| format!("{}/{}", service.name(), method.name()))
        })
        .collect();
    let known = calls().into_iter().map(|call| call.path).chain(WITH_A_KEY);
    assert_eq!(all, known.map(str::to_owned).collect());
}

/// The header that shows the token with these bytes.
pub(super) fn header(byte: u8) -> &'static str {
    format!("Bearer {}", token_text(&[byte; TOKEN_BYTES])).leak()
}

/// What is a token, said once more: the scheme, the mark, and 32 bytes in hexadecimal.
fn is_token(header: &[u8]) -> bool {
    let digits = header.strip_prefix(b"Bearer hft_");
    digits.is_some_and(|digits| digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit))
}

#[test]
fn no_header_brings_the_door_down_or_passes_for_a_token() {
    let seeds = [header(7), "Bearer hft_", "Basic b3BzOm9wcw==", "bearer hft_00", ""];
    let seeds = seeds.map(|seed| seed.as_bytes().to_vec());
    Target::new("headers", seeds).run(|bytes| {
        let header = MetadataValue::try_from(bytes);
        let hash = header.map_err(|error| error.to_string()).and_then(|header| {
            let mut request = Request::new(());
            request.metadata_mut().insert("authorization", header);
            token_of(&request).ok_or_else(|| "no token".to_owned())
        });
        assert_eq!(hash.is_ok(), is_token(bytes));
        Outcome::of(&hash)
    });
}

impl Node {
    pub(in crate::rpc) fn rule(&self, change: RuleChange) {
        let caller = Caller { identity: Identity::parse("cn:ops").unwrap(), is_admin: true };
        let command = Command::By { caller, deed: Deed::Rule { change } };
        self.fake.commit(command, Tenure::new(1));
    }

    /// Makes the token with these bytes, whose owner has these rights.
    pub(in crate::rpc) fn token(
        &self,
        byte: u8,
        rights: &[(Verb, &str)],
        ends_ms: Option<u64>,
    ) -> &'static str {
        let name = AccessName::parse(&format!("t{byte}")).unwrap();
        let right = |&(verb, prefix): &(Verb, &str)| Right {
            verb,
            prefix: NamePrefix::parse(prefix).unwrap(),
        };
        let rights = rights.iter().map(right).collect();
        self.rule(RuleChange::SetRole { role: name.clone(), rights });
        let hash = hash_of(&token_text(&[byte; TOKEN_BYTES])).unwrap();
        let (token, roles) = (Token { hash, ends_ms }, [name.clone()].into());
        self.rule(RuleChange::CreateToken { name, token, roles });
        header(byte)
    }
}

/// Every verb but one, on all names.
pub(super) fn all_but(verb: Verb) -> Vec<(Verb, &'static str)> {
    Verb::ALL.into_iter().filter(|other| *other != verb).map(|other| (other, "")).collect()
}

#[tokio::test]
async fn each_call_is_for_those_alone_who_have_its_right() {
    let node = node().await;
    let channel = node.channel().await;
    look_through(&node, &channel, |_| true).await;
}

/// The leader decides about a call that another node has passed on as about one that came to itself. Status, history and
/// reflection are about the node that is asked, which may not know a token yet.
#[tokio::test]
async fn each_call_through_another_node_is_for_the_same() {
    let node = node().await;
    let front = forwarding::tests::before(&node.services).await;
    let channel = forwarding::tests::channel(front.address).await;
    let of_the_node = ["LockService/Status", "LockService/History", "ServerReflection"];
    look_through(&node, &channel, |path| !of_the_node.iter().any(|own| path.contains(own))).await;
}

async fn look_through(node: &Node, channel: &Channel, counts: impl Fn(&str) -> bool) {
    let all: Vec<(Verb, &str)> = Verb::ALL.into_iter().map(|verb| (verb, "")).collect();
    let everything = node.token(1, &all, None);
    let ended = node.token(2, &all, Some(1));
    let revoked = node.token(3, &all, None);
    node.rule(RuleChange::RevokeToken { name: AccessName::parse("t3").unwrap() });
    let nothing = node.token(4, &[], None);
    node.rule(RuleChange::Turn { on: true });

    let mut byte = 10;
    for Call { path, needs, send } in calls().into_iter().filter(|call| counts(call.path)) {
        let ask = |authorization| send(channel.clone(), authorization);
        let code =
            |answer: Result<(), Status>| answer.err().map_or(Code::Ok, |status| status.code());
        let not_in = [Code::PermissionDenied, Code::Unauthenticated];
        let mut token = |rights: &[(Verb, &str)]| {
            byte += 1;
            assert!(byte < u8::MAX, "that one is nobody's");
            node.token(byte, rights, None)
        };
        for nobody in [None, Some(nothing)] {
            assert_eq!(code(ask(nobody).await), Code::PermissionDenied, "{path}: {nobody:?}");
        }
        for wrong in
            [header(u8::MAX), ended, revoked, "Bearer", "Bearer hft_", "Basic b3BzOm9wcw==", ""]
        {
            assert_eq!(code(ask(Some(wrong)).await), Code::Unauthenticated, "{path}: {wrong}");
        }
        let answer = code(ask(Some(everything)).await);
        assert!(!not_in.contains(&answer), "{path} with everything: {answer:?}");
        let (without, with): (Vec<Vec<_>>, Vec<_>) = match needs {
            Needs::Any => (vec![], vec![(Verb::Reflect, "")]),
            Needs::Whole(verb) => (vec![all_but(verb)], vec![(verb, "")]),
            // Outside, beside, and too narrow.
            Needs::On(verb) => (
                vec![all_but(verb), vec![(verb, "pay/")], vec![(verb, "jobs/1/2")]],
                vec![(verb, "jobs/")],
            ),
            Needs::OnAll(verb) => (vec![all_but(verb), vec![(verb, "jobs/")]], vec![(verb, "")]),
        };
        for rights in without {
            let answer = code(ask(Some(token(&rights))).await);
            assert_eq!(answer, Code::PermissionDenied, "{path} with {rights:?}");
        }
        let answer = code(ask(Some(token(&with))).await);
        assert!(!not_in.contains(&answer), "{path} with {with:?}: {answer:?}");
    }
}

/// A node that was wiped, or has just begun, does not know that its cluster's rules are on.
#[tokio::test]
async fn a_node_whose_cluster_has_administrators_lets_nobody_in_before_it_has_a_table() {
    let status = async |node: &Node| {
        let answer = LockServiceClient::new(node.channel().await).status(StatusRequest {}).await;
        answer.err().map_or(Code::Ok, |refused| refused.code())
    };
    assert_eq!(status(&node().await).await, Code::Ok, "it has no administrators");

    let admins = [Identity::parse("cn:ops").unwrap()].into();
    let rpc = RpcSettings { admins, ..RpcSettings::default() };
    let node = node_of(SessionSettings::default(), &rpc).await;
    assert_eq!(status(&node).await, Code::PermissionDenied);
    node.token(1, &[], None);
    assert_eq!(status(&node).await, Code::Ok, "it knows that the rules are off");
}

/// What breaks guarantee 1 needs a right of its own, beside that of the same call without `now`.
#[tokio::test]
async fn nothing_is_ended_at_once_without_the_right_to_that() {
    let node = node().await;
    let slow = node.token(1, &[(Verb::Revoke, ""), (Verb::Force, "")], None);
    let all = [(Verb::Revoke, ""), (Verb::Force, ""), (Verb::Now, "")];
    let fast = node.token(2, &all, None);
    node.rule(RuleChange::Turn { on: true });
    let mut client = AuthServiceClient::new(node.channel().await);
    let reason = || "test".to_owned();
    for (who, message) in [(slow, Some("not allowed: now")), (fast, None)] {
        let revoke = v1::RevokeRequest { identity: "cn:x".to_owned(), reason: reason(), now: true };
        let end = v1::EndSessionRequest { session_id: 999, reason: reason(), now: true };
        let name = NAME.to_owned();
        let close = v1::CloseHoldsRequest { name, token: None, reason: reason(), now: true };
        let answers = [
            client.revoke(with(revoke, Some(who))).await.map(drop),
            client.end_session(with(end, Some(who))).await.map(drop),
            client.close_holds(with(close, Some(who))).await.map(drop),
        ];
        for answer in answers {
            let refused = answer.err().filter(|status| status.code() == Code::PermissionDenied);
            assert_eq!(refused.as_ref().map(Status::message), message);
        }
    }
}

/// A hold ends with all its names, so the right has to cover them; those that it does not are not told.
#[tokio::test]
async fn a_hold_of_a_set_is_closed_only_with_the_right_to_all_its_names() {
    let node = node().await;
    node.hold_together(&["jobs/1", "pay/1"]);
    let token = node.token(1, &[(Verb::Force, "jobs/")], None);
    node.rule(RuleChange::Turn { on: true });
    let mut client = AuthServiceClient::new(node.channel().await);
    let request = v1::CloseHoldsRequest {
        name: NAME.to_owned(),
        token: None,
        reason: "test".to_owned(),
        now: false,
    };
    let refused = client.close_holds(with(request, Some(token))).await.unwrap_err();
    assert_eq!(refused.message(), "not allowed: force on all names");
}

/// A refusal tells the right that is missing, and nothing of the lock.
#[tokio::test]
async fn a_refusal_is_the_same_whether_the_lock_is_held_or_not() {
    let node = node().await;
    node.hold(&["pay/held"]);
    let token = node.token(1, &[(Verb::Read, "jobs/")], None);
    node.rule(RuleChange::Turn { on: true });
    let mut client = node.client().await;
    for name in ["pay/held", "pay/free"] {
        let request = with(InspectRequest { name: name.to_owned() }, Some(token));
        let refused = client.inspect(request).await.unwrap_err();
        assert_eq!(refused.message(), format!("not allowed: read on {name}"));
    }
}

/// A session that `owner` opened, and the calls that show its key.
pub(super) struct Owned {
    pub(super) client: LockServiceClient<Channel>,
    pub(super) session: Option<v1::SessionKey>,
}

impl Owned {
    pub(super) async fn open(node: &Node, owner: &'static str) -> Self {
        let mut client = node.client().await;
        let opened = client.open_session(with(v1::OpenSessionRequest::default(), Some(owner)));
        let session = opened.await.unwrap().into_inner().session;
        Self { client, session }
    }

    pub(super) async fn acquire(
        &mut self,
        who: Option<&'static str>,
        request_id: u64,
        name: &str,
    ) -> Result<u64, Status> {
        let (session, acquire) = (self.session.clone(), Some(wants(request_id, name)));
        let request = v1::AcquireRequest { session, acquire, ..v1::AcquireRequest::default() };
        let answer = self.client.acquire(with(request, who)).await?;
        Ok(answer.into_inner().granted.unwrap().token)
    }

    pub(super) async fn set_value(
        &mut self,
        who: Option<&'static str>,
        token: u64,
    ) -> Result<(), Status> {
        let change = Some(v1::set_value::Change::Value(b"x".to_vec().into()));
        let name = b"jobs/1".to_vec().into();
        let (session, request_id) = (self.session.clone(), 2);
        let set_value = Some(v1::SetValue { request_id, token, name, change });
        let request = v1::SetValueRequest { session, set_value, ..v1::SetValueRequest::default() };
        self.client.set_value(with(request, who)).await.map(drop)
    }

    /// Renews the session by the call for many; a refusal of the session is the call's here.
    async fn keep_alive_many(&mut self, who: Option<&'static str>) -> Result<(), Status> {
        let sessions = self.session.clone().into_iter().collect();
        let many = v1::KeepAliveManyRequest { sessions };
        let answer = self.client.keep_alive_many(with(many, who)).await?.into_inner();
        match answer.sessions.into_iter().find_map(|session| session.refused) {
            Some(refusal) => Err(super::super::status::of_refusal(&refusal)),
            None => Ok(()),
        }
    }

    /// What gains nothing, in an order in which each can succeed.
    pub(super) async fn endings(
        &mut self,
        who: Option<&'static str>,
        token: u64,
    ) -> Vec<Result<(), Status>> {
        let session = || self.session.clone();
        let release = Some(v1::Release { token, ..v1::Release::default() });
        let cancel = Some(v1::Cancel { request_id: 1 });
        let alive = v1::KeepAliveRequest { session: session() };
        let release =
            v1::ReleaseRequest { session: session(), release, ..v1::ReleaseRequest::default() };
        let cancel =
            v1::CancelRequest { session: session(), cancel, ..v1::CancelRequest::default() };
        let close = v1::CloseSessionRequest { session: session() };
        vec![
            self.client.keep_alive(with(alive, who)).await.map(drop),
            self.keep_alive_many(who).await,
            self.client.release(with(release, who)).await.map(drop),
            self.client.cancel(with(cancel, who)).await.map(drop),
            self.client.close_session(with(close, who)).await.map(drop),
        ]
    }
}

/// With rules on, a session answers to the identity that opened it, whatever key is shown.
#[tokio::test]
async fn a_key_opens_for_its_owner_alone() {
    let node = node().await;
    let owner = node.token(1, &[(Verb::Acquire, "jobs/")], None);
    let other = node.token(2, &[(Verb::Acquire, "")], None);
    node.rule(RuleChange::Turn { on: true });
    let mut session = Owned::open(&node, owner).await;
    let token = session.acquire(Some(owner), 1, "jobs/1").await.unwrap();

    for stranger in [None, Some(other)] {
        let mut answers = session.endings(stranger, token).await;
        answers.push(session.acquire(stranger, 3, "jobs/2").await.map(drop));
        answers.push(session.set_value(stranger, token).await);
        for answer in answers {
            assert_eq!(answer.unwrap_err().code(), Code::NotFound, "{stranger:?}");
        }
    }

    let forbidden = session.acquire(Some(owner), 3, "pay/1").await.unwrap_err();
    assert_eq!(forbidden.code(), Code::PermissionDenied);
    assert_eq!(forbidden.message(), "not allowed: acquire on pay/1");
    session.set_value(Some(owner), token).await.unwrap();
}

#[tokio::test]
async fn what_gains_nothing_needs_no_right() {
    let node = node().await;
    let owner = node.token(1, &[(Verb::Acquire, "jobs/")], None);
    node.rule(RuleChange::Turn { on: true });
    let mut session = Owned::open(&node, owner).await;
    let token = session.acquire(Some(owner), 1, "jobs/1").await.unwrap();
    let (identity, roles) = (Identity::parse("token:t1").unwrap(), BTreeSet::new());
    node.rule(RuleChange::SetRoles { identity, roles });

    let forbidden = session.acquire(Some(owner), 4, "jobs/3").await.unwrap_err();
    assert_eq!(forbidden.code(), Code::PermissionDenied);
    assert_eq!(session.acquire(Some(owner), 1, "jobs/1").await.unwrap(), token, "a copy");
    for ending in session.endings(Some(owner), token).await {
        ending.unwrap();
    }
}

pub(super) fn wants(request_id: u64, name: &str) -> Acquire {
    let item = Item { name: name.as_bytes().to_vec().into(), ..Item::default() };
    Acquire { request_id, items: vec![item], wait: true, ..Acquire::default() }
}

/// The frames of a stream that shows this token.
pub(super) async fn stream_of(
    node: &Node,
    token: Option<&'static str>,
    first: Ask,
) -> (mpsc::Sender<ClientFrames>, Streaming<ServerFrames>) {
    let (outgoing, frames) = mpsc::channel(16);
    outgoing.send(message(first)).await.unwrap();
    let frames = with(ReceiverStream::new(frames), token);
    (outgoing, node.client().await.session(frames).await.unwrap().into_inner())
}

pub(super) async fn next(incoming: &mut Streaming<ServerFrames>) -> Body {
    incoming.message().await.unwrap().unwrap().frames.remove(0).body.unwrap()
}

pub(super) fn refusal_of(body: Body) -> v1::Refusal {
    match body {
        Body::Refused(refused) => refused.refusal.unwrap(),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_stream_is_asked_at_its_open_and_at_each_request() {
    let node = node().await;
    let owner = node.token(1, &[(Verb::Acquire, "jobs/")], None);
    let other = node.token(2, &[(Verb::Acquire, "")], None);
    node.rule(RuleChange::Turn { on: true });

    let (_open, mut incoming) = stream_of(&node, None, Ask::Open(Open::default())).await;
    let refused = refusal_of(next(&mut incoming).await);
    assert_eq!(refused.reason(), v1::RefusalReason::Forbidden);

    let (outgoing, mut incoming) = stream_of(&node, Some(owner), Ask::Open(Open::default())).await;
    let Body::Opened(opened) = next(&mut incoming).await else { panic!("not opened") };
    outgoing.send(message(Ask::Acquire(wants(1, "pay/1")))).await.unwrap();
    let refused = refusal_of(next(&mut incoming).await);
    assert_eq!(refused.message, "not allowed: acquire on pay/1");
    outgoing.send(message(Ask::Acquire(wants(1, "jobs/1")))).await.unwrap();
    assert!(matches!(next(&mut incoming).await, Body::Granted(_)));

    // Its key, shown by another.
    let resume = v1::Resume {
        session_id: opened.session_id,
        secret: opened.secret,
        cluster_id: CLUSTER,
        ..v1::Resume::default()
    };
    let resume = || Ask::Open(Open { resume: Some(resume.clone()), ..Open::default() });
    for stranger in [None, Some(other)] {
        let (_resume, mut incoming) = stream_of(&node, stranger, resume()).await;
        let refused = refusal_of(next(&mut incoming).await);
        assert_eq!(refused.reason(), v1::RefusalReason::SessionUnknown, "{stranger:?}");
    }
    let (_resume, mut incoming) = stream_of(&node, Some(owner), resume()).await;
    assert!(matches!(next(&mut incoming).await, Body::Opened(_)));
}

#[tokio::test]
async fn a_watch_ends_when_the_rules_change_and_is_asked_anew() {
    let node = node().await;
    let reader = node.token(1, &[(Verb::Read, "jobs/")], None);
    node.rule(RuleChange::Turn { on: true });
    let mut client = node.client().await;
    let watch =
        || with(v1::WatchRequest { prefix: "jobs/".to_owned(), resume: None }, Some(reader));
    let mut watching = client.watch(watch()).await.unwrap().into_inner();
    assert!(watching.message().await.unwrap().is_some());

    let (identity, roles) = (Identity::parse("token:t1").unwrap(), BTreeSet::new());
    node.rule(RuleChange::SetRoles { identity, roles });
    let ended = loop {
        match watching.message().await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };

    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    assert_eq!(client.watch(watch()).await.unwrap_err().code(), Code::PermissionDenied);
}

/// Each refusal is counted by the verb that was missing: of a read, a command, a stream, a token.
#[tokio::test]
async fn refused_calls_are_counted_by_what_was_missing() {
    let node = node().await;
    let owner = node.token(1, &[(Verb::Acquire, "jobs/")], None);
    node.rule(RuleChange::Turn { on: true });
    let mut session = Owned::open(&node, owner).await;
    session.acquire(Some(owner), 1, "pay/1").await.unwrap_err();
    let look = || InspectRequest { name: NAME.to_owned() };
    let mut client = node.client().await;
    client.inspect(with(look(), Some(owner))).await.unwrap_err();
    client.inspect(with(look(), Some(header(99)))).await.unwrap_err();
    client.watch(with(v1::WatchRequest::default(), Some(owner))).await.unwrap_err();
    client.status(with(StatusRequest {}, None)).await.unwrap_err();
    client.open_session(with(v1::OpenSessionRequest::default(), None)).await.unwrap_err();
    // The owner of the session is looked up in a task of its own.
    Runtime::system().sleep(Duration::from_millis(50)).await;

    let counted = node.hub.metrics().denials.counted;
    for (verb, times) in [("acquire", 1), ("read", 2), ("token", 1), ("status", 1), ("any", 1)] {
        assert_eq!(counted.get_or_create(&[("verb", verb)]).get(), times, "{verb}");
    }
}

/// Nothing that was begun with a token goes on once it is revoked, or has ended.
#[tokio::test]
async fn streams_end_with_the_token_that_they_showed() {
    let node = node().await;
    let wall_ms = Runtime::system().clock.wall_ms();
    let all = [(Verb::Acquire, ""), (Verb::Read, "")];
    let revoked = node.token(1, &all, None);
    let ending = node.token(2, &all, Some(wall_ms + 1_500));
    for token in [revoked, ending] {
        let open = Ask::Open(Open::default());
        let (_open, mut session) = stream_of(&node, Some(token), open).await;
        assert!(matches!(next(&mut session).await, Body::Opened(_)));
        let request =
            with(v1::WatchRequest { prefix: "jobs/".to_owned(), resume: None }, Some(token));
        let mut watch = node.client().await.watch(request).await.unwrap().into_inner();
        assert!(watch.message().await.unwrap().is_some());

        node.rule(RuleChange::RevokeToken { name: AccessName::parse("t1").unwrap() });
        assert_eq!(session.message().await.unwrap_err().code(), Code::Unauthenticated);
        assert_eq!(watch.message().await.unwrap_err().code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn the_protocol_is_described_to_those_who_may_see_it_and_health_to_everybody() {
    let node = node().await;
    let may = node.token(1, &[(Verb::Reflect, "")], None);
    let may_not = node.token(2, &all_but(Verb::Reflect), None);
    node.rule(RuleChange::Turn { on: true });
    for (authorization, code) in [
        (None, Some(Code::PermissionDenied)),
        (Some(may_not), Some(Code::PermissionDenied)),
        (Some(header(99)), Some(Code::Unauthenticated)),
        (Some(may), None),
    ] {
        let list = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let request = with(tokio_stream::once(list), authorization);
        let mut client = ServerReflectionClient::new(node.channel().await);
        let answer = client.server_reflection_info(request).await;
        assert_eq!(answer.err().map(|status| status.code()), code, "{authorization:?}");
    }
    let mut health = HealthClient::new(node.channel().await);
    health.check(HealthCheckRequest::default()).await.unwrap();
}
