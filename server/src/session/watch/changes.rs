//! Events of the log as changes of single locks: one event of a request is one change for each of
//! its names.

use holdfast_core::{
    Event, FencingToken, Item, LockName, LockTable, LogIndex, LossCause, Mode, RequestId, SessionId,
};
use holdfast_proto::v1::lock_change::What;
use holdfast_proto::v1::watch_event::Body;
use holdfast_proto::v1::{HoldLost, Holder, LockChange, ValueChanged, WaiterInfo, WatchEvent};

use super::super::answers::{self, mode_of, value_of};

/// Makes a change; called only if a watcher wants it.
pub(super) type Make<'a> = &'a dyn Fn() -> WatchEvent;

/// Calls `tell` with each lock that `event` changed, in the order of their names. `table` is the state
/// as of `index`, after all changes of this entry of the log.
pub(super) fn each(
    event: &Event,
    index: LogIndex,
    table: &LockTable,
    tell: &mut dyn FnMut(&LockName, Make<'_>),
) {
    let change = |lock: &LockName, what| {
        let waiting = table.lock(lock).map_or(0, |lock| lock.waiting);
        let name = lock.as_str().to_owned();
        let change = LockChange { name, waiting, what: Some(what) };
        WatchEvent { index: index.get(), body: Some(Body::Change(change)) }
    };
    if let Event::ValueChanged { lock, value } = event {
        let changed = || ValueChanged { value: value.as_ref().map(value_of) };
        tell(lock, &|| change(lock, What::ValueChanged(changed())));
    }
    let Some(turn) = Turn::of(event) else { return };
    for item in turn.items {
        tell(&item.lock, &|| change(&item.lock, turn.what(item.mode, table)));
    }
}

/// What a request did to each of some locks.
struct Turn<'a> {
    session: SessionId,
    request: RequestId,
    items: &'a [Item],
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    Queued,
    Left,
    Granted(FencingToken),
    Released(FencingToken),
    Lost(FencingToken, LossCause),
}

impl<'a> Turn<'a> {
    /// `None` if no request came into or out of a lock.
    fn of(event: &'a Event) -> Option<Self> {
        let (session, request, items, step) = match event {
            Event::Queued { session, request, items, .. } => {
                (session, request, items, Step::Queued)
            }
            Event::Left { session, request, items } => (session, request, items, Step::Left),
            Event::Granted { session, request, items, token, .. } => {
                (session, request, items, Step::Granted(*token))
            }
            Event::Released { session, request, items, token, .. } => {
                (session, request, items, Step::Released(*token))
            }
            Event::Lost { session, request, items, token, cause, .. } => {
                (session, request, items, Step::Lost(*token, *cause))
            }
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::Denied { .. }
            | Event::Contended { .. }
            | Event::ValueChanged { .. }
            | Event::ScopeChanged { .. } => return None,
        };
        Some(Self { session: *session, request: *request, items, step })
    }

    fn what(&self, mode: Mode, table: &LockTable) -> What {
        match self.step {
            Step::Queued => What::Queued(self.waiter(mode, table)),
            Step::Left => What::Left(self.waiter(mode, table)),
            Step::Granted(token) => What::Granted(self.holder(token, mode, table)),
            Step::Released(token) => What::Released(self.holder(token, mode, table)),
            Step::Lost(token, cause) => What::Lost(HoldLost {
                holder: Some(self.holder(token, mode, table)),
                reason: answers::lost_reason(cause).into(),
            }),
        }
    }

    fn waiter(&self, mode: Mode, table: &LockTable) -> WaiterInfo {
        WaiterInfo {
            session_id: self.session.get(),
            label: self.label(table),
            request_id: self.request.get(),
            waiting_ms: 0,
            mode: mode_of(mode).into(),
            names: u32::try_from(self.items.len()).unwrap_or(u32::MAX),
            imported: self.is_import(table),
        }
    }

    fn holder(&self, token: FencingToken, mode: Mode, table: &LockTable) -> Holder {
        Holder {
            session_id: self.session.get(),
            label: self.label(table),
            token: token.get(),
            held_ms: 0,
            mode: mode_of(mode).into(),
            imported: self.is_import(table),
        }
    }

    fn is_import(&self, table: &LockTable) -> bool {
        table.session(self.session).is_some_and(|session| session.imported)
    }

    /// The label of the session; empty for one that has ended, of which nothing is kept.
    fn label(&self, table: &LockTable) -> String {
        let session = table.session(self.session);
        session.map(|session| session.label.as_str().to_owned()).unwrap_or_default()
    }
}
