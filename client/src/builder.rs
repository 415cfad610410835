//! The settings and construction of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_guard::default_label;
use holdfast_seams::{Seams, Transport, select};

use crate::session::{Opening, Session, Wishes};
use crate::transport::GrpcTransport;
use crate::{Client, ClusterAdmin, Error, Importer, Reader, Result, ScopeAdmin, Sessions};

/// Settings of a client; [`Client::builder`] makes one with the defaults.
#[derive(Clone)]
#[must_use = "a builder does nothing until it is connected"]
pub struct Builder {
    endpoints: Vec<String>,
    ttl: Option<Duration>,
    label: Option<String>,
    allowance: f64,
    connect_timeout: Duration,
    seams: Seams,
    transport: Option<Arc<dyn Transport>>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            endpoints: vec!["127.0.0.1:7420".into()],
            ttl: None,
            label: None,
            allowance: 0.1,
            connect_timeout: Duration::from_secs(10),
            seams: Seams::system(),
            transport: None,
        }
    }

    /// The servers: `host:port`, several separated by commas. The client finds out which of them
    /// leads, and follows changes. Default: `127.0.0.1:7420`.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if the list is empty, or an endpoint has no port.
    pub fn endpoints(mut self, list: &str) -> Result<Self> {
        self.endpoints = holdfast_guard::endpoints(list)?;
        Ok(self)
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
    /// errors together. A guard is safe for TTL·(1 − allowance) − 20 ms after the send time of the
    /// last keepalive that was answered. 0 to 0.5; default 0.1.
    pub fn allowance(mut self, allowance: f64) -> Self {
        self.allowance = allowance;
        self
    }

    /// How long [`Builder::connect`], a try, or a read of locks may take to reach a server that
    /// serves. Default: 10 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Replaces time, tasks and randomness of the real machine: for simulations.
    pub fn seams(mut self, seams: Seams) -> Self {
        self.seams = seams;
        self
    }

    /// Replaces gRPC as the transport to servers: for simulations.
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// A reader, which opens no session.
    pub fn reader(&self) -> Reader {
        let transport = self.transport.clone().unwrap_or_else(|| Arc::new(GrpcTransport::new()));
        Reader::new(self.endpoints.clone(), transport, self.seams.clone(), self.connect_timeout)
    }

    /// For operators: reads and changes of membership. `limit` bounds each call. It opens no
    /// session.
    pub fn cluster_admin(&self, limit: Duration) -> ClusterAdmin {
        ClusterAdmin::new(self.endpoints.clone(), self.seams.clone(), limit)
    }

    /// For operators: scopes with fallback. `limit` bounds each call. It opens no session.
    pub fn scope_admin(&self, limit: Duration) -> ScopeAdmin {
        ScopeAdmin::new(self.endpoints.clone(), self.seams.clone(), limit)
    }

    /// For operators: imports the holds of another store. `limit` bounds each call to a server. It
    /// opens no session.
    pub fn importer(&self, limit: Duration) -> Importer {
        Importer::new(self.endpoints.clone(), self.seams.clone(), limit)
    }

    /// For operators: reads of sessions. `limit` bounds each call. It opens no session.
    pub fn sessions(&self, limit: Duration) -> Sessions {
        Sessions::new(self.endpoints.clone(), self.seams.clone(), limit)
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
    /// [`Error::Setting`] if the allowance makes no sense. There is no session then.
    pub async fn connect(self) -> Result<Client> {
        let (limit, seams) = (self.connect_timeout, self.seams.clone());
        let client = self.begin()?;
        let mut opening = client.session().opening();
        select! {
            opened = opening.wait_for(|opening| !matches!(opening, Opening::Trying)) => {
                match opened.map(|opened| opened.clone()) {
                    Ok(Opening::Refused(error)) => Err(error),
                    Ok(Opening::Open) => Ok(client),
                    Ok(Opening::Trying) | Err(_) => Err(Error::Closed),
                }
            }
            () = seams.sleep(limit) => Err(client.unreachable(limit)),
        }
    }

    /// As [`Builder::connect`], without waiting for a server: the client opens the session as soon
    /// as it reaches one. For callers that lock in another store until then (`Locker` of
    /// mode `fallback`).
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if the allowance makes no sense.
    pub fn begin(self) -> Result<Client> {
        if !(0.0..=0.5).contains(&self.allowance) {
            let message = format!("an allowance is 0 to 0.5, not {}", self.allowance);
            return Err(Error::Setting { message });
        }
        let reader = self.reader();
        let wishes = Wishes {
            ttl: self.ttl,
            label: self.label.unwrap_or_else(default_label),
            allowance: self.allowance,
        };
        let transport = reader.transport().clone();
        let session = Session::start(wishes, self.endpoints, transport, &self.seams);
        Ok(Client::new(session, reader))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("endpoints", &self.endpoints)
            .field("ttl", &self.ttl)
            .field("label", &self.label)
            .field("allowance", &self.allowance)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}
