//! TLS on the command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use holdfast::{Builder, Tls};

use crate::failure::{Failure, OWN_ERROR};

/// TLS to the servers, and who one is there.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Security")]
pub struct TlsArgs {
    /// Speak TLS with servers for which a CA in this file (PEM) vouches.
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_CA")]
    ca: Option<PathBuf>,
    /// Prove to be the owner of the certificate in this file (PEM).
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_CERT")]
    cert: Option<PathBuf>,
    /// The key of --cert (PEM).
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_KEY")]
    key: Option<PathBuf>,
    /// The name that the servers' certificates carry, where it is not the address that is dialled.
    #[arg(long, global = true, value_name = "NAME", env = "HOLDFAST_SERVER_NAME")]
    server_name: Option<String>,
    /// Show the bearer token in this file: the servers then take you for its owner.
    #[arg(long, global = true, value_name = "FILE", env = "HOLDFAST_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl TlsArgs {
    /// A client that connects as the options say.
    ///
    /// # Errors
    ///
    /// Options that do not go together; a token that cannot be read.
    pub fn over(&self, builder: Builder) -> Result<Builder, Failure> {
        let builder = match &self.token_file {
            Some(file) => builder.token(token_in(file)?),
            None => builder,
        };
        self.secured(builder)
    }

    fn secured(&self, builder: Builder) -> Result<Builder, Failure> {
        let wrong = |message: &str| Err(Failure::new(OWN_ERROR, message));
        let Some(ca) = &self.ca else {
            if self.cert.is_some() || self.key.is_some() || self.server_name.is_some() {
                return wrong(
                    "--cert, --key and --server-name need --ca: the CA that vouches for the servers",
                );
            }
            return Ok(builder);
        };
        let mut tls = Tls::new(ca);
        tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => tls.certificate(cert, key),
            (None, None) => tls,
            _ => return wrong("--cert and --key belong together: a certificate and its key"),
        };
        if let Some(name) = &self.server_name {
            tls = tls.server_name(name);
        }
        Ok(builder.tls(tls))
    }

    /// The variables that a child needs to connect in the same way: those to set, and to remove.
    pub fn variables(&self) -> [(&'static str, Option<OsString>); 5] {
        let file = |file: &Option<PathBuf>| file.clone().map(PathBuf::into_os_string);
        let name = self.server_name.clone().map(OsString::from);
        [
            ("HOLDFAST_CA", file(&self.ca)),
            ("HOLDFAST_CERT", file(&self.cert)),
            ("HOLDFAST_KEY", file(&self.key)),
            ("HOLDFAST_SERVER_NAME", name),
            ("HOLDFAST_TOKEN_FILE", file(&self.token_file)),
        ]
    }
}

/// The token in a file. The message of a failure names the file and never its content.
fn token_in(file: &Path) -> Result<String, Failure> {
    let failed = |problem: &dyn std::fmt::Display| {
        Failure::new(OWN_ERROR, format!("--token-file {}: {problem}", file.display()))
    };
    let content = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    match content.trim() {
        "" => Err(failed(&"it is empty")),
        token if token.contains(char::is_whitespace) => {
            Err(failed(&"it holds more than one token"))
        }
        token => Ok(token.to_owned()),
    }
}
