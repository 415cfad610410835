//! Mutated frames from a server, for the session of a client that acquires, drops and waits.
//!
//! Nothing panics, the machine does not produce frames for ever, and no hold is safe longer than
//! its lease after the last keepalive that was sent (I6), whatever the frames are.

use std::time::Duration;

use holdfast_fuzz::{Outcome, Target, on_virtual_time, script};
use holdfast_proto::v1::server_frame::Body as Said;
use holdfast_proto::v1::{
    self, Denied, Granted, KeptAlive, Lost, Opened, Queued, Released, RequestState, ServerFrame,
    ServerFrames, SessionEnded, State, request_state,
};
use holdfast_runtime::{Runtime, simulated};
use prost::Message;

use super::*;
use crate::LockItem;
use crate::items::Need;

/// The kinds of step; 0 is a message from the server.
const SAYS: u8 = 0;
const STREAM_BEGINS: u8 = 1;
const STREAM_ENDS: u8 = 2;
const TIME_PASSES: u8 = 3;
const ASKS: u8 = 4;
const DROPS: u8 = 5;
const GIVES_BACK: u8 = 6;
const KINDS: u8 = 7;
/// Most messages that the machine may send after one step.
const MESSAGES_MAX: usize = 1_000;
const TTL: Duration = Duration::from_secs(10);

struct World {
    runtime: Runtime,
    machine: Machine,
    asked: Vec<PendingAcquire>,
    holds: Vec<Arc<Hold>>,
    /// When the last Open or keepalive was sent.
    sent: Instant,
    ends: usize,
}

impl World {
    fn new() -> Self {
        let runtime = simulated::runtime(1, 0);
        let label = "tester".to_owned();
        let config = SessionConfig { ttl: Some(TTL), label, allowance: 0.1, keeps_together: false };
        let machine = Machine::new(config, runtime.clock.clone(), runtime.rng.clone());
        let sent = runtime.clock.now();
        Self { runtime, machine, asked: Vec::new(), holds: Vec::new(), sent, ends: 0 }
    }

    async fn step(&mut self, kind: u8, bytes: &[u8]) {
        match kind % KINDS {
            SAYS => self.says(bytes),
            STREAM_BEGINS => {
                self.sent = self.runtime.clock.now();
                let _ = self.machine.open();
            }
            STREAM_ENDS => self.machine.detached(&StreamEnd::failed("cut")),
            TIME_PASSES => {
                let millis = bytes.first_chunk().map_or(0, |millis| u16::from_le_bytes(*millis));
                self.runtime.sleep(Duration::from_millis(millis.into())).await;
                self.machine.alarm();
            }
            ASKS => self.asks(bytes),
            DROPS => {
                if let Some(asked) = self.asked.pop() {
                    self.machine.abandon(asked.key);
                }
            }
            _ => {
                if let Some(asked) = self.asked.first() {
                    self.machine.give_back(asked.key, None);
                }
            }
        }
        self.send();
        self.look();
    }

    fn says(&mut self, bytes: &[u8]) {
        let Ok(frames) = ServerFrames::decode(bytes) else { return };
        if let Some(end) = self.machine.handle(frames) {
            self.ends += 1;
            self.machine.detached(&end);
        }
    }

    /// Names separated by blanks; bytes that are not UTF-8 are replaced.
    fn asks(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let items: Vec<LockItem> = text.split(' ').map(LockItem::from).collect();
        let mut request = AcquireRequest::new(items, Need::All, true);
        request.follow_place = true;
        if request.check().is_err() {
            return;
        }
        if let Ok(asked) = self.machine.ask(request) {
            self.asked.push(asked);
        }
    }

    fn send(&mut self) {
        for _ in 0..MESSAGES_MAX {
            let Some(frames) = self.machine.take_output() else { return };
            let body = |frame: &v1::ClientFrame| frame.body.clone();
            let is_keepalive = |body| matches!(body, v1::client_frame::Body::KeepAlive(_));
            if frames.frames.iter().filter_map(body).any(is_keepalive) {
                self.sent = self.runtime.clock.now();
            }
        }
        panic!("the machine has something to send for ever");
    }

    fn look(&mut self) {
        for asked in &mut self.asked {
            if let Ok(Ok(hold)) = asked.answer.try_recv() {
                self.holds.push(hold);
            }
        }
        let _ = (self.machine.next_alarm(), self.machine.next_timer(Duration::from_secs(1)));
        let _ = self.machine.is_stalled(Duration::from_secs(1));
        let limit = self.sent + self.machine.timing().ttl();
        let over = self.runtime.clock.now() > limit;
        let safe = self.holds.iter().any(|hold| hold.safety.is_safe(&*self.runtime.clock));
        assert!(!(safe && over), "a hold is safe after its lease");
    }

    fn outcome(&self) -> Outcome {
        let held = self.holds.len();
        let (ready, session) = (self.machine.is_ready(), self.machine.has_session());
        Outcome::came_to(format!("{held} {ready} {session} {} {}", self.ends, self.asked.len()))
    }
}

fn say(script: &mut Vec<u8>, bodies: Vec<Said>) {
    let frame = |body| ServerFrame { index: 20, body: Some(body) };
    let frames = ServerFrames { frames: bodies.into_iter().map(frame).collect() };
    script::push(script, SAYS, &frames.encode_to_vec());
}

fn opened() -> Said {
    Said::Opened(Opened {
        session_id: 7,
        secret: vec![9; 16].into(),
        cluster_id: vec![1; 16].into(),
        ttl_ms: 10_000,
        ..Opened::default()
    })
}

fn granted(request_id: u64) -> Granted {
    let value = v1::Value { value: "left".into(), token: 3, suspect: true };
    let values = vec![v1::NamedValue { name: "a".into(), value: Some(value) }];
    Granted { request_id, token: 5, names: vec!["a".into(), "b".into()], values }
}

/// A session with a grant of two locks and a wait for another, which loses its stream and resumes.
fn seed() -> Vec<u8> {
    let mut seed = Vec::new();
    script::push(&mut seed, STREAM_BEGINS, b"");
    say(&mut seed, vec![opened()]);
    script::push(&mut seed, ASKS, b"a b");
    script::push(&mut seed, ASKS, b"c");
    let queued = Queued { request_id: 2, place: 1, ..Queued::default() };
    say(&mut seed, vec![Said::Granted(granted(1)), Said::Queued(queued.clone())]);
    script::push(&mut seed, TIME_PASSES, &3_000_u16.to_le_bytes());
    say(&mut seed, vec![Said::KeptAlive(KeptAlive { seq: 1, ..KeptAlive::default() })]);
    script::push(&mut seed, STREAM_ENDS, b"");
    script::push(&mut seed, STREAM_BEGINS, b"");
    let request =
        |request_id, state| RequestState { request_id, state: Some(state), contended: vec![] };
    let requests = vec![
        request(1, request_state::State::Granted(granted(1))),
        request(2, request_state::State::Queued(queued)),
    ];
    say(
        &mut seed,
        vec![opened(), Said::State(State { requests, next_request_id: 3, more: false })],
    );
    script::push(&mut seed, GIVES_BACK, b"");
    let released = Released { token: 5, request_id: 1, names: Vec::new(), partly: false };
    say(&mut seed, vec![Said::Released(released)]);
    script::push(&mut seed, DROPS, b"");
    let refusal = Some(v1::Refusal::default());
    say(&mut seed, vec![Said::Denied(Denied { request_id: 2, refusal })]);
    say(&mut seed, vec![Said::Lost(Lost { request_id: 1, token: 5, reason: 1 })]);
    script::push(&mut seed, TIME_PASSES, &20_000_u16.to_le_bytes());
    say(&mut seed, vec![Said::SessionEnded(SessionEnded { reason: 1, why: String::new() })]);
    seed
}

#[test]
fn nothing_that_a_server_says_brings_a_session_down() {
    Target::new("server-frames", [seed()]).run(|bytes| {
        on_virtual_time(async {
            let mut world = World::new();
            for (kind, bytes) in script::steps(bytes) {
                world.step(kind, bytes).await;
            }
            world.outcome()
        })
    });
}
