//! Those who hold a lock now.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::Bound;

use holdfast_mutants::mutant;

use crate::answer::Grant;
use crate::ids::{FencingToken, RequestId, SessionId};
use crate::lock_set::Mode;

/// A hold of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) grant: Grant,
    pub(crate) mode: Mode,
}

/// The holders of a lock. Each is found by its token in O(log n), so that one of many readers
/// leaves without a look at the others; the common cases, one holder and one reader, take no memory of
/// their own.
///
/// The type has no form for holders of different modes, nor for two that hold alone (I2).
#[derive(Clone, Debug, Default)]
pub(crate) enum Holders {
    #[default]
    Nobody,
    Alone(Grant),
    Reader(Grant),
    /// Invariant: two or more.
    Readers(BTreeMap<FencingToken, (SessionId, RequestId)>),
    Permits(Box<Permits>),
}

/// The holders of a lock's permits.
///
/// Invariant: at least one; `used` is the sum of what they hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    used: u64,
    holders: BTreeMap<FencingToken, PermitHolder>,
}

#[derive(Clone, Copy, Debug)]
struct PermitHolder {
    session: SessionId,
    request: RequestId,
    count: u32,
    /// As it was asked for.
    limit: u32,
}

impl Holders {
    /// Whether the present holders allow one more in that mode, if that is the lock's limit of permits.
    pub(crate) fn fits(&self, mode: Mode, limit: Option<NonZeroU32>) -> bool {
        let Mode::Permits { count, limit: asked } = mode else { return self.has_room(mode) };
        let limit = limit.map_or(asked, NonZeroU32::get);
        let asked_for = if mutant!(PermitsCountedAsOne) { 1 } else { u64::from(count) };
        self.has_room(mode) && self.used().saturating_add(asked_for) <= u64::from(limit)
    }

    /// Whether their mode goes with another holder in that mode.
    fn has_room(&self, mode: Mode) -> bool {
        match (self, mode) {
            (Self::Nobody, _)
            | (Self::Reader(_) | Self::Readers(_), Mode::Shared)
            | (Self::Permits(_), Mode::Permits { .. }) => true,
            (Self::Alone(_) | Self::Reader(_) | Self::Readers(_) | Self::Permits(_), _) => false,
        }
    }

    /// How many permits are held.
    pub(crate) fn used(&self) -> u64 {
        match self {
            Self::Permits(permits) => permits.used,
            Self::Nobody | Self::Alone(_) | Self::Reader(_) | Self::Readers(_) => 0,
        }
    }

    /// Adds a holder, whether or not there are permits enough: a limit may have been lowered since it was
    /// granted. `false`, and nothing changes, if its mode does not go with the others', or its token is present.
    pub(crate) fn insert(&mut self, new: Holder) -> bool {
        if !self.has_room(new.mode) || self.contains(new.grant.token) {
            return false;
        }
        match (&mut *self, new.mode) {
            (Self::Permits(permits), Mode::Permits { count, limit }) => {
                permits.insert(new.grant, (count, limit));
            }
            (_, Mode::Permits { count, limit }) => {
                let mut permits = Permits::default();
                permits.insert(new.grant, (count, limit));
                *self = Self::Permits(permits.into());
            }
            (Self::Reader(first), _) => {
                *self = Self::Readers([entry(*first), entry(new.grant)].into());
            }
            (Self::Readers(readers), _) => {
                let (token, reader) = entry(new.grant);
                readers.insert(token, reader);
            }
            (_, Mode::Shared) => *self = Self::Reader(new.grant),
            (_, Mode::Exclusive) => *self = Self::Alone(new.grant),
        }
        true
    }

    /// Removes the holder with that token, if there is one.
    pub(crate) fn remove(&mut self, token: FencingToken) -> Option<Holder> {
        let removed = self.get(token)?;
        match self {
            Self::Nobody | Self::Alone(_) | Self::Reader(_) => *self = Self::Nobody,
            Self::Readers(readers) => {
                readers.remove(&token);
                if let (1, Some((&token, &reader))) = (readers.len(), readers.first_key_value()) {
                    *self = Self::Reader(grant_of(token, reader));
                }
            }
            Self::Permits(permits) => {
                permits.holders.remove(&token);
                permits.used -= u64::from(removed.mode.permits());
                if permits.holders.is_empty() {
                    *self = Self::Nobody;
                }
            }
        }
        Some(removed)
    }

    pub(crate) fn contains(&self, token: FencingToken) -> bool {
        self.get(token).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Nobody)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nobody => 0,
            Self::Alone(_) | Self::Reader(_) => 1,
            Self::Readers(readers) => readers.len(),
            Self::Permits(permits) => permits.holders.len(),
        }
    }

    /// The holder that was granted first.
    pub(crate) fn first(&self) -> Option<Holder> {
        self.iter().next()
    }

    /// The holder with that token. O(log n).
    pub(crate) fn get(&self, token: FencingToken) -> Option<Holder> {
        match self {
            Self::Nobody | Self::Alone(_) | Self::Reader(_) => {
                self.single().filter(|holder| holder.grant.token == token)
            }
            Self::Readers(readers) => readers.get(&token).map(|&reader| read_by(token, reader)),
            Self::Permits(permits) => permits.holders.get(&token).map(|holder| holder.under(token)),
        }
    }

    /// In the order of their grants.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Holder> {
        self.after(None)
    }

    /// Those granted after that token, or all of them, in the order of their grants. O(log n) to begin.
    pub(crate) fn after(&self, token: Option<FencingToken>) -> impl Iterator<Item = Holder> {
        let from = token.map_or(Bound::Unbounded, Bound::Excluded);
        let (readers, permits) = match self {
            Self::Nobody | Self::Alone(_) | Self::Reader(_) => (None, None),
            Self::Readers(readers) => (Some(readers.range((from, Bound::Unbounded))), None),
            Self::Permits(all) => (None, Some(all.holders.range((from, Bound::Unbounded)))),
        };
        let one = self.single().filter(|one| token.is_none_or(|token| one.grant.token > token));
        let readers = readers.into_iter().flatten();
        let permits = permits.into_iter().flatten();
        one.into_iter()
            .chain(readers.map(|(&token, &reader)| read_by(token, reader)))
            .chain(permits.map(|(&token, holder)| holder.under(token)))
    }

    fn single(&self) -> Option<Holder> {
        match *self {
            Self::Alone(grant) => Some(Holder { grant, mode: Mode::Exclusive }),
            Self::Reader(grant) => Some(Holder { grant, mode: Mode::Shared }),
            Self::Nobody | Self::Readers(_) | Self::Permits(_) => None,
        }
    }
}

impl Permits {
    fn insert(&mut self, grant: Grant, (count, limit): (u32, u32)) {
        let Grant { session, request, token } = grant;
        self.used += u64::from(count);
        self.holders.insert(token, PermitHolder { session, request, count, limit });
    }
}

impl PermitHolder {
    fn under(&self, token: FencingToken) -> Holder {
        let &Self { session, request, count, limit } = self;
        Holder { grant: Grant { session, request, token }, mode: Mode::Permits { count, limit } }
    }
}

fn entry(grant: Grant) -> (FencingToken, (SessionId, RequestId)) {
    let Grant { session, request, token } = grant;
    (token, (session, request))
}

fn grant_of(token: FencingToken, (session, request): (SessionId, RequestId)) -> Grant {
    Grant { session, request, token }
}

fn read_by(token: FencingToken, reader: (SessionId, RequestId)) -> Holder {
    Holder { grant: grant_of(token, reader), mode: Mode::Shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_OF_FOUR: Mode = Mode::Permits { count: 2, limit: 4 };

    fn holder(counter: u64, mode: Mode) -> Holder {
        let token = FencingToken::new(1, counter).expect("a token");
        let grant = Grant { session: SessionId::new(counter), request: RequestId::new(1), token };
        Holder { grant, mode }
    }

    /// I2.
    #[test]
    fn only_readers_and_holders_of_permits_hold_together() {
        use Mode::{Exclusive, Shared};
        for first in [Exclusive, Shared, TWO_OF_FOUR] {
            for second in [Exclusive, Shared, TWO_OF_FOUR] {
                let fit = first == second && first != Exclusive;
                let mut holders = Holders::default();
                assert!(holders.insert(holder(1, first)));
                assert_eq!(holders.fits(second, None), fit, "{second} beside {first}");
                assert_eq!(holders.insert(holder(2, second)), fit);
                assert_eq!(holders.len(), if fit { 2 } else { 1 });
            }
        }
    }

    /// I2.
    #[test]
    fn permits_fit_up_to_the_limit_in_force() {
        let mut holders = Holders::default();
        assert!(holders.insert(holder(1, Mode::Permits { count: 3, limit: 4 })));
        let one_more = Mode::Permits { count: 1, limit: 4 };
        assert!(holders.fits(one_more, None) && !holders.fits(TWO_OF_FOUR, None));
        let limit = NonZeroU32::new;
        assert!(holders.fits(TWO_OF_FOUR, limit(5)) && !holders.fits(one_more, limit(3)));
        let all = Mode::Permits { count: u32::MAX, limit: u32::MAX };
        assert!(!holders.fits(all, limit(u32::MAX)) && Holders::Nobody.fits(all, None));
        // Granted before the limit was lowered.
        assert!(holders.insert(holder(2, TWO_OF_FOUR)));
        assert_eq!(holders.used(), 5);
        assert!(holders.remove(holder(1, one_more).grant.token).is_some());
        assert_eq!((holders.used(), holders.first()), (2, Some(holder(2, TWO_OF_FOUR))));
        assert!(holders.remove(holder(2, one_more).grant.token).is_some());
        assert!(holders.is_empty() && holders.fits(Mode::Exclusive, limit(1)));
    }

    #[test]
    fn those_who_hold_together_come_and_go_in_any_order() {
        for mode in [Mode::Shared, TWO_OF_FOUR] {
            let mut holders = Holders::default();
            for counter in [2, 3, 1] {
                assert!(holders.insert(holder(counter, mode)));
                assert!(!holders.insert(holder(counter, mode)), "one token twice");
            }
            let tokens = |holders: &Holders| -> Vec<u64> {
                holders.iter().map(|one| one.grant.token.counter()).collect()
            };
            assert_eq!(tokens(&holders), [1, 2, 3]);
            let token = |counter| holder(counter, mode).grant.token;
            let behind: Vec<_> = holders.after(Some(token(1))).collect();
            assert_eq!(behind, [holder(2, mode), holder(3, mode)]);
            assert_eq!(holders.remove(token(9)), None);
            assert_eq!(holders.remove(token(1)), Some(holder(1, mode)));
            assert_eq!(holders.remove(token(3)), Some(holder(3, mode)));
            assert!(!holders.fits(Mode::Exclusive, None) && holders.fits(mode, None));
            assert_eq!(tokens(&holders), [2]);
            assert_eq!(holders.remove(token(3)), None);
            assert_eq!(holders.remove(token(2)), Some(holder(2, mode)));
            assert!(holders.is_empty() && holders.fits(Mode::Exclusive, None));
        }
    }
}
