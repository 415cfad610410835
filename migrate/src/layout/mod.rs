//! The tables of the recipes: their names, their expected columns, and how their rows are read.

mod bakery;
mod cells;
mod lease;
mod queue;
mod raw;
mod shadow;
mod table;
mod tokens;

use holdfast_recipes::recipe_on;

pub use cells::ColumnCell;
pub use lease::LeaseRow;
pub use raw::{Cell, NoText, Raw};
pub use table::{Actual, ActualColumn, Column, Expected, Mismatch, Role, Type};
pub use tokens::{Heartbeat, TokenRow};

/// Which recipe wrote the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Recipe {
    /// A row with an owner and a TTL for each lock.
    Lease,
    /// The thesis' queue: places in line, and a main row with the holder.
    Queue,
    /// The thesis' earlier solution: a main row with the holder, a shadow row where threads try.
    Shadow,
    /// A row with a session for each lock, and the sessions' heartbeats.
    Tokens,
    /// Lamport's bakery: who is choosing, and the numbers that were drawn.
    Bakery,
}

impl Recipe {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Queue => "queue",
            Self::Shadow => "shadow",
            Self::Tokens => "tokens",
            Self::Bakery => "bakery",
        }
    }
}

/// The names of a recipe's two tables, and of the columns that both have: lock, column, value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellTables {
    /// The table of the holders: main rows, or the numbers of the bakery.
    pub first: String,
    /// The other table: places in line, threads that try, or processes that are choosing.
    pub second: String,
    /// The columns of both.
    pub columns: [String; 3],
}

/// The names of a recipe's tables and columns, exactly as on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// Table, and columns for lock, owner, value.
    Lease {
        /// The leases.
        table: String,
        /// Lock, owner, value.
        columns: [String; 3],
    },
    /// Main rows and queues.
    Queue(CellTables),
    /// Main rows and shadow rows.
    Shadow(CellTables),
    /// Tokens and heartbeats.
    Tokens {
        /// The tokens.
        table: String,
        /// Token and session.
        columns: [String; 2],
        /// The column with the instant at which the session got the token; written, not read.
        since: String,
        /// The heartbeats.
        times: String,
        /// Session and last heartbeat.
        times_columns: [String; 2],
        /// The column with the session's tokens; written, not read.
        held: String,
    },
    /// Numbers and choosers.
    Bakery(CellTables),
}

impl Names {
    /// The recipe of these tables.
    pub fn recipe(&self) -> Recipe {
        match self {
            Self::Lease { .. } => Recipe::Lease,
            Self::Queue(_) => Recipe::Queue,
            Self::Shadow(_) => Recipe::Shadow,
            Self::Tokens { .. } => Recipe::Tokens,
            Self::Bakery(_) => Recipe::Bakery,
        }
    }

    /// The recipe and its tables in this keyspace, as the table of modes has it: equal to what a
    /// process that locks by them records.
    pub fn on(&self, keyspace: &str) -> String {
        let (recipe, tables): (_, Vec<&str>) = match self {
            Self::Lease { table, .. } => ("lease", vec![table]),
            Self::Queue(CellTables { first, second, .. }) => ("queue", vec![first, second]),
            Self::Shadow(CellTables { first, second, .. }) => ("shadow", vec![first, second]),
            Self::Tokens { table, .. } => ("tokens", vec![table]),
            Self::Bakery(CellTables { first, second, .. }) => ("bakery", vec![first, second]),
        };
        recipe_on(recipe, keyspace, &tables)
    }

    /// The expected columns of the table that is read first, and of the other.
    pub fn expected(&self) -> (Expected, Option<Expected>) {
        match self {
            Self::Lease { table, columns } => (lease::expected(table, columns), None),
            Self::Queue(tables) => queue::expected(tables),
            Self::Shadow(tables) => shadow::expected(tables),
            Self::Tokens { table, columns, times, times_columns, .. } => {
                (tokens::expected(table, columns), Some(tokens::beats(times, times_columns)))
            }
            Self::Bakery(tables) => bakery::expected(tables),
        }
    }
}

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
    /// The cells of the main row, and those of the queue.
    Queue {
        /// The holder: one cell, by the recipe.
        main: Vec<ColumnCell>,
        /// Places in line.
        queue: Vec<ColumnCell>,
    },
    /// The cells of the main row, and those of the shadow row.
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
        /// A flag for each process that draws one.
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
            Recipe::Queue => Said::Queue { main: cells::of(first), queue: cells::of(second) },
            Recipe::Shadow => Said::Shadow { main: cells::of(first), shadow: cells::of(second) },
            Recipe::Tokens => Said::Tokens(first.into_iter().map(TokenRow::of).collect()),
            Recipe::Bakery => {
                Said::Bakery { numbers: cells::of(first), choosing: cells::of(second) }
            }
        };
        Some(Self { lock, said })
    }
}
