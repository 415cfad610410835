//! The content of a request: its locks with their modes, how many of them it needs, whether it
//! waits.

use std::ops::Deref;
use std::sync::Arc;
use std::{fmt, io};

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

pub use holdfast_types::Mode;

use crate::blocks::damaged;
use crate::ids::LockName;
use crate::{NAMES_MAX, Rejection};

/// A lock, and its requested or present mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Item {
    /// The lock.
    pub lock: LockName,
    /// The mode.
    pub mode: Mode,
}

impl Item {
    /// A lock to be held alone.
    pub fn exclusive(lock: LockName) -> Self {
        Self { lock, mode: Mode::Exclusive }
    }

    /// A lock to be held together with others that share it.
    pub fn shared(lock: LockName) -> Self {
        Self { lock, mode: Mode::Shared }
    }

    /// `count` of a lock's `limit` permits.
    pub fn permits(lock: LockName, count: u32, limit: u32) -> Self {
        Self { lock, mode: Mode::Permits { count, limit } }
    }
}

/// Some locks with their modes, in the order of their names, as a slice. Cheap to clone; a single
/// one takes no memory of its own.
#[derive(Clone)]
pub struct Items(Repr);

#[derive(Clone)]
enum Repr {
    One(Item),
    Many(Arc<[Item]>),
}

impl Items {
    pub(crate) fn shared_list(items: Arc<[Item]>) -> Self {
        Self(Repr::Many(items))
    }
}

impl Deref for Items {
    type Target = [Item];

    fn deref(&self) -> &[Item] {
        match &self.0 {
            Repr::One(item) => std::slice::from_ref(item),
            Repr::Many(items) => items,
        }
    }
}

impl From<Item> for Items {
    fn from(item: Item) -> Self {
        Self(Repr::One(item))
    }
}

impl FromIterator<Item> for Items {
    fn from_iter<I: IntoIterator<Item = Item>>(items: I) -> Self {
        let mut items = items.into_iter();
        let (first, second) = (items.next(), items.next());
        match (first, second) {
            (Some(only), None) => Self(Repr::One(only)),
            (first, second) => {
                Self(Repr::Many(first.into_iter().chain(second).chain(items).collect()))
            }
        }
    }
}

impl PartialEq for Items {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Items {}

impl fmt::Debug for Items {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl BorshSerialize for Items {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        (**self).serialize(writer)
    }
}

impl BorshDeserialize for Items {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        Ok(Vec::<Item>::deserialize_reader(reader)?.into_iter().collect())
    }
}

/// How many of a request's locks it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Need {
    /// Every one, at once (I14).
    All,
    /// At least `min`; the grant takes all of them that are free to it at that moment.
    ///
    /// With `min` 0 it never waits: it is granted the free locks, or denied if there are none. Otherwise
    /// it stands in all queues until so many locks are free to it at once, and then leaves the
    /// others. Of those that are free before, it keeps later requests out, as a set does.
    Any {
        /// The minimum. More than 1 needs [`Command::AcquireOn`](crate::Command::AcquireOn).
        min: u32,
    },
}

/// The kinds of [`Need`] that are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) enum CheckedNeed {
    All,
    AnyOrNothing,
    AnyOne,
    /// Two or more.
    AnyOf(u8),
}

impl CheckedNeed {
    fn of(need: Need, names: usize) -> Result<Self, Rejection> {
        match need {
            Need::All => Ok(Self::All),
            Need::Any { min } if min as usize > names => {
                Err(Rejection::MinAboveNames { min, names: names as u64 })
            }
            Need::Any { min: 0 } => Ok(Self::AnyOrNothing),
            Need::Any { min: 1 } => Ok(Self::AnyOne),
            // No request has more names than fit.
            Need::Any { min } => Ok(Self::AnyOf(u8::try_from(min).unwrap_or(u8::MAX))),
        }
    }
}

/// Some of a request's locks: bit `i` stands for the `i`-th in the order of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Part(u64);

impl Part {
    /// All of `count` locks, at most [`NAMES_MAX`].
    pub(crate) fn whole(count: usize) -> Self {
        (0..count).fold(Self::default(), Self::with)
    }

    pub(crate) fn with(self, at: usize) -> Self {
        Self(self.0 | bit(at))
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn contains(self, at: usize) -> bool {
        self.0 & bit(at) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn is_within(self, other: Self) -> bool {
        self.without(other).is_empty()
    }
}

/// 0 beyond the last bit: a request has no more names.
fn bit(at: usize) -> u64 {
    u32::try_from(at).ok().and_then(|at| 1_u64.checked_shl(at)).unwrap_or(0)
}

/// The locks of a request, checked: 1 to [`NAMES_MAX`] in the order of their names, each once. The
/// order in which the caller gave them means nothing.
///
/// One lock without permits, the common case, takes no memory of its own: 100,000 waiters each keep one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockSet {
    One { lock: LockName, shares: bool, rule: GrantRule },
    Many { items: Arc<[Item]>, rule: GrantRule },
}

/// The rule of a request besides its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct GrantRule {
    need: CheckedNeed,
    /// Whether it queues if it cannot be granted at once; otherwise it is denied.
    wait: bool,
}

impl LockSet {
    /// Checks the locks of a request and sorts them.
    ///
    /// # Errors
    ///
    /// [`Rejection::NoNames`], [`Rejection::TooManyNames`], [`Rejection::NameTwice`],
    /// [`Rejection::MinAboveNames`].
    pub(crate) fn new(items: &[Item], need: Need, wait: bool) -> Result<Self, Rejection> {
        Self::checked(items, need, wait, true)
    }

    /// The same for a command that older releases know, and refuse with a floor above one.
    ///
    /// # Errors
    ///
    /// As there; [`Rejection::MinUnsupported`].
    pub(crate) fn as_before(items: &[Item], need: Need, wait: bool) -> Result<Self, Rejection> {
        Self::checked(items, need, wait, false)
    }

    fn checked(
        items: &[Item],
        need: Need,
        wait: bool,
        knows_floors: bool,
    ) -> Result<Self, Rejection> {
        check_count(items.len())?;
        let rule = GrantRule { need: CheckedNeed::of(need, items.len())?, wait };
        if let (Need::Any { min: min @ 2.. }, false) = (need, knows_floors) {
            return Err(Rejection::MinUnsupported { min });
        }
        if let Some(one) = Self::one(items, rule) {
            return Ok(one);
        }
        let mut items = items.to_vec();
        items.sort_unstable();
        let twice = items.windows(2).find_map(|pair| match pair {
            [a, b] if a.lock == b.lock => Some(a.lock.clone()),
            _ => None,
        });
        match twice {
            Some(lock) => Err(Rejection::NameTwice { lock }),
            None => Ok(Self::Many { items: items.into(), rule }),
        }
    }

    /// The form without memory of its own, if they have it.
    fn one(items: &[Item], rule: GrantRule) -> Option<Self> {
        let [Item { lock, mode }] = items else { return None };
        let shares = match mode {
            Mode::Exclusive => false,
            Mode::Shared => true,
            Mode::Permits { .. } => return None,
        };
        Some(Self::One { lock: lock.clone(), shares, rule })
    }

    fn rule(&self) -> GrantRule {
        match self {
            Self::One { rule, .. } | Self::Many { rule, .. } => *rule,
        }
    }

    pub(crate) fn needs_all(&self) -> bool {
        self.rule().need == CheckedNeed::All
    }

    /// Whether it stands in queues if it cannot be granted at once.
    pub(crate) fn waits(&self) -> bool {
        self.rule().wait && self.rule().need != CheckedNeed::AnyOrNothing
    }

    /// The locks that it is granted if `free` are free to it; `None` if that is not enough.
    pub(crate) fn takes(&self, free: Part) -> Option<Part> {
        (free.len() >= self.least() && !free.is_empty()).then_some(free)
    }

    /// How many of its locks it needs.
    pub(crate) fn least(&self) -> u32 {
        match self.rule().need {
            CheckedNeed::All if mutant!(SetGrantedInParts) => 1,
            CheckedNeed::All => self.whole().len(),
            CheckedNeed::AnyOrNothing | CheckedNeed::AnyOne => 1,
            CheckedNeed::AnyOf(_) if mutant!(FloorIgnored) => 1,
            CheckedNeed::AnyOf(min) => min.into(),
        }
    }

    /// Of which of its locks it has to wait for the end of `kept_back`, if it needs so many: the place of the first.
    pub(crate) fn first_in_the_way(&self, kept_back: impl Fn(&LockName) -> bool) -> Option<usize> {
        let mut places = self.iter().enumerate().filter(|(_, (name, _))| kept_back(name));
        let (first, _) = places.next()?;
        let others = places.count() + 1;
        let left = u32::try_from(self.len() - others).unwrap_or(u32::MAX);
        (left < self.least()).then_some(first)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One { .. } => 1,
            Self::Many { items, .. } => items.len(),
        }
    }

    pub(crate) fn whole(&self) -> Part {
        Part::whole(self.len())
    }

    pub(crate) fn get(&self, at: usize) -> Option<(&LockName, Mode)> {
        match self {
            Self::One { lock, shares, .. } => (at == 0).then_some((lock, plain(*shares))),
            Self::Many { items, .. } => items.get(at).map(|item| (&item.lock, item.mode)),
        }
    }

    /// All its locks, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LockName, Mode)> {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Those of its locks that are in `part`.
    pub(crate) fn iter_part(&self, part: Part) -> impl Iterator<Item = (&LockName, Mode)> {
        (0..self.len()).filter(move |&at| part.contains(at)).filter_map(|at| self.get(at))
    }

    /// The place of a lock among its locks.
    pub(crate) fn position(&self, name: &LockName) -> Option<usize> {
        match self {
            Self::One { lock, .. } => (lock == name).then_some(0),
            Self::Many { items, .. } => items.binary_search_by(|item| item.lock.cmp(name)).ok(),
        }
    }

    pub(crate) fn items(&self) -> Items {
        match self {
            Self::One { lock, shares, .. } => {
                Item { lock: lock.clone(), mode: plain(*shares) }.into()
            }
            Self::Many { items, .. } => Items::shared_list(Arc::clone(items)),
        }
    }

    pub(crate) fn items_of(&self, part: Part) -> Items {
        if part == self.whole() {
            return self.items();
        }
        self.iter_part(part).map(|(lock, mode)| Item { lock: lock.clone(), mode }).collect()
    }

    /// Replaces its names by copies that the table keeps, so that a name is kept once for all
    /// requests that name it.
    pub(crate) fn share_names(&mut self, kept: impl Fn(&LockName) -> Option<LockName>) {
        let share = |name: &mut LockName| {
            if let Some(kept) = kept(name) {
                *name = kept;
            }
        };
        match self {
            Self::One { lock, .. } => share(lock),
            Self::Many { items, .. } => {
                // The names of a shared list were replaced before.
                for item in Arc::get_mut(items).into_iter().flatten() {
                    share(&mut item.lock);
                }
            }
        }
    }
}

/// The mode of a lock that is not held by permits.
fn plain(shares: bool) -> Mode {
    if shares { Mode::Shared } else { Mode::Exclusive }
}

pub(crate) fn check_count(names: usize) -> Result<(), Rejection> {
    match names {
        0 => Err(Rejection::NoNames),
        1..=NAMES_MAX => Ok(()),
        _ => Err(Rejection::TooManyNames { names: names as u64, max: NAMES_MAX as u64 }),
    }
}

impl BorshSerialize for LockSet {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        self.items().serialize(writer)?;
        self.rule().serialize(writer)
    }
}

/// Reads only what a table writes: names in order, each once.
impl BorshDeserialize for LockSet {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let items: Vec<Item> = BorshDeserialize::deserialize_reader(reader)?;
        let rule = GrantRule::deserialize_reader(reader)?;
        check_count(items.len()).map_err(|rejection| damaged(rejection.to_string()))?;
        if !items.is_sorted_by(|a, b| a.lock < b.lock) {
            return Err(damaged("the names of a request are out of order"));
        }
        if matches!(rule.need, CheckedNeed::AnyOf(min) if min < 2 || usize::from(min) > items.len())
        {
            return Err(damaged("a request needs a number of its names that it cannot need"));
        }
        Ok(match Self::one(&items, rule) {
            Some(one) => one,
            None => Self::Many { items: items.into(), rule },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str) -> Item {
        Item::shared(LockName::parse(name).expect("a name"))
    }

    /// Items compare equal, in memory and in bytes, whichever way they were made: replicas compare
    /// bytes.
    #[test]
    fn one_item_is_the_same_however_it_was_put_together() {
        let alone = Items::from(item("a"));
        let collected: Items = [item("a")].into_iter().collect();
        let listed = Items::shared_list(Arc::from([item("a")]));
        for other in [collected, listed] {
            assert_eq!(alone, other);
            assert_eq!(borsh::to_vec(&alone).ok(), borsh::to_vec(&other).ok());
        }
        let several: Items = [item("a"), item("b"), item("c")].into_iter().collect();
        assert_eq!(*several, [item("a"), item("b"), item("c")]);
        assert!(Items::from_iter([]).is_empty());
    }

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("a name")
    }

    fn items(names: &[&str]) -> Vec<Item> {
        names.iter().map(|text| Item::exclusive(name(text))).collect()
    }

    #[test]
    fn the_order_in_which_names_are_given_means_nothing() {
        let lock_set = |names: &[&str]| LockSet::new(&items(names), Need::All, true);
        assert_eq!(lock_set(&["b", "c", "a"]), lock_set(&["a", "b", "c"]));
        assert_ne!(lock_set(&["a", "b"]), lock_set(&["a", "c"]));
    }

    #[test]
    fn a_wish_that_makes_no_sense_is_refused_by_its_reason() {
        let lock_set = |names: &[&str], need| LockSet::new(&items(names), need, true).map(drop);
        let many: Vec<String> = (0..=NAMES_MAX).map(|number| format!("{number:03}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(lock_set(&[], Need::All), Err(Rejection::NoNames));
        assert_eq!(lock_set(&many, Need::All), Err(Rejection::TooManyNames { names: 65, max: 64 }));
        assert_eq!(lock_set(&many[1..], Need::All), Ok(()));
        assert_eq!(
            lock_set(&["b", "a", "b"], Need::All),
            Err(Rejection::NameTwice { lock: name("b") })
        );
        let above = Err(Rejection::MinAboveNames { min: 3, names: 2 });
        assert_eq!(lock_set(&["a", "b"], Need::Any { min: 3 }), above);
        let unsupported = Err(Rejection::MinUnsupported { min: 2 });
        let before = LockSet::as_before(&items(&["a", "b"]), Need::Any { min: 2 }, true);
        assert_eq!(before.map(drop), unsupported);
        assert_eq!(lock_set(&["a", "b"], Need::Any { min: 2 }), Ok(()));
        assert_eq!(lock_set(&["a", "b"], Need::Any { min: 1 }), Ok(()));
        assert_eq!(lock_set(&["a"], Need::Any { min: 0 }), Ok(()));
    }

    /// What is written is read back; no table writes the same names in another order.
    #[test]
    fn a_stored_wish_is_read_only_in_the_one_way_it_is_written() {
        for names in [&["a"][..], &["a", "b", "c"]] {
            let lock_set =
                LockSet::new(&items(names), Need::Any { min: 1 }, true).expect("a set of locks");
            let bytes = borsh::to_vec(&lock_set).expect("bytes");
            assert_eq!(LockSet::try_from_slice(&bytes).ok(), Some(lock_set));
        }
        let rule = GrantRule { need: CheckedNeed::All, wait: true };
        for names in [&["b", "a"][..], &["a", "a"], &[]] {
            let bytes = borsh::to_vec(&(items(names), rule)).expect("bytes");
            assert!(LockSet::try_from_slice(&bytes).is_err(), "{names:?}");
        }
    }

    #[test]
    fn a_part_has_a_bit_for_each_of_64_names_and_none_beyond() {
        assert_eq!(Part::whole(NAMES_MAX), Part(u64::MAX));
        assert!(Part::whole(64).contains(63) && !Part::whole(64).contains(64));
        let part = Part::whole(3).without(Part::default().with(1));
        assert!(part.contains(0) && !part.contains(1) && part.contains(2));
        assert!(part.is_within(Part::whole(3)) && !part.is_within(Part::whole(2)));
    }

    /// Each of 100,000 waiters keeps one (DESIGN §13).
    #[test]
    fn a_wish_takes_no_more_than_three_words() {
        assert!(size_of::<LockSet>() <= 24, "{}", size_of::<LockSet>());
    }
}
