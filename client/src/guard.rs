//! A lock that is held.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::Handle;
use crate::hold::Hold;
use crate::session::Key;
use crate::{FencingToken, GuardState, LostReason, Result};

/// A lock that is held, for as long as [`Guard::is_safe`] says so.
///
/// Dropping it gives the lock back without waiting; [`Guard::release`] waits until that is
/// certain. A guard outlives broken connections, changes of leader and every clone of its client.
///
/// Safe means: no other client holds the lock or is granted it before this guard's safe deadline,
/// which moves on as keepalives are answered. A guard that stopped being safe never is again. What
/// a process does after it looked (a write on its way, a pause of the whole machine) no lock can
/// hold back: give the resource the [`Guard::token`] and let it refuse older ones.
#[must_use = "dropping a guard gives its lock back at once"]
pub struct Guard {
    hold: Arc<Hold>,
    key: Key,
    handle: Arc<Handle>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>, key: Key, handle: Arc<Handle>) -> Self {
        Self { hold, key, handle }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.hold.name
    }

    /// The grant's fencing token.
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// Whether the lock is certainly held now. One clock read against an atomic: cheap enough for
    /// before every write. Counts time in which the machine was suspended. Once false, it stays
    /// false.
    pub fn is_safe(&self) -> bool {
        self.hold.is_safe(&*self.handle.session.seams().clock)
    }

    /// The hold's state, to look at and to wait for changes of. Brought up to date by a thread of
    /// its own, so also while the executor stalls; [`Guard::is_safe`] is ahead of it by the time
    /// that takes.
    ///
    /// Copy the state out at once (`*guard.state().borrow()`): while a borrow of it lives, nobody
    /// can tell it anything, and dropping the guard in the same thread waits for ever.
    pub fn state(&self) -> watch::Receiver<GuardState> {
        self.hold.state()
    }

    /// How much longer the lock is certainly held, if nothing is heard from the store; zero if it
    /// is not.
    pub fn safe_for(&self) -> std::time::Duration {
        if !self.is_safe() {
            return std::time::Duration::ZERO;
        }
        let state = *self.hold.state().borrow();
        match state {
            GuardState::Held { safe_until } | GuardState::Jeopardy { safe_until } => {
                safe_until.saturating_since(self.handle.session.seams().clock.now())
            }
            GuardState::Lost(_) | GuardState::Released => std::time::Duration::ZERO,
        }
    }

    /// Waits until the lock is lost. Cancel safe.
    pub async fn lost(&self) -> LostReason {
        let mut state = self.hold.state();
        let over = state.wait_for(GuardState::is_over).await.map(|state| *state);
        match over {
            Ok(GuardState::Lost(reason)) => reason,
            // The hold's own sender outlives this borrow, and nobody releases a borrowed guard.
            _ => LostReason::Revoked,
        }
    }

    /// A token that is cancelled when the lock is not safe any more, for work that is told that
    /// way. Cancelling it does nothing to the lock.
    pub fn cancellation_token(&self) -> CancellationToken {
        self.hold.cancelled().child_token()
    }

    /// Runs `work` as long as the lock is safe, and drops it where it stands when it is not.
    ///
    /// Dropping the returned future drops `work`; the lock stays held.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost) if the lock was not safe any more before `work` was
    /// done. How far it came is for the caller to find out.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(crate::Error::Lost { reason }));
            }
            // The watchdog tells a moment later than the clock.
            if !self.is_safe() {
                return Poll::Ready(Err(crate::Error::Lost { reason: LostReason::DeadlinePassed }));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Gives the lock back and waits until the store has said so. The guard is unsafe from the
    /// first moment on.
    ///
    /// Dropping the future leaves the release to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`](crate::Error::Lost): the hold was over before; somebody else may have held
    /// the lock since. [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): no answer within
    /// the session's TTL; the client goes on releasing it in the background.
    pub async fn release(self) -> Result<()> {
        self.handle.session.release(self.key, &self.hold).await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a release this finds nothing left to give back.
        self.handle.session.give_back(self.key, None);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("token", &self.token().get())
            .field("state", &*self.hold.state().borrow())
            .finish_non_exhaustive()
    }
}
