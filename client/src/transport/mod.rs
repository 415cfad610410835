//! Transports to servers.

mod bearer;
mod grpc;
pub(crate) mod operator;
#[cfg(feature = "tls")]
mod tls;
mod verdict;

pub use bearer::{Bearer, Line};
pub(crate) use grpc::{Connect, plain};
pub use grpc::{GrpcTransport, told};
#[cfg(feature = "tls")]
pub use tls::{Dialling, Tls};
