//! The ways to a server.

mod grpc;
pub(crate) mod operator;
mod verdict;

pub use grpc::{GrpcTransport, told};
