//! Names of tables and columns, for deployments with other names than the defaults.

use clap::Args;
use holdfast_recipes::{
    BakeryTables, Layout, LeaseTable, ModesTable, OptimisticTable, QueueTables, ShadowTables,
    TimeTable, TokenTables, WorkTables,
};

/// Names as the server has them, capitals and all: they are quoted, never spliced.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Names of tables and columns")]
pub struct Names {
    #[command(flatten)]
    lease: LeaseNames,
    /// The sequences.
    #[arg(long, value_name = "TABLE", default_value = "sequences")]
    sequences_table: String,
    #[command(flatten)]
    queue: QueueNames,
    #[command(flatten)]
    tokens: TokenNames,
    #[command(flatten)]
    bakery: BakeryNames,
    #[command(flatten)]
    shadow: ShadowNames,
    #[command(flatten)]
    optimistic: OptimisticNames,
    /// The modes of processes that move to the native store.
    #[arg(long, value_name = "TABLE", default_value = "locker_modes")]
    modes_table: String,
    #[command(flatten)]
    time: TimeNames,
    #[command(flatten)]
    work: WorkNames,
}

/// Of the leases.
#[derive(Clone, Debug, Args)]
pub struct LeaseNames {
    /// The leases.
    #[arg(long, value_name = "TABLE", default_value = "leases")]
    pub lease_table: String,
    /// Their columns: the lock, its owner, its value.
    #[arg(long, num_args = 3, value_names = ["NAME", "OWNER", "VALUE"],
          default_values = ["name", "owner", "value"])]
    pub lease_columns: Vec<String>,
}

/// Of the queues.
#[derive(Clone, Debug, Args)]
pub struct QueueNames {
    /// The places in the queue.
    #[arg(long, value_name = "TABLE", default_value = "lock_queue")]
    pub queue_table: String,
    /// Their holders.
    #[arg(long, value_name = "TABLE", default_value = "lock_main")]
    pub main_table: String,
    /// The columns of both, as column families made through Thrift show them.
    #[arg(long, num_args = 3, value_names = ["KEY", "COLUMN", "VALUE"],
          default_values = ["key", "column1", "value"])]
    pub queue_columns: Vec<String>,
}

/// Of the shadow rows.
#[derive(Clone, Debug, Args)]
pub struct ShadowNames {
    /// The shadow rows. The main rows and the columns of both are those of the queue.
    #[arg(long, value_name = "TABLE", default_value = "lock_shadow")]
    pub shadow_table: String,
}

/// Of the optimistic tokens.
#[derive(Clone, Debug, Args)]
pub struct OptimisticNames {
    /// The optimistic tokens.
    #[arg(long, value_name = "TABLE", default_value = "optimistic_tokens")]
    optimistic_table: String,
    /// Their columns: the token, the session that wants it.
    #[arg(long, num_args = 2, value_names = ["TOKEN", "SESSION"],
          default_values = ["token", "service_session_id"])]
    optimistic_columns: Vec<String>,
}

/// Of the tokens.
#[derive(Clone, Debug, Args)]
pub struct TokenNames {
    /// The tokens.
    #[arg(long, value_name = "TABLE", default_value = "tokens")]
    pub tokens_table: String,
    /// Their columns: the token, its session, since when.
    #[arg(long, num_args = 3, value_names = ["TOKEN", "SESSION", "TIMESTAMP"],
          default_values = ["token", "service_session_id", "timestamp"])]
    pub tokens_columns: Vec<String>,
    /// The heartbeats.
    #[arg(long, value_name = "TABLE", default_value = "token_times")]
    pub token_times_table: String,
    /// Their columns: the session, its tokens, its last heartbeat.
    #[arg(long, num_args = 3, value_names = ["SESSION", "TOKENS", "TIMESTAMP"],
          default_values = ["service_session_id", "tokens", "timestamp"])]
    pub token_times_columns: Vec<String>,
}

/// Of the bakery.
#[derive(Clone, Debug, Args)]
pub struct BakeryNames {
    /// The numbers of the bakery.
    #[arg(long, value_name = "TABLE", default_value = "numbers")]
    pub numbers_table: String,
    /// The processes that are choosing a number.
    #[arg(long, value_name = "TABLE", default_value = "choosing")]
    pub choosing_table: String,
    /// The columns of both, as column families made through Thrift show them.
    #[arg(long, num_args = 3, value_names = ["KEY", "COLUMN", "VALUE"],
          default_values = ["key", "column1", "value"])]
    pub bakery_columns: Vec<String>,
}

/// Of the time service.
#[derive(Clone, Debug, Args)]
pub struct TimeNames {
    /// The time of the time service's replicas.
    #[arg(id = "time-table", long, value_name = "TABLE", default_value = "global_time")]
    table: String,
    /// Its columns: the cell's name, its value.
    #[arg(id = "time-columns", long, num_args = 2, value_names = ["NAME", "VALUE"],
          default_values = ["name", "value"])]
    columns: Vec<String>,
    /// The cell; each cell is a separate time.
    #[arg(id = "time-cell", long, value_name = "NAME", default_value = "GlobalTime")]
    cell: String,
}

impl TimeNames {
    fn table(&self) -> TimeTable {
        let [name, value] = of_columns(&self.columns);
        TimeTable::named(&self.table, name, value).with_cell(&self.cell)
    }
}

/// Of the work queues.
#[derive(Clone, Debug, Args)]
pub struct WorkNames {
    /// The contents of the items of work, and their attempts.
    #[arg(long, value_name = "TABLE", default_value = "work_details")]
    pub work_details_table: String,
    /// Which workers choose a number for an item.
    #[arg(long, value_name = "TABLE", default_value = "work_choosing")]
    pub work_choosing_table: String,
    /// The items in order, with the workers' numbers.
    #[arg(long, value_name = "TABLE", default_value = "work_numbers")]
    pub work_numbers_table: String,
    /// The hours in which there are items.
    #[arg(long, value_name = "TABLE", default_value = "work_hours")]
    pub work_hours_table: String,
    /// The items that were set aside as dead letters.
    #[arg(long, value_name = "TABLE", default_value = "work_aside")]
    pub work_aside_table: String,
}

impl WorkNames {
    fn tables(&self) -> WorkTables {
        WorkTables::named([
            &self.work_details_table,
            &self.work_choosing_table,
            &self.work_numbers_table,
            &self.work_hours_table,
            &self.work_aside_table,
        ])
    }
}

impl Names {
    /// The tables of the recipes under these names.
    pub fn layout(&self) -> Layout {
        let Self { lease, sequences_table, queue, tokens, bakery, shadow, optimistic, .. } = self;
        let Self { modes_table, time, work, .. } = self;
        let [name, owner, value] = of_columns(&lease.lease_columns);
        let cells = of_columns(&queue.queue_columns);
        let [token, session, _] = of_columns(&optimistic.optimistic_columns);
        Layout {
            lease: LeaseTable::named(&lease.lease_table, name, owner, value)
                .with_sequences(sequences_table),
            queue: QueueTables::named(&queue.queue_table, &queue.main_table, cells),
            shadow: ShadowTables::named(&shadow.shadow_table, &queue.main_table, cells),
            optimistic: OptimisticTable::named(&optimistic.optimistic_table, [token, session]),
            tokens: TokenTables::named(
                &tokens.tokens_table,
                of_columns(&tokens.tokens_columns),
                &tokens.token_times_table,
                of_columns(&tokens.token_times_columns),
            ),
            bakery: BakeryTables::named(
                &bakery.numbers_table,
                &bakery.choosing_table,
                of_columns(&bakery.bakery_columns),
            ),
            modes: ModesTable::named(modes_table),
            time: time.table(),
            work: work.tables(),
        }
    }
}

/// The names as an array; the command line takes exactly as many.
pub fn of_columns<const N: usize>(names: &[String]) -> [&str; N] {
    std::array::from_fn(|at| names.get(at).map_or("", String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use holdfast_recipes::{Schema, TimeTable};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        names: Names,
    }

    #[test]
    fn without_a_word_the_names_are_those_of_the_seeds() {
        let line = Line::try_parse_from(["line"]).unwrap();
        let usual = Schema::new("k", None).statements();
        assert_eq!(Schema::new("k", None).named(line.names.layout()).statements(), usual);
    }

    /// Also before a subcommand: exactly three values.
    #[test]
    fn three_columns_are_named_at_once() {
        let line = ["line", "--queue-columns", "a", "b", "C d", "--optimistic-columns", "e", "f"];
        let layout = Line::try_parse_from(line).unwrap().names.layout();
        let made = Schema::new("k", None).named(layout).statements();
        let main =
            "\"lock_main\" (\"a\" text, \"b\" text, \"C d\" text, PRIMARY KEY (\"a\", \"b\"))";
        assert!(made[3].ends_with(main), "{made:?}");
        let tokens = "\"optimistic_tokens\" (\"e\" text, \"f\" text, PRIMARY KEY (\"e\", \"f\"))";
        assert!(made.iter().any(|made| made.ends_with(tokens)), "{made:?}");
    }

    #[test]
    fn the_cell_of_the_time_is_named_with_its_table() {
        let line =
            ["line", "--time-table", "t", "--time-columns", "n", "v", "--time-cell", "Another"];
        let layout = Line::try_parse_from(line).unwrap().names.layout();
        let made = Schema::new("k", None).named(layout.clone()).statements();
        let time = "\"t\" (\"n\" text PRIMARY KEY, \"v\" bigint)";
        assert!(made.iter().any(|made| made.ends_with(time)), "{made:?}");
        let named = TimeTable::named("t", "n", "v").with_cell("Another");
        assert_eq!(layout.time, named);
    }
}
