//! Transports to servers.

mod grpc;
pub(crate) mod operator;
#[cfg(any(test, feature = "cassandra"))]
pub(crate) mod time;
mod verdict;

pub use grpc::{GrpcTransport, told};
