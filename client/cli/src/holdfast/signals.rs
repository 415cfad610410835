//! Signals as events, so that one place decides what they do.

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Blocks the signals `heard` and passes each to `tell`, on a thread of its own, until `tell`
/// returns false. Call it before any other thread is started: threads inherit the blocked signals.
/// So do children, unless [`crate::spawn`] starts them.
pub(crate) fn listen(
    heard: &[Signal],
    tell: impl Fn(Signal) -> bool + Send + 'static,
) -> Result<(), Failure> {
    let heard: SigSet = heard.iter().copied().collect();
    let mut blocked = heard;
    // Taking the terminal back from a child's group must not stop this process.
    blocked.add(Signal::SIGTTOU);
    blocked.thread_block().map_err(|error| Failure::own("blocking signals", error))?;
    std::thread::Builder::new()
        .name("holdfast-signals".into())
        .spawn(move || {
            while let Ok(signal) = heard.wait() {
                if !tell(signal) {
                    return;
                }
            }
        })
        .map_err(|error| Failure::own("starting a thread", error))?;
    Ok(())
}

/// Whether the signal asks a job to end.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)
}

/// Waits, in a runtime, for the first SIGINT or SIGTERM.
///
/// # Errors
///
/// If the system does not let this process listen.
pub(crate) async fn asked_to_end_once() -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::own("listening to signals", error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    holdfast_runtime::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
