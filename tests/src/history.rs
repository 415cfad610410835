//! What the clients of one run asked, were told and believed, with the instant of each.
//!
//! Every recorder of a run reads the same clock, `CLOCK_BOOTTIME` of one machine (or the virtual
//! clock of one simulation), so records of several processes can be merged by their instants. A
//! record is one line of JSON and reaches its file in one write before the client goes on: what a
//! client that is killed had seen is not lost with it.
//!
//! # Rules for recorders
//!
//! - What a client *does* is written before it does it; what it is *told* is written after it was
//!   told. So every interval in which a client may have believed something is drawn too small
//!   rather than too large, and the checker never accuses the innocent.
//! - A call that ended without an outcome is written as [`What::Unknown`], never left out.
//! - A [`ClientId`] is one client's life: after a restart it is another one. A client that speaks
//!   frames itself takes a new id for each session.

mod news;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_seams::simulated::Process;
use holdfast_seams::{Clock, Moment};
use serde::{Deserialize, Serialize};

pub use news::{Happened, News};

use crate::shim::ClockRate;

/// One client's life within a run.
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
    /// Who wrote it.
    pub client: ClientId,
    /// What was done, told or believed.
    #[serde(flatten)]
    pub what: What,
}

/// What was done, told or believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// The client's session is open.
    Opened {
        /// Its lease, milliseconds.
        ttl_ms: u64,
    },
    /// The client asks for one lock or several. Again with the same number: it asks again (I12).
    Acquire {
        /// The client's number for it, never used for another request.
        request: u64,
        /// The locks, each with the way in which it is to be held.
        items: Vec<Asked>,
        /// `None`: all of them. Otherwise whichever are free, and so many are waited for.
        any: Option<u32>,
        /// Whether it would wait.
        wait: bool,
        /// It gives up after so long, milliseconds; `None`: never.
        within_ms: Option<u64>,
    },
    /// The client brings in what one owner has in another store. Again with the same number: it
    /// asks again.
    Import {
        /// The client's number for it, never used for another import.
        import: u64,
        /// What the other store calls the owner.
        owner: String,
        /// What is left of its lease there, milliseconds.
        remaining_ms: u64,
        /// What it has.
        rows: Vec<Brought>,
    },
    /// What became of an import.
    Imported {
        /// Its number.
        import: u64,
        /// Of each row.
        fates: Vec<Became>,
    },
    /// The client asks for what was imported of a lock for an owner: a request like any other.
    Claim {
        /// The client's number for it, one of those of its requests.
        request: u64,
        /// The lock.
        name: String,
        /// The owner.
        owner: String,
        /// It gives up after so long, milliseconds; `None`: never.
        within_ms: Option<u64>,
    },
    /// The client gives back a grant, or some names of it: from here on they count as unsafe.
    Release {
        /// The grant.
        token: u64,
        /// These names of it; empty: all that are left.
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
        /// How.
        change: Change,
    },
    /// The value is changed, acknowledged.
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
    /// The request stands in the queue, acknowledged.
    Queued {
        /// The request.
        request: u64,
        /// How many stand before it.
        place: u64,
        /// The log index at which it entered, where the client knows it.
        index: Option<u64>,
    },
    /// The request holds what it names.
    Granted {
        /// The request.
        request: u64,
        /// The fencing token.
        token: u64,
        /// The locks granted.
        names: Vec<String>,
        /// The values of those that have one.
        values: Vec<Shown>,
    },
    /// The request ended ungranted, in words that every client knows: somebody else held the lock,
    /// or its own wait limit passed.
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
    /// The grant was given back, or some names of it.
    Released {
        /// The grant.
        token: u64,
        /// What is over; empty: all of it.
        names: Vec<String>,
    },
    /// The release was refused: the token is not that of a current hold.
    NotHolder {
        /// The token named.
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
        /// Why.
        cause: LostCause,
    },
    /// Somebody waits for what the client holds.
    Contended {
        /// The grant.
        token: u64,
    },
    /// The place changed.
    Moved {
        /// The request.
        request: u64,
        /// The new place.
        place: u64,
    },
    /// Everything the store knows of the session, as it says after a resume.
    State {
        /// Every request it named.
        requests: Vec<Kept>,
        /// It knows of no request with this number or a higher one.
        next_request: u64,
    },
    /// The session is over.
    SessionEnded {
        /// Why.
        cause: LostCause,
    },
    /// What the client holds is certain until then, unless it gives it back: by the lease of its session.
    Safe {
        /// The safe deadline, nanoseconds of the run's clock.
        until_ns: u64,
    },
    /// What the client holds under this grant is certain until then, unless it gives it back: each of its holds has a lease
    /// of its own, and perhaps in another store.
    SafeGrant {
        /// The grant.
        token: u64,
        /// The safe deadline, nanoseconds of the run's clock.
        until_ns: u64,
    },
    /// The client looked whether a hold is safe; written with the instant before the look.
    IsSafe {
        /// The grant.
        token: u64,
        /// What it saw.
        safe: bool,
        /// The locks that the client believes it holds under that grant.
        names: Vec<String>,
    },
    /// A resource outside of the store refused a write, for it had seen a larger token. Written for
    /// the client by whoever keeps the resource, at the instant of its decision.
    Fenced {
        /// The grant under which the client wrote.
        token: u64,
        /// The lock that guards the resource.
        name: String,
        /// The token that the resource had seen.
        newest: u64,
    },
    /// A resource outside of the store accepted the client's write: it had seen no larger token.
    /// Written for the client by whoever keeps the resource, at the instant of its decision.
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
    /// The client begins to watch the locks below a prefix.
    Watch {
        /// The watcher's number for it.
        watch: u64,
        /// What their names begin with.
        prefix: String,
    },
    /// What a watch told.
    WatchTold {
        /// The number of the watch.
        watch: u64,
        /// What.
        news: News,
    },
    /// A watch is over.
    WatchOver {
        /// Its number.
        watch: u64,
        /// Whether it failed; otherwise its client wanted no more.
        failed: bool,
    },
    /// What the look showed.
    ReadDone {
        /// The number of the look.
        read: u64,
        /// Who holds it; empty: nobody.
        holders: Vec<Holding>,
        /// Its value, if it has one.
        value: Option<Shown>,
        /// How many wait.
        waiting: u64,
    },
    /// The harness begins to end this client's process: it will write nothing more, and its calls
    /// never end.
    Killed,
    /// The harness breaks or mends something. For people.
    Fault {
        /// What.
        note: String,
    },
    /// From here on nothing is broken, until the next [`What::Fault`]; if there is none, every call
    /// has to end.
    Healed,
    /// The store ended a session because its lease had run out. Written by who watches the store,
    /// when the first node applies it.
    Expired {
        /// Whose session.
        of: ClientId,
        /// Every token that this session was ever granted: the client may have another session by
        /// then. `None`: not known, and the client had only one.
        #[serde(default)]
        tokens: Option<Vec<u64>>,
        /// Which session, as the store numbers it. `None`: not known.
        #[serde(default)]
        session: Option<u64>,
    },
    /// The store has told a client that its session is alive: what was asked by that gives it the
    /// right to believe in its holds until then (DESIGN §5.4). Written by who watches its line, when
    /// the client is told.
    Acknowledged {
        /// The session, as the store numbers it.
        session: u64,
        /// The safe deadline that follows, nanoseconds of the run's clock.
        until_ns: u64,
    },
    /// Names that begin with these are scopes from here on: their tokens are compared within each, and not
    /// with those of other names. Written by who sets them, before anybody asks for one.
    Scopes {
        /// What the names of each begin with; no two overlap.
        prefixes: Vec<String>,
    },
    /// A node has applied the log up to here. Written by who watches the nodes.
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
    /// The store says that the lease ran out.
    Expired,
    /// The store says that the session was closed.
    Closed,
    /// The client's own safe deadline passed.
    Deadline,
    /// The store no longer knows of it.
    Gone,
}

/// One lock of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// Beside others that share it; otherwise alone.
    pub shared: bool,
}

impl Asked {
    /// To be held alone.
    pub fn exclusive(name: impl Into<String>) -> Self {
        Self { name: name.into(), shared: false }
    }

    /// To be held beside others that share it.
    pub fn shared(name: impl Into<String>) -> Self {
        Self { name: name.into(), shared: true }
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

/// What became of a row of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// It holds the lock under this token.
    Held(u64),
    /// It waits.
    Queued,
    /// It was there.
    Known,
    /// It did not come in.
    Refused,
}

/// What a holder does to a value. Recorders write values that are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Replaces it.
    Set(String),
    /// Removes it.
    Clear,
    /// Says that it is as it should be.
    Confirm,
}

/// A value as a client was shown it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The lock.
    pub name: String,
    /// The value.
    pub value: String,
    /// The grant under which it was set.
    pub token: u64,
    /// Whether it is to be doubted.
    pub suspect: bool,
}

/// A holder as a look showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Its grant.
    pub token: u64,
    /// How it holds.
    pub shared: bool,
}

/// One request as the store's state names it.
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
        /// What is held.
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
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line that is not a record, other than a last one that was cut off.
    #[error("history {path}, line {line}: {source}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Writes records. Cheap to clone; one per process is enough.
#[derive(Clone)]
pub struct Recorder {
    clock: Arc<dyn Clock>,
    sink: Arc<Mutex<Sink>>,
    /// Whose clock the moments are of that it is given; `None`: of the run's.
    writer: Option<Writer>,
}

/// A process whose clock is not the run's.
#[derive(Clone)]
enum Writer {
    /// Of a simulation, in which the recorder reads the world's clock.
    Simulated(Process),
    /// A real one, and the recorder reads its clock.
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

    /// The same history, as a simulated process writes it whose clock is not the run's.
    #[must_use]
    pub fn of(&self, writer: Process) -> Self {
        Self { writer: Some(Writer::Simulated(writer)), ..self.clone() }
    }

    /// The same history, as a process writes it whose clocks, the recorder's among them, run at that rate; `None`: right.
    #[must_use]
    pub fn of_rate(&self, rate: Option<ClockRate>) -> Self {
        Self { writer: rate.map(Writer::Rated), ..self.clone() }
    }

    /// A moment of the writer's clock as the run's clock shows it, nanoseconds.
    pub fn ns_of(&self, moment: Moment) -> u64 {
        nanos(match &self.writer {
            None => moment,
            Some(Writer::Simulated(process)) => process.on_the_worlds_clock(moment),
            Some(Writer::Rated(rate)) => rate.true_moment(moment),
        })
    }

    /// A length of time by the writer's clock as the run's clock shows it, whole milliseconds.
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
    /// If the file cannot be written: a history with a hole would acquit the guilty.
    pub fn write(&self, client: ClientId, what: What) {
        self.write_at(self.now_ns(), client, what);
    }

    /// Writes one record with an instant that was taken before: for what was true at a look, which
    /// may have been over when it came to be written down.
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

    /// How many of the records kept so far are such; none for a recorder that writes to a file.
    pub fn count(&self, is_such: impl Fn(&What) -> bool) -> usize {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.iter().filter(|record| is_such(&record.what)).count(),
            Sink::File(_) => 0,
        }
    }

    /// A copy of what was kept so far; empty for a recorder that writes to a file.
    pub fn so_far(&self) -> Vec<Record> {
        match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.clone(),
            Sink::File(_) => Vec::new(),
        }
    }

    /// What was kept so far; empty for a recorder that writes to a file.
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

fn nanos(moment: Moment) -> u64 {
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

/// Brings the records of all recorders of a run into one order, by their instants. Records of one
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
    use holdfast_seams::Seams;

    use super::*;

    #[test]
    fn a_history_reads_back_as_it_was_written_but_for_a_last_line_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        let recorder = Recorder::to_file(Seams::system().clock, &path).unwrap();
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
