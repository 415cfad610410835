//! Everything a client can send, as mutated scripts on virtual time over the fake replica.
//!
//! Whatever the script, nothing panics, the table is in order, and the node stops when it is asked to
//! (I27, I28, I32).

use std::future::Future;

use futures_util::{FutureExt, StreamExt};
use holdfast_fuzz::{Outcome, Target, on_virtual_time, script};
use holdfast_proto::v1::import_row::Has;
use holdfast_proto::v1::lock_service_server::LockService;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    AcquireRequest, AnyOf, Cancel, CancelRequest, CheckTokenRequest, CloseSessionRequest,
    ImportGroup, ImportHold, ImportPlace, ImportRequest, ImportRow, KeepAlive, KeepAliveRequest,
    Mode, OpenSessionRequest, Opened, Release, ReleaseRequest, Resume, ServerFrame, SessionKey,
    SetValue, SetValueRequest, WatchRequest, WatchResume,
};
use holdfast_runtime::{Pipe, simulated};
use prost::Message;
use tonic::Request;

use super::*;

/// Longest a unary call or a shutdown may take, virtual time: longer than any wait in the first scripts.
const PATIENCE: Duration = Duration::from_mins(10);
/// Messages of a watch that are read before it is dropped.
const WATCH_MESSAGES: usize = 4;

/// The last so many answers define the kind of an outcome.
const TOLD_LAST: usize = 3;

/// The kinds of step of a script. 0 and 1: a message on that stream; 2 and 3: that stream's end.
const TIME_PASSES: u8 = 4;
const OPEN_SESSION: u8 = 5;
const KEEP_ALIVE: u8 = 6;
const ACQUIRE: u8 = 7;
const CANCEL: u8 = 8;
const RELEASE: u8 = 9;
const SET_VALUE: u8 = 10;
const CLOSE_SESSION: u8 = 11;
const INSPECT: u8 = 12;
const LIST: u8 = 13;
const CHECK_TOKEN: u8 = 14;
const WATCH: u8 = 15;
const IMPORT: u8 = 16;
const INSPECT_SESSION: u8 = 17;
const KINDS: u8 = 18;

/// The node under test.
struct World {
    runtime: Runtime,
    hub: Arc<Hub>,
    api: LockApi,
    streams: [Option<Pipe<ClientFrames, ServerFrames>>; 2],
    /// The answers, without names and numbers.
    told: Vec<String>,
}

impl World {
    async fn new() -> Self {
        let runtime = simulated::runtime(1, 1_000_000);
        let fake = Fake::new(runtime.clone());
        let handle = Arc::new(Handle(fake.clone()));
        let settings = SessionSettings::default();
        let hub = Arc::new(Hub::start(handle, Arc::new(CLUSTER), settings, runtime.clone()));
        fake.lead(1);
        let info = Arc::new(Info { ready: AtomicBool::new(true) });
        let api = LockApi::new(hub.clone(), info, Door::new(hub.clone(), &BTreeSet::new()));
        let world = Self { runtime, hub, api, streams: [None, None], told: Vec::new() };
        world.settle().await;
        world
    }

    /// Lets every task run until it waits.
    async fn settle(&self) {
        self.runtime.sleep(Duration::from_millis(1)).await;
    }

    async fn step(&mut self, kind: u8, bytes: &[u8]) {
        match kind % KINDS {
            stream @ (0 | 1) => self.say(usize::from(stream), bytes),
            stream @ (2 | 3) => self.streams[usize::from(stream - 2)] = None,
            TIME_PASSES => {
                let millis = bytes.first_chunk().map_or(0, |millis| u16::from_le_bytes(*millis));
                self.runtime.sleep(Duration::from_millis(millis.into())).await;
            }
            WATCH => self.watch(bytes).await,
            kind => self.call(kind, bytes).await,
        }
        self.settle().await;
        self.listen();
    }

    /// A message that does not decode ends the stream, as tonic does it.
    fn say(&mut self, stream: usize, bytes: &[u8]) {
        let Ok(frames) = ClientFrames::decode(bytes) else {
            self.told.push("undecodable".to_owned());
            self.streams[stream] = None;
            return;
        };
        if self.streams[stream].is_none() {
            let (ours, theirs) = simulated::pipe(64);
            let hub = self.hub.clone();
            let serve = async move {
                let _ = hub.serve(theirs, &holdfast_core::Caller::default()).await;
            };
            self.runtime.spawn("stream", serve).detach();
            self.streams[stream] = Some(ours);
        }
        if let Some(pipe) = &self.streams[stream] {
            let _ = pipe.outgoing.try_send(frames);
        }
    }

    fn listen(&mut self) {
        for stream in &mut self.streams {
            let Some(pipe) = stream else { continue };
            while let Some(Some(message)) = pipe.incoming.next().now_or_never() {
                let frames = message.map(|message| message.frames).unwrap_or_default();
                self.told.extend(frames.iter().map(kind_of));
            }
        }
    }

    async fn call(&mut self, kind: u8, bytes: &[u8]) {
        let api = &self.api;
        let calls = async {
            match kind {
                OPEN_SESSION => code(ask(bytes, |asked| api.open_session(asked)).await),
                KEEP_ALIVE => code(ask(bytes, |asked| api.keep_alive(asked)).await),
                ACQUIRE => code(ask(bytes, |asked| api.acquire(asked)).await),
                CANCEL => code(ask(bytes, |asked| api.cancel(asked)).await),
                IMPORT => code(ask(bytes, |asked| api.import(asked)).await),
                RELEASE => code(ask(bytes, |asked| api.release(asked)).await),
                SET_VALUE => code(ask(bytes, |asked| api.set_value(asked)).await),
                CLOSE_SESSION => code(ask(bytes, |asked| api.close_session(asked)).await),
                INSPECT => code(ask(bytes, |asked| api.inspect(asked)).await),
                INSPECT_SESSION => code(ask(bytes, |asked| api.inspect_session(asked)).await),
                LIST => code(ask(bytes, |asked| api.list(asked)).await),
                CHECK_TOKEN => code(ask(bytes, |asked| api.check_token(asked)).await),
                other => unreachable!("{other} is no call"),
            }
        };
        // A wait may be longer than any time limit here; then the call is dropped.
        let told = self.runtime.timeout(PATIENCE, calls).await;
        self.told.push(told.unwrap_or_else(|_| "waits".to_owned()));
    }

    async fn watch(&mut self, bytes: &[u8]) {
        let watch = ask(bytes, |asked: Request<WatchRequest>| self.api.watch(asked)).await;
        let told = match watch {
            Ok(response) => {
                let mut messages = response.into_inner();
                let read = async { while messages.next().await.is_some() {} };
                let some = async {
                    for _ in 0..WATCH_MESSAGES {
                        self.settle().await;
                    }
                };
                holdfast_runtime::select! {
                    () = read => {}
                    () = some => {}
                }
                "watched".to_owned()
            }
            Err(status) => format!("{:?}", status.code()),
        };
        self.told.push(told);
    }

    /// What must hold after any script.
    async fn check(self) -> Outcome {
        self.hub.consensus().read(&mut |table, _| table.check().unwrap());
        let stopped = self.runtime.timeout(PATIENCE, self.hub.shutdown()).await;
        assert!(stopped.is_ok(), "the hub does not stop");
        let last = self.told.len().saturating_sub(TOLD_LAST);
        Outcome::came_to(self.told[last..].join(" "))
    }
}

/// Decodes a request, and makes the call.
async fn ask<M, T, F>(bytes: &[u8], call: impl FnOnce(Request<M>) -> F) -> Result<T, Status>
where
    M: Message + Default,
    F: Future<Output = Result<T, Status>>,
{
    let asked = M::decode(bytes).map_err(|error| Status::internal(error.to_string()))?;
    call(Request::new(asked)).await
}

fn code<T>(answer: Result<tonic::Response<T>, Status>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(status) => {
            let words = status.message().split(' ').filter(|word| word.is_ascii()).take(3);
            format!("{:?} {}", status.code(), words.collect::<Vec<_>>().join("-"))
        }
    }
}

fn kind_of(frame: &ServerFrame) -> String {
    match &frame.body {
        Some(Body::Refused(refused)) => {
            format!(
                "refused:{:?}",
                refused.refusal.as_ref().map(holdfast_proto::v1::Refusal::reason)
            )
        }
        body => format!("{body:?}").chars().skip(5).take_while(|c| *c != '(').collect(),
    }
}

fn play(bytes: &[u8]) -> Outcome {
    on_virtual_time(async {
        let mut world = World::new().await;
        for (kind, bytes) in script::steps(bytes) {
            world.step(kind, bytes).await;
        }
        world.check().await
    })
}

/// Builds a script.
#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn say(self, stream: u8, bodies: Vec<Ask>) -> Self {
        let frame = |body| ClientFrame { done_below: 0, body: Some(body) };
        let message = ClientFrames { frames: bodies.into_iter().map(frame).collect() };
        self.call(stream, &message)
    }

    fn call(mut self, kind: u8, asked: &impl Message) -> Self {
        script::push(&mut self.0, kind, &asked.encode_to_vec());
        self
    }

    fn step(mut self, kind: u8, bytes: &[u8]) -> Self {
        script::push(&mut self.0, kind, bytes);
        self
    }

    fn wait(self, millis: u16) -> Self {
        self.step(TIME_PASSES, &millis.to_le_bytes())
    }
}

fn wanted(request_id: u64, names: &[&str], mode: Mode) -> Acquire {
    let item = |name: &&str| Item {
        name: name.as_bytes().to_vec().into(),
        mode: mode.into(),
        ..Item::default()
    };
    let items = names.iter().map(item).collect();
    Acquire { request_id, items, wait: true, follow_place: true, ..Acquire::default() }
}

fn change(request_id: u64, token: u64, name: &'static str, change: Change) -> SetValue {
    SetValue { request_id, token, name: name.into(), change: Some(change) }
}

/// The first grant of a table of its own.
const FIRST_TOKEN: u64 = 1;

/// The Opened that the first session of a fresh world receives; the same every time.
fn first_opened() -> Opened {
    on_virtual_time(async {
        let mut world = World::new().await;
        let first = Script::default().say(0, vec![open()]);
        let (_, bytes) = script::steps(&first.0).next().unwrap();
        world.say(0, bytes);
        let pipe = world.streams[0].as_mut().unwrap();
        let message = pipe.incoming.next().await.unwrap().unwrap();
        match message.frames.into_iter().next().unwrap().body {
            Some(Body::Opened(opened)) => opened,
            other => panic!("not opened: {other:?}"),
        }
    })
}

fn resume() -> Ask {
    let Opened { session_id, secret, cluster_id, .. } = first_opened();
    let resume = Resume { session_id, secret, cluster_id, ..Resume::default() };
    Ask::Open(Open { resume: Some(resume), ..Open::default() })
}

/// Two sessions that hold, wait, share, leave values, are cut off and come back.
#[test]
fn no_sequence_of_frames_brings_a_session_down() {
    let keep_alive = |seq| Ask::KeepAlive(KeepAlive { seq });
    let value = |bytes: &'static [u8]| Change::Value(bytes.into());
    let hold = vec![open(), Ask::Acquire(wanted(1, &["a", "b"], Mode::Exclusive)), keep_alive(1)];
    let any = Acquire { any: Some(AnyOf { min: 1 }), ..wanted(1, &["b", "c"], Mode::Shared) };
    let release = |names: Vec<_>| Ask::Release(Release { token: FIRST_TOKEN, names, lost: false });
    let set = Ask::SetValue(change(2, FIRST_TOKEN, "a", value(b"half way")));
    let seeds = [
        Script::default()
            .say(0, hold.clone())
            .say(1, vec![open(), Ask::Acquire(any), Ask::Acquire(wanted(2, &["a"], Mode::Shared))])
            .say(0, vec![set, release(vec!["a".into()]), Ask::Cancel(Cancel { request_id: 1 })])
            .say(1, vec![keep_alive(1), Ask::Close(holdfast_proto::v1::Close {})]),
        Script::default()
            .say(0, hold)
            .step(2, b"")
            .wait(2_000)
            .say(1, vec![resume()])
            .say(1, vec![release(Vec::new()), keep_alive(7)])
            .wait(60_000)
            .say(0, vec![open()]),
    ];
    Target::new("session-streams", seeds.map(|script| script.0)).run(play);
}

#[test]
fn no_unary_call_brings_the_node_down() {
    let Opened { session_id, secret, .. } = first_opened();
    let session = Some(SessionKey { session_id, secret });
    let acquire = Some(wanted(1, &["a", "b"], Mode::Exclusive));
    let behind = Some(Acquire { wait: true, ..wanted(2, &["a"], Mode::Shared) });
    let ask = |acquire: Option<Acquire>, wait_ms| AcquireRequest {
        session: session.clone(),
        done_below: 0,
        acquire,
        wait_ms,
    };
    let set_value = Some(change(3, FIRST_TOKEN, "a", Change::Value("x".into())));
    let release = Some(Release { token: FIRST_TOKEN, ..Release::default() });
    let cancel = Some(Cancel { request_id: 2 });
    let name = || "a".to_owned();
    let list = ListRequest { prefix: String::new(), page_size: Some(1), page_token: String::new() };
    let seed = Script::default()
        .call(
            OPEN_SESSION,
            &OpenSessionRequest {
                ttl_ms: Some(5_000),
                label: "a-call".into(),
                ..OpenSessionRequest::default()
            },
        )
        .call(ACQUIRE, &ask(acquire, None))
        .call(ACQUIRE, &ask(behind, Some(500)))
        .call(KEEP_ALIVE, &KeepAliveRequest { session: session.clone() })
        .call(SET_VALUE, &SetValueRequest { session: session.clone(), done_below: 0, set_value })
        .call(LIST, &list)
        .call(INSPECT, &InspectRequest { name: name() })
        .call(CHECK_TOKEN, &CheckTokenRequest { name: name(), token: FIRST_TOKEN })
        .call(CANCEL, &CancelRequest { session: session.clone(), done_below: 0, cancel })
        .call(RELEASE, &ReleaseRequest { session: session.clone(), done_below: 3, release })
        .call(CLOSE_SESSION, &CloseSessionRequest { session });
    Target::new("unary-calls", [seed.0]).run(play);
}

/// Imports: brought in, claimed by a stream and by a call, and run out.
#[test]
fn no_import_brings_the_node_down() {
    let row = |name: &'static str, has| ImportRow { name: name.into(), has: Some(has) };
    let hold = Has::Hold(ImportHold { value: Some("half".into()) });
    let rows = vec![row("a", hold), row("b", Has::Hold(ImportHold { value: None }))];
    let group =
        |owner: &str, rows| ImportGroup { owner: owner.to_owned(), remaining_ms: 5_000, rows };
    let behind = group("old/2", vec![row("a", Has::Place(ImportPlace {}))]);
    let groups = vec![group("old/1", rows), behind];
    let claim = |request_id, name, owner: &str| {
        let claim_owner = Some(owner.to_owned());
        Acquire { claim_owner, ..wanted(request_id, &[name], Mode::Exclusive) }
    };
    let Opened { session_id, secret, .. } = first_opened();
    let by_call = AcquireRequest {
        session: Some(SessionKey { session_id, secret }),
        done_below: 0,
        acquire: Some(claim(2, "b", "old/1")),
        wait_ms: Some(500),
    };
    let seed = Script::default()
        .say(0, vec![open()])
        .call(IMPORT, &ImportRequest { groups: groups.clone() })
        .say(0, vec![Ask::Acquire(claim(1, "a", "old/2"))])
        .call(ACQUIRE, &by_call)
        .call(IMPORT, &ImportRequest { groups })
        .wait(60_000);
    Target::new("imports", [seed.0]).run(play);
}

#[test]
fn no_watch_brings_the_node_down() {
    let watch = |prefix: &str| WatchRequest { prefix: prefix.to_owned(), resume: None };
    let goes_on = WatchRequest {
        prefix: "jobs/".to_owned(),
        resume: Some(WatchResume { after_index: 1, cluster_id: CLUSTER }),
    };
    let seed = Script::default()
        .call(WATCH, &watch(""))
        .say(0, vec![open(), Ask::Acquire(wanted(1, &["jobs/1", "other"], Mode::Exclusive))])
        .call(WATCH, &watch("jobs/"))
        .wait(30_000)
        .call(WATCH, &watch("other"))
        .call(WATCH, &goes_on);
    Target::new("watches", [seed.0]).run(play);
}
