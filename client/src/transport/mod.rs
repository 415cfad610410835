//! The ways to a server.

pub(crate) mod cluster;
mod grpc;

pub(crate) use grpc::GrpcTransport;
pub use grpc::told;
