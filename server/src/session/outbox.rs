//! What waits to be sent on one stream: bounded, filled without waiting, emptied as fast as the
//! client reads.
//!
//! # Invariants
//!
//! - Never more than its bound of frames, and one last frame: a slow reader costs its own stream
//!   and never slows the store (I27).
//! - Frames leave in the order in which they were pushed; nothing is left out while the stream
//!   lives.
//! - The first end stands. What is pushed after it is dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use holdfast_proto::v1::{ServerFrame, ServerFrames};
use holdfast_seams::Seams;
use tokio::sync::{Notify, mpsc};

use super::error::StreamError;

/// Frames that travel in one message at most, so that no message comes near a client's limit of
/// 4 MiB.
const FRAMES_PER_MESSAGE: usize = 1_024;

/// How long the last frames of a stream may take to be taken over by the transport.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a stream ends.
pub(super) type End = Result<(), StreamError>;

/// The outgoing frames of one stream.
#[derive(Debug)]
pub(super) struct Outbox {
    bound: usize,
    queue: Mutex<Queue>,
    /// Rung at every push and at the end; one permit is kept, so no ring is missed.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<ServerFrame>,
    end: Option<End>,
}

/// What the sending side is to do next.
enum Next {
    Send(ServerFrames),
    End(End),
    Wait,
}

impl Outbox {
    /// An empty outbox for at most `bound` frames.
    pub(super) fn new(bound: usize) -> Self {
        Self { bound, queue: Mutex::default(), filled: Notify::new() }
    }

    /// Puts a frame behind the others, without waiting. Returns `false` if this frame did not fit
    /// and therefore ended the stream (I27).
    pub(super) fn push(&self, frame: ServerFrame) -> bool {
        let mut queue = self.lock();
        if queue.end.is_some() {
            return true;
        }
        let fits = queue.frames.len() < self.bound;
        if fits {
            queue.frames.push_back(frame);
        } else {
            // A client that reads again resumes and gets State, which is newer than all of these.
            queue.frames.clear();
            queue.end = Some(Err(StreamError::Limit {
                limit: "outbox_frames",
                value: self.bound as u64,
                message: "the stream was not read fast enough; resume it",
            }));
        }
        drop(queue);
        self.filled.notify_one();
        fits
    }

    /// Ends the stream once what is queued, and `last`, is sent. Only the first end counts.
    pub(super) fn finish(&self, last: Option<ServerFrame>, end: End) {
        let mut queue = self.lock();
        if queue.end.is_none() {
            queue.frames.extend(last);
            queue.end = Some(end);
        }
        drop(queue);
        self.filled.notify_one();
    }

    /// Whether the stream was ended; nothing it still sends counts.
    pub(super) fn is_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Sends what is pushed until the stream ends or the other end is gone; tells how it ended.
    ///
    /// After the end has been decided, a client that does not read has [`LAST_WORDS`] to take the
    /// rest.
    pub(super) async fn deliver(&self, seams: &Seams, to: mpsc::Sender<ServerFrames>) -> End {
        loop {
            match self.next() {
                Next::Send(frames) => {
                    if !self.hand_over(seams, &to, frames).await {
                        return self.end_now();
                    }
                }
                Next::End(end) => return end,
                Next::Wait => holdfast_seams::select! {
                    () = self.filled.notified() => {}
                    () = to.closed() => return self.end_now(),
                },
            }
        }
    }

    /// Waits for room and sends; `false` if the other end is gone, or did not read to the last.
    async fn hand_over(
        &self,
        seams: &Seams,
        to: &mpsc::Sender<ServerFrames>,
        frames: ServerFrames,
    ) -> bool {
        holdfast_seams::select! {
            permit = to.reserve() => match permit {
                Ok(permit) => {
                    permit.send(frames);
                    true
                }
                Err(_) => false,
            },
            () = self.given_up(seams) => false,
        }
    }

    /// Waits until the stream is ended and its last words have had their time. An overflow gives
    /// none: there the client is known not to read.
    async fn given_up(&self, seams: &Seams) {
        while !self.is_ended() {
            self.filled.notified().await;
        }
        if matches!(self.lock().end, Some(Err(StreamError::Limit { .. }))) {
            return;
        }
        seams.sleep(LAST_WORDS).await;
    }

    fn next(&self) -> Next {
        let mut queue = self.lock();
        if queue.frames.is_empty() {
            return queue.end.clone().map_or(Next::Wait, Next::End);
        }
        let count = queue.frames.len().min(FRAMES_PER_MESSAGE);
        Next::Send(ServerFrames { frames: queue.frames.drain(..count).collect() })
    }

    /// The end decided before, or a plain one.
    fn end_now(&self) -> End {
        self.lock().end.get_or_insert(Ok(())).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
