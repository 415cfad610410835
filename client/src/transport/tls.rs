//! TLS to the servers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_runtime::Runtime;
use holdfast_tls::{ClientSide, CredentialFiles, Credentials, Dialler, FileError, OwnFiles};
use tonic::transport::{Endpoint, Uri};

use super::Connecting;
use crate::{Error, Result};

/// How a client checks its servers, and proves itself to them. For [`Builder::tls`](crate::Builder::tls).
///
/// The files are PEM. They are read when the client is made, and looked at again with each connection that
/// begins: replaced ones count from then on, broken ones are passed over.
///
/// ```no_run
/// use holdfast::{Client, Tls};
///
/// # async fn connect() -> holdfast::Result<()> {
/// let tls = Tls::new("ca.pem").certificate("app.pem", "app.key");
/// let client = Client::builder().endpoints(["db1.example.com:7420"]).tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until a builder has it"]
pub struct Tls {
    files: CredentialFiles,
    server_name: Option<String>,
}

impl Tls {
    /// TLS to servers for which a CA in this file vouches. Each server's certificate has to name the host
    /// that was dialled, also after a redirect to the leader.
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self { files: CredentialFiles { own: None, ca: Some(ca.into()) }, server_name: None }
    }

    /// The certificate, with the CAs between it and the root after it, and the key by which this client proves
    /// itself. Without them it is nobody, which a server may not allow.
    pub fn certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.files.own = Some(OwnFiles { cert: cert.into(), key: key.into() });
        self
    }

    /// The name that every server's certificate has to carry, in place of the host that is dialled: where
    /// clients reach the servers under other names than the certificates have.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which names the file.
    pub(crate) fn connect(
        self,
        runtime: &Runtime,
    ) -> Result<impl Fn(Endpoint) -> Connecting + Send + Sync + Clone + 'static> {
        let invalid = |message: String| Error::InvalidConfig { message };
        let loaded = Credentials::load(self.files, wall(runtime));
        let credentials =
            loaded.map(Arc::new).map_err(|error: FileError| invalid(error.to_string()))?;
        let side = ClientSide::new(Arc::clone(&credentials), "h2");
        let side = side.map_err(|error| invalid(error.to_string()))?;
        let dialler = Dialler::to_servers(side, self.server_name);
        let runtime = runtime.clone();
        Ok(move |endpoint: Endpoint| -> Connecting {
            // What was good before is good until something better is there.
            let _ = credentials.reload(wall(&runtime));
            let dialler = dialler.clone();
            Box::pin(async move { secured(endpoint).connect_with_connector(dialler).await })
        })
    }
}

fn wall(runtime: &Runtime) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(runtime.clock.wall_ms())
}

/// The endpoint as its requests are to name it: the scheme tells proxies that TLS is beneath.
fn secured(endpoint: Endpoint) -> Endpoint {
    let mut parts = endpoint.uri().clone().into_parts();
    parts.scheme = Some(tonic::codegen::http::uri::Scheme::HTTPS);
    match Uri::from_parts(parts) {
        Ok(origin) => endpoint.origin(origin),
        Err(_) => endpoint,
    }
}
