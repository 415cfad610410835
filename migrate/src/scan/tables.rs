//! The source that a scan reads from. The trait separates scan and driver, so that tests of the
//! scan, and of what uses it, need no cluster.

use holdfast_runtime::BoxFuture;

use super::join::{Page, Row};
use super::scopes::ModeRow;
use super::{Identity, Range, ScanError};
use crate::layout::Raw;

/// The tables of a recipe: 0 is the one that is read first, 1 the other.
pub(crate) trait Tables: Send + Sync {
    /// Reads a page of a range of a table.
    fn page(
        &self,
        table: usize,
        range: Range,
        from: Option<Vec<u8>>,
    ) -> BoxFuture<'_, Result<Page, ScanError>>;

    /// Reads all rows of one key of a table.
    fn rows<'a>(&'a self, table: usize, key: &'a Raw)
    -> BoxFuture<'a, Result<Vec<Row>, ScanError>>;

    /// The keyspace of the tables.
    fn keyspace(&self) -> String;

    /// The time of one coordinator's clock, microseconds since 1970.
    fn now_us(&self) -> BoxFuture<'_, Result<i64, ScanError>>;

    /// Identifies the tables.
    fn identity(&self) -> BoxFuture<'_, Result<Identity, ScanError>>;

    /// Reads the rows of a table of modes; none if there is no such table.
    fn modes<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Vec<ModeRow>, ScanError>>;
}
