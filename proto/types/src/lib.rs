//! What server and clients agree on without saying it over the wire: what a name is, what a fencing
//! token is made of, which modes a hold can have.
//!
//! Pure: no clock, no I/O. With the feature `stored` the types have the encoding of the server's
//! core, whose bytes are kept for ever.

mod mode;
mod name;
#[cfg(feature = "stored")]
mod stored;
mod token;

pub use mode::Mode;
pub use name::{
    LABEL_BYTES_MAX, Label, LockName, NAME_BYTES_MAX, SCOPE_BYTES_MAX, ScopePrefix, TextError,
};
#[cfg(feature = "stored")]
pub use stored::read_bytes;
pub use token::FencingToken;
