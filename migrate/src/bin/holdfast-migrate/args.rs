//! The command line.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use holdfast::Client;
use holdfast_cli::duration;
use holdfast_cli::failure::Failure;
use holdfast_cli::place::{NameArgs, Reach, Taken};
use holdfast_cli::tls::TlsArgs;
use holdfast_migrate::layout::{Layout, MOVED};
use holdfast_migrate::native::Native;
use holdfast_migrate::plan::Rules;
use holdfast_recipes::modes::MODES;
use holdfast_recipes::recipe::{Naming, RecipeSpec};
use holdfast_recipes::{Recipe, Stage};

/// Moves lock rows from Cassandra into Holdfast.
#[derive(Debug, Parser)]
#[command(name = "holdfast-migrate", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Print JSON, for programs.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what would be imported, what would not and why, and what contradicts itself.
    ///
    /// Changes nothing. With --json a line for each row, then a summary. Each lock is shown as it was at
    /// some instant of the read. Exit codes: 0 read to the end; 122 refused: no such keyspace or table,
    /// a table that is not the recipe's, no permission; 123 no node could be reached, or a table not be
    /// read; 125 an error of holdfast-migrate itself, or a wrong command line.
    Plan(PlanArgs),
    /// Import what is held and waited for, each owner's as a session of its own that runs out when its
    /// rows would have; its owner claims it (`holdfast lock --claim`).
    ///
    /// Importing again changes nothing, so it may be ended at any point and begun again, with --resume
    /// where it was. Exit codes: 0 everything that `plan` shows was imported, or was there before; 1 the
    /// store refused some of it, each shown; 122 refused: as of plan, or clients that still write, or a
    /// checkpoint of another import; 123 a cluster could not be reached, and some may be imported; 125
    /// an error of holdfast-migrate itself, or a wrong command line.
    Import(ImportArgs),
    /// Compare the tables with the store, and list every difference. Changes nothing.
    ///
    /// What was imported and has no row in these tables differs: if locks came from several
    /// recipes, name those of this one by --prefix. What differs is read once more, three seconds
    /// later. While a client still writes, or claims what was imported, there are differences that
    /// mean no harm. Exit codes: 0 no difference; 1 some; 122 and 123 as of plan; 125 an error of
    /// holdfast-migrate itself, or a wrong command line.
    Verify(VerifyArgs),
    /// Move a scope on, stage by stage: from `cassandra` to `both`, and from there to `native`.
    ///
    /// Shows where it is and who is in which mode; checks before each step what has to hold for it, and
    /// names what is in the way; imports what old clients have left, compares, and says what to do next.
    /// You change the processes yourself, one by one. May be ended anywhere and begun again. Exit
    /// codes: 0 the scope is there, and every process with it; 122 refused: something is in the
    /// way, by name, or as of plan; 123 a cluster could not be reached, and it goes on from where
    /// it is; 125 an error of holdfast-migrate itself, or a wrong command line.
    Cutover(CutoverArgs),
    /// Move a scope back, stage by stage: from `native` to `both`, and from there to `cassandra`.
    ///
    /// Writes rows of the recipe for what is held natively and has none, so that old clients are kept out by
    /// it. May be ended anywhere and begun again. Exit codes as of cutover.
    Rollback(RollbackArgs),
    /// Give the sequences of a scope to the native store, so that their numbers go on there, or bring them back.
    ///
    /// Whichever the stage of the scope, all its processes draw from where this command has put them, through a Locker; nobody draws a
    /// number twice. A native client alone may draw from them once they are there. On the way back nobody draws from them for half a
    /// minute. A scope with fallback keeps its sequences in Cassandra. May be ended anywhere and begun again. Exit codes: 0 all are there;
    /// 1 some stay where they were, each shown; 122 refused; 123 a cluster could not be reached, and it goes on from where it is; 125 an
    /// error of holdfast-migrate itself, or a wrong command line.
    Sequences(SequencesArgs),
}

/// Of `sequences`.
#[derive(Debug, Args)]
pub(crate) struct SequencesArgs {
    /// What the names of the sequences begin with, as the scope's processes have set it; empty: all names.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) scope: String,
    /// Where to.
    #[arg(long, value_enum, required_unless_present = "dry_run")]
    pub(crate) to: Option<SequencesTo>,
    /// Change nothing: show where each of them is.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) names: NameArgs<OfSequences>,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

/// Where sequences can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SequencesTo {
    /// The native store
    Native,
    /// The table of sequences
    Cassandra,
}

/// The names of the tables of sequences and modes.
#[derive(Clone, Debug)]
pub(crate) struct OfSequences;

impl Taken for OfSequences {
    fn namings() -> Vec<Naming> {
        let leases = Recipe::Lease.spec().names.iter();
        let sequences = leases.filter(|naming| naming.option == "sequences-table").copied();
        sequences.chain([MODES]).collect()
    }
}

/// Of `cutover`.
#[derive(Debug, Args)]
pub(crate) struct CutoverArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// How far.
    #[arg(long, value_parser = stages(&FORWARD), default_value = "native")]
    pub(crate) to: Stage,
    /// All clients that know only the recipe are stopped. Without this statement no scope leaves
    /// `both` for `native`, because only you can know it. The rows they left are imported; if one
    /// of them writes a row meanwhile, the command ends.
    #[arg(long)]
    pub(crate) writers_stopped: bool,
    /// In place of --writers-stopped: all clients that know only the recipe log in to Cassandra as this role, and its `MODIFY` on
    /// the recipe's tables is revoked. The command checks it at every node, and waits until each one goes by it. Locks that those
    /// clients hold end with their TTL. Needs the login of a superuser, or of a role that was granted this one.
    #[arg(long, value_name = "NAME", conflicts_with = "writers_stopped")]
    pub(crate) revoked_role: Option<String>,
    /// For how long a node goes by what it knew of a role (`permissions_validity` of cassandra.yaml) [default: each node is asked].
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "revoked_role")]
    pub(crate) permissions_validity: Option<Duration>,
    /// Leave out what cannot be imported: natively these locks are free from then on, even if a
    /// client holds them now.
    #[arg(long)]
    pub(crate) leave_out: bool,
    #[command(flatten)]
    pub(crate) speed: Speed,
}

/// Of `rollback`.
#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,
    /// How far back.
    #[arg(long, value_parser = stages(&BACK), default_value = "cassandra")]
    pub(crate) to: Stage,
    /// Also write rows for the holds of live native clients, which are otherwise in the way. These
    /// rows stand for this time and nobody renews them: old clients do not see a hold that lasts
    /// longer. Once such a hold has ended, rollback again takes its row back.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) live_for: Option<Duration>,
}

/// Where `cutover` can go.
const FORWARD: [(Stage, &str); 3] = [
    (Stage::Both, "Everybody may lock in both stores"),
    (Stage::Native, "Nobody locks in Cassandra any more"),
    (
        Stage::Fallback,
        "As native, and processes may fall back on Cassandra while no server serves the scope",
    ),
];

/// Where `rollback` can go.
const BACK: [(Stage, &str); 3] = [
    (Stage::Native, "Nobody falls back any more"),
    (Stage::Both, "Everybody locks in both stores again"),
    (Stage::Cassandra, "Old clients may come again"),
];

fn stages(to: &[(Stage, &'static str)]) -> impl TypedValueParser<Value = Stage> {
    let value =
        |(stage, help): &(Stage, &'static str)| PossibleValue::new(stage.as_str()).help(*help);
    PossibleValuesParser::new(to.iter().map(value))
        .try_map(|name| Stage::parse(&name).ok_or("no stage of a scope"))
}

/// A scope, and both its stores.
#[derive(Debug, Args)]
pub(crate) struct ScopeArgs {
    /// What the names of the scope's locks begin with, as its processes have set it; empty: all
    /// names.
    #[arg(long = "scope", value_name = "PREFIX", required_unless_present = "scopes")]
    name: Option<String>,
    /// Several scopes, one after the other: a file with one on each line. Where something is in the way of one, the others go on, and
    /// the exit code is 122.
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    scopes: Option<PathBuf>,
    /// Wait so long, in all, for what is in the way: 10m, for instance.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    pub(crate) wait: Duration,
    /// Change nothing: show where the scope is, what the next step would be, and what is in its way. Exit codes: 0 nothing is; 122
    /// something is.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) modes: NameArgs<OfModes>,
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

impl ScopeArgs {
    /// Whether its scopes stand in a file.
    pub(crate) fn are_several(&self) -> bool {
        self.scopes.is_some()
    }

    /// The scopes, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>, Failure> {
        let Some(file) = &self.scopes else { return Ok(self.name.iter().cloned().collect()) };
        let own = |error: &dyn Display| Failure::own(&format!("reading {}", file.display()), error);
        let text = std::fs::read_to_string(file).map_err(|error| own(&error))?;
        let names = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            return Err(own(&"it names no scope; it has one on each line"));
        }
        Ok(names)
    }
}

/// The name of the table of modes.
#[derive(Clone, Debug)]
pub(crate) struct OfModes;

impl Taken for OfModes {
    fn namings() -> Vec<Naming> {
        vec![MODES]
    }
}

/// How fast an import may be.
#[derive(Debug, Args)]
pub(crate) struct Speed {
    /// Import at most so many rows a second [default: as fast as they come].
    #[arg(long, value_name = "ROWS")]
    pub(crate) rate: Option<NonZeroU32>,
    /// Send so many requests at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=64))]
    pub(crate) requests_at_once: u32,
}

/// Of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Only locks whose names begin with this.
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) modes: NameArgs<OfModes>,
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) servers: Servers,
}

/// Where the native store is.
#[derive(Debug, Args)]
pub(crate) struct Servers {
    /// The servers of Holdfast: `host:port`, `dns:///host:port` or `unix:PATH`, several separated by commas.
    #[arg(long, env = "HOLDFAST_ENDPOINTS", default_value = "127.0.0.1:7420")]
    endpoints: String,
    #[command(flatten)]
    tls: TlsArgs,
}

impl Servers {
    pub(crate) fn native(&self) -> Result<Native, Failure> {
        let endpoints = holdfast_cli::endpoints(&self.endpoints);
        Ok(Native::new(&self.tls.over(Client::builder().endpoints(endpoints))?)?)
    }
}

/// Of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Only locks whose names begin with this.
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) servers: Servers,
    #[command(flatten)]
    pub(crate) speed: Speed,
    #[command(flatten)]
    pub(crate) modes: NameArgs<OfModes>,
    /// Write into this file what is done, and go on from there if it exists. What was done more than two minutes ago is read again: its
    /// rows were renewed since, or are others.
    #[arg(long, value_name = "FILE")]
    pub(crate) resume: Option<PathBuf>,
    /// All clients other than Holdfast's are stopped: import even if they changed rows lately.
    #[arg(long)]
    pub(crate) writers_stopped: bool,
}

/// Of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Only locks whose names begin with this.
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Show the first so many of each kind of what is skipped or contradicts itself.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) show: usize,
}

/// Which rows, and how they are read.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// The recipe that wrote the rows.
    #[arg(long, value_parser = recipes())]
    from: Recipe,
    /// Tokens: how long a session may stand without a heartbeat, as the housekeeper has it.
    /// Sessions of Holdfast's client that state a longer time have that.
    #[arg(long, value_parser = duration, default_value = "180s")]
    grace: Duration,
    /// Read the tables in so many ranges of tokens: more than the nodes have, so that each is short.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..=100_000))]
    pub(crate) ranges: u32,
    /// Read so many ranges at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) at_once: u32,
    #[command(flatten)]
    tables: NameArgs<OfLocks>,
}

/// The names of the tables with locks.
#[derive(Clone, Debug)]
struct OfLocks;

impl Taken for OfLocks {
    fn namings() -> Vec<Naming> {
        let is_read = |naming: &Naming, recipe: &RecipeSpec| {
            recipe.tables.iter().any(|table| [table.name, table.columns].contains(naming))
        };
        let of = |recipe: Recipe| {
            let spec = recipe.spec();
            spec.names.iter().copied().filter(|naming| is_read(naming, spec))
        };
        MOVED.into_iter().flat_map(of).collect()
    }
}

/// The recipes under the names that their tables have in common.
fn recipes() -> impl TypedValueParser<Value = Recipe> {
    let values = MOVED.map(|recipe| PossibleValue::new(recipe.family()).help(recipe.spec().rows));
    PossibleValuesParser::new(values).try_map(|name| {
        let found = MOVED.into_iter().find(|recipe| recipe.family() == name);
        found.ok_or("no recipe whose rows can be moved")
    })
}

impl Source {
    pub(crate) fn rules(&self, prefix: &str) -> Rules {
        Rules::new(prefix, self.grace)
    }

    /// The number of ranges, and of those read at once.
    pub(crate) fn ranges(&self) -> (usize, usize) {
        (number(self.ranges), number(self.at_once))
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout { recipe: self.from, names: self.tables.names.clone() }
    }
}

/// Converts a number that is bounded far below `usize`.
pub(crate) fn number(value: u32) -> usize {
    usize::try_from(value).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn tables_have_the_names_that_are_given() {
        let line = "holdfast-migrate --contact-points a --keyspace k plan --from bakery \
                    --bakery-columns a b c --numbers-table N --choosing-table C";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Plan(args) = cli.command else { panic!("{:?}", cli.command) };
        let layout = args.source.layout();
        assert_eq!(layout.table(0), ("N", ["a", "b", "c"]));
        assert_eq!(layout.table(1), ("C", ["a", "b", "c"]));
        assert_eq!(layout.on("k"), "bakery k.N k.C");
    }

    #[test]
    fn an_import_is_as_fast_as_it_is_told() {
        let line = "holdfast-migrate --contact-points a --keyspace k import --from lease --prefix a \
                    --endpoints b:7420 --rate 100";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Import(args) = cli.command else { panic!("{:?}", cli.command) };
        assert_eq!(args.speed.rate.map(NonZeroU32::get), Some(100));
    }
}
