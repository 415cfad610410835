//! The settings and construction of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_guard::{check_endpoints, default_label, is_unix_socket};
use holdfast_runtime::{Runtime, Transport, select};

#[cfg(feature = "tls")]
use crate::Tls;
use crate::attaching::Attaching;
use crate::endpoints::Servers;
use crate::session::{Access, Machine, Opening, Session, SessionConfig};
#[cfg(feature = "tls")]
use crate::transport::Dialling;
use crate::transport::{Bearer, Connect, Dials, GrpcTransport, Reach, Shared, plain};
use crate::{Admin, Client, Error, Reader, Result};

/// Settings of a client; [`Client::builder`] makes one with the defaults.
#[derive(Clone)]
#[must_use = "a builder does nothing until it is connected"]
pub struct Builder {
    endpoints: Vec<String>,
    ttl: Option<Duration>,
    label: Option<String>,
    max_clock_drift: f64,
    connect_timeout: Duration,
    runtime: Runtime,
    transport: Option<Arc<dyn Transport>>,
    shared: Option<SharedByClients>,
    /// Never shown: `Debug` leaves it out.
    token: Option<String>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

/// What the clients share that share connections.
#[derive(Clone)]
struct SharedByClients {
    connections: Arc<Shared>,
    attaching: Arc<Attaching>,
}

impl SharedByClients {
    fn new(runtime: &Runtime) -> Self {
        let connections = Arc::new(Shared::new(runtime.clone()));
        Self { connections, attaching: Arc::new(Attaching::new()) }
    }
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            endpoints: vec!["127.0.0.1:7420".into()],
            ttl: None,
            label: None,
            max_clock_drift: 0.1,
            connect_timeout: Duration::from_secs(10),
            runtime: Runtime::system(),
            transport: None,
            shared: None,
            token: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// The servers, each as `host:port` (`[address]:port` for IPv6), or several of them separated by commas.
    /// Default: `127.0.0.1:7420`.
    ///
    /// One is enough: a load balancer's, a Kubernetes Service's, any node's. The client prefers the leader, whose
    /// address the servers tell it; where it cannot get there, the server that it reaches passes its calls
    /// on. Several are better, for when one is down.
    ///
    /// `dns:///host:port` stands for every address that the name has: the client looks it up again for each
    /// connection, and begins with another address each time.
    ///
    /// A server on this machine may be named by its Unix socket, `unix:PATH`: there the client is the identity
    /// `uid:NUMBER` of its user, without TLS. A server that does not lead passes its calls on.
    pub fn endpoints(mut self, endpoints: impl IntoIterator<Item: Into<String>>) -> Self {
        let split = |list: String| -> Vec<String> {
            // A path may have commas.
            if is_unix_socket(&list) {
                return vec![list];
            }
            list.split(',').map(|one| one.trim().to_owned()).collect()
        };
        self.endpoints = endpoints.into_iter().map(Into::into).flat_map(split).collect();
        self
    }

    /// How long the store keeps the session and all its holds without a keepalive. With a shorter
    /// TTL the store passes locks on sooner when this process dies; a longer one outlives longer
    /// pauses and outages. Default: the server's (10 s). The server refuses a TTL outside its
    /// bounds (1 s to 15 min unless it is set otherwise).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The name that other clients see when this one holds a lock. It proves nothing; at most 256
    /// bytes. Default: `host:pid`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The largest relative difference of rate between this machine's clock and any server's, both
    /// errors together. A guard is safe for TTL·(1 − drift) − 20 ms after the send time of the last
    /// keepalive that was answered. 0 to 0.5; default 0.1.
    pub fn max_clock_drift(mut self, drift: f64) -> Self {
        self.max_clock_drift = drift;
        self
    }

    /// How long [`Builder::connect`], a try, or a read of locks may take to reach a server that
    /// serves. Default: 10 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Speaks TLS with the servers. Default: none, for servers that listen on loopback only, or with
    /// `--insecure`.
    ///
    /// The files are read when the client, the reader or the admin is made; a wrong one is an
    /// [`Error::InvalidConfig`] of that call.
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
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self.share_anew();
        self
    }

    /// Shows this token with every request: the caller is then the token's owner, whatever certificate it has.
    /// Default: none.
    ///
    /// White space around it does not count, so the content of a file will do. A thief of the token can do
    /// what its owner can: use TLS, except on loopback. It is checked when the client, the reader or the admin is
    /// made; one that cannot be sent is an [`Error::InvalidConfig`] of that call.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self.share_anew();
        self
    }

    /// Lets all clients and readers that are made of this builder and its clones from here on share
    /// connections: up to 512 sessions have one, and their keepalives are sent together; up to 128 watches
    /// have another. For a process with hundreds of sessions or watches, which would otherwise need as many
    /// connections. When their server is gone, up to 256 of the sessions come back at a time, and the others
    /// renew their leases until their turn. Default: each client has a connection of its own.
    ///
    /// A clone that gets another token, or other settings of TLS, shares with its own clones alone.
    ///
    /// ```no_run
    /// # async fn example() -> holdfast::Result<()> {
    /// let builder = holdfast::Client::builder().share_connections();
    /// let (one, two) = (builder.clone().connect().await?, builder.connect().await?);
    /// # drop((one, two)); Ok(()) }
    /// ```
    pub fn share_connections(mut self) -> Self {
        self.shared = Some(SharedByClients::new(&self.runtime));
        self
    }

    /// What a server takes a client for may differ from now on.
    fn share_anew(&mut self) {
        if self.shared.is_some() {
            self.shared = Some(SharedByClients::new(&self.runtime));
        }
    }

    /// Replaces time, tasks and randomness of the real machine: for Holdfast's own simulations.
    #[doc(hidden)]
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = runtime;
        self.share_anew();
        self
    }

    /// Replaces gRPC as the transport to servers: for Holdfast's own simulations.
    #[doc(hidden)]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// A reader, which opens no session.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if there is no endpoint, or one without a port.
    pub fn reader(&self) -> Result<Reader> {
        let transport = if let Some(transport) = &self.transport {
            Arc::clone(transport)
        } else {
            let shared = self.shared.as_ref().map(|shared| shared.connections.clone());
            Arc::new(GrpcTransport::new(self.dials()?, shared))
        };
        Ok(Reader { servers: self.servers(self.connect_timeout)?, transport })
    }

    fn bearer(&self) -> Result<Bearer> {
        self.token.as_ref().map_or(Ok(Bearer::default()), |token| Bearer::new(token))
    }

    /// How servers are dialled, and what goes with every request.
    fn dials(&self) -> Result<Dials> {
        let reach = match &self.shared {
            Some(shared) => shared.connections.reach.clone(),
            None => Arc::new(Reach::new(self.runtime.clone())),
        };
        Ok(Dials::new(self.connects()?, self.bearer()?, reach))
    }

    fn connects(&self) -> Result<Arc<Connect>> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let dialling = Dialling::new(tls.clone(), &self.runtime)?;
            return Ok(Arc::new(move |endpoint, host| {
                let dialling = dialling.clone();
                let dialling = match host {
                    Some(host) => dialling.for_host(host),
                    None => dialling,
                };
                Box::pin(dialling.connect(endpoint))
            }));
        }
        Ok(Arc::new(plain))
    }

    fn servers(&self, limit: Duration) -> Result<Servers> {
        check_endpoints(&self.endpoints)?;
        let endpoints = self.endpoints.clone().into();
        Ok(Servers { endpoints, runtime: self.runtime.clone(), limit })
    }

    /// What operators do: members, scopes, imports, sessions of others. `limit` bounds each call to
    /// a server. It opens no session.
    ///
    /// # Errors
    ///
    /// As of [`Builder::reader`].
    pub fn admin(&self, limit: Duration) -> Result<Admin> {
        Ok(Admin { servers: self.servers(limit)?, dials: self.dials()? })
    }

    /// Opens a session at whichever server leads. Call it inside a tokio runtime, whose tasks then
    /// keep the session.
    ///
    /// Dropping the future gives up.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if the client reached no leader within the connect timeout,
    /// [`Error::Refused`] if the server would not open the session (its TTL, its limits),
    /// [`Error::InvalidConfig`] if an endpoint or the clock drift makes no sense. There is no session
    /// then.
    pub async fn connect(self) -> Result<Client> {
        let (limit, runtime) = (self.connect_timeout, self.runtime.clone());
        let client = self.connect_lazy()?;
        let mut opening = client.session().look(Machine::opening);
        select! {
            opened = opening.wait_for(|opening| !matches!(opening, Opening::Trying)) => {
                match opened.map(|opened| opened.clone()) {
                    Ok(Opening::Refused(error)) => Err(error),
                    Ok(Opening::Open) => Ok(client),
                    Ok(Opening::Trying) | Err(_) => Err(Error::Closed),
                }
            }
            () = runtime.sleep(limit) => Err(client.unreachable(limit)),
        }
    }

    /// As [`Builder::connect`], without waiting for a server: the client opens the session as soon
    /// as it reaches one. For callers that lock in another store until then (`Locker` of
    /// mode `fallback`).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if an endpoint or the clock drift makes no sense.
    pub fn connect_lazy(self) -> Result<Client> {
        if !(0.0..=0.5).contains(&self.max_clock_drift) {
            let message = format!("a clock drift is 0 to 0.5, not {}", self.max_clock_drift);
            return Err(Error::InvalidConfig { message });
        }
        let reader = self.reader()?;
        let config = SessionConfig {
            ttl: self.ttl,
            label: self.label.unwrap_or_else(default_label),
            allowance: self.max_clock_drift,
            keeps_together: reader.transport.keeps_together(),
        };
        let attaching =
            self.shared.map_or_else(|| Arc::new(Attaching::new()), |shared| shared.attaching);
        let transport = reader.transport.clone();
        let access = Access { endpoints: self.endpoints, transport, attaching };
        let session = Session::start(config, access, &self.runtime);
        Ok(Client::new(session, reader))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("endpoints", &self.endpoints)
            .field("ttl", &self.ttl)
            .field("label", &self.label)
            .field("max_clock_drift", &self.max_clock_drift)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}
