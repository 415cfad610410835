//! Transports to servers.

mod bearer;
mod dials;
mod grpc;
mod kept;
pub(crate) mod operator;
mod pool;
mod shared;
#[cfg(feature = "tls")]
mod tls;
mod verdict;

pub use bearer::{Bearer, Line};
pub(crate) use dials::{Connect, Dials, Reach, plain};
pub use grpc::{GrpcTransport, told};
pub(crate) use shared::Shared;
#[cfg(feature = "tls")]
pub use tls::Dialling;
