//! The ways to a server.

pub(crate) mod cluster;
mod grpc;
mod verdict;

pub use grpc::{GrpcTransport, told};
