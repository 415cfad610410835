//! SIGTERM and SIGINT: the first requests a graceful stop, the second ends the process at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::NodeError;

/// The signals that end a node, from the moment this is made.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to catch the signals. Call it inside the runtime.
    pub(super) fn new() -> Result<Self, NodeError> {
        let listen = |kind| {
            signal(kind).map_err(|source| NodeError::System { what: "signal handler", source })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The name of the next signal. Cancel safe.
    pub(super) async fn next(&mut self) -> &'static str {
        holdfast_runtime::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
