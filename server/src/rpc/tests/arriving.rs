//! Messages that begin and never end, over real connections (I27).

use std::pin::Pin;
use std::task::{Context, Poll};

use holdfast_mutants::{Mutant, arm};
use http_body::Frame;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::ServiceExt as _;

use super::*;

/// The first bytes of a message of 900,000, and nothing after them.
struct Begun(Option<Bytes>);

impl Begun {
    fn new(bytes: usize) -> Self {
        let mut begun = vec![0];
        begun.extend(900_000_u32.to_be_bytes());
        begun.resize(bytes, 0);
        Self(Some(begun.into()))
    }
}

impl http_body::Body for Begun {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.take().map_or(Poll::Pending, |data| Poll::Ready(Some(Ok(Frame::data(data)))))
    }
}

/// Begins a call on a connection of its own; ends when it is answered.
async fn begin(channel: Channel, bytes: usize) -> Response<Body> {
    let request = Request::post("http://node/holdfast.v1.LockService/OpenSession")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Begun::new(bytes)))
        .unwrap();
    channel.oneshot(request).await.unwrap()
}

/// The rule taken away: none of them is refused.
#[tokio::test]
async fn without_their_budget_messages_that_never_end_are_all_kept() {
    let settings =
        SessionSettings { arriving_bytes_total: 256 << 10, ..SessionSettings::default() };
    let node = node_with(settings).await;
    let first_answer = async |armed: Option<Mutant>| {
        arm(armed);
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..20 {
            calls.spawn(begin(node.channel().await, 60_000));
        }
        let answered = Runtime::system().timeout(Duration::from_secs(1), calls.join_next()).await;
        arm(None);
        answered.is_ok()
    };
    assert!(!first_answer(Some(Mutant::ArrivingBytesNotCounted)).await);
    assert!(first_answer(None).await);
}

#[tokio::test]
async fn messages_that_never_end_have_a_budget_together_and_hold_up_nobody() {
    const LIMIT: u64 = 256 << 10;
    const BEGUN: usize = 60_000;
    let settings = SessionSettings { arriving_bytes_total: LIMIT, ..SessionSettings::default() };
    let node = node_with(settings).await;
    let kept = || u64::try_from(node.hub.metrics().arriving_bytes.get()).unwrap();

    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        calls.spawn(begin(node.channel().await, BEGUN));
    }
    // Four calls fit; each of the others is refused once it has sent more than it may.
    for _ in 4..20 {
        let answer = calls.join_next().await.unwrap().unwrap();
        let header = |name: &str| answer.headers()[name].to_str().unwrap();
        assert_eq!(header("grpc-status"), (Code::ResourceExhausted as i32).to_string());
        assert!(header("grpc-message").contains("arriving_bytes_total"));
    }
    assert!((4 * BEGUN as u64..=LIMIT).contains(&kept()), "{}", kept());

    let (outgoing, mut stream) = node.stream(open()).await;
    assert!(matches!(next(&mut stream).await, Ok(super::Body::Opened(_))));
    outgoing.send(message(acquire(b"jobs".to_vec()))).await.unwrap();
    assert!(matches!(next(&mut stream).await, Ok(super::Body::Granted(_))));

    calls.shutdown().await;
    for _ in 0..2_000 {
        if kept() == 0 {
            return;
        }
        Runtime::system().sleep(Duration::from_millis(5)).await;
    }
    panic!("calls that are over still have {} bytes", kept());
}
