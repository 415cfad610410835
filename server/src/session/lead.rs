//! What a leader does for its sessions, from the start of a tenure to its end: quorum rounds for
//! keepalives, expiries, places. The numbers below are those of DESIGN §5.1–5.3 and §5.8.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Command, FencingToken, LEASE_PARTS, Rejection, SessionId, Tenure};
use holdfast_mutants::mutant;
use holdfast_proto::v1::KeptAlive;
use holdfast_proto::v1::server_frame::Body;
use holdfast_runtime::Instant;
use tokio::sync::watch::Receiver;

use super::error::StreamError;
use super::leases::{Leases, PendingKeepAlive};
use super::queues::Look;
use super::registry::Registry;
use super::{answers, watch};
use crate::consensus::{Committed, Consensus, Role};
use crate::error::ProposeError;
use crate::lengths::millis;

/// Pause after a round that brought no quorum, and before an expiry of unknown outcome is proposed
/// again.
pub(super) const RETRY: Duration = Duration::from_millis(100);
/// Time between a deadline and its expiry, in which frames that have arrived are handled.
const GRACE: Duration = Duration::from_millis(20);
/// A sleep that ended later than this after its time means that the node was paused.
const PAUSED: Duration = Duration::from_millis(100);
/// The grace after a pause, when many frames may have piled up.
const GRACE_AFTER_PAUSE: Duration = Duration::from_millis(250);
/// How often the leader checks whether it was paused.
const PULSE: Duration = Duration::from_millis(250);
/// A pulse this late means a pause that counts: a quarter of the shortest lease (`Limits::ttl_min_ms`),
/// which is the time between two keepalives of such a lease.
const LONG_PAUSE: Duration = Duration::from_millis(250);
/// Expiries proposed at once; the rest follow after the next look.
const EXPIRIES_AT_ONCE: usize = 1_024;
/// Keepalives acknowledged under one lock of the table.
const ACKNOWLEDGED_AT_ONCE: usize = 256;
/// Streams sent to another leader before other tasks run.
const SENT_AWAY_AT_ONCE: usize = 256;

/// The leader's side of the session layer.
#[derive(Clone, Debug)]
pub(super) struct Lead {
    pub(super) registry: Arc<Registry>,
    pub(super) consensus: Arc<dyn Consensus>,
}

impl Lead {
    /// Follows this node's role without end: serves each tenure while it lasts, and stops as soon as its
    /// end is known.
    pub(super) async fn run(self) {
        let mut role = self.consensus.role();
        loop {
            let led = role.borrow_and_update().tenure();
            let open = match led {
                Some(tenure) => {
                    let open = self.serve(tenure, &mut role).await;
                    let leader = leader_of(&role.borrow()).map(str::to_owned);
                    self.end(leader).await;
                    tracing::debug!(term = tenure.get(), "leads no more");
                    open
                }
                None => role.changed().await.is_ok(),
            };
            if !open {
                return;
            }
        }
    }

    /// Serves a tenure until the role ends it; `false` if no further role will come.
    async fn serve(&self, tenure: Tenure, role: &mut Receiver<Role>) -> bool {
        let over = async { role.wait_for(|now| now.tenure() != Some(tenure)).await.is_ok() };
        let work = async {
            let begun = self.registry.runtime.clock.now();
            self.begin(tenure).await;
            holdfast_runtime::select! {
                () = self.notice_pauses(tenure) => {}
                () = self.answer_keepalives(tenure) => {}
                () = self.expire(tenure) => {}
                () = self.keep_bounds(tenure) => {}
                () = self.tell_places() => {}
                () = self.vouch_for_watches(tenure) => {}
                () = self.end_wait_after_restore(tenure, begun) => {}
            }
            std::future::pending::<()>().await;
        };
        holdfast_runtime::select! {
            open = over => open,
            () = work => false,
        }
    }

    /// Starts the leases of a tenure that has applied its own first entry: every session has a full TTL
    /// and margin from now, or from later if there are very many (§5.3). Nobody is served before all of them
    /// have their lease.
    ///
    /// In parts: with a hundred thousand sessions the table would otherwise be locked, and this thread
    /// busy, for as long as an election takes.
    async fn begin(&self, tenure: Tenure) {
        self.consensus.read(&mut |table, index| {
            self.registry.note_applied(index);
            // The board did not receive what was applied before this layer listened.
            self.registry.board.restart(table.scopes());
            let sessions = table.counts().sessions;
            let now = self.registry.runtime.clock.now();
            self.registry.begin_tenure(tenure, now, sessions);
            tracing::debug!(term = tenure.get(), sessions, "leads, and begins the leases");
        });
        let mut part = 0;
        loop {
            self.consensus.read(&mut |table, _| {
                part = self.registry.enter_sessions(tenure, table, part);
            });
            if part >= LEASE_PARTS {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Ends the tenure's leases and watches at once, and then sends the streams to the leader; in parts
    /// as well.
    async fn end(&self, leader: Option<String>) {
        let (outboxes, mut times) = self.registry.end_tenure(leader.as_deref());
        for part in outboxes.chunks(SENT_AWAY_AT_ONCE) {
            for outbox in part {
                self.registry.send_away(outbox, leader.as_deref());
            }
            tokio::task::yield_now().await;
        }
        while times.free_some() {
            tokio::task::yield_now().await;
        }
    }

    /// Acknowledges keepalives, each after a quorum round begun after it came in (§5.1). One round at a
    /// time serves all that wait. Ends only with the tenure.
    async fn answer_keepalives(&self, tenure: Tenure) {
        loop {
            let Some(round) = self.registry.with_leases(tenure, Leases::take_waiting) else {
                return;
            };
            if round.is_empty() {
                self.registry.keepalive_waits.notified().await;
                continue;
            }
            if mutant!(KeepaliveWithoutQuorum) || self.confirm(tenure).await {
                self.acknowledge(tenure, &round).await;
            } else {
                self.registry.with_leases(tenure, |leases| leases.put_back(round));
                self.registry.runtime.sleep(RETRY).await;
            }
        }
    }

    /// Asks a quorum whether this node still leads in `tenure`. Without an answer the lease clock stands
    /// still, counted from the moment of the question (§5.8).
    async fn confirm(&self, tenure: Tenure) -> bool {
        let begun = self.registry.runtime.clock.now();
        self.registry.metrics.quorum_rounds.inc();
        let confirmed = self.consensus.confirm().await;
        let led = confirmed.is_ok_and(|confirmed| confirmed.tenure == tenure);
        if led {
            let now = self.registry.runtime.clock.now();
            self.registry.with_leases(tenure, |leases| leases.go_on(now));
            return true;
        }
        self.registry.metrics.quorum_rounds_failed.inc();
        if self.registry.with_leases(tenure, |leases| leases.stand_still(begun)) == Some(true) {
            tracing::warn!(term = tenure.get(), "no quorum answers; the leases stand still");
        }
        // The expirer has to make the clock run again.
        self.registry.sooner.notify_one();
        false
    }

    /// The round is confirmed, and everything committed before it is applied. In parts: after a pause tens
    /// of thousands may wait for one round.
    async fn acknowledge(&self, tenure: Tenure, round: &[PendingKeepAlive]) {
        let mut parts = round.chunks(ACKNOWLEDGED_AT_ONCE).peekable();
        while let Some(part) = parts.next() {
            self.acknowledge_part(tenure, part);
            if parts.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// A session that has a lease is alive in the applied state (§5.1). Under the table's lock: the
    /// answers name every hold that was closed in the state in which they renew (I35).
    fn acknowledge_part(&self, tenure: Tenure, part: &[PendingKeepAlive]) {
        let spread_ms = self.registry.spread_ms();
        self.consensus.read(&mut |table, index| {
            self.registry.with_leases(tenure, |leases| {
                for heard in part {
                    if leases.acknowledge(heard) {
                        self.registry.metrics.keepalives_acknowledged.inc();
                        let (seq, scopes) =
                            (heard.seq, self.registry.board.answers(tenure, heard.at));
                        let closed = answers::closed_holds(table, heard.session);
                        let kept = KeptAlive { seq, scopes, closed, spread_ms };
                        let kept = Body::KeptAlive(kept);
                        self.registry.push(&heard.outbox, index, kept);
                    }
                }
            });
        });
    }

    /// Leaves the time in which this node did not run out of every lease: for example when a virtual
    /// machine was stopped for longer than a TTL, and all members with it. The leader received nothing
    /// meanwhile, even from healthy clients, so the time counts like an outage of the store (§5.8). This
    /// only makes expiry later (I6). The clock counts suspended time, so a suspended machine is noticed
    /// too. The same pulse brings what else is looked at from time to time. Ends only with the tenure.
    async fn notice_pauses(&self, tenure: Tenure) {
        let clock = &self.registry.runtime.clock;
        let mut look = Look::default();
        loop {
            let planned = clock.now() + PULSE;
            clock.sleep_until(planned).await;
            let paused = clock.now().saturating_since(planned);
            self.registry.tell_rest();
            self.look_at_queues(&mut look);
            if paused < LONG_PAUSE || mutant!(PauseCountsForLeases) {
                continue;
            }
            tracing::warn!(
                paused_ms = millis(paused),
                "this node stood still; no lease counts that time"
            );
            if self.registry.with_leases(tenure, |leases| leases.leave_out(paused)).is_none() {
                return;
            }
        }
    }

    /// Proposes the expiry of sessions whose deadline has passed (§5.2). Ends only with the tenure.
    async fn expire(&self, tenure: Tenure) {
        let clock = &*self.registry.runtime.clock;
        // Only a mutant reads it.
        let begun = (clock.now(), clock.wall_ms());
        loop {
            let now = clock.now();
            let look = self.registry.with_leases(tenure, |leases| leases.next_look(now + RETRY));
            let Some(look) = look else { return };
            let Some(at) = self.woken(look).await else { continue };
            let passed = self.handle_what_arrived(at).await;
            let passed = if mutant!(ExpiryByWallClock) {
                begun.0 + Duration::from_millis(clock.wall_ms().saturating_sub(begun.1))
            } else {
                passed
            };
            // No quorum, no expiry (§5.8): an entry appended without one could still be committed
            // when it is back, over keepalives that could not be acknowledged meanwhile.
            if !self.confirm(tenure).await {
                continue;
            }
            let due = self
                .registry
                .with_leases(tenure, |leases| leases.begin_expiries(passed, EXPIRIES_AT_ONCE));
            for session in due.unwrap_or_default() {
                self.propose_expiry(tenure, session);
            }
            let ends = self
                .registry
                .with_leases(tenure, |leases| leases.begin_ends(passed, EXPIRIES_AT_ONCE));
            for (session, token) in ends.unwrap_or_default() {
                self.propose_end(tenure, session, token);
            }
        }
    }

    /// Waits until `look` and returns it; `None` if something may be due sooner.
    async fn woken(&self, look: Option<Instant>) -> Option<Instant> {
        let Some(at) = look else {
            self.registry.sooner.notified().await;
            return None;
        };
        holdfast_runtime::select! {
            () = self.registry.sooner.notified() => None,
            () = self.registry.runtime.clock.sleep_until(at) => Some(at),
        }
    }

    /// Lets the streams handle the frames that have arrived. Returns an instant before which everything
    /// that had arrived was handled: a session that was due by then had its chance to renew.
    ///
    /// Always waits, not only after a noticed pause: a pause that ended just before a deadline makes no
    /// timer late. A late timer means that there was a pause, in which frames piled up (§5.2).
    async fn handle_what_arrived(&self, planned: Instant) -> Instant {
        let clock = &self.registry.runtime.clock;
        let mut planned = planned;
        loop {
            let passed = clock.now();
            let was_paused = passed.saturating_since(planned) > PAUSED;
            planned = passed + if was_paused { GRACE_AFTER_PAUSE } else { GRACE };
            clock.sleep_until(planned).await;
            if clock.now().saturating_since(planned) <= PAUSED {
                return passed;
            }
        }
    }

    /// Ends all watches when no quorum has confirmed for a while that this node still leads: what the watchers
    /// were sent would otherwise keep looking like the present. One round that fails ends none.
    async fn vouch_for_watches(&self, tenure: Tenure) {
        let Registry { runtime, watches, .. } = &*self.registry;
        let mut vouched = runtime.clock.now();
        loop {
            runtime.sleep(watch::ROUND_EVERY).await;
            let begun = runtime.clock.now();
            // A watch that begins later begins with a round of its own.
            let leads_on = !watches.any() || {
                let confirmed = self.consensus.confirm().await;
                confirmed.is_ok_and(|confirmed| confirmed.tenure == tenure)
            };
            let patience = if mutant!(WatchEndsWithOneRound) {
                Duration::ZERO
            } else {
                watch::UNCONFIRMED_MAX
            };
            if leads_on {
                vouched = begun;
            } else if runtime.clock.now().saturating_since(vouched) >= patience {
                watches.end_all("no quorum answers this node; watch again", None);
            }
        }
    }

    /// Proposes one expiry, in the tenure in which the leader received the renewals.
    fn propose_expiry(&self, tenure: Tenure, session: SessionId) {
        let registry = self.registry.clone();
        let done = move |result| registry.expiry_ended(tenure, session, &result);
        self.consensus.submit(Command::ExpireSession { session, tenure }, Box::new(done));
    }

    /// Proposes the end of a closed hold whose deadline has passed (I35).
    fn propose_end(&self, tenure: Tenure, session: SessionId, token: FencingToken) {
        let registry = self.registry.clone();
        let done = move |result: Result<Committed, ProposeError>| {
            if result.is_err() {
                registry.with_leases(tenure, |leases| leases.end_unsettled(session, token));
                registry.sooner.notify_one();
            }
        };
        self.consensus.submit(Command::EndClosed { session, token, tenure }, Box::new(done));
    }
}

impl Registry {
    /// Writes how many events had no line of their own, where that is due.
    fn tell_rest(&self) {
        self.lines.tell_rest();
        self.metrics.denials.tell_rest(self.runtime.clock.now());
    }

    /// Records the outcome of a proposed expiry.
    fn expiry_ended(
        &self,
        tenure: Tenure,
        session: SessionId,
        result: &Result<Committed, ProposeError>,
    ) {
        let now = self.runtime.clock.now();
        self.with_leases(tenure, |leases| match result {
            Ok(Committed { outcome: Err(Rejection::OtherTenure { .. }), .. }) => {
                leases.expiry_refused(session, now);
            }
            // The session is over: its event has come before this.
            Ok(_) => {}
            Err(_) => leases.expiry_unsettled(session),
        });
        // The expirer may be asleep beyond the time of the next attempt.
        self.sooner.notify_one();
    }
}

/// Why something that needs a confirmed leader was not begun.
pub(super) fn unavailable(error: &ProposeError) -> StreamError {
    let leader = match error {
        ProposeError::NotLeader { leader: Some(leader) } => Some(&*leader.advertise),
        _ => None,
    };
    StreamError::unavailable(error.to_string(), leader)
}

/// Where clients reach the leader, if it is another node.
pub(super) fn leader_of(role: &Role) -> Option<&str> {
    match role {
        Role::Following { leader } => leader.as_ref().map(|leader| leader.advertise.as_str()),
        Role::Leading { .. } => None,
    }
}
