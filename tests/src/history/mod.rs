//! The history of a run: what its clients asked, received and believed, with the instant of each.
//!
//! Every recorder of a run reads the same clock, `CLOCK_BOOTTIME` of one machine (or the virtual
//! clock of one simulation), so records of several processes can be merged by their instants. A
//! record is one line of JSON and reaches its file in one write before the client goes on: so the
//! records of a client that is killed are not lost with it.
//!
//! # Rules for recorders
//!
//! - What a client *does* is written before it does it; what it *receives* is written after that.
//!   So every interval in which a client may have believed something is drawn too small rather than
//!   too large, and the judge reports no false violation.
//! - A call that ended without an outcome is written as [`What::Unknown`], never left out.
//! - A [`ClientId`] stands for one client from start to end: after a restart it has another id. A
//!   client that speaks frames itself takes a new id for each session.

mod news;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_runtime::simulated::Process;
use holdfast_runtime::{Clock, Instant};
use serde::{Deserialize, Serialize};

pub use news::{Happened, News};

use crate::shim::ClockRate;

/// One client of a run, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClientId(pub u64);

impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client {}", self.0)
    }
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When, nanoseconds of the run's clock.
    pub at_ns: u64,
    /// The client that the record is about.
    pub client: ClientId,
    /// What it did, received or believed.
    #[serde(flatten)]
    pub what: What,
}

/// What a client did, received or believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// The client's session is open.
    Opened {
        /// Its lease, milliseconds.
        ttl_ms: u64,
    },
    /// The client asks for one lock or several. The same number again: it repeats the request
    /// (I12).
    Acquire {
        /// The client's number for it, never used for another request.
        request: u64,
        /// The locks, each with the mode in which it is to be held.
        items: Vec<Asked>,
        /// `None`: all of them. Otherwise those that are free; the request waits for at least so
        /// many.
        any: Option<u32>,
        /// Whether it waits for its locks.
        wait: bool,
        /// Its wait limit, milliseconds; `None`: none.
        within_ms: Option<u64>,
    },
    /// The client imports what one owner has in another store. The same number again: it repeats
    /// the import.
    Import {
        /// The client's number for it, never used for another import.
        import: u64,
        /// The owner's name in the other store.
        owner: String,
        /// The rest of its lease there, milliseconds.
        remaining_ms: u64,
        /// The owner's rows.
        rows: Vec<Brought>,
    },
    /// The result of an import.
    Imported {
        /// Its number.
        import: u64,
        /// The result for each row.
        fates: Vec<Became>,
    },
    /// The client claims the import of a lock for an owner: a request like any other.
    Claim {
        /// The client's number for it, one of those of its requests.
        request: u64,
        /// The lock.
        name: String,
        /// The owner.
        owner: String,
        /// Its wait limit, milliseconds; `None`: none.
        within_ms: Option<u64>,
    },
    /// The client releases a grant, or some names of it: from here on they count as unsafe.
    Release {
        /// The grant.
        token: u64,
        /// These names of it; empty: all that it still holds.
        names: Vec<String>,
    },
    /// The client changes the value of a lock it holds.
    SetValue {
        /// The client's number for it, one of those of its requests.
        request: u64,
        /// The grant.
        token: u64,
        /// The lock.
        name: String,
        /// The change.
        change: Change,
    },
    /// The value was changed, acknowledged.
    ValueSet {
        /// The change's number.
        request: u64,
    },
    /// The client ends a request, whatever its state.
    Cancel {
        /// The request.
        request: u64,
    },
    /// The client ends its session.
    Close,
    /// The request is in the queue, acknowledged.
    Queued {
        /// The request.
        request: u64,
        /// The number of requests before it.
        place: u64,
        /// The log index at which it entered, where the client knows it.
        index: Option<u64>,
    },
    /// The request holds these locks.
    Granted {
        /// The request.
        request: u64,
        /// The fencing token.
        token: u64,
        /// The locks granted.
        names: Vec<String>,
        /// The values of those locks that have one.
        values: Vec<Shown>,
    },
    /// The request ended ungranted, for one of the reasons that every client knows: another client
    /// held the lock, or its own wait limit passed.
    Denied {
        /// The request.
        request: u64,
    },
    /// The request was refused.
    Refused {
        /// The request.
        request: u64,
        /// The reason, as the wire names it, in lower case without its prefix.
        reason: String,
    },
    /// The request was ended by its client's cancel.
    Cancelled {
        /// The request.
        request: u64,
    },
    /// The wait ended because the session did.
    SessionLost {
        /// The request.
        request: u64,
    },
    /// The call ended without an outcome: it may have taken effect, and may still.
    Unknown {
        /// The request.
        request: u64,
    },
    /// The grant was released, or some names of it.
    Released {
        /// The grant.
        token: u64,
        /// The released names; empty: all of them.
        names: Vec<String>,
    },
    /// The release was refused: the token is not that of a current hold.
    NotHolder {
        /// The token of the release.
        token: u64,
    },
    /// The release ended without an outcome.
    ReleaseUnknown {
        /// The grant.
        token: u64,
    },
    /// The hold is over without a release.
    Lost {
        /// The grant.
        token: u64,
        /// The reason.
        cause: LostCause,
    },
    /// Another client waits for a lock of this grant.
    Contended {
        /// The grant.
        token: u64,
    },
    /// The request's place in the queue changed.
    Moved {
        /// The request.
        request: u64,
        /// The new place.
        place: u64,
    },
    /// Everything that the store knows of the session, as it reports it after a resume.
    State {
        /// Every request that it named.
        requests: Vec<Kept>,
        /// The store knows of no request with this number or a higher one.
        next_request: u64,
    },
    /// The session is over.
    SessionEnded {
        /// The reason.
        cause: LostCause,
    },
    /// The holds of the client's session are certain until then, unless it releases them: by the
    /// lease of the session.
    Safe {
        /// The safe deadline, nanoseconds of the run's clock.
        until_ns: u64,
    },
    /// The holds of this grant are certain until then, unless the client releases them: each hold
    /// has a lease of its own, perhaps in another store.
    SafeGrant {
        /// The grant.
        token: u64,
        /// The safe deadline, nanoseconds of the run's clock.
        until_ns: u64,
    },
    /// The client checked whether a hold is safe; the record has the instant before the check.
    IsSafe {
        /// The grant.
        token: u64,
        /// The result.
        safe: bool,
        /// The locks that the client believes it holds under that grant.
        names: Vec<String>,
    },
    /// A resource outside the store refused a write, because it had seen a larger token. The
    /// resource writes this for the client, at the instant of its decision.
    Fenced {
        /// The grant under which the client wrote.
        token: u64,
        /// The lock that guards the resource.
        name: String,
        /// The token that the resource had seen.
        newest: u64,
    },
    /// A resource outside the store accepted the client's write: it had seen no larger token. The
    /// resource writes this for the client, at the instant of its decision.
    Accepted {
        /// The grant under which the client wrote.
        token: u64,
        /// The lock that guards the resource.
        name: String,
    },
    /// A linearizable look at a lock begins.
    Read {
        /// The reader's number for it.
        read: u64,
        /// The lock.
        name: String,
    },
    /// The client asks for numbers of a sequence.
    TakeNumbers {
        /// The client's number for it.
        take: u64,
        /// The sequence.
        name: String,
        /// How many.
        count: u32,
    },
    /// The call for numbers ended.
    NumbersTaken {
        /// The number of the call.
        take: u64,
        /// The first of its numbers. `None`: it was refused, or has no answer; then some may be gone.
        first: Option<u64>,
    },
    /// The client begins to watch the locks below a prefix.
    Watch {
        /// The watcher's number for it.
        watch: u64,
        /// The prefix of their names.
        prefix: String,
    },
    /// A report of a watch.
    WatchTold {
        /// The number of the watch.
        watch: u64,
        /// The report.
        news: News,
    },
    /// A watch is over.
    WatchOver {
        /// Its number.
        watch: u64,
        /// Whether it failed; otherwise its client ended it.
        failed: bool,
    },
    /// What the look showed.
    ReadDone {
        /// The number of the look.
        read: u64,
        /// Its holders; empty: none.
        holders: Vec<Holding>,
        /// Its value, if it has one.
        value: Option<Shown>,
        /// The number of waiters.
        waiting: u64,
        /// The grant after whose end it is closed, if it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        closed: Option<u64>,
        /// Whether it is frozen.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        frozen: bool,
    },
    /// The harness is about to end this client's process: it writes nothing more, and its calls
    /// never end.
    Killed,
    /// The harness injects or mends a fault. For readers only.
    Fault {
        /// The fault.
        note: String,
    },
    /// An operator is about to end the client's session, or a hold of it.
    TakesAway {
        /// The client.
        of: ClientId,
    },
    /// An operator asks the store for a change that counts for every client.
    Order {
        /// The operator's number for it.
        number: u64,
        /// The change.
        order: Order,
    },
    /// The store has done what an operator asked for.
    OrderDone {
        /// The operator's number for it.
        number: u64,
    },
    /// The first node applies the end of a session from outside: by an operator, or because its client does not know that a
    /// hold alone can be ended, and one had lasted its longest. The observer of the nodes writes this.
    Revoked {
        /// The client of the session.
        of: ClientId,
    },
    /// The first node applies a grant. The observer of the nodes writes this.
    GrantSeen {
        /// The grant.
        token: u64,
    },
    /// From here on no fault is active, until the next [`What::Fault`]; if there is none, every
    /// call has to end.
    Healed,
    /// The store ended a session because its lease had run out. The observer of the store writes
    /// this when the first node applies it.
    Expired {
        /// The client of the session.
        of: ClientId,
        /// Every token that this session was ever granted: the client may have another session by
        /// then. `None`: not known, and the client had only one.
        #[serde(default)]
        tokens: Option<Vec<u64>>,
        /// The session's number at the store. `None`: not known.
        #[serde(default)]
        session: Option<u64>,
    },
    /// A command had left work for later ones (`work_steps`), as the observer of the store writes it: a lock may be
    /// free and waited for meanwhile.
    WorkLeft {
        /// When nothing was left any more. `None`: the history ends before.
        until_ns: Option<u64>,
    },
    /// The store acknowledged to a client that its session is alive: by the send time of the
    /// acknowledged message, the client may believe in its holds until then (DESIGN §5.4). The
    /// observer of its connection writes this when the client receives it.
    Acknowledged {
        /// The session's number at the store.
        session: u64,
        /// The safe deadline that follows, nanoseconds of the run's clock.
        until_ns: u64,
    },
    /// Names with these prefixes belong to scopes from here on: their tokens are compared within
    /// each scope, and not with those of other names. The harness writes this before any client
    /// asks for one.
    Scopes {
        /// The prefix of each scope; no two overlap.
        prefixes: Vec<String>,
    },
    /// The log has a command of this version from here on, so every member knows it (I29). The
    /// observer of the nodes writes this.
    AllKnow {
        /// The version.
        version: u16,
    },
    /// A node has applied the log up to here. The observer of the nodes writes this.
    Applied {
        /// The node.
        node: u64,
        /// The last index applied.
        index: u64,
        /// Its state hash then, as text.
        hash: String,
        /// The table's stamp then, Unix milliseconds.
        stamp_ms: u64,
    },
}

/// Why a hold or a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostCause {
    /// The store reported that the lease ran out.
    Expired,
    /// The store reported that the session was closed.
    Closed,
    /// The client's own safe deadline passed.
    Deadline,
    /// The store no longer knows of it.
    Gone,
    /// The store reported that an operator ended it.
    TakenAway,
    /// The store reported that it had lasted its longest (`max_hold`).
    TooLong,
}

/// What an operator asks the store for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// To grant nothing of the names that begin so.
    Freeze(String),
    /// To lift that freeze.
    Thaw(String),
    /// To keep a limit of the permits of a lock for good.
    Limit {
        /// The lock.
        name: String,
        /// The limit.
        permits: u32,
    },
}

/// One lock of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// Whether others may hold it beside it: as readers, or with permits.
    pub shared: bool,
    /// The permits that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<Permits>,
    /// So much earlier than it came its request counts as having come, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub head_start_ms: u64,
    /// After so long the store ends the hold, milliseconds; 0: it does not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_hold_ms: u64,
    /// Nobody else is granted it before so long after the grant, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hold_at_least_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Some permits of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permits {
    /// How many.
    pub count: u32,
    /// Up to how many are held together; 0: as many as an operator last said ([`Order::Limit`]).
    pub limit: u32,
}

impl Asked {
    /// An exclusive hold.
    pub fn exclusive(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            shared: false,
            permits: None,
            head_start_ms: 0,
            max_hold_ms: 0,
            hold_at_least_ms: 0,
        }
    }

    /// A shared hold.
    pub fn shared(name: impl Into<String>) -> Self {
        Self { shared: true, ..Self::exclusive(name) }
    }

    /// A hold of some permits.
    pub fn permits(name: impl Into<String>, count: u32, limit: u32) -> Self {
        Self { permits: Some(Permits { count, limit }), ..Self::shared(name) }
    }

    /// The same with a head start.
    #[must_use]
    pub fn ahead(self, head_start_ms: u64) -> Self {
        Self { head_start_ms, ..self }
    }

    /// The same with bounds of its hold, milliseconds; 0: none.
    #[must_use]
    pub fn bound(self, max_hold_ms: u64, hold_at_least_ms: u64) -> Self {
        Self { max_hold_ms, hold_at_least_ms, ..self }
    }

    /// A shared hold, or an exclusive one.
    pub fn read_if(shared: bool, name: impl Into<String>) -> Self {
        Self { shared, ..Self::exclusive(name) }
    }
}

/// One row of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brought {
    /// The lock.
    pub name: String,
    /// Whether the owner waits for it; otherwise it holds it.
    pub waits: bool,
    /// The value that comes with a hold.
    pub value: Option<String>,
}

/// The result for a row of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// It holds the lock under this token.
    Held(u64),
    /// It waits in the queue.
    Queued,
    /// It was there already.
    Known,
    /// It was refused.
    Refused,
}

/// A holder's change of a value. Recorders write values that are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Replaces it.
    Set(String),
    /// Removes it.
    Clear,
    /// Confirms that it is correct.
    Confirm,
}

/// A value as a client saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The lock.
    pub name: String,
    /// The value.
    pub value: String,
    /// The grant under which it was set.
    pub token: u64,
    /// Whether it is suspect.
    pub suspect: bool,
}

/// A holder as a look reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Its grant.
    pub token: u64,
    /// Whether it shares the lock.
    pub shared: bool,
}

/// One request in the store's State.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The request.
    pub request: u64,
    /// Its state.
    pub state: KeptState,
}

/// The state of a request at the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptState {
    /// In the queue.
    Queued,
    /// Holding these names, under this token.
    Granted {
        /// The grant.
        token: u64,
        /// The names that are held.
        names: Vec<String>,
    },
    /// Denied, kept for a retry.
    Denied,
    /// Over, kept for a retry.
    Ended,
    /// A change of a value, kept for a retry.
    ValueSet,
}

/// Why a history could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be used.
    #[error("history {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line that is not a record, other than a last one that was cut off.
    #[error("history {path}, line {line}: {source}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
}

/// Writes records. Cheap to clone; one per process is enough.
#[derive(Clone)]
pub struct Recorder {
    clock: Arc<dyn Clock>,
    sink: Arc<Mutex<Sink>>,
    /// The process to whose clock the given moments belong; `None`: the run's clock.
    writer: Option<Writer>,
}

/// A process whose clock is not the run's.
#[derive(Clone)]
enum Writer {
    /// A simulated process; the recorder reads the world's clock.
    Simulated(Process),
    /// A real process; the recorder reads its clock.
    Rated(ClockRate),
}

enum Sink {
    File(File),
    Memory(Vec<Record>),
}

impl Recorder {
    /// Appends to `path`, one write per record.
    ///
    /// # Errors
    ///
    /// [`HistoryError::File`] if it cannot be opened.
    pub fn to_file(clock: Arc<dyn Clock>, path: &Path) -> Result<Self, HistoryError> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| HistoryError::File { path: path.into(), source })?;
        Ok(Self { clock, sink: Arc::new(Mutex::new(Sink::File(file))), writer: None })
    }

    /// Keeps the records, for [`Recorder::take`].
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        Self { clock, sink: Arc::new(Mutex::new(Sink::Memory(Vec::new()))), writer: None }
    }

    /// The same history, for a simulated process whose clock is not the run's.
    #[must_use]
    pub fn of(&self, writer: Process) -> Self {
        Self { writer: Some(Writer::Simulated(writer)), ..self.clone() }
    }

    /// The same history, for a process whose clocks, including the recorder's, run at that rate;
    /// `None`: the right one.
    #[must_use]
    pub fn of_rate(&self, rate: Option<ClockRate>) -> Self {
        Self { writer: rate.map(Writer::Rated), ..self.clone() }
    }

    /// A moment of the writer's clock, converted to the run's clock, nanoseconds.
    pub fn ns_of(&self, moment: Instant) -> u64 {
        nanos(match &self.writer {
            None => moment,
            Some(Writer::Simulated(process)) => process.on_the_worlds_clock(moment),
            Some(Writer::Rated(rate)) => rate.true_moment(moment),
        })
    }

    /// A duration by the writer's clock, converted to the run's clock, whole milliseconds.
    pub fn ms_of(&self, length: Duration) -> u64 {
        let length = match &self.writer {
            None => length,
            Some(Writer::Simulated(process)) => process.true_length_of(length),
            Some(Writer::Rated(rate)) => rate.true_length(length),
        };
        u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes one record, at the instant of this call.
    ///
    /// # Panics
    ///
    /// If the file cannot be written: a history with a gap could hide a violation.
    pub fn write(&self, client: ClientId, what: What) {
        self.write_at(self.now_ns(), client, what);
    }

    /// Writes one record with an instant that was taken before: for a fact that held at a check and
    /// may be over when it is recorded.
    ///
    /// # Panics
    ///
    /// As [`Recorder::write`].
    pub fn write_at(&self, at_ns: u64, client: ClientId, what: What) {
        let record = Record { at_ns, client, what };
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.push(record),
            Sink::File(file) => write_line(file, &record),
        }
    }

    /// The run's clock, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        let now = self.clock.now();
        nanos(match &self.writer {
            None | Some(Writer::Simulated(_)) => now,
            Some(Writer::Rated(rate)) => rate.true_moment(now),
        })
    }

    /// How many of the records kept so far match; none for a recorder that writes to a file.
    pub fn count(&self, is_such: impl Fn(&What) -> bool) -> usize {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.iter().filter(|record| is_such(&record.what)).count(),
            Sink::File(_) => 0,
        }
    }

    /// A copy of the records so far; empty for a recorder that writes to a file.
    pub fn so_far(&self) -> Vec<Record> {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.clone(),
            Sink::File(_) => Vec::new(),
        }
    }

    /// Takes the records so far; empty for a recorder that writes to a file.
    pub fn take(&self) -> Vec<Record> {
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => std::mem::take(records),
            Sink::File(_) => Vec::new(),
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

fn nanos(moment: Instant) -> u64 {
    u64::try_from(moment.since_origin().as_nanos()).unwrap_or(u64::MAX)
}

fn write_line(file: &mut File, record: &Record) {
    let line = serde_json::to_string(record).map(|json| json + "\n");
    let written =
        line.map_err(std::io::Error::from).and_then(|line| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("cannot write the history: {error}");
    }
}

/// Reads the records of one file. A last line that was cut off (its writer was killed) is left
/// out.
///
/// # Errors
///
/// [`HistoryError`] names the file, and the line if it is one.
pub fn read(path: &Path) -> Result<Vec<Record>, HistoryError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| HistoryError::File { path: path.into(), source })?;
    let mut records = Vec::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str(line) {
            Ok(record) => records.push(record),
            Err(_) if !line.ends_with('\n') => {}
            Err(source) => {
                return Err(HistoryError::Line { path: path.into(), line: number + 1, source });
            }
        }
    }
    Ok(records)
}

/// Merges the records of all recorders of a run into one order, by their instants. Records of one
/// recorder with the same instant stay in the order in which they were written.
pub fn merge(parts: Vec<Vec<Record>>) -> Vec<Record> {
    let mut records: Vec<Record> = parts.into_iter().flatten().collect();
    records.sort_by_key(|record| record.at_ns);
    records
}

/// Writes a whole history to `path`, so that a failed run can be judged again.
///
/// # Errors
///
/// [`HistoryError::File`] if it cannot be written.
pub fn save(records: &[Record], path: &Path) -> Result<(), HistoryError> {
    let failed = |source| HistoryError::File { path: path.into(), source };
    let mut text = String::new();
    for record in records {
        text += &serde_json::to_string(record).map_err(|error| failed(error.into()))?;
        text.push('\n');
    }
    std::fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use holdfast_runtime::Runtime;

    use super::*;

    #[test]
    fn a_history_reads_back_as_it_was_written_but_for_a_last_line_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let recorder = Recorder::to_file(Runtime::system().clock, &path).unwrap();
        let items = vec![Asked::exclusive("jobs"), Asked::shared("stock")];
        let acquire =
            What::Acquire { request: 1, items, any: Some(1), wait: true, within_ms: None };
        let granted = KeptState::Granted { token: 5, names: vec!["stock".into()] };
        let state =
            What::State { requests: vec![Kept { request: 1, state: granted }], next_request: 2 };
        recorder.write(ClientId(7), acquire.clone());
        recorder.write(ClientId(7), state.clone());
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"at_ns":1,"cli"#).unwrap();

        let whats: Vec<What> = read(&path).unwrap().into_iter().map(|record| record.what).collect();

        assert_eq!(whats, [acquire, state]);
    }

    #[test]
    fn a_damaged_line_in_the_middle_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        std::fs::write(&path, "{\"at_ns\":1,\n").unwrap();

        assert!(matches!(read(&path), Err(HistoryError::Line { line: 1, .. })));
    }
}
