//! `holdfastd`: reads the settings, runs the node, reports why it ends.

use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use clap_mangen::Man;
use holdfast_runtime::{Runtime, core_dumps, version};
use holdfast_server::config::{Config, ConfigError, Overrides, Settings};
use holdfast_server::exit::{self, Exit};
use holdfast_server::{node, restore, telemetry, tls, traces};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit, umask};

/// The lock server of Holdfast.
///
/// Without any settings it serves clients on 127.0.0.1:7420 and keeps its data in
/// ./holdfast-data. Every setting is a flag, a variable HOLDFAST_… and a key of the settings
/// file; a flag wins over a variable, a variable over the file, the file over the default.
#[derive(Debug, Parser)]
#[command(name = "holdfastd", version, after_help = exit::HELP, args_conflicts_with_subcommands = true)]
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

        /// The same, as it is said to start the node.
        #[arg(long = "config", value_name = "FILE")]
        as_started: Option<PathBuf>,

        #[command(flatten)]
        overrides: Box<Overrides>,
    },
    /// Makes the data folder of this node from a backup (`holdfast cluster backup`): that of the first
    /// member of a new cluster.
    ///
    /// The old cluster must never run again. Values come back, marked as suspect; roles, identities, bearer
    /// tokens, quotas, limits and scopes too. Sessions, holds and waits do not. The new cluster grants no
    /// lock until no client of the old one can rely on a hold; its tokens are larger than all before.
    Restore {
        /// The backup.
        #[arg(value_name = "BACKUP")]
        backup: PathBuf,

        /// Begin tokens in this epoch instead of with the clock: above any epoch that the old cluster, or one
        /// restored from it, ever had. For a clock that cannot be set right.
        #[arg(long, value_name = "N")]
        epoch: Option<u16>,

        /// DANGEROUS: grant locks at once. Two may hold one lock then (guarantee 1 is broken), unless you
        /// know that no client of the old cluster runs any more.
        #[arg(long)]
        now: bool,

        /// The settings file (TOML). Without it there is none.
        #[arg(long, value_name = "FILE", env = "HOLDFAST_CONFIG")]
        config: Option<PathBuf>,

        #[command(flatten)]
        overrides: Box<Overrides>,
    },
    /// Says that this node forms a new cluster, once, where nodes join by themselves (`join = "auto"`).
    ///
    /// Run it beside the node, or before it is started, as somebody who may write its data folder. The others are
    /// admitted by themselves then. It has no effect where another member belongs to a cluster already.
    Init {
        /// The settings file (TOML). Without it there is none.
        #[arg(long, value_name = "FILE", env = "HOLDFAST_CONFIG")]
        config: Option<PathBuf>,

        #[command(flatten)]
        overrides: Box<Overrides>,
    },
    /// The manual page, into a folder.
    #[command(hide = true)]
    Man {
        /// The folder; it is there.
        folder: PathBuf,
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
        (Some(Action::CheckConfig { config, as_started, overrides }), Some((_, matches))) => {
            let settings = load(as_started.or(config).as_deref(), *overrides, matches)?;
            let certificates = certificates(&settings.config)?;
            print(&settings);
            print(&certificates);
            for line in settings.retired().chain(settings.config.unwise()) {
                print(format!("# {line}\n"));
            }
            Ok(())
        }
        (Some(Action::Restore { backup, epoch, now, config, overrides }), Some((_, matches))) => {
            let settings = load(config.as_deref(), *overrides, matches)?;
            keep_to_oneself();
            let done = restore::run(&settings.config, &restore::Wish { backup, epoch, now });
            print(done.map_err(|refusal| exit::say(refusal.exit(), &refusal))?.report());
            Ok(())
        }
        (Some(Action::Init { config, overrides }), Some((_, matches))) => {
            let settings = load(config.as_deref(), *overrides, matches)?;
            keep_to_oneself();
            print(
                node::init(&settings.config)
                    .map_err(|error| exit::say(Exit::DataFolder, &error))?,
            );
            Ok(())
        }
        (Some(Action::Man { folder }), _) => manual_page(&folder),
        _ => serve(&load(arguments.config.as_deref(), arguments.overrides, &matches)?),
    }
}

fn load(file: Option<&Path>, overrides: Overrides, matches: &ArgMatches) -> Result<Settings, Exit> {
    Settings::load(file, overrides, matches)
        .map_err(|error: ConfigError| exit::say(Exit::Settings, &error))
}

fn serve(settings: &Settings) -> Result<(), Exit> {
    let config = &settings.config;
    keep_to_oneself();
    telemetry::init(&config.node);
    exit::on_panic();
    settings.retired().for_each(|line| tracing::warn!("{line}"));
    if let Err(error) = traces::start(&config.node) {
        // A node that serves is worth more than its spans.
        tracing::warn!(%error, "no traces are exported");
    }
    let result = node::run(config).map_err(|error| exit::say(error.exit(), &error));
    traces::flush();
    telemetry::flush();
    result
}

/// What this process writes is its user's alone, whatever the umask it was started with; and it leaves no core
/// dump, which would hold keys and the secrets of sessions.
fn keep_to_oneself() {
    umask(Mode::RWXG | Mode::RWXO);
    core_dumps::forbid();
    // Should that be refused, as by a filter of system calls.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    // Lowering a limit is always allowed.
    let _ = setrlimit(Resource::Core, none);
}

/// clap's own message, with the exit code of this program; a request for help is no error.
fn usage(error: &clap::Error) -> Exit {
    if error.kind() == ErrorKind::DisplayVersion {
        print(format_args!("holdfastd {}\n", version::of(env!("CARGO_PKG_VERSION"))));
        return Exit::Stopped;
    }
    // A closed standard error leaves no way to report that it is closed.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Stopped }
}

/// Writes `holdfastd.8`.
fn manual_page(folder: &Path) -> Result<(), Exit> {
    let page = Man::new(Arguments::command()).section("8").generate_to(folder);
    page.map(drop).map_err(|error| exit::say(Exit::Usage, &error))
}

/// How long the files of TLS are still good for, as comments below the settings.
fn certificates(config: &Config) -> Result<String, Exit> {
    let clock = Runtime::system().clock;
    let credentials = tls::credentials(config, &*clock);
    let credentials = credentials.map_err(|error| exit::say(Exit::Settings, &error))?;
    let ends = credentials.iter().flat_map(|used| tls::days_left(used, &*clock));
    let used_elsewhere = config.fallback.tls().map(|tls| tls.load(clock.wall())).transpose();
    let used_elsewhere = used_elsewhere
        .map_err(|error| exit::say(Exit::Settings, &format_args!("TLS to Cassandra: {error}")))?;
    let elsewhere = used_elsewhere.iter().flat_map(|(used, _)| tls::days_left(used, &*clock));
    let ends = ends.chain(elsewhere);
    let lines = ends.map(|(file, days)| format!("# {} ends in {days} days\n", file.display()));
    let warning = tls::key_is_open(&config.node.tls_key).map(|warning| format!("# {warning}\n"));
    Ok(lines.chain(warning).collect::<Vec<_>>().concat())
}

fn print(text: impl Display) {
    // A reader that closed the pipe has read enough, as `head` does.
    let _ = write!(std::io::stdout().lock(), "{text}");
}
