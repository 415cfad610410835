//! One hold as the client sees it: safe, in jeopardy, over.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_proto::v1;
use holdfast_seams::Moment;
use tokio::sync::watch;

use crate::items::Item;
use crate::lease::Span;
use crate::safety::Safety;
use crate::value::Change;
use crate::{FencingToken, Mode, Value};

/// Why a hold ended without a release by its guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The safe deadline passed without an answer from the store. The store may still count this
    /// session as the holder for a moment, but nothing is certain any more.
    DeadlinePassed,
    /// The store received nothing from the session for its whole TTL and ended it.
    SessionExpired,
    /// The client, or another process with its secret, closed the session.
    SessionClosed,
    /// Another stream resumed the session with its secret.
    AttachedElsewhere,
    /// The store does not know the hold any more.
    Revoked,
    /// The authority of the lock's scope moved to another store, or may have: that store may grant
    /// the lock now.
    AuthorityPassed,
}

impl From<v1::LostReason> for LostReason {
    fn from(reason: v1::LostReason) -> Self {
        match reason {
            v1::LostReason::SessionClosed => Self::SessionClosed,
            v1::LostReason::SessionExpired => Self::SessionExpired,
            v1::LostReason::EpochRaised => Self::AuthorityPassed,
            v1::LostReason::Unspecified => Self::Revoked,
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeadlinePassed => "its safe deadline passed without word from the store",
            Self::SessionExpired => "the session expired",
            Self::SessionClosed => "the session was closed",
            Self::AttachedElsewhere => "the session was taken up elsewhere",
            Self::Revoked => "the store does not know the hold any more",
            Self::AuthorityPassed => "the authority that covered it ended",
        })
    }
}

/// The state of a guard. It moves down this list, or back from [`GuardState::Jeopardy`] to
/// [`GuardState::Held`]; the last two are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The lock is held, certainly until the instant given.
    Held {
        /// The safe deadline; moves on with every answered keepalive.
        safe_until: Moment,
    },
    /// Still held, but a keepalive has been unanswered for half the TTL: finish or prepare to.
    Jeopardy {
        /// The safe deadline.
        safe_until: Moment,
    },
    /// Over without a release, for ever.
    Lost(LostReason),
    /// Released, or the release is under way.
    Released,
}

impl GuardState {
    /// Whether the hold is over.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Released)
    }
}

/// One lock of a hold.
pub(crate) struct HeldLock {
    pub(crate) name: Arc<str>,
    pub(crate) mode: Mode,
    /// False from the moment its release is queued, and never true again (DESIGN §5.6).
    held: AtomicBool,
    value: Mutex<Option<Value>>,
}

impl HeldLock {
    pub(crate) fn new(item: Item, value: Option<Value>) -> Self {
        let Item { name, mode } = item;
        Self { name, mode, held: AtomicBool::new(true), value: Mutex::new(value) }
    }

    /// Whether it is still part of the hold.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    pub(crate) fn value(&self) -> Option<Value> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One hold, shared by a guard and the session task.
pub(crate) struct Hold {
    /// At least one. [`Guard::name`](crate::Guard::name) is the name of the first.
    locks: Box<[HeldLock]>,
    pub(crate) token: FencingToken,
    safety: Safety,
    /// The names of the hold for which a request waits, as far as the store reported.
    contended: watch::Sender<BTreeSet<Arc<str>>>,
}

impl Hold {
    /// `None` if `span` is over: a guard is never unsafe from the start.
    pub(crate) fn granted(
        locks: Vec<HeldLock>,
        token: FencingToken,
        span: Arc<Span>,
    ) -> Option<Self> {
        Some(Self {
            locks: locks.into(),
            token,
            safety: Safety::within(span)?,
            contended: watch::Sender::default(),
        })
    }

    /// The first lock of the grant.
    pub(crate) fn first(&self) -> Option<&HeldLock> {
        self.locks.first()
    }

    /// The locks that are still part of the hold.
    pub(crate) fn held(&self) -> impl Iterator<Item = &HeldLock> + Clone {
        self.locks.iter().filter(|lock| lock.is_held())
    }

    /// The lock `name`, if it is still part of the hold.
    pub(crate) fn lock(&self, name: &str) -> Option<&HeldLock> {
        self.held().find(|lock| *lock.name == *name)
    }

    /// Takes a lock out of the hold, for ever.
    pub(crate) fn give_up(&self, name: &str) {
        if let Some(lock) = self.lock(name) {
            lock.held.store(false, Ordering::Release);
        }
        self.contended.send_if_modified(|names| names.remove(name));
    }

    /// For a mutant: puts a released lock back into the hold.
    pub(crate) fn revive(&self, name: &str) {
        if let Some(lock) = self.locks.iter().find(|lock| *lock.name == *name) {
            lock.held.store(true, Ordering::Release);
        }
    }

    /// Records that the store has made `change` under this hold.
    pub(crate) fn note_change(&self, name: &str, change: &Change) {
        if let Some(lock) = self.lock(name) {
            let mut value = lock.value.lock().unwrap_or_else(PoisonError::into_inner);
            *value = change.after(value.take(), self.token);
        }
    }

    /// Records that a request waits for `name`.
    pub(crate) fn note_contended(&self, name: &[u8]) {
        if let Some(lock) = self.held().find(|lock| lock.name.as_bytes() == name) {
            self.contended.send_if_modified(|names| names.insert(lock.name.clone()));
        }
    }

    /// The names for which a request waits.
    pub(crate) fn contended(&self) -> watch::Receiver<BTreeSet<Arc<str>>> {
        self.contended.subscribe()
    }

    /// The safety of the hold as a whole.
    pub(crate) fn safety(&self) -> &Safety {
        &self.safety
    }
}
