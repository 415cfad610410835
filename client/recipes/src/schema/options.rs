//! What tables are made with besides their columns.
//!
//! A row that is deleted leaves a tombstone for `gc_grace_seconds`, ten days unless a table says otherwise. A read walks the tombstones of its partition, and fails at
//! 100,000: a lock that is taken and given back at full speed came so far in a quarter of an hour, and then nobody got it for ten days. A tombstone
//! is wanted for as long as a replica that missed the deletion may bring the row back.

use holdfast_mutants::mutant;

/// What becomes of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// They are deleted with their hold or wait, and end with its TTL at the latest: 180 s, and 60 s for clocks. One that a replica brings back keeps
    /// others out until then, as that of a dead client does.
    Locks,
    /// The same, in a table that the articles have too. Their clients write rows without a TTL: of one that they deleted, and that a replica brings back
    /// which was away for longer than tombstones are kept, nothing ever frees the lock. A table that is there keeps its tombstones
    /// until the operator says that those clients are stopped.
    LocksOfOldClients,
    /// The same of a process of a scope, whose TTL is 15 min.
    Processes,
    /// They are deleted, and never end by themselves. One that a replica brings back is freed by the housekeeper, as that of a dead session is. A replica is
    /// told what it missed for three hours (`max_hint_window`). That of an old client, whose housekeeper looks at nothing twice, stays: as of those above.
    Sessions,
    /// They are deleted, and say where to look: one that a replica brings back is deleted again, or leads to nothing.
    Lists,
    /// They stay, or should not come back at all: as Cassandra has it.
    Kept,
}

/// Cassandra's own `gc_grace_seconds`, ten days: nobody has chosen it for a table.
const USUAL_S: i32 = 864_000;

impl Rows {
    /// For how long a table keeps tombstones.
    fn gc_grace_s(self) -> Option<i32> {
        match self {
            Self::Locks | Self::LocksOfOldClients | Self::Lists => Some(300),
            Self::Processes => Some(1_200),
            Self::Sessions => Some(10_800),
            Self::Kept => None,
        }
    }

    /// Whether a table that is there gets the options of a new one.
    fn may_be_set(self, writers_stopped: bool) -> bool {
        let is_the_articles = matches!(self, Self::LocksOfOldClients | Self::Sessions);
        !is_the_articles || writers_stopped || mutant!(TombstonesCutShort)
    }

    /// The options of the table. Levels: few rows, written again and again, and read with every write. A file of tombstones alone is looked at after as long as they are kept, not
    /// after a day.
    pub(super) fn options(self) -> Option<String> {
        self.gc_grace_s().map(|kept| {
            format!(
                "gc_grace_seconds = {kept} AND compaction = {{'class': 'LeveledCompactionStrategy', \
                 'tombstone_compaction_interval': '{kept}', 'unchecked_tombstone_compaction': 'true'}}"
            )
        })
    }
}

/// A table, as `CREATE TABLE` has it after the keyspace, and what becomes of its rows.
pub(super) struct Made {
    pub(super) created: String,
    pub(super) rows: Rows,
}

impl Made {
    pub(super) fn new(created: String, rows: Rows) -> Self {
        Self { created, rows }
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        Self::named(&self.created)
    }

    /// The name of the table that is made so.
    pub(super) fn named(created: &str) -> &str {
        let named = created.split_once("\" (").map_or("", |(name, _)| name);
        named.trim_start_matches('"')
    }

    /// Whether a table of these rows keeps tombstones longer than a deleted row may come back.
    pub(super) fn keeps_too_long(&self, kept_s: i32) -> bool {
        self.rows.gc_grace_s().is_some_and(|enough| kept_s > enough)
    }

    /// The options that it gets if it is there already, and nobody has chosen for how long it keeps tombstones.
    pub(super) fn options_to_set(&self, kept_s: i32, writers_stopped: bool) -> Option<String> {
        let may = kept_s == USUAL_S && self.rows.may_be_set(writers_stopped);
        self.rows.options().filter(|_| may)
    }

    /// The rest of its `CREATE TABLE`.
    pub(super) fn statement(&self) -> String {
        let Self { created, rows } = self;
        match rows.options() {
            None => created.clone(),
            Some(options) if created.contains(" WITH ") => format!("{created} AND {options}"),
            Some(options) => format!("{created} WITH {options}"),
        }
    }
}
