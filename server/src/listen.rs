//! The ports of a node: all are claimed before anything else is touched, so that a port in use is found
//! before the data folder is opened; each begins to listen when its service is ready.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::config::Config;

/// How many connections may wait to be accepted. After a change of leader all clients come back at once.
const BACKLOG: u32 = 4_096;

/// Why the node cannot listen on a port.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({key}): {}", hint(source))]
pub struct ListenError {
    /// The setting that names the address.
    pub key: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

fn hint(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process uses it; stop that one or choose another port".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; choose one of its own".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "not permitted; ports below 1024 are for privileged processes".to_owned()
        }
        _ => source.to_string(),
    }
}

/// A port that is claimed but not listening: connections to it are refused, as they should be while no
/// service can answer.
#[derive(Debug)]
pub struct Claim {
    /// The setting that names the address.
    pub(crate) key: &'static str,
    pub(crate) address: SocketAddr,
    socket: TcpSocket,
}

impl Claim {
    /// Claims an address.
    ///
    /// # Errors
    ///
    /// [`ListenError`], most often because it is in use.
    pub fn new(key: &'static str, address: SocketAddr) -> Result<Self, ListenError> {
        let fail = |source| ListenError { key, address, source };
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }
        .map_err(fail)?;
        // A restarted node must not wait for the last connections of its predecessor to time out.
        socket.set_reuseaddr(true).map_err(fail)?;
        socket.bind(address).map_err(fail)?;
        Ok(Self { key, address, socket })
    }

    /// Begins to listen, on the runtime in whose context it is called.
    ///
    /// # Errors
    ///
    /// [`ListenError`], if another process claimed the address in the same moment.
    pub fn listen(self) -> Result<TcpListener, ListenError> {
        let Self { key, address, socket } = self;
        socket.listen(BACKLOG).map_err(|source| ListenError { key, address, source })
    }
}

/// The ports of a node.
#[derive(Debug)]
pub struct Claims {
    /// For health, readiness and metrics.
    pub admin: Claim,
    /// For the other members, if any were named.
    pub peers: Option<Claim>,
    /// For clients.
    pub clients: Claim,
}

impl Claims {
    /// Claims all ports that the settings name.
    ///
    /// # Errors
    ///
    /// [`ListenError`] names the first port that is not available.
    pub fn new(config: &Config) -> Result<Self, ListenError> {
        let node = &config.node;
        let peers = if config.has_peers {
            Some(Claim::new("peer_listen", node.peer_listen.get())?)
        } else {
            None
        };
        Ok(Self {
            clients: Claim::new("listen", node.listen.get())?,
            admin: Claim::new("admin_listen", node.admin_listen.get())?,
            peers,
        })
    }
}
