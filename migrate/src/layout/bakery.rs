//! The bakery: for each lock a row of numbers, and a row of flags of the processes that are
//! choosing (bakery articles). Cells are named by the process; one article deletes a flag, the
//! other overwrites it with `false`.

use super::table::{ANY, Expected};
use super::{CellTables, cells};

/// Numbers may have any type, because the articles differ; the plan reports those that it cannot
/// read.
pub(super) fn expected(tables: &CellTables) -> (Expected, Option<Expected>) {
    let numbers = cells::numbered(&tables.first, &tables.columns, ANY);
    let choosing = cells::numbered(&tables.second, &tables.columns, ANY);
    (numbers, Some(choosing))
}
