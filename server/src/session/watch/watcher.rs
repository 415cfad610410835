//! One watch, from its first page to its end.

use std::iter::Peekable;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::{Caller, LockTable, LogIndex, Verb};
use holdfast_mutants::mutant;
use holdfast_proto::v1::{WatchRequest, WatchResponse, WatchResume};
use prometheus_client::metrics::gauge::Gauge;
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::super::error::StreamError;
use super::super::{Hub, answers, lead};
use super::news::{Length, Place};
use super::page::{Page, Shown, read_page};
use super::recent::Position;
use super::{Membership, Watches};

/// Events that travel in one message at most, and bytes that they take together at most; an event that
/// is larger, which none is, would travel alone. No message comes near a client's limit of 4 MiB.
const EVENTS_PER_MESSAGE: usize = 1_024;
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// A part of the recent changes that fills a message.
const PART: Length = Length { changes: EVENTS_PER_MESSAGE as u64, bytes: MESSAGE_BYTES_MAX as u64 };

/// How long a client may leave a message of the state, or of what it missed, before others come first: a client that
/// reads takes it within a round trip.
pub(in crate::session) const PATIENCE: Duration = Duration::from_millis(250);

/// A watch that was begun and waits to be served.
#[derive(Debug)]
pub(crate) struct Watcher {
    membership: Membership,
    /// Until the client has been told.
    cluster_id: Option<Bytes>,
    shown: Shown,
    /// Where the rest begins of what a watch that goes on has missed.
    catching_up: Option<Position>,
    /// The position up to which the news were taken; set by the first page, or by the last part of what it missed.
    read: Option<Place>,
    /// Its place among the `watch_states` that are shown the state, or what they missed.
    slot: Option<OwnedSemaphorePermit>,
    /// The client was sent everything up to here, and knows it.
    complete: LogIndex,
}

/// Changes that are to be sent.
#[derive(Debug, Default)]
struct Taken {
    events: Vec<Bytes>,
    /// With them the watcher has everything up to here.
    complete: Option<LogIndex>,
}

impl Hub {
    /// Begins to watch the locks whose names begin with a prefix, which is empty or a usable name, or goes on
    /// where an earlier watch ended.
    ///
    /// The watch reports all that was committed before this call. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StreamError::Unavailable`] if this node is not confirmed as leader by a quorum round, or
    /// stops; [`StreamError::Limit`] if too many watch; [`StreamError::Forbidden`] if `caller` may not read
    /// those locks; [`StreamError::Compacted`] if the watch cannot go on.
    pub(crate) async fn watch(
        &self,
        asked: &WatchRequest,
        caller: &Caller,
    ) -> Result<Watcher, StreamError> {
        let confirmed = self.consensus().confirm().await;
        let confirmed = confirmed.map_err(|error| lead::unavailable(&error))?;
        let membership = self.watches().enter(&asked.prefix, confirmed.tenure)?;
        let mut watcher = Watcher::new(membership, self.cluster_id.cluster_id());
        // After it has entered: a change of the rules from now on ends it.
        let (mut allowed, mut begun) = (Ok(()), Ok(()));
        self.consensus().read(&mut |table, index| {
            allowed = table.rules().allows(caller, Verb::Read, [&*asked.prefix]);
            if let Some(resume) = &asked.resume {
                begun = watcher.resume(resume, index);
            }
        });
        allowed.map_err(|missing| {
            self.note_missing(caller, &missing);
            StreamError::Forbidden(missing)
        })?;
        begun?;
        Ok(watcher)
    }

    /// Sends a watcher the state, or what it missed, and then every change, until the other
    /// end is gone or the watch is ended.
    ///
    /// # Errors
    ///
    /// Why it was ended: [`StreamError::Limit`] if it was not read fast enough,
    /// [`StreamError::Unavailable`] if this node does not lead any more, or stops, [`StreamError::Compacted`] if
    /// what it missed was gone before it was read.
    pub(crate) async fn serve_watch(
        &self,
        mut watcher: Watcher,
        to: mpsc::Sender<WatchResponse>,
    ) -> Result<(), StreamError> {
        if watcher.catching_up.is_some() {
            watcher.catch_up(&to).await?;
        } else {
            watcher.show_state(self, &to).await?;
        }
        watcher.slot = None;
        watcher.tell_news(&to).await
    }
}

impl Watcher {
    fn new(membership: Membership, cluster_id: Option<Bytes>) -> Self {
        Self {
            membership,
            cluster_id,
            shown: Shown::default(),
            catching_up: None,
            read: None,
            slot: None,
            complete: LogIndex::new(0),
        }
    }

    /// Goes on where an earlier watch ended. Called under the table's lock, whose state is as of `applied`.
    fn resume(&mut self, resume: &WatchResume, applied: LogIndex) -> Result<(), StreamError> {
        let after = LogIndex::new(resume.after_index);
        if self.cluster_id.as_ref() != Some(&resume.cluster_id) {
            let message = format!("index {} is not of this cluster", resume.after_index);
            return Err(self.compacted(message));
        }
        let position = self.membership.recent_after(after, applied);
        let position = position.map_err(|gone| self.compacted_after(after, gone.reaches))?;
        self.catching_up = Some(position);
        self.complete = after;
        self.membership.watches.metrics.watches_resumed.inc();
        Ok(())
    }

    fn compacted_after(&self, after: LogIndex, reaches: LogIndex) -> StreamError {
        let (after, reaches) = (after.get(), reaches.get());
        self.compacted(format!(
            "the changes after index {after} are not all kept, only those after {reaches} \
             (watch_recent_changes)"
        ))
    }

    fn compacted(&self, why: String) -> StreamError {
        self.membership.watches.metrics.watches_compacted.inc();
        StreamError::Compacted(why)
    }

    /// Sends the changes after the index from which the watch goes on, until it has reached the news.
    async fn catch_up(&mut self, to: &mpsc::Sender<WatchResponse>) -> Result<(), StreamError> {
        let cluster_id = self.cluster_id.take().unwrap_or_default();
        let first = WatchResponse { resumed: true, cluster_id, ..WatchResponse::default() };
        if let Some(room) = self.room(to).await? {
            room.send(first);
        }
        while let Some(from) = self.catching_up
            && self.admitted(to).await?
        {
            let Some(part) = self.membership.recent_part(from, PART) else { break };
            let part = part.map_err(|gone| self.compacted_after(self.complete, gone.reaches));
            let (part, goes_on) = part?;
            self.catching_up = part.next;
            if let Some(news) = goes_on {
                self.read = Some(news);
                self.shown = Shown::All;
            }
            let events: Vec<Bytes> = part.changes.iter().map(|change| change.encoded()).collect();
            let says_it = part.next.is_none() || !events.is_empty();
            let complete = says_it.then_some(part.complete);
            self.send(to, Taken { events, complete }).await?;
            // A part without a change of the prefix waits for nothing.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends the state, page by page, and in between what happened to the locks shown before.
    async fn show_state(
        &mut self,
        hub: &Hub,
        to: &mpsc::Sender<WatchResponse>,
    ) -> Result<(), StreamError> {
        while self.shown != Shown::All && self.admitted(to).await? {
            let Some((page, mark)) = self.read_page(hub) else { break };
            while self.is_before(&mark) {
                let news = self.take_news(Some(&mark));
                self.send(to, news).await?;
            }
            let complete = (page.shown == Shown::All).then_some(page.index);
            let events = page.events.iter().map(|event| Bytes::from(event.encode_to_vec()));
            let events = events.collect();
            self.send(to, Taken { events, complete }).await?;
            self.shown = page.shown;
        }
        Ok(())
    }

    async fn tell_news(&mut self, to: &mpsc::Sender<WatchResponse>) -> Result<(), StreamError> {
        while !to.is_closed() {
            // News are taken before the check: a watcher that waits for news is not behind, however many
            // come at once.
            let mut news = self.take_news(None);
            self.check()?;
            news.complete = news.complete.or_else(|| self.mark());
            if news.events.is_empty() && news.complete.is_none() {
                holdfast_runtime::select! {
                    () = to.closed() => {}
                    rung = self.rung() => rung?,
                }
            } else {
                self.send(to, news).await?;
            }
        }
        Ok(())
    }

    /// Reads the next page, and how far the news had come then; `None` if the watch was ended.
    fn read_page(&mut self, hub: &Hub) -> Option<(Page, Place)> {
        let mut read = None;
        hub.consensus().read(&mut |table, index| read = self.page(hub, table, index));
        read
    }

    /// Called under the table's lock, under which news are published: the mark separates the news from
    /// what this page shows.
    fn page(&mut self, hub: &Hub, table: &LockTable, index: LogIndex) -> Option<(Page, Place)> {
        let mark = self.membership.end_of_news()?;
        self.read.get_or_insert_with(|| mark.clone());
        let now_ms = answers::now_ms(table, &*hub.runtime().clock);
        let (prefix, locks_max) =
            (&self.membership.prefix, self.membership.watches.page_locks.max(1));
        let page = read_page(table, index, now_ms, prefix, (&self.shown, locks_max));
        Some((page, mark))
    }

    fn is_before(&self, mark: &Place) -> bool {
        self.read.as_ref().is_some_and(|read| read.told().changes < mark.told().changes)
    }

    /// Takes about a message of the news, not beyond `mark`, and only changes of names that were shown.
    fn take_news(&mut self, mark: Option<&Place>) -> Taken {
        let (mut taken, mut bytes) = (Taken::default(), 0);
        let Some(read) = self.read.as_mut() else { return taken };
        let end = mark.map_or(u64::MAX, |mark| mark.told().changes);
        while read.told().changes < end
            && taken.events.len() < EVENTS_PER_MESSAGE
            && bytes < MESSAGE_BYTES_MAX as u64
        {
            let Some((index, changes)) = read.advance() else { break };
            if mark.is_some() && mutant!(WatchGapBetweenPages) {
                continue;
            }
            for change in changes.iter().filter(|change| self.shown.covers(&change.name)) {
                bytes += change.bytes();
                taken.events.push(change.encoded());
            }
            taken.complete = Some(index).filter(|_| self.shown == Shown::All);
        }
        taken
    }

    /// How far the log has come, if the watcher was sent all news and was not told lately.
    fn mark(&self) -> Option<LogIndex> {
        let told = self.membership.bell.borrow();
        let has_all = self.read.as_ref()?.told().changes >= told.published.changes;
        Some(told.marked).filter(|marked| has_all && *marked > self.complete)
    }

    /// Hands events over to the transport, in as many messages as they need; the last one says how far the
    /// watcher has come.
    async fn send(
        &mut self,
        to: &mpsc::Sender<WatchResponse>,
        taken: Taken,
    ) -> Result<(), StreamError> {
        let complete = taken.complete.filter(|index| *index > self.complete);
        let mut events = taken.events.into_iter().peekable();
        while events.peek().is_some() || complete.is_some_and(|index| index > self.complete) {
            // The other end is gone: the caller notices it.
            let Some(room) = self.room(to).await? else { return Ok(()) };
            let mut message = message(&mut events);
            if let Some(index) = complete.filter(|_| events.peek().is_none()) {
                message.complete_index = index.get();
                message.cluster_id = self.cluster_id.take().unwrap_or_default();
                self.complete = index;
            }
            let count = message.encoded_events.len() as u64;
            self.membership.watches.metrics.watch_events.inc_by(count);
            room.send(message);
        }
        Ok(())
    }

    /// Waits until the transport takes a message; `None` if the other end is gone. A client that does not read
    /// must not keep others from their state: after [`PATIENCE`] its place goes to the next.
    async fn room<'to>(
        &mut self,
        to: &'to mpsc::Sender<WatchResponse>,
    ) -> Result<Option<mpsc::Permit<'to, WatchResponse>>, StreamError> {
        if self.slot.is_some() {
            let runtime = self.membership.watches.runtime.clone();
            let room = runtime.timeout(PATIENCE, self.room_or_end(to)).await;
            if let Ok(room) = room {
                return room;
            }
            self.slot = None;
        }
        self.room_or_end(to).await
    }

    async fn room_or_end<'to>(
        &mut self,
        to: &'to mpsc::Sender<WatchResponse>,
    ) -> Result<Option<mpsc::Permit<'to, WatchResponse>>, StreamError> {
        holdfast_runtime::select! {
            room = to.reserve() => Ok(room.ok()),
            over = self.over() => Err(over),
        }
    }

    /// Waits for a place among those that are shown the state, or what they missed; `false` if the other end is gone.
    async fn admitted(&mut self, to: &mpsc::Sender<WatchResponse>) -> Result<bool, StreamError> {
        while self.slot.is_none() {
            let news = self.in_line(to).await?;
            // Its place may go again meanwhile, if the client does not read.
            self.send(to, Taken { events: news, complete: None }).await?;
            if to.is_closed() {
                return Ok(false);
            }
        }
        Ok(!to.is_closed())
    }

    /// Waits in line for a place, without losing its turn. What was shown before goes on changing: that is sent
    /// as far as the client reads, and what is left of it is returned.
    async fn in_line(
        &mut self,
        to: &mpsc::Sender<WatchResponse>,
    ) -> Result<Vec<Bytes>, StreamError> {
        let watches = self.membership.watches.clone();
        let _waiting = Counted::new(&watches.metrics.watches_waiting);
        let mut slot = std::pin::pin!(watches.slots.clone().acquire_owned());
        let mut news = Vec::new();
        loop {
            if news.is_empty() {
                news = self.take_news(None).events;
            }
            self.check()?;
            holdfast_runtime::select! {
                slot = &mut slot => {
                    self.slot = slot.ok();
                    return Ok(news);
                }
                () = to.closed() => return Ok(news),
                Ok(room) = to.reserve(), if !news.is_empty() => {
                    let mut events = std::mem::take(&mut news).into_iter().peekable();
                    let message = message(&mut events);
                    news = events.collect();
                    let count = message.encoded_events.len() as u64;
                    watches.metrics.watch_events.inc_by(count);
                    room.send(message);
                }
                rung = self.rung() => rung?,
            }
        }
    }

    /// Waits until the watch is over, and returns why.
    async fn over(&mut self) -> StreamError {
        loop {
            if let Err(over) = self.check() {
                return over;
            }
            if let Err(over) = self.rung().await {
                return over;
            }
        }
    }

    /// Waits for news, if it has begun to receive them.
    ///
    /// # Errors
    ///
    /// The end of the watch, which may come first.
    async fn rung(&mut self) -> Result<(), StreamError> {
        let Membership { over, bell, .. } = &mut self.membership;
        holdfast_runtime::select! {
            _ = over.changed() => {}
            Ok(()) = bell.changed(), if self.read.is_some() => return Ok(()),
        }
        Err(self.membership.ended().unwrap_or_else(gone))
    }

    /// Whether the watch goes on (I27).
    fn check(&mut self) -> Result<(), StreamError> {
        if let Some(end) = self.membership.ended() {
            return Err(end);
        }
        let published = self.membership.bell.borrow_and_update().published;
        let read = self.read.as_ref().map_or(published, Place::told);
        let Some(limit) = self.membership.watches.passed_by(published.beyond(read)) else {
            return Ok(());
        };
        self.membership.watches.metrics.watches_cut.inc();
        self.membership.watches.lines.watch_cut(&self.membership.prefix);
        Err(limit)
    }
}

impl Watches {
    /// The limit that a watch this far behind has exceeded. All errors name `watch_backlog`: by that
    /// clients of 0.1 know that they were too slow.
    fn passed_by(&self, behind: Length) -> Option<StreamError> {
        if behind.changes > self.backlog {
            let message = "the watch was not read fast enough; begin it anew";
            return Some(StreamError::limit("watch_backlog", self.backlog, message));
        }
        if behind.bytes > self.backlog_bytes {
            let message = "the watch was not read fast enough (watch_backlog); begin it anew";
            return Some(StreamError::limit("outbox_bytes", self.backlog_bytes, message));
        }
        let message = "the watches of this node were not read fast enough (watch_backlog), this one \
                       among the slowest; begin it anew";
        let limit = StreamError::limit("outbox_bytes_total", self.budget.limit(), message);
        (self.budget.is_full() && behind.bytes > self.share()).then_some(limit)
    }
}

/// The next message of events: at least one, if there is one.
fn message(events: &mut Peekable<std::vec::IntoIter<Bytes>>) -> WatchResponse {
    let mut message = WatchResponse::default();
    let mut bytes = 0;
    while message.encoded_events.len() < EVENTS_PER_MESSAGE {
        let Some(next) = events.peek().map(Bytes::len) else { break };
        if bytes + next > MESSAGE_BYTES_MAX && bytes > 0 {
            break;
        }
        bytes += next;
        message.encoded_events.extend(events.next());
    }
    message
}

/// The group is gone, and left no reason.
fn gone() -> StreamError {
    StreamError::unavailable("the watch was ended; begin it anew", None)
}

/// One more in a gauge, for as long as it lives.
struct Counted<'gauge>(&'gauge Gauge);

impl<'gauge> Counted<'gauge> {
    fn new(gauge: &'gauge Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
