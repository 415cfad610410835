//! How a client dials servers, and what it tells them of those that it could not reach.
//!
//! A node that does not lead sends a client to the leader, or passes its calls on to it. The first is better: the
//! calls have one hop less, and the leader one client. So a client asks for that, and names the addresses at which it
//! has just failed: behind a load balancer, or from outside a cluster's network, a leader cannot be reached by
//! its own address, and to such a one the calls are passed on.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_guard::{dns_name, innermost, is_unix_socket};
use holdfast_runtime::{BoxFuture, Instant, Runtime, TransportError};
use tonic::transport::{Channel, Endpoint};

use super::bearer::{Bearer, Line};
use super::grpc::{Windows, hinted};
use super::pool::lock;

/// How long an address counts as one that cannot be reached.
const UNREACHED_FOR: Duration = Duration::from_mins(1);
/// So many of them are named at most: those that failed last.
const UNREACHED_MAX: usize = 16;
/// A half-open connection is detected after one interval and one time-out.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) type Connecting = BoxFuture<'static, Result<Channel, tonic::transport::Error>>;
/// Connects to an endpoint; with a name, that of the server whose address was looked up.
pub(crate) type Connect = dyn Fn(Endpoint, Option<&str>) -> Connecting + Send + Sync;

/// How a client dials. Clones remember together.
#[derive(Clone)]
pub(crate) struct Dials {
    connect: Arc<Connect>,
    bearer: Bearer,
    reach: Arc<Reach>,
}

/// What a client remembers of servers; clients that share connections remember together.
pub(crate) struct Reach {
    runtime: Runtime,
    /// When an attempt to reach an address failed.
    unreached: Mutex<BTreeMap<String, Instant>>,
    /// Counts the attempts at names with several addresses: each begins with the next one.
    lookups: AtomicUsize,
}

impl Dials {
    pub(crate) fn new(connect: Arc<Connect>, bearer: Bearer, reach: Arc<Reach>) -> Self {
        Self { connect, bearer, reach }
    }

    /// A connection to a server.
    ///
    /// # Errors
    ///
    /// [`TransportError::Unreachable`]; nothing was sent.
    pub(super) async fn channel(
        &self,
        endpoint: &str,
        windows: Windows,
    ) -> Result<Channel, TransportError> {
        // Noted if it fails, and if nobody waits for it any longer: that is how a caller's time limit ends it.
        let attempt = Attempt { reach: &self.reach, endpoint };
        let channel = self.connected(endpoint, windows).await?;
        attempt.succeeded();
        Ok(channel)
    }

    async fn connected(&self, endpoint: &str, windows: Windows) -> Result<Channel, TransportError> {
        let unreachable = |detail: String| TransportError::Unreachable {
            endpoint: endpoint.to_owned(),
            detail: hinted(detail),
        };
        if is_unix_socket(endpoint) {
            // Nobody is on the way, and the system says to the server who connects: no TLS.
            let connecting = described(endpoint.to_owned(), windows).map(|to| plain(to, None));
            let connecting = connecting.map_err(|error| unreachable(innermost(&error)))?;
            return connecting.await.map_err(|error| unreachable(innermost(&error)));
        }
        let Some(name) = dns_name(endpoint) else {
            return self.dial(endpoint, None, windows).await.map_err(unreachable);
        };
        let mut last = "the name has no address".to_owned();
        for address in self.looked_up(name).await.map_err(unreachable)? {
            match self.dial(&address.to_string(), Some(name), windows).await {
                Ok(channel) => return Ok(channel),
                Err(why) => last = format!("{address}: {why}"),
            }
        }
        Err(unreachable(last))
    }

    /// Dials `host:port`. With `name`, which is `host:port` too, that is the server's.
    async fn dial(
        &self,
        address: &str,
        name: Option<&str>,
        windows: Windows,
    ) -> Result<Channel, String> {
        let endpoint = described(format!("http://{address}"), windows);
        let endpoint = endpoint.map_err(|error| innermost(&error))?;
        let host = name.and_then(|name| name.rsplit_once(':')).map(|(host, _)| host);
        (self.connect)(endpoint, host).await.map_err(|error| innermost(&error))
    }

    /// The addresses of a name as it is now, each time from another one on.
    async fn looked_up(&self, name: &str) -> Result<Vec<SocketAddr>, String> {
        let found = tokio::net::lookup_host(name).await.map_err(|error| error.to_string())?;
        let mut addresses: Vec<_> = found.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let first = self.reach.lookups.fetch_add(1, Ordering::Relaxed) % addresses.len().max(1);
        addresses.rotate_left(first);
        Ok(addresses)
    }

    /// A connection with what goes with every request to `endpoint`.
    pub(super) fn line(&self, endpoint: &str, channel: Channel) -> Line {
        let bearer = self.bearer.clone();
        // A server on this machine knows the client's user: it is to pass on who that is.
        if is_unix_socket(endpoint) {
            return bearer.over(channel);
        }
        bearer.redirected(&self.reach.unreached()).over(channel)
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl fmt::Debug for Dials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dials").finish_non_exhaustive()
    }
}

impl Reach {
    pub(crate) fn new(runtime: Runtime) -> Self {
        let mut first = [0; size_of::<usize>()];
        // Clients that start together are not all to begin with the same address.
        runtime.rng.fill(&mut first);
        let lookups = AtomicUsize::new(usize::from_ne_bytes(first));
        Self { runtime, unreached: Mutex::default(), lookups }
    }

    /// The addresses that were not reached lately, separated by commas.
    fn unreached(&self) -> String {
        let now = self.runtime.clock.now();
        let mut unreached = lock(&self.unreached);
        unreached.retain(|_, at| now.saturating_since(*at) < UNREACHED_FOR);
        unreached.keys().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    fn note(&self, endpoint: &str) {
        let now = self.runtime.clock.now();
        let mut unreached = lock(&self.unreached);
        unreached.insert(endpoint.to_owned(), now);
        let oldest = unreached.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest.filter(|_| unreached.len() > UNREACHED_MAX) {
            unreached.remove(&oldest);
        }
    }
}

/// An attempt to reach a server: noted as a failure when it is dropped.
struct Attempt<'a> {
    reach: &'a Reach,
    endpoint: &'a str,
}

impl Attempt<'_> {
    fn succeeded(self) {
        lock(&self.reach.unreached).remove(self.endpoint);
        std::mem::forget(self);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.reach.note(self.endpoint);
    }
}

/// As [`Connect`], without TLS.
pub(crate) fn plain(endpoint: Endpoint, _: Option<&str>) -> Connecting {
    Box::pin(async move { endpoint.connect().await })
}

/// The endpoint of a server, with the client's settings.
fn described(uri: String, windows: Windows) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(uri)?
        .tcp_nodelay(true)
        .initial_connection_window_size(windows.connection)
        .initial_stream_window_size(windows.stream)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

#[cfg(test)]
mod tests {
    use holdfast_runtime::simulated;

    use super::*;

    fn dials() -> Dials {
        let connect = |endpoint: Endpoint, _: Option<&str>| -> Connecting { plain(endpoint, None) };
        let reach = Arc::new(Reach::new(simulated::runtime(1, 0)));
        Dials::new(Arc::new(connect), Bearer::default(), reach)
    }

    /// A port of this machine that nothing listens on.
    fn closed() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    #[tokio::test]
    async fn an_address_that_failed_is_named_until_it_is_reached_or_a_minute_has_passed() {
        let dials = dials();
        let (gone, listener) = (closed(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        assert_eq!(dials.reach.unreached(), "");
        assert!(dials.channel(&gone, Windows::USUAL).await.is_err());
        let open = listener.local_addr().unwrap().to_string();
        dials.reach.note(&open);
        assert_eq!(dials.reach.unreached().split(',').count(), 2);
        // It is connected once the other end speaks HTTP/2.
        let accepting = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut stream, &[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
            stream
        });
        assert!(dials.channel(&open, Windows::USUAL).await.is_ok());
        drop(accepting.join());
        assert_eq!(dials.reach.unreached(), gone);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_minute_it_is_tried_again_and_few_are_named() {
        let dials = dials();
        for port in 0..40 {
            dials.reach.note(&format!("10.0.0.1:{port}"));
            dials.reach.runtime.sleep(Duration::from_millis(1)).await;
        }
        let named = dials.reach.unreached();
        assert_eq!(named.split(',').count(), UNREACHED_MAX);
        assert!(named.contains(":39") && !named.contains(":23,"), "{named}");
        dials.reach.runtime.sleep(UNREACHED_FOR).await;
        assert_eq!(dials.reach.unreached(), "");
    }

    /// A caller whose time is over drops the attempt: a host that answers nothing was not reached either.
    #[tokio::test]
    async fn an_attempt_that_is_dropped_counts_as_failed() {
        let dials = dials();
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let mut attempt = Box::pin(dials.channel(&address, Windows::USUAL));
        assert!(futures_util::poll!(attempt.as_mut()).is_pending());
        drop(attempt);
        assert_eq!(dials.reach.unreached(), address);
    }

    #[tokio::test]
    async fn each_attempt_at_a_name_begins_with_another_of_its_addresses() {
        let dials = dials();
        let all = dials.looked_up("localhost:7420").await.unwrap();
        assert!(all.iter().all(|address| address.ip().is_loopback() && address.port() == 7420));
        let mut firsts = std::collections::BTreeSet::new();
        for _ in 0..all.len() {
            firsts.extend(dials.looked_up("localhost:7420").await.unwrap().first().copied());
        }
        assert_eq!(firsts.len(), all.len());
        let error = dials.channel("dns:///no.such.name.invalid:1", Windows::USUAL).await.err();
        assert!(matches!(error, Some(TransportError::Unreachable { .. })), "{error:?}");
    }
}
