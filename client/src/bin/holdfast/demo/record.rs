//! What the demo's workers write down.

use serde::{Deserialize, Serialize};

/// One worker's turn at one file. Instants are nanoseconds of the machine's boot clock, so those
/// of different processes can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) worker: u32,
    pub(crate) file: u32,
    /// The grant's fencing token; 0 without locks.
    pub(crate) token: u64,
    /// When the worker asked for the lock.
    pub(crate) asked: u64,
    /// When it had it.
    pub(crate) entered: u64,
    /// When it was about to give it back.
    pub(crate) left: u64,
    /// The number it wrote; `None`: it found no number in the file, or the lock was not safe any
    /// more when it was to write.
    pub(crate) wrote: Option<u64>,
}
