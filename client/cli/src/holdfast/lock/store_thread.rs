//! The part of `lock` that talks to the store: a thread with a runtime of its own, because the
//! main thread forks and waits.

use std::future::{Future, IntoFuture};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast::{Builder, Client, Guard, GuardStates, QueuePlace, TryAcquire};
use holdfast_runtime::{Runtime, select};
use tokio_util::sync::CancellationToken;

use super::line::WaitLine;
use super::{Event, Held};
use crate::failure::Failure;
use crate::runtime;

/// How long the release may take at the end; after that the lease runs out.
pub(crate) const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// The request of the command line.
pub(crate) struct LockRequest {
    pub(crate) builder: Builder,
    pub(crate) names: Vec<String>,
    pub(crate) shared: bool,
    /// Whichever are free instead of all.
    pub(crate) any: bool,
    /// The owner whose import is taken over.
    pub(crate) claim: Option<String>,
    /// `None`: for ever; zero: not at all.
    pub(crate) wait: Option<Duration>,
}

impl LockRequest {
    /// Asks once; `spent` is the part of the wait that has passed.
    fn ask(&self, client: &Client, spent: Duration) -> QueuePlace {
        let first = self.names.first().map(String::as_str).unwrap_or_default();
        let acquire = match (&self.claim, self.any) {
            (Some(owner), _) => client.claim(first, owner),
            (None, true) if self.is_try() => return self.tried(client.try_any_of(&self.names)),
            (None, false) if self.is_try() => return self.tried(client.try_lock_all(&self.names)),
            (None, true) => client.any_of(&self.names),
            (None, false) => client.lock_all(&self.names),
        };
        let acquire = if self.shared { acquire.shared() } else { acquire };
        match self.wait {
            Some(wait) => acquire.wait(wait.saturating_sub(spent)).follow_place().enqueue(),
            None => acquire.follow_place().enqueue(),
        }
    }

    /// Whether it asks once and does not wait. A claim waits for a time of zero instead: it may take
    /// over a place in the queue.
    fn is_try(&self) -> bool {
        self.wait == Some(Duration::ZERO) && self.claim.is_none()
    }

    fn tried(&self, acquire: TryAcquire) -> QueuePlace {
        if self.shared { acquire.shared() } else { acquire }.into_future()
    }
}

/// The thread that keeps the lock.
pub(crate) struct StoreThread {
    thread: JoinHandle<()>,
    stop: CancellationToken,
}

impl StoreThread {
    /// Starts `keep` on the thread; its results arrive as events.
    pub(crate) fn start<F: Future<Output = Result<(), Failure>>>(
        events: SyncSender<Event>,
        keep: impl FnOnce(SyncSender<Event>, CancellationToken) -> F + Send + 'static,
    ) -> Result<Self, Failure> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("holdfast-keeper".into())
            .spawn(move || {
                let kept = runtime::block_on(keep(events.clone(), stopped));
                if let Err(failure) = kept.and_then(|kept| kept) {
                    // The main thread may have ended and dropped the receiver.
                    let _ = events.send(Event::Failed(failure));
                }
            })
            .map_err(|error| Failure::own("starting a thread", error))?;
        Ok(Self { thread, stop })
    }

    /// Stops waiting, or releases the lock, and waits until that is done, at most a few seconds.
    pub(crate) fn finish(self) {
        self.stop.cancel();
        // The thread panicked: there is nothing to wait for, and the lease decides.
        let _ = self.thread.join();
    }
}

/// Acquires from the store, holds until `stop`, releases.
pub(crate) async fn keep(
    wanted: LockRequest,
    events: SyncSender<Event>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let runtime = Runtime::system();
    let line = WaitLine::new(runtime.clone());
    line.say("reaching the store");
    let began = runtime.clock.now();
    let client = select! {
        () = stop.cancelled() => return Ok(()),
        client = wanted.builder.clone().connect() => client?,
    };
    let spent = runtime.clock.now().saturating_since(began);
    let granted = select! {
        () = stop.cancelled() => None,
        granted = acquire(&client, &wanted, spent, &line) => Some(granted),
    };
    line.clear();
    let outcome = match granted {
        Some(Ok(guard)) => {
            let names: Vec<String> = guard.names().map(str::to_owned).collect();
            let token = Some(guard.token().to_string());
            let held = Held::of_locks(guard.states(), &names, token, client.ttl());
            hold(held, &events, &stop).await;
            // The command has ended; whatever the result, the lease passes the lock on.
            let _ = runtime.timeout(GOODBYE_LIMIT, guard.release()).await;
            Ok(())
        }
        Some(Err(error)) => Err(error.into()),
        None => Ok(()),
    };
    // A cancelled request is gone before this process ends.
    let _ = runtime.timeout(GOODBYE_LIMIT, client.close()).await;
    outcome
}

/// Acquires and shows the progress; `spent` is the part of the wait that has passed. Dropping the
/// future cancels the request.
async fn acquire(
    client: &Client,
    wanted: &LockRequest,
    spent: Duration,
    line: &WaitLine,
) -> holdfast::Result<Guard> {
    line.say("waiting for the lock");
    let mut place = wanted.ask(client, spent);
    loop {
        select! {
            at = place.next() => match at {
                Some(at) => line.at(&at),
                None => return place.await,
            },
            () = line.second() => line.refresh(),
        }
    }
}

/// Hands the hold to the main thread, and keeps it until `stop`.
pub(crate) async fn hold(held: Held, events: &SyncSender<Event>, stop: &CancellationToken) {
    let states = held.states.clone();
    if events.send(Event::Granted(held)).is_ok() {
        watch_over(states, events, stop).await;
    }
}

/// Reports the end of the hold, until `stop`.
pub(crate) async fn watch_over(
    mut states: GuardStates,
    events: &SyncSender<Event>,
    stop: &CancellationToken,
) {
    select! {
        () = stop.cancelled() => return,
        _ = states.over() => {}
    }
    // The main thread reads the state itself.
    if events.send(Event::Look).is_ok() {
        stop.cancelled().await;
    }
}
