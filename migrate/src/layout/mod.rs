//! The tables of the recipes: their names, their expected columns, and how their rows are read.

mod raw;
mod table;

use holdfast_recipes::recipe::{Names, TableSpec};
use holdfast_recipes::{Recipe, recipe_on};

pub use raw::{Cell, NoText, Raw};
use table::{ANY, ID, KEY, NAME, NUMBERED};
pub use table::{Actual, ActualColumn, Column, Expected, Mismatch, Role, Type};

/// The recipes whose rows can be moved. Rows of tokens without LWT are read as those with.
pub const MOVED: [Recipe; 5] =
    [Recipe::Lease, Recipe::Queue, Recipe::Shadow, Recipe::TokensLwt, Recipe::Bakery];

/// A recipe, and the names of its tables and columns, exactly as on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The recipe that wrote the rows.
    pub recipe: Recipe,
    /// The names.
    pub names: Names,
}

impl Layout {
    /// The recipe under its default names.
    pub fn of(recipe: Recipe) -> Self {
        Self { recipe, names: Names::default() }
    }

    /// The name of a table, that of the holders first, and the names of its first columns.
    pub fn table<const N: usize>(&self, at: usize) -> (&str, [&str; N]) {
        let spec = self.recipe.spec().tables.get(at);
        let named = |spec: &TableSpec| (self.names.one(&spec.name), self.names.each(&spec.columns));
        spec.map_or(("", [""; N]), named)
    }

    /// The names of all its tables.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        (0..self.recipe.spec().tables.len()).map(|at| self.table::<0>(at).0)
    }

    /// How many tables have rows of locks: the heartbeats of tokens are rows of sessions.
    pub fn lock_tables(&self) -> usize {
        match self.recipe {
            Recipe::Lease | Recipe::TokensLwt | Recipe::TokensOptimistic => 1,
            Recipe::Queue | Recipe::Shadow | Recipe::Bakery => 2,
        }
    }

    /// The recipe and its tables in this keyspace, as the table of modes has it: equal to what a
    /// process that locks by them records.
    pub fn on(&self, keyspace: &str) -> String {
        let tables: Vec<&str> = (0..self.lock_tables()).map(|at| self.table::<0>(at).0).collect();
        recipe_on(self.recipe.family(), keyspace, &tables)
    }

    /// The expected columns of each table.
    pub fn expected(&self) -> Vec<Expected> {
        let specs = self.recipe.spec().tables.iter().zip(columns_read(self.recipe));
        specs.map(|(spec, read)| self.expected_of(spec, read)).collect()
    }

    fn expected_of(&self, spec: &TableSpec, read: &[Read]) -> Expected {
        let names = self.names.each::<3>(&spec.columns);
        let columns =
            read.iter().zip(names).enumerate().filter(|(_, (read, _))| !read.0.is_empty());
        let column = |(at, (&(types, detail), name)): (usize, (&Read, &str))| Column {
            name: name.to_owned(),
            role: self.role(spec, at),
            types,
            detail,
        };
        Expected {
            table: self.names.one(&spec.name).to_owned(),
            columns: columns.map(column).collect(),
        }
    }

    /// Without LWT the session of a token is part of the key.
    fn role(&self, spec: &TableSpec, column: usize) -> Role {
        match (self.recipe, column) {
            (_, 0) => Role::Partition,
            (Recipe::TokensLwt | Recipe::TokensOptimistic, 1) => Role::ClusteringOrRegular,
            _ if column < spec.key => Role::Clustering,
            _ => Role::Regular,
        }
    }
}

/// How a column is read: the types it may have, none if it is not read; and whether TTL and write time are read too.
type Read = (&'static [Type], bool);

/// How the columns of each of a recipe's tables are read, in their order. What is not `text` in the tables of other
/// clients comes from Thrift, or is a UUID, or a number of the bakery's: "row key and column name as integers". Its values
/// may have any type, because the articles differ; the plan reports those that it cannot read.
fn columns_read(recipe: Recipe) -> &'static [&'static [Read]] {
    const CELLS: &[Read] = &[(NAME, false), (ID, false), (ANY, true)];
    const NUMBERS: &[Read] = &[(KEY, false), (NUMBERED, false), (ANY, true)];
    const BEATS: &[Read] = &[(NAME, false), (&[], false), (&[Type::Time, Type::Number], true)];
    match recipe {
        Recipe::Lease => &[&[(NAME, false), (ID, true), (NAME, false)]],
        Recipe::Queue | Recipe::Shadow => &[CELLS, CELLS],
        Recipe::Bakery => &[NUMBERS, NUMBERS],
        Recipe::TokensLwt | Recipe::TokensOptimistic => &[&[(NAME, false), (NAME, true)], BEATS],
    }
}

/// Digits of microseconds before the thread in the name of a place (thesis, listing 5).
pub(crate) const TIME_DIGITS: usize = 20;

/// All rows of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRows {
    /// Its name, as the table has it.
    pub lock: Raw,
    /// The rows.
    pub said: Said,
}

/// The rows of one lock, by recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A row of leases.
    Lease(LeaseRow),
    /// The cells of the main row, and those of the queue: named by 20 digits of microseconds and the thread (thesis, §5).
    Queue {
        /// The holder: one cell, by the recipe.
        main: Vec<ColumnCell>,
        /// Places in line.
        queue: Vec<ColumnCell>,
    },
    /// The cells of the main row, and those of the shadow row (thesis, §4).
    Shadow {
        /// The holder: one cell, by the recipe.
        main: Vec<ColumnCell>,
        /// Threads that try.
        shadow: Vec<ColumnCell>,
    },
    /// The sessions that have the token: one with LWT, any number without.
    Tokens(Vec<TokenRow>),
    /// The numbers, and the flags of processes that are choosing one.
    Bakery {
        /// A number for each process that wants the lock.
        numbers: Vec<ColumnCell>,
        /// A flag for each process that draws one: one article deletes it, the other overwrites it with `false`.
        choosing: Vec<ColumnCell>,
    },
}

impl LockRows {
    /// Reads the rows of one partition of both tables; `None` if there are none. The cells of a row
    /// are in the order of [`Expected::columns`].
    pub fn of(
        recipe: Recipe,
        lock: Raw,
        first: Vec<Vec<Option<Cell>>>,
        second: Vec<Vec<Option<Cell>>>,
    ) -> Option<Self> {
        let said = match recipe {
            Recipe::Lease => Said::Lease(first.into_iter().next().map(LeaseRow::of)?),
            Recipe::Queue => Said::Queue { main: cells(first), queue: cells(second) },
            Recipe::Shadow => Said::Shadow { main: cells(first), shadow: cells(second) },
            Recipe::TokensLwt | Recipe::TokensOptimistic => {
                Said::Tokens(first.into_iter().map(TokenRow::of).collect())
            }
            Recipe::Bakery => Said::Bakery { numbers: cells(first), choosing: cells(second) },
        };
        Some(Self { lock, said })
    }

    /// The cells that have an owner, those of the table of holders first.
    pub(crate) fn owned(&self) -> Vec<OwnedCell<'_>> {
        match &self.said {
            Said::Lease(row) => {
                row.owner.iter().map(|cell| OwnedCell::of(&cell.value, Some(cell))).collect()
            }
            Said::Queue { main: first, queue: second }
            | Said::Shadow { main: first, shadow: second }
            | Said::Bakery { numbers: first, choosing: second } => {
                let is_queue = matches!(self.said, Said::Queue { .. });
                let second = second.iter().map(ColumnCell::owned);
                let second = second.map(|cell| cell.of_second(is_queue));
                first.iter().map(ColumnCell::owned).chain(second).collect()
            }
            Said::Tokens(sessions) => {
                let sessions = sessions.iter().filter_map(|row| {
                    let cell = row.session.as_ref()?;
                    let heartbeat = Some(row.heartbeat);
                    Some(OwnedCell { heartbeat, ..OwnedCell::of(&cell.value, Some(cell)) })
                });
                sessions.collect()
            }
        }
    }
}

/// A cell that has an owner.
pub(crate) struct OwnedCell<'a> {
    /// Whether it is in the table of holders; otherwise it is in the other one.
    pub(crate) is_holders: bool,
    /// Its owner, printable; of a place in line with its time.
    pub(crate) column: String,
    /// Its owner, printable.
    pub(crate) owner: String,
    /// Value, TTL and write time; `None`: a row without a value.
    pub(crate) cell: Option<&'a Cell>,
    /// Of a token's session.
    pub(crate) heartbeat: Option<Heartbeat>,
}

impl<'a> OwnedCell<'a> {
    fn of(owner: &Raw, cell: Option<&'a Cell>) -> Self {
        let column = owner.to_string();
        Self { is_holders: true, owner: column.clone(), column, cell, heartbeat: None }
    }

    fn of_second(mut self, is_place: bool) -> Self {
        self.is_holders = false;
        if let Some((_, thread)) = self.column.split_at_checked(TIME_DIGITS).filter(|_| is_place) {
            self.owner = thread.to_owned();
        }
        self
    }
}

/// A row of leases: "a lease has a name, optional value and an owner" (lease article).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The holder; `None`: the owner's cell has ended before the value's.
    pub owner: Option<Cell>,
    /// The holder's value.
    pub value: Option<Raw>,
}

impl LeaseRow {
    fn of(row: Vec<Option<Cell>>) -> Self {
        let mut cells = row.into_iter().skip(1);
        let owner = cells.next().flatten();
        let value = cells.next().flatten().map(|cell| cell.value);
        Self { owner, value }
    }
}

/// One cell of a lock's row, as in the thesis and the bakery: in CQL each is a row of its own, `(key, column1, value)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnCell {
    /// The column's name.
    pub column: Raw,
    /// The value; `None`: a row without a value, whose TTL is unknown.
    pub cell: Option<Cell>,
}

impl ColumnCell {
    fn owned(&self) -> OwnedCell<'_> {
        OwnedCell::of(&self.column, self.cell.as_ref())
    }
}

/// Reads rows of lock, column, value; a row without a column is no cell.
fn cells(rows: Vec<Vec<Option<Cell>>>) -> Vec<ColumnCell> {
    let cell = |row: Vec<Option<Cell>>| {
        let mut cells = row.into_iter().skip(1);
        let column = cells.next().flatten()?.value;
        Some(ColumnCell { column, cell: cells.next().flatten() })
    };
    rows.into_iter().filter_map(cell).collect()
}

/// A row of a token (Scylla article), with LWT or without. Without LWT the session is part of the key, and a token that
/// several sessions want has a row for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// The session's id; `None`: the row has none.
    pub session: Option<Cell>,
    /// The session's heartbeat, which the scan adds.
    pub heartbeat: Heartbeat,
}

impl TokenRow {
    fn of(row: Vec<Option<Cell>>) -> Self {
        let session = row.into_iter().nth(1).flatten();
        Self { session, heartbeat: Heartbeat::Missing }
    }
}

/// The row of a session in `token_times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// The session has no row there.
    Missing,
    /// The session has a row.
    There {
        /// When the last heartbeat was written, as of [`Cell::written_us`].
        written_us: Option<i64>,
    },
}
