//! One hold as the client sees it: safe, in jeopardy, over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_guard::{Safety, Span};
use holdfast_mutants::mutant;
use holdfast_proto::v1;
use tokio::sync::watch;

use crate::contention::{Contentions, Told};
use crate::value::Change;
use crate::{FencingToken, LockItem, Mode, Value};

pub(crate) struct HeldLock {
    pub(crate) name: Arc<str>,
    pub(crate) mode: Mode,
    /// False from the moment its release is queued, and never true again (DESIGN §5.6).
    held: AtomicBool,
    value: Mutex<Option<Value>>,
}

impl HeldLock {
    pub(crate) fn new(item: LockItem, value: Option<Value>) -> Self {
        let LockItem { name, mode } = item;
        Self { name, mode, held: AtomicBool::new(true), value: Mutex::new(value) }
    }

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
    pub(crate) safety: Safety,
    /// What the store has told of those who wait for its locks.
    told: watch::Sender<Told>,
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
            told: watch::Sender::default(),
        })
    }

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
            lock.held.store(mutant!(ReleasedNameStaysHeld), Ordering::Release);
        }
        self.told.send_if_modified(|told| told.forget(name));
    }

    /// Records that the store has made `change` under this hold.
    pub(crate) fn note_change(&self, name: &str, change: &Change) {
        if let Some(lock) = self.lock(name) {
            let mut value = lock.value.lock().unwrap_or_else(PoisonError::into_inner);
            *value = change.after(value.take(), self.token);
        }
    }

    /// The store has told that others wait for a lock.
    pub(crate) fn note_contended(&self, contended: &v1::Contended) {
        if let Some(lock) = self.held().find(|lock| lock.name.as_bytes() == contended.name) {
            self.told.send_modify(|told| told.note(&lock.name, contended));
        }
    }

    /// Others wait for a lock as of a resume: notes it where the frame that told it did not come.
    pub(crate) fn synchronise_contended(&self, contended: &v1::Contended) {
        let lock = self.held().find(|lock| lock.name.as_bytes() == contended.name);
        if lock.is_some_and(|lock| self.told.borrow().is_news(&lock.name, contended)) {
            self.note_contended(contended);
        }
    }

    pub(crate) fn contended(&self) -> Contentions {
        Contentions::new(self.told.subscribe(), self.safety.states())
    }
}
