//! Owners within a session (DESIGN §16): whoever asks again for what it has is told so, instead of waiting for itself.
//!
//! Two requests of one session exclude each other like any others. A program in which one part may ask for a lock that
//! another part of the same work has would wait for ever. With an owner, a number that means something within its
//! session alone, the second request is refused with the token of the first.
//!
//! # Invariants
//!
//! - An owner holds or waits for a name once, but for a hold that is ending from outside: then it may wait for the
//!   name once more.

use std::collections::BTreeSet;

use holdfast_mutants::mutant;

use crate::ids::{LockName, RequestId, SessionId};
use crate::lock_set::LockSet;
use crate::session::{Record, Session, State};
use crate::terms::Terms;
use crate::{LockTable, Rejection};

/// What each owner of a session holds and waits for. Follows from the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owned(BTreeSet<(u64, LockName, RequestId)>);

impl Owned {
    /// The request of an owner holds or waits for what the record says; 0 is no owner.
    pub(crate) fn add(&mut self, owner: u64, request: RequestId, record: &Record) {
        let names = names_of(record).filter(|_| owner != 0);
        self.0.extend(names.map(|name| (owner, name.clone(), request)));
    }

    /// It does so no more.
    pub(crate) fn take(&mut self, owner: u64, request: RequestId, record: &Record) {
        for name in names_of(record).filter(|_| owner != 0) {
            self.0.remove(&(owner, name.clone(), request));
        }
    }

    /// The requests by which an owner holds or waits for that name.
    fn requests(&self, owner: u64, name: &LockName) -> impl Iterator<Item = RequestId> {
        let at = |request| (owner, name.clone(), RequestId::new(request));
        let own = self.0.range(at(0)..=at(u64::MAX));
        own.map(|&(_, _, request)| request)
    }
}

/// What a record waits for or holds.
fn names_of(record: &Record) -> impl Iterator<Item = &LockName> {
    let locks = match record {
        Record::Asked { lock_set, state: State::Waiting { .. } } => {
            Some((lock_set, lock_set.whole()))
        }
        record => record.held(),
    };
    locks.into_iter().flat_map(|(lock_set, part)| lock_set.iter_part(part)).map(|(name, _)| name)
}

impl Session {
    /// What its owners have, counted anew from the records.
    pub(crate) fn recount_owned(&self) -> Owned {
        let mut owned = Owned::default();
        for (request, terms) in self.said.iter() {
            if let Some(record) = self.records.get(&request) {
                owned.add(terms.owner, request, record);
            }
        }
        owned
    }
}

impl LockTable {
    /// Checks that the owner of a new request neither holds nor waits for any of its names.
    ///
    /// # Errors
    ///
    /// [`Rejection::AlreadyHeld`], [`Rejection::AlreadyAsked`].
    pub(crate) fn check_owner(
        &self,
        session: SessionId,
        lock_set: &LockSet,
        terms: &Terms,
    ) -> Result<(), Rejection> {
        if terms.owner == 0 || mutant!(OwnerWaitsForItself) {
            return Ok(());
        }
        let Some(found) = self.sessions.get(&session) else { return Ok(()) };
        let Some(owned) = found.said.owned() else { return Ok(()) };
        for (name, _) in lock_set.iter() {
            for request in owned.requests(terms.owner, name) {
                let Some(Record::Asked { lock_set, state }) = found.records.get(&request) else {
                    continue;
                };
                let lock = name.clone();
                match *state {
                    State::Held { token, .. } if self.is_relied_on((session, token), lock_set) => {
                        return Err(Rejection::AlreadyHeld { lock, token });
                    }
                    State::Waiting { .. } => {
                        return Err(Rejection::AlreadyAsked { lock, request });
                    }
                    // Its client has to give it up, and may wait for it once more.
                    State::Held { .. } | State::Denied(_) | State::Ended => {}
                }
            }
        }
        Ok(())
    }
}
