//! TLS to the servers.

use std::sync::Arc;
use std::task::{Context, Poll};

use holdfast_runtime::Runtime;
use holdfast_tls::{ClientSide, Credentials, Dialler, Tls};
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::{Error, Result};

/// Dials with TLS, and looks at the files with each connection that begins. Cheap to clone.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Dialling {
    credentials: Arc<Credentials>,
    dialler: Dialler,
    runtime: Runtime,
}

impl Dialling {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which names the file.
    pub fn new(tls: Tls, runtime: &Runtime) -> Result<Self> {
        let invalid = |message: String| Error::InvalidConfig { message };
        let loaded = tls.load(runtime.clock.wall());
        let (credentials, server_name) = loaded.map_err(|error| invalid(error.to_string()))?;
        let side = ClientSide::new(Arc::clone(&credentials), "h2");
        let side = side.map_err(|error| invalid(error.to_string()))?;
        let dialler = Dialler::to_servers(side, server_name);
        Ok(Self { credentials, dialler, runtime: runtime.clone() })
    }

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
        let _ = self.credentials.reload(self.runtime.clock.wall());
        self.dialler.call(uri)
    }
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
