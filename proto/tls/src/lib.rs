//! TLS as Holdfast uses it on every port and in every client (DESIGN §14).
//!
//! - [`Credentials`] are one process's certificate, key and CA bundle, read from files. They are replaced
//!   while it runs; connections that exist keep what they began with.
//! - [`ServerSide`] ends TLS on a port: it asks for a client's certificate or demands one, and on a peer
//!   port takes only the certificates of nodes of its own cluster.
//! - [`ClientSide`] begins TLS to a server, whose certificate has to name the address that was dialled, or to
//!   a node, whose certificate has to name the cluster and the node.
//! - [`Tls`] is what an application says of it; [`Tls::for_driver`] is for a library that dials by itself.
//! - [`Certificate`] is what a verified certificate says of its owner.
//!
//! Nothing is resumed: each connection proves itself anew, so a CA that was replaced or a certificate that
//! has ended opens no further connection. TLS 1.3 and 1.2.

mod certificate;
mod client;
mod credentials;
mod dial;
mod driver;
mod files;
#[cfg(any(test, feature = "make"))]
pub mod make;
mod node_name;
mod server;
mod verify;

pub use certificate::Certificate;
pub use client::{ClientSide, DialError, Expected, refused_by_tls};
pub use credentials::{CredentialFiles, Credentials, FileError, OwnFiles, Reloaded};
pub use dial::{Dialled, Dialler};
pub use driver::{NotUsable, Wall};
pub use files::Tls;
pub use node_name::{ClusterName, InvalidClusterName, NodeName};
pub use server::{Admits, HandshakeError, ServerSide, Unusable};

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};

/// The versions of TLS that are spoken.
static VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The cryptography below: named here, so that no default of the process decides.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}

#[cfg(test)]
mod tests;
