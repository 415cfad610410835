//! Bad input, over the wire and to the real server: each gets a clear error that names the thing,
//! and nothing that was acknowledged is lost (I12, I13, I27).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

mod several;
mod values;

use std::time::Duration;

use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::{
    ClientFrame, ClientFrames, KeepAlive, ListRequest, LockInfo, LostReason, Open, Refusal,
    RefusalReason, Resume,
};
use holdfast_runtime::Runtime;
use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::run;
use holdfast_tests::wire::{Ticket, Wire, acquire, connect};
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tonic::Code;

const TTL_MS: u64 = 30_000;

async fn one_node() -> (Cluster, String) {
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let address = cluster.nodes()[0].listen.clone();
    (cluster, address)
}

async fn pause(ms: u64) {
    Runtime::system().sleep(Duration::from_millis(ms)).await;
}

/// Checks that the refusal is of this kind, and that its message names these things.
fn assert_refusal(refusal: &Refusal, reason: RefusalReason, words: &[&str]) {
    assert_eq!(refusal.reason(), reason, "{refusal:?}");
    for word in words {
        assert!(refusal.message.contains(word), "no {word:?} in {:?}", refusal.message);
    }
}

/// The stream still serves.
async fn assert_serves(wire: &mut Wire, request: u64) {
    wire.acquire(request, format!("still-serves/{request}"), true).await;
    wire.granted(request).await;
}

#[tokio::test]
async fn a_bad_name_is_refused_by_the_rule_it_breaks_and_the_stream_goes_on() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let huge = vec![b'a'; 100_000];
    let names: [(&[u8], &str); 7] = [
        (b"", "empty"),
        (&huge[..513], "513"),
        (&huge, "100000"),
        (b"ok\xff", "UTF-8"),
        (b"a\nb", "000A"),
        (b"a\x00", "0000"),
        ("a\u{202E}b".as_bytes(), "202E"),
    ];

    for (request, (name, words)) in (1..).zip(names) {
        wire.acquire(request, name, true).await;
        assert_refusal(&wire.refused().await, RefusalReason::Invalid, &[words]);
    }

    assert_serves(&mut wire, 100).await;
}

#[tokio::test]
async fn a_lease_outside_the_bounds_is_refused_with_the_bounds_and_never_clamped() {
    let (_cluster, address) = one_node().await;

    for ttl_ms in [0, 1, 999, 900_001, 365 * 86_400_000, u64::MAX] {
        let mut wire = Wire::dial(&address).await.unwrap();
        let open = Open { ttl_ms: Some(ttl_ms), ..Open::default() };
        wire.send(Ask::Open(open)).await;
        let refusal = wire.refused().await;
        let asked = ttl_ms.to_string();
        assert_refusal(&refusal, RefusalReason::TtlOutOfRange, &[&asked, "1000", "900000"]);
    }
}

async fn resume_refused(address: &str, resume: Resume) -> Refusal {
    let mut wire = Wire::dial(address).await.unwrap();
    wire.send(Ask::Open(Open { resume: Some(resume), ..Open::default() })).await;
    wire.refused().await
}

/// A client that guesses must not learn from the answer whether the session exists.
#[tokio::test]
async fn a_wrong_secret_and_an_unknown_session_get_the_same_answer() {
    let (_cluster, address) = one_node().await;
    let (mut wire, ticket) = Wire::open(&address, TTL_MS).await;
    assert_serves(&mut wire, 1).await;
    let wrong = Ticket { secret: vec![7; 16], ..ticket.clone() };
    let unknown = Ticket { session: ticket.session, ..ticket.clone() };
    let unknown = Ticket { session: unknown.session + 1_000, ..unknown };

    let wrong = resume_refused(&address, wrong.resume()).await;
    let unknown = resume_refused(&address, unknown.resume()).await;

    assert_refusal(&wrong, RefusalReason::SessionUnknown, &[]);
    let without_numbers = |refusal: &Refusal| {
        refusal.message.replace(|character: char| character.is_ascii_digit(), "")
    };
    assert_eq!(without_numbers(&wrong), without_numbers(&unknown));
    assert_eq!(wire.resume_elsewhere(&address, &ticket).await.requests.len(), 1);
}

#[tokio::test]
async fn a_secret_of_the_wrong_length_is_refused() {
    let (_cluster, address) = one_node().await;
    let (_wire, ticket) = Wire::open(&address, TTL_MS).await;

    for length in [0, 15, 17, 4_096] {
        let resume = Resume { secret: vec![0; length].into(), ..ticket.resume() };
        let refusal = resume_refused(&address, resume).await;
        let reason = refusal.reason();
        let known = [RefusalReason::SessionUnknown, RefusalReason::Invalid];
        assert!(known.contains(&reason), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_session_of_another_cluster_is_refused_with_both_ids() {
    let (_cluster, address) = one_node().await;
    let (_other, elsewhere) = one_node().await;
    let (_wire, ticket) = Wire::open(&address, TTL_MS).await;
    let (_wire, foreign) = Wire::open(&elsewhere, TTL_MS).await;

    let refusal = resume_refused(&address, foreign.resume()).await;

    let (ours, theirs) = (hex::encode(&ticket.cluster), hex::encode(&foreign.cluster));
    assert_refusal(&refusal, RefusalReason::Invalid, &[&ours, &theirs]);
}

#[tokio::test]
async fn an_expired_session_is_told_so_and_cannot_be_resumed() {
    let (_cluster, address) = one_node().await;
    let (mut wire, ticket) = Wire::open(&address, 1_000).await;
    wire.acquire(1, "jobs", true).await;
    wire.granted(1).await;

    let reason = wire
        .expect("SessionEnded", |told| match told {
            Told::SessionEnded(ended) => Some(ended.reason()),
            _ => None,
        })
        .await;

    assert_eq!(reason, LostReason::SessionExpired);
    let refusal = resume_refused(&address, ticket.resume()).await;
    assert_refusal(&refusal, RefusalReason::SessionUnknown, &[]);
}

#[tokio::test]
async fn a_request_id_with_another_payload_is_refused_and_the_request_stays() {
    let (_cluster, address) = one_node().await;
    let (mut wire, ticket) = Wire::open(&address, TTL_MS).await;
    wire.acquire(1, "jobs", true).await;
    let token = wire.granted(1).await;

    wire.acquire(1, "other", true).await;
    assert_refusal(&wire.refused().await, RefusalReason::RequestReused, &["1"]);
    wire.acquire(1, "jobs", false).await;
    assert_refusal(&wire.refused().await, RefusalReason::RequestReused, &["1"]);

    let mut wire = Wire::dial(&address).await.unwrap();
    wire.resume(&ticket).await;
    assert_eq!(wire.held(1), Some(token));
}

/// I12: the second copy is answered like the first.
#[tokio::test]
async fn a_request_that_comes_twice_gets_the_same_token() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    wire.acquire(1, "jobs", true).await;
    let token = wire.granted(1).await;

    wire.acquire(1, "jobs", true).await;

    assert_eq!(wire.granted(1).await, token);
}

#[tokio::test]
async fn a_request_below_done_below_is_gone_and_changes_nothing() {
    let (_cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    wire.acquire(1, "jobs", true).await;
    let token = wire.granted(1).await;
    wire.release(token).await;
    wire.released(token).await;
    wire.set_done_below(2);
    wire.acquire(2, "other", true).await;
    wire.granted(2).await;

    wire.acquire(1, "jobs", true).await;

    assert_refusal(&wire.refused().await, RefusalReason::RequestGone, &["1"]);
}

async fn release_refused(wire: &mut Wire, token: u64) -> Refusal {
    wire.release(token).await;
    wire.expect("Refused", |told| match told {
        Told::Refused(refused) if refused.subject == Some(Subject::Token(token)) => {
            refused.refusal.clone()
        }
        _ => None,
    })
    .await
}

/// I13: the copy comes when another client holds the lock, and when the same session holds it
/// again.
#[tokio::test]
async fn a_release_that_comes_twice_or_late_or_from_a_stranger_frees_nothing() {
    let (_cluster, address) = one_node().await;
    let (mut first, _) = Wire::open(&address, TTL_MS).await;
    let (mut second, _) = Wire::open(&address, TTL_MS).await;
    first.acquire(1, "jobs", true).await;
    let old = first.granted(1).await;
    second.acquire(1, "jobs", true).await;
    second.queued(1).await;
    first.release(old).await;
    first.released(old).await;
    let new = second.granted(1).await;

    for token in [old, new, 0, u64::MAX] {
        let refusal = release_refused(&mut first, token).await;
        assert_refusal(&refusal, RefusalReason::NotHolder, &[&token.to_string()]);
    }
    assert_eq!(holder(&address, "jobs").await, Some(new));

    second.release(new).await;
    second.released(new).await;
    first.acquire(2, "jobs", true).await;
    let newest = first.granted(2).await;
    release_refused(&mut first, old).await;
    assert_eq!(holder(&address, "jobs").await, Some(newest));
}

async fn look(address: &str, name: &str) -> Option<LockInfo> {
    let mut client = connect(address).await.unwrap();
    let request = holdfast_proto::v1::InspectRequest { name: name.into() };
    client.inspect(request).await.unwrap().into_inner().lock
}

async fn holder(address: &str, name: &str) -> Option<u64> {
    look(address, name).await?.holders.first().map(|holder| holder.token)
}

/// A client that does not read: the store does not wait for it, and State restores what it missed.
#[tokio::test]
async fn ten_thousand_unread_pushes_lose_no_hold_and_hold_up_nobody() {
    const PUSHES: u64 = 10_000;
    let setup = Setup::nodes(1).cluster("max_requests_per_session", 2 * PUSHES);
    let cluster = Cluster::start(&setup).await;
    let address = cluster.nodes()[0].listen.clone();
    let (mut deaf, ticket) = Wire::open(&address, 120_000).await;

    for first in (1..=PUSHES).step_by(500) {
        let frames = (first..first + 500).map(|request| ClientFrame {
            done_below: 0,
            body: Some(acquire(request, format!("push/{request}"), true)),
        });
        deaf.send_raw(ClientFrames { frames: frames.collect() }).await;
    }
    let (mut other, _) = Wire::open(&address, TTL_MS).await;
    assert_serves(&mut other, 1).await;
    wait_until_held(&address, &format!("push/{PUSHES}")).await;

    let mut wire = Wire::dial(&address).await.unwrap();
    let state = wire.resume(&ticket).await;
    assert_eq!(state.requests.len() as u64, PUSHES);
    assert!((1..=PUSHES).all(|request| wire.held(request).is_some()));
}

async fn wait_until_held(address: &str, name: &str) {
    for _ in 0..200 {
        if holder(address, name).await.is_some() {
            return;
        }
        pause(50).await;
    }
    panic!("{name} was never granted");
}

#[tokio::test]
async fn a_stream_that_does_not_begin_with_open_ends_with_invalid_argument() {
    let (_cluster, address) = one_node().await;
    for first in [Some(Ask::KeepAlive(KeepAlive { seq: 1 })), Some(acquire(1, "jobs", true)), None]
    {
        let mut wire = Wire::dial(&address).await.unwrap();
        let frame = ClientFrame { done_below: 0, body: first };
        wire.send_raw(ClientFrames { frames: vec![frame] }).await;

        let status = wire.end().await.expect("an error, not a polite end");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains("Open"), "{status:?}");
    }
}

#[tokio::test]
async fn a_session_opened_elsewhere_ends_the_older_stream_and_says_so() {
    let (_cluster, address) = one_node().await;
    let (mut older, ticket) = Wire::open(&address, TTL_MS).await;
    assert_serves(&mut older, 1).await;

    let mut newer = Wire::dial(&address).await.unwrap();
    newer.resume(&ticket).await;

    let status = older.end().await.expect("an error, not a polite end");
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    assert!(status.message().contains("attached-elsewhere"), "{status:?}");
    assert!(newer.held(1).is_some());
}

#[tokio::test]
async fn a_page_token_that_no_server_made_is_refused() {
    let (_cluster, address) = one_node().await;
    let mut client = connect(&address).await.unwrap();
    let list = |page_size, page_token: &str| ListRequest {
        prefix: String::new(),
        page_size,
        page_token: page_token.into(),
    };

    for (request, word) in [
        (list(None, "nonsense"), "page_token"),
        (list(None, "\u{0}"), "page_token"),
        (list(None, &"9".repeat(4_096)), "page_token"),
        (list(Some(0), ""), "page_size"),
        (list(Some(1_001), ""), "page_size"),
    ] {
        let status = client.list(request).await.expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(word), "{status:?}");
    }
}

#[tokio::test]
async fn garbage_on_every_port_ends_nothing_and_nobody() {
    let mut cluster = Cluster::start(&Setup::nodes(3)).await;
    cluster.all_ready().await;
    let leader = cluster.leader().await;
    let (mut wire, _) = Wire::open(&cluster.nodes()[leader].listen, TTL_MS).await;
    assert_serves(&mut wire, 1).await;
    let garbage: Vec<u8> =
        (0..40_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &garbage[..]].concat();

    for node in cluster.nodes() {
        for port in [&node.listen, &node.peer_listen, &node.admin_listen] {
            for bytes in [&garbage, &preface, &b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
                let mut stream = TcpStream::connect(port).await.unwrap();
                // The node may close the connection before it has read all of it.
                let _ = stream.write_all(bytes).await;
            }
        }
    }
    pause(300).await;

    assert!((0..3).all(|index| cluster.runs(index)));
    assert_serves(&mut wire, 2).await;
}

#[tokio::test]
async fn an_unknown_setting_is_named_and_so_is_the_one_that_was_meant() {
    let mut cluster = Cluster::prepare(&Setup::nodes(1).node("listn", "\"127.0.0.1:1\""));

    cluster.start_node(0);
    let status = cluster.wait_for_exit(0).await;

    assert_eq!(status.code(), Some(78));
    let log = cluster.log(0);
    assert!(log.contains("listn") && log.contains("listen"), "{log}");
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let mut cluster = Cluster::prepare(&Setup::nodes(1));
    let address = cluster.nodes()[0].listen.clone();
    let _taken = std::net::TcpListener::bind(&address).unwrap();

    cluster.start_node(0);
    let status = cluster.wait_for_exit(0).await;

    assert_eq!(status.code(), Some(69));
    let log = cluster.log(0);
    assert!(log.contains(&address) && log.contains("listen"), "{log}");
}

/// What was acknowledged before is there when the folder is whole again.
#[tokio::test]
async fn a_damaged_data_folder_is_refused_by_name_and_a_mended_one_has_lost_nothing() {
    let (mut cluster, address) = one_node().await;
    let (mut wire, ticket) = Wire::open(&address, 120_000).await;
    wire.acquire(1, "jobs", true).await;
    let token = wire.granted(1).await;
    cluster.kill(0);
    let data = cluster.nodes()[0].data.clone();
    let guard = data.join("guard");
    let away = data.with_extension("away");
    assert!(guard.exists(), "the guard file is {}", guard.display());

    std::fs::rename(&guard, &away).unwrap();
    cluster.start_node(0);
    let status = cluster.wait_for_exit(0).await;
    assert!(!status.success());
    let log = cluster.log(0);
    assert!(log.contains("guard") && log.contains(data.to_str().unwrap()), "{log}");

    std::fs::rename(&away, &guard).unwrap();
    cluster.start_node(0);
    cluster.leader().await;
    let mut wire = Wire::dial(&address).await.unwrap();
    wire.resume(&ticket).await;
    assert_eq!(wire.held(1), Some(token));
}

#[tokio::test]
async fn a_data_folder_in_use_is_refused_and_its_owner_goes_on() {
    let (mut cluster, address) = one_node().await;
    let (mut wire, _) = Wire::open(&address, TTL_MS).await;
    let mut second = Cluster::prepare(&Setup::nodes(1));
    let data = cluster.nodes()[0].data.clone();
    let text = std::fs::read_to_string(&second.nodes()[0].config).unwrap();
    let own = second.nodes()[0].data.to_str().unwrap().to_owned();
    std::fs::write(&second.nodes()[0].config, text.replace(&own, data.to_str().unwrap())).unwrap();

    second.start_node(0);
    let status = second.wait_for_exit(0).await;

    assert_eq!(status.code(), Some(73));
    let log = second.log(0);
    let pid = cluster.pid(0).to_string();
    assert!(log.contains(data.to_str().unwrap()) && log.contains(&pid), "{log}");
    assert!(cluster.runs(0));
    assert_serves(&mut wire, 1).await;
}

#[tokio::test]
async fn a_graceful_stop_ends_streams_and_keeps_what_was_acknowledged() {
    let (mut cluster, address) = one_node().await;
    let (mut wire, ticket) = Wire::open(&address, 120_000).await;
    wire.acquire(1, "jobs", true).await;
    let token = wire.granted(1).await;

    cluster.signal(0, Signal::SIGTERM);
    wire.expect("GoingAway", |told| matches!(told, Told::GoingAway(_)).then_some(())).await;
    wire.end().await;
    assert_eq!(cluster.wait_for_exit(0).await.code(), Some(0));
    cluster.start_node(0);
    cluster.leader().await;

    let mut wire = Wire::dial(&address).await.unwrap();
    wire.resume(&ticket).await;
    assert_eq!(wire.held(1), Some(token));
}

#[tokio::test]
async fn bad_arguments_of_the_command_line_are_named() {
    let (_cluster, address) = one_node().await;
    let ask = async |arguments: &[&str]| {
        run("holdfast", &[&["--endpoints", &address], arguments].concat()).await
    };
    let huge = "a".repeat(513);

    for (name, word) in [("", "empty"), (huge.as_str(), "513"), ("a\nb", "000A")] {
        let ended = ask(&["lock", name, "--", "true"]).await;
        assert_eq!(ended.code, Some(122), "{name:?}: {ended:?}");
        assert!(ended.err.contains(word), "{ended:?}");
        assert!(ended.err.lines().count() <= 2, "{ended:?}");
    }
    let many: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (names, words) in [(&["twice", "twice"][..], ["twice", "twice"]), (&many, ["65", "64"])] {
        for kind in [&["lock"][..], &["lock", "--any"], &["try", "--shared"]] {
            let ended = ask(&[kind, names, &["--", "true"]].concat()).await;
            assert_eq!(ended.code, Some(122), "{kind:?}: {ended:?}");
            assert!(words.iter().all(|word| ended.err.contains(word)), "{ended:?}");
            assert!(ended.err.lines().count() <= 2, "{ended:?}");
        }
    }
    for arguments in [
        &["lock", "--ttl", "1ms", "jobs", "--", "true"][..],
        &["try", "--ttl", "1y", "jobs", "--", "true"],
        &["list", "--ttl", "5s"],
        &["cluster", "--ttl", "5s", "status"],
    ] {
        let ended = ask(arguments).await;
        assert!(matches!(ended.code, Some(122 | 125)), "{ended:?}");
    }
    let ended = ask(&["lock", "jobs", "--wiat", "1s", "--", "true"]).await;
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err.contains("--wiat"), "{ended:?}");
}
