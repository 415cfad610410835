//! The part of `lock` that talks to the store: a thread with a runtime of its own, because the
//! main thread forks and waits.

use std::future::{Future, IntoFuture};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast::{
    Acquire, Builder, Client, Error, Guard, GuardStates, Instant, LostReason, Mode, Place,
    QueuePlace, TryAcquire,
};
use holdfast_cli::{block_on, progress_bar};
use holdfast_runtime::{Runtime, select};
use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::{Event, Held, contended, nested};
use crate::args::{LockArgs, Proclaims};
use crate::failure::Failure;
use crate::{freeze, show};

/// How long the release may take at the end; after that the lease runs out.
pub(crate) const GOODBYE_LIMIT: Duration = Duration::from_secs(2);

impl LockArgs {
    /// Asks once; `spent` is the part of the wait that has passed.
    fn ask(&self, client: &Client, spent: Duration) -> QueuePlace {
        let names = &self.job.names;
        let first = names.first().map(String::as_str).unwrap_or_default();
        let items = names.iter().map(|name| self.job.mode.of(name));
        let acquire = match (&self.claim, self.job.any) {
            (Some(owner), _) => client.claim(first, owner),
            (None, true) if self.is_try() => {
                let some = client.try_any_of(items);
                return self.tried(self.job.at_least.into_iter().fold(some, TryAcquire::at_least));
            }
            (None, false) if self.is_try() => return self.tried(client.try_lock_all(items)),
            (None, true) => {
                self.job.at_least.into_iter().fold(client.any_of(items), Acquire::at_least)
            }
            (None, false) => client.lock_all(items),
        };
        let acquire = acquire.traceparent(self.job.lease.traceparent());
        let acquire = self.job.terms.over(acquire);
        match self.wait {
            Some(wait) => acquire.wait(wait.saturating_sub(spent)).follow_place().enqueue(),
            None => acquire.follow_place().enqueue(),
        }
    }

    /// Refuses to wait for a lock that a `holdfast lock` holds which this process runs under.
    fn refuse_own_holds(&self, client: &Client, place: &Place) -> Result<(), Failure> {
        let own = place.holders.iter().filter(|_| !self.job.any);
        let mut own = own.filter(|holder| !holder.mode.is_permits());
        match own.find_map(|holder| nested::holder_above(client, holder.token)) {
            Some(above) => Err(nested::refusal(&self.job.names, above)),
            None => Ok(()),
        }
    }

    /// Whether it asks once and does not wait. A claim waits for a time of zero instead: it may take
    /// over a place in the queue.
    fn is_try(&self) -> bool {
        self.wait == Some(Duration::ZERO) && self.claim.is_none()
    }

    fn tried(&self, acquire: TryAcquire) -> QueuePlace {
        let acquire = acquire.traceparent(self.job.lease.traceparent());
        self.job.terms.over_try(acquire).into_future()
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
                let kept = block_on(keep(events.clone(), stopped));
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
    builder: Builder,
    wanted: LockArgs,
    events: SyncSender<Event>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let runtime = Runtime::system();
    let line = WaitLine::new(runtime.clone());
    line.say("reaching the store");
    let began = runtime.clock.now();
    let client = select! {
        () = stop.cancelled() => return Ok(()),
        client = builder.connect() => client?,
    };
    let granted = select! {
        () = stop.cancelled() => None,
        granted = lead(&client, &wanted, began, &line) => Some(granted),
    };
    line.clear();
    let outcome = match granted {
        Some(Ok(guard)) => {
            let names: Vec<String> = guard.names().map(str::to_owned).collect();
            let token = Some(guard.token().to_string());
            let mut held = Held::of_locks(guard.states(), &names, token, client.ttl());
            held.told.variables.extend(nested::told(&client, guard.token()));
            let told =
                contended::pass_on(guard.contended(), wanted.job.heard.on_contended, &events);
            select! {
                () = hold(held, &events, &stop) => {}
                () = told => {}
            }
            // The command has ended; whatever the result, the lease passes the lock on.
            let _ = runtime.timeout(GOODBYE_LIMIT, guard.release()).await;
            Ok(())
        }
        Some(Err(failure)) => Err(failure),
        None => Ok(()),
    };
    // A cancelled request is gone before this process ends.
    let _ = runtime.timeout(GOODBYE_LIMIT, client.close()).await;
    outcome
}

/// Acquires, and proclaims what the holder of an election's lock does.
async fn lead(
    client: &Client,
    wanted: &LockArgs,
    began: Instant,
    line: &WaitLine,
) -> Result<Guard, Failure> {
    let guard = acquire(client, wanted, began, line).await?;
    if let Some(Proclaims(value)) = &wanted.proclaims {
        guard.set_value(value.clone().unwrap_or_else(|| client.label())).await?;
    }
    Ok(guard)
}

/// Acquires and shows the progress; the wait began at `began`. Dropping the future cancels the request.
///
/// A session that ran out while it waited, after a sleep of the machine say, held nothing: the client asks again, in a new one.
async fn acquire(
    client: &Client,
    wanted: &LockArgs,
    began: Instant,
    line: &WaitLine,
) -> Result<Guard, Failure> {
    loop {
        line.say("waiting for the lock");
        let spent = line.runtime.clock.now().saturating_since(began);
        match once(client, wanted, wanted.ask(client, spent), line).await? {
            Err(Error::SessionLost {
                reason: LostReason::SessionExpired | LostReason::DeadlinePassed,
            }) => {}
            granted => return Ok(granted?),
        }
    }
}

/// Waits for the answer to one request.
async fn once(
    client: &Client,
    wanted: &LockArgs,
    mut place: QueuePlace,
    line: &WaitLine,
) -> Result<holdfast::Result<Guard>, Failure> {
    loop {
        select! {
            at = place.next() => match at {
                Some(at) => {
                    wanted.refuse_own_holds(client, &at)?;
                    line.at(&at);
                }
                None => return Ok(place.await),
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

/// Reports that the hold is extended, and its end, until `stop`.
pub(crate) async fn watch_over(
    mut states: GuardStates,
    events: &SyncSender<Event>,
    stop: &CancellationToken,
) {
    loop {
        let now = select! {
            () = stop.cancelled() => return,
            now = states.changed() => now,
        };
        // The main thread reads the state itself.
        if events.send(Event::Look).is_err() {
            return;
        }
        if now.is_over() {
            break;
        }
    }
    stop.cancelled().await;
}

/// Shows the place in the queue, on a terminal only, and disappears when dropped.
#[derive(Clone)]
struct WaitLine {
    bar: ProgressBar,
    runtime: Runtime,
    last: Arc<Mutex<Option<(Place, Instant)>>>,
}

impl WaitLine {
    fn new(runtime: Runtime) -> Self {
        let bar = progress_bar(None, "{spinner} {msg}");
        Self { bar, runtime, last: Arc::default() }
    }

    /// Shows a text that is not about a place.
    fn say(&self, text: &'static str) {
        self.bar.set_message(text);
        self.bar.tick();
    }

    /// Shows a place that the store pushed.
    fn at(&self, place: &Place) {
        let now = self.runtime.clock.now();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((place.clone(), now));
        self.refresh();
    }

    /// Ends when it is time to refresh.
    async fn second(&self) {
        self.runtime.sleep(Duration::from_secs(1)).await;
    }

    /// Updates the shown times.
    fn refresh(&self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((place, told)) = &*last {
            let since = self.runtime.clock.now().saturating_since(*told);
            self.bar.set_message(place_text(place, since));
        }
        self.bar.tick();
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The place of a request: `3rd in line, held by host:pid for 12 s`; `since` is the age of the
/// report.
fn place_text(place: &Place, since: Duration) -> String {
    if place.awaits_authority {
        return "next in line, waits for the scope's authority".into();
    }
    let at = show::place(place.place);
    let frozen = match &place.frozen {
        Some(freeze) => format!(", {}", freeze::text(freeze)),
        None => String::new(),
    };
    match place.holders.first() {
        Some(holder) => {
            let shared = if holder.mode == Mode::Shared { " (shared)" } else { "" };
            let (label, held) = (show::escaped(&holder.label), show::length(holder.held + since));
            format!("{at}, held by {label}{shared} for {held}{}{frozen}", show::note(&holder.note))
        }
        None => format!("{at}{frozen}"),
    }
}
