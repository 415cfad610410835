//! `leases(name, owner, value)`: "a lease has a name, optional value and an owner" (lease article).

use super::raw::{Cell, Raw};
use super::table::{Column, Expected, ID, NAME, Role};

/// A row of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The holder; `None`: the owner's cell has ended before the value's.
    pub owner: Option<Cell>,
    /// The holder's value.
    pub value: Option<Raw>,
}

pub(super) fn expected(table: &str, [name, owner, value]: &[String; 3]) -> Expected {
    let columns = vec![
        Column::new(name, Role::Partition, NAME),
        Column::new(owner, Role::Regular, ID).with_detail(),
        Column::new(value, Role::Regular, NAME),
    ];
    Expected { table: table.to_owned(), columns }
}

impl LeaseRow {
    /// Reads the cells of a row, in the order of [`expected`].
    pub(super) fn of(row: Vec<Option<Cell>>) -> Self {
        let mut cells = row.into_iter().skip(1);
        let owner = cells.next().flatten();
        let value = cells.next().flatten().map(|cell| cell.value);
        Self { owner, value }
    }
}
