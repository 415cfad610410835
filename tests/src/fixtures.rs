//! The messages that release 0.1 puts on the wire, kept as bytes in `tests/fixtures/0.1/wire.txt`.
//!
//! Every kind of frame and message is there once, with fixed values, as 0.1 encodes it. A later
//! release has to decode the same values from these bytes and to encode them as the same bytes:
//! fields that it adds are unset in them. If a message gets a new field, it is unset here too.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use holdfast_proto::v1 as wire;
use prost::Message;
use wire::{client_frame, log_entry, server_frame};

/// As 0.1 wrote them: one line each, `name: hex`.
const OF_0_1: &str = include_str!("../fixtures/0.1/wire.txt");

/// One message, and the result of decoding and encoding its bytes again.
struct Line {
    name: &'static str,
    bytes: Vec<u8>,
    /// Encodes what it decoded; and whether that equals the message of the line.
    again: Box<Again>,
}

type Again = dyn Fn(&[u8]) -> (Vec<u8>, bool);

fn line<M: Message + Default + PartialEq + 'static>(name: &'static str, message: M) -> Line {
    let bytes = message.encode_to_vec();
    let again = move |bytes: &[u8]| {
        let decoded = M::decode(bytes).unwrap();
        (decoded.encode_to_vec(), decoded == message)
    };
    Line { name, bytes, again: Box::new(again) }
}

fn value() -> wire::Value {
    wire::Value { value: "half way".into(), token: TOKEN, suspect: true }
}

const TOKEN: u64 = (3 << 48) | 0x29;
const SECRET: &[u8] = &[7; 16];
const CLUSTER: &[u8] = &[9; 16];

fn items() -> Vec<wire::Item> {
    let item =
        |name: &'static str, mode: wire::Mode| wire::Item { name: name.into(), mode: mode.into() };
    vec![
        item("plain", wire::Mode::Unspecified),
        item("orders/42", wire::Mode::Exclusive),
        item("größe", wire::Mode::Shared),
    ]
}

fn acquire() -> wire::Acquire {
    let any = Some(wire::AnyOf { min: 1 });
    wire::Acquire {
        request_id: 5,
        items: items(),
        wait: true,
        follow_place: true,
        any,
        claim_owner: None,
    }
}

fn claim() -> wire::Acquire {
    let items = vec![wire::Item { name: "old".into(), mode: 0 }];
    let claim_owner = Some("host:17".to_owned());
    wire::Acquire { request_id: 6, items, wait: true, follow_place: false, any: None, claim_owner }
}

fn release() -> wire::Release {
    wire::Release { token: TOKEN, names: vec!["a".into(), "b".into()], lost: false }
}

fn set_value(change: wire::set_value::Change) -> wire::SetValue {
    wire::SetValue { request_id: 7, token: TOKEN, name: "a".into(), change: Some(change) }
}

fn client_frames() -> Vec<Line> {
    use client_frame::Body;
    let frame = |name, body| {
        let frames = vec![wire::ClientFrame { done_below: 4, body: Some(body) }];
        line(name, wire::ClientFrames { frames })
    };
    let open = wire::Open {
        ttl_ms: Some(10_000),
        label: "host:1".into(),
        resume: None,
        ..wire::Open::default()
    };
    let (secret, cluster_id) = (SECRET.into(), CLUSTER.into());
    let resume = wire::Resume { session_id: 3, secret, cluster_id, ..wire::Resume::default() };
    let again = wire::Open {
        ttl_ms: None,
        label: String::new(),
        resume: Some(resume),
        ..wire::Open::default()
    };
    vec![
        frame("client frame, open", Body::Open(open)),
        frame("client frame, open with resume", Body::Open(again)),
        frame("client frame, keep_alive", Body::KeepAlive(wire::KeepAlive { seq: 12 })),
        frame("client frame, acquire", Body::Acquire(acquire())),
        frame("client frame, acquire with claim_owner", Body::Acquire(claim())),
        frame("client frame, cancel", Body::Cancel(wire::Cancel { request_id: 5 })),
        frame("client frame, release", Body::Release(release())),
        frame("client frame, close", Body::Close(wire::Close {})),
        frame(
            "client frame, set_value",
            Body::SetValue(set_value(wire::set_value::Change::Value("v".into()))),
        ),
        frame(
            "client frame, set_value with clear",
            Body::SetValue(set_value(wire::set_value::Change::Clear(wire::Clear {}))),
        ),
        frame(
            "client frame, set_value with confirm",
            Body::SetValue(set_value(wire::set_value::Change::Confirm(wire::Confirm {}))),
        ),
    ]
}

fn holder() -> wire::Holder {
    let mode = wire::Mode::Shared.into();
    wire::Holder {
        session_id: 3,
        label: "host:1".into(),
        token: TOKEN,
        held_ms: 1_234,
        mode,
        imported: true,
        ..wire::Holder::default()
    }
}

fn refusal() -> wire::Refusal {
    wire::Refusal {
        reason: wire::RefusalReason::Limit.into(),
        message: "too many".into(),
        holders: vec![holder()],
        limit: "max_sessions".into(),
        retry_after_ms: Some(500),
        outcome_unknown: true,
    }
}

fn scopes() -> Vec<wire::ScopeAuthority> {
    vec![wire::ScopeAuthority { scope: "s/".into(), epoch: 3, remaining_ms: 24_000 }]
}

fn granted() -> wire::Granted {
    let values = vec![wire::NamedValue { name: "a".into(), value: Some(value()) }];
    wire::Granted { request_id: 5, token: TOKEN, names: vec!["a".into()], values }
}

fn queued() -> wire::Queued {
    wire::Queued { request_id: 5, place: 2, holders: vec![holder()] }
}

fn state() -> wire::State {
    use wire::request_state::State;
    let denied = wire::Denied { request_id: 7, refusal: Some(refusal()) };
    let states = [
        State::Queued(queued()),
        State::Granted(granted()),
        State::Denied(denied),
        State::Ended(wire::Ended {}),
        State::ValueSet(wire::ValueSet { request_id: 9 }),
    ];
    let request =
        |(nth, state): (u64, _)| wire::RequestState { request_id: 5 + nth, state: Some(state) };
    let requests = (0..).zip(states).map(request).collect();
    wire::State { requests, next_request_id: 10, ..wire::State::default() }
}

/// Frames that answer a request, or report on a session.
fn server_frames() -> Vec<Line> {
    use server_frame::Body;
    let reason = wire::LostReason::EpochRaised.into();
    let opened = wire::Opened {
        session_id: 3,
        secret: SECRET.into(),
        cluster_id: CLUSTER.into(),
        ttl_ms: 10_000,
        scopes: scopes(),
        ..wire::Opened::default()
    };
    let moved = wire::Moved { request_id: 5, place: 1, holders: vec![holder()] };
    let released =
        wire::Released { token: TOKEN, request_id: 5, names: vec!["a".into()], partly: true };
    let was = wire::cancelled::Was::Held.into();
    let subject = Some(wire::refused::Subject::Token(TOKEN));
    let refused = wire::Refused { subject, refusal: Some(refusal()) };
    let leader = || Some("10.0.0.2:7420".to_owned());
    let denied = wire::Denied { request_id: 5, refusal: Some(refusal()) };
    vec![
        server_frame("server frame, opened", Body::Opened(opened)),
        server_frame(
            "server frame, kept_alive",
            Body::KeptAlive(wire::KeptAlive {
                seq: 12,
                scopes: scopes(),
                ..wire::KeptAlive::default()
            }),
        ),
        server_frame("server frame, queued", Body::Queued(queued())),
        server_frame("server frame, moved", Body::Moved(moved)),
        server_frame("server frame, granted", Body::Granted(granted())),
        server_frame("server frame, denied", Body::Denied(denied)),
        server_frame("server frame, released", Body::Released(released)),
        server_frame(
            "server frame, cancelled",
            Body::Cancelled(wire::Cancelled { request_id: 5, was }),
        ),
        server_frame(
            "server frame, lost",
            Body::Lost(wire::Lost { request_id: 5, token: TOKEN, reason }),
        ),
        server_frame(
            "server frame, contended",
            Body::Contended(wire::Contended { request_id: 5, token: TOKEN, name: "a".into() }),
        ),
        server_frame("server frame, state", Body::State(state())),
        server_frame("server frame, refused", Body::Refused(refused)),
        server_frame("server frame, redirect", Body::Redirect(wire::Redirect { leader: leader() })),
        server_frame(
            "server frame, going_away",
            Body::GoingAway(wire::GoingAway { leader: leader() }),
        ),
        server_frame(
            "server frame, session_ended",
            Body::SessionEnded(wire::SessionEnded { reason, ..wire::SessionEnded::default() }),
        ),
        server_frame("server frame, value_set", Body::ValueSet(wire::ValueSet { request_id: 7 })),
    ]
}

fn server_frame(name: &'static str, body: server_frame::Body) -> Line {
    line(
        name,
        wire::ServerFrames { frames: vec![wire::ServerFrame { index: 77, body: Some(body) }] },
    )
}

#[expect(clippy::unnecessary_wraps, reason = "the fields that it fills are optional")]
fn key() -> Option<wire::SessionKey> {
    Some(wire::SessionKey { session_id: 3, secret: SECRET.into() })
}

/// The unary calls of a session.
fn calls() -> Vec<Line> {
    let ttl_ms = 10_000;
    let cancelled = wire::Cancelled { request_id: 5, was: wire::cancelled::Was::Waiting.into() };
    let released = wire::Released { token: TOKEN, request_id: 5, names: Vec::new(), partly: false };
    let change = wire::set_value::Change::Value("v".into());
    let (ttl, label) = (Some(ttl_ms), "host:1".into());
    let open = wire::OpenSessionRequest { ttl_ms: ttl, label, ..Default::default() };
    let kept = wire::KeepAliveResponse { ttl_ms, scopes: scopes(), ..Default::default() };
    vec![
        line("OpenSession", open),
        line(
            "OpenSession, answer",
            wire::OpenSessionResponse {
                session: key(),
                cluster_id: CLUSTER.into(),
                ttl_ms,
                scopes: scopes(),
            },
        ),
        line("KeepAlive", wire::KeepAliveRequest { session: key() }),
        line("KeepAlive, answer", kept),
        line(
            "Acquire",
            wire::AcquireRequest {
                session: key(),
                done_below: 4,
                acquire: Some(acquire()),
                wait_ms: Some(900),
            },
        ),
        line("Acquire, answer", wire::AcquireResponse { index: 77, granted: Some(granted()) }),
        line(
            "Cancel",
            wire::CancelRequest {
                session: key(),
                done_below: 4,
                cancel: Some(wire::Cancel { request_id: 5 }),
            },
        ),
        line("Cancel, answer", wire::CancelResponse { cancelled: Some(cancelled) }),
        line(
            "Release",
            wire::ReleaseRequest { session: key(), done_below: 4, release: Some(release()) },
        ),
        line("Release, answer", wire::ReleaseResponse { released: Some(released) }),
        line(
            "SetValue",
            wire::SetValueRequest {
                session: key(),
                done_below: 4,
                set_value: Some(set_value(change)),
            },
        ),
        line("CloseSession", wire::CloseSessionRequest { session: key() }),
    ]
}

fn waiter() -> wire::WaiterInfo {
    wire::WaiterInfo {
        session_id: 4,
        label: "host:2".into(),
        request_id: 1,
        waiting_ms: 55,
        mode: wire::Mode::Exclusive.into(),
        names: 2,
        imported: true,
        ..wire::WaiterInfo::default()
    }
}

fn lock() -> wire::LockInfo {
    wire::LockInfo {
        name: "s/a".into(),
        holders: vec![holder()],
        waiting: 1,
        queue: vec![waiter()],
        value: Some(value()),
        has_value: true,
        held_by: 1,
        scope: Some(wire::LockScope { prefix: "s/".into(), epoch: 3, suspended: true }),
    }
}

fn questions() -> Vec<Line> {
    let member = wire::Member {
        node_id: 2,
        advertise: "10.0.0.2:7420".into(),
        peer_advertise: "10.0.0.2:7421".into(),
    };
    let status = wire::StatusResponse {
        cluster_id: CLUSTER.into(),
        node_id: 1,
        leader_id: Some(2),
        leader: Some("10.0.0.2:7420".into()),
        term: 4,
        applied_index: 77,
        version: "0.1.0".into(),
        members: vec![member],
        ready: true,
        state_hash: vec![5; 32].into(),
    };
    let list =
        wire::ListRequest { prefix: "s/".into(), page_size: Some(9), page_token: "s/a".into() };
    let page = wire::ListResponse { index: 77, locks: vec![lock()], next_page_token: "s/b".into() };
    vec![
        line("Inspect", wire::InspectRequest { name: "s/a".into() }),
        line("Inspect, answer", wire::InspectResponse { index: 77, lock: Some(lock()) }),
        line("List", list),
        line("List, answer", page),
        line("Status, answer", status),
        line("CheckToken", wire::CheckTokenRequest { name: "s/a".into(), token: TOKEN }),
        line("CheckToken, answer", wire::CheckTokenResponse { index: 77, current: true }),
        line("InspectSession", wire::InspectSessionRequest { session_id: 3 }),
        line(
            "InspectSession, answer",
            wire::InspectSessionResponse { index: 77, session: Some(session()) },
        ),
        line("Watch", wire::WatchRequest { prefix: "s/".into(), resume: None }),
        line("Watch, answer", wire::WatchResponse::of(news())),
        line("Now, answer", wire::NowResponse { now_us: 1_700_000_000_000_000 }),
    ]
}

fn session() -> wire::SessionInfo {
    use wire::session_request::State;
    let request = |request_id, state| wire::SessionRequest {
        request_id,
        names: vec!["s/a".into()],
        name_count: 1,
        since_ms: 55,
        state: Some(state),
        ..wire::SessionRequest::default()
    };
    wire::SessionInfo {
        session_id: 3,
        label: "host:1".into(),
        ttl_ms: 10_000,
        age_ms: 60,
        imported: true,
        requests: vec![request(1, State::Held(TOKEN)), request(2, State::Place(1))],
        request_count: 2,
        ..wire::SessionInfo::default()
    }
}

fn news() -> Vec<wire::WatchEvent> {
    use wire::{lock_change::What, watch_event::Body};
    let reason = wire::LostReason::SessionExpired.into();
    let whats = [
        What::Queued(waiter()),
        What::Left(waiter()),
        What::Granted(holder()),
        What::Released(holder()),
        What::Lost(wire::HoldLost { holder: Some(holder()), reason }),
        What::ValueChanged(wire::ValueChanged { value: Some(value()) }),
    ];
    let change =
        |what| Body::Change(wire::LockChange { name: "s/a".into(), what: Some(what), waiting: 1 });
    let bodies = [Body::Lock(lock()), Body::Synced(wire::Synced {})];
    let all = bodies.into_iter().chain(whats.into_iter().map(change));
    all.map(|body| wire::WatchEvent { index: 77, body: Some(body) }).collect()
}

fn imports() -> Vec<Line> {
    use wire::{import_fate::Fate, import_row::Has};
    let row = |name: &'static str, has| wire::ImportRow { name: name.into(), has: Some(has) };
    let rows = vec![
        row("a", Has::Hold(wire::ImportHold { value: Some("v".into()) })),
        row("b", Has::Hold(wire::ImportHold { value: None })),
        row("c", Has::Place(wire::ImportPlace {})),
    ];
    let group = wire::ImportGroup { owner: "host:17".into(), remaining_ms: 90_000, rows };
    let fates = [
        Fate::Held(TOKEN),
        Fate::Queued(2),
        Fate::Known(wire::ImportKnown {}),
        Fate::Refused(refusal()),
    ];
    let rows = fates.into_iter().map(|fate| wire::ImportFate { fate: Some(fate) }).collect();
    let groups = vec![wire::ImportedGroup { rows }];
    vec![
        line("Import", wire::ImportRequest { groups: vec![group] }),
        line("Import, answer", wire::ImportResponse { groups }),
    ]
}

fn operators() -> Vec<Line> {
    let member = wire::ClusterMember {
        node_id: 2,
        advertise: "10.0.0.2:7420".into(),
        peer_advertise: "10.0.0.2:7421".into(),
        votes: true,
        leads: true,
        last_log_index: Some(80),
        applied_index: Some(77),
        snapshot_index: Some(60),
        lag: 3,
        silent_ms: Some(20),
        answers: true,
        version: Some("0.1.0".into()),
    };
    let status = wire::ClusterStatusResponse {
        cluster_id: CLUSTER.into(),
        leader_id: 2,
        term: 4,
        quorum_ms: Some(20),
        changing: true,
        highest_node_id: 5,
        members: vec![member],
    };
    let learner = wire::AddLearnerRequest {
        node_id: 5,
        advertise: "10.0.0.5:7420".into(),
        peer_advertise: "10.0.0.5:7421".into(),
    };
    let reason = wire::ClusterRefusalReason::Busy.into();
    vec![
        line("ClusterStatus, answer", status),
        line("AddLearner", learner),
        line("Promote", wire::PromoteRequest { node_id: 5 }),
        line("Remove", wire::RemoveRequest { node_id: 5 }),
        line("TransferLeader", wire::TransferLeadershipRequest { to: Some(2) }),
        line("refusal of ClusterService", wire::ClusterRefusal { reason, message: "wait".into() }),
    ]
}

fn operators_of_scopes() -> Vec<Line> {
    let row = wire::AuthorityRow {
        mode: "native".into(),
        epoch: 3,
        take_over_ms: 30_000,
        hold_ms: 15_000,
    };
    let scope = wire::ScopeInfo {
        scope: "s/".into(),
        epoch: 3,
        suspended: true,
        row: Some(row),
        authority_ms: Some(24_000),
        beat_age_ms: Some(900),
        switches: 2,
        refused_switches: 1,
        trouble: "no answer".into(),
    };
    vec![
        line("SetScope", wire::SetScopeRequest { scope: "s/".into() }),
        line("SetScope, answer", wire::SetScopeResponse { epoch: 3 }),
        line("RemoveScope", wire::RemoveScopeRequest { scope: "s/".into() }),
        line(
            "ListScopes, answer",
            wire::ListScopesResponse { scopes: vec![scope], has_fallback: true },
        ),
    ]
}

const VOTE: wire::VoteState = wire::VoteState { term: 4, node_id: Some(2), committed: true };

#[expect(clippy::unnecessary_wraps, reason = "the fields that it fills are optional")]
fn at(index: u64) -> Option<wire::LogId> {
    Some(wire::LogId { term: 4, node_id: 0, index })
}

#[expect(clippy::unnecessary_wraps, reason = "the fields that it fills are optional")]
fn header() -> Option<wire::PeerHeader> {
    let cluster_id = CLUSTER.into();
    Some(wire::PeerHeader { cluster_id, incarnation: 1, from_node: 2, to_node: 3, group: 0 })
}

fn membership() -> wire::Membership {
    let configs = vec![wire::VoterSet { node_ids: vec![1, 2, 3] }];
    wire::Membership { configs, nodes: vec![peer()] }
}

fn peer() -> wire::PeerMember {
    wire::PeerMember {
        node_id: 2,
        advertise: "10.0.0.2:7420".into(),
        peer_advertise: "10.0.0.2:7421".into(),
    }
}

/// First start, and the status that a member reports.
fn peers_meet() -> Vec<Line> {
    let promise = wire::PromiseRequest {
        cluster_id: CLUSTER.into(),
        from_node: 2,
        to_node: 3,
        members: vec![peer()],
        incarnation: 1,
        start_id: Some(vec![6; 16].into()),
    };
    let hello = wire::HelloResponse {
        node_id: 3,
        cluster_id: Some(CLUSTER.into()),
        initialised: true,
        command_version: 4,
        version: "0.1.0".into(),
        below_disk_reserve: true,
        incarnation: 1,
        start_id: vec![6; 16].into(),
        joining: true,
        highest_node_id: 5,
        removed: true,
        last_log_index: Some(80),
        applied_index: Some(77),
        snapshot_index: Some(60),
        ..wire::HelloResponse::default()
    };
    vec![
        line("peer, Promise", promise),
        line(
            "peer, Promise, answer",
            wire::PromiseResponse { promised: false, refusal: "no".into() },
        ),
        line("peer, Hello", wire::HelloRequest { from_node: 2 }),
        line("peer, Hello, answer", hello),
    ]
}

/// Messages that carry the log.
fn peers_append() -> Vec<Line> {
    use log_entry::Payload;
    use wire::append_response::Result;
    let payloads = [
        Payload::Blank(wire::Blank {}),
        Payload::Batch("batch".into()),
        Payload::Membership(membership()),
    ];
    let entry =
        |(index, payload): (u64, _)| wire::LogEntry { log_id: at(index), payload: Some(payload) };
    let entries: Vec<_> = (78..).zip(payloads).map(entry).collect();
    let append = |header, entries| wire::AppendRequest {
        header,
        vote: Some(VOTE),
        prev: at(77),
        leader_commit: at(76),
        entries,
    };
    let answer = |result| wire::AppendResponse { result: Some(result), below_disk_reserve: true };
    vec![
        line("peer, Append, first of a stream", append(header(), entries)),
        line("peer, Append, heartbeat", append(None, Vec::new())),
        line(
            "peer, Append, answer matched",
            answer(Result::Matched(wire::Matched { log_id: at(80), whole: true })),
        ),
        line(
            "peer, Append, answer conflict",
            answer(Result::Conflict(wire::LogId { term: 3, node_id: 0, index: 77 })),
        ),
        line("peer, Append, answer higher_vote", answer(Result::HigherVote(VOTE))),
    ]
}

/// Elections and snapshots.
fn peers_elect() -> Vec<Line> {
    let vote = wire::VoteRequest {
        header: header(),
        vote: Some(wire::VoteState { term: 5, node_id: Some(2), committed: false }),
        last_log_id: at(80),
        leadership_transfer: true,
    };
    let meta = wire::SnapshotMeta {
        last_log_id: at(60),
        membership_log_id: at(1),
        membership: Some(membership()),
        cluster_id: CLUSTER.into(),
        incarnation: 1,
        highest_node_id: 5,
    };
    let sha256 = vec![8; 32].into();
    let head = wire::SnapshotHead {
        header: header(),
        vote: Some(VOTE),
        meta: Some(meta.clone()),
        size: 5,
        sha256,
    };
    let transfer = wire::TransferLeaderRequest {
        header: header(),
        from: Some(VOTE),
        to_node: 3,
        last_log_id: at(80),
    };
    vec![
        line("peer, Vote and PreVote", vote),
        line(
            "peer, Vote, answer",
            wire::VoteResponse { vote: Some(VOTE), granted: true, last_log_id: at(80) },
        ),
        line(
            "peer, InstallSnapshot, first chunk",
            wire::SnapshotChunk { head: Some(head), data: "HOLDF".into() },
        ),
        line(
            "peer, InstallSnapshot, chunk",
            wire::SnapshotChunk { head: None, data: "AST".into() },
        ),
        line("peer, InstallSnapshot, answer", wire::SnapshotResponse { vote: Some(VOTE) }),
        line("peer, TransferLeader", transfer),
        line("stored, meta of a snapshot", meta),
        line("stored, membership of a log record", membership()),
    ]
}

fn all() -> Vec<Line> {
    let parts = [
        client_frames(),
        server_frames(),
        calls(),
        questions(),
        imports(),
        operators(),
        operators_of_scopes(),
        peers_meet(),
        peers_append(),
        peers_elect(),
    ];
    parts.into_iter().flatten().collect()
}

fn kept() -> BTreeMap<&'static str, Vec<u8>> {
    let lines = OF_0_1.lines().filter(|line| !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let (name, hex) = line.split_once(": ").unwrap();
        (name, hex::decode(hex).unwrap())
    });
    parsed.collect()
}

#[test]
fn every_message_that_0_1_writes_is_decoded_and_encoded_to_the_same_bytes() {
    let kept = kept();
    let mut said = String::new();
    for Line { name, bytes, again } in all() {
        let _ = writeln!(said, "{name}: {}", hex::encode(&bytes));
        let Some(of_0_1) = kept.get(name) else { continue };
        let (encoded, same) = again(of_0_1);
        assert!(same, "{name}: 0.1 meant something else by these bytes");
        assert_eq!(hex::encode(encoded), hex::encode(of_0_1), "{name}");
    }
    let names: Vec<_> = said.lines().filter_map(|line| line.split(": ").next()).collect();
    let missing: Vec<_> = kept.keys().filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty() && kept.len() == names.len(), "{missing:?}; all lines are:\n{said}");
}
