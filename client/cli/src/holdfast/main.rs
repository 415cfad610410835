//! The command line of Holdfast; `holdfast --help` describes it.

mod args;
mod auth;
mod backup;
mod bench;
#[cfg(feature = "cassandra")]
mod cassandra;
mod cert;
mod cluster;
mod cluster_admin;
mod cut_off;
mod demo;
mod election;
mod freeze;
mod history;
mod inspect;
mod limit;
mod lock;
mod manual;
mod quota;
mod sequence;
mod show;
mod signals;
mod status;
mod top;
mod watch;
mod why;

use std::process::ExitCode;

use args::{Cli, Command, LockArgs, SessionArgs};
use failure::Failure;
use holdfast_cli::failure;

fn main() -> ExitCode {
    holdfast_cli::main_of("holdfast", |cli: &Cli| cli.global.json, run)
}

fn run(cli: Cli) -> Result<u8, Failure> {
    cli.global.color.apply();
    match cli.command {
        Command::Lock(args) => lock::run(&cli.global, args),
        Command::Try(job) => {
            let wait = Some(std::time::Duration::ZERO);
            lock::run(&cli.global, LockArgs { wait, claim: None, job, proclaims: None })
        }
        Command::Elect(args) => lock::run(&cli.global, args.into()),
        Command::Leader { name, watch: true } => election::watch(&cli.global, &name),
        Command::Leader { name, watch: false } => election::show(&cli.global, &name),
        Command::List { prefix } => inspect::list(&cli.global, &prefix),
        Command::Inspect { name, why: true } => why::run(&cli.global, &name),
        Command::Inspect { name, why: false } => inspect::lock(&cli.global, &name),
        Command::Session(SessionArgs { id, end: None }) => {
            inspect::session(&cli.global, id.unwrap_or_default())
        }
        Command::Session(SessionArgs { end: Some(command), .. }) => {
            cut_off::session(&cli.global, &command)
        }
        Command::Release(args) => cut_off::release(&cli.global, &args),
        Command::Limit(args) => limit::set(&cli.global, &args),
        Command::Freeze { names, message, limit } => {
            freeze::set(&cli.global, names.prefix(), &message, &limit)
        }
        Command::Thaw { names, limit } => freeze::lift(&cli.global, names.prefix(), &limit),
        Command::Freezes => freeze::list(&cli.global),
        Command::Top(args) => top::run(&cli.global, &args),
        Command::History(args) => history::run(&cli.global, &args),
        Command::Sequence(command) => sequence::run(&cli.global, &command),
        Command::CheckToken { name, token } => inspect::check_token(&cli.global, &name, token),
        Command::Watch { prefix } => watch::run(&cli.global, &prefix),
        Command::Status => status::run(&cli.global),
        Command::Cluster(command) => cluster_admin::cluster(&cli.global, &command),
        Command::Backup(command) => backup::run(&cli.global, &command),
        Command::Scope(command) => cluster_admin::scope(&cli.global, &command),
        Command::Auth { command, limit } => auth::run(&cli.global, &command, limit.timeout),
        Command::Cert(command) => cert::run(&cli.global, &command),
        #[cfg(feature = "cassandra")]
        Command::Cassandra(args) => cassandra::run(&cli.global, *args),
        Command::Demo { no_locks, page } => demo::run(&cli.global, no_locks, page),
        Command::Bench(args) => bench::run(&cli.global, &args),
        Command::Completions { shell } => Ok(manual::completions(shell)),
        Command::Man { folder } => manual::pages(&folder),
        Command::BenchHolder { name, ttl } => bench::hold(&cli.global, &name, ttl),
        Command::DemoWorker(args) => demo::run_worker(&args),
    }
}
