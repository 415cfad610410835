//! A store of several nodes that commit through one log, as the authorities see it; and which of them may believe what.
//!
//! At most one node leads. A deposed leader learns of it later, sees the table as it was meanwhile, and may
//! see what it proposed just before commit all the same. That is all of Raft that §10 stands on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use holdfast_core::{Applied, Batch, Command, Event, LockTable, LogIndex, ScopePrefix, Tenure};
use holdfast_runtime::simulated::{Machine, Process};
use holdfast_runtime::{BoxFuture, Rng, Runtime};
use tokio::sync::watch;

use super::super::board::Board;
use crate::consensus::{Committed, Confirmed, Consensus, Done, Listener, Role};
use crate::error::ProposeError;
use crate::session::ClusterId;

pub(super) fn below(process: &Process, number: u64) -> u64 {
    Rng::next_u64(process) % number
}

pub(super) fn up_to(process: &Process, ms: u64) -> Duration {
    Duration::from_millis(below(process, ms + 1))
}

pub(super) fn scope() -> ScopePrefix {
    ScopePrefix::parse("pay/").expect("a prefix")
}

/// The id of a cluster.
pub(super) fn cluster(number: u8) -> Arc<dyn ClusterId> {
    Arc::new(Bytes::from(vec![number; 16]))
}

/// The log that all nodes share, and who leads.
pub(super) struct Raft {
    pub(super) world: Process,
    state: Mutex<State>,
    pub(super) nodes: OnceLock<Vec<Arc<Node>>>,
}

struct State {
    table: LockTable,
    index: u64,
    tenure: u64,
    /// Which node, in which tenure.
    leader: Option<(usize, u64)>,
    /// What those see who were deposed and do not know it.
    stale: BTreeMap<usize, LockTable>,
}

impl Raft {
    pub(super) fn new(machine: &Machine) -> Arc<Self> {
        let state = State {
            table: LockTable::new(),
            index: 0,
            tenure: 0,
            leader: None,
            stale: BTreeMap::new(),
        };
        Arc::new(Self { world: machine.world(), state: Mutex::new(state), nodes: OnceLock::new() })
    }

    /// The table as of now.
    pub(super) fn table(&self) -> LockTable {
        self.lock().table.clone()
    }

    /// Begins with a table that was restored.
    pub(super) fn restore(&self, table: LockTable) {
        let mut state = self.lock();
        state.index = table.applied_index().get();
        state.table = table;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, id: usize) -> &Arc<Node> {
        &self.nodes.get().expect("nodes")[id]
    }

    pub(super) fn runtime(&self) -> Runtime {
        self.world.runtime()
    }

    pub(super) fn leads(&self, id: usize, tenure: Option<Tenure>) -> bool {
        self.lock().leader.is_some_and(|leader| tenure.map(|of| (id, of.get())) == Some(leader))
    }

    /// A command of a client, or of a leader: in the log at this instant, if anybody leads.
    pub(super) fn commit(&self, command: Command) -> Option<(LogIndex, Applied)> {
        let mut state = self.lock();
        state.leader?;
        state.index += 1;
        let (index, tenure) = (LogIndex::new(state.index), Tenure::new(state.tenure));
        let batch = Batch { commands: vec![command], ..Batch::default() };
        let mut applied = Vec::new();
        state.table.apply_batch(index, tenure, &batch, &mut applied).expect("one log");
        state.table.check().expect("a sound table");
        let applied = applied.pop()?;
        for node in self.nodes.get().into_iter().flatten() {
            if !state.stale.contains_key(&node.id) {
                for event in &applied.events {
                    if let Event::ScopeChanged { scope, now } = event {
                        node.board.applied(scope, *now);
                    }
                }
            }
        }
        Some((index, applied))
    }

    /// Whoever leads does so no more, and learns of it a while later.
    pub(super) fn depose(self: &Arc<Self>) {
        let mut state = self.lock();
        let Some((old, tenure)) = state.leader.take() else { return };
        let seen = state.table.clone();
        state.stale.insert(old, seen);
        drop(state);
        let (raft, learns_after) = (self.clone(), up_to(&self.world, 6_000));
        let learn = async move {
            raft.runtime().sleep(learns_after).await;
            let node = raft.node(old);
            if node.tenure() == Some(Tenure::new(tenure)) {
                let mut state = raft.lock();
                state.stale.remove(&old);
                node.board.restart(state.table.scopes());
                drop(state);
                node.role.send_replace(Role::Following { leader: None });
            }
        };
        self.runtime().spawn("learn", learn).detach();
    }

    pub(super) fn elect(self: &Arc<Self>, id: usize) {
        self.depose();
        let mut state = self.lock();
        state.tenure += 1;
        let tenure = state.tenure;
        state.leader = Some((id, tenure));
        state.stale.remove(&id);
        self.node(id).board.restart(state.table.scopes());
        drop(state);
        self.node(id).role.send_replace(Role::Leading { tenure: Tenure::new(tenure) });
    }
}

/// A node: what its authorities see of the store.
pub(super) struct Node {
    pub(super) id: usize,
    pub(super) raft: Arc<Raft>,
    pub(super) process: Process,
    pub(super) board: Arc<Board>,
    role: watch::Sender<Role>,
}

impl Node {
    pub(super) fn new(raft: &Arc<Raft>, id: usize, process: Process) -> Arc<Self> {
        let role = watch::Sender::new(Role::Following { leader: None });
        Arc::new(Self { id, raft: raft.clone(), process, board: Arc::default(), role })
    }

    /// The tenure in which it believes that it leads.
    pub(super) fn tenure(&self) -> Option<Tenure> {
        self.role.borrow().tenure()
    }
}

impl Consensus for Node {
    fn role(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    fn submit(&self, command: Command, done: Done) {
        let (raft, id, tenure) = (self.raft.clone(), self.id, self.tenure());
        let appended = raft.leads(id, tenure);
        let commit = async move {
            let unknown = || Err(ProposeError::OutcomeUnknown { waited_ms: 300 });
            raft.runtime().sleep(up_to(&raft.world, 20)).await;
            let may_commit = raft.leads(id, tenure) || below(&raft.world, 2) == 0;
            let committed = if appended && may_commit { raft.commit(command) } else { None };
            let Some((index, applied)) = committed.filter(|_| below(&raft.world, 20) > 0) else {
                raft.runtime().sleep(Duration::from_millis(300)).await;
                return done(unknown());
            };
            raft.runtime().sleep(up_to(&raft.world, 10)).await;
            done(Ok(Committed { index, outcome: applied.outcome }));
        };
        self.raft.runtime().spawn("commit", commit).detach();
    }

    fn confirm(&self) -> BoxFuture<'static, Result<Confirmed, ProposeError>> {
        let (raft, id, tenure) = (self.raft.clone(), self.id, self.tenure());
        async move {
            raft.runtime().sleep(up_to(&raft.world, 10)).await;
            let leads = raft.leads(id, tenure);
            raft.runtime().sleep(up_to(&raft.world, 10)).await;
            let Some(tenure) = tenure.filter(|_| leads) else {
                raft.runtime().sleep(Duration::from_millis(300)).await;
                return Err(ProposeError::Unavailable { waited_ms: 300 });
            };
            Ok(Confirmed { tenure, applied: LogIndex::new(raft.lock().index) })
        }
        .boxed()
    }

    fn read(&self, look: &mut dyn FnMut(&LockTable, LogIndex)) {
        let state = self.raft.lock();
        let table = state.stale.get(&self.id).unwrap_or(&state.table);
        look(table, LogIndex::new(state.index));
    }

    fn had_at_start(&self) -> LogIndex {
        LogIndex::new(0)
    }

    fn attach(&self, _listener: Arc<dyn Listener>) {}
}
