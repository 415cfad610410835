//! `holdfastd`: reads the settings, runs the node, reports why it ends.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use holdfast_server::config::{Config, ConfigError, Overrides, Settings};
use holdfast_server::exit::{self, Exit};
use holdfast_server::{node, telemetry};

/// The lock server of Holdfast.
///
/// Without any settings it serves clients on 127.0.0.1:7420 and keeps its data in
/// ./holdfast-data. Every setting is a flag, a variable HOLDFAST_… and a key of the settings
/// file; a flag wins over a variable, a variable over the file, the file over the default.
#[derive(Debug, Parser)]
#[command(version, after_help = exit::HELP, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,

    /// The settings file (TOML). Without it there is none.
    #[arg(long, value_name = "FILE", env = "HOLDFAST_CONFIG")]
    config: Option<PathBuf>,

    #[command(flatten)]
    overrides: Overrides,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Prints the effective settings, or what is wrong with them, and does nothing else.
    CheckConfig {
        /// The settings file (TOML). Without it there is none.
        #[arg(value_name = "FILE", env = "HOLDFAST_CONFIG")]
        config: Option<PathBuf>,

        #[command(flatten)]
        overrides: Overrides,
    },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => Exit::Stopped.into(),
        Err(exit) => exit.into(),
    }
}

fn run() -> Result<(), Exit> {
    let matches = Arguments::command().try_get_matches().map_err(|error| usage(&error))?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(|error| usage(&error))?;
    match (arguments.action, matches.subcommand()) {
        (Some(Action::CheckConfig { config, overrides }), Some((_, matches))) => {
            let settings = load(config.as_deref(), overrides, matches)?;
            print(&settings);
            Ok(())
        }
        _ => serve(&load(arguments.config.as_deref(), arguments.overrides, &matches)?.config),
    }
}

fn load(file: Option<&Path>, overrides: Overrides, matches: &ArgMatches) -> Result<Settings, Exit> {
    Settings::load(file, overrides, matches)
        .map_err(|error: ConfigError| exit::say(Exit::Settings, &error))
}

fn serve(config: &Config) -> Result<(), Exit> {
    telemetry::init(&config.node);
    exit::on_panic();
    let result = node::run(config).map_err(|error| exit::say(error.exit(), &error));
    telemetry::flush();
    result
}

/// clap's own message, with the exit code of this program; a request for help is no error.
fn usage(error: &clap::Error) -> Exit {
    // A closed standard error leaves no way to report that it is closed.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Stopped }
}

fn print(settings: &Settings) {
    // A reader that closed the pipe has read enough, as `head` does.
    let _ = write!(std::io::stdout().lock(), "{settings}");
}
