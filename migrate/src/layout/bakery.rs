//! The bakery: for each lock a row of numbers, and one of flags for who is choosing (bakery seeds). Cells
//! are named by the process; the one seed deletes a flag, the other writes `false` over it.

use super::table::{ANY, Expected};
use super::{CellTables, cells};

/// A number of another type is understood, or named in the plan: the seeds do not agree on it.
pub(super) fn expected(tables: &CellTables) -> (Expected, Option<Expected>) {
    let numbers = cells::numbered(&tables.first, &tables.columns, ANY);
    let choosing = cells::numbered(&tables.second, &tables.columns, ANY);
    (numbers, Some(choosing))
}
