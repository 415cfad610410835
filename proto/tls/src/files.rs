//! How a client checks servers and proves itself to them, as an application says it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use crate::credentials::{CredentialFiles, Credentials, FileError, OwnFiles};

/// How a client checks the servers that it dials, and proves itself to them.
///
/// The files are PEM. They are read when the client is made, and looked at again with each connection that
/// begins: replaced ones count from then on, broken ones are passed over.
#[derive(Clone, Debug)]
#[must_use = "it does nothing until a client has it"]
pub struct Tls {
    files: CredentialFiles,
    server_name: Option<String>,
}

impl Tls {
    /// TLS to servers for which a CA in this file vouches. Each server's certificate has to name the host
    /// that was dialled, also after a redirect to another one.
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

    /// Reads the files; `now` is the wall clock's time. With them the name that stands in place of the host, if there is one.
    ///
    /// # Errors
    ///
    /// [`FileError`].
    pub fn load(self, now: SystemTime) -> Result<(Arc<Credentials>, Option<String>), FileError> {
        let credentials = Credentials::load(self.files, now)?;
        Ok((Arc::new(credentials), self.server_name))
    }
}
