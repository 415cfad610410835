//! The tables of the recipes, as CQL to print and to apply.

mod grants;
mod options;
mod replication;

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_keyspace::database::Fault;
use holdfast_keyspace::driver;
use holdfast_runtime::Runtime;
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

pub use grants::Grants;
pub(crate) use grants::Need;
use options::Made;
pub(crate) use options::Rows;
pub use replication::{NoReplication, Replication};

/// How long a client that connects waits for what the tables are like.
const WARNED_WITHIN: Duration = Duration::from_secs(2);

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
    writers_stopped: bool,
}

/// What to do about tables that keep tombstones for too long.
pub(crate) const SHORTENED: &str = "holdfast cassandra schema prints the options that they should have, and sets them with --apply where nobody \
     chose others; with --writers-stopped also in the tables of the articles, once no client writes them that knows only those";

impl Schema {
    /// The schema of this keyspace, by its exact name, which is there already.
    #[must_use]
    pub fn new(keyspace: &str) -> Self {
        let keyspace = Ident::new(keyspace);
        Self { keyspace, replication: None, layout: Layout::default(), writers_stopped: false }
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

    /// The clients that know only the articles' recipes are stopped, for good: [`Schema::apply`] sets the options of their tables too.
    ///
    /// Their rows have no TTL. One that they deleted and that a node brings back, because it was away for longer than tombstones are
    /// kept, would keep its lock from everybody until it is removed by hand.
    #[must_use]
    pub fn writers_stopped(mut self) -> Self {
        self.writers_stopped = true;
        self
    }

    pub(crate) fn keyspace(&self) -> &Ident {
        &self.keyspace
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
        let made_table =
            |table: &Made| format!("CREATE TABLE IF NOT EXISTS {keyspace}.{}", table.statement());
        made.into_iter().chain(tables.iter().map(made_table)).collect()
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

    fn tables(&self) -> Vec<Made> {
        let Layout { lease, queue, tokens, bakery, shadow, optimistic, modes, time, work } =
            &self.layout;
        let of = |rows: Rows| move |created: String| Made::new(created, rows);
        let [leases, sequences] = lease.created();
        let mut tables = vec![Made::new(leases, Rows::Locks), Made::new(sequences, Rows::Kept)];
        tables.extend(queue.created().map(of(Rows::LocksOfOldClients)));
        tables.extend(tokens.created().map(of(Rows::Sessions)));
        tables.extend(bakery.created().map(of(Rows::LocksOfOldClients)));
        tables.push(Made::new(modes.created(), Rows::Processes));
        tables.extend(fallback::TABLES.map(|(made, rows)| Made::new(made.to_owned(), rows)));
        let [tried, main] = shadow.created();
        tables.extend([tried, optimistic.created()].map(of(Rows::LocksOfOldClients)));
        tables.push(Made::new(time.created(), Rows::Kept));
        let main = Made::new(main, Rows::LocksOfOldClients);
        tables.extend((shadow.main != queue.main).then_some(main));
        let [details, choosing, numbers, hours, aside, slots] = work.created();
        tables.extend([details, choosing, numbers, hours].map(of(Rows::Kept)));
        tables.extend([aside, slots].map(of(Rows::Lists)));
        tables
    }

    /// Creates what does not exist yet, including columns that tables of version 0.1 lack, and sets the options of tables whose tombstones
    /// nobody has chosen a time for (see [`Schema::writers_stopped`]). Returns which tables still keep theirs too long for a busy lock,
    /// in words for people.
    ///
    /// Applying twice is harmless. Dropping the future may leave part of the tables.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the keyspace does not exist and no replication is given, if there are
    /// fewer nodes than replicas, if it exists with another replication, or if it would have to be made on `ScyllaDB`
    /// (tablets refuse LWT); then nothing is created. [`Error::Refused`] also if the cluster refuses a statement: the statements before
    /// it stay applied. [`Error::Unreachable`] if no node answered, or not in time: then the statement that it names may be
    /// applied, or may be later.
    pub async fn apply(&self, contact: &Contact) -> Result<Option<String>> {
        let session = open(contact).await?;
        self.check(&session)?;
        for statement in self.statements() {
            define(&session, &statement).await?;
        }
        self.add_columns(&session).await?;
        self.set_options(&session).await?;
        self.warning(&session).await
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
            define(session, &statement).await?;
        }
        Ok(())
    }

    /// Gives tables that keep tombstones as long as Cassandra has it the options that they are made with. Others were chosen by somebody.
    async fn set_options(&self, session: &Session) -> Result<()> {
        for (table, kept) in self.grace(session).await? {
            let Some(options) = table.options_to_set(kept, self.writers_stopped) else { continue };
            let place = Ident::new(table.name());
            let statement = format!("ALTER TABLE {}.{place} WITH {options}", self.keyspace);
            define(session, &statement).await?;
        }
        Ok(())
    }

    /// The names of all tables, with for how long each of them keeps tombstones, seconds, and whether that is too long; `None` for one
    /// that is not there.
    pub(crate) async fn kept(&self, session: &Session) -> Result<Vec<(String, Option<i32>, bool)>> {
        let there = self.grace(session).await?;
        let kept = |table: Made| {
            let of = there.iter().find(|(there, _)| there.name() == table.name());
            let too_long = of.is_some_and(|(table, kept)| table.keeps_too_long(*kept));
            (table.name().to_owned(), of.map(|(_, kept)| *kept), too_long)
        };
        Ok(self.tables().into_iter().map(kept).collect())
    }

    /// For how long each of the tables that are there keeps tombstones, seconds.
    async fn grace(&self, session: &Session) -> Result<Vec<(Made, i32)>> {
        let asked =
            "SELECT table_name, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = ?";
        let failed = |error: &dyn std::fmt::Display| {
            let keyspace = &self.keyspace;
            Error::invalid(format!(
                "keyspace {keyspace}: its tables' options cannot be read: {error}"
            ))
        };
        let answer = session.query_unpaged(asked, (self.keyspace.as_str(),)).await;
        let answer = answer.map_err(|error| failed(&error))?.into_rows_result();
        let answer = answer.map_err(|error| failed(&error))?;
        let rows = answer.rows::<(String, Option<i32>)>().map_err(|error| failed(&error))?;
        let there: BTreeMap<String, i32> =
            rows.flatten().filter_map(|(name, kept)| Some((name, kept?))).collect();
        let tables = self.tables().into_iter();
        Ok(tables
            .filter_map(|table| {
                let kept = *there.get(table.name())?;
                Some((table, kept))
            })
            .collect())
    }

    /// Which of the tables that are there keep tombstones longer than their rows may come back, in words for people, with what to do. A
    /// cluster that does not tell within two seconds has none: whoever connects is not to wait for a warning.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the cluster does not say what they are like.
    #[doc(hidden)]
    pub async fn warning(&self, session: &Session) -> Result<Option<String>> {
        let told = Runtime::system().timeout(WARNED_WITHIN, self.grace(session)).await;
        let Ok(grace) = told else { return Ok(None) };
        let grace = grace?;
        let long = grace.iter().filter(|(table, kept)| table.keeps_too_long(*kept));
        let long: Vec<String> =
            long.map(|(table, kept)| format!("{} ({kept} s)", Ident::new(table.name()))).collect();
        Ok((!long.is_empty()).then(|| {
            format!(
                "in keyspace {} a busy lock will fail by what these tables keep of deleted rows: {}; {SHORTENED}",
                self.keyspace,
                long.join(", ")
            )
        }))
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
        if there.is_none() && driver::is_scylla(session) {
            return Err(self.refused(&self.by_hand(replication)));
        }
        match there.and_then(|there| replication.differs(&there.strategy)) {
            Some(has) => Err(self.refused(&format!(
                "is there with other replicas ({has}), not {replication}; ALTER KEYSPACE changes that, and \
                 needs a repair after it"
            ))),
            None => Ok(()),
        }
    }

    /// Why a keyspace is not made on `ScyllaDB`, and how to make one that can keep locks.
    fn by_hand(&self, replication: &Replication) -> String {
        let (keyspace, options) = (&self.keyspace, replication.cql());
        format!(
            "is not there. ScyllaDB would keep its tables as tablets, and refuses LWT there up to 2025.3, so make it by hand: CREATE \
             KEYSPACE {keyspace} WITH replication = {options} AND tablets = {{'enabled': false}}; then schema --apply without \
             --replication"
        )
    }

    fn refused(&self, what: &str) -> Error {
        Error::invalid(format!("keyspace {} {what}", self.keyspace))
    }
}

/// Executes one statement of the schema.
async fn define(session: &Session, statement: &str) -> Result<()> {
    let clock = Runtime::system().clock;
    let began = clock.now();
    driver::define(session, statement).await.map_err(|fault| match fault {
        Fault::Refused(why) => Error::invalid(format!("{statement}: {why}")),
        Fault::Unknown(why) | Fault::NotDone(why) => Error::Unreachable {
            endpoints: driver::nodes(session),
            waited: clock.now().saturating_since(began),
            last: format!(
                "{statement}: {why}; it may be done all the same: apply the schema again"
            ),
            answered: false,
        },
    })
}

#[cfg(test)]
mod tests {
    use holdfast_mutants::{Mutant, while_armed};

    use super::*;
    use crate::BakeryForm;

    #[test]
    fn a_keyspace_is_made_only_when_its_replication_is_said() {
        assert_eq!(Schema::new("locks").statements().len(), 21);
        let made = Schema::new("Locks").replicated(3).statements();
        assert!(made[0].starts_with("CREATE KEYSPACE IF NOT EXISTS \"Locks\" WITH"), "{made:?}");
        assert!(
            made[1].contains("\"Locks\".\"leases\" (\"name\" text PRIMARY KEY, \"owner\" text"),
            "{made:?}"
        );
    }

    /// Not tested on `ScyllaDB` itself.
    #[test]
    fn on_scylladb_a_keyspace_is_made_by_hand_without_tablets() {
        let why = Schema::new("locks").by_hand(&Replication::Each(3));
        let made = "CREATE KEYSPACE \"locks\" WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3} \
                    AND tablets = {'enabled': false};";
        assert!(why.contains(made), "{why}");
    }

    /// A table of today is the table that `holdfast cassandra schema --replication 3` of 0.1 prints, plus the columns
    /// that are added to it and its options; 0.2 prints those of today without options. Neither has the table of slots.
    #[test]
    fn tables_of_earlier_releases_and_the_columns_added_to_them_are_the_tables_of_today() {
        let of_0_1 = include_str!("../../../../tests/fixtures/0.1/schema.cql");
        let of_0_2 = include_str!("../../../../tests/fixtures/0.2/schema.cql");
        let schema = Schema::new("holdfast").replicated(3);
        let mut now = schema.statements();
        for (statement, table) in now.iter_mut().skip(1).zip(schema.tables()) {
            let options = table.rows.options().unwrap_or_default();
            let options = [format!(" WITH {options}"), format!(" AND {options}")];
            let without = options.iter().find_map(|options| statement.strip_suffix(options));
            *statement = without.unwrap_or(statement).to_owned();
        }
        let slots = now.pop().unwrap();
        assert!(slots.contains("\"holdfast\".\"work_slots\" ("), "{slots}");
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

    /// B5, B10. Deleted rows of locks and processes are gone soon; what has to stay deleted stays so as long as elsewhere.
    #[test]
    fn each_table_keeps_tombstones_for_as_long_as_its_rows_may_come_back() {
        let tables = Schema::new("locks").tables();
        let kept = |seconds: Option<i32>| -> Vec<&str> {
            let with = seconds.map(|kept| format!("gc_grace_seconds = {kept} "));
            let has = |table: &&Made| match &with {
                Some(with) => table.statement().contains(with.as_str()),
                None => !table.statement().contains("gc_grace_seconds"),
            };
            tables.iter().filter(has).map(Made::name).collect()
        };
        let locks = "leases lock_queue lock_main numbers choosing fallback_leases lock_shadow optimistic_tokens work_aside work_slots";
        assert_eq!(kept(Some(300)).join(" "), locks);
        assert_eq!(kept(Some(1_200)), ["locker_modes"]);
        assert_eq!(kept(Some(10_800)), ["tokens", "token_times"]);
        let others = "sequences authority fences global_time work_details work_choosing work_numbers work_hours";
        assert_eq!(kept(None).join(" "), others);
        let leases = tables[0].statement();
        assert!(
            leases.contains("WITH default_time_to_live = 180 AND gc_grace_seconds = 300"),
            "{leases}"
        );
    }

    /// A row without a TTL that comes back would keep its lock for good.
    #[test]
    fn a_table_that_old_clients_may_write_keeps_its_tombstones_until_they_are_stopped() {
        let set = |kept_s, stopped| -> String {
            let tables = Schema::new("locks").tables();
            let set = tables.iter().filter(|one| one.options_to_set(kept_s, stopped).is_some());
            set.map(Made::name).collect::<Vec<_>>().join(" ")
        };
        let ours = "leases locker_modes fallback_leases work_aside work_slots";
        let all = "leases lock_queue lock_main tokens token_times numbers choosing locker_modes fallback_leases lock_shadow \
                   optimistic_tokens work_aside work_slots";
        assert_eq!((set(864_000, false).as_str(), set(864_000, true).as_str()), (ours, all));
        assert_eq!(set(90_000, true), "", "somebody chose it");
        assert_eq!(while_armed(Mutant::TombstonesCutShort, || set(864_000, false)), all);
    }

    #[test]
    fn a_table_keeps_tombstones_too_long_only_if_its_rows_are_to_go_soon() {
        let made = |rows| Made::new("\"Q\" (\"a\" text)".to_owned(), rows);
        assert!(made(Rows::Locks).keeps_too_long(864_000) && made(Rows::Locks).keeps_too_long(301));
        assert!(
            !made(Rows::Locks).keeps_too_long(300) && !made(Rows::Kept).keeps_too_long(864_000)
        );
        assert_eq!(made(Rows::Locks).name(), "Q");
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
            assert!(made[6].contains(&cells("n", "bigint")), "{made:?}");
            assert!(made[7].contains(&cells("c", flag)), "{made:?}");
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
        assert!(made[4].contains(locked), "{made:?}");
        let beats = "\"beats\" (\"who\" text PRIMARY KEY, \"what\" list<text>, \"when\" timestamp)";
        assert!(made[5].contains(beats), "{made:?}");
        let cells = "(\"a\" text, \"b\" text, \"c\" text, PRIMARY KEY (\"a\", \"b\"))";
        let tokens =
            "\"Wanted\" (\"key\" text, \"column1\" text, PRIMARY KEY (\"key\", \"column1\"))";
        for table in [format!("\"tries\" {cells}"), format!("\"holds\" {cells}"), tokens.to_owned()]
        {
            assert!(made.iter().any(|made| made.contains(&table)), "{table}: {made:?}");
        }
    }
}
