//! Modes of holding, and the locks with their modes that a request asks for.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
pub use holdfast_types::Mode;

use crate::ids::LockName;

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
}
