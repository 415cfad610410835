//! What a scan reads from: the tables of a recipe, by ranges of the ring of tokens, in pages. The
//! trait separates scan and driver, so that tests of the scan, and of what uses it, need no cluster. And
//! the CQL of the reads: names are quoted identifiers, values are bound.

use holdfast_keyspace::statement::TokenRange;
use holdfast_runtime::BoxFuture;

use super::scopes::ModeRow;
use super::{Identity, ScanError};
use crate::layout::{Actual, Cell, Expected, Raw, Role};

/// A range of tokens: above `after` and up to `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its number among all, from 0.
    pub index: usize,
    /// The last token below the range.
    pub after: i64,
    /// The last token of the range.
    pub upto: i64,
}

impl Range {
    /// Splits the whole ring into this many ranges, as [`TokenRange::split`].
    pub fn split(number: usize) -> Vec<Self> {
        let ranges = TokenRange::split(number).into_iter().enumerate();
        ranges.map(|(index, TokenRange { after, upto })| Self { index, after, upto }).collect()
    }
}

/// The cells of a row, in the order of the columns that are read.
pub(crate) type Row = Vec<Option<Cell>>;

/// Some rows of a table, in the order of their tokens.
pub(crate) struct Page {
    pub(crate) rows: Vec<(i64, Row)>,
    /// Where the next page begins; `None`: this is the last.
    pub(crate) next: Option<Vec<u8>>,
}

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

/// An existing table, with the columns to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Readable {
    pub(super) table: String,
    /// The columns, the partition key first. TTL and write time follow those marked `true`.
    pub(super) columns: Vec<(String, bool)>,
}

impl Readable {
    /// Reads TTL and write time only of columns that are part of no key.
    pub(super) fn of(expected: &Expected, actual: &Actual) -> Self {
        let is_regular = |name: &String| {
            actual.columns.get(name).is_some_and(|there| there.role == Role::Regular)
        };
        let columns = expected.columns.iter();
        Self {
            table: expected.table.clone(),
            columns: columns
                .map(|column| (column.name.clone(), column.detail && is_regular(&column.name)))
                .collect(),
        }
    }

    /// Reads all rows of a range: the token first, then the columns.
    pub(super) fn select_range(&self, keyspace: &str) -> String {
        let token = self.token();
        let wanted = self.wanted();
        let table = of_keyspace(keyspace, &self.table);
        format!("SELECT {token}, {wanted} FROM {table} WHERE {token} > ? AND {token} <= ?")
    }

    /// Reads the rows of one key, with the same columns.
    pub(super) fn select_key(&self, keyspace: &str) -> String {
        let (token, wanted, key) = (self.token(), self.wanted(), self.key());
        format!(
            "SELECT {token}, {wanted} FROM {} WHERE {key} = ?",
            of_keyspace(keyspace, &self.table)
        )
    }

    fn key(&self) -> String {
        self.columns.first().map(|(name, _)| quoted(name)).unwrap_or_default()
    }

    fn token(&self) -> String {
        format!("token({})", self.key())
    }

    fn wanted(&self) -> String {
        let column = |(name, detail): &(String, bool)| {
            let name = quoted(name);
            if *detail { format!("{name}, TTL({name}), WRITETIME({name})") } else { name }
        };
        self.columns.iter().map(column).collect::<Vec<_>>().join(", ")
    }
}

/// A table by its full name.
pub(super) fn of_keyspace(keyspace: &str, table: &str) -> String {
    format!("{}.{}", quoted(keyspace), quoted(table))
}

/// Quotes a name, so that the server keeps its case.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_whole_ring_without_gap_or_overlap() {
        for number in [0, 1, 2, 3, 7, 256, 1_000] {
            let ranges = Range::split(number);
            assert_eq!(ranges.len(), number.max(1));
            assert_eq!(ranges[0].after, i64::MIN);
            assert_eq!(ranges[ranges.len() - 1].upto, i64::MAX);
            for (index, pair) in ranges.windows(2).enumerate() {
                assert_eq!(pair[0].upto, pair[1].after, "{number}");
                assert!(pair[0].after < pair[0].upto && pair[0].index == index, "{number}");
            }
        }
    }

    #[test]
    fn names_are_quoted_and_details_follow_their_column() {
        let columns = vec![("key".into(), false), ("own\"er".into(), true)];
        let table = Readable { table: "Leases; --".into(), columns };
        assert_eq!(
            table.select_range("k"),
            "SELECT token(\"key\"), \"key\", \"own\"\"er\", TTL(\"own\"\"er\"), \
             WRITETIME(\"own\"\"er\") FROM \"k\".\"Leases; --\" WHERE token(\"key\") > ? AND \
             token(\"key\") <= ?"
        );
        assert!(table.select_key("k").ends_with("\" WHERE \"key\" = ?"));
    }
}
