//! What a scan reads from: the seam between it and the driver, so that its tests, and those of what stands on it, need no
//! cluster.

use holdfast_seams::BoxFuture;

use super::join::{Page, Row};
use super::scopes::ModeRow;
use super::{Identity, Range, ScanError};
use crate::layout::Raw;

/// The tables of a recipe: 0 is the one that is read first, 1 the other.
pub(crate) trait Tables: Send + Sync {
    /// A page of a range of a table.
    fn page(
        &self,
        table: usize,
        range: Range,
        from: Option<Vec<u8>>,
    ) -> BoxFuture<'_, Result<Page, ScanError>>;

    /// All rows of one key of a table.
    fn rows<'a>(&'a self, table: usize, key: &'a Raw)
    -> BoxFuture<'a, Result<Vec<Row>, ScanError>>;

    /// In which keyspace they are.
    fn keyspace(&self) -> String;

    /// What the clock of the coordinator shows that is asked, microseconds since 1970.
    fn now_us(&self) -> BoxFuture<'_, Result<i64, ScanError>>;

    /// Which tables these are.
    fn identity(&self) -> BoxFuture<'_, Result<Identity, ScanError>>;

    /// The rows of a table of modes; none if there is no such table.
    fn modes<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Vec<ModeRow>, ScanError>>;
}
