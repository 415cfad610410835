//! Transports to servers.

mod bearer;
mod grpc;
pub(crate) mod operator;
#[cfg(feature = "tls")]
mod tls;
mod verdict;

pub(crate) use bearer::Bearer;
pub(crate) use grpc::{Connect, Connecting, tcp};
pub use grpc::{GrpcTransport, told};
#[cfg(feature = "tls")]
pub use tls::Tls;
