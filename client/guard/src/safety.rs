//! Whether a grant is safe: its deadlines, its end, the notification of both, and work that is dropped with it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use holdfast_mutants::mutant;
use holdfast_runtime::{Clock, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{Error, GuardState, GuardStates, LostReason, Result, Span};

/// Shared by a guard and the task that keeps its hold.
pub struct Safety {
    span: Arc<Span>,
    /// The second bound: the authority of the scope that its names are in (DESIGN §10).
    cover: Span,
    over: AtomicBool,
    state: watch::Sender<GuardState>,
    /// What an operator gave as the reason for taking it away; set before the state says that it is over.
    why: Arc<OnceLock<String>>,
    cancelled: CancellationToken,
}

impl Safety {
    /// `None` if `span` is over: a guard is never unsafe from the start.
    pub fn within(span: Arc<Span>) -> Option<Self> {
        let safe_until = span.deadline()?;
        Some(Self {
            span,
            cover: Span::unbounded(),
            over: AtomicBool::new(false),
            state: watch::Sender::new(GuardState::Held { safe_until }),
            why: Arc::default(),
            cancelled: CancellationToken::new(),
        })
    }

    /// Whether it is safe: one or two clock reads against atomics. Once false, false for ever,
    /// because each part changes only from true to false.
    pub fn is_safe(&self, clock: &dyn Clock) -> bool {
        let in_time = mutant!(IsSafeIgnoresClock) || self.is_in_time(clock);
        in_time && !self.over.load(Ordering::Acquire)
    }

    /// Whether none of its deadlines has passed.
    pub fn is_in_time(&self, clock: &dyn Clock) -> bool {
        self.span.is_alive(clock) && self.cover.is_alive(clock)
    }

    /// The safe deadline; `None` if it is known to have passed.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.span.deadline()?.min(self.cover.deadline()?))
    }

    /// The deadline of the authority; `None` if no authority bounds it, or the deadline has passed.
    pub fn covered_until(&self) -> Option<Instant> {
        if self.cover.is_unbounded() { None } else { self.cover.deadline() }
    }

    /// Bounds it by an authority, later or earlier than before, or removes that bound. False if the
    /// bound before is over, which is for ever.
    pub fn cover(&self, until: Option<Instant>, clock: &dyn Clock) -> bool {
        self.cover.bound(until, clock)
    }

    /// Moves the safe deadline to `to`, if that is later; false if it is over.
    pub fn extend(&self, to: Instant, clock: &dyn Clock) -> bool {
        self.span.extend(to, clock)
    }

    /// The state now.
    pub fn state(&self) -> GuardState {
        *self.state.borrow()
    }

    /// The state over time.
    pub fn states(&self) -> GuardStates {
        GuardStates::of(&self.state, &self.why)
    }

    /// Waits until it is lost. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        match self.states().over().await {
            GuardState::Lost(reason) => reason,
            // A borrowed guard cannot be released.
            _ => LostReason::Revoked,
        }
    }

    /// Why it was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        match self.state() {
            GuardState::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// Cancelled when it is over.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancelled
    }

    /// Makes it unsafe for ever and publishes `last`.
    pub fn end(&self, last: GuardState) {
        self.over.store(true, Ordering::Release);
        self.state.send_if_modified(|state| {
            let changes = !state.is_over();
            if changes {
                *state = last;
            }
            changes
        });
        self.cancelled.cancel();
    }

    /// Makes it unsafe for ever, because an operator wants that, and gave `why` as the reason.
    pub fn take_away(&self, reason: LostReason, why: &str) {
        if !why.is_empty() {
            let _ = self.why.set(why.to_owned());
        }
        self.end(GuardState::Lost(reason));
    }

    /// Publishes the current deadline.
    pub fn publish(&self, in_jeopardy: bool) {
        let Some(safe_until) = self.deadline() else { return };
        let now = if in_jeopardy {
            GuardState::Jeopardy { safe_until }
        } else {
            GuardState::Held { safe_until }
        };
        self.state.send_if_modified(|state| {
            let changes = !state.is_over() && *state != now;
            if changes {
                *state = now;
            }
            changes
        });
    }
}

/// Runs `work` while `is_safe`, and drops it at its current await point when it is not, or when
/// `lost` is done.
///
/// # Errors
///
/// [`Error::Lost`] if the lock stopped being safe before `work` was done.
pub async fn run_while<F: Future>(
    is_safe: impl Fn() -> bool,
    lost: impl Future<Output = LostReason>,
    work: F,
) -> Result<F::Output> {
    let (mut work, mut lost) = (pin!(work), pin!(lost));
    poll_fn(|context| {
        if let Poll::Ready(reason) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(Error::Lost { reason }));
        }
        // The watchdog reports the end a little later than the clock shows it.
        if !is_safe() {
            return Poll::Ready(Err(Error::Lost { reason: LostReason::DeadlinePassed }));
        }
        work.as_mut().poll(context).map(Ok)
    })
    .await
}
