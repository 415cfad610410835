//! The wire contract and the stored records of Holdfast: generated code, whose `Debug` shows no secret, and
//! one message whose parts are encoded apart from it ([`v1::WatchResponse`]).
//!
//! [`v1`] holds the client API (`lock.proto`), the operators' API (`cluster.proto`, `scope.proto`),
//! the members' messages and stored records (`peer.proto`), and the time service of queues on
//! Cassandra (`time.proto`). The `.proto` files carry the documentation; the docs here are
//! generated from them.

mod secrets;
mod watch_response;

/// Version 1 of the wire.
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub)]
pub mod v1 {
    pub use crate::watch_response::WatchResponse;

    tonic::include_proto!("holdfast.v1");
}

/// The descriptors of every service and message of a server, for its gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/holdfast_descriptor.bin"));
