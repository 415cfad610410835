//! The storage of the log: keys and values, in sled or in a simulation.

use std::io;
use std::path::Path;

use bytes::Bytes;

/// A key with its new value; `None` removes it.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// Keys with their values, in order of the keys.
pub type Items<'a> = Box<dyn Iterator<Item = io::Result<(Bytes, Bytes)>> + 'a>;

/// An ordered map on disk.
///
/// # Promises
///
/// - The changes of one [`write`](Self::write) survive a crash as a whole or not at all, and only if
///   those of all earlier ones do.
/// - What was written before a [`sync`](Self::sync) that succeeded survives the loss of power.
pub trait Tree: Send + 'static {
    /// Its file, for messages.
    fn path(&self) -> &Path;

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// As from the system, or what is damaged.
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>>;

    /// All items whose key begins with `prefix`.
    fn scan(&self, prefix: &[u8]) -> Items<'_>;

    /// Writes changes; an empty list changes nothing.
    ///
    /// # Errors
    ///
    /// As from the system; whether they survive is unknown.
    fn write(&mut self, changes: Vec<Change>) -> io::Result<()>;

    /// Makes everything durable that was written. Returns whether files beside the one at
    /// [`path`](Self::path) had to be synced for that.
    ///
    /// # Errors
    ///
    /// As from the system; what is durable is unknown.
    fn sync(&mut self) -> io::Result<bool>;
}
