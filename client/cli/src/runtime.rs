//! The runtime of a subcommand.

use std::future::Future;

use crate::failure::Failure;

/// Runs `work` to its end on this thread.
///
/// # Errors
///
/// If the system provides no runtime (no descriptors, for one); then nothing has run.
pub fn block_on<F: Future>(work: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::own("starting the runtime", error))?;
    Ok(runtime.block_on(work))
}
