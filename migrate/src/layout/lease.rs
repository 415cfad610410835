//! `leases(name, owner, value)`: "a lease has a name, optional value and an owner" (lease seed).

use super::raw::{Cell, Raw};
use super::table::{Column, Expected, ID, NAME, Role};

/// A row of leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// Who holds it; `None`: a value without an owner, whose cell has ended before.
    pub owner: Option<Cell>,
    /// What the holder left there.
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
    /// Of the cells of [`expected`].
    pub(super) fn of(row: Vec<Option<Cell>>) -> Self {
        let mut cells = row.into_iter().skip(1);
        let owner = cells.next().flatten();
        let value = cells.next().flatten().map(|cell| cell.value);
        Self { owner, value }
    }
}
