//! TLS for a library that dials by itself, such as a database's driver: it takes one configuration of rustls for all
//! of its connections.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};

use crate::client::{DialError, configuration, host_name};
use crate::credentials::{Credentials, FileError, Loaded};
use crate::files::Tls;
use crate::verify::{Check, Host, Shown, Verifier};

/// Why there is no TLS for a driver. It has dialled nobody.
#[derive(Debug, thiserror::Error)]
pub enum NotUsable {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The name that stands in place of the host can be the name of none.
    #[error(transparent)]
    Name(#[from] DialError),
    /// The configuration does not come about.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// Tells the wall clock's time.
pub type Wall = Arc<dyn Fn() -> SystemTime + Send + Sync>;

impl Tls {
    /// The configuration for a driver. Every server has to be the host that the driver says it dials, or the one of the
    /// name that stands in place of it. The files are looked at again with each handshake.
    ///
    /// # Errors
    ///
    /// [`NotUsable`].
    pub fn for_driver(self, wall: Wall) -> Result<Arc<ClientConfig>, NotUsable> {
        let (credentials, instead) = self.load(wall())?;
        let instead = instead.map(|name| host_name(&name)).transpose()?;
        let has_own = credentials.certificate().is_some();
        let current = Current { credentials, wall };
        let own = has_own.then(|| Arc::new(current.clone()) as Arc<dyn ResolvesClientCert>);
        let check = CurrentHost { current, instead };
        Ok(Arc::new(configuration(Arc::new(Verifier(check)), own)?))
    }
}

/// The files as they are at a handshake.
#[derive(Clone)]
struct Current {
    credentials: Arc<Credentials>,
    wall: Wall,
}

impl Current {
    fn look(&self) -> Arc<Loaded> {
        // What was good before is good until something better is there.
        let _ = self.credentials.reload((self.wall)());
        self.credentials.current()
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct CurrentHost {
    current: Current,
    instead: Option<ServerName<'static>>,
}

impl Check for CurrentHost {
    fn check(&self, shown: &Shown<'_>) -> Result<(), rustls::Error> {
        Host::new(&self.current.look(), self.instead.clone())?.check(shown)
    }
}

/// With TLS 1.3 a handshake asks for it before it checks the server, with 1.2 afterwards.
impl ResolvesClientCert for Current {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.look().own.as_ref().map(|own| Arc::clone(&own.certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
