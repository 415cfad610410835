//! The log's records in files of our own: one frame a commit, one sync a commit, nothing else.
//!
//! # Promises
//!
//! - A frame survives a crash as a whole or not at all, and only if all earlier ones do.
//! - What was written before a [`sync`](Segments::sync) that succeeded survives the loss of power.
//! - A frame that cannot be read ends the log only where nothing was written after it. Whether the log is
//!   too short then is decided by the guard file (I21). Anything else is damage, and is named.
//!
//! # Which file goes
//!
//! Files are numbered. The newest one with frames is written; a frame of its own kind ends it before the
//! next one begins. The oldest goes as a whole when all its records are purged: that is so once the
//! purge mark, which is durable elsewhere, reaches the last record in it that a truncation has left.

mod files;
mod frame;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

pub use self::files::SegmentSizes;
use self::files::{Segment, SegmentFiles};
use self::frame::{Frame, Frames, HEAD_BYTES, Harm, Kind, encode_frame, frame_bytes, read};
use super::disk::{Disk, read_exact_at};
use super::error::{Fault, OpenError, open_error};
use super::record::{DecodeError, Fields, LogId, Record, decode_group, encode_record, encoded_len};
use super::replica_store::Pace;

/// The open segments of a log.
pub(super) struct Segments {
    files: Arc<SegmentFiles>,
    sizes: SegmentSizes,
    /// Oldest first; the last one is written.
    used: VecDeque<Used>,
    /// Where the next frame belongs.
    end: u64,
}

struct Used {
    segment: Segment,
    /// The last record in it that no truncation has removed.
    last: Option<u64>,
}

/// What goes to the segments in one commit.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    Append(&'a [Record]),
    /// Removes every record after this index.
    Truncate(Option<u64>),
}

impl Entry<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::Append(_) => Kind::Append,
            Self::Truncate(_) => Kind::Truncate,
        }
    }

    fn body_bytes(&self) -> usize {
        match self {
            Self::Append(records) => records.iter().map(encoded_len).sum(),
            Self::Truncate(_) => TRUNCATION_BYTES,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Append(records) => records.iter().for_each(|record| encode_record(record, out)),
            Self::Truncate(keep) => {
                out.push(u8::from(keep.is_some()));
                out.extend_from_slice(&keep.unwrap_or_default().to_be_bytes());
            }
        }
    }
}

/// Whether anything is kept, and the last index that is.
const TRUNCATION_BYTES: usize = 9;

/// Keeps the files of a log: to be run beside it, until the log is dropped.
pub(super) struct Keeper(Arc<SegmentFiles>);

impl Keeper {
    /// # Errors
    ///
    /// The fault, when a file that is no longer needed cannot be given back. The log waits for no file
    /// after that.
    pub(super) async fn run(self, pace: Pace) -> Result<(), Fault> {
        let kept = self.0.keep(&pace).await;
        kept.map_err(|error| Fault::new("give back a file of", self.0.folder(), error))
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.files.close();
    }
}

impl Segments {
    /// Reads the segments in `folder`, which belong to `store`; `purged` is the purge mark. Without
    /// any, the log is empty, and its first segment is made when it is needed.
    ///
    /// # Errors
    ///
    /// What is damaged or missing, or as from the system.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        store: [u8; 16],
        sizes: SegmentSizes,
        purged: Option<LogId>,
    ) -> Result<(Self, Keeper, VecDeque<Record>), OpenError> {
        let files = Arc::new(SegmentFiles::new(disk, folder, store));
        let found = files.found().map_err(|e| open_error("read", folder, e))?;
        let mut log = Replay::new(purged);
        for (number, path) in found {
            let segment = files.open(number, path).map_err(|e| open_error("open", folder, e))?;
            log.take(segment)?;
        }
        log.check_end()?;
        let records = log.needed(folder)?;
        let Replay { used, end, ahead, .. } = log;
        if let Some(made) = ahead {
            files.offer(made);
        }
        let segments = Self { files: Arc::clone(&files), sizes, used, end };
        Ok((segments, Keeper(files), records))
    }

    /// Removes every segment in `folder`.
    ///
    /// # Errors
    ///
    /// As from the system; some may be left.
    pub(super) fn clear(disk: Arc<dyn Disk>, folder: &Path) -> io::Result<()> {
        SegmentFiles::new(disk, folder, [0; 16]).remove_all()
    }

    /// Appends records before the keeper runs.
    ///
    /// # Errors
    ///
    /// As from the system; whether they survive is unknown.
    pub(super) fn append_alone(&mut self, records: &[Record]) -> io::Result<()> {
        let entry = Entry::Append(records);
        if !self.fits(entry) {
            let (number, length) = self.next_segment(entry);
            let next = self.files.make_now(number, length)?;
            self.enter(next)?;
        }
        self.write(entry)
    }

    /// Whether `entry` fits into the segment that is written.
    pub(super) fn fits(&self, entry: Entry<'_>) -> bool {
        let needed = frame_bytes(entry.body_bytes()) + frame_bytes(0);
        self.used.back().is_some_and(|used| self.end + needed <= used.segment.length)
    }

    /// The number and length of the next segment, which takes `entry`.
    fn next_segment(&self, entry: Entry<'_>) -> (u64, u64) {
        let last = self.used.back().map(|used| &used.segment);
        let length = self.sizes.next(last.map(|last| last.length), entry.body_bytes());
        (last.map_or(1, |last| last.name.number + 1), length)
    }

    /// Ends the segment that is written and begins the next one, which takes `entry`. What was
    /// written before must be durable.
    ///
    /// # Errors
    ///
    /// As from the system; whether the segment is ended is unknown.
    pub(super) async fn roll(&mut self, entry: Entry<'_>) -> io::Result<()> {
        let (number, length) = self.next_segment(entry);
        // Before the end of the present one is written: a log that has ended must go on somewhere.
        let next = self.files.next(number, length).await?;
        self.enter(next)
    }

    fn enter(&mut self, next: Segment) -> io::Result<()> {
        if self.used.back().is_some() {
            self.put(Kind::End, |_| ())?;
            self.sync()?;
        }
        self.used.push_back(Used { segment: next, last: None });
        self.end = HEAD_BYTES;
        Ok(())
    }

    /// Writes `entry` as one frame. It must fit.
    ///
    /// # Errors
    ///
    /// As from the system; whether it survives is unknown.
    pub(super) fn write(&mut self, entry: Entry<'_>) -> io::Result<()> {
        self.put(entry.kind(), |out| entry.encode(out))?;
        match entry {
            Entry::Append(records) => {
                if let (Some(used), Some(last)) = (self.used.back_mut(), records.last()) {
                    used.last = Some(last.log_id.index);
                }
            }
            Entry::Truncate(keep) => shorten(&mut self.used, keep),
        }
        self.look_ahead();
        Ok(())
    }

    fn put(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let Some(Used { segment, .. }) = self.used.back() else {
            return Err(io::Error::other("the log has no segment"));
        };
        let frame = encode_frame(segment.name, self.end, kind, write);
        segment.file.write_all_at(&frame, self.end)?;
        self.end += frame.len() as u64;
        Ok(())
    }

    /// Asks for the next segment when half of this one is full.
    fn look_ahead(&self) {
        if let Some(Used { segment, .. }) = self.used.back()
            && self.end > segment.length / 2
        {
            let length = self.sizes.next(Some(segment.length), 0);
            self.files.want(segment.name.number + 1, length);
        }
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    ///
    /// As from the system; what is durable is unknown.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.used.back().map_or(Ok(()), |used| used.segment.file.sync_data())
    }

    /// Gives back the segments in which all records are purged. The mark must be durable.
    pub(super) fn release(&mut self, purged: LogId) {
        while self.used.len() > 1 {
            let free =
                self.used.pop_front_if(|used| used.last.is_none_or(|last| last <= purged.index));
            let Some(used) = free else { return };
            self.files.release(used.segment);
        }
    }
}

/// A truncation takes records out of every segment that has later ones.
fn shorten(used: &mut VecDeque<Used>, keep: Option<u64>) {
    for used in used {
        used.last = used.last.min(keep);
    }
}

/// The log as far as it was read.
struct Replay {
    purged: Option<LogId>,
    records: VecDeque<Record>,
    used: VecDeque<Used>,
    /// Where the next frame belongs in the last one.
    end: u64,
    /// Whether the last one has an end: the next one goes on.
    ended: bool,
    /// Made ahead of need, after the last one.
    ahead: Option<Segment>,
}

impl Replay {
    fn new(purged: Option<LogId>) -> Self {
        let (records, used) = (VecDeque::new(), VecDeque::new());
        Self { purged, records, used, end: HEAD_BYTES, ended: true, ahead: None }
    }

    /// Reads the next segment.
    fn take(&mut self, segment: Segment) -> Result<(), OpenError> {
        let path = segment.path.clone();
        let frames = frames_of(&segment)?;
        let previous = self.used.back().map(|used| used.segment.name.number);
        let follows = previous.is_none_or(|previous| previous + 1 == segment.name.number);
        let is_ahead = !self.ended && frames.frames.is_empty();
        if !follows || self.ahead.is_some() || !(self.ended || is_ahead) {
            let what = "the segment before it is missing, or lacks its last frames".to_owned();
            return Err(OpenError::Damaged { path, what });
        }
        if is_ahead {
            self.ahead = Some(segment);
            return Ok(());
        }
        self.used.push_back(Used { segment, last: None });
        (self.end, self.ended) = (frames.end, false);
        for frame in frames.frames {
            self.replay(&frame).map_err(|error| damaged(&path, error))?;
        }
        Ok(())
    }

    fn replay(&mut self, frame: &Frame) -> Result<(), DecodeError> {
        if self.ended {
            return Err(DecodeError::Field { field: "frame after the last", value: self.end });
        }
        match frame.kind {
            Kind::Append => self.append(decode_group(&frame.body)?),
            Kind::Truncate => {
                let keep = decode_truncation(&frame.body)?;
                while self.records.pop_back_if(|record| Some(record.log_id.index) > keep).is_some()
                {
                }
                shorten(&mut self.used, keep);
                Ok(())
            }
            Kind::End => {
                self.ended = true;
                Ok(())
            }
        }
    }

    /// Records follow each other. A purge beyond the end of the log leaves a gap, and then everything
    /// before the gap is purged. What the first segments begin with may be anything: records that a later
    /// frame removes may have followed some in a segment that is gone.
    fn append(&mut self, records: Vec<Record>) -> Result<(), DecodeError> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return Err(DecodeError::CutOff);
        };
        let found = first.log_id.index;
        if let Some(last) = self.records.back() {
            let expected = last.log_id.index.saturating_add(1);
            if found < expected || (found > expected && found > self.first_needed()) {
                return Err(DecodeError::Gap { expected, found });
            }
            if found > expected {
                self.records.clear();
            }
        }
        if let Some(used) = self.used.back_mut() {
            used.last = Some(last.log_id.index);
        }
        self.records.extend(records);
        Ok(())
    }

    /// The next segment is durable before this one is ended.
    fn check_end(&self) -> Result<(), OpenError> {
        match self.used.back().filter(|_| self.ended) {
            Some(Used { segment, .. }) => {
                let what = "the segment after it is missing".to_owned();
                Err(OpenError::Damaged { path: segment.path.clone(), what })
            }
            None => Ok(()),
        }
    }

    fn first_needed(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index.saturating_add(1))
    }

    /// The records that are not purged; none of them is missing at the beginning.
    fn needed(&mut self, folder: &Path) -> Result<VecDeque<Record>, OpenError> {
        let expected = self.first_needed();
        while self.records.pop_front_if(|record| record.log_id.index < expected).is_some() {}
        let found = self.records.front().map_or(expected, |first| first.log_id.index);
        if found != expected {
            return Err(damaged(folder, DecodeError::Gap { expected, found }));
        }
        Ok(std::mem::take(&mut self.records))
    }
}

/// Reads a segment. What a killed process left in the system's memory is made durable before it
/// counts.
fn frames_of(segment: &Segment) -> Result<Frames, OpenError> {
    let Segment { name, length, path, file } = segment;
    let mut bytes = vec![0; usize::try_from(*length).unwrap_or(usize::MAX)];
    file.sync_data()
        .and_then(|()| read_exact_at(&**file, &mut bytes, 0))
        .map_err(|error| open_error("read", path, error))?;
    read(*name, &bytes).map_err(|harm| match harm {
        Harm::Head(error) => damaged(path, error),
        other => OpenError::Damaged { path: path.clone(), what: other.to_string() },
    })
}

fn decode_truncation(body: &Bytes) -> Result<Option<u64>, DecodeError> {
    let mut fields = Fields(body);
    let keeps = fields.byte()? != 0;
    let keep = fields.u64()?;
    Ok(keeps.then_some(keep))
}

fn damaged(path: &Path, error: DecodeError) -> OpenError {
    let path: PathBuf = path.to_path_buf();
    match error {
        DecodeError::Version { found, known } => OpenError::NewerFormat { path, found, known },
        other => OpenError::Damaged { path, what: other.to_string() },
    }
}
