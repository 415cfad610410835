//! TLS of a node: one certificate for all its ports, and for its own calls to other members (DESIGN §14).

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_runtime::{Clock, Runtime};
use holdfast_tls::{
    Admits, Certificate, ClientSide, ClusterName, CredentialFiles, Credentials, DialError,
    FileError, OwnFiles, Reloaded, ServerSide, Unusable,
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
    /// The certificate is that of one id, and the node joins by itself.
    #[error(
        "the certificate in tls_cert does not make its owner any node of cluster {cluster}: its names are {found}; with \
         join = \"auto\" make one with `holdfast cert node --cluster {cluster}`, without --id, or set cluster_name"
    )]
    OfOneNode {
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
    /// Whose certificate it has to be; `None` where no other member asks.
    member: Option<Member>,
    key: PathBuf,
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
        let key = config.node.tls_key.clone();
        warn_of_open_key(&key);
        let member = Member::of(config);
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
        if let Some(Member { cluster, .. }) = &member {
            members = Some(security(Admits::Nodes(cluster.clone()), HTTP2)?);
            let side = ClientSide::new(Arc::clone(&credentials), HTTP2)?;
            dials = Some(Dials { side, cluster: cluster.clone(), plain_too });
        }
        Ok(Some(Self {
            member,
            key,
            clients: security(clients, HTTP2)?,
            // Health answers everybody; who may see the metrics is decided there.
            admin: security(Admits::Anybody, HTTP1)?,
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
            match self.look_again(&*runtime.clock) {
                Ok(Reloaded::Unchanged) => last_problem = None,
                Ok(Reloaded::Replaced) => {
                    (last_problem, warned) = (None, None);
                    tracing::info!("new certificate files: connections from now on use them");
                    warn_of_open_key(&self.key);
                }
                Err(error) => say_once(&mut last_problem, error.to_string()),
            }
        }
    }

    /// A certificate of another node is refused as at the start: with it in use, no member would take this
    /// node's connections, and the node could not start again.
    fn look_again(&self, clock: &dyn Clock) -> Result<Reloaded, TlsError> {
        let check = |shown: Option<&Certificate>| is_of(self.member.as_ref(), shown);
        self.credentials.reload_if(clock.wall(), check)
    }
}

/// The member for which the owner of a certificate has to be able to speak.
#[derive(Clone, Debug)]
struct Member {
    cluster: ClusterName,
    id: u64,
}

impl Member {
    /// This node; `None` if it has no other members, now or one day.
    fn of(config: &Config) -> Option<Self> {
        let (cluster, id) = (config.cluster.cluster_name.clone(), config.node.node_id);
        config.has_peers.then_some(Self { cluster, id })
    }
}

/// The credentials that the settings name, if any.
///
/// # Errors
///
/// [`TlsError::File`], [`TlsError::AnotherNode`].
pub fn credentials(config: &Config, clock: &dyn Clock) -> Result<Option<Credentials>, TlsError> {
    let node = &config.node;
    if !node.has_tls() {
        return Ok(None);
    }
    let own = OwnFiles { cert: node.tls_cert.clone(), key: node.tls_key.clone() };
    let ca = (!node.tls_ca.as_os_str().is_empty()).then(|| node.tls_ca.clone());
    let credentials = Credentials::load(CredentialFiles { own: Some(own), ca }, clock.wall())?;
    is_of(Member::of(config).as_ref(), credentials.certificate().as_ref())?;
    Ok(Some(credentials))
}

/// What to tell an operator whose key everybody on the machine can read.
pub fn key_is_open(key: &Path) -> Option<String> {
    let mode = fs::metadata(key).ok()?.permissions().mode() & 0o777;
    let open = mode & 0o004 != 0;
    open.then(|| {
        format!("{} can be read by everybody on this machine ({mode:o}): chmod 600", key.display())
    })
}

fn warn_of_open_key(key: &Path) {
    if let Some(warning) = key_is_open(key) {
        tracing::warn!("{warning}");
    }
}

/// Whether other members would take the certificate for this node's: better found here than by them.
fn is_of(member: Option<&Member>, shown: Option<&Certificate>) -> Result<(), TlsError> {
    let Some(Member { cluster, id }) = member else { return Ok(()) };
    let name = shown.and_then(Certificate::node_name);
    if name.is_some_and(|name| name.speaks_for(cluster, *id)) {
        return Ok(());
    }
    let uris = shown.map(|certificate| certificate.uris.join(", ")).unwrap_or_default();
    let found = if uris.is_empty() { "none".to_owned() } else { uris };
    if *id == 0 {
        return Err(TlsError::OfOneNode { cluster: cluster.clone(), found });
    }
    Err(TlsError::AnotherNode { id: *id, cluster: cluster.clone(), found })
}

/// The same problem every few seconds is one line.
fn say_once(last: &mut Option<String>, problem: String) {
    if last.as_ref() != Some(&problem) {
        tracing::error!("the certificate files stay as they were: {problem}");
        *last = Some(problem);
    }
}

/// How many days each file is still good for: the first of its certificates to end.
pub fn days_left<'a>(credentials: &'a Credentials, clock: &dyn Clock) -> Vec<(&'a Path, u64)> {
    let now = clock.wall();
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
