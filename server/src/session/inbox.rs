//! What comes in on one stream: taken off the transport at once, each frame with the moment it
//! was read.

use std::collections::VecDeque;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use holdfast_proto::v1::{ClientFrame, ClientFrames};
use holdfast_seams::{Moment, Seams, TransportError};

use super::error::StreamError;

/// Frames that may come in before the session is open; a client has no use for more than a few.
const BACKLOG_MAX: usize = 4_096;

/// A frame and when it was read: the receipt of DESIGN §5.1.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) frame: ClientFrame,
    pub(super) at: Moment,
}

/// The incoming frames of one stream.
pub(super) struct Inbox {
    incoming: BoxStream<'static, Result<ClientFrames, TransportError>>,
    seams: Seams,
    backlog: VecDeque<Received>,
    allowance: Allowance,
}

impl Inbox {
    pub(super) fn new(
        incoming: BoxStream<'static, Result<ClientFrames, TransportError>>,
        seams: Seams,
        frames_per_second: u32,
    ) -> Self {
        let allowance = Allowance::new(frames_per_second, seams.clock.now());
        Self { incoming, seams, backlog: VecDeque::new(), allowance }
    }

    /// The next frame; `None` once the client's side has ended, politely or not. Cancel safe.
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

    /// Takes one message off the transport, so that nothing lies unread while the caller is busy
    /// with something else (DESIGN §6, traps of h2). `false` once the client's side has ended.
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`Inbox::next`].
    pub(super) async fn fill(&mut self) -> Result<bool, StreamError> {
        let message = match self.incoming.next().await {
            Some(Ok(message)) => message,
            // The decoder's words about bytes that are no message; every other break is as good
            // as a plain end, from which nothing is concluded.
            Some(Err(TransportError::Refused { message })) => {
                return Err(StreamError::Protocol(message));
            }
            Some(Err(_)) | None => return Ok(false),
        };
        let at = self.seams.clock.now();
        self.allowance.take(message.frames.len(), at)?;
        if self.backlog.len() + message.frames.len() > BACKLOG_MAX.max(message.frames.len()) {
            return Err(StreamError::Limit {
                limit: "frames_before_opened",
                value: BACKLOG_MAX as u64,
                message: "too many frames came before the session was open",
            });
        }
        self.backlog.extend(message.frames.into_iter().map(|frame| Received { frame, at }));
        Ok(true)
    }
}

/// Frames that may still come: filled at a steady rate, up to one second's worth.
#[derive(Debug)]
struct Allowance {
    per_second: u64,
    /// Thousandths of a frame.
    left: u64,
    filled_at: Moment,
}

impl Allowance {
    fn new(per_second: u32, now: Moment) -> Self {
        let per_second = u64::from(per_second);
        Self { per_second, left: per_second * 1_000, filled_at: now }
    }

    /// Takes `count` frames out.
    fn take(&mut self, count: usize, now: Moment) -> Result<(), StreamError> {
        let elapsed_ms = now.as_millis().saturating_sub(self.filled_at.as_millis());
        let full = self.per_second * 1_000;
        self.left = self.left.saturating_add(elapsed_ms.saturating_mul(self.per_second)).min(full);
        self.filled_at = now;
        let wanted = (count as u64).saturating_mul(1_000);
        self.left = self.left.checked_sub(wanted).ok_or(StreamError::Limit {
            limit: "frames_per_second",
            value: self.per_second,
            message: "the stream sent too many frames; resume it and send fewer",
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_second_of_frames_may_come_at_once_and_no_more() {
        let start = Moment::from_origin(Duration::from_secs(5));
        let mut allowance = Allowance::new(10, start);

        assert!(allowance.take(10, start).is_ok());
        assert!(allowance.take(1, start).is_err());
        assert!(allowance.take(5, start + Duration::from_millis(500)).is_ok());
        assert!(allowance.take(1, start + Duration::from_millis(599)).is_err());
    }
}
