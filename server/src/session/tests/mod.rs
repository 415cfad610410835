//! Streams on virtual time, over a replica of one node that the test controls.

mod bad_frames;
mod bounds;
mod busy;
mod call_leases;
mod calls;
mod histories;
mod imports;
mod large_states;
mod leases;
mod many;
mod measures;
mod outside;
mod owners;
mod permits;
mod places;
mod renewals;
mod requests;
mod restored;
mod scopes;
mod slow_readers;
mod streams;
mod terms;
mod watch_histories;
mod watch_resumes;
mod watchers;
mod watching;

use holdfast_core::Caller;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::server_frame::Body;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    Acquire, AnyOf, ClientFrame, ClientFrames, Close, Granted, Item, KeepAlive, Mode, Open, Opened,
    Release, Resume, ServerFrame, ServerFrames, SetValue,
};
use holdfast_runtime::{Pipe, Runtime, simulated};
use tokio::sync::oneshot;

use super::fake::{Fake, Handle};
use super::{Hub, SessionSettings, StreamError};

const CLUSTER: Bytes = Bytes::from_static(b"cluster-of-tests");
const TTL: Duration = Duration::from_secs(10);
/// A second before a lease of [`TTL`] runs out.
const NEARLY_TTL: Duration = Duration::from_secs(9);
const MARGIN: Duration = Duration::from_millis(50);

/// One node.
struct World {
    runtime: Runtime,
    fake: Arc<Fake>,
    hub: Arc<Hub>,
}

/// The client's end of a stream.
struct Client {
    runtime: Runtime,
    pipe: Pipe<ClientFrames, ServerFrames>,
    read: VecDeque<ServerFrame>,
    end: oneshot::Receiver<Result<(), StreamError>>,
}

/// The proof that a session belongs to the client.
#[derive(Clone)]
struct Ticket {
    session_id: u64,
    secret: Bytes,
}

impl World {
    /// A node that leads in tenure 1.
    async fn new() -> Self {
        Self::with(SessionSettings::default()).await
    }

    async fn with(settings: SessionSettings) -> Self {
        Self::on(simulated::runtime(1, 1_000_000), settings).await
    }

    async fn on(runtime: Runtime, settings: SessionSettings) -> Self {
        let fake = Fake::new(runtime.clone());
        Self::over(fake, runtime, settings).await
    }

    /// A node that leads in tenure 1, over that replica.
    async fn over(fake: Arc<Fake>, runtime: Runtime, settings: SessionSettings) -> Self {
        let handle = Arc::new(Handle(fake.clone()));
        let hub = Hub::start(handle, Arc::new(CLUSTER), settings, runtime.clone());
        fake.lead(1);
        let world = Self { runtime, fake, hub: Arc::new(hub) };
        world.settle().await;
        world
    }

    /// Lets every task run until it waits.
    async fn settle(&self) {
        self.runtime.sleep(Duration::from_millis(1)).await;
    }

    /// A stream on which nothing was sent.
    fn connect(&self) -> Client {
        self.connect_holding(64)
    }

    /// A stream whose transport takes `messages` each way before it pushes back.
    fn connect_holding(&self, messages: usize) -> Client {
        self.connect_by(Caller::default(), messages)
    }

    fn connect_by(&self, caller: Caller, messages: usize) -> Client {
        let (ours, theirs) = simulated::pipe(messages);
        let (tell, end) = oneshot::channel();
        let hub = self.hub.clone();
        let serve = async move {
            let _ = tell.send(hub.serve(theirs, &caller).await);
        };
        self.runtime.spawn("stream", serve).detach();
        Client { runtime: self.runtime.clone(), pipe: ours, read: VecDeque::new(), end }
    }

    /// An open session with a lease of [`TTL`].
    async fn session(&self) -> (Client, Ticket) {
        let mut client = self.connect();
        client.send(open(TTL)).await;
        let opened = client.opened().await;
        let ticket = Ticket { session_id: opened.session_id, secret: opened.secret };
        (client, ticket)
    }

    /// A client that knows pages resumes the session on a new stream; the resume may fail.
    async fn resume_in_pages(&self, ticket: &Ticket) -> Client {
        let client = self.connect_holding(1);
        client.send(in_pages(ticket)).await;
        client
    }

    /// A client of 0.1 resumes the session on a new stream; the resume may fail.
    async fn resume(&self, ticket: &Ticket) -> Client {
        let client = self.connect();
        client.send(resume(ticket)).await;
        client
    }
}

impl Client {
    async fn send(&self, body: Ask) {
        self.send_confirming(0, body).await;
    }

    async fn send_confirming(&self, done_below: u64, body: Ask) {
        let frames = vec![ClientFrame { done_below, body: Some(body) }];
        self.pipe.outgoing.send(ClientFrames { frames }).await.unwrap();
    }

    /// The next message, whole.
    async fn message(&mut self) -> Option<Vec<ServerFrame>> {
        assert_eq!(self.read, [], "frames of an earlier message were not looked at");
        self.pipe.incoming.next().await.map(|message| message.unwrap().frames)
    }

    /// The next frame; `None` at the end of the stream.
    async fn frame(&mut self) -> Option<Body> {
        if self.read.is_empty() {
            self.read = self.message().await?.into();
        }
        self.read.pop_front()?.body
    }

    /// The next frame, within a minute.
    async fn next(&mut self) -> Body {
        let runtime = self.runtime.clone();
        let frame = runtime.timeout(Duration::from_mins(1), self.frame()).await;
        frame.expect("a frame comes").expect("the stream goes on")
    }

    async fn opened(&mut self) -> Opened {
        match self.next().await {
            Body::Opened(opened) => opened,
            other => panic!("not Opened: {other:?}"),
        }
    }

    async fn granted(&mut self) -> Granted {
        match self.next().await {
            Body::Granted(granted) => granted,
            other => panic!("not Granted: {other:?}"),
        }
    }

    /// Expects that nothing comes for this long.
    async fn expect_silence(&mut self, length: Duration) {
        let runtime = self.runtime.clone();
        if let Ok(frame) = runtime.timeout(length, self.frame()).await {
            panic!("not silent: {frame:?}");
        }
    }

    /// The remaining frames of the stream, and how it ends.
    async fn rest(mut self) -> (Vec<Body>, Result<(), StreamError>) {
        let runtime = self.runtime.clone();
        let to_the_end = async {
            let mut rest = Vec::new();
            while let Some(body) = self.frame().await {
                rest.push(body);
            }
            (rest, self.end.await.unwrap())
        };
        runtime.timeout(Duration::from_mins(1), to_the_end).await.expect("the stream ends")
    }
}

fn open(ttl: Duration) -> Ask {
    let ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap());
    Ask::Open(Open { ttl_ms, label: "a-test".to_owned(), ..Open::default() })
}

fn resume(ticket: &Ticket) -> Ask {
    let Ticket { session_id, secret } = ticket.clone();
    let resume = Resume { session_id, secret, cluster_id: CLUSTER, ..Resume::default() };
    Ask::Open(Open { resume: Some(resume), ..Open::default() })
}

fn in_pages(ticket: &Ticket) -> Ask {
    let Ask::Open(open) = resume(ticket) else { unreachable!() };
    let resume = open.resume.map(|resume| Resume { state_in_pages: true, ..resume });
    Ask::Open(Open { resume, ..open })
}

fn keep_alive(seq: u64) -> Ask {
    Ask::KeepAlive(KeepAlive { seq })
}

fn acquire(request_id: u64, name: &str) -> Ask {
    acquire_names(request_id, &[name.as_bytes()])
}

fn acquire_names(request_id: u64, names: &[&[u8]]) -> Ask {
    let item = |name: &&[u8]| Item { name: Bytes::copy_from_slice(name), ..Item::default() };
    let items = names.iter().map(item).collect();
    Ask::Acquire(Acquire { request_id, items, wait: true, ..Acquire::default() })
}

fn exclusive(name: &str) -> Item {
    Item {
        name: Bytes::copy_from_slice(name.as_bytes()),
        mode: Mode::Exclusive.into(),
        ..Item::default()
    }
}

fn shared(name: &str) -> Item {
    Item { mode: Mode::Shared.into(), ..exclusive(name) }
}

fn acquire_items(request_id: u64, items: Vec<Item>, any: Option<AnyOf>) -> Ask {
    Ask::Acquire(Acquire { request_id, items, wait: true, any, ..Acquire::default() })
}

fn set_value(request_id: u64, token: u64, name: &str, change: Option<Change>) -> Ask {
    let name = Bytes::copy_from_slice(name.as_bytes());
    Ask::SetValue(SetValue { request_id, token, name, change })
}

fn try_acquire(request_id: u64, name: &str) -> Ask {
    let Ask::Acquire(acquire) = acquire(request_id, name) else { unreachable!() };
    Ask::Acquire(Acquire { wait: false, ..acquire })
}

fn release(token: u64) -> Ask {
    Ask::Release(Release { token, ..Release::default() })
}

fn close() -> Ask {
    Ask::Close(Close {})
}
