//! The client's requests and their states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutants::mutant;
use holdfast_proto::v1;
use holdfast_runtime::Instant;
use tokio::sync::{oneshot, watch};

use crate::hold::Hold;
use crate::info::PlaceReport;
use crate::items::AcquireRequest;
use crate::{Error, FencingToken, GuardState, LostReason, Result, value};

/// The receiver of an outcome; `None`: no caller waits.
pub(super) type Done = Option<oneshot::Sender<Result<()>>>;

/// Sends an outcome to its receiver, if there is one.
pub(super) fn tell(done: Done, outcome: Result<()>) {
    if let Some(done) = done {
        // The receiver may have been dropped; that is no error.
        let _ = done.send(outcome);
    }
}

/// The identity of a request within this client. Unlike a request id it outlives the session, as
/// long as nothing of the request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

pub(super) enum Phase {
    /// Never sent in this session.
    Unsent,
    /// Sent; no answer yet, or none that has come.
    Sent,
    Queued,
    /// Granted at the server; handed out once authority covers it.
    Uncovered(Uncovered),
    /// Granted, and the hold was handed out.
    Held(Arc<Hold>),
    /// Closed by an operator: the hold is over in this client, and is released as soon as its guard is
    /// gone (I35).
    Closed(FencingToken),
    /// Granted, and to be released: the hold is over in this client.
    GivingBack(GivingBack),
    /// Its caller is gone: to be cancelled, whatever its state at the server.
    Cancelling,
}

/// A grant in a scope whose authority the store has not reported yet.
pub(super) struct Uncovered {
    pub(super) token: FencingToken,
    pub(super) granted: v1::Granted,
}

pub(super) struct GivingBack {
    pub(super) token: FencingToken,
    /// How often it was sent. After a second copy, "not the holder" means that the first one
    /// released the lock.
    pub(super) sent: u32,
    /// The hold was lost before: what its holder was doing may be half done, and the store marks the
    /// value as suspect.
    pub(super) is_lost: bool,
    pub(super) done: Done,
}

/// A release of some of the names of a hold, under way. Those names are no part of the hold any
/// more.
pub(super) struct Part {
    pub(super) key: Key,
    /// Never empty: a release without names releases everything.
    pub(super) names: BTreeSet<Arc<str>>,
    /// As of [`GivingBack::sent`].
    pub(super) sent: u32,
    pub(super) done: Done,
}

impl GivingBack {
    /// A release by its holder, or of a grant that no caller ever had.
    pub(super) fn sound(token: FencingToken, done: Done) -> Self {
        Self { token, sent: 0, is_lost: false, done }
    }

    /// A release of a hold that its holder lost.
    pub(super) fn lost(token: FencingToken) -> Self {
        Self { token, sent: 0, is_lost: true, done: None }
    }
}

pub(super) struct Request {
    pub(super) asked: AcquireRequest,
    /// Its id in this session; `None` while it was never sent.
    pub(super) id: Option<u64>,
    /// How often it was sent under that id.
    pub(super) sent: u32,
    /// The highest log index of a frame about it: older frames are out of date.
    pub(super) seen: u64,
    pub(super) phase: Phase,
    /// Receives the grant; `None` once it was answered.
    pub(super) answer: Option<oneshot::Sender<Result<Arc<Hold>>>>,
    pub(super) place: watch::Sender<Option<PlaceReport>>,
    /// Names that are being released, in the order of the calls.
    pub(super) parts: Vec<Part>,
}

impl Request {
    /// Answers the caller. False if no caller waits any more.
    pub(super) fn answer(&mut self, outcome: Result<Arc<Hold>>) -> bool {
        self.answer.take().is_some_and(|answer| answer.send(outcome).is_ok())
    }

    /// Ends a request that is no more among the others: its releases get `outcome`, its hold is lost
    /// for `reason`, and a caller that waits for a grant gets `waits`.
    pub(super) fn end(mut self, outcome: &Result<()>, reason: LostReason, waits: Option<Error>) {
        for part in self.parts.drain(..) {
            tell(part.done, outcome.clone());
        }
        match self.phase {
            Phase::Held(hold) => hold.safety.end(GuardState::Lost(reason)),
            Phase::GivingBack(giving) => tell(giving.done, outcome.clone()),
            Phase::Sent | Phase::Queued | Phase::Uncovered(_) => {
                if let Some(error) = waits {
                    self.answer(Err(error));
                }
            }
            Phase::Unsent | Phase::Cancelling | Phase::Closed(_) => {}
        }
    }
}

/// A change of the value of a held lock.
pub(super) struct Change {
    pub(super) of: Key,
    pub(super) token: FencingToken,
    pub(super) name: Arc<str>,
    pub(super) what: value::Change,
    /// Its id in this session; `None` while it was never sent.
    pub(super) id: Option<u64>,
    pub(super) asked: Instant,
    /// How often it was sent under that id.
    pub(super) sent: u32,
    pub(super) done: Done,
}

/// All requests of a client, by key, id and token; changes of values among them.
///
/// # Invariants
///
/// - Ids rise in the order in which requests are first sent, without gaps (DESIGN §4, retries).
/// - `unanswered` holds exactly the ids that were sent and have had no first answer; its smallest
///   is the session's `done_below`.
#[derive(Default)]
pub(super) struct Requests {
    by_key: BTreeMap<Key, Request>,
    changes: BTreeMap<Key, Change>,
    by_id: BTreeMap<u64, Key>,
    by_token: BTreeMap<FencingToken, Key>,
    unanswered: BTreeSet<u64>,
    keys_given: u64,
    ids_given: u64,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.by_key.len() + self.changes.len()
    }

    pub(super) fn next_key(&mut self) -> Key {
        self.keys_given += 1;
        Key(self.keys_given)
    }

    pub(super) fn insert(&mut self, request: Request) -> Key {
        let key = self.next_key();
        self.by_key.insert(key, request);
        key
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Request> {
        self.by_key.get_mut(&key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Request> {
        self.by_key.get(&key)
    }

    pub(super) fn phase(&self, key: Key) -> Option<&Phase> {
        self.by_key.get(&key).map(|request| &request.phase)
    }

    pub(super) fn with_id(&self, id: u64) -> Option<Key> {
        self.by_id.get(&id).copied().filter(|key| self.by_key.contains_key(key))
    }

    pub(super) fn with_token(&self, token: FencingToken) -> Option<Key> {
        self.by_token.get(&token).copied()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.by_key.keys().copied().collect()
    }

    pub(super) fn holds(&self) -> impl Iterator<Item = (Key, &Arc<Hold>)> {
        self.by_token.values().filter_map(|key| match &self.by_key.get(key)?.phase {
            Phase::Held(hold) => Some((*key, hold)),
            _ => None,
        })
    }

    pub(super) fn uncovered(&self) -> Vec<Key> {
        let is_uncovered = |key: &&Key| matches!(self.phase(**key), Some(Phase::Uncovered(_)));
        self.by_token.values().filter(is_uncovered).copied().collect()
    }

    /// Records that the request holds nothing under `token` any more.
    pub(super) fn forget_token(&mut self, token: FencingToken) {
        self.by_token.remove(&token);
    }

    /// The id of a request or a change, and how often it was sent under that id.
    pub(super) fn sending(&mut self, key: Key) -> Option<(&mut Option<u64>, &mut u32)> {
        if let Some(request) = self.by_key.get_mut(&key) {
            return Some((&mut request.id, &mut request.sent));
        }
        self.changes.get_mut(&key).map(|change| (&mut change.id, &mut change.sent))
    }

    /// The id of a request or a change; assigns the next one if it has none.
    pub(super) fn id_of(&mut self, key: Key) -> Option<u64> {
        let next = self.ids_given + 1;
        let (id, _) = self.sending(key)?;
        let id = *id.get_or_insert(next);
        if id == next {
            self.ids_given = id;
            self.by_id.insert(id, key);
            self.unanswered.insert(id);
        }
        Some(id)
    }

    fn drop_id(&mut self, id: u64) {
        self.by_id.remove(&id);
        self.unanswered.remove(&id);
    }

    /// Records that the request's first answer has come, or that nothing but its end is of interest.
    pub(super) fn answered(&mut self, key: Key) {
        if let Some(id) = self.by_key.get(&key).and_then(|request| request.id) {
            self.unanswered.remove(&id);
        }
    }

    /// Records that the request holds its lock under `token`.
    pub(super) fn holds_under(&mut self, key: Key, token: FencingToken) {
        self.by_token.insert(token, key);
    }

    /// Removes the id of a request or a change that will be sent under a new one. Returns the old id.
    pub(super) fn renumber(&mut self, key: Key) -> Option<u64> {
        let (id, sent) = self.sending(key)?;
        let id = id.take()?;
        *sent = 0;
        if let Some(request) = self.by_key.get_mut(&key) {
            request.seen = 0;
        }
        self.drop_id(id);
        Some(id)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Request> {
        let request = self.by_key.remove(&key)?;
        if let Some(id) = request.id {
            self.drop_id(id);
        }
        match &request.phase {
            Phase::Uncovered(uncovered) => drop(self.by_token.remove(&uncovered.token)),
            Phase::Held(hold) => drop(self.by_token.remove(&hold.token)),
            Phase::GivingBack(giving) => drop(self.by_token.remove(&giving.token)),
            Phase::Closed(token) => drop(self.by_token.remove(token)),
            Phase::Unsent | Phase::Sent | Phase::Queued | Phase::Cancelling => {}
        }
        Some(request)
    }

    /// The id below which all ids have had their first answer.
    pub(super) fn done_below(&self) -> u64 {
        if mutant!(DoneBeforeReceived) {
            return self.ids_given + 1;
        }
        self.unanswered.first().copied().unwrap_or(self.ids_given + 1)
    }

    /// Removes the requests that were sent in a session that is over; the others stay for the next
    /// session, in which ids start again. The caller removes changes of values before.
    pub(super) fn take_sent(&mut self) -> Vec<Request> {
        self.ids_given = 0;
        self.take(|request| request.id.is_some())
    }

    /// Removes the requests that were never sent in this session.
    pub(super) fn take_unsent(&mut self) -> Vec<Request> {
        self.take(|request| request.id.is_none())
    }

    fn take(&mut self, of: impl Fn(&Request) -> bool) -> Vec<Request> {
        let keys: Vec<_> =
            self.by_key.iter().filter(|(_, one)| of(one)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    pub(super) fn insert_change(&mut self, change: Change) -> Key {
        let key = self.next_key();
        self.changes.insert(key, change);
        key
    }

    pub(super) fn change(&self, key: Key) -> Option<&Change> {
        self.changes.get(&key)
    }

    pub(super) fn change_with_id(&self, id: u64) -> Option<Key> {
        self.by_id.get(&id).copied().filter(|key| self.changes.contains_key(key))
    }

    pub(super) fn change_keys(&self) -> Vec<Key> {
        self.changes.keys().copied().collect()
    }

    /// Removes a change. The client does not send it again, so its id counts as answered: a late
    /// copy is below `done_below` and changes nothing.
    pub(super) fn remove_change(&mut self, key: Key) -> Option<Change> {
        let change = self.changes.remove(&key)?;
        if let Some(id) = change.id {
            self.drop_id(id);
        }
        Some(change)
    }

    /// Removes the changes made under one hold, or under all.
    pub(super) fn take_changes(&mut self, of: Option<Key>) -> Vec<Change> {
        let keys: Vec<_> = self
            .changes
            .iter()
            .filter(|(_, one)| of.is_none_or(|of| one.of == of))
            .map(|(key, _)| *key)
            .collect();
        keys.into_iter().filter_map(|key| self.remove_change(key)).collect()
    }
}

pub(super) fn fail_all(requests: Vec<Request>, error: &Error) {
    for mut request in requests {
        request.answer(Err(error.clone()));
    }
}
