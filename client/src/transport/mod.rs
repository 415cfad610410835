//! The ways to a server.

pub(crate) mod cluster;
mod grpc;

pub use grpc::{GrpcTransport, told};
