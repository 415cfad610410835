//! A guard made of others: held while all of them are, and while the row of the process covers it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, select_all};
use holdfast_runtime::{Clock, Instant, Runtime, select};

use super::state::InUse;
use crate::alarms::Alarm;
use crate::cassandra::Cassandra;
use crate::locker::{Held, RemoteGuard};
use crate::{Error, FencingToken, GuardState, GuardStates, LostReason, Result};
use holdfast_guard::{Safety, Span};

pub(crate) struct CompoundGuard {
    safety: Arc<Safety>,
    /// That of the row of the process; `None`: it needs none.
    standing: Option<Arc<Safety>>,
    runtime: Runtime,
    /// In the order of release: the reverse of that of the acquires.
    parts: Vec<RemoteGuard>,
    _alarm: Alarm,
}

impl CompoundGuard {
    /// `None` if one of the parts is not safe: then all of them are given back. Without `used`, no row of modes covers it.
    pub(crate) fn new(
        parts: Vec<RemoteGuard>,
        used: Option<InUse>,
        cassandra: &Cassandra,
    ) -> Option<Self> {
        let runtime = cassandra.runtime();
        let standing = used.as_ref().map(|used| used.standing.clone());
        let mut states: Vec<_> = parts.iter().map(RemoteGuard::states).collect();
        states.extend(standing.as_ref().map(|standing| standing.states()));
        let until = together(&states).ok()?.0;
        let safety = Arc::new(Safety::within(Span::new(until))?);
        let alarm = cassandra.alarms.watch(safety.clone());
        let guard = Self {
            safety: safety.clone(),
            standing,
            runtime: runtime.clone(),
            parts,
            _alarm: alarm,
        };
        if !guard.is_safe() {
            return None;
        }
        let clock = runtime.clock.clone();
        runtime.spawn("holdfast-compound-guard", follow(safety, clock, states, used)).detach();
        Some(guard)
    }

    /// Checks the parts directly, so that a lost part ends the guard here before its notification
    /// arrives.
    fn lost(&self) -> Option<LostReason> {
        if self.safety.is_safe(self.clock())
            && self.standing.iter().all(|standing| standing.is_safe(self.clock()))
            && self.parts.iter().all(RemoteGuard::is_safe)
        {
            return None;
        }
        let reasons = self.parts.iter().map(|part| match part.state() {
            GuardState::Lost(reason) => Some(reason),
            _ => None,
        });
        Some(reasons.flatten().next().unwrap_or(LostReason::DeadlinePassed))
    }
}

/// The instant until which all of them are safe, and whether one is in jeopardy; or the reason why
/// one ended.
fn together(states: &[GuardStates]) -> Result<(Instant, bool), LostReason> {
    let mut until = None::<Instant>;
    let mut worry = false;
    for state in states {
        let safe_until = match state.now() {
            GuardState::Held { safe_until } => safe_until,
            GuardState::Jeopardy { safe_until } => {
                worry = true;
                safe_until
            }
            GuardState::Lost(reason) => return Err(reason),
            GuardState::Released => return Err(LostReason::Revoked),
        };
        until = Some(until.map_or(safe_until, |until| until.min(safe_until)));
    }
    until.map(|until| (until, worry)).ok_or(LostReason::Revoked)
}

/// Extends the deadline as those of the parts move, and ends it when one of the parts ends. Only then it drops `used`.
async fn follow(
    safety: Arc<Safety>,
    clock: Arc<dyn Clock>,
    mut states: Vec<GuardStates>,
    used: Option<InUse>,
) {
    while safety.is_safe(&*clock) {
        match together(&states) {
            Ok((until, worry)) => {
                safety.extend(until, &*clock);
                safety.publish(worry);
            }
            Err(reason) => safety.end(GuardState::Lost(reason)),
        }
        let changes = states.iter_mut().map(|state| Box::pin(state.changed()));
        select! {
            () = safety.cancelled().cancelled() => {}
            _ = select_all(changes) => {}
        }
    }
    safety.end(GuardState::Lost(LostReason::DeadlinePassed));
    drop(used);
}

impl Held for CompoundGuard {
    fn safety(&self) -> &Safety {
        &self.safety
    }

    fn clock(&self) -> &dyn Clock {
        &*self.runtime.clock
    }

    fn is_safe(&self) -> bool {
        self.lost().is_none()
    }

    fn token(&self) -> Option<FencingToken> {
        self.parts.iter().find_map(RemoteGuard::token)
    }

    /// The shortest of the parts, which ends the guard.
    fn ttl(&self) -> Duration {
        self.parts.iter().map(RemoteGuard::ttl).min().unwrap_or_default()
    }

    fn release(mut self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let lost = self.lost();
            self.safety.end(lost.map_or(GuardState::Released, GuardState::Lost));
            let mut answer = Ok(());
            for part in std::mem::take(&mut self.parts) {
                let given_back = part.release().await;
                answer = answer.and(given_back);
            }
            match self.safety.lost_reason() {
                Some(reason) => Err(Error::Lost { reason }),
                None => answer,
            }
        })
    }
}

impl Drop for CompoundGuard {
    fn drop(&mut self) {
        self.safety.end(GuardState::Released);
    }
}
