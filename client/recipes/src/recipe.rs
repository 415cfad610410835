//! The one description of each recipe: its name, its tables, and the names that a deployment may choose.
//!
//! The folder of a recipe has its description; [`Recipe`] lists them. The schema, the options of the command lines, the
//! columns that `holdfast-migrate` expects, and the suites are derived from these.

use std::array;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::cassandra::{Cassandra, LockerOptions};
use super::locker::RemoteLocker;
use super::schema::Layout;
use super::statement::Ident;
use super::{bakery, clock, lease, modes, optimistic, queue, shadow, tokens, work};
use crate::{Error, Result};

/// Names that are chosen together: that of a table, or those of its columns, which other tables may share.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The option of the command lines, without its dashes.
    pub option: &'static str,
    /// For each name what it is of, in capitals; its default; the CQL type, if it is a column's.
    pub names: &'static [(&'static str, &'static str, &'static str)],
    /// The help of the option.
    pub help: &'static str,
}

/// A table as a recipe makes it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Its name.
    pub name: Naming,
    /// Its columns, those of the primary key first.
    pub columns: Naming,
    /// How many of them are the primary key. The first one is the partition key.
    pub key: usize,
}

/// A recipe by which clients lock.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct RecipeSpec {
    /// Its name on the command line.
    pub name: &'static str,
    /// What its rows are, in a line.
    pub rows: &'static str,
    /// The tables of its locks, that of the holders first.
    pub tables: &'static [TableSpec],
    /// The names of tables and columns that a deployment may choose, except those of a recipe before it.
    pub names: &'static [Naming],
    /// A locker of the recipe on the tables of a layout.
    pub locker: fn(&Cassandra, &LockerOptions, &Layout) -> Result<Arc<dyn RemoteLocker>>,
}

/// The recipes by which clients lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// See [`lease`].
    Lease,
    /// See [`queue`].
    Queue,
    /// See [`tokens`].
    TokensLwt,
    /// See [`bakery`].
    Bakery,
    /// See [`shadow`].
    Shadow,
    /// See [`optimistic`].
    TokensOptimistic,
}

impl Recipe {
    /// All recipes, in the order in which the command line lists them.
    pub const ALL: [Self; 6] = [
        Self::Lease,
        Self::Queue,
        Self::TokensLwt,
        Self::Bakery,
        Self::Shadow,
        Self::TokensOptimistic,
    ];

    /// Its description.
    #[doc(hidden)]
    pub fn spec(self) -> &'static RecipeSpec {
        match self {
            Self::Lease => &lease::SPEC,
            Self::Queue => &queue::SPEC,
            Self::TokensLwt => &tokens::SPEC,
            Self::Bakery => &bakery::SPEC,
            Self::Shadow => &shadow::SPEC,
            Self::TokensOptimistic => &optimistic::SPEC,
        }
    }

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        self.spec().name
    }

    /// Its name in the table of modes and for `holdfast-migrate`: that of the article, which may have variants.
    pub fn family(self) -> &'static str {
        self.as_str().split('-').next().unwrap_or_default()
    }

    /// A locker of this recipe on the tables of the layout. It sends no statement yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if TTL and skew do not fit together.
    pub fn locker(
        self,
        cassandra: &Cassandra,
        options: &LockerOptions,
        layout: &Layout,
    ) -> Result<Arc<dyn RemoteLocker>> {
        (self.spec().locker)(cassandra, options, layout)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Recipe {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|recipe| recipe.as_str() == text);
        let names = || Self::ALL.map(Self::as_str).join(", ");
        let message = || format!("{text:?} is no recipe; the recipes are {}", names());
        found.ok_or_else(|| Error::InvalidConfig { message: message() })
    }
}

/// All names that a deployment may choose, in the order in which the command line lists them.
#[doc(hidden)]
pub fn namings() -> Vec<Naming> {
    let helpers = [&[modes::MODES], clock::NAMES, work::NAMES];
    Recipe::ALL
        .map(|recipe| recipe.spec().names)
        .into_iter()
        .chain(helpers)
        .flatten()
        .copied()
        .collect()
}

impl Naming {
    pub(crate) const fn new(
        option: &'static str,
        names: &'static [(&'static str, &'static str, &'static str)],
        help: &'static str,
    ) -> Self {
        Self { option, names, help }
    }
}

/// The names that a deployment has chosen; all others are the defaults.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<&'static str, Vec<String>>);

impl Names {
    /// Chooses these names, which are exact: capitals count.
    pub fn choose(&mut self, naming: &Naming, names: impl IntoIterator<Item = String>) {
        self.0.insert(naming.option, names.into_iter().collect());
    }

    /// These names.
    pub fn each<const N: usize>(&self, naming: &Naming) -> [&str; N] {
        let chosen = self.0.get(naming.option);
        let default = |at| naming.names.get(at).map_or("", |(_, default, _)| *default);
        array::from_fn(|at| {
            chosen.and_then(|names| names.get(at)).map_or_else(|| default(at), String::as_str)
        })
    }

    /// The name, where it is one, as that of a table.
    pub fn one(&self, naming: &Naming) -> &str {
        let [name] = self.each(naming);
        name
    }
}

impl TableSpec {
    /// What follows the keyspace in the `CREATE TABLE` of this table, under these names.
    pub(crate) fn created(&self, table: &Ident, columns: &[&Ident]) -> String {
        let types = self.columns.names.iter().map(|(_, _, of)| of);
        let mut parts: Vec<String> =
            columns.iter().zip(types).map(|(column, of)| format!("{column} {of}")).collect();
        if let (1, Some(first)) = (self.key, parts.first_mut()) {
            first.push_str(" PRIMARY KEY");
        } else {
            let key: Vec<_> = columns.iter().take(self.key).map(ToString::to_string).collect();
            parts.push(format!("PRIMARY KEY ({})", key.join(", ")));
        }
        format!("{table} ({})", parts.join(", "))
    }
}
