//! Transports to servers.

mod grpc;
pub(crate) mod operator;
#[cfg(feature = "tls")]
mod tls;
mod verdict;

pub(crate) use grpc::{Connect, Connecting, tcp};
pub use grpc::{GrpcTransport, told};
#[cfg(feature = "tls")]
pub use tls::Tls;
