//! The rows that the benches print, one JSON object a line.

use std::fmt;

use serde_json::{Map, Value};

use super::Figure;

/// The numbers of threads in the cells of the table.
pub const THREADS: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];

/// A lock store, or a recipe, in the order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Its name in the table.
    pub name: &'static str,
    /// Its `peer` in the rows.
    peer: &'static str,
}

/// All stores: the older recipe and the newer one of the thesis, then the others, then this project's own store.
pub const STORES: [Store; 7] = [
    Store { name: "shadow", peer: "cassandra-shadow" },
    Store { name: "queue", peer: "cassandra-queue" },
    Store { name: "lease", peer: "cassandra-lease" },
    Store { name: "bakery", peer: "cassandra-bakery" },
    Store { name: "tokens-optimistic", peer: "cassandra-tokens-optimistic" },
    Store { name: "tokens-lwt", peer: "cassandra-tokens-lwt" },
    Store { name: "native", peer: "holdfast" },
];

/// The keys that the threads lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All of them lock one key.
    One,
    /// Each locks a key of its own.
    Distinct,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "one key",
            Self::Distinct => "distinct keys",
        })
    }
}

/// A store with so many threads, measured once or several times.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The store.
    pub store: Store,
    /// The number of threads.
    pub threads: u64,
    /// The keys; one thread stands for both.
    keys: Option<Keys>,
    /// One of each run.
    rows: Vec<Map<String, Value>>,
}

/// Why rows could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// Not a JSON object.
    #[error("line {line} is no row: {source}")]
    NoRow {
        /// The line, from 1 on.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A row of something else.
    #[error("line {line} is of no cell of the table: {key} is {value}")]
    NoCell {
        /// The line, from 1 on.
        line: usize,
        /// The key that does not fit.
        key: &'static str,
        /// Its value.
        value: Value,
    },
}

impl Cell {
    /// A figure, if a row has it: the middle one of the runs, of an even number the lower of the two in the middle.
    pub fn figure(&self, figure: Figure) -> Option<f64> {
        let values = self.values(figure);
        values.get(values.len().checked_sub(1)? / 2).copied()
    }

    /// The least and the greatest of a figure, if there were several runs.
    pub fn range(&self, figure: Figure) -> Option<(f64, f64)> {
        match *self.values(figure) {
            [least, .., greatest] => Some((least, greatest)),
            _ => None,
        }
    }

    /// A figure of all runs, in ascending order.
    fn values(&self, figure: Figure) -> Vec<f64> {
        let (key, divisor) = figure.key();
        let value = |row: &Map<String, Value>| Some(row.get(key)?.as_f64()? / divisor);
        let mut values: Vec<f64> = self.rows.iter().filter_map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Whether it belongs to a table of those keys.
    pub fn is_of(&self, keys: Keys) -> bool {
        self.keys.is_none_or(|own| own == keys)
    }

    /// How many acquires failed in the run in which the most did.
    pub fn errors(&self) -> u64 {
        let errors = |row: &Map<String, Value>| row.get("errors").and_then(Value::as_u64);
        self.rows.iter().filter_map(errors).max().unwrap_or(0)
    }

    fn is_the_same_as(&self, other: &Self) -> bool {
        (self.store, self.threads, self.keys) == (other.store, other.threads, other.keys)
    }

    fn read(line: usize, text: &str) -> Result<Self, RowError> {
        let row: Map<String, Value> =
            serde_json::from_str(text).map_err(|source| RowError::NoRow { line, source })?;
        let unfit = |key| {
            let value = row.get(key).cloned().unwrap_or_default();
            RowError::NoCell { line, key, value }
        };
        let text = |key| row.get(key).and_then(Value::as_str).unwrap_or_default();
        let store = STORES.into_iter().find(|store| store.peer == text("peer"));
        let store = store.ok_or_else(|| unfit("peer"))?;
        let threads = row.get("n").and_then(Value::as_u64);
        let threads = threads.filter(|threads| THREADS.contains(threads));
        let threads = threads.ok_or_else(|| unfit("n"))?;
        let keys = match text("workload") {
            "W1" => None,
            "W2" => Some(Keys::Distinct),
            "W3" => Some(Keys::One),
            _ => return Err(unfit("workload")),
        };
        Ok(Self { store, threads, keys, rows: vec![row] })
    }
}

/// The cells in the rows of a file; each row of a cell is a run of it.
///
/// # Errors
///
/// [`RowError`] names the line.
pub fn cells(rows: &str) -> Result<Vec<Cell>, RowError> {
    let mut cells: Vec<Cell> = Vec::new();
    for (number, text) in (1..).zip(rows.lines()) {
        let mut cell = Cell::read(number, text)?;
        match cells.iter_mut().find(|known| known.is_the_same_as(&cell)) {
            Some(known) => known.rows.append(&mut cell.rows),
            None => cells.push(cell),
        }
    }
    Ok(cells)
}

/// A cell's figure.
pub(super) fn find(cells: &[Cell], store: Store, threads: u64, keys: Keys) -> Option<&Cell> {
    cells.iter().find(|cell| cell.store == store && cell.threads == threads && cell.is_of(keys))
}
