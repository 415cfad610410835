//! The frames that wait to be sent on one stream: bounded, filled without waiting, emptied as fast as
//! the client reads.
//!
//! # Invariants
//!
//! - Never more than its bounds of frames and bytes, one page of State, and one last frame: a slow
//!   reader costs its own stream and never slows the store (I27).
//! - Frames leave in the order in which they were pushed; none is left out while the stream lives.
//! - State leaves whole before any frame that was pushed behind it; a stream that ends first ends
//!   without those frames (I23).
//! - The first end stands. Frames pushed after it are dropped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_proto::v1::{ServerFrame, ServerFrames};
use holdfast_runtime::Runtime;
use prost::Message as _;
use tokio::sync::{Notify, mpsc};

use super::error::StreamError;
use crate::bytes_budget::{BytesBudget, Taken};

/// Frames that travel in one message at most.
const FRAMES_PER_MESSAGE: usize = 1_024;

/// Bytes that the frames of one message take together at most; a frame that is larger travels
/// alone. The largest, a set of 64 names with values or a page of State, stays below 1 MiB, so that
/// no message comes near a client's limit, of which the smallest known is 4 MiB.
const MESSAGE_BYTES_MAX: u64 = 256 << 10;

/// What a waiting frame takes besides its bytes on the wire.
const FRAME_OVERHEAD: u64 = size_of::<Waiting>() as u64;

/// How long the transport may take to accept the last frames of a stream.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a stream ends.
pub(super) type End = Result<(), StreamError>;

/// The bounds of one outbox.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// `outbox_frames`.
    pub(super) frames: usize,
    /// `outbox_bytes`.
    pub(super) bytes: u64,
}

/// The outgoing frames of one stream.
#[derive(Debug)]
pub(super) struct Outbox {
    bounds: Bounds,
    queue: Mutex<Queue>,
    /// Notified at every push and at the end; one permit is kept, so no notification is missed.
    filled: Notify,
    /// Notified when a page of State has left, or the stream was ended.
    page_left: Notify,
    /// All outboxes of this node, and this one's number among them.
    all: Arc<Outboxes>,
    number: u64,
}

#[derive(Debug)]
struct Queue {
    /// Opened, and the page of State that is sent next: one message, before all else.
    first: Vec<ServerFrame>,
    first_bytes: u64,
    /// More pages follow: the frames wait for the last of them.
    is_showing: bool,
    frames: VecDeque<Waiting>,
    /// The share of this node's budget that `first` and `frames` take.
    taken: Taken,
    end: Option<End>,
}

#[derive(Debug)]
struct Waiting {
    frame: ServerFrame,
    bytes: u64,
}

/// The next step of the sending side.
enum Next {
    Send(ServerFrames),
    End(End),
    Wait,
}

impl Outbox {
    /// An empty outbox.
    pub(super) fn new(bounds: Bounds, taken: Taken, all: Arc<Outboxes>, number: u64) -> Self {
        let queue = Queue {
            first: Vec::new(),
            first_bytes: 0,
            is_showing: false,
            frames: VecDeque::new(),
            taken,
            end: None,
        };
        let (filled, page_left) = (Notify::new(), Notify::new());
        Self { bounds, queue: Mutex::new(queue), filled, page_left, all, number }
    }

    /// Puts a frame behind the others, without waiting. Returns `false` if this frame did not fit and
    /// therefore ended the stream (I27).
    pub(super) fn push(&self, frame: ServerFrame) -> bool {
        let waiting = Waiting::new(frame);
        let mut queue = self.lock();
        if queue.end.is_some() {
            return true;
        }
        let overflow = self.bounds.passed_by(&queue, waiting.bytes);
        let fits = overflow.is_none();
        match overflow {
            None => queue.add(waiting),
            // A client that reads again resumes and gets State, which is newer than all these frames.
            Some(limit) => queue.cut(limit),
        }
        drop(queue);
        self.ring();
        fits
    }

    /// Puts Opened and State, or a page of State, before everything that is pushed from now on. While
    /// `more` pages follow, the frames wait for the last of them.
    pub(super) fn show(&self, frames: Vec<ServerFrame>, more: bool) {
        let bytes = frames.iter().map(|frame| frame.encoded_len() as u64 + FRAME_OVERHEAD).sum();
        let mut queue = self.lock();
        if queue.end.is_none() {
            queue.first.extend(frames);
            queue.first_bytes += bytes;
            queue.taken.add(bytes);
            queue.is_showing = more;
        }
        drop(queue);
        self.ring();
    }

    /// Waits until the page before has left; `false` if the stream has ended.
    pub(super) async fn wants_page(&self) -> bool {
        loop {
            {
                let queue = self.lock();
                if queue.end.is_some() {
                    return false;
                }
                if queue.first.is_empty() {
                    return true;
                }
            }
            self.page_left.notified().await;
        }
    }

    /// Ends the stream once the queued frames and `last` are sent. Only the first end counts.
    pub(super) fn finish(&self, last: Option<ServerFrame>, end: End) {
        let mut queue = self.lock();
        if queue.end.is_none() {
            if queue.is_showing {
                // Frames behind a State that never becomes whole have no meaning for a client.
                queue.clear_frames();
            }
            if let Some(last) = last {
                queue.add(Waiting::new(last));
            }
            queue.end = Some(end);
        }
        drop(queue);
        self.ring();
    }

    /// Ends the stream because all outboxes together hold too much, and gives back what it holds.
    pub(super) fn give_way(&self, budget: u64) {
        let message = "too much waits to be read by the clients of this node, and most of it on \
                       this stream; resume it";
        self.lock().cut(StreamError::limit("outbox_bytes_total", budget, message));
        self.ring();
    }

    /// Whether the stream was ended; what its client still sends is ignored.
    pub(super) fn is_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// The bytes in this outbox.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().taken.bytes()
    }

    /// Sends what is pushed until the stream ends or the other end is gone; returns how it ended.
    ///
    /// After the end was decided, a client that does not read has [`LAST_WORDS`] to take the rest.
    pub(super) async fn deliver(&self, runtime: &Runtime, to: mpsc::Sender<ServerFrames>) -> End {
        loop {
            match self.next() {
                Next::Send(frames) => {
                    if !self.hand_over(runtime, &to, frames).await {
                        return self.end_now();
                    }
                    self.page_left.notify_one();
                }
                Next::End(end) => return end,
                Next::Wait => holdfast_runtime::select! {
                    () = self.filled.notified() => {}
                    () = to.closed() => return self.end_now(),
                },
            }
        }
    }

    /// Waits for room and sends; `false` if the other end is gone, or did not read to the end.
    async fn hand_over(
        &self,
        runtime: &Runtime,
        to: &mpsc::Sender<ServerFrames>,
        frames: ServerFrames,
    ) -> bool {
        holdfast_runtime::select! {
            permit = to.reserve() => match permit {
                Ok(permit) => {
                    permit.send(frames);
                    true
                }
                Err(_) => false,
            },
            () = self.given_up(runtime) => false,
        }
    }

    /// Waits until the stream is ended and its last frames have had their time. An overflow gives them
    /// none: its client is known not to read.
    async fn given_up(&self, runtime: &Runtime) {
        while !self.is_ended() {
            self.filled.notified().await;
        }
        if matches!(self.lock().end, Some(Err(StreamError::Limit { .. }))) {
            return;
        }
        runtime.sleep(LAST_WORDS).await;
    }

    fn next(&self) -> Next {
        let mut queue = self.lock();
        if !queue.first.is_empty() {
            return Next::Send(queue.take_first());
        }
        match (&queue.end, queue.is_showing) {
            (None, true) => Next::Wait,
            (end, _) if queue.frames.is_empty() => end.clone().map_or(Next::Wait, Next::End),
            _ => Next::Send(queue.take_message()),
        }
    }

    /// The end decided before, or a plain one.
    fn end_now(&self) -> End {
        self.lock().end.get_or_insert(Ok(())).clone()
    }

    fn ring(&self) {
        self.filled.notify_one();
        self.page_left.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.all.forget(self.number);
    }
}

impl Bounds {
    /// The bound that one more frame of `bytes` would exceed.
    fn passed_by(self, queue: &Queue, bytes: u64) -> Option<StreamError> {
        const MESSAGE: &str = "the stream was not read fast enough; resume it";
        let Self { frames, bytes: bytes_max } = self;
        if queue.frames.len() >= frames {
            return Some(StreamError::limit("outbox_frames", frames as u64, MESSAGE));
        }
        let waiting = queue.taken.bytes().saturating_sub(queue.first_bytes);
        let limit = StreamError::limit("outbox_bytes", bytes_max, MESSAGE);
        let passes = waiting.saturating_add(bytes) > bytes_max;
        (passes && !mutant!(OutboxCountsFramesOnly)).then_some(limit)
    }
}

impl Queue {
    fn add(&mut self, waiting: Waiting) {
        self.taken.add(waiting.bytes);
        self.frames.push_back(waiting);
    }

    /// Drops all frames; the stream ends with `limit`, unless it was ended before.
    fn cut(&mut self, limit: StreamError) {
        self.first.clear();
        self.first_bytes = 0;
        self.frames.clear();
        self.taken.clear();
        self.end.get_or_insert(Err(limit));
    }

    fn clear_frames(&mut self) {
        self.frames.clear();
        let behind = self.taken.bytes().saturating_sub(self.first_bytes);
        self.taken.give_back(behind);
    }

    fn take_first(&mut self) -> ServerFrames {
        self.taken.give_back(std::mem::take(&mut self.first_bytes));
        ServerFrames { frames: std::mem::take(&mut self.first) }
    }

    /// The next message of frames; empty only if there are none.
    fn take_message(&mut self) -> ServerFrames {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.frames.front() {
            let is_full =
                frames.len() >= FRAMES_PER_MESSAGE || bytes + next.bytes > MESSAGE_BYTES_MAX;
            if is_full && !frames.is_empty() {
                break;
            }
            bytes += next.bytes;
            frames.extend(self.frames.pop_front().map(|waiting| waiting.frame));
        }
        self.taken.give_back(bytes);
        ServerFrames { frames }
    }
}

impl Waiting {
    fn new(frame: ServerFrame) -> Self {
        let bytes = frame.encoded_len() as u64 + FRAME_OVERHEAD;
        Self { frame, bytes }
    }
}

/// All outboxes of this node, under one budget of bytes, `outbox_bytes_total`: many unread streams could
/// otherwise hold many times what one may.
///
/// # Which stream ends when the budget is full
///
/// The one with the largest outbox, then the next, until a quarter of the budget is free again: not the
/// stream whose frame happened to be one too many, since its client may read well. Let *n* be the number
/// of outboxes that hold anything. When an outbox with *s* bytes ends, none that is left holds more, and
/// they hold more than ¾ of the budget together, so s > ¾ · budget / n: an outbox within that share
/// never ends because of others. And since each pass frees a quarter of the budget, the pass over all
/// outboxes is paid for by as many bytes pushed.
///
/// # Invariants
///
/// - All outboxes together hold at most the budget, and the one frame that was pushed last.
/// - An outbox that holds at most ¾ · budget / n is never ended here.
#[derive(Debug)]
pub(super) struct Outboxes {
    bounds: Bounds,
    budget: Arc<BytesBudget>,
    /// A lock of its own, under which no outbox is locked or dropped.
    all: Mutex<All>,
}

/// The outboxes by number, in the order of their opening.
#[derive(Debug, Default)]
struct All {
    last: u64,
    outboxes: BTreeMap<u64, Weak<Outbox>>,
}

impl Outboxes {
    /// No outboxes yet; each will have these bounds.
    pub(super) fn new(bounds: Bounds, budget: Arc<BytesBudget>) -> Arc<Self> {
        Arc::new(Self { bounds, budget, all: Mutex::default() })
    }

    /// An outbox for a new stream.
    pub(super) fn open(self: &Arc<Self>) -> Arc<Outbox> {
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let outbox = Outbox::new(self.bounds, self.budget.nothing(), self.clone(), number);
        let outbox = Arc::new(outbox);
        all.outboxes.insert(number, Arc::downgrade(&outbox));
        outbox
    }

    /// An outbox is gone.
    pub(super) fn forget(&self, number: u64) {
        self.lock().outboxes.remove(&number);
    }

    /// Ends the largest outboxes if all together hold more than the budget, until a quarter of it is
    /// free. Returns how many were ended. Call it after each push, without any outbox locked.
    pub(super) fn make_room(&self) -> u64 {
        if !self.budget.is_full() {
            return 0;
        }
        let enough = self.budget.limit() / 4 * 3;
        let mut ended = 0;
        for (_, outbox) in self.by_size() {
            if self.budget.used() <= enough {
                break;
            }
            outbox.give_way(self.budget.limit());
            ended += 1;
        }
        ended
    }

    /// The outboxes that hold anything, the largest first.
    fn by_size(&self) -> Vec<(u64, Arc<Outbox>)> {
        let all: Vec<Arc<Outbox>> =
            self.lock().outboxes.values().filter_map(Weak::upgrade).collect();
        let sized = all.into_iter().map(|outbox| (outbox.bytes(), outbox));
        let mut filled: Vec<_> = sized.filter(|(bytes, _)| *bytes > 0).collect();
        filled.sort_by_key(|(bytes, _)| Reverse(*bytes));
        filled
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
