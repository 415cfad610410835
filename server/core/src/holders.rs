//! The holders of a lock: none, one, or any number that share it (I2).

use std::collections::BTreeMap;

use crate::answer::Grant;
use crate::ids::{FencingToken, RequestId, SessionId};
use crate::mode::Mode;

/// A hold of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) grant: Grant,
    pub(crate) mode: Mode,
}

/// The holders of a lock. Each is found by its token in O(log n), so that one of many readers
/// leaves without a look at the others; the common case, one holder, takes no memory of its own.
///
/// The type has no form for holders that do not fit together (I2): several are always readers.
#[derive(Clone, Debug, Default)]
pub(crate) enum Holders {
    #[default]
    Nobody,
    One(Holder),
    /// Invariant: two or more.
    Readers(BTreeMap<FencingToken, (SessionId, RequestId)>),
}

impl Holders {
    /// Whether the present holders allow one more in that mode.
    pub(crate) fn fits(&self, mode: Mode) -> bool {
        match (self, mode) {
            (Self::Nobody, _)
            | (Self::One(Holder { mode: Mode::Shared, .. }) | Self::Readers(_), Mode::Shared) => {
                true
            }
            (Self::One(_) | Self::Readers(_), _) => false,
        }
    }

    /// Adds a holder; `false`, and nothing changes, if it does not fit or its token is present.
    pub(crate) fn insert(&mut self, new: Holder) -> bool {
        if !self.fits(new.mode) || self.contains(new.grant.token) {
            return false;
        }
        match self {
            Self::Nobody => *self = Self::One(new),
            Self::One(first) => *self = Self::Readers([entry(*first), entry(new)].into()),
            Self::Readers(readers) => {
                let (token, reader) = entry(new);
                readers.insert(token, reader);
            }
        }
        true
    }

    /// Removes the holder with that token; `false` if there is none.
    pub(crate) fn remove(&mut self, token: FencingToken) -> bool {
        if !self.contains(token) {
            return false;
        }
        match self {
            Self::Nobody | Self::One(_) => *self = Self::Nobody,
            Self::Readers(readers) => {
                readers.remove(&token);
                if let (1, Some((&token, &reader))) = (readers.len(), readers.first_key_value()) {
                    *self = Self::One(read_by(token, reader));
                }
            }
        }
        true
    }

    pub(crate) fn contains(&self, token: FencingToken) -> bool {
        match self {
            Self::Nobody => false,
            Self::One(holder) => holder.grant.token == token,
            Self::Readers(readers) => readers.contains_key(&token),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nobody => 0,
            Self::One(_) => 1,
            Self::Readers(readers) => readers.len(),
        }
    }

    /// The holder that was granted first.
    pub(crate) fn first(&self) -> Option<Holder> {
        self.iter().next()
    }

    /// In the order of their grants.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Holder> {
        let (one, readers) = match self {
            Self::Nobody => (None, None),
            Self::One(holder) => (Some(*holder), None),
            Self::Readers(readers) => (None, Some(readers)),
        };
        let readers = readers.into_iter().flatten();
        one.into_iter().chain(readers.map(|(&token, &reader)| read_by(token, reader)))
    }
}

fn entry(holder: Holder) -> (FencingToken, (SessionId, RequestId)) {
    let Grant { session, request, token } = holder.grant;
    (token, (session, request))
}

fn read_by(token: FencingToken, (session, request): (SessionId, RequestId)) -> Holder {
    Holder { grant: Grant { session, request, token }, mode: Mode::Shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(counter: u64, mode: Mode) -> Holder {
        let token = FencingToken::new(1, counter).expect("a token");
        let grant = Grant { session: SessionId::new(counter), request: RequestId::new(1), token };
        Holder { grant, mode }
    }

    /// I2.
    #[test]
    fn only_readers_hold_together() {
        use Mode::{Exclusive, Shared};
        for (first, second, fit) in [
            (Exclusive, Exclusive, false),
            (Exclusive, Shared, false),
            (Shared, Exclusive, false),
            (Shared, Shared, true),
        ] {
            let mut holders = Holders::default();
            assert!(holders.insert(holder(1, first)));
            assert_eq!(holders.fits(second), fit, "{second:?} beside {first:?}");
            assert_eq!(holders.insert(holder(2, second)), fit);
            assert_eq!(holders.len(), if fit { 2 } else { 1 });
        }
    }

    #[test]
    fn readers_come_and_go_in_any_order() {
        let mut holders = Holders::default();
        for counter in [2, 3, 1] {
            assert!(holders.insert(holder(counter, Mode::Shared)));
            assert!(!holders.insert(holder(counter, Mode::Shared)), "one token twice");
        }
        let tokens = |holders: &Holders| -> Vec<u64> {
            holders.iter().map(|one| one.grant.token.counter()).collect()
        };
        assert_eq!(tokens(&holders), [1, 2, 3]);
        let token = |counter| holder(counter, Mode::Shared).grant.token;
        assert!(!holders.remove(token(9)));
        assert!(holders.remove(token(1)) && holders.remove(token(3)));
        assert!(!holders.fits(Mode::Exclusive) && holders.fits(Mode::Shared));
        assert_eq!(tokens(&holders), [2]);
        assert!(!holders.remove(token(3)) && holders.remove(token(2)));
        assert!(holders.is_empty() && holders.fits(Mode::Exclusive));
    }
}
