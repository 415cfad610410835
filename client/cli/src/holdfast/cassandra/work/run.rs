//! `holdfast cassandra work run`: one item after the other.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use holdfast::Error;
use holdfast_cli::error_line;
use holdfast_cli::place::failure;
use holdfast_recipes::{Wait, WorkItem, WorkQueue};
use holdfast_runtime::{Runtime, select};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Place, RunArgs, open};
use crate::args::Global;
use crate::failure::Failure;
use crate::lock::store_thread::{GOODBYE_LIMIT, watch_over};
use crate::lock::{ChildInput, Ended, Event, Held, run_under};
use crate::show;

/// The pause between two checks of a queue whose last items other workers have.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The pause after an item that failed; twice as long after each further one in a row.
const FAILED_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(10);

pub(super) fn run(global: &Global, place: Place, args: RunArgs) -> Result<u8, Failure> {
    let RunArgs { queue: name, until_empty, max_attempts, work, .. } = args;
    let json = global.json;
    run_under(&work, json, move |events, stop| async move {
        let (cassandra, queue) = select! {
            () = stop.cancelled() => return Ok(()),
            opened = open(&place, &name) => opened?,
        };
        let queue = match max_attempts {
            Some(attempts) => queue.max_attempts(attempts.get()),
            None => queue,
        };
        let worker = Worker { queue, until_empty, json, failed: 0 };
        let outcome = worker.work(&events, &stop).await;
        // Abandoned rows are removed from the tables before this process ends.
        let _ = Runtime::system().timeout(GOODBYE_LIMIT, cassandra.settled()).await;
        outcome
    })
}

struct Worker {
    queue: WorkQueue,
    until_empty: bool,
    json: bool,
    /// Failures in a row.
    failed: u32,
}

impl Worker {
    /// Works until `stop`, or until no item is left.
    async fn work(
        mut self,
        events: &SyncSender<Event>,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        loop {
            let item = select! {
                () = stop.cancelled() => return Ok(()),
                item = self.next() => item?,
            };
            let Some(item) = item else {
                // The main thread may have ended and dropped the receiver.
                let _ = events.send(Event::Over);
                return Ok(());
            };
            self.have_done(item, events, stop).await;
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// `None`: the queue is empty, with `--until-empty`.
    async fn next(&self) -> Result<Option<WorkItem>, Failure> {
        let runtime = Runtime::system();
        if let Some(doublings) = self.failed.checked_sub(1) {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            runtime.sleep(FAILED_PAUSE.saturating_mul(factor).min(FAILED_PAUSE_MAX)).await;
        }
        loop {
            let wait = if self.until_empty { Wait::No } else { Wait::Forever };
            if let Some(item) = self.queue.next(wait).await.map_err(failure)? {
                return Ok(Some(item));
            }
            if self.queue.is_empty().await.map_err(failure)? {
                return Ok(None);
            }
            runtime.sleep(LOOK_EVERY).await;
        }
    }

    /// Lets the main thread run the command, and ends or gives back the item by its exit code.
    async fn have_done(
        &mut self,
        item: WorkItem,
        events: &SyncSender<Event>,
        stop: &CancellationToken,
    ) {
        let (tell, mut told) = oneshot::channel();
        let (states, what) = (item.states(), format!("item {}", item.id()));
        let granted = Event::Granted(self.held(&item, tell));
        if events.send(granted).is_err() {
            return;
        }
        let ended = select! {
            ended = &mut told => ended.ok(),
            () = watch_over(states, events, stop) => None,
        };
        let (is_done, was_lost) = match ended {
            Some(Ended::ByItself(0)) => (true, false),
            Some(Ended::ByItself(code)) => {
                self.say(&format!("{what}: the command ended with {code}, it is given back"));
                (false, false)
            }
            Some(Ended::LockLost(lost)) => {
                lost.print("holdfast", self.json);
                (false, true)
            }
            None => (false, false),
        };
        self.failed = if is_done { 0 } else { self.failed.saturating_add(1) };
        let answer = if is_done { item.done().await } else { item.give_back().await };
        match answer {
            Err(Error::Lost { .. }) if was_lost => {}
            Err(error) => self.say(&format!("{what}: {error}")),
            Ok(()) => {}
        }
    }

    fn held(&self, item: &WorkItem, ended: oneshot::Sender<Ended>) -> Held {
        let variables = vec![
            ("HOLDFAST_QUEUE", Some(self.queue.name().to_owned())),
            ("HOLDFAST_ITEM", Some(item.id().to_string())),
            ("HOLDFAST_ATTEMPT", Some(item.attempt().to_string())),
        ];
        let told =
            ChildInput { variables, input: Some(item.payload().to_owned()), ended: Some(ended) };
        Held { states: item.states(), what: format!("item {}", item.id()), told, ttl: item.ttl() }
    }

    /// Prints a warning on standard error.
    fn say(&self, what: &str) {
        if self.json {
            error_line(serde_json::json!({ "warning": what }));
        } else {
            error_line(format_args!("holdfast: {}", show::escaped(what)));
        }
    }
}
