//! Certificates of a cluster, made with `holdfast cert`, and the variables with which programs use them.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::program::run;

/// A folder of certificates.
#[derive(Debug)]
pub struct Certs(TempDir);

impl Certs {
    /// With a CA in it.
    pub async fn new() -> Self {
        let certs = Self(tempfile::tempdir().unwrap());
        certs.make(&["ca"]).await;
        certs
    }

    /// Runs `holdfast cert` with these arguments.
    pub async fn make(&self, arguments: &[&str]) {
        let dir = self.0.path().to_str().unwrap();
        let ended = run("holdfast", &[&["cert"], arguments, &["--dir", dir]].concat()).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// Makes a node's certificate for this address.
    pub async fn node(&self, id: u64) {
        self.make(&["node", "--id", &id.to_string(), "--address", "127.0.0.1"]).await;
    }

    /// The path of a file.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// The same, as text.
    pub fn text(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }

    /// Puts a file of another folder in the place of one here, as a whole.
    pub fn replace(&self, file: &str, by: &Path) {
        let new = self.path("new");
        fs::copy(by, &new).unwrap();
        fs::rename(new, self.path(file)).unwrap();
    }

    /// The variables with which a node has TLS.
    pub fn of_node(&self, id: u64) -> Vec<(String, String)> {
        let variable = |name: &str, file: &str| (name.to_owned(), self.text(file));
        vec![
            variable("HOLDFAST_TLS_CERT", &format!("node-{id}.pem")),
            variable("HOLDFAST_TLS_KEY", &format!("node-{id}.key")),
            variable("HOLDFAST_TLS_CA", "ca.pem"),
        ]
    }

    /// The variables of a client that checks its servers by this folder's CA.
    pub fn trusted(&self) -> Vec<(String, String)> {
        vec![("HOLDFAST_CA".to_owned(), self.text("ca.pem"))]
    }

    /// Those of one that proves to be `name` as well.
    pub fn client(&self, name: &str) -> Vec<(String, String)> {
        let own = [("CERT", "pem"), ("KEY", "key")].map(|(variable, ending)| {
            (format!("HOLDFAST_{variable}"), self.text(&format!("{name}.{ending}")))
        });
        self.trusted().into_iter().chain(own).collect()
    }

    /// Those of one that also shows the bearer token in a file of this folder.
    pub fn with_token(&self, file: &str) -> Vec<(String, String)> {
        let token = ("HOLDFAST_TOKEN_FILE".to_owned(), self.text(file));
        self.trusted().into_iter().chain([token]).collect()
    }
}
