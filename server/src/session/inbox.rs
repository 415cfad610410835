//! The incoming frames of one stream: taken off the transport at once, each with the moment at which it
//! was read.

use std::collections::VecDeque;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use holdfast_proto::v1::{ClientFrame, ClientFrames};
use holdfast_runtime::{Instant, Runtime, TransportError};
use prost::Message as _;

use super::error::StreamError;

/// Frames that may come in before the session is open; a client has no use for more than a few.
const BACKLOG_MAX: usize = 4_096;
/// Bytes that these frames may take, beyond their first message: a frame may have 33 KiB, and thousands
/// of streams may be waiting to be opened. Beyond either bound the stream ends with
/// `RESOURCE_EXHAUSTED`.
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
    allowance: Allowance,
}

impl Inbox {
    pub(super) fn new(
        incoming: BoxStream<'static, Result<ClientFrames, TransportError>>,
        runtime: Runtime,
        frames_per_second: u32,
    ) -> Self {
        let allowance = Allowance::new(frames_per_second, runtime.clock.now());
        Self { incoming, runtime, backlog: VecDeque::new(), backlog_bytes: 0, allowance }
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

    /// The port bounds a single message; this bounds the messages that pile up.
    fn check_bytes(&mut self, message: &ClientFrames) -> Result<(), StreamError> {
        if self.backlog.is_empty() {
            self.backlog_bytes = 0;
            return Ok(());
        }
        self.backlog_bytes = self.backlog_bytes.saturating_add(message.encoded_len());
        if self.backlog_bytes > BACKLOG_BYTES_MAX {
            let message = "too much came before the session was open";
            return Err(StreamError::limit(
                "bytes_before_opened",
                BACKLOG_BYTES_MAX as u64,
                message,
            ));
        }
        Ok(())
    }
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
    use std::time::Duration;

    use futures_util::stream;
    use holdfast_proto::v1::client_frame::Body;
    use holdfast_proto::v1::{Acquire, Item};
    use holdfast_runtime::simulated;

    use super::*;

    /// A message with a set of 64 names of 512 bytes: about 33 KiB, in one frame.
    fn large() -> ClientFrames {
        let item = Item { name: vec![b'n'; 512].into(), ..Item::default() };
        let acquire = Acquire { items: vec![item; 64], ..Acquire::default() };
        let frame = ClientFrame { done_below: 0, body: Some(Body::Acquire(acquire)) };
        ClientFrames { frames: vec![frame] }
    }

    fn inbox(messages: usize) -> Inbox {
        let messages = stream::iter((0..messages).map(|_| Ok(large())));
        Inbox::new(Box::pin(messages), simulated::runtime(1, 0), 50_000)
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
