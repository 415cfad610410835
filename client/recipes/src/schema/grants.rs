//! What the processes of a deployment have to be allowed in the keyspace, as roles of Cassandra.

use super::options::Made;
use super::{Layout, Schema};
use crate::fallback;
use crate::statement::Ident;

/// What one process does there, and what its role has to be granted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// The role: a name to begin with.
    pub role: &'static str,
    /// What for.
    pub does: String,
    /// The statements, in CQL.
    pub statements: Vec<String>,
}

/// Something that a client does, and the tables that it needs for it.
pub(crate) struct Need {
    pub(crate) does: &'static str,
    pub(crate) tables: Vec<String>,
}

/// Rights on a table. A condition (LWT) reads, so whoever writes under one needs both.
#[derive(Clone, Copy)]
enum Rights {
    Reads,
    Writes,
}

impl Rights {
    fn permissions(self) -> &'static [&'static str] {
        match self {
            Self::Reads => &["SELECT"],
            Self::Writes => &["SELECT", "MODIFY"],
        }
    }
}

const CLIENT: &str = "holdfast_client";
const CLOCK: &str = "holdfast_clock";
const HOUSEKEEPER: &str = "holdfast_housekeeper";
const MIGRATE: &str = "holdfast_migrate";
const SERVER: &str = "holdfast_server";
const SCHEMA: &str = "holdfast_schema";
const DOCTOR: &str = "holdfast_doctor";

impl Schema {
    /// The grants that each process needs, and no others. A client needs those of its recipe alone, and those of modes and fallback if it uses them.
    pub fn grants(&self) -> Vec<Grants> {
        let tables = Tables::of(&self.layout);
        let mut grants = vec![self.schema_grants()];
        grants.extend(self.client_grants());
        grants.extend(self.other_grants(&tables));
        grants
    }

    /// What clients do, each with the tables that it reads and changes.
    pub(crate) fn needs(&self) -> Vec<Need> {
        let tables = Tables::of(&self.layout);
        let [queue, tokens, bakery, shadow, optimistic] = tables.recipes;
        let need = |does, tables| Need { does, tables };
        vec![
            need("locks by lease", tables.leases.clone().into()),
            // A draw takes the lease of the same name.
            need(
                "numbers of sequences by lease",
                [tables.leases.clone(), tables.sequences].concat(),
            ),
            need("locks by queue", queue),
            need("locks by tokens-lwt", tokens),
            need("locks by bakery", bakery),
            need("locks by shadow", shadow),
            need("locks by tokens-optimistic", optimistic),
            need("a Locker, or --mode, in a scope that moves", tables.modes.into()),
            need("a scope with fallback", tables.fallback.into()),
            need("a queue of work", tables.work.into()),
        ]
    }

    fn client_grants(&self) -> Vec<Grants> {
        let granted =
            |need: Need| self.granted(CLIENT, need.does, &[(Rights::Writes, &need.tables)]);
        self.needs().into_iter().map(granted).collect()
    }

    fn other_grants(&self, tables: &Tables) -> [Grants; 8] {
        let Tables { leases, sequences, modes, fallback, time, .. } = tables;
        let [authority, held, _] = fallback.each_ref().map(std::slice::from_ref);
        let scanned: Vec<String> =
            leases.iter().chain(tables.recipes.iter().flatten()).cloned().collect();
        let [_, tokens, ..] = &tables.recipes;
        let moved = [modes.as_slice(), &scanned].concat();
        [
            self.granted(CLOCK, "a replica of the time service", &[(Rights::Writes, time)]),
            self.granted(
                HOUSEKEEPER,
                "frees the tokens of dead sessions",
                &[(Rights::Writes, tokens)],
            ),
            self.granted(MIGRATE, "plan, import and verify", &[(Rights::Reads, &scanned)]),
            self.granted(
                MIGRATE,
                "cutover, and rollback, which writes holds back",
                &[(Rights::Writes, &moved), (Rights::Reads, authority)],
            ),
            self.granted(MIGRATE, "sequences, besides cutover", &[(Rights::Writes, sequences)]),
            Grants {
                role: MIGRATE,
                does: "cutover --revoked-role, besides the role itself; since Cassandra 4.0"
                    .to_owned(),
                statements: vec![format!("GRANT SELECT ON system_views.settings TO {MIGRATE}")],
            },
            self.granted(
                SERVER,
                "scopes with fallback",
                &[(Rights::Writes, authority), (Rights::Reads, held)],
            ),
            Grants {
                role: DOCTOR,
                does: "doctor, for what the nodes say of themselves; since Cassandra 4.0"
                    .to_owned(),
                statements: vec![format!("GRANT SELECT ON KEYSPACE system_views TO {DOCTOR}")],
            },
        ]
    }

    fn schema_grants(&self) -> Grants {
        let keyspace = &self.keyspace;
        let grant = |right| format!("GRANT {right} ON KEYSPACE {keyspace} TO {SCHEMA}");
        let statements = ["CREATE", "ALTER"].map(grant).to_vec();
        Grants {
            role: SCHEMA,
            does: "schema --apply in a keyspace that is there".to_owned(),
            statements,
        }
    }

    fn granted(&self, role: &'static str, does: &str, on: &[(Rights, &[String])]) -> Grants {
        let keyspace = &self.keyspace;
        let statements = on.iter().flat_map(|(rights, tables)| {
            tables.iter().flat_map(|table| {
                let table = Ident::new(table);
                let grant =
                    move |right: &&str| format!("GRANT {right} ON {keyspace}.{table} TO {role}");
                rights.permissions().iter().map(grant).collect::<Vec<_>>()
            })
        });
        Grants { role, does: does.to_owned(), statements: statements.collect() }
    }
}

/// The names of the tables.
struct Tables {
    leases: [String; 1],
    sequences: [String; 1],
    /// Of the recipes besides the lease, in the order of the command line.
    recipes: [Vec<String>; 5],
    modes: [String; 1],
    /// Authority, holds, fences.
    fallback: [String; 3],
    work: [String; 6],
    time: [String; 1],
}

impl Tables {
    fn of(layout: &Layout) -> Self {
        fn named<const N: usize>(made: [String; N]) -> [String; N] {
            made.map(|made| Made::named(&made).to_owned())
        }
        let [leases, sequences] = named(layout.lease.created());
        Self {
            leases: [leases],
            sequences: [sequences],
            recipes: [
                named(layout.queue.created()).into(),
                named(layout.tokens.created()).into(),
                named(layout.bakery.created()).into(),
                named(layout.shadow.created()).into(),
                named([layout.optimistic.created()]).into(),
            ],
            modes: named([layout.modes.created()]),
            fallback: named(fallback::TABLES.map(|(made, _)| made.to_owned())),
            work: named(layout.work.created()),
            time: named([layout.time.created()]),
        }
    }
}
