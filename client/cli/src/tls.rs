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
        let builder = self.token()?.into_iter().fold(builder, Builder::token);
        Ok(self.tls()?.into_iter().fold(builder, Builder::tls))
    }

    /// TLS to servers, if the options ask for it.
    ///
    /// # Errors
    ///
    /// Options that do not go together.
    pub fn tls(&self) -> Result<Option<Tls>, Failure> {
        let files = [&self.ca, &self.cert, &self.key].map(Option::as_ref);
        to("", files, self.server_name.as_ref())
    }

    /// The certificate and its key.
    ///
    /// # Errors
    ///
    /// One without the other.
    pub fn own(&self) -> Result<Option<(&Path, &Path)>, Failure> {
        pair("", self.cert.as_ref(), self.key.as_ref())
    }

    /// The file of the CAs that vouch for the other side.
    pub fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// The bearer token.
    ///
    /// # Errors
    ///
    /// Its file cannot be read, or holds none.
    pub fn token(&self) -> Result<Option<String>, Failure> {
        self.token_file.as_deref().map(token_in).transpose()
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

/// TLS by options whose names begin with `prefix`, if they ask for it: CA, certificate and key, and the name in place of the address.
///
/// # Errors
///
/// Options that do not go together.
pub fn to(
    prefix: &str,
    [ca, cert, key]: [Option<&PathBuf>; 3],
    server_name: Option<&String>,
) -> Result<Option<Tls>, Failure> {
    let own = pair(prefix, cert, key)?;
    let Some(ca) = ca else {
        if own.is_some() || server_name.is_some() {
            return wrong(&format!(
                "--{prefix}cert, --{prefix}key and --{prefix}server-name need --{prefix}ca: the CA that vouches for the servers"
            ));
        }
        return Ok(None);
    };
    let tls = own.into_iter().fold(Tls::new(ca), |tls, (cert, key)| tls.certificate(cert, key));
    Ok(Some(server_name.into_iter().fold(tls, Tls::server_name)))
}

fn pair<'a>(
    prefix: &str,
    cert: Option<&'a PathBuf>,
    key: Option<&'a PathBuf>,
) -> Result<Option<(&'a Path, &'a Path)>, Failure> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => wrong(&format!(
            "--{prefix}cert and --{prefix}key belong together: a certificate and its key"
        )),
    }
}

fn wrong<T>(message: &str) -> Result<T, Failure> {
    Err(Failure::new(OWN_ERROR, message))
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
