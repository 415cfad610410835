//! What both ends of a [`Carry`] have: batches of many streams, and how much of each stream may be on its way.
//!
//! [`Carry`]: holdfast_proto::v1::relay_service_server::RelayService::carry

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, stream};
use holdfast_proto::v1::carried::What;
use holdfast_proto::v1::{Carried, CarriedBatch, CarriedEnd, PeerHeader};
use prost::Message as _;
use tokio::sync::Notify;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::rpc::status::{LEADER, with_leader};

/// Bytes of a stream that may be on their way, and lie at the other end until they are handed on.
pub(super) const WINDOW: i64 = 64 << 10;
/// What a message counts beside its bytes, so that the window bounds the number of empty ones too.
const MESSAGE_COST: i64 = 128;
/// How many messages of a stream may be on their way, and one more.
pub(super) const MESSAGES_MAX: usize = 1_024;
const _: () = assert!(WINDOW / MESSAGE_COST < 1_024);
/// A batch is not begun to be filled up past this.
const BATCH_BYTES: usize = 64 << 10;
/// Largest message of a call: a batch, and the largest message of a stream.
pub(in crate::rpc) const BATCH_MAX: usize = 20 << 20;

/// What waits to be sent, of all streams of a call.
///
/// # Bounds
///
/// [`WINDOW`] and a message for each stream, and a few small items.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Carried>,
    is_closed: bool,
}

impl Outgoing {
    pub(super) fn push(&self, stream: u64, what: What) {
        let mut queue = self.lock();
        if !queue.is_closed {
            queue.items.push_back(Carried { stream, what: Some(what) });
            drop(queue);
            self.filled.notify_one();
        }
    }

    /// Nothing more is to be sent.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits, about [`BATCH_BYTES`] of it; waits for something. `None`: it is closed.
    async fn next(&self) -> Option<Vec<Carried>> {
        loop {
            let (batch, is_closed) = self.take();
            if !batch.is_empty() {
                return Some(batch);
            }
            if is_closed {
                return None;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self) -> (Vec<Carried>, bool) {
        let mut queue = self.lock();
        let (mut bytes, mut count) = (0, 0);
        while bytes < BATCH_BYTES
            && let Some(item) = queue.items.get(count)
        {
            (bytes, count) = (bytes + item.encoded_len(), count + 1);
        }
        (queue.items.drain(..count).collect(), queue.is_closed)
    }
}

/// The batches of a call. The first has the header, and goes at once.
pub(super) fn batches(
    outgoing: Arc<Outgoing>,
    header: Option<PeerHeader>,
) -> impl Stream<Item = CarriedBatch> + Send + 'static {
    stream::unfold((outgoing, header), |(outgoing, header)| async move {
        let items = match header {
            Some(_) => outgoing.take().0,
            None => outgoing.next().await?,
        };
        Some((CarriedBatch { header, items }, (outgoing, None)))
    })
}

/// What a message counts.
fn cost(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).saturating_add(MESSAGE_COST)
}

/// How much one end may send of a stream.
#[derive(Debug)]
pub(super) struct Credit {
    left: AtomicI64,
    more: Notify,
}

impl Credit {
    pub(super) fn new() -> Self {
        Self { left: AtomicI64::new(WINDOW), more: Notify::new() }
    }

    /// Waits until something may be sent, and takes a message of so many bytes off it. One caller at a time. Cancel safe.
    pub(super) async fn take(&self, bytes: usize) {
        while self.left.load(Ordering::Acquire) <= 0 {
            self.more.notified().await;
        }
        self.left.fetch_sub(cost(bytes), Ordering::AcqRel);
    }

    /// The other end has handed on so much.
    pub(super) fn give(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let more = |left: i64| Some(left.saturating_add(bytes).min(WINDOW));
        // It changes it in any case.
        let _ = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        self.more.notify_one();
    }
}

/// Counts what was handed on of a stream, and tells the other end before that runs short.
#[derive(Debug, Default)]
pub(super) struct HandedOn {
    untold: u64,
}

impl HandedOn {
    pub(super) fn note(&mut self, bytes: usize, (outgoing, stream): (&Outgoing, u64)) {
        self.untold += cost(bytes).unsigned_abs();
        if self.untold >= WINDOW.unsigned_abs() / 2 {
            outgoing.push(stream, What::HandedOn(std::mem::take(&mut self.untold)));
        }
    }
}

/// The end of a stream on its way to the member that carries it.
pub(super) fn end_of(status: &Status) -> CarriedEnd {
    let leader = status.metadata().get(LEADER).and_then(|leader| leader.to_str().ok());
    CarriedEnd {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Bytes::copy_from_slice(status.details()),
        leader: leader.map(str::to_owned),
    }
}

/// As the leader meant it.
pub(super) fn status_of(end: CarriedEnd) -> Status {
    let CarriedEnd { code, message, details, leader } = end;
    let status = Status::with_details(Code::from_i32(code), message, details);
    with_leader(status, leader.as_deref().filter(|leader| is_text(leader)))
}

fn is_text(leader: &str) -> bool {
    MetadataValue::try_from(leader).is_ok_and(|value: MetadataValue<_>| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    fn message(bytes: usize) -> What {
        What::Message(vec![7; bytes].into())
    }

    #[tokio::test]
    async fn what_waits_travels_together_and_a_large_message_by_itself() {
        let outgoing = Arc::new(Outgoing::default());
        let mut sent = Box::pin(batches(outgoing.clone(), Some(PeerHeader::default())));
        let first = sent.next().await.unwrap();
        assert!(first.header.is_some() && first.items.is_empty(), "it goes at once");
        assert!(sent.next().now_or_never().is_none());

        for stream in 0..100 {
            outgoing.push(stream, message(100));
        }
        outgoing.push(100, message(1 << 20));
        outgoing.push(101, message(1));
        let batch = sent.next().await.unwrap();
        assert_eq!((batch.header, batch.items.len()), (None, 101));
        outgoing.close();
        outgoing.push(102, message(1));
        assert_eq!(sent.next().await.unwrap().items.len(), 1);
        assert!(sent.next().await.is_none());
    }

    #[test]
    fn a_window_is_refilled_before_it_is_empty_and_never_beyond_its_size() {
        let (credit, outgoing, mut handed_on) =
            (Credit::new(), Outgoing::default(), HandedOn::default());
        let window = usize::try_from(WINDOW).unwrap();
        credit.take(window - 200).now_or_never().unwrap();
        credit.take(1 << 20).now_or_never().expect("one that begins within it goes whole");
        assert!(credit.take(1).now_or_never().is_none());

        handed_on.note(window / 2 - 200, (&outgoing, 5));
        assert!(outgoing.take().0.is_empty());
        handed_on.note(0, (&outgoing, 5));
        let (told, _) = outgoing.take();
        assert!(matches!(told[0], Carried { stream: 5, what: Some(What::HandedOn(32_824)) }));
        credit.give(u64::MAX);
        credit.take(window).now_or_never().unwrap();
        assert!(credit.take(1).now_or_never().is_none());
        let empty = Credit::new();
        let sent =
            (0..=MESSAGES_MAX).take_while(|_| empty.take(0).now_or_never().is_some()).count();
        assert!(sent < MESSAGES_MAX, "{sent}");
    }

    #[test]
    fn a_status_goes_through_whole() {
        let status = Status::with_details(Code::Unavailable, "follows", vec![1, 2].into());
        let status = with_leader(status, Some("node-2:7420"));
        let through = status_of(end_of(&status));
        assert_eq!((through.code(), through.message()), (Code::Unavailable, "follows"));
        assert_eq!(through.details(), [1, 2]);
        assert_eq!(through.metadata().get(LEADER).unwrap(), "node-2:7420");
        let odd = CarriedEnd { code: 99, leader: Some("a\nb".to_owned()), ..CarriedEnd::default() };
        assert!(status_of(odd).metadata().is_empty());
    }
}
