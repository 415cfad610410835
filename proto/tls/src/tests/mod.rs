//! Both ends of TLS against each other, over a pipe.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests fail them by a panic; certificates are checked against the machine's wall clock"
)]

mod driver;
mod files;
mod fuzz;
mod handshakes;
mod names;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::make::{Ca, Pair, Term, ca};
use crate::{ClusterName, CredentialFiles, Credentials, NodeName, OwnFiles};

const DAY: Duration = Duration::from_hours(24);

fn month() -> Term {
    Term { now: SystemTime::now(), lasts: 30 * DAY }
}

/// One that was over a day ago.
fn past() -> Term {
    Term { now: SystemTime::now() - 30 * DAY, lasts: 29 * DAY }
}

/// One that begins in ten days.
fn future() -> Term {
    Term { now: SystemTime::now() + 10 * DAY, lasts: 30 * DAY }
}

fn cluster() -> ClusterName {
    "shop".parse().unwrap()
}

fn node_name(id: Option<u64>) -> NodeName {
    NodeName { cluster: cluster(), id }
}

/// A folder with a CA in it, and what that CA signs.
struct Office {
    folder: TempDir,
    ca: Ca,
    ca_pem: String,
}

impl Office {
    fn new() -> Self {
        let made = ca("test CA", month()).unwrap();
        let signs = Ca::read(&made.cert_pem, &made.key_pem).unwrap();
        let office = Self { folder: TempDir::new().unwrap(), ca: signs, ca_pem: made.cert_pem };
        office.write("ca.pem", &office.ca_pem);
        office
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        std::fs::write(self.path(file), text).unwrap();
        self.path(file)
    }

    /// The files of a side that has `pair`, and takes what this office signed.
    fn files(&self, name: &str, pair: &Pair) -> CredentialFiles {
        let own = OwnFiles {
            cert: self.write(&format!("{name}.pem"), &pair.cert_pem),
            key: self.write(&format!("{name}.key"), &pair.key_pem),
        };
        CredentialFiles { own: Some(own), ca: Some(self.path("ca.pem")) }
    }

    /// Loaded at a time at which they are valid.
    fn credentials(&self, name: &str, pair: &Pair, term: Term) -> Arc<Credentials> {
        Arc::new(Credentials::load(self.files(name, pair), term.now).unwrap())
    }

    /// A node's, valid now.
    fn node(&self, id: Option<u64>) -> Arc<Credentials> {
        self.node_of(&node_name(id), month())
    }

    fn node_of(&self, name: &NodeName, term: Term) -> Arc<Credentials> {
        let addresses = ["db.example.com".to_owned(), "127.0.0.1".to_owned()];
        let pair = self.ca.node(name, &addresses, term).unwrap();
        self.credentials("node", &pair, term)
    }

    /// A client's, valid now.
    fn client(&self, name: &str) -> Arc<Credentials> {
        self.client_of(name, month())
    }

    fn client_of(&self, name: &str, term: Term) -> Arc<Credentials> {
        self.credentials("client", &self.ca.client(name, term).unwrap(), term)
    }

    /// A client's without a certificate.
    fn nobody(&self) -> Arc<Credentials> {
        let files = CredentialFiles { own: None, ca: Some(self.path("ca.pem")) };
        Arc::new(Credentials::load(files, SystemTime::now()).unwrap())
    }
}
