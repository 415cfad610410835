//! The bytes of a segment: its head, and the frames after it.
//!
//! # Format
//!
//! A segment begins with a head of [`HEAD_BYTES`]: magic, version, the store's id, the segment's
//! number and length, sealed like every small item; zeros fill it up. Frames follow, each at a
//! multiple of [`ALIGNMENT`]. A frame is a header (length of the body, kind, CRC of the body, CRC of
//! the header) and the body. Numbers are big-endian.
//!
//! The CRC of a header covers the store's id, the segment's number and the frame's offset as well.
//! So what an earlier use of a recycled file left behind is never taken for a frame, nor is a frame
//! of another store, another segment or another place; and a valid header *after* a frame that
//! cannot be read shows that this frame was once whole, because each frame is durable before the
//! next one is written.

use bytes::Bytes;

use crate::storage::record::{DecodeError, Fields, seal, unseal};

/// Bytes before the first frame.
pub(in crate::storage) const HEAD_BYTES: u64 = 64;
/// Every frame begins at a multiple of this many bytes.
const ALIGNMENT: u64 = 8;
/// Bytes of a frame before its body: length, kind, CRC of the body, CRC of the header.
const FRAME_HEADER: usize = 16;
/// Bytes of the header that its own CRC covers.
const COVERED: usize = 12;
const MAGIC: [u8; 4] = *b"HFSG";
const VERSION: u32 = 1;

/// The segment that bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Name {
    /// The id of the store; see the guard file.
    pub(in crate::storage) store: [u8; 16],
    /// Segments are numbered from 1, without gaps.
    pub(in crate::storage) number: u64,
}

/// What a frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum Kind {
    /// Records that follow the last one.
    Append,
    /// All records after an index are removed.
    Truncate,
    /// The log continues in the next segment.
    End,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Append => 1,
            Self::Truncate => 2,
            Self::End => 3,
        }
    }

    fn of(number: u32) -> Option<Self> {
        [Self::Append, Self::Truncate, Self::End].into_iter().find(|kind| kind.number() == number)
    }
}

/// One frame that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::storage) struct Frame {
    pub(in crate::storage) kind: Kind,
    pub(in crate::storage) body: Bytes,
}

/// The frames of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::storage) struct Frames {
    pub(in crate::storage) frames: Vec<Frame>,
    /// Where the next frame belongs.
    pub(in crate::storage) end: u64,
}

/// Why a segment is not what was written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::storage) enum Harm {
    /// Its head.
    #[error("its head: {0}")]
    Head(DecodeError),
    /// The file belongs to another store, or stands under another number.
    #[error("it is the segment of another place")]
    Elsewhere,
    /// The file does not have the length that its head names.
    #[error("it has {found} bytes of {expected}")]
    Length {
        /// By the head.
        expected: u64,
        /// Of the file.
        found: u64,
    },
    /// A frame cannot be read, and a later one can.
    #[error("the frame at byte {at} cannot be read, but the one at byte {later} can")]
    Frame {
        /// Where the damage is.
        at: u64,
        /// A frame that was written later.
        later: u64,
    },
}

/// The head of a segment of `length` bytes.
pub(in crate::storage) fn encode_head(name: Name, length: u64) -> Vec<u8> {
    let mut body = name.store.to_vec();
    body.extend_from_slice(&name.number.to_be_bytes());
    body.extend_from_slice(&length.to_be_bytes());
    let mut head = seal(MAGIC, VERSION, &body);
    head.resize(usize::try_from(HEAD_BYTES).unwrap_or_default(), 0);
    head
}

/// Bytes that a frame with a body of this many bytes takes.
pub(in crate::storage) fn frame_bytes(body: usize) -> u64 {
    ((FRAME_HEADER + body) as u64).next_multiple_of(ALIGNMENT)
}

/// Appends a frame that is to stand at `offset` of a segment. `write` appends its body.
pub(in crate::storage) fn encode_frame(
    name: Name,
    offset: u64,
    kind: Kind,
    write: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER];
    write(&mut frame);
    let (header, body) = frame.split_at_mut(FRAME_HEADER);
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let covered = [length, kind.number(), crc32fast::hash(body)];
    for (place, field) in header.chunks_exact_mut(4).zip(covered) {
        place.copy_from_slice(&field.to_be_bytes());
    }
    let crc = header_crc(name, offset, header.get(..COVERED).unwrap_or_default());
    header.get_mut(COVERED..).unwrap_or_default().copy_from_slice(&crc.to_be_bytes());
    let padded = frame.len().next_multiple_of(usize::try_from(ALIGNMENT).unwrap_or(1));
    frame.resize(padded, 0);
    frame
}

fn header_crc(name: Name, offset: u64, covered: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&name.store);
    hasher.update(&name.number.to_be_bytes());
    hasher.update(&offset.to_be_bytes());
    hasher.update(covered);
    hasher.finalize()
}

/// Reads a whole segment, which is `name` by the name of its file.
///
/// A frame that cannot be read ends the log if nothing after it can: the power was cut while it was
/// written. Whether that frame was acknowledged is for the guard file to say.
///
/// # Errors
///
/// Why it is not what was written.
pub(in crate::storage) fn read(name: Name, bytes: &[u8]) -> Result<Frames, Harm> {
    check_head(name, bytes)?;
    let mut frames = Vec::new();
    let mut end = HEAD_BYTES;
    while let Some(header) = header_at(name, bytes, end) {
        let Some(body) = header.body(bytes, end) else { break };
        frames.push(Frame { kind: header.kind, body: Bytes::copy_from_slice(body) });
        end += frame_bytes(body.len());
    }
    match header_after(name, bytes, end) {
        Some(later) => Err(Harm::Frame { at: end, later }),
        None => Ok(Frames { frames, end }),
    }
}

fn check_head(name: Name, bytes: &[u8]) -> Result<(), Harm> {
    let mut fields = Fields(unseal(MAGIC, VERSION, bytes).map_err(Harm::Head)?);
    let store = fields.array().map_err(Harm::Head)?;
    let number = fields.u64().map_err(Harm::Head)?;
    let expected = fields.u64().map_err(Harm::Head)?;
    if (Name { store, number }) != name {
        return Err(Harm::Elsewhere);
    }
    let found = bytes.len() as u64;
    if found != expected {
        return Err(Harm::Length { expected, found });
    }
    Ok(())
}

/// A header with a correct CRC.
struct Header {
    kind: Kind,
    length: usize,
    body_crc: u32,
}

impl Header {
    /// The body of the frame at `offset`, if it is whole.
    fn body<'a>(&self, bytes: &'a [u8], offset: u64) -> Option<&'a [u8]> {
        let from = usize::try_from(offset).ok()?.checked_add(FRAME_HEADER)?;
        let body = bytes.get(from..from.checked_add(self.length)?)?;
        (crc32fast::hash(body) == self.body_crc).then_some(body)
    }
}

fn header_at(name: Name, bytes: &[u8], offset: u64) -> Option<Header> {
    let bytes = bytes.get(usize::try_from(offset).ok()?..)?;
    let (covered, rest) = bytes.split_at_checked(COVERED)?;
    let mut fields = Fields(covered);
    let length = usize::try_from(fields.u32().ok()?).ok()?;
    let kind = Kind::of(fields.u32().ok()?)?;
    let body_crc = fields.u32().ok()?;
    let crc = Fields(rest).u32().ok()?;
    (crc == header_crc(name, offset, covered)).then_some(Header { kind, length, body_crc })
}

/// The first place after `offset` with a valid header.
fn header_after(name: Name, bytes: &[u8], offset: u64) -> Option<u64> {
    let mut places =
        (offset + ALIGNMENT..bytes.len() as u64).step_by(usize::try_from(ALIGNMENT).ok()?);
    places.find(|place| header_at(name, bytes, *place).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name { store: [7; 16], number: 3 };
    const LENGTH: u64 = 4096;

    /// A segment with frames of these bodies, and where each of them begins.
    fn segment(name: Name, bodies: &[&[u8]]) -> (Vec<u8>, Vec<u64>) {
        let mut bytes = encode_head(name, LENGTH);
        let mut places = Vec::new();
        for body in bodies {
            let at = bytes.len() as u64;
            places.push(at);
            bytes.extend(encode_frame(name, at, Kind::Append, |out| out.extend_from_slice(body)));
        }
        bytes.resize(usize::try_from(LENGTH).unwrap(), 0);
        (bytes, places)
    }

    fn bodies(frames: &Frames) -> Vec<&[u8]> {
        frames.frames.iter().map(|frame| &frame.body[..]).collect()
    }

    const BODIES: [&[u8]; 3] = [b"a", b"the second frame", b"and a third one"];

    #[test]
    fn frames_come_back_in_order_up_to_their_end() {
        let (bytes, places) = segment(NAME, &BODIES);
        let read = read(NAME, &bytes).unwrap();
        assert_eq!(bodies(&read), BODIES);
        assert_eq!(read.end, places[2] + frame_bytes(BODIES[2].len()));
        assert!(places.iter().all(|place| place.is_multiple_of(ALIGNMENT)));
    }

    #[test]
    fn a_last_frame_that_is_cut_off_anywhere_ends_the_log_before_it() {
        let (whole, places) = segment(NAME, &BODIES);
        let (from, body) = (usize::try_from(places[2]).unwrap(), BODIES[2].len());
        for cut in from..from + FRAME_HEADER + body {
            let mut bytes = whole.clone();
            bytes[cut..].fill(0);
            let read = read(NAME, &bytes).unwrap();
            assert_eq!(
                (bodies(&read), read.end),
                (BODIES[..2].to_vec(), places[2]),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn a_flipped_bit_in_any_frame_but_the_last_is_damage() {
        let (whole, places) = segment(NAME, &BODIES);
        for (frame, body) in BODIES[..2].iter().enumerate() {
            let from = usize::try_from(places[frame]).unwrap();
            for bit in from * 8..(from + FRAME_HEADER + body.len()) * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let harm = Harm::Frame { at: places[frame], later: places[frame + 1] };
                assert_eq!(read(NAME, &bytes), Err(harm), "bit {bit}");
            }
        }
    }

    /// A recycled file still has the frames of its earlier use.
    #[test]
    fn frames_of_an_earlier_use_count_for_nothing() {
        let (mut bytes, _) = segment(Name { number: 2, ..NAME }, &BODIES);
        bytes[..usize::try_from(HEAD_BYTES).unwrap()].copy_from_slice(&encode_head(NAME, LENGTH));
        assert_eq!(read(NAME, &bytes), Ok(Frames { frames: Vec::new(), end: HEAD_BYTES }));

        let first = encode_frame(NAME, HEAD_BYTES, Kind::Append, |out| out.push(b'z'));
        let from = usize::try_from(HEAD_BYTES).unwrap();
        bytes[from..from + first.len()].copy_from_slice(&first);
        assert_eq!(bodies(&read(NAME, &bytes).unwrap()), [b"z"]);
    }

    #[test]
    fn a_segment_in_the_wrong_place_or_of_the_wrong_length_is_refused() {
        let (bytes, _) = segment(NAME, &BODIES);
        let other = Name { store: [8; 16], ..NAME };
        assert_eq!(read(other, &bytes), Err(Harm::Elsewhere));
        assert_eq!(read(Name { number: 4, ..NAME }, &bytes), Err(Harm::Elsewhere));
        let short = read(NAME, &bytes[..4000]);
        assert_eq!(short, Err(Harm::Length { expected: LENGTH, found: 4000 }));
        let mut newer = seal(MAGIC, 2, b"whatever it is");
        newer.resize(bytes.len(), 0);
        let version = DecodeError::Version { found: 2, known: 1 };
        assert_eq!(read(NAME, &newer), Err(Harm::Head(version)));
    }
}
