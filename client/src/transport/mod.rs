//! The ways to a server.

pub(crate) mod cluster;
mod grpc;
mod verdict;

pub(crate) use grpc::GrpcTransport;
pub use grpc::told;
