//! Fencing: a holder that was paused for too long writes late, and the database refuses it.
//!
//! No lock can hold back a write that is already on its way when the lock is lost. The resource
//! can: every row stores the largest token that wrote to it, and refuses smaller ones.
//!
//! A second process of this example takes the lock and is stopped (SIGSTOP), as a long garbage
//! collection or a suspended machine would do. Its lease runs out, the store grants the lock to the
//! next holder, and that holder writes. Then the first process continues and writes too.
//!
//! `HOLDFAST_ENDPOINTS=127.0.0.1:7420 cargo run --example fenced_write`
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use holdfast::{Client, FencingToken, Guard};
use rusqlite::{Connection, params};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    match std::env::args_os().nth(1) {
        Some(database) => stalling_holder(Path::new(&database)).await,
        None => show().await,
    }
}

/// The fenced write: the token travels with it, and the row refuses a token that is smaller than
/// its largest one. Returns false if the row refused.
fn set_balance(database: &Connection, balance: i64, token: FencingToken) -> Result<bool> {
    let written = database.execute(
        "UPDATE account SET balance = ?1, fence = ?2 WHERE id = 'alice' AND fence <= ?2",
        params![balance, token.as_i64()],
    )?;
    Ok(written == 1)
}

async fn show() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("accounts.db");
    let database = Connection::open(&path)?;
    database.execute_batch(
        "CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL);
         INSERT INTO account VALUES ('alice', 100, 0);",
    )?;

    let mut first = Other::start(&path)?;
    println!("first holder: {}", first.says().await?);
    first.signal(Signal::STOP)?;
    println!("first holder is stopped in the middle of its work");

    // This waits until the first holder's session has sent no keepalive for its TTL.
    let guard = lock_account().await?;
    let written = set_balance(&database, 70, guard.token())?;
    println!("second holder: token {}, written: {written}", guard.token());

    first.signal(Signal::CONT)?;
    first.tell("write").await?;
    println!("first holder goes on: {}", first.says().await?);

    let balance: i64 = database.query_row("SELECT balance FROM account", [], |row| row.get(0))?;
    println!("balance: {balance}");
    guard.release().await?;
    Ok(())
}

/// The other process: takes the lock, and writes on command without checking its guard again. A
/// real one would have checked just before it was stopped, which does not help.
async fn stalling_holder(path: &Path) -> Result {
    // The kernel kills the stopped process if the example ends early.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let database = Connection::open(path)?;
    let guard = lock_account().await?;
    println!("token {}", guard.token());

    BufReader::new(tokio::io::stdin()).lines().next_line().await?;
    let written = set_balance(&database, 20, guard.token())?;
    println!("token {}, written: {written}", guard.token());
    Ok(())
}

async fn lock_account() -> Result<Guard> {
    let endpoints = std::env::var("HOLDFAST_ENDPOINTS").unwrap_or("127.0.0.1:7420".into());
    // A short lease, to keep this example short.
    let builder = Client::builder().endpoints(endpoints.split(',')).ttl(Duration::from_secs(1));
    let client = builder.connect().await?;
    Ok(client.lock("accounts/alice").wait(Duration::from_secs(30)).await?)
}

/// A second process of this program, as the first holder.
struct Other {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(database: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(database).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("its output is not ours")?;
        Ok(Self { child, said: BufReader::new(out).lines() })
    }

    async fn says(&mut self) -> Result<String> {
        Ok(self.said.next_line().await?.ok_or("it ended without a word")?)
    }

    async fn tell(&mut self, word: &str) -> Result {
        let input = self.child.stdin.as_mut().ok_or("it does not listen")?;
        Ok(input.write_all(format!("{word}\n").as_bytes()).await?)
    }

    fn signal(&self, signal: Signal) -> Result {
        let id = self.child.id().ok_or("it has ended")?;
        let pid = Pid::from_raw(id.cast_signed()).ok_or("it has no process id")?;
        Ok(kill_process(pid, signal)?)
    }
}
