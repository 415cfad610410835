//! Watching: the state of the locks below a prefix, then every change.

mod watch_stream;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt};
use holdfast_proto::v1::{self, lock_change, watch_event};

use crate::reader::Reader;
use crate::{Holder, LockInfo, LostReason, Result, Value, Waiter, wire};
use watch_stream::WatchStream;

/// Events of the locks below a prefix; made by [`Reader::watch`].
///
/// First comes the state: a [`WatchEvent::Lock`] for each lock, then [`WatchEvent::Synced`]; after
/// that every change, each once and in order. A lock that was already reported may change before
/// the state is complete: then its changes come in between.
///
/// A watch finds the leader by itself when it breaks: after a change of leader, a lost connection,
/// or when the server cut a slow reader. If it had the whole state, it reports
/// [`WatchEvent::Interrupted`], and goes on where it ended: then comes [`WatchEvent::Resumed`], and
/// after it every change that happened meanwhile. The servers keep recent changes only. If some of
/// those after the break are gone, [`WatchEvent::Compacted`] says so. Then, and whenever a watch
/// cannot go on, [`WatchEvent::Restarted`] marks all earlier events as out of date, and the state
/// follows again; the changes in between are not reported.
///
/// It goes on for as long as it is polled, and ends only after an error:
/// [`Error::Refused`](crate::Error::Refused) if a server does not serve it (the prefix cannot be a
/// name, there are too many watches), or [`Error::Unreachable`](crate::Error::Unreachable) if it
/// reached no server within the connect timeout before the first event. After the first event it
/// retries for ever. Dropping it ends it.
///
/// Nothing polls it in the background: unread events wait at the server, which cuts a watch that
/// falls too far behind.
pub struct Watch {
    prefix: String,
    events: BoxStream<'static, Result<WatchEvent>>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// A lock as it is now, without its queue. If it has more than 100 holders, the others follow
    /// at once, as changes, [`ChangeKind::Granted`].
    Lock(LockInfo),
    /// The state is complete: a lock that was not reported has no holder, no waiter and no value.
    /// Changes follow.
    Synced,
    /// Something happened to a lock.
    Change(LockChange),
    /// The watch broke. All earlier events are out of date; the state follows again.
    Restarted,
    /// The watch lost its server. What was reported may be out of date until [`WatchEvent::Resumed`]
    /// or [`WatchEvent::Restarted`] follows.
    Interrupted,
    /// The watch goes on where it was interrupted. All changes since then follow, each once.
    Resumed,
    /// The watch cannot go on where it was interrupted: the servers do not keep all changes since
    /// then any more. [`WatchEvent::Restarted`] follows at once.
    Compacted,
}

/// One thing that happened to one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockChange {
    /// The lock.
    pub name: String,
    /// What happened.
    pub what: ChangeKind,
    /// How many requests wait for it now.
    pub waiting: u64,
    /// The log index of the change: never less than before, and the same for all changes that
    /// happened at once.
    pub index: u64,
}

/// What can happen to a lock. Holders and waiters come without the time they have held or waited,
/// and without a label if their session has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeKind {
    /// A request waits for it.
    Queued(Waiter),
    /// A request waits no more, without a grant.
    Left(Waiter),
    /// A session holds it.
    Granted(Holder),
    /// Its holder released it.
    Released(Holder),
    /// A hold ended without a release.
    Lost(Holder, LostReason),
    /// Its value was set, confirmed, removed, or became suspect.
    ValueChanged(Option<Value>),
}

impl Watch {
    pub(crate) fn new(reader: Reader, prefix: String) -> Self {
        let watch = WatchStream::new(reader, prefix.clone());
        let events = stream::unfold(watch, |mut watch| async move {
            watch.next().await.map(|event| (event, watch))
        });
        Self { prefix, events: events.boxed() }
    }

    /// The next event; `None` only after an error. Cancel safe: dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// See [`Watch`]; the watch is over then.
    pub async fn next(&mut self) -> Option<Result<WatchEvent>> {
        self.events.next().await
    }

    /// The prefix.
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
            watch_event::Body::Lock(lock) => Some(Self::Lock(LockInfo::from_wire(lock))),
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
            lock_change::What::Queued(waiter) => Self::Queued(Waiter::from_wire(waiter)),
            lock_change::What::Left(waiter) => Self::Left(Waiter::from_wire(waiter)),
            lock_change::What::Granted(holder) => Self::Granted(wire::holder(holder)),
            lock_change::What::Released(holder) => Self::Released(wire::holder(holder)),
            lock_change::What::Lost(lost) => {
                let reason = wire::lost_reason(lost.reason());
                Self::Lost(wire::holder(lost.holder?), reason)
            }
            lock_change::What::ValueChanged(changed) => {
                Self::ValueChanged(changed.value.map(Value::from_wire))
            }
        })
    }
}
