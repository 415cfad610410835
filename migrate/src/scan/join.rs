//! Joins the two tables of a recipe, lock by lock. Both are read in the order of their tokens.

use std::collections::{BTreeMap, VecDeque};

use holdfast_runtime::{Clock, Instant};

use super::ScanError;
use super::tables::{Page, Row};
use crate::layout::Raw;

/// Locks that are reported together; the last token may add a few.
const LOCKS_AT_ONCE: usize = 500;

/// All rows of one lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) lock: Raw,
    pub(super) first: Vec<Row>,
    pub(super) second: Vec<Row>,
}

/// One of the two tables, as far as it was read.
struct Side<'a, P> {
    table: usize,
    pages: &'a P,
    clock: &'a dyn Clock,
    rows: VecDeque<(i64, Row)>,
    next: Next,
    read_at: Option<Instant>,
}

enum Next {
    Page(Option<Vec<u8>>),
    Nothing,
}

impl<P: AsyncFn(usize, Option<Vec<u8>>) -> Result<Page, ScanError>> Side<'_, P> {
    /// The token of the next row, if there is one.
    async fn token(&mut self) -> Result<Option<i64>, ScanError> {
        while self.rows.is_empty() {
            let Next::Page(from) = std::mem::replace(&mut self.next, Next::Nothing) else {
                return Ok(None);
            };
            let page = (self.pages)(self.table, from).await?;
            self.read_at = Some(self.clock.now());
            self.rows = page.rows.into();
            self.next = page.next.map_or(Next::Nothing, |next| Next::Page(Some(next)));
        }
        Ok(self.rows.front().map(|(token, _)| *token))
    }

    /// Takes all rows with this token, with their keys.
    async fn take(&mut self, token: i64, mut into: impl FnMut(Raw, Row)) -> Result<(), ScanError> {
        while self.token().await? == Some(token) {
            let Some((_, row)) = self.rows.pop_front() else { break };
            // A row without its key does not exist.
            if let Some(key) = row.first().and_then(Option::as_ref).map(|cell| cell.value.clone()) {
                into(key, row);
            }
        }
        Ok(())
    }
}

/// Reads both tables (0 and 1), or the first, by `pages` of one range, and reports the locks in portions.
pub(super) async fn join(
    pages: &impl AsyncFn(usize, Option<Vec<u8>>) -> Result<Page, ScanError>,
    clock: &dyn Clock,
    with_second: bool,
    tell: impl AsyncFn(Vec<Joined>, Instant) -> Result<(), ScanError>,
) -> Result<(), ScanError> {
    let side = |table| {
        let next = if table == 0 || with_second { Next::Page(None) } else { Next::Nothing };
        Side { table, pages, clock, rows: VecDeque::new(), next, read_at: None }
    };
    let (mut first, mut second) = (side(0), side(1));
    let mut read = Vec::new();
    loop {
        let tokens = [first.token().await?, second.token().await?];
        let next = tokens.into_iter().flatten().min();
        if read.len() >= LOCKS_AT_ONCE || next.is_none() {
            let read_at = first.read_at.max(second.read_at).unwrap_or_else(|| clock.now());
            tell(std::mem::take(&mut read), read_at).await?;
        }
        let Some(token) = next else { return Ok(()) };
        // Two keys may have one token.
        let mut keys: BTreeMap<Raw, [Vec<Row>; 2]> = BTreeMap::new();
        first.take(token, |key, row| keys.entry(key).or_default()[0].push(row)).await?;
        second.take(token, |key, row| keys.entry(key).or_default()[1].push(row)).await?;
        let joined = keys.into_iter().map(|(lock, [first, second])| Joined { lock, first, second });
        read.extend(joined);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::layout::Cell;

    /// Tables as lists of tokens and keys, in pages of two rows.
    struct Tables([Vec<(i64, &'static str)>; 2]);

    impl Tables {
        fn page(&self, table: usize, from: Option<Vec<u8>>) -> Page {
            let from = from.map_or(0, |from| usize::from(from[0]));
            let row = |(token, key): &(i64, &str)| {
                let value = Raw::Text((*key).to_owned());
                (*token, vec![Some(Cell { value, left_s: None, written_us: None })])
            };
            let rows = self.0[table].iter().skip(from).take(2).map(row).collect();
            let next = from + 2;
            let next = (next < self.0[table].len()).then(|| vec![u8::try_from(next).unwrap()]);
            Page { rows, next }
        }
    }

    async fn joined(tables: Tables, with_second: bool) -> Vec<(String, usize, usize)> {
        let clock = holdfast_runtime::Runtime::system().clock;
        let told = Mutex::new(Vec::new());
        let tell = async |rows: Vec<Joined>, _| {
            let rows = rows.into_iter();
            let count = |row: Joined| (row.lock.to_string(), row.first.len(), row.second.len());
            told.lock().unwrap().extend(rows.map(count));
            Ok(())
        };
        let pages = async |table, from| Ok(tables.page(table, from));
        join(&pages, &*clock, with_second, tell).await.unwrap();
        told.into_inner().unwrap()
    }

    fn expected(rows: &[(&str, usize, usize)]) -> Vec<(String, usize, usize)> {
        rows.iter().map(|(key, first, second)| ((*key).to_owned(), *first, *second)).collect()
    }

    /// A lock's rows are on two pages, and some locks are in one table only.
    #[tokio::test]
    async fn the_rows_of_a_lock_come_together_from_both_tables_over_pages() {
        let first = vec![(-5, "a"), (1, "b"), (1, "b"), (1, "b"), (9, "d")];
        let second = vec![(1, "b"), (3, "c"), (3, "c"), (9, "d"), (9, "d")];

        let told = joined(Tables([first.clone(), second.clone()]), true).await;
        assert_eq!(told, expected(&[("a", 1, 0), ("b", 3, 1), ("c", 0, 2), ("d", 1, 2)]));

        let told = joined(Tables([first, second]), false).await;
        assert_eq!(told, expected(&[("a", 1, 0), ("b", 3, 0), ("d", 1, 0)]));
    }

    #[tokio::test]
    async fn two_locks_with_one_token_are_two() {
        let (first, second) = (vec![(1, "a"), (1, "b")], vec![(1, "b")]);
        let told = joined(Tables([first, second]), true).await;
        assert_eq!(told, expected(&[("a", 1, 0), ("b", 1, 1)]));
    }

    #[tokio::test]
    async fn empty_tables_have_no_locks() {
        assert_eq!(joined(Tables([vec![], vec![]]), true).await, []);
    }
}
