//! Until when clients may believe in their holds, derived from the messages on their connections.
//!
//! This computes DESIGN §5.4 a second time, independently of the client: a keepalive counts from
//! when it was first sent, and so does an Open, and only if it was acknowledged. A message is
//! recorded when it leaves the client, which is no earlier than the client reads its clock for it;
//! so a correct client never believes for longer than is computed here.
//!
//! It also finds a refusal on those connections that is never allowed: of the release of a grant,
//! because the server is overloaded (I31). A message that is sent again after a resume is another
//! matter: the copies of a session may wait together, and one too many is refused
//! (`server/replication/src/raft/admission.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::v1::client_frame::Body as Ask;
use holdfast_proto::v1::refused::Subject;
use holdfast_proto::v1::request_state::State as Known;
use holdfast_proto::v1::server_frame::Body as Told;
use holdfast_proto::v1::{ClientFrames, KeptSession, Refused, ServerFrames};
use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Clock, Instant};

/// Subtracted from every safe deadline, as DESIGN §5.4 defines it.
const DEADLINE_MARGIN: Duration = Duration::from_millis(20);

/// An acknowledgement that the session of a client is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// When the client received it, true time.
    pub at: Instant,
    /// The number of the client.
    pub client: u64,
    /// The session, as the store numbers it.
    pub session: u64,
    /// The safe deadline that follows, on the true clock.
    pub until: Instant,
}

/// Every acknowledgement that clients received. Cheap to clone.
#[derive(Clone)]
pub(super) struct Rights {
    world: Arc<dyn Clock>,
    given: Arc<Mutex<Vec<Right>>>,
    seen: Arc<Mutex<Seen>>,
}

/// How long copies of releases and cancels may wait to be proposed: longer than any proposal's
/// deadline.
const COPIES_WAIT: Duration = Duration::from_secs(15);

/// Other observations on the connections.
#[derive(Default)]
struct Seen {
    /// The number of streams that were answered Opened.
    opened: u64,
    /// The releases and cancels that each client sent.
    freed: BTreeSet<(u64, Freed)>,
    /// When each client last sent a keepalive.
    signed: BTreeMap<u64, Instant>,
    /// When each client last sent a release or cancel again.
    freed_again: BTreeMap<u64, Instant>,
    broken: Vec<String>,
}

/// What a client gives back or cancels.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Freed {
    /// These locks of this grant, or all of them.
    Locks(u64, Vec<Vec<u8>>),
    /// This request of this session.
    Request(u64, u64),
}

impl Rights {
    pub(super) fn new(world: Arc<dyn Clock>) -> Self {
        Self { world, given: Arc::default(), seen: Arc::default() }
    }

    /// The acknowledgements so far, in the order in which they arrived.
    pub(super) fn given(&self) -> Vec<Right> {
        locked(&self.given).clone()
    }

    /// How many streams were opened or resumed so far.
    pub(super) fn streams_opened(&self) -> u64 {
        locked(&self.seen).opened
    }

    /// The refusals so far that are never allowed.
    pub(super) fn broken(&self) -> Vec<String> {
        locked(&self.seen).broken.clone()
    }

    /// When `client` last sent a message that may renew its lease.
    pub(super) fn signed(&self, client: u64) -> Option<Instant> {
        locked(&self.seen).signed.get(&client).copied()
    }

    /// The last acknowledgement that `client` received.
    pub(super) fn last_of(&self, client: u64) -> Option<Right> {
        let given = locked(&self.given);
        given.iter().rfind(|right| right.client == client).copied()
    }

    /// The instant until which the last acknowledgement lets `client` believe.
    pub(super) fn newest_of(&self, client: u64) -> Option<Instant> {
        self.last_of(client).map(|right| right.until)
    }

    /// A keepalive of `client`, which is `process`, leaves it now beside its stream.
    pub(super) fn apart(&self, client: u64, process: Process, session: u64) -> Apart {
        let sent = self.world.now();
        locked(&self.seen).signed.insert(client, sent);
        Apart { rights: self.clone(), client, process, session, sent }
    }

    /// A message of a client left it at `sent`, and is answered by a lease of `ttl`.
    fn acknowledged(
        &self,
        (client, process): (u64, &Process),
        session: u64,
        (sent, ttl): (Instant, Duration),
    ) {
        let certain = ttl.saturating_sub(ttl / 10).saturating_sub(DEADLINE_MARGIN);
        let (at, until) = (self.world.now(), sent + process.true_length_of(certain));
        locked(&self.given).push(Right { at, client, session, until });
    }

    /// A new connection of `client`, which is `process`.
    pub(super) fn line(&self, client: u64, process: Process) -> Arc<Line> {
        let heard = Mutex::default();
        Arc::new(Line { rights: self.clone(), client, process, heard })
    }
}

/// One connection of a client, from its Open to its end.
pub(super) struct Line {
    rights: Rights,
    client: u64,
    process: Process,
    heard: Mutex<Heard>,
}

#[derive(Default)]
struct Heard {
    /// When the Open left the client.
    open: Option<Instant>,
    /// When each keepalive first left the client, by its number.
    keepalives: BTreeMap<u64, Instant>,
    /// The session and its lease.
    session: Option<(u64, Duration)>,
    /// Every token that was granted on this connection.
    tokens: BTreeSet<u64>,
    /// The client released what it was never granted. The library never does; the server may refuse
    /// a flood of such releases.
    guesses: bool,
}

impl Line {
    /// These frames leave the client.
    pub(super) fn asks(&self, frames: &ClientFrames) {
        let now = self.rights.world.now();
        let mut heard = locked(&self.heard);
        for body in frames.frames.iter().filter_map(|frame| frame.body.as_ref()) {
            match body {
                Ask::Open(open) => {
                    heard.open = Some(now);
                    // A new session begins with a lease.
                    if open.resume.is_none() {
                        locked(&self.rights.seen).signed.insert(self.client, now);
                    }
                }
                Ask::KeepAlive(keepalive) => {
                    heard.keepalives.entry(keepalive.seq).or_insert(now);
                    locked(&self.rights.seen).signed.insert(self.client, now);
                }
                Ask::Release(release) => {
                    heard.guesses |= !heard.tokens.contains(&release.token);
                    let names = release.names.iter().map(|name| name.to_vec()).collect();
                    self.frees(Freed::Locks(release.token, names));
                }
                Ask::Cancel(cancel) => {
                    let session = heard.session.map_or(0, |(session, _)| session);
                    self.frees(Freed::Request(session, cancel.request_id));
                }
                _ => {}
            }
        }
    }

    /// These frames reach the client.
    pub(super) fn is_told(&self, frames: &ServerFrames) {
        let mut heard = locked(&self.heard);
        for body in frames.frames.iter().filter_map(|frame| frame.body.as_ref()) {
            match body {
                Told::Opened(opened) => {
                    heard.session = Some((opened.session_id, Duration::from_millis(opened.ttl_ms)));
                    // As good as a keepalive, unless it says that it moved no deadline (§5.4).
                    if !opened.lease_unmoved {
                        self.acknowledged(&heard, heard.open);
                    }
                    locked(&self.rights.seen).opened += 1;
                }
                Told::Granted(granted) => drop(heard.tokens.insert(granted.token)),
                Told::State(state) => {
                    let known = state.requests.iter().filter_map(|one| match &one.state {
                        Some(Known::Granted(granted)) => Some(granted.token),
                        _ => None,
                    });
                    heard.tokens.extend(known);
                }
                Told::Refused(refused) => self.refused(&heard, refused),
                Told::KeptAlive(kept) => {
                    self.acknowledged(&heard, heard.keepalives.get(&kept.seq).copied());
                    // The acknowledgement covers everything sent before.
                    heard.keepalives = heard.keepalives.split_off(&kept.seq);
                }
                _ => {}
            }
        }
    }

    fn frees(&self, freed: Freed) {
        let mut seen = locked(&self.rights.seen);
        if !seen.freed.insert((self.client, freed)) {
            seen.freed_again.insert(self.client, self.rights.world.now());
        }
    }

    /// Whether several copies of a release or cancel of this client may be waiting.
    fn may_have_copies(&self) -> bool {
        let again = locked(&self.rights.seen).freed_again.get(&self.client).copied();
        again.is_some_and(|at| self.rights.world.now().saturating_since(at) < COPIES_WAIT)
    }

    /// A release outside a flood is never refused for load (I31).
    fn refused(&self, heard: &Heard, refused: &Refused) {
        let (Some(Subject::Token(token)), Some(refusal)) = (refused.subject, &refused.refusal)
        else {
            return;
        };
        if !heard.guesses && !self.may_have_copies() && refusal.limit.starts_with("max_pending") {
            let (client, message) = (self.client, &refusal.message);
            locked(&self.rights.seen).broken.push(format!(
                "I31: the release of token {token} by client {client} was refused for load: {message}"
            ));
        }
    }

    /// The message that left at `sent` is acknowledged. An answer to a request that was never sent
    /// justifies nothing.
    fn acknowledged(&self, heard: &Heard, sent: Option<Instant>) {
        let (Some(sent), Some((session, ttl))) = (sent, heard.session) else { return };
        self.rights.acknowledged((self.client, &self.process), session, (sent, ttl));
    }
}

/// A keepalive that went out beside its session's stream.
pub(super) struct Apart {
    rights: Rights,
    client: u64,
    process: Process,
    session: u64,
    sent: Instant,
}

impl Apart {
    /// The answer reaches the client. That the client may take no notice of it (DESIGN §5.1) makes what it
    /// believes shorter, and never longer, than what is recorded.
    pub(super) fn is_told(&self, kept: &KeptSession) {
        if kept.refused.is_none() {
            let lease = (self.sent, Duration::from_millis(kept.ttl_ms));
            self.rights.acknowledged((self.client, &self.process), self.session, lease);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
