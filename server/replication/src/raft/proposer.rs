//! The proposer: gathers commands into log entries and reports to each caller the outcome of its
//! command.
//!
//! Commands that arrive while the last entries are being committed become the next entry: the batch
//! grows with the load, and an idle server adds no delay.
//!
//! # Invariants
//!
//! - Each command's [`Done`] is called exactly once.
//! - Commands are proposed in the order of `submit`, each only in the tenure it was submitted in:
//!   openraft appends an entry only while this node leads the term it was meant for.
//! - A command gets a certain error ([`ProposeError::is_certainly_not_applied`]) only if it was
//!   never appended.
//!
//! # Bounds
//!
//! [`Admission`] bounds the waiting commands, by count and by bytes; [`MAX_BATCH_COMMANDS`] and
//! [`MAX_BATCH_BYTES`] bound one entry; [`IN_FLIGHT`] entries are in flight at most.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_core::{
    Batch, COMMAND_VERSION_OLDEST, Command, LogIndex, Outcome, SessionId, TERMS_SINCE, Tenure,
    Witness,
};
use holdfast_runtime::{Instant, Runtime};
use openraft::errors::{ClientWriteError, ForwardReason};
use tokio::sync::{Notify, watch};

use super::admission::{Admission, Bounds, Weight, frees};
use super::handler::{Raft, millis};
use super::machine::Replicated;
use super::metrics::ReplicationMetrics;
use super::types::{Callback, CommittedLeaderId, EncodedBatch, WriteResult};
use crate::consensus::{Committed, Done, Role};
use crate::error::ProposeError;

/// Most commands in one entry.
pub(super) const MAX_BATCH_COMMANDS: usize = 1_024;

/// Most bytes of the commands in one entry. A command alone takes about half of it at most: 64 names
/// of 512 bytes, or an import.
pub(super) const MAX_BATCH_BYTES: usize = 60 << 10;

/// Entries in flight at once: while one is synced, the next is replicated. Measured with 1 to 16:
/// more than two gain nothing.
const IN_FLIGHT: usize = 2;

/// The proposer's bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// The commands that may wait to be proposed.
    pub(super) bounds: Bounds,
    /// How long a caller waits for an outcome.
    pub(super) deadline: Duration,
}

/// What may be proposed at present, by the last survey of the members.
#[derive(Debug)]
pub(super) struct Policy {
    /// A disk is below its reserve: only commands that free or end something (DESIGN §7).
    pub(super) only_what_frees: AtomicBool,
    /// The highest version all members know (I29).
    pub(super) highest_version: AtomicU16,
}

impl Policy {
    pub(super) fn new() -> Self {
        Self {
            only_what_frees: AtomicBool::new(false),
            highest_version: AtomicU16::new(COMMAND_VERSION_OLDEST),
        }
    }

    /// Whether all members have reported that they know the command (I29).
    pub(super) fn check_version(&self, command: &Command) -> Result<(), ProposeError> {
        let version = command.version();
        if self.is_known(version) { Ok(()) } else { Err(ProposeError::VersionNotKnown { version }) }
    }

    fn is_known(&self, version: u16) -> bool {
        version <= self.highest_version.load(Ordering::Relaxed)
    }

    fn check_room(&self, command: &Command) -> Result<(), ProposeError> {
        if self.only_what_frees.load(Ordering::Relaxed) && !frees(command) {
            return Err(ProposeError::DiskReserve);
        }
        Ok(())
    }
}

/// Takes commands and proposes them.
pub(super) struct Proposer {
    queue: Mutex<Queue>,
    /// Notified when [`Proposer::run`] has something to do.
    wake: Notify,
    settings: Settings,
    runtime: Runtime,
    role: watch::Receiver<Role>,
    policy: Arc<Policy>,
    shared: Arc<Replicated>,
    metrics: ReplicationMetrics,
}

struct Queue {
    waiting: VecDeque<Waiting>,
    /// The weight of `waiting`.
    load: Admission,
    in_flight: VecDeque<Arc<Flight>>,
    /// The last witness that was put into a batch.
    witnessed: Option<LogIndex>,
    /// Up to when batches of a tenure have counted what passes.
    counted: Option<(Tenure, Instant)>,
    /// Leadership is being handed over: no new entry begins.
    paused: bool,
    closed: bool,
}

struct Waiting {
    tenure: Tenure,
    command: Command,
    weight: Weight,
    done: Done,
    since: Instant,
}

/// An entry in flight, and the callbacks of its commands.
struct Flight {
    since: Instant,
    /// The sessions of its commands that ask, one for each command.
    asking: Vec<SessionId>,
    dones: Mutex<Option<Vec<Done>>>,
}

impl Flight {
    /// Answers all callers, unless they were answered before.
    fn settle(&self, result: impl FnOnce(Vec<Done>)) {
        if let Some(dones) = lock(&self.dones).take() {
            result(dones);
        }
    }

    fn fail(&self, error: &ProposeError) {
        self.settle(|dones| fail_all(dones, error));
    }

    fn is_settled(&self) -> bool {
        lock(&self.dones).is_none()
    }
}

/// Given to openraft with the entry. openraft drops it without an answer only when it stops.
struct Landing {
    flight: Arc<Flight>,
    proposer: Arc<Proposer>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.flight.fail(&ProposeError::ShuttingDown);
        self.proposer.wake.notify_one();
    }
}

impl Proposer {
    pub(super) fn new(
        settings: Settings,
        runtime: Runtime,
        role: watch::Receiver<Role>,
        policy: Arc<Policy>,
        shared: Arc<Replicated>,
        metrics: ReplicationMetrics,
    ) -> Self {
        let (queue, wake) = (Mutex::new(Queue::new(settings.bounds)), Notify::new());
        Self { queue, wake, settings, runtime, role, policy, shared, metrics }
    }

    /// See [`Consensus::submit`](crate::consensus::Consensus::submit). A command that can be
    /// refused at once is refused before this returns.
    pub(super) fn submit(&self, command: Command, done: Done) {
        let command = self.in_known_form(command);
        match self.admit(&command) {
            Err(error) => done(Err(error)),
            Ok((tenure, is_shown)) => {
                let (since, weight) = (self.runtime.clock.now(), Weight::of(&command, is_shown));
                let waiting = Waiting { tenure, command, weight, done, since };
                match self.enqueue(waiting) {
                    Ok(()) => self.wake.notify_one(),
                    // Called after the queue's lock is released.
                    Err((done, error)) => done(Err(error)),
                }
            }
        }
    }

    fn enqueue(&self, waiting: Waiting) -> Result<(), (Done, ProposeError)> {
        let mut queue = lock(&self.queue);
        let steps_of = |session| self.steps_to_free(session);
        let refusal = queue.closed_to(&self.role).or_else(|| {
            let refusal = queue.load.refusal(waiting.weight, steps_of)?;
            self.metrics.commands_refused.inc();
            Some(refusal)
        });
        if let Some(error) = refusal {
            return Err((waiting.done, error));
        }
        queue.push(waiting);
        Ok(())
    }

    /// The number of steps in which a session can give back what the table has of it.
    fn steps_to_free(&self, session: SessionId) -> usize {
        let steps = self.shared.look(|table, _| table.steps_to_free(session));
        usize::try_from(steps).unwrap_or(usize::MAX)
    }

    /// The tenure that the command is for, and whether the table shows what it frees.
    fn admit(&self, command: &Command) -> Result<(Tenure, bool), ProposeError> {
        let tenure = self.role.borrow().tenure();
        let tenure = tenure.ok_or_else(|| not_leader(&self.role))?;
        self.check_version(command)?;
        self.policy.check_room(command)?;
        // I26: what is forbidden reaches the log only by a race with a change of the rules.
        let (permitted, is_shown) = self
            .shared
            .look(|table, _| (table.allows(command), table.shows_what_is_freed(command)));
        permitted.map_err(ProposeError::Forbidden)?;
        Ok((tenure, is_shown))
    }

    /// The command, or an older form of it where a member may not know its own (I29).
    fn in_known_form(&self, command: Command) -> Command {
        if self.check_version(&command).is_ok() { command } else { command.into_older_form() }
    }

    fn check_version(&self, command: &Command) -> Result<(), ProposeError> {
        self.policy.check_version(command).or_else(|unknown| {
            if self.was_applied(command.version()) { Ok(()) } else { Err(unknown) }
        })
    }

    /// When a version was proposed, every member knew it (I29). So a member that is down when a
    /// leader begins, and cannot report its version, blocks no version that was applied before.
    fn was_applied(&self, version: u16) -> bool {
        version <= self.shared.look(|table, _| table.applied_version())
    }

    /// Proposes until the task is dropped.
    pub(super) async fn run(self: Arc<Self>, raft: Raft) {
        loop {
            self.drop_overdue();
            if let Some((tenure, batch, flight)) = self.gather() {
                self.propose(&raft, tenure, batch, flight).await;
                continue;
            }
            let next = self.next_deadline();
            let overdue = async {
                match next {
                    Some(at) => self.runtime.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            holdfast_runtime::select! {
                () = self.wake.notified() => {}
                () = overdue => {}
            }
        }
    }

    /// Takes the next batch out of the queue, if an entry may go now.
    fn gather(&self) -> Option<(Tenure, Batch, Arc<Flight>)> {
        let current = self.role.borrow().tenure();
        let mut gone = Vec::new();
        let gathered = {
            let mut queue = lock(&self.queue);
            queue.forget_landed();
            if queue.in_flight.len() >= IN_FLIGHT {
                return None;
            }
            let (mut commands, mut dones) = (Vec::new(), Vec::new());
            let (mut asking, mut bytes) = (Vec::new(), 0);
            while commands.len() < MAX_BATCH_COMMANDS
                && let Some(next) = queue.waiting.front()
            {
                let length = next.weight.bytes;
                if !commands.is_empty() && bytes + length > MAX_BATCH_BYTES {
                    break;
                }
                let Some(next) = queue.waiting.pop_front() else { break };
                if Some(next.tenure) != current {
                    queue.load.leave(next.weight);
                    gone.push(next.done);
                    continue;
                }
                asking.extend(queue.load.depart(next.weight));
                bytes += length;
                commands.push(next.command);
                dones.push(next.done);
            }
            current.filter(|_| !commands.is_empty()).map(|tenure| {
                let witness = self.next_witness(&mut queue);
                let aged_ms = self.passed_ms(&mut queue, tenure, &commands);
                let stamp_ms = self.runtime.clock.wall_ms();
                let (since, dones) = (self.runtime.clock.now(), Mutex::new(Some(dones)));
                let flight = Arc::new(Flight { since, asking, dones });
                queue.in_flight.push_back(Arc::clone(&flight));
                (tenure, Batch { stamp_ms, witness, aged_ms, commands }, flight)
            })
        };
        if !gone.is_empty() {
            // Submitted in a tenure that is over, and never appended.
            fail_all(gone, &not_leader(&self.role));
        }
        gathered
    }

    /// What has passed since the last batch of this tenure (DESIGN §16). Older releases do not know it, so
    /// it begins with a new cluster, and in an older one with the first command that they do not know either: a member
    /// that was upgraded can go back until then.
    fn passed_ms(&self, queue: &mut Queue, tenure: Tenure, commands: &[Command]) -> u64 {
        let is_new = |command: &Command| matches!(command, Command::BeginTokens { .. });
        if self.policy.is_known(TERMS_SINCE) && commands.iter().any(is_new) {
            // Nothing has passed, and it begins to.
            queue.counted = Some((tenure, self.runtime.clock.now()));
            return 1;
        }
        let asks = commands.iter().any(|command| command.version() >= TERMS_SINCE);
        if !asks && !self.was_applied(TERMS_SINCE) {
            return 0;
        }
        let now = self.runtime.clock.now();
        let counted = queue.counted.filter(|&(counted, _)| counted == tenure);
        let before = counted.map_or(now, |(_, before)| before);
        let passed_ms = millis(now.saturating_since(before));
        // Less than a millisecond is left for the next batch.
        queue.counted = Some((tenure, before + Duration::from_millis(passed_ms)));
        passed_ms
    }

    /// The newest witness, each only once (I16).
    fn next_witness(&self, queue: &mut Queue) -> Option<Witness> {
        let newest = self.shared.look(|table, _| table.latest_witness())?;
        if queue.witnessed == Some(newest.index) {
            return None;
        }
        queue.witnessed = Some(newest.index);
        Some(newest)
    }

    /// Proposes one batch beside the queue.
    #[cfg(test)]
    pub(super) async fn propose_alone(
        self: &Arc<Self>,
        raft: &Raft,
        tenure: Tenure,
        batch: Batch,
        done: Done,
    ) {
        let (since, dones) = (self.runtime.clock.now(), Mutex::new(Some(vec![done])));
        let flight = Arc::new(Flight { since, asking: Vec::new(), dones });
        lock(&self.queue).in_flight.push_back(Arc::clone(&flight));
        self.propose(raft, tenure, batch, flight).await;
    }

    async fn propose(
        self: &Arc<Self>,
        raft: &Raft,
        tenure: Tenure,
        batch: Batch,
        flight: Arc<Flight>,
    ) {
        self.metrics.proposed(batch.commands.len());
        let landing = Landing { flight, proposer: Arc::clone(self) };
        let since = landing.flight.since;
        let responder = Callback::new(move |result: WriteResult| {
            let proposer = &landing.proposer;
            landing.flight.settle(|dones| proposer.land(result, dones, since));
        });
        // Conditional on the term: openraft appends a batch of this tenure in no other.
        let sent = raft
            .write(EncodedBatch(batch.encode().into()))
            .with_leader(CommittedLeaderId::new(tenure.get()))
            .responder(responder)
            .await;
        if let Err(error) = sent {
            // The responder was dropped, and its drop answered all callers.
            tracing::debug!(%error, "proposed to a replica that stops");
        }
    }

    fn land(&self, result: WriteResult, dones: Vec<Done>, since: Instant) {
        match result {
            Ok(response) => {
                let took = self.runtime.clock.now().saturating_since(since);
                self.metrics.commit_seconds.observe(took.as_secs_f64());
                deliver(LogIndex::new(response.log_id.index), response.data, dones);
            }
            Err(error) => {
                let error = self.meaning(&error, since);
                fail_all(dones, &error);
            }
        }
    }

    /// What is certain after openraft's refusal.
    fn meaning(
        &self,
        error: &ClientWriteError<super::types::Types>,
        since: Instant,
    ) -> ProposeError {
        let waited_ms = self.waited_ms(since);
        match error {
            // openraft returns this only before it appends anything: an entry that was appended and
            // is given up comes back as `LogEntryDiscarded`.
            ClientWriteError::ForwardToLeader(forward) => match forward.reason {
                ForwardReason::LeaseExpired => ProposeError::Unavailable { waited_ms },
                ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
                    not_leader(&self.role)
                }
            },
            ClientWriteError::LogEntryDiscarded(_)
            | ClientWriteError::ChangeMembershipError(_)
            | ClientWriteError::PreconditionFailed(_) => ProposeError::OutcomeUnknown { waited_ms },
        }
    }

    fn waited_ms(&self, since: Instant) -> u64 {
        let waited = self.runtime.clock.now().saturating_since(since);
        millis(waited)
    }

    /// Answers the callers whose deadline has passed (I32).
    fn drop_overdue(&self) {
        let now = self.runtime.clock.now();
        let due = |since: Instant| since + self.settings.deadline <= now;
        let (waiting, flights) = {
            let mut queue = lock(&self.queue);
            let mut waiting = Vec::new();
            while queue.waiting.front().is_some_and(|next| due(next.since)) {
                waiting.extend(queue.give_up_next());
            }
            let flights: Vec<_> =
                queue.in_flight.iter().filter(|flight| due(flight.since)).cloned().collect();
            (waiting, flights)
        };
        let waited_ms = millis(self.settings.deadline);
        for waiting in waiting {
            (waiting.done)(Err(ProposeError::Unavailable { waited_ms }));
        }
        for flight in flights {
            flight.fail(&ProposeError::OutcomeUnknown { waited_ms });
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let queue = lock(&self.queue);
        let waiting = queue.waiting.front().map(|next| next.since);
        let flying = queue.in_flight.iter().filter(|flight| !flight.is_settled());
        let first = waiting.into_iter().chain(flying.map(|flight| flight.since)).min()?;
        Some(first + self.settings.deadline)
    }

    /// Ends a tenure. Another leader may still commit what was appended; what waits is never
    /// committed.
    pub(super) fn tenure_ended(&self) {
        let (waiting, flights) = self.take_all();
        let error = not_leader(&self.role);
        fail_all(waiting, &error);
        for flight in flights {
            let waited_ms = self.waited_ms(flight.since);
            flight.fail(&ProposeError::OutcomeUnknown { waited_ms });
        }
        self.wake.notify_one();
    }

    /// Stops beginning new entries, or begins them again.
    pub(super) fn pause(&self, paused: bool) {
        lock(&self.queue).paused = paused;
    }

    /// How many entries are in flight.
    pub(super) fn in_flight(&self) -> usize {
        lock(&self.queue).in_flight.iter().filter(|flight| !flight.is_settled()).count()
    }

    /// How many commands wait to be proposed.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.queue).waiting.len()
    }

    /// How many bytes the waiting commands take.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.queue).load.bytes()
    }

    /// Stops: all callers get an answer, now and later.
    pub(super) fn close(&self) {
        lock(&self.queue).closed = true;
        let (waiting, flights) = self.take_all();
        fail_all(waiting, &ProposeError::ShuttingDown);
        for flight in flights {
            flight.fail(&ProposeError::ShuttingDown);
        }
    }

    fn take_all(&self) -> (Vec<Done>, Vec<Arc<Flight>>) {
        let mut queue = lock(&self.queue);
        queue.witnessed = None;
        queue.paused = false;
        queue.load.clear();
        let waiting = queue.waiting.drain(..).map(|waiting| waiting.done).collect();
        (waiting, queue.in_flight.drain(..).collect())
    }
}

impl Queue {
    fn new(bounds: Bounds) -> Self {
        Self {
            waiting: VecDeque::new(),
            load: Admission::new(bounds),
            in_flight: VecDeque::new(),
            witnessed: None,
            counted: None,
            paused: false,
            closed: false,
        }
    }

    /// Why every command is refused; `None` if commands are accepted.
    fn closed_to(&self, role: &watch::Receiver<Role>) -> Option<ProposeError> {
        if self.closed {
            return Some(ProposeError::ShuttingDown);
        }
        self.paused.then(|| not_leader(role))
    }

    fn push(&mut self, waiting: Waiting) {
        self.load.enter(waiting.weight);
        self.waiting.push_back(waiting);
    }

    /// Takes out the next command, which is not proposed.
    fn give_up_next(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        self.load.leave(next.weight);
        Some(next)
    }

    fn forget_landed(&mut self) {
        let Self { in_flight, load, .. } = self;
        in_flight.retain(|flight| {
            let is_settled = flight.is_settled();
            if is_settled {
                flight.asking.iter().for_each(|session| load.landed(*session));
            }
            !is_settled
        });
    }
}

fn deliver(index: LogIndex, outcomes: Vec<Outcome>, dones: Vec<Done>) {
    let mut outcomes = outcomes.into_iter();
    for done in dones {
        match outcomes.next() {
            Some(outcome) => done(Ok(Committed { index, outcome })),
            // The entry was committed without an outcome for this command: its outcome is unknown.
            None => done(Err(ProposeError::OutcomeUnknown { waited_ms: 0 })),
        }
    }
}

fn fail_all(dones: Vec<Done>, error: &ProposeError) {
    for done in dones {
        done(Err(error.clone()));
    }
}

/// The error for a command that was not appended here, with the leader that `role` knows.
pub(super) fn not_leader(role: &watch::Receiver<Role>) -> ProposeError {
    ProposeError::NotLeader { leader: role.borrow().leader() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
