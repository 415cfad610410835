//! The unary calls, by a client that is not ours: Python stubs that grpcio-tools makes of our
//! `.proto`, against a real server. What is checked stands in `tests/foreign/client.py`.
//!
//! Needs `python3` and the packages in `tests/foreign/requirements.txt`, which pip puts into a
//! folder of its own below the target folder, once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of a test fail it by a panic"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use holdfast_tests::cluster::{Cluster, Setup};
use holdfast_tests::program::Program;

/// How long the client may take in all.
const CLIENT_WITHIN: Duration = Duration::from_mins(2);

/// A Python of its own, with the packages that the client needs.
struct Python {
    program: PathBuf,
    stubs: PathBuf,
}

impl Python {
    /// Makes it, unless an earlier run did for the same packages.
    ///
    /// # Errors
    ///
    /// One line: what could not be had.
    fn prepare(folder: &Path) -> Result<Self, String> {
        let wanted = fs::read_to_string(foreign("requirements.txt")).unwrap();
        let (environment, stubs) = (folder.join("python"), folder.join("stubs"));
        let python = Self { program: environment.join("bin/python"), stubs };
        // Written last: a run that was cut short begins anew.
        let done = folder.join("requirements.txt");
        if fs::read_to_string(&done).ok().as_ref() != Some(&wanted) {
            let _ = fs::remove_dir_all(folder);
            run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
            let install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r"];
            run(python.command().args(install).arg(foreign("requirements.txt")))?;
            fs::write(&done, wanted).map_err(|error| format!("{}: {error}", done.display()))?;
        }
        Ok(python)
    }

    /// Makes the stubs of our `.proto` as anybody would.
    fn generate(&self) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.stubs);
        fs::create_dir_all(&self.stubs).unwrap();
        let out = |option: &str| format!("--{option}={}", self.stubs.display());
        let proto = root().join("proto");
        let include = format!("-I{}", proto.display());
        let options = [include, out("python_out"), out("grpc_python_out")];
        run(self
            .command()
            .args(["-m", "grpc_tools.protoc"])
            .args(options)
            .arg(proto.join("holdfast/v1/lock.proto")))
    }

    fn command(&self) -> Command {
        Command::new(&self.program)
    }
}

/// Runs a command to its end; an error is one line.
fn run(command: &mut Command) -> Result<(), String> {
    let named = format!("{command:?}");
    let output = command.output().map_err(|error| format!("{named}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no word");
    Err(format!("{named}: {last}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn foreign(file: &str) -> PathBuf {
    root().join("tests/foreign").join(file)
}

#[tokio::test]
async fn a_client_made_by_grpcio_tools_opens_waits_is_granted_and_gives_up() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("foreign-client");
    let ready = Python::prepare(&folder).and_then(|python| python.generate().map(|()| python));
    let python = ready.unwrap_or_else(|why| {
        panic!(
            "needs python3 with venv and the packages in tests/foreign/requirements.txt (or leave \
             it out: tests/run --leave-out foreign_client): {why}"
        )
    });
    let cluster = Cluster::start(&Setup::nodes(1)).await;
    let client = foreign("client.py");
    let address = &cluster.nodes()[0].listen;
    let arguments = [client.to_str().unwrap(), python.stubs.to_str().unwrap(), address];

    let ended = Program::start_at(&python.program, &arguments).end(CLIENT_WITHIN).await;

    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    assert_eq!(ended.out.lines().last(), Some("all checks hold"), "{}", ended.out);
}
