//! A client that speaks frames itself and does what the library never would: it asks twice,
//! releases what others hold, changes values of others, forgets to renew, renews too late, floods
//! its stream, or opens more streams than a node may have.
//!
//! It acquires only names of its own, so its holds conflict with no other client's; its effect on
//! the others shows in their histories. It judges the answers to itself on the spot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::set_value::Change;
use holdfast_proto::v1::{
    Acquire, Cancel, ClientFrame, ClientFrames, Item, KeepAlive, Mode, Open, Release, ServerFrames,
    SetValue,
};
use holdfast_runtime::{Instant, Pipe, Runtime, Transport};
use tokio::sync::{mpsc, watch};

use super::stage::lock;
use crate::draw::Draw;

/// Its leases are short, because it lets some of them run out.
const TTL_MS: u64 = 2_000;
/// Steps of one session.
const STEPS: u64 = 60;
/// Longest pause between two steps, milliseconds.
const PAUSE_MS: u64 = 150;
/// One step in so many is delayed until the lease may have run out.
const STEPS_IN_TIME: u64 = 12;
/// One step in so many is a flood, where a stream's frames are limited, or nonsense, where what lies
/// unsent is.
const STEPS_OF_A_FLOOD: u64 = 20;
/// How long it waits for a connection, and for the answer to an Open, where it opens many streams.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// Most frames in one message of a client.
const MESSAGE_FRAMES: usize = 64;
/// In that case it renews this long after the end of its lease, milliseconds: about when the store
/// ends it.
const TOO_LATE_MS: u64 = 300;
/// Most names of a request, and most bytes of a value.
const NAMES_MAX: u64 = 64;
const VALUE_MAX: usize = 4_096;
/// The distance of its guesses at tokens of others from one of its own.
const GUESSES: u64 = 12;

/// Everything a rogue needs.
pub(super) struct ByzantineClient {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) endpoints: Vec<String>,
    pub(super) runtime: Runtime,
    pub(super) draw: Draw,
    /// Its label.
    pub(super) label: String,
    /// How many names the others share.
    pub(super) names: u64,
    /// Whether each of its sessions begins with a request larger than any limit.
    pub(super) excess: bool,
    /// This many frames end a stream, and now and then the client sends them.
    pub(super) flood: Option<u64>,
    /// Whether it sends, now and then, a message of requests that name no lock. Each is answered at
    /// once: the answers take more than all streams of a node may leave unsent.
    pub(super) nonsense: bool,
    /// So many streams are more than may have a session on a node; until this instant the client
    /// opens as many as it can before each of its sessions.
    pub(super) crowd: Option<(u64, Instant)>,
    pub(super) stopped: watch::Receiver<bool>,
    /// The violations that it found.
    pub(super) wrong: Arc<Mutex<Vec<String>>>,
}

/// What it learned in one session.
#[derive(Default)]
struct Known {
    next_request: u64,
    seq: u64,
    /// When it last sent its Open or a keepalive.
    renewed: Option<Instant>,
    newest_token: u64,
    tokens: BTreeMap<u64, u64>,
    places: BTreeMap<u64, u64>,
    /// Changes of values that no client has the right to make.
    stolen: BTreeSet<u64>,
}

type Line = Pipe<ClientFrames, ServerFrames>;

impl ByzantineClient {
    /// Runs one session after another until it has to stop.
    pub(super) async fn work(mut self) {
        while !*self.stopped.borrow() {
            let node = self.draw.below(self.endpoints.len() as u64);
            let endpoint = usize::try_from(node).ok().and_then(|node| self.endpoints.get(node));
            let Some(endpoint) = endpoint else { return };
            let now = self.runtime.clock.now();
            if let Some((streams, _)) = self.crowd.filter(|(_, until)| now < *until) {
                self.crowd(endpoint, streams).await;
            }
            let opened =
                self.runtime.timeout(Duration::from_secs(5), self.transport.open(endpoint));
            if let Ok(Ok(line)) = opened.await {
                self.session(line).await;
            }
            let pause = self.draw.below(1_000);
            self.runtime.sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn session(&mut self, mut line: Line) {
        let mut known = Known { next_request: 1, ..Known::default() };
        known.renewed = Some(self.runtime.clock.now());
        if send(&line.outgoing, vec![self.open()]).await.is_none() {
            return;
        }
        if self.excess && send(&line.outgoing, Self::too_much(&mut known)).await.is_none() {
            return;
        }
        for _ in 0..STEPS {
            let asks = if self.draw.below(STEPS_IN_TIME) == 0 {
                let late = self.until_too_late(&known);
                if !self.listen(&mut line, late, &mut known).await {
                    return;
                }
                vec![self.renew(&mut known)]
            } else {
                self.step(&mut known)
            };
            if send(&line.outgoing, asks).await.is_none() {
                return;
            }
            self.flood(&line.outgoing, &mut known).await;
            self.talk_nonsense(&line.outgoing, &known).await;
            let pause = Duration::from_millis(1 + self.draw.below(PAUSE_MS));
            if !self.listen(&mut line, pause, &mut known).await || *self.stopped.borrow() {
                return;
            }
        }
    }

    /// Now and then sends more than its stream may have in a second, in messages of the usual size.
    async fn flood(&mut self, line: &mpsc::Sender<ClientFrames>, known: &mut Known) {
        let Some(frames) = self.flood.filter(|_| self.draw.below(STEPS_OF_A_FLOOD) == 0) else {
            return;
        };
        let asks: Vec<_> = (0..frames).map(|_| self.renew(known)).collect();
        for message in asks.chunks(MESSAGE_FRAMES) {
            let _ = send(line, message.to_vec()).await;
        }
    }

    /// Now and then sends as many requests for no lock as fit into a message.
    async fn talk_nonsense(&mut self, line: &mpsc::Sender<ClientFrames>, known: &Known) {
        if !self.nonsense || self.draw.below(STEPS_OF_A_FLOOD) != 0 {
            return;
        }
        let nothing = Acquire { request_id: known.next_request, ..Acquire::default() };
        let _ = send(line, vec![Ask::Acquire(nothing); MESSAGE_FRAMES]).await;
    }

    /// Opens up to so many streams with a session each, until one is refused, and leaves all.
    async fn crowd(&self, endpoint: &str, streams: u64) {
        let mut lines = Vec::new();
        for _ in 0..streams {
            let Some(line) = self.opened(endpoint).await else { return };
            lines.push(line);
        }
    }

    /// A stream with a new session; `None` if the node opens none.
    async fn opened(&self, endpoint: &str) -> Option<Line> {
        let line = self.runtime.timeout(ANSWERED_WITHIN, self.transport.open(endpoint));
        let mut line = line.await.ok()?.ok()?;
        send(&line.outgoing, vec![self.open()]).await?;
        let told = self.runtime.timeout(ANSWERED_WITHIN, line.incoming.next());
        let told = told.await.ok()??.ok()?;
        let is_open = told.frames.iter().any(|frame| matches!(frame.body, Some(Told::Opened(_))));
        is_open.then_some(line)
    }

    fn open(&self) -> Ask {
        let label = self.label.clone();
        Ask::Open(Open { ttl_ms: Some(TTL_MS), label, ..Open::default() })
    }

    /// How long until its lease may have run out, and a little more.
    fn until_too_late(&mut self, known: &Known) -> Duration {
        let late = Duration::from_millis(TTL_MS + self.draw.below(TOO_LATE_MS));
        let over = known.renewed.map(|renewed| renewed + late);
        over.map_or(late, |over| over.saturating_since(self.runtime.clock.now()))
    }

    fn renew(&self, known: &mut Known) -> Ask {
        known.seq += 1;
        known.renewed = Some(self.runtime.clock.now());
        Ask::KeepAlive(KeepAlive { seq: known.seq })
    }

    /// Its next step.
    fn step(&mut self, known: &mut Known) -> Vec<Ask> {
        match self.draw.below(8) {
            0..=2 => {
                let request_id = known.next_request;
                known.next_request += 1;
                let ask = Self::acquire(request_id);
                vec![ask.clone(), ask]
            }
            3 => vec![Self::acquire(1 + self.draw.clone().below(known.next_request))],
            4 => vec![Ask::Release(Release { token: self.guess(known), ..Release::default() })],
            5 => {
                let request_id = known.next_request;
                known.next_request += 1;
                known.stolen.insert(request_id);
                let name = format!("traffic/{}", self.draw.below(self.names)).into_bytes().into();
                let change = Some(Change::Value(b"stolen".to_vec().into()));
                let token = self.guess(known);
                vec![Ask::SetValue(SetValue { request_id, token, name, change })]
            }
            6 => {
                let request_id = 1 + self.draw.below(known.next_request);
                vec![Ask::Cancel(Cancel { request_id })]
            }
            _ => vec![self.renew(known)],
        }
    }

    /// More names than a request may have, and a longer value than a lock may.
    fn too_much(known: &mut Known) -> Vec<Ask> {
        let (many, long) = (known.next_request, known.next_request + 1);
        known.next_request += 2;
        let item = |number: u64| {
            let name = format!("rogue/many/{number}").into_bytes().into();
            Item { name, mode: Mode::Exclusive.into(), ..Item::default() }
        };
        let items = (0..=NAMES_MAX).map(item).collect();
        let acquire = Acquire { request_id: many, items, wait: true, ..Acquire::default() };
        let value = vec![0; VALUE_MAX + 1].into();
        let name = "rogue/0".into();
        let set = SetValue { request_id: long, token: 1, name, change: Some(Change::Value(value)) };
        vec![Ask::Acquire(acquire), Ask::SetValue(set)]
    }

    /// The same request asks for the same name each time.
    fn acquire(request_id: u64) -> Ask {
        let name = format!("rogue/{}", request_id % 3).into_bytes().into();
        let items = vec![Item { name, mode: Mode::Exclusive.into(), ..Item::default() }];
        Ask::Acquire(Acquire { request_id, items, wait: true, ..Acquire::default() })
    }

    /// A token that most likely belongs to another client.
    fn guess(&mut self, known: &Known) -> u64 {
        let offset = self.draw.below(GUESSES);
        known.newest_token.saturating_add(GUESSES / 2).saturating_sub(offset)
    }

    /// Takes answers for a while; returns whether the stream is still open.
    async fn listen(&self, line: &mut Line, pause: Duration, known: &mut Known) -> bool {
        let until = self.runtime.clock.now() + pause;
        loop {
            let left = until.saturating_since(self.runtime.clock.now());
            match self.runtime.timeout(left, line.incoming.next()).await {
                Ok(Some(Ok(frames))) => {
                    for told in frames.frames.into_iter().filter_map(|frame| frame.body) {
                        self.hears(told, known);
                    }
                }
                Ok(_) => return false,
                Err(_) => return true,
            }
        }
    }

    fn hears(&self, told: Told, known: &mut Known) {
        match told {
            Told::Granted(granted) => {
                known.newest_token = known.newest_token.max(granted.token);
                let first = *known.tokens.entry(granted.request_id).or_insert(granted.token);
                if first != granted.token {
                    let request = granted.request_id;
                    let second = granted.token;
                    self.wrong(format!(
                        "I12: the rogue's request {request} was granted under token {first}, and \
                         again under {second}"
                    ));
                }
            }
            Told::Queued(queued) => {
                let (request, place) = (queued.request_id, queued.place);
                let before = known.places.insert(request, place);
                if before.is_some_and(|before| before < place) {
                    self.wrong(format!(
                        "I9: the rogue's request {request} fell back from place {before:?} to {place}"
                    ));
                }
            }
            Told::ValueSet(set) if known.stolen.contains(&set.request_id) => {
                self.wrong(
                    "I13: the rogue changed a value of a lock it never asked for".to_owned(),
                );
            }
            _ => {}
        }
    }

    fn wrong(&self, what: String) {
        lock(&self.wrong).push(what);
    }
}

async fn send(line: &mpsc::Sender<ClientFrames>, asks: Vec<Ask>) -> Option<()> {
    let frame = |ask| ClientFrame { done_below: 0, body: Some(ask) };
    let frames = asks.into_iter().map(frame).collect();
    line.send(ClientFrames { frames }).await.ok()
}
