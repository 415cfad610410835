//! The end at the client: a node that does not lead passes its calls on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use holdfast_proto::v1::Forwarded;
use holdfast_runtime::{BoxFuture, Instant, Runtime};
use http_body::{Frame, SizeHint};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tonic::body::Body;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::server::NamedService;
use tonic::{Code, ConnectError, Status};
use tower::{Service, ServiceExt as _};

use super::carrier::Carrier;
use super::links::{Links, Place};
use super::{ForwardingMetrics, REDIRECT, TAKEN_IN, announce, last_frame, named};
use crate::bytes_budget::BytesBudget;
use crate::members::{Member, PeerView};
use crate::rpc::access::{Door, Origin};
use crate::rpc::{Forwarding, status};

/// Calls that are about the node that is asked.
const OF_THE_NODE: [&str; 2] =
    ["/holdfast.v1.LockService/Status", "/holdfast.v1.LockService/History"];
/// The streams of sessions, which a carrier carries.
const SESSION: &str = "/holdfast.v1.LockService/Session";
/// How long a leader counts as one of an older release.
const OLD_FOR: Duration = Duration::from_secs(10);
/// In the header of an answer without a message: the call is not implemented.
const UNIMPLEMENTED: &[u8] = b"12";

/// A service on the port for clients, whose calls go to the leader while another node leads.
#[derive(Clone)]
pub(in crate::rpc) struct PassesOn<S> {
    service: S,
    passage: Arc<Passage>,
}

/// How this node passes calls on.
pub(in crate::rpc) struct Passage {
    peers: Arc<dyn PeerView>,
    links: Links,
    door: Door,
    metrics: ForwardingMetrics,
    runtime: Runtime,
    /// The longest message of a stream, bytes.
    longest: usize,
    /// For what clients have not read of their streams.
    unread: Arc<BytesBudget>,
    /// By leader: the one there is, and those before as long as they have streams.
    carriers: Mutex<BTreeMap<Member, Arc<Carrier>>>,
    old_release: OldRelease,
}

/// The last leader whose release takes no calls in, and since when that is known; clients are sent to it. It is
/// asked again after [`OLD_FOR`]: it may have been upgraded, and lead again.
#[derive(Clone, Default)]
struct OldRelease(Arc<Mutex<Option<(u64, Instant)>>>);

impl OldRelease {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, leader: u64, now: Instant) {
        *self.lock() = Some((leader, now));
    }

    fn is(&self, leader: u64, now: Instant) -> bool {
        let known = *self.lock();
        known.is_some_and(|(old, at)| old == leader && now.saturating_since(at) < OLD_FOR)
    }
}

impl<S> PassesOn<S> {
    pub(in crate::rpc) fn new(service: S, passage: Arc<Passage>) -> Self {
        Self { service, passage }
    }
}

impl<S: NamedService> NamedService for PassesOn<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for PassesOn<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(leader) = self.passage.leader_for(&request) else {
            return Either::Left(self.service.call(request));
        };
        let passage = self.passage.clone();
        Either::Right(Box::pin(async move {
            let answer = if request.uri().path() == SESSION {
                passage.carry(request, &leader)
            } else {
                passage.pass_on(request, &leader).await
            };
            Ok(answer.unwrap_or_else(Status::into_http))
        }))
    }
}

impl Passage {
    pub(in crate::rpc) fn new(
        forwarding: Forwarding,
        door: Door,
        runtime: Runtime,
        (longest, unread_max): (usize, u64),
    ) -> Self {
        let Forwarding { peers, links, metrics } = forwarding;
        let unread = BytesBudget::new(unread_max, metrics.unread_bytes.clone());
        Self {
            peers,
            links,
            door,
            metrics,
            runtime,
            longest,
            unread,
            carriers: Mutex::default(),
            old_release: OldRelease::default(),
        }
    }

    /// The leader to which a call is to be passed on; `None`: this node answers it.
    fn leader_for(&self, request: &Request<Body>) -> Option<Member> {
        let leader = self.peers.leader()?;
        let is_of_the_node = OF_THE_NODE.contains(&request.uri().path());
        let is_old = self.old_release.is(leader.node_id, self.runtime.clock.now());
        let goes_itself = request.headers().get(REDIRECT).is_some_and(|failed| {
            let failed = failed.to_str().unwrap_or_default();
            !failed.split(',').any(|address| address.trim() == leader.advertise)
        });
        (!is_of_the_node && !is_old && !goes_itself).then_some(leader)
    }

    /// Passes a call on, once.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE`: the leader was not reached, and nothing was done. `UNKNOWN`: the connection broke, and
    /// nobody knows. `UNAUTHENTICATED`, `RESOURCE_EXHAUSTED`: the caller is not let in.
    async fn pass_on(
        &self,
        mut request: Request<Body>,
        leader: &Member,
    ) -> Result<Response<Body>, Status> {
        let word = self.word(&request, leader)?;
        let headers = request.headers_mut();
        // The token stays here: the leader looks its hash up.
        headers.remove("authorization");
        headers.remove(REDIRECT);
        announce(headers, &word);
        let place = self.links.place(leader).map_err(|error| not_reached(leader, &error))?;
        let Place { mut channel, held } = place;
        self.metrics.passed_on.inc();
        let open = Open::new(&self.metrics.open, held);
        let answer = async { channel.ready().await?.call(request).await };
        let answer = answer.await.map_err(|error| {
            self.metrics.failed.inc();
            not_answered(leader, &error)
        })?;
        if is_of_an_old_release(&answer) {
            return Err(self.sent_to(leader));
        }
        let failed = self.metrics.failed.clone();
        Ok(answer.map(|body| {
            let broken = BrokenBy { leader: leader.node_id, failed };
            Body::new(Answer { body, broken, is_over: false, _open: open })
        }))
    }

    /// Carries the stream of a session to the leader. It ends with a status, as the leader's do.
    ///
    /// # Errors
    ///
    /// As of [`Passage::pass_on`].
    fn carry(&self, request: Request<Body>, leader: &Member) -> Result<Response<Body>, Status> {
        let word = Forwarded { header: None, ..self.word(&request, leader)? };
        self.metrics.passed_on.inc();
        let carrier = self.carrier_to(leader)?;
        let from_client = (request.into_body(), self.longest);
        let body = carrier.carry(&self.runtime, word, from_client, &self.unread)?;
        let mut answer = Response::new(body);
        let grpc = HeaderValue::from_static("application/grpc");
        answer.headers_mut().insert("content-type", grpc);
        Ok(answer)
    }

    /// The carrier to the leader, begun if there is none. Those to leaders before go with their last stream.
    fn carrier_to(&self, leader: &Member) -> Result<Arc<Carrier>, Status> {
        let mut carriers = self.carriers.lock().unwrap_or_else(PoisonError::into_inner);
        carriers.retain(|to, carrier| {
            let goes = carrier.is_over() || (to != leader && carrier.is_idle());
            if goes {
                carrier.close();
            }
            !goes
        });
        if let Some(carrier) = carriers.get(leader) {
            return Ok(carrier.clone());
        }
        let channel =
            self.links.for_carrier(leader).map_err(|error| not_reached(leader, &error))?;
        let call = (channel, self.peers.header(leader.node_id));
        let (to, old_release) = (leader.clone(), self.old_release.clone());
        let clock = self.runtime.clock.clone();
        let ended = move |status: Option<Status>| match status {
            None => broken(to.node_id, &"it ended the call"),
            Some(status) if status.code() == Code::Unimplemented => {
                old_release.note(to.node_id, clock.now());
                of_old_release(&to)
            }
            Some(status) => match not_connected(&status) {
                Some(why) => not_reached(&to, why),
                None if status.code() == Code::PermissionDenied => status,
                None => broken(to.node_id, &status.message()),
            },
        };
        let carrier = Carrier::begin(&self.runtime, call, self.metrics.clone(), ended);
        carriers.insert(leader.clone(), carrier.clone());
        Ok(carrier)
    }

    fn sent_to(&self, leader: &Member) -> Status {
        self.old_release.note(leader.node_id, self.runtime.clock.now());
        of_old_release(leader)
    }

    /// What the leader is told of a call.
    fn word(&self, request: &Request<Body>, leader: &Member) -> Result<Forwarded, Status> {
        let (headers, extensions) = (request.headers(), request.extensions());
        let shown = self.door.shown(headers, extensions)?;
        self.door.count_passed_on(&shown, extensions)?;
        Ok(Forwarded {
            header: Some(self.peers.header(leader.node_id)),
            caller: named(&shown),
            from: Origin::of(extensions).to_string(),
        })
    }
}

impl fmt::Debug for Passage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage").field("metrics", &self.metrics).finish_non_exhaustive()
    }
}

/// The leader's port for members has no such service.
fn is_of_an_old_release(answer: &Response<Body>) -> bool {
    let headers = answer.headers();
    let code = headers.get("grpc-status");
    code.is_some_and(|code| code.as_bytes() == UNIMPLEMENTED) && !headers.contains_key(TAKEN_IN)
}

/// Its clients are sent to it.
fn of_old_release(leader: &Member) -> Status {
    let why = format!("node {} leads, and its release takes no calls in", leader.node_id);
    status::with_leader(Status::unavailable(why), Some(&leader.advertise))
}

fn not_reached(leader: &Member, error: &dyn Error) -> Status {
    let why = format!("node {} leads, and is not reached from here: {error}", leader.node_id);
    status::with_leader(Status::unavailable(why), Some(&leader.advertise))
}

/// Before there is a connection nothing was sent; after that nobody knows.
fn not_answered(leader: &Member, error: &tonic::transport::Error) -> Status {
    match not_connected(error) {
        Some(why) => not_reached(leader, why),
        None => broken(leader.node_id, error),
    }
}

/// Why there is no connection, if that is what the error says.
fn not_connected<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        if one.is::<ConnectError>() {
            return Some(one.source().unwrap_or(one));
        }
        cause = one.source();
    }
    None
}

fn broken(leader: u64, error: &dyn fmt::Display) -> Status {
    let why = format!(
        "the connection to node {leader}, which leads, broke: whether the call took effect is not known: {error}"
    );
    Status::new(Code::Unknown, why)
}

/// Counts a call while it is under way, and keeps its place.
struct Open {
    count: Gauge,
    _place: Arc<()>,
}

impl Open {
    fn new(count: &Gauge, place: Arc<()>) -> Self {
        count.inc();
        Self { count: count.clone(), _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.count.dec();
    }
}

/// What a break of the connection says.
struct BrokenBy {
    leader: u64,
    failed: Counter,
}

/// The leader's answer, as it comes in. A break of its connection ends it with a status, as an answer ends.
struct Answer {
    body: Body,
    broken: BrokenBy,
    is_over: bool,
    _open: Open,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Err(status))) => {
                self.is_over = true;
                self.broken.failed.inc();
                Some(last_frame(&broken(self.broken.leader, &status.message())))
            }
            Poll::Ready(other) => other,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was upgraded, and leads again.
    #[test]
    fn a_leader_counts_as_one_of_an_older_release_for_a_while() {
        let (old, at) = (OldRelease::default(), |s| Instant::from_origin(Duration::from_secs(s)));
        assert!(!old.is(1, at(100)));
        old.note(1, at(100));
        assert!(old.is(1, at(109)) && !old.is(2, at(101)));
        assert!(!old.is(1, at(110)));
    }
}
