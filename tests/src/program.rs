//! Programs of the product as a user runs them: arguments in, exit code and output back.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use holdfast_runtime::Runtime;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::cluster::{binary, end_with_parent};

/// A program that was started. It is ended, by its id, when this is dropped.
#[derive(Debug)]
pub struct Program {
    child: Child,
    folder: TempDir,
}

/// How long a program that is aborted may take to print its stacks.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Program {
    /// Starts `name`, one of the product's programs, without a terminal.
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        Self::start_at(&binary(name), arguments)
    }

    /// Starts the example `name` of the client against the servers at `endpoints`.
    pub fn example(name: &str, endpoints: &str) -> Self {
        let path = binary(&format!("examples/{name}"));
        Self::start_with(&path, &[], &[("HOLDFAST_ENDPOINTS", endpoints)])
    }

    /// Starts the program at `path`.
    pub fn start_at(path: &PathBuf, arguments: &[&str]) -> Self {
        Self::start_with(path, arguments, &[])
    }

    /// Starts `name`, one of the product's programs, with these variables in its environment.
    pub fn start_in(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_with(&binary(name), arguments, variables)
    }

    fn start_with(path: &PathBuf, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(path);
        command
            .args(arguments)
            .current_dir(folder.path())
            .env_remove("HOLDFAST_ENDPOINTS")
            .env_remove("HOLDFAST_BIN_DIR")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(File::create(folder.path().join("out")).unwrap())
            .stderr(File::create(folder.path().join("err")).unwrap());
        end_with_parent(&mut command);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", path.display()));
        Self { child, folder }
    }

    /// Its number as a process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Standard output so far.
    pub fn out(&self) -> String {
        self.printed("out")
    }

    /// Standard error so far.
    pub fn err(&self) -> String {
        self.printed("err")
    }

    fn printed(&self, which: &str) -> String {
        let mut bytes = Vec::new();
        File::open(self.folder.path().join(which)).unwrap().read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until it has printed a line with `words` in it.
    pub async fn shows(&mut self, words: &str, limit: Duration) {
        let runtime = Runtime::system();
        let give_up = runtime.clock.now() + limit;
        while !self.out().contains(words) {
            assert!(runtime.clock.now() < give_up, "no {words:?} in {}", self.out());
            runtime.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it has printed a line that begins with `start`; returns the rest of the line.
    pub async fn line(&mut self, start: &str, limit: Duration) -> String {
        let runtime = Runtime::system();
        let give_up = runtime.clock.now() + limit;
        loop {
            if let Some(rest) = self.out().lines().find_map(|line| line.strip_prefix(start)) {
                return rest.to_owned();
            }
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && runtime.clock.now() < give_up,
                "no line {start:?} (ended: {ended:?}): {}{}",
                self.out(),
                self.printed("err")
            );
            runtime.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it has ended by itself. One that does not is aborted: a Python then prints where its threads are.
    pub async fn end(mut self, limit: Duration) -> Ended {
        let has_ended = self.ends_within(limit).await;
        if !has_ended {
            self.signal(Signal::SIGABRT);
            self.ends_within(ABORT_LIMIT).await;
        }
        let said = || format!("{}{}", self.out(), self.printed("err"));
        assert!(has_ended, "it did not end within {limit:?}: {}", said());
        let status = self.child.wait().unwrap();
        self.ended(status)
    }

    /// Whether it ends by itself within `limit`.
    pub async fn ends_within(&mut self, limit: Duration) -> bool {
        let runtime = Runtime::system();
        let ended = async {
            while self.child.try_wait().unwrap().is_none() {
                runtime.sleep(Duration::from_millis(5)).await;
            }
        };
        runtime.timeout(limit, ended).await.is_ok()
    }

    fn ended(&self, status: ExitStatus) -> Ended {
        Ended { code: status.code(), out: self.out(), err: self.printed("err") }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SIGKILL ends a frozen process too; one that has ended is only waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one of the product's programs to its end, at most for a minute.
pub async fn run(name: &str, arguments: &[&str]) -> Ended {
    Program::start(name, arguments).end(Duration::from_mins(1)).await
}
