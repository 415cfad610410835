//! TLS to the servers.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_runtime::Runtime;
use holdfast_tls::{ClientSide, CredentialFiles, Credentials, Dialler, FileError, OwnFiles};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

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

    /// Reads the files. For the recipes, whose time service is reached in the same way.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which names the file.
    #[doc(hidden)]
    pub fn dialling(self, runtime: &Runtime) -> Result<Dialling> {
        let invalid = |message: String| Error::InvalidConfig { message };
        let loaded = Credentials::load(self.files, wall(runtime));
        let credentials =
            loaded.map(Arc::new).map_err(|error: FileError| invalid(error.to_string()))?;
        let side = ClientSide::new(Arc::clone(&credentials), "h2");
        let side = side.map_err(|error| invalid(error.to_string()))?;
        let dialler = Dialler::to_servers(side, self.server_name);
        Ok(Dialling { credentials, dialler, runtime: runtime.clone() })
    }
}

/// Dials with TLS, and looks at the files with each connection that begins. Cheap to clone.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Dialling {
    credentials: Arc<Credentials>,
    dialler: Dialler,
    runtime: Runtime,
}

impl Dialling {
    /// The same for the server of that name, whatever address is dialled.
    #[must_use]
    pub fn for_host(mut self, host: &str) -> Self {
        self.dialler = self.dialler.for_host(host);
        self
    }

    /// A channel that is connected.
    ///
    /// # Errors
    ///
    /// The connection does not come about.
    pub async fn connect(self, endpoint: Endpoint) -> Result<Channel, tonic::transport::Error> {
        secured(endpoint).connect_with_connector(self).await
    }

    /// A channel that is connected at its first request.
    pub fn connect_lazy(self, endpoint: Endpoint) -> Channel {
        secured(endpoint).connect_with_connector_lazy(self)
    }
}

impl Service<Uri> for Dialling {
    type Response = <Dialler as Service<Uri>>::Response;
    type Error = <Dialler as Service<Uri>>::Error;
    type Future = <Dialler as Service<Uri>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.dialler.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // What was good before is good until something better is there.
        let _ = self.credentials.reload(wall(&self.runtime));
        self.dialler.call(uri)
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
