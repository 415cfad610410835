//! What a request says besides its locks (DESIGN §16): a head start, an owner, a note, bounds of its hold.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::ids::{Label, RequestId};
use crate::owner::Owned;
use crate::session::Record;

/// What a request says besides its locks. The default is to say nothing, and costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Terms {
    /// So much earlier than it came it counts as having come, milliseconds; at most
    /// [`HEAD_START_MAX_MS`](crate::HEAD_START_MAX_MS) (`rank.rs`).
    pub head_start_ms: u32,
    /// Who asks within its session; 0: nobody in particular (`owner.rs`).
    pub owner: u64,
    /// For people: shown to those who wait, and in lists. Proves nothing.
    pub note: Label,
    /// The leader closes the hold when it has lasted so long, milliseconds; 0: never (`hold_bounds.rs`).
    pub max_hold_ms: u32,
    /// Nobody else is granted the locks before so long after the grant, milliseconds, however the hold ends.
    pub hold_at_least_ms: u32,
}

/// Bytes that the terms of a request count beside their note.
///
/// Source: the size of [`Terms`] on a 64-bit machine, its entry by request, and one in the index of owners.
pub const TERMS_BYTES: u64 = 192;

impl Terms {
    /// Whether they bind how long the hold lasts.
    pub(crate) fn binds(&self) -> bool {
        self.max_hold_ms > 0 || self.hold_at_least_ms > 0
    }

    /// What they count towards the size of the table.
    pub(crate) fn bytes(&self) -> u64 {
        let says_nothing = *self == Self::default();
        if says_nothing { 0 } else { TERMS_BYTES + self.note.as_str().len() as u64 }
    }
}

/// What the requests of a session say, by their ids. In most sessions none says anything, and then it takes one word.
///
/// # Invariants
///
/// - Each is the request of a record that asked for locks.
/// - None says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said(Option<Box<(BTreeMap<RequestId, Terms>, Owned)>>);

impl Said {
    pub(crate) fn get(&self, request: RequestId) -> Option<&Terms> {
        self.0.as_ref()?.0.get(&request)
    }

    pub(crate) fn head_start_ms(&self, request: RequestId) -> u32 {
        self.get(request).map_or(0, |terms| terms.head_start_ms)
    }

    pub(crate) fn note(&self, request: RequestId) -> &str {
        self.get(request).map_or("", |terms| terms.note.as_str())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestId, &Terms)> {
        let all = self.0.iter().flat_map(|said| said.0.iter());
        all.map(|(&request, terms)| (request, terms))
    }

    pub(crate) fn owned(&self) -> Option<&Owned> {
        self.0.as_ref().map(|said| &said.1)
    }

    /// Notes what a request says, before its record is kept.
    pub(crate) fn put(&mut self, request: RequestId, terms: Terms) {
        if terms != Terms::default() {
            self.0.get_or_insert_default().0.insert(request, terms);
        }
    }

    /// The record of a request holds or waits for its locks from now on.
    pub(crate) fn begins(&mut self, request: RequestId, record: &Record) {
        let Some((terms, owned)) = self.0.as_deref_mut() else { return };
        terms.get(&request).iter().for_each(|said| owned.add(said.owner, request, record));
    }

    /// It does so no more.
    pub(crate) fn ends(&mut self, request: RequestId, record: &Record) {
        let Some((terms, owned)) = self.0.as_deref_mut() else { return };
        terms.get(&request).iter().for_each(|said| owned.take(said.owner, request, record));
    }

    /// The record of a request is gone.
    pub(crate) fn forget(&mut self, request: RequestId) {
        let Some((terms, _)) = self.0.as_deref_mut() else { return };
        terms.remove(&request);
        if terms.is_empty() {
            self.0 = None;
        }
    }
}
