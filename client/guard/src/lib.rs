//! What holding a lock means to the program that holds it, whichever store keeps the lock: how long
//! it is certain, how it ended, and what is certain after an error.
//!
//! The library `holdfast` and the recipes on Cassandra both stand on this package, and callers see
//! its types through them. What is `pub` here and not there is shared by the two and no promise to
//! anybody else.
//!
//! # Invariants
//!
//! - What was once seen to be unsafe never becomes safe again (I6, DESIGN §5.6).

mod backoff;
mod error;
mod safety;
mod settings;
mod span;
mod state;

pub use backoff::{Backoff, part_of, spread};
pub use error::{Error, Holder, RefusalReason, Result, innermost};
pub use holdfast_types::{FencingToken, Mode, NAME_BYTES_MAX};
pub use safety::{Safety, run_while};
pub use settings::{check_endpoints, check_lock_name, default_label, dns_name, is_unix_socket};
pub use span::Span;
pub use state::{GuardState, GuardStates, LostReason};
