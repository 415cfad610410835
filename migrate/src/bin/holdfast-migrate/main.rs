//! Moves lock rows from Cassandra into Holdfast; see `holdfast-migrate --help`.

mod args;
mod import;
mod moves;
mod plan;
mod sequences;
mod verify;

use std::process::ExitCode;

use holdfast_cli::failure::Failure;

use args::{Cli, Command};

fn main() -> ExitCode {
    holdfast_cli::main_of("holdfast-migrate", |cli: &Cli| cli.json, |cli| run(&cli))
}

fn run(cli: &Cli) -> Result<u8, Failure> {
    match &cli.command {
        Command::Plan(args) => plan::run(cli, args),
        Command::Import(args) => import::run(cli, args),
        Command::Verify(args) => verify::run(cli, args),
        Command::Cutover(args) => moves::cutover(cli, args),
        Command::Rollback(args) => moves::rollback(cli, args),
        Command::Sequences(args) => sequences::run(cli, args),
    }
}
