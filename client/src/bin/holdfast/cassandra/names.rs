//! What tables and columns are called, for deployments that call them otherwise.

use clap::Args;
use holdfast::compat::{Layout, LeaseTable, QueueTables, TokenTables};

/// Names as the server has them, capitals and all: they are quoted, never spliced.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Names of tables and columns")]
pub(super) struct Names {
    /// The leases.
    #[arg(long, value_name = "TABLE", default_value = "leases")]
    lease_table: String,
    /// Their columns: the lock, its owner, its value.
    #[arg(long, num_args = 3, value_names = ["NAME", "OWNER", "VALUE"],
          default_values = ["name", "owner", "value"])]
    lease_columns: Vec<String>,
    /// The sequences.
    #[arg(long, value_name = "TABLE", default_value = "sequences")]
    sequences_table: String,
    /// The places in line.
    #[arg(long, value_name = "TABLE", default_value = "lock_queue")]
    queue_table: String,
    /// Their holders.
    #[arg(long, value_name = "TABLE", default_value = "lock_main")]
    main_table: String,
    /// The columns of both, as column families made through Thrift show them.
    #[arg(long, num_args = 3, value_names = ["KEY", "COLUMN", "VALUE"],
          default_values = ["key", "column1", "value"])]
    queue_columns: Vec<String>,
    /// The tokens.
    #[arg(long, value_name = "TABLE", default_value = "tokens")]
    tokens_table: String,
    /// Their columns: the token, its session, since when.
    #[arg(long, num_args = 3, value_names = ["TOKEN", "SESSION", "TIMESTAMP"],
          default_values = ["token", "service_session_id", "timestamp"])]
    tokens_columns: Vec<String>,
    /// The heartbeats.
    #[arg(long, value_name = "TABLE", default_value = "token_times")]
    token_times_table: String,
    /// Their columns: the session, its tokens, its last heartbeat.
    #[arg(long, num_args = 3, value_names = ["SESSION", "TOKENS", "TIMESTAMP"],
          default_values = ["service_session_id", "tokens", "timestamp"])]
    token_times_columns: Vec<String>,
}

impl Names {
    pub(super) fn layout(&self) -> Layout {
        let [name, owner, value] = three(&self.lease_columns);
        let lease = LeaseTable::named(&self.lease_table, name, owner, value);
        let tokens_columns = three(&self.tokens_columns);
        let times_columns = three(&self.token_times_columns);
        Layout {
            lease: lease.with_sequences(&self.sequences_table),
            queue: QueueTables::named(
                &self.queue_table,
                &self.main_table,
                three(&self.queue_columns),
            ),
            tokens: TokenTables::named(
                &self.tokens_table,
                tokens_columns,
                &self.token_times_table,
                times_columns,
            ),
        }
    }
}

/// As many as the command line takes.
fn three(names: &[String]) -> [&str; 3] {
    [0, 1, 2].map(|at| names.get(at).map_or("", String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;
    use holdfast::compat::Schema;

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

    /// Also before a subcommand: three, not as many as come.
    #[test]
    fn three_columns_are_named_at_once() {
        let line = ["line", "--queue-columns", "a", "b", "C d"];
        let layout = Line::try_parse_from(line).unwrap().names.layout();
        let made = Schema::new("k", None).named(layout).statements();
        let main =
            "\"lock_main\" (\"a\" text, \"b\" text, \"C d\" text, PRIMARY KEY (\"a\", \"b\"))";
        assert!(made[3].ends_with(main), "{made:?}");

        let whole = "holdfast cassandra --contact-points x --keyspace k --queue-columns a b c queue try n -- t";
        assert!(Cli::try_parse_from(whole.split(' ')).is_ok());
    }
}
