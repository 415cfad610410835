//! The part of `lock` that talks to the store: a thread with a runtime of its own, because the
//! main thread forks and waits.

use std::future::Future;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast::{Acquire, Builder, Client, Guard, GuardState};
use holdfast_seams::{Seams, select};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::line::WaitLine;
use super::{Event, Held};
use crate::failure::Failure;
use crate::runtime;

/// How long giving the lock back may take at the end; after that its lease runs out by itself.
pub(crate) const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

/// What is to be acquired.
pub(crate) struct Wanted {
    pub(crate) builder: Builder,
    pub(crate) names: Vec<String>,
    pub(crate) shared: bool,
    /// Whichever are free instead of all.
    pub(crate) any: bool,
    /// Whose import is to be taken over.
    pub(crate) claim: Option<String>,
    /// `None`: for ever; zero: not at all.
    pub(crate) wait: Option<Duration>,
}

impl Wanted {
    /// The request; `spent` of the wait is over already.
    fn acquire(&self, client: &Client, spent: Duration) -> Acquire {
        let is_try = self.wait == Some(Duration::ZERO) && self.claim.is_none();
        let first = self.names.first().map(String::as_str).unwrap_or_default();
        let acquire = match (&self.claim, self.any, is_try) {
            (Some(owner), ..) => client.claim(first, owner),
            (None, true, true) => client.any_of(0, &self.names),
            (None, true, false) => client.any_of(1, &self.names),
            (None, false, true) => client.try_lock_all(&self.names),
            (None, false, false) => client.lock_all(&self.names),
        };
        let acquire = if self.shared { acquire.shared() } else { acquire };
        match self.wait {
            Some(wait) if !is_try => acquire.wait(wait.saturating_sub(spent)),
            _ => acquire,
        }
    }
}

/// The thread.
pub(crate) struct Keeper {
    thread: JoinHandle<()>,
    stop: CancellationToken,
}

impl Keeper {
    /// Begins to acquire, as `keep` does it; what comes of it arrives as events.
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
                    // Nobody listens any more if the main thread is on its way out.
                    let _ = events.send(Event::Failed(failure));
                }
            })
            .map_err(|error| Failure::own("starting a thread", error))?;
        Ok(Self { thread, stop })
    }

    /// Stops waiting, or gives the lock back; waits until that is done, at most a few seconds.
    pub(crate) fn finish(self) {
        self.stop.cancel();
        // It panicked: there is nothing to wait for, and the lease decides.
        let _ = self.thread.join();
    }
}

/// Acquires from the store, holds until told to stop, gives back.
pub(crate) async fn keep(
    wanted: Wanted,
    events: SyncSender<Event>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let seams = Seams::system();
    let line = WaitLine::new(seams.clone());
    line.say("reaching the store");
    let began = seams.clock.now();
    let client = select! {
        () = stop.cancelled() => return Ok(()),
        client = wanted.builder.clone().connect() => client?,
    };
    let spent = seams.clock.now().saturating_since(began);
    let granted = select! {
        () = stop.cancelled() => None,
        granted = acquire(&client, &wanted, spent, &line) => Some(granted),
    };
    line.clear();
    let outcome = match granted {
        Some(Ok(guard)) => {
            let names: Vec<String> = guard.names().map(str::to_owned).collect();
            let token = Some(guard.token().to_string());
            let held = Held::of_locks(guard.state(), &names, token, client.ttl());
            hold(held, &events, &stop).await;
            // The command has ended; whatever this says, the lease passes the lock on.
            let _ = seams.timeout(GOODBYE_LIMIT, guard.release()).await;
            Ok(())
        }
        Some(Err(error)) => Err(error.into()),
        None => Ok(()),
    };
    // A request that was cancelled is gone before we are.
    let _ = seams.timeout(GOODBYE_LIMIT, client.close()).await;
    outcome
}

/// Acquires while the line lives; `spent` of the wait is over already. Dropped, it takes the
/// request back.
async fn acquire(
    client: &Client,
    wanted: &Wanted,
    spent: Duration,
    line: &WaitLine,
) -> holdfast::Result<Guard> {
    line.say("waiting for the lock");
    let acquire = wanted.acquire(client, spent);
    let mut place = acquire.follow_place().enqueue();
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

/// Hands the hold to the main thread, and stays until told to stop.
pub(crate) async fn hold(held: Held, events: &SyncSender<Event>, stop: &CancellationToken) {
    let state = held.state.clone();
    if events.send(Event::Granted(held)).is_ok() {
        watch_over(state, events, stop).await;
    }
}

/// Tells when what is held is lost, until told to stop.
pub(crate) async fn watch_over(
    mut state: watch::Receiver<GuardState>,
    events: &SyncSender<Event>,
    stop: &CancellationToken,
) {
    select! {
        () = stop.cancelled() => return,
        _ = state.wait_for(GuardState::is_over) => {}
    }
    // The main thread looks at the state itself.
    if events.send(Event::Look).is_ok() {
        stop.cancelled().await;
    }
}
