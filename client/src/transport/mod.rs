//! Transports to servers.

mod grpc;
pub(crate) mod operator;
mod verdict;

pub use grpc::{GrpcTransport, told};
