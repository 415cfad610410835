//! Moves lock rows from Cassandra into Holdfast; see `holdfast-migrate --help`.

mod args;
mod import;
mod moves;
mod plan;
mod verify;

use std::process::ExitCode;

use clap::Parser;
use holdfast_cli::failure::{Failure, OWN_ERROR};

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and version were requested; everything else is the caller's mistake. A failure
            // to print cannot be reported anywhere.
            let _ = usage.print();
            return ExitCode::from(if usage.use_stderr() { OWN_ERROR } else { 0 });
        }
    };
    let json = cli.json;
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print("holdfast-migrate", json);
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: &Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Plan(args) => plan::run(cli, args),
        Command::Import(args) => import::run(cli, args),
        Command::Verify(args) => verify::run(cli, args),
        Command::Cutover(args) => moves::cutover(cli, args),
        Command::Rollback(args) => moves::rollback(cli, args),
    }
}
