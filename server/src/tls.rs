//! TLS of a node: one certificate for all its ports, and for its own calls to other members (DESIGN §14).

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_runtime::{Clock, Runtime};
use holdfast_tls::{
    Admits, ClientSide, ClusterName, CredentialFiles, Credentials, DialError, FileError, OwnFiles,
    Reloaded, ServerSide, Unusable,
};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::signal::unix::Signal;

use crate::config::{ClientCerts, Config};
use crate::incoming::{Handshakes, Port, Security};

/// How often the files are looked at: replaced ones are in use after 10 s at most.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A certificate that ends within so many days is warned of.
const WARN_BEFORE_DAYS: u64 = 14;
/// Time between two warnings of the same.
const WARN_EVERY: Duration = Duration::from_hours(24);
/// ALPN of gRPC.
const HTTP2: &str = "h2";
/// ALPN of the admin port.
const HTTP1: &str = "http/1.1";

/// Why a node cannot serve with TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The certificate is not this node's.
    #[error(
        "the certificate in tls_cert does not make its owner node {id} of cluster {cluster}: its names are {found}; \
         make one with `holdfast cert node --cluster {cluster} --id {id}`, or set cluster_name"
    )]
    AnotherNode {
        /// This node.
        id: u64,
        /// The cluster of its settings.
        cluster: ClusterName,
        /// The URIs in the certificate.
        found: String,
    },
    /// Files are missing.
    #[error("{0}: set tls_ca")]
    Unusable(#[from] Unusable),
    /// As above, for calls to other members.
    #[error("{0}: set tls_ca")]
    Dial(#[from] DialError),
    /// The system gives no thread.
    #[error("the system gives no thread for handshakes: {0}")]
    System(#[from] io::Error),
}

/// TLS of a node.
#[derive(Debug)]
pub struct NodeTls {
    credentials: Arc<Credentials>,
    clients: Security,
    members: Option<Security>,
    admin: Security,
    handshakes: Handshakes,
    dials: Option<Dials>,
}

/// How a node calls another.
#[derive(Clone, Debug)]
pub struct Dials {
    /// Its own side.
    pub side: ClientSide,
    /// Whose node the other has to be.
    pub cluster: ClusterName,
    /// A member that speaks no TLS yet is called without: while a cluster goes over to TLS.
    pub plain_too: bool,
}

impl NodeTls {
    /// Reads the files that the settings name; `None` if they name none.
    ///
    /// # Errors
    ///
    /// [`TlsError`].
    pub fn load(config: &Config, runtime: &Runtime) -> Result<Option<Self>, TlsError> {
        let Some(credentials) = credentials(config, &*runtime.clock)?.map(Arc::new) else {
            return Ok(None);
        };
        if let Some(warning) = key_is_open(config) {
            tracing::warn!("{warning}");
        }
        let cluster = &config.cluster.cluster_name;
        let plain_too = config.node.insecure;
        let security = |admits, protocol| -> Result<Security, Unusable> {
            let side = ServerSide::new(Arc::clone(&credentials), admits, &[protocol])?;
            Ok(Security { side: Arc::new(side), plain_too })
        };
        let clients = match config.node.client_certs {
            ClientCerts::Optional => Admits::Anybody,
            ClientCerts::Required => Admits::Certified,
        };
        let (mut members, mut dials) = (None, None);
        if config.has_peers {
            proves(&credentials, cluster, config.node.node_id)?;
            members = Some(security(Admits::Nodes(cluster.clone()), HTTP2)?);
            let side = ClientSide::new(Arc::clone(&credentials), HTTP2)?;
            dials = Some(Dials { side, cluster: cluster.clone(), plain_too });
        }
        Ok(Some(Self {
            clients: security(clients.clone(), HTTP2)?,
            admin: security(clients, HTTP1)?,
            members,
            handshakes: Handshakes::start(runtime.clone())?,
            credentials,
            dials,
        }))
    }

    /// TLS of one of the node's ports, if it has any.
    pub fn of(&self, port: Port) -> Option<(Security, Handshakes)> {
        let security = match port {
            Port::Clients => Some(&self.clients),
            Port::Members => self.members.as_ref(),
            Port::Admin => Some(&self.admin),
            // The system itself says who is at the other end, and nobody is on the way.
            Port::Local => None,
        };
        security.map(|security| (security.clone(), self.handshakes.clone()))
    }

    /// How this node calls the others; `None` if there are none.
    pub fn dials(&self) -> Option<Dials> {
        self.dials.clone()
    }

    /// Looks at the files every few seconds, and at each of `hangups`. Never ends.
    pub async fn keep(
        self: Arc<Self>,
        mut hangups: Signal,
        ends: CertificateEnds,
        runtime: Runtime,
    ) {
        let mut last_problem = None;
        let mut warned = None;
        loop {
            ends.show(&self.credentials);
            let now = runtime.clock.now();
            if warned.is_none_or(|warned| now.saturating_since(warned) >= WARN_EVERY)
                && warn_of_ends(&self.credentials, &*runtime.clock)
            {
                warned = Some(now);
            }
            holdfast_runtime::select! {
                _ = hangups.recv() => last_problem = None,
                () = runtime.sleep(LOOK_EVERY) => {}
            }
            match self.credentials.reload(wall(&*runtime.clock)) {
                Ok(Reloaded::Unchanged) => last_problem = None,
                Ok(Reloaded::Replaced) => {
                    (last_problem, warned) = (None, None);
                    tracing::info!("new certificate files: connections from now on use them");
                }
                Err(error) => say_once(&mut last_problem, error.to_string()),
            }
        }
    }
}

/// The credentials that the settings name, if any.
///
/// # Errors
///
/// [`FileError`].
pub fn credentials(config: &Config, clock: &dyn Clock) -> Result<Option<Credentials>, FileError> {
    let node = &config.node;
    if !node.has_tls() {
        return Ok(None);
    }
    let own = OwnFiles { cert: node.tls_cert.clone(), key: node.tls_key.clone() };
    let ca = (!node.tls_ca.as_os_str().is_empty()).then(|| node.tls_ca.clone());
    Credentials::load(CredentialFiles { own: Some(own), ca }, wall(clock)).map(Some)
}

/// What to tell an operator whose key everybody on the machine can read.
pub fn key_is_open(config: &Config) -> Option<String> {
    let key = &config.node.tls_key;
    let mode = fs::metadata(key).ok()?.permissions().mode() & 0o777;
    let open = mode & 0o004 != 0;
    open.then(|| {
        format!("{} can be read by everybody on this machine ({mode:o}): chmod 600", key.display())
    })
}

fn wall(clock: &dyn Clock) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(clock.wall_ms())
}

/// Whether other members would take the certificate for this node's: better found here than by them.
fn proves(credentials: &Credentials, cluster: &ClusterName, id: u64) -> Result<(), TlsError> {
    let certificate = credentials.certificate();
    let name = certificate.as_ref().and_then(holdfast_tls::Certificate::node_name);
    if name.is_some_and(|name| name.speaks_for(cluster, id)) {
        return Ok(());
    }
    let uris = certificate.map(|certificate| certificate.uris).unwrap_or_default();
    let found = if uris.is_empty() { "none".to_owned() } else { uris.join(", ") };
    Err(TlsError::AnotherNode { id, cluster: cluster.clone(), found })
}

/// The same problem every few seconds is one line.
fn say_once(last: &mut Option<String>, problem: String) {
    if last.as_ref() != Some(&problem) {
        tracing::error!("the certificate files stay as they were: {problem}");
        *last = Some(problem);
    }
}

/// How many days each file is still good for, the CA bundle by the first of its certificates.
pub fn days_left<'a>(credentials: &'a Credentials, clock: &dyn Clock) -> Vec<(&'a Path, u64)> {
    let now = wall(clock);
    let days =
        |ends: SystemTime| ends.duration_since(now).map_or(0, |left| left.as_secs() / 86_400);
    credentials.ends().into_iter().map(|(file, ends)| (file, days(ends))).collect()
}

/// Warns of what ends soon; whether there was anything.
fn warn_of_ends(credentials: &Credentials, clock: &dyn Clock) -> bool {
    let mut ending = days_left(credentials, clock);
    ending.retain(|(_, days)| *days < WARN_BEFORE_DAYS);
    for (file, days) in &ending {
        tracing::warn!("a certificate in {} ends in {days} days", file.display());
    }
    !ending.is_empty()
}

/// When each certificate file runs out, Unix seconds.
#[derive(Clone, Debug, Default)]
pub struct CertificateEnds(pub Family<[(&'static str, String); 1], Gauge>);

impl CertificateEnds {
    fn show(&self, credentials: &Credentials) {
        for (file, ends) in credentials.ends() {
            let seconds = ends.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let label = [("file", file.display().to_string())];
            self.0.get_or_create(&label).set(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
    }
}
