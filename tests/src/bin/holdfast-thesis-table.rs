//! Makes the tables and plots of `docs/thesis-benchmark.md` out of what was measured: `tests/benches/thesis.sh` calls it.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use holdfast_tests::marks::put_between;
use holdfast_tests::thesis::{PROGRAM, Plot, cells, draw, tables};

/// Rows in, tables and plots out.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The rows, a JSON object a line.
    rows: PathBuf,
    /// The page that the tables are put into, between its marks.
    page: PathBuf,
    /// The folder of the plots.
    plots: PathBuf,
}

fn main() -> ExitCode {
    match make(&Arguments::parse()) {
        Ok(files) => {
            println!("{files} files made");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("holdfast-thesis-table: {why}");
            ExitCode::FAILURE
        }
    }
}

fn make(Arguments { rows, page, plots }: &Arguments) -> Result<usize, String> {
    let cells = cells(&read(rows)?).map_err(|error| format!("{}: {error}", rows.display()))?;
    let filled = put_between(&read(page)?, PROGRAM, &tables(&cells));
    let filled =
        filled.ok_or_else(|| format!("{} has no marks to put tables between", page.display()))?;
    write(page, &filled)?;
    for plot in Plot::ALL {
        write(&plots.join(plot.file), &draw(plot, &cells)?)?;
    }
    Ok(1 + Plot::ALL.len())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
