//! The records of the demo's workers.

use serde::{Deserialize, Serialize};

/// One worker's turn at one file. Instants are nanoseconds of the machine's boot clock, so those of
/// different processes are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) worker: u32,
    pub(crate) file: u32,
    /// The grant's fencing token; 0 without locks.
    pub(crate) token: u64,
    /// When the worker requested the lock.
    pub(crate) asked: u64,
    /// When it got the lock.
    pub(crate) entered: u64,
    /// When it was about to release the lock.
    pub(crate) left: u64,
    /// The number it wrote; `None`: the file contained no number, or the lock was not safe any more
    /// before the write.
    pub(crate) wrote: Option<u64>,
}
