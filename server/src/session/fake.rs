//! A replica of one node that commits at once, unless a test holds that back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use holdfast_core::{
    Applied, Batch, Command, EndCause, Event, LockTable, LogIndex, Missing, SessionId, Tenure,
};
use holdfast_runtime::{BoxFuture, Instant, Runtime};
use tokio::sync::watch;

use crate::consensus::{Committed, Confirmed, Consensus, Done, LeaderHint, Listener, Role};
use crate::error::ProposeError;

/// How long a confirmation without a quorum takes to fail.
const CONFIRM_LIMIT_MS: u64 = 300;

pub(crate) struct Fake {
    runtime: Runtime,
    role: watch::Sender<Role>,
    listener: OnceLock<Arc<dyn Listener>>,
    table: Mutex<(LockTable, LogIndex)>,
    switches: watch::Sender<Switches>,
    held_back: Mutex<Vec<(Command, Tenure, Done)>>,
    confirms_asked: AtomicU64,
    /// The last entry that is taken to have been in the log before the start.
    had_at_start: AtomicU64,
    expired: Mutex<Vec<(SessionId, Instant)>>,
}

/// What a test may change.
#[derive(Clone, Copy)]
struct Switches {
    /// Whether a quorum answers.
    quorum: bool,
    /// How many confirmations, in the order of their requests, are answered; `None`: all.
    confirms: Option<u64>,
    /// Whether commands wait in the log instead of being committed.
    commits_held: bool,
    /// The tenure that a confirmation reports, if it differs from that of the role.
    confirmed_tenure: Option<Tenure>,
}

impl Fake {
    pub(crate) fn new(runtime: Runtime) -> Arc<Self> {
        let switches =
            Switches { quorum: true, confirms: None, commits_held: false, confirmed_tenure: None };
        Arc::new(Self {
            runtime,
            role: watch::Sender::new(Role::Following { leader: None }),
            listener: OnceLock::new(),
            table: Mutex::new((LockTable::new(), LogIndex::new(0))),
            switches: watch::Sender::new(switches),
            held_back: Mutex::default(),
            confirms_asked: AtomicU64::new(0),
            had_at_start: AtomicU64::new(0),
            expired: Mutex::default(),
        })
    }

    /// Leads in a tenure from now on, with an entry of its own applied.
    pub(crate) fn lead(&self, tenure: u64) {
        self.role.send_replace(Role::Leading { tenure: Tenure::new(tenure) });
    }

    /// As if the entries up to `index` had been in the log before the start. Call it before the hub starts.
    pub(crate) fn had_before(&self, index: u64) {
        self.had_at_start.store(index, Ordering::Relaxed);
    }

    fn forbids(&self, command: &Command) -> Option<Missing> {
        self.table.lock().unwrap().0.allows(command).err()
    }

    /// Follows from now on.
    pub(crate) fn follow(&self, leader: Option<&str>) {
        let leader =
            leader.map(|advertise| LeaderHint { node_id: 2, advertise: advertise.to_owned() });
        self.role.send_replace(Role::Following { leader });
    }

    pub(crate) fn set_quorum(&self, quorum: bool) {
        self.switches.send_modify(|switches| switches.quorum = quorum);
    }

    /// From here on the answers to confirmations are held back.
    pub(crate) fn hold_confirms(&self) {
        let asked = self.confirms_asked.load(Ordering::Relaxed);
        self.switches.send_modify(|switches| switches.confirms = Some(asked));
    }

    /// Releases the answer to the first confirmation that was held back.
    pub(crate) fn let_one_confirm_go(&self) {
        let one_more = |confirms: &mut Option<u64>| *confirms = confirms.map(|count| count + 1);
        self.switches.send_modify(|switches| one_more(&mut switches.confirms));
    }

    pub(crate) fn let_confirms_go(&self) {
        self.switches.send_modify(|switches| switches.confirms = None);
    }

    pub(crate) fn confirm_as(&self, tenure: u64) {
        let tenure = Tenure::new(tenure);
        self.switches.send_modify(|switches| switches.confirmed_tenure = Some(tenure));
    }

    pub(crate) fn hold_commits(&self) {
        self.switches.send_modify(|switches| switches.commits_held = true);
    }

    /// Commits what was held back, and what comes after.
    pub(crate) fn let_commits_go(&self) {
        self.switches.send_modify(|switches| switches.commits_held = false);
        for (command, tenure, done) in self.take_held_back() {
            done(Ok(self.commit(command, tenure)));
        }
    }

    /// Stops waiting for what was held back. These commands may still be committed, so they are
    /// returned.
    pub(crate) fn give_up_held_back(&self) -> Vec<Command> {
        let give_up = |(command, _, done): (Command, Tenure, Done)| {
            done(Err(ProposeError::OutcomeUnknown { waited_ms: 5_000 }));
            command
        };
        self.take_held_back().into_iter().map(give_up).collect()
    }

    /// The sessions that expired, and when.
    pub(crate) fn expired(&self) -> Vec<(SessionId, Instant)> {
        self.expired.lock().unwrap().clone()
    }

    pub(crate) fn held_back(&self) -> Vec<Command> {
        self.held_back.lock().unwrap().iter().map(|(command, _, _)| command.clone()).collect()
    }

    fn take_held_back(&self) -> Vec<(Command, Tenure, Done)> {
        std::mem::take(&mut *self.held_back.lock().unwrap())
    }

    /// Commits a command as an entry of its own, whichever client proposed it.
    pub(crate) fn commit(&self, command: Command, tenure: Tenure) -> Committed {
        self.commit_all(vec![command], tenure).remove(0)
    }

    /// Commits commands in one entry.
    pub(crate) fn commit_all(&self, commands: Vec<Command>, tenure: Tenure) -> Vec<Committed> {
        let mut guard = self.table.lock().unwrap();
        let (table, index) = &mut *guard;
        *index = LogIndex::new(index.get() + 1);
        let batch = Batch { stamp_ms: self.runtime.clock.wall_ms(), commands, ..Batch::default() };
        let mut applied = Vec::new();
        table.apply_batch(*index, tenure, &batch, &mut applied).unwrap();
        let events: Vec<Event> = applied.iter().flat_map(|one| one.events.clone()).collect();
        for event in &events {
            if let Event::SessionEnded { session, cause: EndCause::Expired } = event {
                self.expired.lock().unwrap().push((*session, self.runtime.clock.now()));
            }
        }
        if let Some(listener) = self.listener.get() {
            listener.applied(*index, &events, table);
        }
        let committed = |one: Applied| Committed { index: *index, outcome: one.outcome };
        applied.into_iter().map(committed).collect()
    }

    /// The state is replaced by a snapshot, which is of the same state.
    pub(crate) fn restore(&self) {
        let guard = self.table.lock().unwrap();
        if let Some(listener) = self.listener.get() {
            listener.restored(guard.1, &guard.0);
        }
    }

    /// The state is replaced by that of a snapshot.
    pub(crate) fn replace(&self, table: LockTable) {
        let index = table.applied_index();
        *self.table.lock().unwrap() = (table, index);
        self.restore();
    }

    async fn confirmed(self: Arc<Self>) -> Result<Confirmed, ProposeError> {
        let number = self.confirms_asked.fetch_add(1, Ordering::Relaxed);
        let mut switches = self.switches.subscribe();
        if !switches.borrow().quorum {
            self.runtime.sleep(Duration::from_millis(CONFIRM_LIMIT_MS)).await;
            return Err(ProposeError::Unavailable { waited_ms: CONFIRM_LIMIT_MS });
        }
        let answered = |now: &Switches| now.confirms.is_none_or(|answered| number < answered);
        let seen = *switches.wait_for(answered).await.unwrap();
        let role = self.role.borrow().clone();
        let applied = self.table.lock().unwrap().1;
        match (seen.confirmed_tenure.or(role.tenure()), role) {
            (Some(tenure), _) => Ok(Confirmed { tenure, applied }),
            (None, Role::Following { leader }) => Err(ProposeError::NotLeader { leader }),
            (None, Role::Leading { .. }) => unreachable!("a leader has a tenure"),
        }
    }
}

/// What tests hand to the hub.
pub(crate) struct Handle(pub(crate) Arc<Fake>);

impl Consensus for Handle {
    fn role(&self) -> watch::Receiver<Role> {
        self.0.role.subscribe()
    }

    fn submit(&self, command: Command, done: Done) {
        let role = self.0.role.borrow().clone();
        match role {
            Role::Following { leader } => done(Err(ProposeError::NotLeader { leader })),
            // As the proposer of a replica does (I26).
            Role::Leading { .. } if self.0.forbids(&command).is_some() => {
                let missing = self.0.forbids(&command).unwrap();
                done(Err(ProposeError::Forbidden(missing)));
            }
            Role::Leading { tenure } if self.0.switches.borrow().commits_held => {
                self.0.held_back.lock().unwrap().push((command, tenure, done));
            }
            Role::Leading { tenure } => done(Ok(self.0.commit(command, tenure))),
        }
    }

    fn confirm(&self) -> BoxFuture<'static, Result<Confirmed, ProposeError>> {
        Box::pin(self.0.clone().confirmed())
    }

    fn read(&self, look: &mut dyn FnMut(&LockTable, LogIndex)) {
        let guard = self.0.table.lock().unwrap();
        look(&guard.0, guard.1);
    }

    fn had_at_start(&self) -> LogIndex {
        LogIndex::new(self.0.had_at_start.load(Ordering::Relaxed))
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        assert!(self.0.listener.set(listener).is_ok(), "attached twice");
    }
}
