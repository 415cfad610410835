//! The ways to a server.

mod grpc;

pub(crate) use grpc::GrpcTransport;
pub use grpc::told;
