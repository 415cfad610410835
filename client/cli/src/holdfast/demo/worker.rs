//! A process of workers: each has a client, and a session, of its own.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast::{Client, Guard};
use holdfast_cli::block_on;
use holdfast_runtime::{Clock, Runtime};

use super::verdict::Turn;
use super::{FILES, TURNS_MIN, file_name};
use crate::args::DemoWorkerArgs;
use crate::failure::Failure;

/// How long a worker keeps trying to reach the servers.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Runs the process until standard input ends and every worker has had its turns.
pub(crate) fn run(args: &DemoWorkerArgs) -> Result<u8, Failure> {
    let enough = Arc::new(AtomicBool::new(false));
    let heard = enough.clone();
    std::thread::spawn(move || {
        // An end or an error: both ask the workers to end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        heard.store(true, Ordering::Relaxed);
    });
    block_on(run_all(args, &enough))??;
    Ok(0)
}

async fn run_all(args: &DemoWorkerArgs, enough: &Arc<AtomicBool>) -> Result<(), Failure> {
    let workers = (0..args.workers).map(|number| {
        let worker = Worker {
            number: args.process * args.workers + number,
            folder: args.folder.clone(),
            servers: args.servers.clone(),
            clock: Runtime::system().clock,
            enough: enough.clone(),
        };
        worker.run()
    });
    futures_util::future::try_join_all(workers).await?;
    Ok(())
}

struct Worker {
    number: u32,
    folder: PathBuf,
    servers: Option<String>,
    clock: Arc<dyn Clock>,
    enough: Arc<AtomicBool>,
}

impl Worker {
    async fn run(self) -> Result<(), Failure> {
        let client = match &self.servers {
            None => None,
            Some(servers) => {
                let builder = Client::builder().endpoints(holdfast_cli::endpoints(servers));
                let builder = builder.label(format!("worker {}", self.number));
                Some(builder.connect_timeout(CONNECT_LIMIT).connect().await?)
            }
        };
        let mut turns = 0;
        while turns < TURNS_MIN || !self.enough.load(Ordering::Relaxed) {
            let file = (self.number + turns) % FILES;
            let turn = self.turn(client.as_ref(), file).await?;
            turns += 1;
            tell(&turn)?;
        }
        if let Some(client) = client {
            // Otherwise the session expires.
            let _ = client.close().await;
        }
        Ok(())
    }

    /// One increment of one file.
    async fn turn(&self, client: Option<&Client>, file: u32) -> Result<Turn, Failure> {
        let asked = self.now();
        let guard = match client {
            Some(client) => Some(acquire(client, &file_name(file)).await?),
            None => None,
        };
        let token = guard.as_ref().map_or(0, |guard| guard.token().get());
        let entered = self.now();
        let wrote = self.increment(&self.folder.join(file_name(file)), guard.as_ref()).await?;
        let left = self.now();
        if let Some(guard) = guard {
            // Lost or unknown: the turn was over while the guard was safe, or it wrote nothing.
            let _ = guard.release().await;
        }
        Ok(Turn { worker: self.number, file, token, asked, entered, left, wrote })
    }

    /// Reads, parses, adds one, writes: nothing here protects the file.
    async fn increment(&self, path: &Path, guard: Option<&Guard>) -> Result<Option<u64>, Failure> {
        let failed = |error| Failure::own(&format!("using {}", path.display()), error);
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let Ok(number) = text.trim().parse::<u64>() else { return Ok(None) };
        // Lets other workers of this process run here, as those of other processes always do.
        tokio::task::yield_now().await;
        if guard.is_some_and(|guard| !guard.is_safe()) {
            return Ok(None);
        }
        std::fs::write(path, format!("{}\n", number + 1)).map_err(failed)?;
        Ok(Some(number + 1))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since_origin().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Retries until it is granted: a change of leader is no reason to give up.
async fn acquire(client: &Client, name: &str) -> Result<Guard, Failure> {
    loop {
        match client.lock(name).await {
            Ok(guard) => return Ok(guard),
            Err(error) if error.may_retry() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn tell(turn: &Turn) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(turn).map_err(|error| Failure::own("telling", error))?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(|error| Failure::own("telling", error))
}
