//! The tables of the recipes, as CQL to print and to apply.

mod replication;

use scylla::client::session::Session;

use crate::bakery::BakeryTables;
use crate::clock::TimeTable;
use crate::fallback;
use crate::lease::LeaseTable;
use crate::modes::ModesTable;
use crate::opening::{Contact, open};
use crate::optimistic::OptimisticTable;
use crate::queue::QueueTables;
use crate::recipe::Names;
use crate::shadow::ShadowTables;
use crate::statement::Ident;
use crate::tokens::TokenTables;
use crate::work::WorkTables;
use crate::{Error, Result};

pub use replication::{NoReplication, Replication};

/// The names of all recipes' tables and of their columns.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Table of [`Lease`](crate::Lease).
    pub lease: LeaseTable,
    /// Tables of [`Queue`](crate::Queue).
    pub queue: QueueTables,
    /// Tables of [`Tokens`](crate::Tokens).
    pub tokens: TokenTables,
    /// Tables of [`Bakery`](crate::Bakery).
    pub bakery: BakeryTables,
    /// Tables of [`Shadow`](crate::Shadow).
    pub shadow: ShadowTables,
    /// Table of [`OptimisticTokens`](crate::OptimisticTokens).
    pub optimistic: OptimisticTable,
    /// Table of [`Locker`](crate::Locker).
    pub modes: ModesTable,
    /// Table of [`TimeReplica`](crate::TimeReplica).
    pub time: TimeTable,
    /// Tables of [`WorkQueue`](crate::WorkQueue).
    pub work: WorkTables,
}

impl Layout {
    /// All tables under these names.
    #[doc(hidden)]
    pub fn of(names: &Names) -> Self {
        Self {
            lease: LeaseTable::of(names),
            queue: QueueTables::of(names),
            tokens: TokenTables::of(names),
            bakery: BakeryTables::of(names),
            shadow: ShadowTables::of(names),
            optimistic: OptimisticTable::of(names),
            modes: ModesTable::of(names),
            time: TimeTable::of(names),
            work: WorkTables::of(names),
        }
    }
}

/// The tables in one keyspace, and the keyspace itself.
#[derive(Clone, Debug)]
pub struct Schema {
    keyspace: Ident,
    replication: Option<Replication>,
    layout: Layout,
}

impl Schema {
    /// The schema of this keyspace, by its exact name, which is there already.
    #[must_use]
    pub fn new(keyspace: &str) -> Self {
        let keyspace = Ident::new(keyspace);
        Self { keyspace, replication: None, layout: Layout::default() }
    }

    /// Includes the keyspace, with so many replicas.
    #[must_use]
    pub fn replicated(mut self, replication: impl Into<Replication>) -> Self {
        self.replication = Some(replication.into());
        self
    }

    /// Gives the tables other names.
    #[must_use]
    pub fn named(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The statements, in order. Each contains `IF NOT EXISTS` and leaves existing tables unchanged. Tables that version 0.1
    /// made lack some columns; [`Schema::apply`] adds them, by [`Schema::added`].
    pub fn statements(&self) -> Vec<String> {
        let keyspace = &self.keyspace;
        let made = self.replication.as_ref().map(|replication| {
            let options = replication.cql();
            format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {options}")
        });
        let tables = self.tables();
        let made_table = |table| format!("CREATE TABLE IF NOT EXISTS {keyspace}.{table}");
        made.into_iter().chain(tables.into_iter().map(made_table)).collect()
    }

    /// The columns that tables of version 0.1 lack, as (table, column, statement that adds it).
    pub fn added(&self) -> Vec<(String, String, String)> {
        let modes = self.layout.modes.table.as_str();
        let columns = [
            (modes, "recipe", "text static"),
            (modes, "cluster", "text static"),
            ("authority", "cluster", "text"),
        ];
        let alter = |(table, column, is): (&str, &str, &str)| {
            let (place, named) = (Ident::new(table), Ident::new(column));
            let text = format!("ALTER TABLE {}.{place} ADD {named} {is}", self.keyspace);
            (table.to_owned(), column.to_owned(), text)
        };
        columns.map(alter).to_vec()
    }

    /// Each table's name and the rest of its `CREATE TABLE`.
    fn tables(&self) -> Vec<String> {
        let Layout { lease, queue, tokens, bakery, shadow, optimistic, modes, time, work } =
            &self.layout;
        let mut tables =
            [lease.created(), queue.created(), tokens.created(), bakery.created()].concat();
        tables.push(modes.created());
        tables.extend(fallback::TABLES.map(str::to_owned));
        let [tried, main] = shadow.created();
        tables.extend([tried, optimistic.created(), time.created()]);
        tables.extend((shadow.main != queue.main).then_some(main));
        tables.extend(work.created());
        tables
    }

    /// Creates what does not exist yet, including columns that tables of version 0.1 lack.
    ///
    /// Applying twice is harmless. Dropping the future may leave part of the tables.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the keyspace does not exist and no replication is given, if there are
    /// fewer nodes than replicas, or if it exists with another replication; then nothing is
    /// created. [`Error::Refused`] also if the cluster refuses a statement: the statements before
    /// it stay applied. [`Error::Unreachable`] if no node answered.
    pub async fn apply(&self, contact: &Contact) -> Result<()> {
        let session = open(contact).await?;
        self.check(&session)?;
        for statement in self.statements() {
            let made = session.query_unpaged(statement.as_str(), ()).await;
            made.map_err(|error| Error::invalid(format!("{statement}: {error}")))?;
        }
        self.add_columns(&session).await
    }

    /// Adds only missing columns, without `ADD IF NOT EXISTS`, which is younger than some clusters.
    async fn add_columns(&self, session: &Session) -> Result<()> {
        let unknown = |error: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "keyspace {}: its tables cannot be listed: {error}",
                self.keyspace
            ))
        };
        session.refresh_metadata().await.map_err(|error| unknown(&error))?;
        for (table, column, statement) in self.added() {
            let state = session.get_cluster_state();
            let keyspace = state.get_keyspace(self.keyspace.as_str());
            let there = keyspace.and_then(|keyspace| keyspace.tables.get(&table));
            if there.is_none_or(|there| there.columns.contains_key(&column)) {
                continue;
            }
            let added = session.query_unpaged(statement.as_str(), ()).await;
            added.map_err(|error| Error::invalid(format!("{statement}: {error}")))?;
        }
        Ok(())
    }

    fn check(&self, session: &Session) -> Result<()> {
        let state = session.get_cluster_state();
        let there = state.get_keyspace(self.keyspace.as_str());
        let Some(replication) = &self.replication else {
            let missing = || self.refused("is not there; --replication 3 makes it");
            return there.map(|_| ()).ok_or_else(missing);
        };
        if let Some(why) = replication.unfit(&state) {
            return Err(self.refused(&why));
        }
        match there.and_then(|there| replication.differs(&there.strategy)) {
            Some(has) => Err(self.refused(&format!(
                "is there with other replicas ({has}), not {replication}; ALTER KEYSPACE changes that, and \
                 needs a repair after it"
            ))),
            None => Ok(()),
        }
    }

    fn refused(&self, what: &str) -> Error {
        Error::invalid(format!("keyspace {} {what}", self.keyspace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BakeryForm;

    #[test]
    fn a_keyspace_is_made_only_when_its_replication_is_said() {
        assert_eq!(Schema::new("locks").statements().len(), 20);
        let made = Schema::new("Locks").replicated(3).statements();
        assert!(made[0].starts_with("CREATE KEYSPACE IF NOT EXISTS \"Locks\" WITH"), "{made:?}");
        assert!(
            made[1].contains("\"Locks\".\"leases\" (\"name\" text PRIMARY KEY, \"owner\" text"),
            "{made:?}"
        );
    }

    /// A table of today is the table that `holdfast cassandra schema --replication 3` of 0.1 prints, plus the columns
    /// that are added to it; 0.2 prints those of today.
    #[test]
    fn tables_of_earlier_releases_and_the_columns_added_to_them_are_the_tables_of_today() {
        let of_0_1 = include_str!("../../../../tests/fixtures/0.1/schema.cql");
        let of_0_2 = include_str!("../../../../tests/fixtures/0.2/schema.cql");
        let schema = Schema::new("holdfast").replicated(3);
        let mut now = schema.statements();
        assert_eq!(of_0_2, printed(&now));
        for (table, column, added) in schema.added() {
            let (altered, is) = added.rsplit_once(&format!(" ADD \"{column}\" ")).unwrap();
            assert_eq!(altered, format!("ALTER TABLE \"holdfast\".\"{table}\""));
            let made = format!(", \"{column}\" {is}");
            let there =
                now.iter_mut().find(|made| made.contains(&format!("\"{table}\" ("))).unwrap();
            assert!(there.contains(&made), "{there} has no{made}");
            *there = there.replacen(&made, "", 1);
        }
        assert_eq!(of_0_1, printed(&now));
    }

    fn printed(statements: &[String]) -> String {
        statements.join(";\n") + ";\n"
    }

    /// The flag of a client that is choosing has another type in each form.
    #[test]
    fn the_bakerys_tables_are_those_of_its_form() {
        let of_form = |form| {
            let bakery = BakeryTables::named("n", "c", ["k", "p", "v"]).of_form(form);
            let layout = Layout { bakery, ..Layout::default() };
            Schema::new("locks").named(layout).statements()
        };
        let cells = |table: &str, of: &str| {
            format!("\"{table}\" (\"k\" text, \"p\" text, \"v\" {of}, PRIMARY KEY (\"k\", \"p\"))")
        };
        for (form, flag) in [(BakeryForm::Wiki, "bigint"), (BakeryForm::Php, "boolean")] {
            let made = of_form(form);
            assert!(made[6].ends_with(&cells("n", "bigint")), "{made:?}");
            assert!(made[7].ends_with(&cells("c", flag)), "{made:?}");
        }
    }

    #[test]
    fn tables_are_made_under_the_names_they_have_in_the_layout() {
        let tokens = TokenTables::named(
            "locked",
            ["key", "column1", "value"],
            "beats",
            ["who", "what", "when"],
        );
        let shadow = ShadowTables::named("tries", "holds", ["a", "b", "c"]);
        let optimistic = OptimisticTable::named("Wanted", ["key", "column1"]);
        let layout = Layout { tokens, shadow, optimistic, ..Layout::default() };
        let made = Schema::new("locks").named(layout).statements();
        let locked = "\"locked\" (\"key\" text PRIMARY KEY, \"column1\" text, \"value\" timestamp)";
        assert!(made[4].ends_with(locked), "{made:?}");
        let beats = "\"beats\" (\"who\" text PRIMARY KEY, \"what\" list<text>, \"when\" timestamp)";
        assert!(made[5].ends_with(beats), "{made:?}");
        let cells = "(\"a\" text, \"b\" text, \"c\" text, PRIMARY KEY (\"a\", \"b\"))";
        let tokens =
            "\"Wanted\" (\"key\" text, \"column1\" text, PRIMARY KEY (\"key\", \"column1\"))";
        for table in [format!("\"tries\" {cells}"), format!("\"holds\" {cells}"), tokens.to_owned()]
        {
            assert!(made.iter().any(|made| made.ends_with(&table)), "{table}: {made:?}");
        }
    }
}
