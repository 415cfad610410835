//! `holdfast completions` and `holdfast man`: made from the arguments as they are.

use std::io::Write as _;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
    // A reader that closed the pipe has read enough.
    let _ = std::io::stdout().lock().write_all(&script);
    0
}

/// Writes a page for the program, and one for each of its commands.
pub(crate) fn pages(folder: &Path) -> Result<u8, Failure> {
    let made = clap_mangen::generate_to(Cli::command(), folder);
    made.map_err(|error| Failure::own(&format!("manual pages in {}", folder.display()), error))?;
    Ok(0)
}
