//! The command line of Holdfast; `holdfast --help` describes it.

mod args;
mod bench;
#[cfg(feature = "cassandra")]
mod cassandra;
mod check_token;
mod cluster;
mod cluster_admin;
mod demo;
mod fairness;
mod inspect;
mod list;
mod lock;
mod scope;
mod session;
mod show;
mod signals;
mod spawn;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::{Failure, OWN_ERROR};
use holdfast_cli::{failure, runtime};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and version are requests, everything else is the caller's mistake. If even this
            // cannot be printed, there is no other output.
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { OWN_ERROR } else { 0 });
        }
    };
    let json = cli.global.json;
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print("holdfast", json);
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Lock(args) => lock::run(&cli.global, args.wait, args.claim, &args.job),
        Command::Try(args) => {
            lock::run(&cli.global, Some(std::time::Duration::ZERO), None, &args.job)
        }
        Command::List(args) => list::run(&cli.global, &args),
        Command::Inspect(args) => inspect::run(&cli.global, &args),
        Command::Session(args) => session::run(&cli.global, &args),
        Command::CheckToken(args) => check_token::run(&cli.global, &args),
        Command::Watch(args) => watch::run(&cli.global, &args),
        Command::Cluster(command) => cluster_admin::run(&cli.global, &command),
        Command::Scope(command) => scope::run(&cli.global, &command),
        #[cfg(feature = "cassandra")]
        Command::Cassandra(args) => cassandra::run(&cli.global, *args),
        Command::Demo(args) => demo::run(&cli.global, &args),
        Command::Bench(args) => bench::run(&cli.global, &args),
        Command::BenchHolder(args) => bench::hold(&cli.global, &args),
        Command::DemoWorker(args) => demo::run_worker(&args),
    }
}
