//! Rows of cells, as in the thesis and the bakery: a lock, a column's name, a value. In CQL each
//! cell is a row of its own, `(key, column1, value)`.

use super::raw::{Cell, Raw};
use super::table::{Column, Expected, ID, NAME, NUMBERED, Role, Type};

/// The types of a bakery's lock names.
const KEY: &[Type] = &[Type::Text, Type::Blob, Type::Number];

/// One cell of a lock's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnCell {
    /// The column's name.
    pub column: Raw,
    /// The value; `None`: a row without a value, whose TTL is unknown.
    pub cell: Option<Cell>,
}

/// The thesis' table. Only the TTL of the value is used.
pub(super) fn expected(table: &str, columns: &[String; 3], value: &'static [Type]) -> Expected {
    let [lock, column, cell] = columns;
    of_columns(table, [(lock, NAME), (column, ID), (cell, value)])
}

/// The bakery's table: "row key and column name as integers".
pub(super) fn numbered(table: &str, columns: &[String; 3], value: &'static [Type]) -> Expected {
    let [lock, column, cell] = columns;
    of_columns(table, [(lock, KEY), (column, NUMBERED), (cell, value)])
}

fn of_columns(table: &str, columns: [(&String, &'static [Type]); 3]) -> Expected {
    let [lock, column, value] = columns;
    Expected {
        table: table.to_owned(),
        columns: vec![
            Column::new(lock.0, Role::Partition, lock.1),
            Column::new(column.0, Role::Clustering, column.1),
            Column::new(value.0, Role::Regular, value.1).with_detail(),
        ],
    }
}

/// Reads rows of lock, column, value; a row without a column is no cell.
pub(super) fn of(rows: Vec<Vec<Option<Cell>>>) -> Vec<ColumnCell> {
    let cell = |row: Vec<Option<Cell>>| {
        let mut cells = row.into_iter().skip(1);
        let column = cells.next().flatten()?.value;
        Some(ColumnCell { column, cell: cells.next().flatten() })
    };
    rows.into_iter().filter_map(cell).collect()
}
