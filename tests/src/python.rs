//! A Python of a suite's own, with the packages that its clients need: for third-party clients.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An environment below the target folder, made once for the same packages.
#[derive(Debug)]
pub struct Python {
    program: PathBuf,
}

impl Python {
    /// Makes it in `folder`, with the packages that the file `requirements` names, unless an earlier run did. Of several concurrent callers
    /// one makes it, and the others wait for it.
    ///
    /// # Errors
    ///
    /// One line: what could not be made or installed.
    pub fn with(requirements: &Path, folder: &Path) -> Result<Self, String> {
        let wanted = fs::read_to_string(requirements).unwrap();
        let environment = folder.join("python");
        let python = Self { program: environment.join("bin/python") };
        let _turn = turn(&folder.with_extension("lock"))?;
        // Written last, so that an interrupted run begins anew.
        let done = folder.join("requirements.txt");
        if fs::read_to_string(&done).ok().as_ref() != Some(&wanted) {
            let _ = fs::remove_dir_all(folder);
            run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
            let install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r"];
            run(python.command().args(install).arg(requirements))?;
            fs::write(&done, wanted).map_err(|error| format!("{}: {error}", done.display()))?;
        }
        Ok(python)
    }

    /// The path of the interpreter.
    pub fn program(&self) -> &PathBuf {
        &self.program
    }

    /// A command line that begins with it.
    pub fn command(&self) -> Command {
        Command::new(&self.program)
    }
}

/// Waits for every other test and process that has the lock. It ends with the file.
fn turn(lock: &Path) -> Result<File, String> {
    let file = File::create(lock).and_then(|file| file.lock().map(|()| file));
    file.map_err(|error| format!("{}: {error}", lock.display()))
}

/// Runs a command to its end.
///
/// # Errors
///
/// One line: the command, and the last line that it printed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let named = format!("{command:?}");
    let output = command.output().map_err(|error| format!("{named}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no word");
    Err(format!("{named}: {last}"))
}
