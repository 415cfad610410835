//! The ports of a node: all are claimed before anything else is touched, so that a port in use is found
//! before the data folder is opened; each begins to listen when its service is ready.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket};

use crate::config::Config;

/// How many connections may wait to be accepted. After a change of leader all clients come back at once.
const BACKLOG: u32 = 4_096;
/// The mode of the Unix socket: its owner's user and group may connect.
const SOCKET_MODE: u32 = 0o660;

/// Why the node cannot listen on a port.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({key}): {}", hint(address, source))]
pub struct ListenError {
    /// The setting that names the address.
    pub key: &'static str,
    /// The address.
    pub address: LocalAddress,
    /// The system's error.
    pub source: io::Error,
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddress {
    /// An IP address and a port.
    Port(SocketAddr),
    /// The path of a Unix socket.
    Path(PathBuf),
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

fn hint(address: &LocalAddress, source: &io::Error) -> String {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, AlreadyExists, NotFound, PermissionDenied};
    let hint = match (address, source.kind()) {
        (LocalAddress::Port(_), AddrInUse) => {
            "another process uses it; stop that one or choose another port"
        }
        (LocalAddress::Port(_), AddrNotAvailable) => {
            "this machine has no such address; choose one of its own"
        }
        (LocalAddress::Port(_), PermissionDenied) => {
            "not permitted; ports below 1024 are for privileged processes"
        }
        (LocalAddress::Path(_), AddrInUse) => {
            "another process listens there; stop that one or choose another path"
        }
        (LocalAddress::Path(_), AlreadyExists) => {
            "something else lies there; move it away or choose another path"
        }
        (LocalAddress::Path(_), NotFound) => "its folder does not exist; make it",
        (LocalAddress::Path(_), PermissionDenied) => {
            "not permitted; the user of this process has to be able to write to its folder"
        }
        _ => return source.to_string(),
    };
    hint.to_owned()
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
        let fail = |source| ListenError { key, address: LocalAddress::Port(address), source };
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
        let address = LocalAddress::Port(address);
        socket.listen(BACKLOG).map_err(|source| ListenError { key, address, source })
    }
}

/// A Unix socket that is claimed but not listening. Dropping it, or the listener, removes the file.
#[derive(Debug)]
pub struct LocalClaim {
    socket: UnixSocket,
    file: SocketFile,
}

impl LocalClaim {
    /// Claims a path. A socket that nobody listens on, as a process leaves it that was killed, is replaced.
    ///
    /// # Errors
    ///
    /// [`ListenError`], most often because another process listens there.
    fn new(path: &Path) -> Result<Self, ListenError> {
        let claimed = remove_left_behind(path).and_then(|()| {
            let socket = UnixSocket::new_stream()?;
            socket.bind(path)?;
            let file = SocketFile(path.to_owned());
            // Nobody can connect before this: the socket does not listen yet.
            fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
            Ok(Self { socket, file })
        });
        claimed.map_err(|source| local_error(path, source))
    }

    /// Begins to listen, on the runtime in whose context it is called.
    ///
    /// # Errors
    ///
    /// [`ListenError`] if the system refuses it.
    pub fn listen(self) -> Result<LocalListener, ListenError> {
        let Self { socket, file } = self;
        match socket.listen(BACKLOG) {
            Ok(listener) => Ok(LocalListener { listener, _file: file }),
            Err(source) => Err(local_error(&file.0, source)),
        }
    }
}

fn local_error(path: &Path, source: io::Error) -> ListenError {
    ListenError { key: "unix_socket", address: LocalAddress::Path(path.to_owned()), source }
}

/// A Unix socket that listens. Dropping it removes the file.
#[derive(Debug)]
pub struct LocalListener {
    pub(crate) listener: UnixListener,
    _file: SocketFile,
}

/// The file of a socket of ours.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // One that is gone already does no harm, and one that stays is replaced at the next start.
        let _ = fs::remove_file(&self.0);
    }
}

/// Makes room for a socket at `path`.
fn remove_left_behind(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
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
    /// For clients on this machine, if a Unix socket was named.
    pub local: Option<LocalClaim>,
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
            // The last one: a socket of a node that still runs has been found by its ports.
            local: node.unix_socket().map(LocalClaim::new).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clients.sock");
        (folder, path)
    }

    fn problem(path: &Path) -> String {
        LocalClaim::new(path).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_socket_is_for_its_user_and_group_and_goes_with_its_listener() {
        let (_folder, path) = in_folder();

        let claim = LocalClaim::new(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "it does not listen yet");
        let listener = claim.listen().unwrap();
        UnixStream::connect(&path).unwrap();

        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_a_killed_process_left_is_replaced_and_one_in_use_is_not() {
        let (_folder, path) = in_folder();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves it");

        let _listener = LocalClaim::new(&path).unwrap().listen().unwrap();

        assert!(problem(&path).contains("another process listens there"), "{}", problem(&path));
        assert!(path.exists());
    }

    #[tokio::test]
    async fn whatever_else_lies_there_is_left_alone() {
        let (folder, path) = in_folder();
        fs::write(&path, "not a socket").unwrap();

        assert!(problem(&path).contains("something else lies there"), "{}", problem(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "not a socket");
        let nowhere = folder.path().join("missing").join("clients.sock");
        assert!(problem(&nowhere).contains("its folder does not exist"), "{}", problem(&nowhere));
    }
}
