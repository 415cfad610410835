//! The cells of the matrix that no call stands for: each frame of a stream, each change of the rules, and
//! tokens that do not count where a session's key is shown (I26, I36).

use std::collections::BTreeSet;

use holdfast_core::{AccessName, Identity, RIGHTS_MAX, RuleChange, Verb};
use holdfast_proto::v1::auth_service_client::AuthServiceClient;
use holdfast_proto::v1::change_rules_request::Change;
use holdfast_proto::v1::{self, RefusalReason};
use prost::Message as _;
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use tonic::Request;

use super::rights::{Owned, all_but, header, next, refusal_of, stream_of, wants, with};
use super::*;

/// Headers that show no token which counts. The last two show tokens that did.
fn wrong_headers(node: &Node) -> Vec<&'static str> {
    let all: Vec<_> = Verb::ALL.into_iter().map(|verb| (verb, "")).collect();
    let ended = node.token(102, &all, Some(1));
    let revoked = node.token(103, &all, None);
    node.rule(RuleChange::RevokeToken { name: AccessName::parse("t103").unwrap() });
    vec![header(99), "Bearer", "Bearer hft_", "Basic b3BzOm9wcw==", "", ended, revoked]
}

fn set_of(request_id: u64, names: &[&str]) -> Acquire {
    let items = names.iter().flat_map(|name| wants(request_id, name).items).collect();
    Acquire { request_id, items, wait: true, ..Acquire::default() }
}

fn claim(request_id: u64, name: &str) -> Acquire {
    Acquire { claim_owner: Some("old".to_owned()), ..wants(request_id, name) }
}

fn set_value(request_id: u64, token: u64, name: &'static str) -> v1::SetValue {
    let change = Some(v1::set_value::Change::Value(Bytes::from_static(b"x")));
    v1::SetValue { request_id, token, name: Bytes::from_static(name.as_bytes()), change }
}

/// Each frame after Open by its field, of a client that holds jobs/1 under `token`; and whether it needs a right.
fn frames(token: u64) -> Vec<(&'static str, Ask, bool)> {
    vec![
        ("acquire", Ask::Acquire(wants(2, "jobs/2")), true),
        ("acquire", Ask::Acquire(set_of(3, &["jobs/3", "jobs/4"])), true),
        ("acquire", Ask::Acquire(claim(4, "jobs/5")), true),
        ("set_value", Ask::SetValue(set_value(5, token, "jobs/1")), true),
        ("keep_alive", Ask::KeepAlive(v1::KeepAlive { seq: 1 }), false),
        ("cancel", Ask::Cancel(v1::Cancel { request_id: 9 }), false),
        ("release", Ask::Release(v1::Release { token, ..v1::Release::default() }), false),
        ("close", Ask::Close(v1::Close {}), false),
    ]
}

/// Each change of the rules by its field. None takes anything from the caller of these tests.
fn changes() -> Vec<(&'static str, Change)> {
    let made = || "made".to_owned();
    let identity = || "cn:x".to_owned();
    let of_one = |quota| v1::IdentityQuota { identity: Some(identity()), quota };
    vec![
        ("on", Change::On(true)),
        ("set_role", Change::SetRole(v1::Role { name: made(), rights: Vec::new() })),
        ("remove_role", Change::RemoveRole(made())),
        (
            "set_roles",
            Change::SetRoles(v1::IdentityRoles { identity: identity(), roles: Vec::new() }),
        ),
        ("revoke_token", Change::RevokeToken(made())),
        ("set_quota", Change::SetQuota(of_one(Some(v1::Quota::default())))),
    ]
}

/// The fields of a oneof, as the descriptors of the protocol have them.
fn fields_of(message: &str, oneof: &str) -> BTreeSet<String> {
    let set = FileDescriptorSet::decode(holdfast_proto::FILE_DESCRIPTOR_SET).unwrap();
    let is_it = |found: &&DescriptorProto| found.name() == message;
    let found = set.file.iter().flat_map(|file| &file.message_type).find(is_it).unwrap();
    let index = found.oneof_decl.iter().position(|decl| decl.name() == oneof).unwrap();
    let is_of_it = |field: &&FieldDescriptorProto| {
        field.oneof_index.is_some_and(|at| usize::try_from(at) == Ok(index))
    };
    found.field.iter().filter(is_of_it).map(|field| field.name().to_owned()).collect()
}

/// A frame or a change that is in neither list is one whose right nobody has thought of.
#[test]
fn every_frame_and_every_change_of_the_rules_is_in_the_matrix() {
    let known = frames(1).into_iter().map(|(field, ..)| field).chain(["open"]);
    assert_eq!(fields_of("ClientFrame", "body"), known.map(str::to_owned).collect());
    let known = changes().into_iter().map(|(field, _)| field);
    assert_eq!(fields_of("ChangeRulesRequest", "change"), known.map(str::to_owned).collect());
}

fn is_forbidden(answer: &Body) -> bool {
    let Body::Refused(refused) = answer else { return false };
    let refusal = refused.refusal.as_ref();
    refusal.is_some_and(|refusal| refusal.reason() == RefusalReason::Forbidden)
}

/// Turns the rules on; returns a token that may acquire below `jobs/` and nothing else.
fn rules_for_jobs(node: &Node) -> &'static str {
    let owner = node.token(1, &[(Verb::Acquire, "jobs/")], None);
    node.rule(RuleChange::Turn { on: true });
    owner
}

/// A stream on which a session of `owner` is open.
async fn opened_stream(
    node: &Node,
    owner: &'static str,
) -> (mpsc::Sender<ClientFrames>, Streaming<ServerFrames>) {
    let open = Ask::Open(Open::default());
    let (outgoing, mut incoming) = stream_of(node, Some(owner), open).await;
    assert!(matches!(next(&mut incoming).await, Body::Opened(_)));
    (outgoing, incoming)
}

/// Open itself stands in `a_stream_is_asked_at_its_open_and_at_each_request`.
#[tokio::test]
async fn each_frame_that_gains_something_needs_its_right_when_it_comes() {
    for has_right in [true, false] {
        let node = node().await;
        let owner = rules_for_jobs(&node);
        let (outgoing, mut incoming) = opened_stream(&node, owner).await;
        outgoing.send(message(Ask::Acquire(wants(1, "jobs/1")))).await.unwrap();
        let Body::Granted(granted) = next(&mut incoming).await else { panic!("not granted") };
        if !has_right {
            let (identity, roles) = (Identity::parse("token:t1").unwrap(), BTreeSet::new());
            node.rule(RuleChange::SetRoles { identity, roles });
        }

        for (field, frame, needs_right) in frames(granted.token) {
            outgoing.send(message(frame)).await.unwrap();
            let answer = next(&mut incoming).await;
            assert_eq!(is_forbidden(&answer), needs_right && !has_right, "{field}: {answer:?}");
        }
    }
}

/// Of a set with one forbidden name nothing is granted, on a stream and by a call.
#[tokio::test]
async fn a_set_a_claim_or_a_value_of_a_forbidden_name_is_refused_whole() {
    const SAYS: &str = "not allowed: acquire on pay/1";
    let node = node().await;
    let owner = rules_for_jobs(&node);
    let (outgoing, mut incoming) = opened_stream(&node, owner).await;
    for frame in [
        Ask::Acquire(set_of(1, &["jobs/1", "pay/1"])),
        Ask::Acquire(claim(2, "pay/1")),
        Ask::SetValue(set_value(3, 1, "pay/1")),
    ] {
        outgoing.send(message(frame)).await.unwrap();
        assert_eq!(refusal_of(next(&mut incoming).await).message, SAYS);
    }

    let Owned { mut client, session } = Owned::open(&node, owner).await;
    let mut call = async |acquire: Acquire| {
        let request = v1::AcquireRequest {
            session: session.clone(),
            acquire: Some(acquire),
            ..v1::AcquireRequest::default()
        };
        client.acquire(with(request, Some(owner))).await.map(drop)
    };
    for acquire in [set_of(1, &["jobs/1", "pay/1"]), claim(2, "pay/1")] {
        let refused = call(acquire).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::PermissionDenied, SAYS));
    }
    let nobody_holds_it = Acquire { wait: false, ..wants(3, "jobs/1") };
    call(nobody_holds_it).await.unwrap();
}

/// The status of a stream that is refused before its first frame is read.
async fn refused_stream(node: &Node, who: &'static str, first: Ask) -> Status {
    let (outgoing, frames) = mpsc::channel(16);
    outgoing.send(message(first)).await.unwrap();
    let frames = with(ReceiverStream::new(frames), Some(who));
    node.client().await.session(frames).await.map(drop).unwrap_err()
}

/// The right key is of no use to a caller whose token does not count, its owner's own among them.
#[tokio::test]
async fn a_token_that_does_not_count_opens_nothing_with_a_key_either() {
    let node = node().await;
    let owner = node.token(1, &[(Verb::Acquire, "jobs/")], None);
    let wrong = wrong_headers(&node);
    node.rule(RuleChange::Turn { on: true });
    let mut session = Owned::open(&node, owner).await;
    let token = session.acquire(Some(owner), 1, "jobs/1").await.unwrap();
    let key = session.session.clone().unwrap();
    let resume = v1::Resume {
        session_id: key.session_id,
        secret: key.secret,
        cluster_id: CLUSTER,
        ..v1::Resume::default()
    };
    let resume = || Ask::Open(Open { resume: Some(resume.clone()), ..Open::default() });
    let mut all_refused = async |who: &'static str| {
        let mut answers = session.endings(Some(who), token).await;
        answers.push(session.acquire(Some(who), 3, "jobs/2").await.map(drop));
        answers.push(session.set_value(Some(who), token).await);
        for first in [Ask::Open(Open::default()), resume()] {
            answers.push(Err(refused_stream(&node, who, first).await));
        }
        for answer in answers {
            assert_eq!(answer.unwrap_err().code(), Code::Unauthenticated, "{who}");
        }
    };

    for who in wrong {
        all_refused(who).await;
    }
    // The hold was not ended by any of them.
    let inspected = InspectRequest { name: "jobs/1".to_owned() };
    let reader = node.token(2, &[(Verb::Read, "")], None);
    let seen = node.client().await.inspect(with(inspected, Some(reader))).await.unwrap();
    assert_eq!(seen.into_inner().lock.unwrap().held_by, 1);
    node.rule(RuleChange::RevokeToken { name: AccessName::parse("t1").unwrap() });
    all_refused(owner).await;
}

#[tokio::test]
async fn each_change_of_the_rules_is_for_those_alone_who_may_change_them() {
    let node = node().await;
    let may = node.token(1, &[(Verb::Rules, "")], None);
    let may_not = node.token(2, &all_but(Verb::Rules), None);
    let wrong = wrong_headers(&node);
    node.rule(RuleChange::Turn { on: true });
    let mut client = AuthServiceClient::new(node.channel().await);
    for (field, change) in changes() {
        let mut ask = async |who: Option<&'static str>| {
            let request = v1::ChangeRulesRequest { change: Some(change.clone()) };
            let answer = client.change_rules(with(request, who)).await;
            answer.err().map_or(Code::Ok, |status| status.code())
        };
        for who in [None, Some(may_not)] {
            assert_eq!(ask(who).await, Code::PermissionDenied, "{field}: {who:?}");
        }
        for &who in &wrong {
            assert_eq!(ask(Some(who)).await, Code::Unauthenticated, "{field}: {who}");
        }
        assert_eq!(ask(Some(may)).await, Code::Ok, "{field}");
    }
}

/// A right whose prefix need not be text, in the encoding of `v1::Right`.
#[derive(Clone, PartialEq, prost::Message)]
struct RawRight {
    #[prost(string, tag = "1")]
    verb: String,
    #[prost(bytes = "vec", tag = "2")]
    prefix: Vec<u8>,
}

/// As `v1::Role`.
#[derive(Clone, PartialEq, prost::Message)]
struct RawRole {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    rights: Vec<RawRight>,
}

/// As `v1::ChangeRulesRequest` with a role.
#[derive(Clone, PartialEq, prost::Message)]
struct RawChange {
    #[prost(message, optional, tag = "2")]
    set_role: Option<RawRole>,
}

async fn set_raw_role(node: &Node, role: RawRole) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(node.channel().await);
    grpc.ready().await.unwrap();
    let path = "/holdfast.v1.AuthService/ChangeRules".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<RawChange, v1::ChangeRulesResponse>::default();
    let request = Request::new(RawChange { set_role: Some(role) });
    grpc.unary(request, path, codec).await.map(drop)
}

/// Each refusal names what was wrong.
#[tokio::test]
async fn rules_that_are_too_many_or_no_text_are_refused_and_change_nothing() {
    let node = node().await;
    let role = |name: &str, prefixes: Vec<Vec<u8>>| {
        let right = |prefix| RawRight { verb: "acquire".to_owned(), prefix };
        RawRole { name: name.to_owned(), rights: prefixes.into_iter().map(right).collect() }
    };
    let many = |number: u64| -> Vec<Vec<u8>> {
        (0..number).map(|at| format!("jobs/{at}").into_bytes()).collect()
    };

    set_raw_role(&node, role("all", many(RIGHTS_MAX))).await.unwrap();
    let refused = set_raw_role(&node, role("all", many(RIGHTS_MAX + 1))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let says = "there may be 10000 rights of all roles together at most";
    assert_eq!(refused.message(), says);
    let refused = set_raw_role(&node, role("odd", vec![vec![b'j', 0xff]])).await.unwrap_err();
    let says = refused.message();
    assert!(says.contains("Right.prefix") && says.contains("UTF-8"), "{refused:?}");

    let mut roles = Vec::new();
    node.hub.consensus().read(&mut |table, _| {
        let role = |(name, rights): (&AccessName, &BTreeSet<_>)| (name.to_string(), rights.len());
        roles = table.rules().roles().map(role).collect();
    });
    assert_eq!(roles, [("all".to_owned(), 10_000)]);
}
