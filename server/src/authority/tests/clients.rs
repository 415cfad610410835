//! Clients as small as the protocol allows: of the store, and of Cassandra while that serves. What they
//! leave out (sessions, leases that run out) ends nothing here: authority and the row alone bound a hold. W and V
//! are what the row says, to them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_cassandra::authority::{Authority, AuthorityRow, Durations, Look, Mode};
use holdfast_cassandra::database::Tables;
use holdfast_core::{
    Answer, Command, FencingToken, Item, Label, LockName, Need, RequestId, RequestState, SessionId,
};
use holdfast_proto::v1::ScopeAuthority;
use holdfast_seams::Moment;
use holdfast_seams::simulated::Process;
use tokio::sync::oneshot;

use super::world::{Judge, Raft, below, scope, up_to};

/// What a client may believe for the names of the scope, and until when.
#[derive(Clone, Copy)]
struct Cover {
    epoch: u64,
    until: Moment,
}

/// A client that can reach servers.
pub(super) struct Native {
    pub(super) id: usize,
    pub(super) process: Process,
    pub(super) raft: Arc<Raft>,
    pub(super) judge: Arc<Judge>,
    session: Option<SessionId>,
    request: u64,
    guard: Option<FencingToken>,
    cover: Option<Cover>,
}

impl Native {
    pub(super) fn new(id: usize, process: Process, raft: Arc<Raft>, judge: Arc<Judge>) -> Self {
        Self { id, process, raft, judge, session: None, request: 0, guard: None, cover: None }
    }

    pub(super) async fn run(mut self) {
        loop {
            self.process.seams().sleep(up_to(&self.process, 300)).await;
            match (self.session, self.guard) {
                (None, _) => self.open(),
                (Some(session), None) => self.acquire(session).await,
                (Some(session), Some(token)) if below(&self.process, 12) == 0 => {
                    self.release(session, token).await;
                }
                (Some(_), Some(_)) => {}
            }
            self.keep_alive().await;
        }
    }

    fn open(&mut self) {
        let label = Label::parse("native").expect("a label");
        let open = Command::OpenSession { ttl_ms: 5_000, label, secret_hash: [0; 32] };
        if let Some((_, applied)) = self.raft.commit(open)
            && let Ok(Answer::SessionOpened { session }) = applied.outcome
        {
            self.session = Some(session);
        }
    }

    /// Asks once, and looks later whether it holds; a grant may be long under way.
    async fn acquire(&mut self, session: SessionId) {
        let request = RequestId::new(self.request.max(1));
        let state = self.raft.look(|table| table.request(session, request).map(|view| view.state));
        match state {
            Some(RequestState::Held { token, .. }) => {
                self.process.seams().sleep(up_to(&self.process, 2_000)).await;
                self.guard = Some(token);
                self.believe();
            }
            Some(RequestState::Waiting { .. }) => {}
            _ => {
                self.request += 1;
                let lock = LockName::parse("pay/1").expect("a name");
                let _ = self.raft.commit(Command::Acquire {
                    session,
                    done_below: RequestId::new(self.request),
                    request: RequestId::new(self.request),
                    items: vec![Item::exclusive(lock)],
                    need: Need::All,
                    wait: true,
                });
            }
        }
    }

    async fn release(&mut self, session: SessionId, token: FencingToken) {
        self.guard = None;
        self.judge.over(self.id);
        let done_below = RequestId::new(0);
        let release = || Command::Release { session, done_below, token, locks: Vec::new() };
        while self.raft.commit(release()).is_none() {
            self.process.seams().sleep(Duration::from_millis(200)).await;
        }
    }

    /// Whoever believes that he leads answers, also one who was deposed and does not know it.
    async fn keep_alive(&mut self) {
        let nodes = self.raft.nodes.get().expect("nodes");
        let leads = nodes.iter().filter(|node| node.tenure().is_some()).collect::<Vec<_>>();
        let Some(node) = leads.get(usize::try_from(below(&self.process, 3)).unwrap_or(0)) else {
            return;
        };
        let node = Arc::clone(node);
        let sent = self.process.seams().clock.now();
        self.process.seams().sleep(up_to(&self.process, 50)).await;
        let (reply, answer) = oneshot::channel();
        let seams = node.process.seams();
        let answering = async move {
            if let Some(tenure) = node.tenure() {
                let came_at = node.process.seams().clock.now();
                let _ = reply.send(node.board.answers(tenure, came_at));
            }
        };
        seams.spawn("answer", answering).detach();
        let limit = Duration::from_millis(500) + up_to(&self.process, 3_000);
        let answered = self.process.seams().timeout(limit, answer).await;
        if let Ok(Ok(scopes)) = answered {
            // `CoverFromSendTime`: it may have been under way for a while.
            if below(&self.process, 10) == 0 {
                self.process.seams().sleep(up_to(&self.process, 3_000)).await;
            }
            self.take_cover(sent, &scopes);
        }
    }

    fn take_cover(&mut self, sent: Moment, scopes: &[ScopeAuthority]) {
        let [told] = scopes else { return };
        let length = Durations::covered(Duration::from_millis(told.remaining_ms));
        let new = Cover { epoch: told.epoch.into(), until: sent + length };
        let newer = |old: Cover| new.epoch != old.epoch || new.until > old.until;
        if !length.is_zero() && self.cover.is_none_or(newer) {
            self.cover = Some(new);
        }
        self.believe();
    }

    /// `CoverOfOwnEpoch`.
    fn believe(&self) {
        let (Some(token), Some(cover)) = (self.guard, self.cover) else { return };
        if cover.epoch != token.epoch() {
            return self.judge.over(self.id);
        }
        if cover.until > self.process.seams().clock.now() {
            self.judge.held_natively();
        }
        self.judge.safe(self.id, &self.process, token.get(), cover.until);
    }
}

/// The lock in Cassandra: a lease that is right by itself, and its fence.
#[derive(Default)]
pub(super) struct Lease(Mutex<(Option<usize>, u64)>);

impl Lease {
    /// Takes it, and draws the number of its token.
    fn take(&self, client: usize) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0.is_some() {
            return None;
        }
        *state = (Some(client), state.1 + 1);
        Some(state.1)
    }

    fn leave(&self, client: usize) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 == Some(client) {
            state.0 = None;
        }
    }
}

struct Held {
    token: FencingToken,
    until: Moment,
}

/// A client that cannot reach a server.
pub(super) struct Fallback {
    pub(super) id: usize,
    pub(super) process: Process,
    pub(super) judge: Arc<Judge>,
    pub(super) lease: Arc<Lease>,
    row: Authority,
    /// The row, and when it was first seen so.
    still: Option<(AuthorityRow, Moment)>,
    hold: Option<Held>,
}

impl Fallback {
    pub(super) fn new(
        id: usize,
        process: Process,
        tables: Tables,
        judge: Arc<Judge>,
        lease: Arc<Lease>,
    ) -> Self {
        let clock = process.seams().clock;
        let row = Authority::new(Arc::new(tables), clock, scope().as_str());
        Self { id, process, judge, lease, row, still: None, hold: None }
    }

    pub(super) async fn run(mut self) {
        loop {
            let had = self.hold.is_some();
            match self.row.read().await {
                Ok(look) => {
                    self.look_after(&look, had);
                    self.act(&look).await;
                }
                Err(_) => self.still = None,
            }
            if self.hold.is_some() && below(&self.process, 10) == 0 {
                self.end();
            }
            self.process.seams().sleep(up_to(&self.process, 700)).await;
        }
    }

    fn end(&mut self) {
        self.hold = None;
        self.judge.over(self.id);
        self.lease.leave(self.id);
    }

    /// `ReadOfOwnEpoch`, `ReadOfHeld`, `HoldFromReadStart`; and what is over is over.
    fn look_after(&mut self, look: &Look, had: bool) {
        let now = self.process.seams().clock.now();
        let Some(held) = self.hold.as_mut().filter(|_| had) else { return };
        let epoch = u16::try_from(held.token.epoch()).expect("an epoch");
        let Some(row) = look.row.filter(|row| now < held.until && row.extends(epoch)) else {
            return self.end();
        };
        held.until = look.began + row.durations.hold();
        let (token, until) = (held.token.get(), held.until);
        self.judge.safe(self.id, &self.process, token, until);
    }

    async fn act(&mut self, look: &Look) {
        let Some(row) = look.row else { return };
        let since = self.still.filter(|(before, _)| *before == row);
        // `WaitFromReadEnd`, `BeatCompared`.
        let (_, since) = *self.still.insert(since.unwrap_or((row, look.ended)));
        match row.mode {
            Mode::Native | Mode::Draining => {
                let waited = self.process.seams().clock.now().saturating_since(since);
                if waited >= row.durations.take_over_wait() {
                    let (mode, epoch) = (Mode::Cassandra, row.epoch + 1);
                    let to = AuthorityRow { mode, epoch, beat: 0, ..row };
                    // Whatever comes of it, a read shows it.
                    let _ = self.row.change(row, to).await;
                    self.still = None;
                }
            }
            Mode::Cassandra if self.hold.is_none() => {
                self.process.seams().sleep(up_to(&self.process, 1_500)).await;
                let Some(number) = self.lease.take(self.id) else { return };
                let token = FencingToken::new(row.epoch, number).expect("a token");
                let until = look.began + row.durations.hold();
                if until > self.process.seams().clock.now() {
                    self.judge.held_in_cassandra();
                }
                self.hold = Some(Held { token, until });
                self.judge.safe(self.id, &self.process, token.get(), until);
            }
            Mode::Cassandra | Mode::Preparing | Mode::Retired => {}
        }
    }
}
