//! Frames: the records of some entries of the log that follow each other, as bytes.
//!
//! # Format
//!
//! A file begins with a head of [`HEAD_BYTES`]: magic, version, the id of the store whose log it is, and their CRC. Frames follow, end to end. A frame is the
//! length of its body, the CRC of the body, and the body: what it covers ([`Cover`]), then that many records, in borsh.
//! Numbers are little-endian, as borsh has them.

use std::io;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::record::Record;

/// Bytes before the first frame of a file.
pub(crate) const HEAD_BYTES: usize = 28;
/// Bytes of a frame before its body.
const FRAME_HEADER: usize = 8;
/// A longer body is none of ours.
const BODY_BYTES_MAX: usize = 64 << 20;
const MAGIC: [u8; 4] = *b"HFHI";
const VERSION: u32 = 1;

/// What a frame covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(crate) struct Cover {
    /// It has all that happened after this entry of the log …
    pub(crate) after: u64,
    /// … up to this one.
    pub(crate) through: u64,
    /// When its last entry was proposed, by the leader's wall clock; 0 if that is not known.
    pub(crate) last_ms: u64,
    /// The tenure of the last entry with commands up to its end; 0 before the first one. `None`: that was not heard.
    pub(crate) tenure: Option<u64>,
    /// How many records it has.
    pub(crate) records: u32,
}

/// A frame that is filled, or waits to be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) cover: Cover,
    /// Its records, encoded.
    pub(crate) records: Vec<u8>,
}

/// Why a file is read no further.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Harm {
    /// Its head is not that of a history.
    #[error("it is no file of a history, or its head is damaged")]
    Head,
    /// A later release has written it.
    #[error("it has format {0}; this release knows format {VERSION}")]
    Version(u32),
    /// It is the history of another data folder.
    #[error("it is the history of another data folder")]
    Foreign,
}

/// The head of each file of a store's history.
pub(crate) fn head(store: [u8; 16]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&store);
    head.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
    head
}

/// Checks the head of a file.
///
/// # Errors
///
/// [`Harm`].
pub(crate) fn check_head(file: &[u8], store: [u8; 16]) -> Result<(), Harm> {
    let found = file.get(..HEAD_BYTES).ok_or(Harm::Head)?;
    let (said, crc) = found.split_at(HEAD_BYTES - 4);
    if !said.starts_with(&MAGIC) || crc32fast::hash(said).to_le_bytes() != *crc {
        return Err(Harm::Head);
    }
    match number(said, MAGIC.len()) {
        Some(VERSION) if said.ends_with(&store) => Ok(()),
        Some(VERSION) => Err(Harm::Foreign),
        version => Err(Harm::Version(version.unwrap_or_default())),
    }
}

impl Draft {
    /// Adds a record of an entry that it covers, or will.
    pub(crate) fn put(&mut self, record: &Record) {
        // Writing to memory does not fail.
        let _ = record.serialize(&mut self.records);
        self.cover.records += 1;
    }

    /// Its bytes on disk.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let mut frame = vec![0; FRAME_HEADER];
        frame.reserve(size_of::<Cover>() + self.records.len());
        let _ = self.cover.serialize(&mut frame);
        frame.extend_from_slice(&self.records);
        let body = frame.get(FRAME_HEADER..).unwrap_or_default();
        let (length, crc) = (u32::try_from(body.len()).unwrap_or(u32::MAX), crc32fast::hash(body));
        if let Some(header) = frame.first_chunk_mut::<FRAME_HEADER>() {
            let (of_length, of_crc) = header.split_at_mut(4);
            of_length.copy_from_slice(&length.to_le_bytes());
            of_crc.copy_from_slice(&crc.to_le_bytes());
        }
        frame
    }
}

/// A frame in the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) cover: Cover,
    records: &'a [u8],
}

impl Frame<'_> {
    /// Its records as they are stored: a name in them stands there as it is, and a session's id in eight bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.records
    }

    /// Its records, up to one that cannot be read.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut left = self.records;
        let mut records = Vec::new();
        for _ in 0..self.cover.records {
            match Record::deserialize(&mut left) {
                Ok(record) => records.push(record),
                Err(_) => break,
            }
        }
        records
    }
}

/// The whole frames at the beginning of a file, and where the next one belongs.
pub(crate) fn frames(file: &[u8]) -> (Vec<Frame<'_>>, usize) {
    let (mut frames, mut end) = (Vec::new(), HEAD_BYTES);
    while let Some((frame, length)) = file.get(end..).and_then(first_frame) {
        frames.push(frame);
        end += length;
    }
    (frames, end)
}

/// The frame at the beginning, and its length; `None` if there is no whole one.
fn first_frame(bytes: &[u8]) -> Option<(Frame<'_>, usize)> {
    let (length, crc) = (number(bytes, 0)?, number(bytes, 4)?);
    let length = usize::try_from(length).ok().filter(|length| *length <= BODY_BYTES_MAX)?;
    let mut body = bytes.get(FRAME_HEADER..FRAME_HEADER + length)?;
    if crc32fast::hash(body) != crc {
        return None;
    }
    let cover = cover(&mut body).ok().filter(|cover| cover.after <= cover.through)?;
    Some((Frame { cover, records: body }, FRAME_HEADER + length))
}

fn cover(body: &mut &[u8]) -> io::Result<Cover> {
    Cover::deserialize(body)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|digits| u32::from_le_bytes(*digits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::What;

    fn draft(after: u64, through: u64) -> Draft {
        let cover = Cover { after, through, last_ms: 7, ..Cover::default() };
        let mut draft = Draft { cover, records: Vec::new() };
        draft.put(&Record { index: through, at_ms: 7, what: What::Elected { tenure: through } });
        draft
    }

    const STORE: [u8; 16] = [7; 16];

    fn file() -> Vec<u8> {
        [head(STORE), draft(0, 3).encoded(), draft(3, 9).encoded()].concat()
    }

    fn covered(file: &[u8]) -> Vec<(u64, u64)> {
        frames(file).0.iter().map(|frame| (frame.cover.after, frame.cover.through)).collect()
    }

    #[test]
    fn a_file_says_what_was_written_into_it() {
        let file = file();
        check_head(&file, STORE).unwrap();
        assert_eq!(check_head(&file, [8; 16]), Err(Harm::Foreign));
        assert_eq!((covered(&file), frames(&file).1), (vec![(0, 3), (3, 9)], file.len()));
        let records = frames(&file).0[1].records();
        assert_eq!(records, [Record { index: 9, at_ms: 7, what: What::Elected { tenure: 9 } }]);
    }

    /// I39: nothing is made of a part of a frame.
    #[test]
    fn of_a_file_that_is_cut_off_anywhere_the_whole_frames_are_read() {
        let whole = file();
        let first = head(STORE).len() + draft(0, 3).encoded().len();
        for length in 0..whole.len() {
            let cut = &whole[..length];
            let wanted = if length >= first { vec![(0, 3)] } else { vec![] };
            assert_eq!(covered(cut), wanted, "{length} bytes");
            assert_eq!(check_head(cut, STORE).is_ok(), length >= HEAD_BYTES);
        }
    }

    #[test]
    fn a_flipped_bit_is_never_read_as_something_else() {
        let whole = file();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = check_head(&flipped, STORE).map(|()| covered(&flipped)).unwrap_or_default();
            assert!([vec![], vec![(0, 3)]].contains(&read), "bit {bit}: {read:?}");
        }
    }
}
