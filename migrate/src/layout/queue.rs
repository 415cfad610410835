//! The thesis' queue, §5. For each lock a row of places, whose cells are named by 20 digits of
//! microseconds and the thread, and a main row, whose one cell is named by the holding thread.

use super::table::{ANY, Expected};
use super::{CellTables, cells};

pub(super) fn expected(tables: &CellTables) -> (Expected, Option<Expected>) {
    let main = cells::expected(&tables.first, &tables.columns, ANY);
    let queue = cells::expected(&tables.second, &tables.columns, ANY);
    (main, Some(queue))
}
