//! The client of the time service.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_guard::is_unix_socket;
use holdfast_runtime::Runtime;

use super::replica::is_time;
use crate::clock::grpc::{GrpcReplica, NoTime, TimeAccess};
use crate::queue::QueueTime;
use crate::{Error, Result};

/// How long one replica may take by default.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Asks one of several replicas, and the next one when it does not answer in time. Cheap to clone;
/// clones are the same client.
///
/// It never falls back to a clock of its own: a place by that would be out of order.
#[derive(Clone)]
pub struct TimeClient {
    replicas: Arc<[Replica]>,
    runtime: Runtime,
    limit: Duration,
    /// The replica to ask first: the one that answered last.
    first: Arc<AtomicUsize>,
    /// The largest answer so far, microseconds.
    last_us: Arc<AtomicU64>,
}

pub(super) struct Replica {
    pub(super) name: String,
    pub(super) ask: Box<dyn Fn() -> BoxFuture<'static, Result<u64, NoTime>> + Send + Sync>,
}

impl TimeClient {
    /// A client of the replicas, each as `host:port`. It asks none yet.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`] if there is no replica, or one without a port.
    pub fn new(endpoints: impl IntoIterator<Item: Into<String>>) -> Result<Self> {
        Self::with_access(endpoints, &TimeAccess::default())
    }

    /// As [`TimeClient::new`], with replicas that speak TLS or want a token.
    ///
    /// # Errors
    ///
    /// As of [`TimeClient::new`], and for a file of `access` that cannot be used.
    pub fn with_access(
        endpoints: impl IntoIterator<Item: Into<String>>,
        access: &TimeAccess,
    ) -> Result<Self> {
        let endpoints: Vec<String> = endpoints.into_iter().map(Into::into).collect();
        holdfast_guard::check_endpoints(&endpoints)?;
        if let Some(local) = endpoints.iter().find(|endpoint| is_unix_socket(endpoint)) {
            let message =
                format!("endpoint {local}: a time service has no Unix socket; name its host:port");
            return Err(Error::InvalidConfig { message });
        }
        let runtime = Runtime::system();
        let replica = |name: String| {
            let grpc = Arc::new(GrpcReplica::at(&name, access, &runtime)?);
            let ask = move || -> BoxFuture<'static, Result<u64, NoTime>> {
                let grpc = grpc.clone();
                Box::pin(async move { grpc.now_us().await })
            };
            Ok(Replica { name, ask: Box::new(ask) })
        };
        let replicas = endpoints.into_iter().map(replica);
        Ok(Self::of(replicas.collect::<Result<_>>()?, runtime))
    }

    pub(super) fn of(replicas: Vec<Replica>, runtime: Runtime) -> Self {
        Self {
            replicas: replicas.into(),
            runtime,
            limit: ANSWER_LIMIT,
            first: Arc::default(),
            last_us: Arc::default(),
        }
    }

    /// How long one replica may take before the next one is asked.
    ///
    /// Default: 2 s, many times what an answer takes (one or two round trips of the replica's).
    #[must_use]
    pub fn answer_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Microseconds since 1970: at least every answer that any replica gave before this call, and every
    /// earlier answer of this client. Cancel safe. Takes at most the limit for each replica.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no replica answered, [`Error::Refused`] if all of them refused to give
    /// a time.
    pub async fn now_us(&self) -> Result<u64> {
        let began = self.runtime.clock.now();
        let first = self.first.load(Ordering::Relaxed);
        let mut said = Vec::new();
        let mut is_refused = true;
        for nth in 0..self.replicas.len() {
            let at = (first + nth) % self.replicas.len();
            let Some(replica) = self.replicas.get(at) else { continue };
            match self.ask(replica).await {
                Ok(now_us) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(now_us.max(self.last_us.fetch_max(now_us, Ordering::AcqRel)));
                }
                Err(NoTime::NotNow(why)) => {
                    is_refused = false;
                    said.push(format!("{}: {why}", replica.name));
                }
                Err(NoTime::Refused(why)) => said.push(format!("{}: {why}", replica.name)),
            }
        }
        let last = said.join("; ");
        if is_refused {
            return Err(Error::invalid(format!(
                "the time service does not tell the time ({last})"
            )));
        }
        let endpoints = self.replicas.iter().map(|replica| replica.name.clone()).collect();
        let waited = self.runtime.clock.now().saturating_since(began);
        Err(Error::Unreachable { endpoints, waited, last, answered: false })
    }

    async fn ask(&self, replica: &Replica) -> Result<u64, NoTime> {
        let Ok(answer) = self.runtime.timeout(self.limit, (replica.ask)()).await else {
            return Err(NoTime::NotNow(format!("no answer within {:?}", self.limit)));
        };
        // A value far off would stay this client's largest answer for ever.
        match answer {
            Ok(now_us) if !is_time(now_us) => {
                Err(NoTime::Refused(format!("it answers {now_us}, which is no time")))
            }
            answer => answer,
        }
    }
}

impl QueueTime for TimeClient {
    fn now_us(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(Self::now_us(self))
    }
}

impl fmt::Debug for TimeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replicas: Vec<_> = self.replicas.iter().map(|replica| &replica.name).collect();
        f.debug_struct("TimeClient").field("replicas", &replicas).finish_non_exhaustive()
    }
}
