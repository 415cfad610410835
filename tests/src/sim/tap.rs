//! Observes every step of every replica from outside: applied entries are checked before the
//! sessions learn of them.

use std::sync::Arc;

use holdfast_core::{Command, Event, LockTable, LogIndex};
use holdfast_runtime::BoxFuture;
use holdfast_server::consensus::{Confirmed, Consensus, Done, Listener, Role};
use holdfast_server::error::ProposeError;
use tokio::sync::watch;

use super::observer::Observer;

/// A replica whose steps are observed.
pub(super) struct Tapped {
    pub(super) replica: Arc<dyn Consensus>,
    pub(super) node: u64,
    pub(super) observer: Arc<Observer>,
}

impl Consensus for Tapped {
    fn role(&self) -> watch::Receiver<Role> {
        self.replica.role()
    }

    fn submit(&self, command: Command, done: Done) {
        self.replica.submit(command, done);
    }

    fn confirm(&self) -> BoxFuture<'static, Result<Confirmed, ProposeError>> {
        self.replica.confirm()
    }

    fn read(&self, look: &mut dyn FnMut(&LockTable, LogIndex)) {
        self.replica.read(look);
    }

    fn had_at_start(&self) -> LogIndex {
        self.replica.had_at_start()
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        let (node, observer) = (self.node, Arc::clone(&self.observer));
        self.replica.attach(Arc::new(Tap { listener, node, observer }));
    }
}

struct Tap {
    listener: Arc<dyn Listener>,
    node: u64,
    observer: Arc<Observer>,
}

impl Listener for Tap {
    fn applied(&self, index: LogIndex, events: &[Event], table: &LockTable) {
        self.observer.applied(self.node, index, events, table);
        self.listener.applied(index, events, table);
    }

    fn restored(&self, index: LogIndex, table: &LockTable) {
        self.observer.restored(self.node, index, table);
        self.listener.restored(index, table);
    }
}
