//! Rows of cells, as in the thesis and the bakery: a lock, a column's name, a value. In CQL each
//! cell is a row of its own, `(key, column1, value)`.

use super::raw::{Cell, Raw};

/// One cell of a lock's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnCell {
    /// The column's name.
    pub column: Raw,
    /// The value; `None`: a row without a value, whose TTL is unknown.
    pub cell: Option<Cell>,
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
