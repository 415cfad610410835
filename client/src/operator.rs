//! Operators' calls: sent to the leader, and retried until the outcome is known.

use std::fmt;
use std::time::Duration;

use holdfast_runtime::Runtime;

use crate::endpoints::Route;
use crate::reader::refused;
use crate::transport::operator::Failure;
use crate::{Error, Result};

/// The longest one server may take before the client tries the next. A server ends every call
/// itself, within its `propose_deadline_ms` (5 s unless it is set otherwise).
const ATTEMPT_LIMIT: Duration = Duration::from_secs(8);
/// Longest delay between two rounds of attempts.
const DELAY_MAX: Duration = Duration::from_millis(500);

/// Makes calls that may be repeated, each at the leader.
#[derive(Clone)]
pub(crate) struct Operator {
    endpoints: Vec<String>,
    runtime: Runtime,
    limit: Duration,
}

impl Operator {
    pub(crate) fn new(endpoints: Vec<String>, runtime: Runtime, limit: Duration) -> Self {
        Self { endpoints, runtime, limit }
    }

    /// Makes a call. `changes` is false for a read; `what` names the call in errors.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], nothing was changed; [`Error::Unreachable`], no leader answered within
    /// the limit and nothing was changed; [`Error::OutcomeUnknown`], it may still take effect.
    pub(crate) async fn ask<T, F>(
        &self,
        what: &'static str,
        changes: bool,
        call: impl Fn(String) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut asked = Asked { may_be_done: false, last: "nobody answered yet".to_owned() };
        let answer = self.ask_in_turn(call, &mut asked);
        match self.runtime.timeout(self.limit, answer).await {
            Ok(answer) => answer,
            Err(_) if changes && asked.may_be_done => {
                Err(Error::OutcomeUnknown { what, waited: self.limit })
            }
            Err(_) => Err(Error::Unreachable {
                endpoints: self.endpoints.clone(),
                waited: self.limit,
                last: asked.last,
            }),
        }
    }

    async fn ask_in_turn<T, F>(&self, call: impl Fn(String) -> F, asked: &mut Asked) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut route = Route::new(self.endpoints.clone(), DELAY_MAX);
        loop {
            let endpoint = route.next();
            let before = asked.may_be_done;
            // Until the answer proves otherwise: the caller may drop this future while it waits.
            asked.may_be_done = true;
            let answer = self.runtime.timeout(ATTEMPT_LIMIT, call(endpoint.clone())).await;
            let mut named = None;
            match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(Failure::Refused { message })) => return Err(refused(message)),
                Ok(Err(Failure::Unavailable { message, leader })) => {
                    asked.may_be_done = before;
                    (asked.last, named) = (message, leader);
                }
                Ok(Err(Failure::NotConnected { detail })) => {
                    asked.may_be_done = before;
                    asked.last = detail;
                }
                Ok(Err(Failure::Unknown { message })) => asked.last = message,
                Err(_) => asked.last = format!("{endpoint} does not answer"),
            }
            if let Some(delay) = route.failed(named, &*self.runtime.rng) {
                self.runtime.sleep(delay).await;
            }
        }
    }
}

/// What the client knows about a call without an answer.
struct Asked {
    may_be_done: bool,
    last: String,
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
