//! Work that is dropped when its lock is not safe any more.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::{Error, LostReason, Result};

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
