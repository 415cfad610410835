//! Calls that were refused for want of a right, or with a wrong token: each is counted, and most are logged
//! (DESIGN §14).
//!
//! What somebody asks for without a right is of interest to an operator, and a flood of it must not fill
//! the disk: the first calls have lines of their own, the others are counted ([`RepeatedLines`]).

use std::fmt;
use std::sync::Arc;

use holdfast_core::{
    Ask, Caller, Command, Identity, LockTable, LogIndex, Missing, Rejection, SessionId,
};
use holdfast_runtime::{BoxFuture, Instant, Runtime};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::watch;

use crate::consensus::{Committed, Confirmed, Consensus, Done, Listener, Role};
use crate::error::ProposeError;
use crate::repeated_lines::RepeatedLines;

/// What a call with a token that does not count is counted as.
const WRONG_TOKEN: &str = "token";

/// The one label: the verb that was missing, `any`, or `token`.
type Label = [(&'static str, &'static str); 1];

/// Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Denials {
    /// By the verb that was missing.
    pub counted: Family<Label, Counter>,
    lines: Arc<RepeatedLines>,
}

impl Denials {
    /// A call lacks a right.
    pub(crate) fn missing(&self, now: Instant, by: &Identity, missing: &Missing) {
        let verb = match missing {
            Missing::On { verb, .. } | Missing::Whole { verb } => verb.name(),
            Missing::Any => "any",
        };
        self.note(now, verb, by, missing);
    }

    /// A call shows a token that does not count; `from` is its address.
    pub(crate) fn wrong_token(&self, now: Instant, from: &dyn fmt::Display) {
        self.note(now, WRONG_TOKEN, from, &"a token that is unknown, revoked, or has ended");
    }

    fn note(
        &self,
        now: Instant,
        label: &'static str,
        by: &dyn fmt::Display,
        missing: &dyn fmt::Display,
    ) {
        self.counted.get_or_create(&[("verb", label)]).inc();
        let due = self.lines.due(now);
        refused_too(due.untold);
        if due.may_write {
            tracing::warn!(%by, %missing, "a call was refused");
        }
    }

    /// Writes how many calls had no line, once their time is over.
    pub(crate) fn tell_rest(&self, now: Instant) {
        refused_too(self.lines.rest(now));
    }
}

fn refused_too(calls: u64) {
    if calls > 0 {
        tracing::warn!(calls, "as many calls more were refused");
    }
}

/// A replica whose refusals for want of a right are noted.
pub(crate) struct Noted {
    pub(crate) inner: Arc<dyn Consensus>,
    pub(crate) denials: Denials,
    pub(crate) runtime: Runtime,
}

/// Who sent a command.
enum By {
    Caller(Identity),
    Session(SessionId),
}

impl By {
    /// `None` for what needs no right.
    fn of(command: &Command) -> Option<Self> {
        match command {
            Command::By { caller: Caller { identity, .. }, .. } => {
                Some(Self::Caller(identity.clone()))
            }
            Command::Acquire { session, .. }
            | Command::AcquireOn(Ask { session, .. })
            | Command::SetValue { session, .. }
            | Command::Claim { session, .. } => Some(Self::Session(*session)),
            Command::OpenSession { .. }
            | Command::Import { .. }
            | Command::SetScope { .. }
            | Command::RemoveScope { .. } => Some(Self::Caller(Identity::default())),
            _ => None,
        }
    }
}

impl Noted {
    /// Reads the owner of a session in a task of its own: where a command's outcome comes in, the table
    /// may be locked.
    fn denied(
        inner: &Arc<dyn Consensus>,
        (denials, runtime): (Denials, Runtime),
        by: By,
        missing: Missing,
    ) {
        let now = runtime.clock.now();
        match by {
            By::Caller(identity) => denials.missing(now, &identity, &missing),
            By::Session(session) => {
                let inner = inner.clone();
                let look = async move {
                    let mut owner = Identity::default();
                    inner.read(&mut |table, _| {
                        let found = table.session(session);
                        owner =
                            found.map(|found| found.caller.identity.clone()).unwrap_or_default();
                    });
                    denials.missing(now, &owner, &missing);
                };
                runtime.spawn("denial", look).detach();
            }
        }
    }
}

/// The right whose lack refused a command.
fn missing_in(result: &Result<Committed, ProposeError>) -> Option<&Missing> {
    match result {
        Err(ProposeError::Forbidden(missing))
        | Ok(Committed { outcome: Err(Rejection::Forbidden(missing)), .. }) => Some(missing),
        _ => None,
    }
}

impl Consensus for Noted {
    fn role(&self) -> watch::Receiver<Role> {
        self.inner.role()
    }

    fn submit(&self, command: Command, done: Done) {
        let Some(by) = By::of(&command) else { return self.inner.submit(command, done) };
        let (inner, with) = (self.inner.clone(), (self.denials.clone(), self.runtime.clone()));
        let noted = move |result: Result<Committed, ProposeError>| {
            if let Some(missing) = missing_in(&result) {
                Self::denied(&inner, with, by, missing.clone());
            }
            done(result);
        };
        self.inner.submit(command, Box::new(noted));
    }

    fn confirm(&self) -> BoxFuture<'static, Result<Confirmed, ProposeError>> {
        self.inner.confirm()
    }

    fn read(&self, look: &mut dyn FnMut(&LockTable, LogIndex)) {
        self.inner.read(look);
    }

    fn had_at_start(&self) -> LogIndex {
        self.inner.had_at_start()
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        self.inner.attach(listener);
    }
}
