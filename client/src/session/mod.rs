//! One session: a machine that callers, the stream's task and the watchdog share.
//!
//! Callers and the watchdog reach the machine under a mutex whose sections never wait; the task
//! in [`driver`] is the only one that talks to servers.

mod cover;
mod driver;
mod machine;
mod request;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime, Transport, Watchdog};
use tokio::sync::{Notify, oneshot, watch};

use crate::attaching::Attaching;
use crate::hold::Hold;
use crate::items::AcquireRequest;
use crate::value::Change;
use crate::{Error, LostReason, Result};
use request::Done;

pub(crate) use machine::{Machine, Opening, PendingAcquire, SessionConfig};
pub(crate) use request::Key;

/// How long closing may take before its outcome counts as unknown. The session then expires.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

const CHANGE: &str = "a change of a value";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Running,
    /// The server reported that the session is over, or that it never had one.
    Closed,
    /// No server reported that in time.
    Unknown,
}

/// How a session reaches servers.
pub(crate) struct Access {
    pub(crate) endpoints: Vec<String>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) attaching: Arc<Attaching>,
}

pub(crate) struct Session {
    pub(crate) runtime: Runtime,
    watched: Mutex<Watched>,
    /// There may be something to send, or to end.
    wake: Notify,
    closing: watch::Sender<bool>,
    ending: watch::Sender<Ending>,
}

struct Watched {
    machine: Machine,
    /// Set once, right after construction: it needs the session it watches.
    watchdog: Option<Watchdog>,
    alarm: Option<Instant>,
}

impl Session {
    pub(crate) fn start(config: SessionConfig, access: Access, runtime: &Runtime) -> Arc<Self> {
        let machine = Machine::new(config, runtime.clock.clone(), runtime.rng.clone());
        let watched = Watched { machine, watchdog: None, alarm: None };
        let session = Arc::new(Self {
            runtime: runtime.clone(),
            watched: Mutex::new(watched),
            wake: Notify::new(),
            closing: watch::Sender::new(false),
            ending: watch::Sender::new(Ending::Running),
        });
        let weak = Arc::downgrade(&session);
        let watchdog = runtime.clock.watchdog(Arc::new(move || {
            if let Some(session) = weak.upgrade() {
                session.on_alarm();
            }
        }));
        session.lock().watchdog = Some(watchdog);
        let driven = driver::drive(session.clone(), access);
        runtime.spawn("holdfast-session", driven).detach();
        session
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` on the machine, then sets the watchdog to the machine's next alarm.
    fn with<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let mut watched = self.lock();
        let result = act(&mut watched.machine);
        let alarm = watched.machine.next_alarm();
        if alarm != watched.alarm {
            watched.alarm = alarm;
            if let Some(watchdog) = &watched.watchdog {
                watchdog.set(alarm);
            }
        }
        result
    }

    /// As [`Session::with`], and lets the task send what comes of it.
    fn act<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let result = self.with(act);
        self.wake.notify_one();
        result
    }

    /// Runs on the watchdog's thread: the executor may be stalled.
    fn on_alarm(&self) {
        self.lock().alarm = None;
        self.with(Machine::alarm);
        self.wake.notify_one();
    }

    // ---- for callers ----------------------------------------------------------------------

    /// Asks the machine something that changes nothing.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Machine) -> T) -> T {
        at(&self.lock().machine)
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.look(|machine| machine.timing().ttl())
    }

    pub(crate) fn ask(&self, ask: AcquireRequest) -> Result<PendingAcquire> {
        self.act(|machine| machine.ask(ask))
    }

    /// Cancels an acquire whose caller is gone. Does not wait.
    pub(crate) fn abandon(&self, key: Key) {
        self.act(|machine| machine.abandon(key));
    }

    /// Queues a release. The hold is unsafe when this returns.
    pub(crate) fn give_back(&self, key: Key) {
        self.act(|machine| machine.give_back(key, None));
    }

    /// Releases a hold and waits for the store's answer.
    pub(crate) async fn release(&self, key: Key, hold: &Hold) -> Result<()> {
        let release = |machine: &mut Machine, done| {
            machine.give_back(key, done);
            Ok(())
        };
        self.outcome("a release", hold, release).await
    }

    /// The same for some names of a hold.
    pub(crate) async fn release_names(
        &self,
        key: Key,
        hold: &Hold,
        names: &[Arc<str>],
    ) -> Result<()> {
        let release = |machine: &mut Machine, done| machine.give_back_names(key, names, done);
        self.outcome("a release", hold, release).await
    }

    /// Changes the value of a lock that is held, and waits until that is committed.
    pub(crate) async fn change_value(
        &self,
        key: Key,
        hold: &Hold,
        name: &str,
        change: Change,
    ) -> Result<()> {
        let set = |machine: &mut Machine, done| machine.change_value(key, name, change, done);
        self.outcome(CHANGE, hold, set).await
    }

    /// Begins an operation under `hold`, and waits for its outcome. If the sender of that is dropped,
    /// the client did not send the operation, because the hold was over.
    async fn outcome(
        &self,
        what: &'static str,
        hold: &Hold,
        begin: impl FnOnce(&mut Machine, Done) -> Result<()>,
    ) -> Result<()> {
        let (done, outcome) = oneshot::channel();
        let limit = self.ttl();
        self.act(|machine| begin(machine, Some(done)))?;
        match self.runtime.timeout(limit, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => {
                let reason = hold.safety.lost_reason().unwrap_or(LostReason::Revoked);
                Err(Error::Lost { reason })
            }
            Err(_) => Err(Error::OutcomeUnknown { what, waited: limit }),
        }
    }

    /// Ends the session in this client at once, and at the server as soon as the client reaches
    /// one.
    pub(crate) fn close(&self) {
        self.with(Machine::close);
        self.closing.send_replace(true);
        self.wake.notify_one();
    }

    pub(crate) async fn closed(&self) -> Result<()> {
        let mut ending = self.ending.subscribe();
        // The sender lives as long as the session.
        let ended =
            ending.wait_for(|ending| *ending != Ending::Running).await.map(|ending| *ending);
        match ended {
            Ok(Ending::Closed) => Ok(()),
            _ => Err(Error::OutcomeUnknown { what: "closing the session", waited: CLOSE_LIMIT }),
        }
    }
}
