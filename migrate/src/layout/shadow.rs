//! The thesis' earlier solution, §4. For each lock a main row, whose one cell is named by the
//! holding thread, and a shadow row, where each thread that tries writes its cell and checks
//! whether it is alone.

use super::table::{ANY, Expected};
use super::{CellTables, cells};

pub(super) fn expected(tables: &CellTables) -> (Expected, Option<Expected>) {
    let main = cells::expected(&tables.first, &tables.columns, ANY);
    let shadow = cells::expected(&tables.second, &tables.columns, ANY);
    (main, Some(shadow))
}
