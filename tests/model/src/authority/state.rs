//! A state of the world.

use super::Who;
use super::client::{Fallback, KeepAlive, Native, Token};
use super::row::{Cas, Operation, Row};
use super::server::{Server, Term};

/// How many there is room for, of each kind.
pub(crate) const PLACES: usize = 2;

/// What the servers have committed. Raft stands here as "what the true leader proposes commits
/// now, later or never".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Core {
    pub(crate) epoch: u8,
    /// The token granted last.
    pub(crate) token: Token,
    /// The native client that holds.
    pub(crate) holder: Option<usize>,
    /// A `RaiseEpoch` that was proposed, and may yet commit whoever leads by then. A newer one comes
    /// after it in every log, or in its place.
    pub(crate) raise: Option<u8>,
}

/// The lock's row in Cassandra: a lease that is right by itself, and its fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    pub(crate) holder: Option<usize>,
    /// The highest epoch that a token was drawn in, and the number drawn last.
    pub(crate) fence: Token,
}

/// A state of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) row: Row,
    /// The row before its last change; kept only where a read may be that stale.
    pub(crate) stale: Row,
    /// What its asker gave up, and may yet be carried out.
    pub(crate) late: [Option<Cas>; PLACES],
    pub(crate) servers: [Server; PLACES],
    /// The server that leads, whichever other one believes that it does.
    pub(crate) leader: usize,
    pub(crate) core: Core,
    pub(crate) natives: [Native; PLACES],
    pub(crate) lease: Lease,
    pub(crate) fallbacks: [Fallback; PLACES],
    /// The highest token that was ever safe.
    pub(crate) highest: Token,
}

impl State {
    /// The scope is native in its first epoch: server 0 leads and knows the row, native client 0
    /// was granted the lock and waits for authority that covers it.
    pub(crate) fn native() -> Self {
        let row = Row { epoch: 1, ..Row::default() };
        let token = Token::default().drawn_in(1);
        let mut state = Self {
            row,
            stale: row,
            late: [None; PLACES],
            servers: [Server::default(); PLACES],
            leader: 0,
            core: Core { epoch: 1, token, holder: Some(0), raise: None },
            natives: [Native::default(); PLACES],
            lease: Lease::default(),
            fallbacks: [Fallback::default(); PLACES],
            highest: Token::default(),
        };
        state.servers[0] = Server { view: Some(row), ..Server::elected() };
        state.natives[0].guard = Some(token);
        state
    }

    /// The servers were restored, with the core at `epoch`, while the row was as it is.
    pub(crate) fn restored(row: Row, epoch: u8) -> Self {
        let core = Core { epoch, ..Core::default() };
        let mut state = Self { row, stale: row, core, ..Self::native() };
        state.servers[0].view = None;
        state.natives[0].guard = None;
        state
    }

    /// The tokens of the holds that are safe; `any_epoch`: whatever epoch the authority is of.
    pub(crate) fn safe(&self, any_epoch: bool) -> impl Iterator<Item = Token> + '_ {
        let covered = move |native: &Native| {
            let Term { epoch, left } = native.cover;
            native.guard.filter(|token| left > 0 && (any_epoch || token.epoch == epoch))
        };
        let read = |client: &Fallback| client.hold.filter(|_| client.left > 0);
        self.natives.iter().filter_map(covered).chain(self.fallbacks.iter().filter_map(read))
    }

    /// The server that led before does not know it.
    pub(crate) fn elect(&mut self, server: usize) {
        let before = &mut self.servers[self.leader];
        before.may_write_once = before.leads;
        self.servers[server] = Server::elected();
        self.leader = server;
    }

    /// The hold of a client in Cassandra is over, and its lease.
    pub(crate) fn end_hold(&mut self, client: usize) {
        self.fallbacks[client].hold = None;
        if self.lease.holder == Some(client) {
            self.lease.holder = None;
        }
    }

    /// A native client's hold is over, and what was on its way to it.
    pub(crate) fn release(&mut self, native: usize) {
        self.natives[native].guard = None;
        self.natives[native].granted = None;
        if self.core.holder == Some(native) {
            self.core.holder = None;
        }
    }

    pub(crate) fn grant(&mut self, native: usize) {
        let token = self.core.token.drawn_in(self.core.epoch);
        self.core.token = token;
        self.core.holder = Some(native);
        self.natives[native].granted = Some(token);
    }

    /// The client acquires in Cassandra, and draws a token of the epoch that it read. A read that
    /// began before tells nothing about this hold, unless it `counts`.
    pub(crate) fn acquire(&mut self, client: usize, counts: bool) {
        if matches!(self.fallbacks[client].operation, Operation::Read { .. }) && !counts {
            self.fallbacks[client].operation = Operation::None;
        }
        let Some(row) = self.fallbacks[client].view else { return };
        let token = self.lease.fence.drawn_in(row.epoch);
        // A client that acquires late draws in an epoch that is over; the next number is above its own all the same.
        let epoch = row.epoch.max(self.lease.fence.epoch);
        self.lease = Lease { holder: Some(client), fence: Token { epoch, ..token } };
        self.fallbacks[client].hold = Some(token);
    }

    /// `RaiseEpoch` commits: it ends every hold from before, and every wait for it is over.
    pub(crate) fn commit_raise(&mut self) {
        let Some(epoch) = self.core.raise.take() else { return };
        self.core.epoch = epoch;
        self.core.holder = None;
        for server in &mut self.servers {
            server.due = server.due.filter(|due| due.epoch > epoch);
        }
    }

    pub(crate) fn write(&mut self, row: Row, keep_stale: bool) {
        self.stale = if keep_stale { self.row } else { row };
        self.row = row;
    }

    /// What stands at `which` is dropped or carried out; the order says nothing.
    pub(crate) fn take_late(&mut self, which: usize) -> Option<Cas> {
        let cas = self.late[which].take();
        self.late.sort_unstable();
        cas
    }

    fn put_late(&mut self, cas: Cas) {
        if let Some(room) = self.late.iter_mut().find(|one| one.is_none()) {
            *room = Some(cas);
        }
        self.late.sort_unstable();
    }

    pub(crate) fn answer_keep_alive(&mut self, native: usize, server: usize, from_receipt: bool) {
        if let KeepAlive::Sent { age } = self.natives[native].keep_alive {
            let Term { epoch, left } = self.servers[server].authority;
            let age = if from_receipt { 0 } else { age };
            let cover = Term::right(epoch, left.saturating_sub(age));
            self.natives[native].keep_alive = KeepAlive::Answered(cover);
        }
    }

    pub(crate) fn operation(&mut self, who: Who) -> &mut Operation {
        match who {
            Who::Server(at) => &mut self.servers[at].operation,
            Who::Client(at) => &mut self.fallbacks[at].operation,
        }
    }

    /// The leader asks for a change of the row that it knows.
    pub(crate) fn ask(&mut self, server: usize, change: impl FnOnce(Row) -> Row) {
        let server = &mut self.servers[server];
        if let Some(row) = server.view {
            server.operation = Operation::cas(row, change(row));
            server.may_write_once = false;
        }
    }

    pub(crate) fn read_stale(&mut self, who: Who) {
        let row = self.stale;
        if let Operation::Read { seen, .. } = self.operation(who) {
            *seen = Some(row);
        }
    }

    /// Its asker will get no answer; it may yet be carried out.
    pub(crate) fn leave_behind(&mut self, who: Who) {
        if let Operation::Cas { cas, .. } = *self.operation(who) {
            self.put_late(cas);
        }
    }
}
