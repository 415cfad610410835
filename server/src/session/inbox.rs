//! The incoming frames of one stream: taken off the transport at once, each with the moment at which it
//! was read.
//!
//! Once its session is open, a stream's frames are handled as they come. Before that they pile up here:
//! each stream has bounds of its own, and all streams together have the budget of what arrives
//! (`arriving_bytes_total`), since thousands may be waiting to be opened.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use holdfast_proto::v1::client_frame::Body;
use holdfast_proto::v1::{ClientFrame, ClientFrames, Item};
use holdfast_runtime::{Instant, Runtime, TransportError};
use prost::Message as _;

use super::error::StreamError;
use crate::bytes_budget::Taken;

/// Frames that may come in before the session is open; a client has no use for more than a few.
const BACKLOG_MAX: usize = 4_096;
/// Bytes that these frames may take on one stream, beyond their first message: a frame may have 33 KiB.
/// Beyond either bound, and beyond the budget, the stream ends with `RESOURCE_EXHAUSTED`.
const BACKLOG_BYTES_MAX: usize = 256 << 10;

/// A frame and the moment at which it was read: the receipt of DESIGN §5.1.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) frame: ClientFrame,
    pub(super) at: Instant,
}

/// The incoming frames of one stream.
pub(super) struct Inbox {
    incoming: BoxStream<'static, Result<ClientFrames, TransportError>>,
    runtime: Runtime,
    backlog: VecDeque<Received>,
    /// Bytes added to the backlog since it was last empty, without its first message.
    backlog_bytes: usize,
    /// The share of this node's budget that the backlog takes.
    taken: Taken,
    is_open: bool,
    allowance: Allowance,
}

impl Inbox {
    /// The frames that come in; `taken` is the share of a budget that has nothing yet.
    pub(super) fn new(
        incoming: BoxStream<'static, Result<ClientFrames, TransportError>>,
        runtime: Runtime,
        frames_per_second: u32,
        taken: Taken,
    ) -> Self {
        let allowance = Allowance::new(frames_per_second, runtime.clock.now());
        let (backlog, backlog_bytes, is_open) = (VecDeque::new(), 0, false);
        Self { incoming, runtime, backlog, backlog_bytes, taken, is_open, allowance }
    }

    /// The session is open: from now on each message is handled before the next one is taken, so no budget
    /// counts it.
    pub(super) fn opened(&mut self) {
        self.is_open = true;
    }

    /// The next frame; `None` once the client's side has ended, in order or by a break. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StreamError`]: the client broke the protocol or a limit.
    pub(super) async fn next(&mut self) -> Result<Option<Received>, StreamError> {
        loop {
            if let Some(received) = self.backlog.pop_front() {
                return Ok(Some(received));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Takes one message off the transport, so that nothing lies unread while the caller is busy with
    /// something else (DESIGN §6, traps of h2). `false` once the client's side has ended. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`Inbox::next`].
    pub(super) async fn fill(&mut self) -> Result<bool, StreamError> {
        if self.backlog.is_empty() {
            self.backlog_bytes = 0;
            self.taken.clear();
        }
        let message = match self.incoming.next().await {
            Some(Ok(message)) => message,
            // The decoder's message about bytes that do not decode. Every other break counts as a plain
            // end, from which nothing is concluded.
            Some(Err(TransportError::Refused { message, .. })) => {
                return Err(StreamError::Protocol(message));
            }
            Some(Err(_)) | None => return Ok(false),
        };
        let at = self.runtime.clock.now();
        self.allowance.take(message.frames.len(), at)?;
        if self.backlog.len() + message.frames.len() > BACKLOG_MAX.max(message.frames.len()) {
            let message = "too many frames came before the session was open";
            return Err(StreamError::limit("frames_before_opened", BACKLOG_MAX as u64, message));
        }
        self.check_bytes(&message)?;
        self.backlog.extend(message.frames.into_iter().map(|frame| Received { frame, at }));
        Ok(true)
    }

    /// The port bounds a single message; this bounds the messages that pile up, on this stream and on all
    /// streams together.
    fn check_bytes(&mut self, message: &ClientFrames) -> Result<(), StreamError> {
        let is_first = self.backlog.is_empty();
        if is_first && self.is_open {
            return Ok(());
        }
        let bytes = message.encoded_len();
        self.backlog_bytes = self.backlog_bytes.saturating_add(if is_first { 0 } else { bytes });
        if self.backlog_bytes > BACKLOG_BYTES_MAX {
            let limit = BACKLOG_BYTES_MAX as u64;
            let message = "too much came before the session was open";
            return Err(StreamError::limit("bytes_before_opened", limit, message));
        }
        if self.taken.try_add(bytes.saturating_add(decoded_bytes(message)) as u64) {
            return Ok(());
        }
        let message = "the messages of all clients that no session takes yet take too many bytes";
        Err(StreamError::limit("arriving_bytes_total", self.taken.limit(), message))
    }
}

/// What the parts of a message take in memory besides its bytes on the wire: 1 MiB may be half a million
/// items without a name.
fn decoded_bytes(message: &ClientFrames) -> usize {
    let parts = message.frames.iter().map(|frame| match &frame.body {
        Some(Body::Acquire(acquire)) => acquire.items.len().saturating_mul(size_of::<Item>()),
        Some(Body::Release(release)) => release.names.len().saturating_mul(size_of::<Bytes>()),
        _ => 0,
    });
    let frames = message.frames.len().saturating_mul(size_of::<Received>());
    parts.fold(frames, usize::saturating_add)
}

/// Frames that may still come: refilled at a steady rate, up to one second's worth.
#[derive(Debug)]
struct Allowance {
    per_second: u64,
    /// Thousandths of a frame.
    left: u64,
    filled_at: Instant,
}

impl Allowance {
    fn new(per_second: u32, now: Instant) -> Self {
        let per_second = u64::from(per_second);
        Self { per_second, left: per_second * 1_000, filled_at: now }
    }

    /// Takes `count` frames out.
    fn take(&mut self, count: usize, now: Instant) -> Result<(), StreamError> {
        let elapsed_ms = now.as_millis().saturating_sub(self.filled_at.as_millis());
        let full = self.per_second * 1_000;
        self.left = self.left.saturating_add(elapsed_ms.saturating_mul(self.per_second)).min(full);
        self.filled_at = now;
        let wanted = (count as u64).saturating_mul(1_000);
        let message = "the stream sent too many frames; resume it and send fewer";
        let limit = StreamError::limit("frames_per_second", self.per_second, message);
        self.left = self.left.checked_sub(wanted).ok_or(limit)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::stream;
    use holdfast_proto::v1::{Acquire, KeepAlive};
    use holdfast_runtime::simulated;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::bytes_budget::BytesBudget;

    /// A message with a set of 64 names of 512 bytes: about 33 KiB, in one frame.
    fn large() -> ClientFrames {
        let item = Item { name: vec![b'n'; 512].into(), ..Item::default() };
        let acquire = Acquire { items: vec![item; 64], ..Acquire::default() };
        let frame = ClientFrame { done_below: 0, body: Some(Body::Acquire(acquire)) };
        ClientFrames { frames: vec![frame] }
    }

    fn small() -> ClientFrames {
        let body = Some(Body::KeepAlive(KeepAlive { seq: 1 }));
        ClientFrames { frames: vec![ClientFrame { done_below: 0, body }] }
    }

    fn inbox(messages: usize) -> Inbox {
        inbox_of(vec![large(); messages], &BytesBudget::new(64 << 20, Gauge::default()))
    }

    fn inbox_of(messages: Vec<ClientFrames>, budget: &Arc<BytesBudget>) -> Inbox {
        let messages = stream::iter(messages.into_iter().map(Ok));
        Inbox::new(Box::pin(messages), simulated::runtime(1, 0), 50_000, budget.nothing())
    }

    /// R1, I27: 4,096 such frames are 138 MB, for each of thousands of streams.
    #[tokio::test(start_paused = true)]
    async fn frames_that_pile_up_before_the_session_is_open_are_bounded_in_bytes() {
        let mut inbox = inbox(1_000);
        let mut taken = 0;
        let error = loop {
            match inbox.fill().await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };

        let limit = matches!(error, StreamError::Limit { limit: "bytes_before_opened", .. });
        assert!(limit && taken == 8, "{error:?} after {taken} messages");
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_are_read_as_they_come_may_be_any_number_of_bytes() {
        let mut inbox = inbox(1_000);
        let mut read = 0;
        while inbox.next().await.unwrap().is_some() {
            read += 1;
        }

        assert_eq!(read, 1_000);
    }

    /// R1, I27: what one stream may keep, thousands of them may not.
    #[tokio::test(start_paused = true)]
    async fn what_piles_up_on_all_streams_that_are_not_open_has_a_budget_together() {
        let kept = Gauge::default();
        let budget = BytesBudget::new(100_000, kept.clone());
        let mut one = inbox_of(vec![large(), large(), small()], &budget);
        let mut other = inbox_of(vec![small(), large()], &budget);

        assert!(one.fill().await.unwrap() && one.fill().await.unwrap());
        assert!(kept.get() > 2 * 64 * 512, "{}", kept.get());
        assert!(other.fill().await.unwrap());
        let error = other.fill().await.unwrap_err();
        let limit = matches!(error, StreamError::Limit { limit: "arriving_bytes_total", .. });
        assert!(limit, "{error:?}");
        drop(other);

        one.opened();
        for left in [2, 1, 0] {
            assert!(one.next().await.unwrap().is_some());
            assert_eq!(kept.get() > 0, left > 0, "{left} frames are left");
        }
    }

    /// An item without a name has two bytes on the wire, and twenty times as many in memory.
    #[test]
    fn items_without_a_name_are_counted_as_what_they_take() {
        let items = vec![Item::default(); 1_000];
        let acquire = Acquire { items, ..Acquire::default() };
        let frame = ClientFrame { done_below: 0, body: Some(Body::Acquire(acquire)) };
        let message = ClientFrames { frames: vec![frame] };

        assert!(message.encoded_len() < 3_000);
        assert!(decoded_bytes(&message) >= 1_000 * size_of::<Item>());
    }

    #[test]
    fn a_second_of_frames_may_come_at_once_and_no_more() {
        let start = Instant::from_origin(Duration::from_secs(5));
        let mut allowance = Allowance::new(10, start);

        assert!(allowance.take(10, start).is_ok());
        assert!(allowance.take(1, start).is_err());
        assert!(allowance.take(5, start + Duration::from_millis(500)).is_ok());
        assert!(allowance.take(1, start + Duration::from_millis(599)).is_err());
    }
}
