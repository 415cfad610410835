//! One way to lock, whatever stands behind it: the store of this crate, or the lock recipes that
//! teams run on Cassandra.
//!
//! [`RemoteLocker`] is the interface: a service that is written against it moves from one to the
//! other by building another locker. The native [`Client`](crate::Client) is one.

mod locker;
mod native;

pub use locker::{Patience, RemoteGuard, RemoteLocker};
