//! The data folders that earlier releases left (`tests/fixtures/0.1` and so on): how they were filled, and what
//! must be served from them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails ends its test")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use holdfast_proto::v1::client_frame::Body;
use holdfast_proto::v1::import_row::Has;
use holdfast_proto::v1::lock_service_client::LockServiceClient;
use holdfast_proto::v1::server_frame::Body as ServerBody;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    Acquire, AnyOf, ImportGroup, ImportHold, ImportPlace, ImportRequest, ImportRow, InspectRequest,
    Item, LockInfo, Mode, Opened, Resume, SetValue,
};

use super::{Stream, channel};

/// Long enough that every session is still open in a test: a new leader gives each its whole TTL.
const TTL_MS: u64 = 900_000;
/// Acquires and releases that make the log long enough for a snapshot.
const CHURN: u64 = 60;

/// The releases that left folders.
pub(crate) const RELEASES: [&str; 3] = ["0.1", "0.2", "0.3"];

/// The folder of a release's fixtures.
pub(crate) fn fixtures(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(release)
}

/// Copies a data folder. Git keeps no empty folders, but sled needs the one it has.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("sled/blobs")).unwrap();
    copy_files(from, to);
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (source, target) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if source.is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_files(&source, &target);
        } else {
            fs::copy(&source, &target).unwrap();
        }
    }
}

/// A session that stays open, by its label.
pub(crate) struct Client {
    stream: Stream,
    opened: Opened,
    label: &'static str,
}

impl Client {
    async fn open(address: SocketAddr, label: &'static str, ttl_ms: u64) -> Self {
        let mut stream = Stream::open_as(address, label, Some(ttl_ms)).await;
        match stream.answer(|body| matches!(body, ServerBody::Opened(_))).await {
            ServerBody::Opened(opened) => Self { stream, opened, label },
            other => panic!("{other:?}"),
        }
    }

    /// Label, id and secret, with which the session can be resumed.
    pub(crate) fn line(&self) -> String {
        let Opened { session_id, secret, cluster_id, .. } = &self.opened;
        format!("{} {session_id} {} {}\n", self.label, hex::encode(secret), hex::encode(cluster_id))
    }

    async fn asks(&self, request_id: u64, names: &[&str], mode: Mode, any: Option<AnyOf>) {
        let item = |name: &&str| Item {
            name: name.as_bytes().to_vec().into(),
            mode: mode.into(),
            ..Item::default()
        };
        let items = names.iter().map(item).collect();
        let acquire = Acquire { request_id, items, wait: true, any, ..Acquire::default() };
        self.stream.send(Body::Acquire(acquire)).await;
    }

    /// Returns the token.
    async fn holds(&mut self, request: u64, names: &[&str], mode: Mode, any: Option<AnyOf>) -> u64 {
        self.asks(request, names, mode, any).await;
        match self.stream.answer(|body| matches!(body, ServerBody::Granted(_))).await {
            ServerBody::Granted(granted) => granted.token,
            other => panic!("{other:?}"),
        }
    }

    async fn waits(&mut self, request: u64, names: &[&str], mode: Mode) {
        self.asks(request, names, mode, None).await;
        self.stream.answer(|body| matches!(body, ServerBody::Queued(_))).await;
    }

    async fn sets(&mut self, request_id: u64, token: u64, name: &'static str, value: &'static str) {
        let change = Some(Change::Value(value.into()));
        let set = SetValue { request_id, token, name: name.into(), change };
        self.stream.send(Body::SetValue(set)).await;
        self.stream.answer(|body| matches!(body, ServerBody::ValueSet(_))).await;
    }

    async fn churns(&mut self, requests: std::ops::Range<u64>) {
        for request in requests {
            let token = self.holds(request, &["churn"], Mode::Exclusive, None).await;
            self.stream.releases(token).await;
        }
    }
}

/// Fills a node with every kind of hold, wait and value, half of it before the snapshot and half
/// after it.
pub(crate) async fn fill(address: SocketAddr) -> Vec<Client> {
    let mut holder = Client::open(address, "holder", TTL_MS).await;
    let mut reader = Client::open(address, "reader", TTL_MS).await;
    let mut writer = Client::open(address, "writer", TTL_MS).await;
    let token = holder.holds(1, &["held"], Mode::Exclusive, None).await;
    holder.sets(2, token, "held", "kept").await;
    reader.waits(1, &["held"], Mode::Exclusive).await;
    holder.holds(3, &["set/a", "set/b"], Mode::Exclusive, None).await;
    holder.holds(4, &["shared"], Mode::Shared, None).await;
    let mut dying = Client::open(address, "dying", 1_000).await;
    let token = dying.holds(1, &["suspect"], Mode::Exclusive, None).await;
    dying.sets(2, token, "suspect", "half way").await;
    drop(dying);
    import(address).await;

    let mut busy = Client::open(address, "busy", TTL_MS).await;
    busy.churns(1..CHURN).await;
    reader.holds(2, &["shared"], Mode::Shared, None).await;
    writer.waits(1, &["shared"], Mode::Exclusive).await;
    writer.waits(2, &["set/b", "set/c"], Mode::Exclusive).await;
    reader.holds(3, &["any/a"], Mode::Exclusive, None).await;
    writer.holds(3, &["any/a", "any/b"], Mode::Exclusive, Some(AnyOf { min: 1 })).await;
    let token = busy.holds(CHURN, &["left"], Mode::Exclusive, None).await;
    busy.sets(CHURN + 1, token, "left", "behind").await;
    busy.stream.releases(token).await;
    busy.stream.send(Body::Close(holdfast_proto::v1::Close {})).await;
    vec![holder, reader, writer]
}

async fn import(address: SocketAddr) {
    let group = |owner: &str, has| {
        let row = ImportRow { name: "imported".into(), has: Some(has) };
        ImportGroup { owner: owner.into(), remaining_ms: TTL_MS, rows: vec![row] }
    };
    let hold = Has::Hold(ImportHold { value: Some("theirs".into()) });
    let groups = vec![group("old/1", hold), group("old/2", Has::Place(ImportPlace {}))];
    let mut client = LockServiceClient::new(channel(address).await);
    client.import(ImportRequest { groups }).await.unwrap();
}

/// The contents that [`fill`] leaves: a lock, its holders, its waiters, its value.
const LEFT: [(&str, &str, &str, &str); 9] = [
    ("held", "holder", "reader", "kept"),
    ("set/a", "holder", "", ""),
    ("set/b", "holder", "writer", ""),
    ("shared", "holder reader", "writer", ""),
    ("suspect", "", "", "half way (suspect)"),
    ("imported", "old/1 (imported)", "old/2 (imported)", "theirs"),
    ("any/a", "reader", "", ""),
    ("any/b", "writer", "", ""),
    ("left", "", "", "behind"),
];

async fn inspect(address: SocketAddr, name: &str) -> LockInfo {
    let mut client = LockServiceClient::new(channel(address).await);
    let request = InspectRequest { name: name.to_owned() };
    client.inspect(request).await.unwrap().into_inner().lock.unwrap_or_default()
}

fn shown(label: &str, imported: bool) -> String {
    if imported { format!("{label} (imported)") } else { label.to_owned() }
}

/// Holders, waiters and value as text.
fn said(lock: &LockInfo) -> [String; 3] {
    let holders: Vec<_> = lock.holders.iter().map(|one| shown(&one.label, one.imported)).collect();
    let waiters: Vec<_> = lock.queue.iter().map(|one| shown(&one.label, one.imported)).collect();
    let value = lock.value.as_ref().map(|value| {
        let suspect = if value.suspect { " (suspect)" } else { "" };
        format!("{}{suspect}", String::from_utf8_lossy(&value.value))
    });
    [holders.join(" "), waiters.join(" "), value.unwrap_or_default()]
}

pub(crate) async fn assert_serves_what_was_left(address: SocketAddr) {
    for (name, holders, waiters, value) in LEFT {
        let lock = inspect(address, name).await;
        assert_eq!(said(&lock), [holders, waiters, value], "{name}: {lock:?}");
    }
}

/// Resumes the session of that label with the secret that the earlier release gave it.
async fn resume(address: SocketAddr, sessions: &str, label: &str) -> Stream {
    let line = sessions.lines().find_map(|line| line.strip_prefix(label)).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    let bytes = |word: &str| hex::decode(word).unwrap().into();
    let resume = Resume {
        session_id: words[0].parse().unwrap(),
        secret: bytes(words[1]),
        cluster_id: bytes(words[2]),
        ..Resume::default()
    };
    let mut stream = Stream::resume(address, resume).await;
    stream.is_opened().await;
    stream
}

/// A client of the earlier release continues: it releases, and the client that has waited since then is
/// granted.
pub(crate) async fn assert_goes_on(address: SocketAddr, sessions: &Path) {
    let sessions = fs::read_to_string(sessions).unwrap();
    let mut holder = resume(address, &sessions, "holder").await;
    let mut reader = resume(address, &sessions, "reader").await;
    let token = inspect(address, "held").await.holders[0].token;
    holder.releases(token).await;
    match reader.answer(|body| matches!(body, ServerBody::Granted(_))).await {
        ServerBody::Granted(granted) => {
            assert!(granted.token > token, "{granted:?}");
            assert_eq!(granted.values[0].value.as_ref().unwrap().value, "kept");
        }
        other => panic!("{other:?}"),
    }
    reader.keeps_alive().await;
}
