//! `leases(name, owner, value)`: "a lease has a name, optional value and an owner" (lease article).

use super::raw::{Cell, Raw};

/// A row of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The holder; `None`: the owner's cell has ended before the value's.
    pub owner: Option<Cell>,
    /// The holder's value.
    pub value: Option<Raw>,
}

impl LeaseRow {
    /// Reads the cells of a row, in the order of [`Expected::columns`](super::Expected::columns).
    pub(super) fn of(row: Vec<Option<Cell>>) -> Self {
        let mut cells = row.into_iter().skip(1);
        let owner = cells.next().flatten();
        let value = cells.next().flatten().map(|cell| cell.value);
        Self { owner, value }
    }
}
