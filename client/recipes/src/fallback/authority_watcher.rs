//! The one reader of a scope's row in a process: it extends holds, takes the scope over when a caller waits for that,
//! and reads nothing while neither a hold nor a waiting caller needs it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_keyspace::authority::{
    AnswerLimit, Authority, AuthorityRow, Change, Durations, Look, Mode,
};
use holdfast_mutants::mutant;
use holdfast_runtime::{Instant, Runtime, select};
use tokio::sync::{Notify, watch};

use super::row_view::{Permit, RowView};
use crate::cells::drawn_up_to;
use crate::database::Fault;
use crate::{FencingToken, GuardState, LostReason};
use holdfast_guard::{Backoff, Safety};

/// Cheap to clone; all clones share their state.
#[derive(Clone)]
pub(super) struct AuthorityWatcher(Arc<Inner>);

struct Inner {
    authority: Authority,
    runtime: Runtime,
    state: Mutex<State>,
    /// Counts the updates of what is known of the row.
    news: watch::Sender<u64>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    view: RowView,
    /// The number of callers that wait for a lock; the scope is taken over only for them.
    acquiring: usize,
    holds: BTreeMap<u64, Held>,
    last_hold: u64,
    /// The number of the latest read that began.
    reading: u64,
    runs: bool,
    /// Why the row is not known, for error messages.
    trouble: String,
}

struct Held {
    epoch: u16,
    /// The first read that counts for the hold: the next one to begin after the hold began.
    first_read: u64,
    safety: Arc<Safety>,
}

/// A caller waits for a lock as long as this exists.
pub(super) struct Acquiring(AuthorityWatcher);

/// Reads extend a hold as long as this exists.
pub(super) struct Holding {
    watcher: AuthorityWatcher,
    id: u64,
}

impl AuthorityWatcher {
    pub(super) fn new(authority: Authority, runtime: Runtime) -> Self {
        let trouble = "the row was not read yet".to_owned();
        let state = State { trouble, ..State::default() };
        let (state, news, wake) = (Mutex::new(state), watch::Sender::new(0), Notify::new());
        Self(Arc::new(Inner { authority, runtime, state, news, wake }))
    }

    pub(super) fn scope(&self) -> &str {
        self.0.authority.scope()
    }

    /// The cluster whose leaders keep the row, by the last read.
    pub(super) fn cluster(&self) -> Option<String> {
        let row = self.lock().view.row();
        row.and_then(|row| row.cluster).map(|cluster| cluster.to_string())
    }

    /// How long one read covers a hold, and how often the task reads the row.
    pub(super) fn pace(&self) -> Durations {
        self.lock().view.pace()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts reading the row, and taking the scope over when that is allowed. Call it inside the runtime whose tasks
    /// then do it.
    pub(super) fn acquiring(&self) -> Acquiring {
        let mut state = self.lock();
        state.acquiring += 1;
        if state.runs {
            let is_known = self.permit_of(&state).is_ok();
            drop(state);
            if !is_known {
                // Only holds existed so far, and the task reads no more often than they need.
                self.0.wake.notify_one();
            }
        } else {
            state.runs = true;
            drop(state);
            self.0.runtime.spawn("holdfast-watcher", self.clone().keep()).detach();
        }
        Acquiring(self.clone())
    }

    /// Permission to request a lock now, or the reason why there is none.
    pub(super) fn permit(&self) -> Result<Permit, String> {
        self.permit_of(&self.lock())
    }

    fn permit_of(&self, state: &State) -> Result<Permit, String> {
        let now = self.0.runtime.clock.now();
        let Some(permit) = state.view.permit() else { return Err(self.reason(state, now)) };
        // What is left of it has to last until the next read.
        if now + state.view.pace().read_every() < permit.until {
            Ok(permit)
        } else {
            Err(format!("the row of scope {:?} was read too long ago", self.scope()))
        }
    }

    /// Why no lock can be requested in Cassandra now, for error messages.
    pub(super) fn why_not(&self) -> String {
        self.permit().err().unwrap_or_else(|| "no answer to the lease".to_owned())
    }

    fn reason(&self, state: &State, now: Instant) -> String {
        let scope = self.scope();
        let Some(row) = state.view.row() else {
            return format!("scope {scope:?}: {}", state.trouble);
        };
        let left = state.view.take_over_at().map(|at| at.saturating_since(now).as_secs());
        match (row.mode, left) {
            (Mode::Native | Mode::Draining, Some(left)) => format!(
                "scope {scope:?} is {row}; it is taken over if that does not change for {left} s more"
            ),
            (Mode::Preparing, _) => {
                format!("scope {scope:?} is being prepared: nobody takes over yet")
            }
            (Mode::Retired, _) => format!("scope {scope:?} has no fallback any more"),
            (mode, _) => format!("scope {scope:?} is {mode} in epoch {}", row.epoch),
        }
    }

    pub(super) async fn served(&self) {
        let mut news = self.0.news.subscribe();
        while self.permit().is_err() {
            // The sender is our own.
            let _ = news.changed().await;
        }
    }

    /// Registers a hold under `token` and that permission: bounds its safety, which later reads extend.
    pub(super) fn holds(
        &self,
        token: FencingToken,
        permit: Permit,
        safety: Arc<Safety>,
    ) -> Holding {
        safety.cover(Some(permit.until), &*self.0.runtime.clock);
        let mut state = self.lock();
        state.last_hold += 1;
        let id = state.last_hold;
        let next = if mutant!(ReadBeforeHoldCounts) { 0 } else { state.reading + 1 };
        let epoch = u16::try_from(token.epoch()).unwrap_or(u16::MAX);
        state.holds.insert(id, Held { epoch, first_read: next, safety });
        Holding { watcher: self.clone(), id }
    }

    /// The task; it ends when neither a hold nor a waiting caller needs it.
    async fn keep(self) {
        let mut pauses = Backoff::new(self.pace().read_every());
        // A hold gains nothing from an answer that takes longer than the hold lasts.
        let mut limit = AnswerLimit::between(self.pace().read_every(), self.pace().hold());
        let mut failed = 0_u32;
        loop {
            let Some(number) = self.begin_read() else { return };
            let next = match self.read(limit.get()).await {
                Ok(look) => {
                    self.looked(number, &look);
                    // The row determines how often it is read.
                    pauses = Backoff::new(self.pace().read_every());
                    failed = 0;
                    limit = AnswerLimit::between(self.pace().read_every(), self.pace().hold());
                    limit.answered(look.ended.saturating_since(look.began));
                    self.lead_over().await
                }
                Err(fault) => {
                    failed += 1;
                    limit.not_answered();
                    fault.message().clone_into(&mut self.lock().trouble);
                    Some(self.0.runtime.clock.now() + self.pause(failed, &mut pauses))
                }
            };
            self.0.news.send_modify(|news| *news += 1);
            let Some(next) = next else { continue };
            select! {
                () = self.0.runtime.clock.sleep_until(next) => {}
                () = self.0.wake.notified() => {}
            }
        }
    }

    /// The number of the read that begins now; `None` if neither a hold nor a waiting caller needs
    /// it.
    fn begin_read(&self) -> Option<u64> {
        let mut state = self.lock();
        if state.acquiring == 0 && state.holds.is_empty() {
            // A later caller trusts only what is read after it came.
            state.view.forget();
            state.runs = false;
            return None;
        }
        state.reading += 1;
        Some(state.reading)
    }

    /// The pause before a read that follows a failed one: short after the first failure, for the sake of holds, and
    /// then as long as any other. Otherwise hurried readers would keep Cassandra too busy to answer any of them.
    fn pause(&self, failed: u32, pauses: &mut Backoff) -> Duration {
        let pause = pauses.next(&*self.0.runtime.rng);
        if failed > 1 { self.until_next_read() } else { pause }
    }

    async fn read(&self, limit: Duration) -> Result<Look, Fault> {
        let read = self.0.runtime.timeout(limit, self.0.authority.read()).await;
        read.unwrap_or_else(|_| Err(Fault::NotDone(format!("no answer within {limit:?}"))))
    }

    /// Extends the holds that existed when the read began, or ends them.
    fn looked(&self, number: u64, look: &Look) {
        let mut state = self.lock();
        let State { view, holds, trouble, .. } = &mut *state;
        view.looked(look);
        if look.row.is_none() {
            "it has no row in the table authority, and so no fallback".clone_into(trouble);
        }
        let clock = &*self.0.runtime.clock;
        for held in holds.values() {
            match view.covers(held.epoch) {
                Some(until) if held.first_read <= number => {
                    held.safety.cover(Some(until), clock);
                    held.safety.publish(false);
                }
                Some(_) => {}
                None => held.safety.end(GuardState::Lost(LostReason::AuthorityPassed)),
            }
        }
    }

    /// Takes the scope over, if a caller waits for that and it is due. Returns when to read again; `None`: at once.
    async fn lead_over(&self) -> Option<Instant> {
        let now = self.0.runtime.clock.now();
        let (change, due) = {
            let state = self.lock();
            let wanted = state.acquiring > 0;
            let due = state.view.take_over_at().filter(|_| wanted);
            (state.view.take_over(now).filter(|_| wanted), due)
        };
        let Some((from, to)) = change else {
            let next = now + self.until_next_read();
            return Some(due.map_or(next, |due| next.min(due)));
        };
        let changed = self.0.authority.change(from, to).await;
        tracing::info!(scope = self.scope(), %from, %to, ?changed, "a scope is taken over");
        self.settle(to, now, &changed);
        match changed {
            // A coordinator may still work on it.
            Err(_) => Some(self.0.runtime.clock.now() + self.pace().read_every() / 10),
            Ok(Change::Done { .. } | Change::Otherwise) => None,
        }
    }

    /// Whatever the outcome, the process has to read the row before anything follows from it.
    fn settle(&self, to: AuthorityRow, began: Instant, changed: &Result<Change, Fault>) {
        let mut state = self.lock();
        state.view.forget();
        if changed.is_err() && mutant!(UnknownTakeOverCounts) {
            state.view.looked(&Look { began, ended: began, row: Some(to) });
        }
        "the row was changed, and not read since".clone_into(&mut state.trouble);
    }

    /// Between three quarters of the interval and all of it, so that processes that began together spread out.
    fn until_next_read(&self) -> Duration {
        let every = self.pace().read_every();
        every * 3 / 4 + drawn_up_to(every / 4, &*self.0.runtime.rng)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.0.lock().acquiring -= 1;
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.watcher.lock().holds.remove(&self.id);
    }
}
