//! Watching: the state of the locks below a prefix, then every change.

mod keeper;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use holdfast_proto::v1::{self, lock_change, watch_event};

use crate::reader::Reader;
use crate::{Holder, LockInfo, LostReason, Result, Value, Waiter};
use keeper::Keeper;

/// What happens to the locks below a prefix; made by [`Reader::watch`].
///
/// First comes the state: a [`WatchEvent::Lock`] for each lock, then [`WatchEvent::Synced`]; from
/// there on every change, each once and in order. Locks that were told already may change before
/// the state is complete: then their changes come in between.
///
/// A watch finds the leader by itself and begins anew when it breaks: a change of leader, a lost
/// connection, or a reader so slow that the server cut it. Then [`WatchEvent::Restarted`] says that
/// what was told is out of date, and the state follows anew. What happened in between is not told.
///
/// It goes on for as long as it is polled, and ends only after an error: [`Error::Refused`](crate::Error::Refused) if a
/// server does not serve it (the prefix cannot be a name, there are too many watches), or
/// [`Error::Unreachable`](crate::Error::Unreachable) if none could be reached within the connect timeout before anything was
/// told. Once something was told, it tries for ever. Dropping it ends it.
///
/// It is not polled in the background: what is not read waits at the server, which cuts a watch
/// that falls too far behind.
pub struct Watch {
    prefix: String,
    events: BoxStream<'static, Result<WatchEvent>>,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A lock as it is now, without its queue. Of more than 100 holders the others follow at once,
    /// as changes, [`ChangeKind::Granted`].
    Lock(LockInfo),
    /// The state is complete: a lock that was not named is not held, not waited for, and has no
    /// value. What follows are changes.
    Synced,
    /// Something happened to a lock.
    Change(LockChange),
    /// The watch broke. Nothing that was told before counts any more; the state follows anew.
    Restarted,
}

/// One thing that happened to one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockChange {
    /// The lock.
    pub name: String,
    /// What happened.
    pub what: ChangeKind,
    /// How many wait for it now.
    pub waiting: u64,
    /// Counts what the store has done: never less than before, and the same for all that happened
    /// at once.
    pub index: u64,
}

/// What can happen to a lock. Of holders and waiters it is not told for how long they hold or
/// wait, and no label if their session has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// Somebody waits for it.
    Queued(Waiter),
    /// Somebody waits no more, without a grant.
    Left(Waiter),
    /// Somebody holds it.
    Granted(Holder),
    /// Somebody gave it back.
    Released(Holder),
    /// Somebody holds it no more without having given it back.
    Lost(Holder, LostReason),
    /// Its value was set, confirmed, removed, or became suspect.
    ValueChanged(Option<Value>),
}

impl Watch {
    pub(crate) fn new(reader: Reader, prefix: String) -> Self {
        let keeper = Keeper::new(reader, prefix.clone());
        let events = stream::unfold(keeper, |mut keeper| async move {
            keeper.next().await.map(|event| (event, keeper))
        });
        Self { prefix, events: events.boxed() }
    }

    /// The next event; `None` after an error, never otherwise. Cancel safe: nothing is lost if the
    /// future is dropped.
    ///
    /// # Errors
    ///
    /// See [`Watch`]; the watch is over then.
    pub async fn next(&mut self) -> Option<Result<WatchEvent>> {
        self.events.next().await
    }

    /// What is watched.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl WatchEvent {
    /// `None` for an event that this version of the client does not know.
    fn from_wire(event: v1::WatchEvent) -> Option<Self> {
        match event.body? {
            watch_event::Body::Lock(lock) => Some(Self::Lock(lock.into())),
            watch_event::Body::Synced(_) => Some(Self::Synced),
            watch_event::Body::Change(change) => {
                let v1::LockChange { name, what, waiting } = change;
                let what = ChangeKind::from_wire(what?)?;
                Some(Self::Change(LockChange { name, what, waiting, index: event.index }))
            }
        }
    }
}

impl ChangeKind {
    fn from_wire(what: lock_change::What) -> Option<Self> {
        Some(match what {
            lock_change::What::Queued(waiter) => Self::Queued(waiter.into()),
            lock_change::What::Left(waiter) => Self::Left(waiter.into()),
            lock_change::What::Granted(holder) => Self::Granted(holder.into()),
            lock_change::What::Released(holder) => Self::Released(holder.into()),
            lock_change::What::Lost(lost) => {
                let reason = lost.reason().into();
                Self::Lost(lost.holder?.into(), reason)
            }
            lock_change::What::ValueChanged(changed) => {
                Self::ValueChanged(changed.value.map(Value::from))
            }
        })
    }
}
