//! The contents of the log: ids, records, the vote, and their bytes on disk.
//!
//! Every stored item carries its own magic, version and checksum, so that we detect a flipped bit
//! or a cut, whatever sled makes of it. The checksum is CRC-32 (IEEE) rather than CRC-32C: at the
//! sizes allowed here both find the same errors (every burst up to 32 bits, and any other damage
//! but one in 2^32), and one CRC in the dependency tree, sled's own, is enough.

use bytes::Bytes;

/// First bytes of a stored record.
const RECORD_MAGIC: [u8; 2] = *b"HR";
/// The only record format so far; a reader refuses any other.
const RECORD_VERSION: u8 = 1;
/// Bytes of a record before its payload: magic, version, kind, term, node, index, length, CRC.
pub(super) const RECORD_HEADER: usize = 36;
/// Offset of the checksum in the header; it covers everything but itself.
const CRC_AT: usize = 32;

/// Largest payload of one record, bytes.
///
/// [`LogStore::append`](super::LogStore::append) refuses a larger one before anything changes: a
/// commit stays well below the largest segment. The proposer bounds its batches well below it.
pub const MAX_PAYLOAD: usize = 512 << 10;

/// The place of a record in the replicated log.
///
/// The order is Raft's: by term, then by the node that led, then by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// Term in which the record was proposed.
    pub term: u64,
    /// The node that led that term.
    pub node_id: u64,
    /// Position in the log, without gaps.
    pub index: u64,
}

/// The kind of a record's payload; the store does not look inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// No payload: a leader's first entry.
    Blank,
    /// A batch of commands.
    Batch,
    /// A change of members.
    Membership,
}

impl RecordKind {
    fn to_byte(self) -> u8 {
        match self {
            Self::Blank => 0,
            Self::Batch => 1,
            Self::Membership => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Blank),
            1 => Some(Self::Batch),
            2 => Some(Self::Membership),
            _ => None,
        }
    }
}

/// One entry of the replicated log. Cloning shares the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log.
    pub log_id: LogId,
    /// The kind of the payload.
    pub kind: RecordKind,
    /// Opaque here; at most [`MAX_PAYLOAD`] bytes.
    pub payload: Bytes,
}

/// The vote of this node, as Raft knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredVote {
    /// The term voted in.
    pub term: u64,
    /// The node that got the vote; `None` if the term was seen but no vote was given.
    pub node_id: Option<u64>,
    /// Whether a quorum is known to have granted that node the term.
    pub committed: bool,
}

impl StoredVote {
    /// Whether this vote can follow `earlier` without taking anything back (I20).
    ///
    /// Within a term a node gives one vote. But a node that voted for one candidate and then learns
    /// that the term elected another saves that. This is no second vote: the quorum existed without
    /// it.
    pub fn covers(&self, earlier: &Self) -> bool {
        if self.term != earlier.term {
            return self.term > earlier.term;
        }
        let same_node = earlier.node_id.is_none() || earlier.node_id == self.node_id;
        if same_node {
            self.committed || !earlier.committed
        } else {
            self.committed && !earlier.committed
        }
    }
}

/// Why bytes differ from what was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside an item.
    #[error("cut off")]
    CutOff,
    /// The first bytes are not those of Holdfast.
    #[error("not a Holdfast record")]
    Magic,
    /// Written by a newer release.
    #[error("format version {found}, this release reads {known}")]
    Version {
        /// The version that the item names.
        found: u64,
        /// The highest this release reads.
        known: u64,
    },
    /// The checksum does not match: a bit changed since it was written.
    #[error("checksum mismatch")]
    Checksum,
    /// The checksum matches but the record does not follow the one before it.
    #[error("log index {found} stands where {expected} belongs")]
    Gap {
        /// The index that should stand there.
        expected: u64,
        /// The index that stands there.
        found: u64,
    },
    /// The checksum matches but a field has no meaning in this version.
    #[error("unknown {field} {value}")]
    Field {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Reads fixed-size fields from the front of a slice; every step may find the slice cut off.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(DecodeError::CutOff)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::CutOff)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A byte string after its length in four bytes.
    pub(super) fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()?;
        self.bytes(usize::try_from(length).map_err(|_| DecodeError::CutOff)?)
    }
}

/// Appends the stored form of `record` to `out`.
pub(super) fn encode_record(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&RECORD_MAGIC);
    out.push(RECORD_VERSION);
    out.push(record.kind.to_byte());
    put_log_id(record.log_id, out);
    put_length(record.payload.len(), out);
    let crc = record_crc(out.get(start..).unwrap_or_default(), &record.payload);
    out.extend_from_slice(&crc.to_be_bytes());
    out.extend_from_slice(&record.payload);
}

/// Bytes that [`encode_record`] appends for `record`.
pub(super) fn encoded_len(record: &Record) -> usize {
    RECORD_HEADER + record.payload.len()
}

/// Reads one record from the front of `fields`. The payload is a slice of `whole`, not a copy.
fn decode_record(whole: &Bytes, fields: &mut Fields<'_>) -> Result<Record, DecodeError> {
    let header = fields.0;
    if fields.array::<2>()? != RECORD_MAGIC {
        return Err(DecodeError::Magic);
    }
    let version = fields.byte()?;
    let kind = fields.byte()?;
    let log_id = take_log_id(fields)?;
    let length = usize::try_from(fields.u32()?).map_err(|_| DecodeError::CutOff)?;
    let crc = fields.u32()?;
    let payload = fields.bytes(length)?;
    if record_crc(header.get(..CRC_AT).unwrap_or_default(), payload) != crc {
        return Err(DecodeError::Checksum);
    }
    if version != RECORD_VERSION {
        return Err(DecodeError::Version { found: version.into(), known: RECORD_VERSION.into() });
    }
    let unknown = DecodeError::Field { field: "record kind", value: kind.into() };
    let kind = RecordKind::from_byte(kind).ok_or(unknown)?;
    Ok(Record { log_id, kind, payload: whole.slice_ref(payload) })
}

/// Reads the records of one group, checking that their indices follow each other.
///
/// # Errors
///
/// The first damage or gap found.
pub(super) fn decode_group(value: &Bytes) -> Result<Vec<Record>, DecodeError> {
    let mut fields = Fields(value);
    let mut records: Vec<Record> = Vec::new();
    while !fields.0.is_empty() {
        let record = decode_record(value, &mut fields)?;
        let found = record.log_id.index;
        let expected = records.last().map_or(found, |last| last.log_id.index.saturating_add(1));
        if found != expected {
            return Err(DecodeError::Gap { expected, found });
        }
        records.push(record);
    }
    Ok(records)
}

pub(super) fn put_log_id(id: LogId, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.term.to_be_bytes());
    out.extend_from_slice(&id.node_id.to_be_bytes());
    out.extend_from_slice(&id.index.to_be_bytes());
}

pub(super) fn take_log_id(fields: &mut Fields<'_>) -> Result<LogId, DecodeError> {
    Ok(LogId { term: fields.u64()?, node_id: fields.u64()?, index: fields.u64()? })
}

pub(super) fn put_vote(vote: StoredVote, out: &mut Vec<u8>) {
    out.extend_from_slice(&vote.term.to_be_bytes());
    out.push(u8::from(vote.node_id.is_some()));
    out.extend_from_slice(&vote.node_id.unwrap_or_default().to_be_bytes());
    out.push(u8::from(vote.committed));
}

pub(super) fn take_vote(fields: &mut Fields<'_>) -> Result<StoredVote, DecodeError> {
    let term = fields.u64()?;
    let voted = fields.byte()? != 0;
    let node_id = fields.u64()?;
    let committed = fields.byte()? != 0;
    Ok(StoredVote { term, node_id: voted.then_some(node_id), committed })
}

/// Appends a length in four bytes; all stored items are far smaller than 4 GiB.
pub(super) fn put_length(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

fn record_crc(header: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(payload);
    hasher.finalize()
}

/// Frames a small item (vote, mark, guard slot): magic, version, length, body, checksum.
pub(super) fn seal(magic: [u8; 4], version: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 16);
    out.extend_from_slice(&magic);
    out.extend_from_slice(&version.to_be_bytes());
    put_length(body.len(), &mut out);
    out.extend_from_slice(body);
    let crc = crc32fast::hash(&out);
    out.extend_from_slice(&crc.to_be_bytes());
    out
}

/// Reads what [`seal`] framed. Bytes after it are ignored.
///
/// The checksum is checked before the version, so that only an intact item is called newer.
///
/// # Errors
///
/// What is wrong with the frame. The body is returned only if the whole frame is right.
pub(super) fn unseal(magic: [u8; 4], version: u32, bytes: &[u8]) -> Result<&[u8], DecodeError> {
    let mut fields = Fields(bytes);
    if fields.array::<4>()? != magic {
        return Err(DecodeError::Magic);
    }
    let found = fields.u32()?;
    let body = fields.string()?;
    let covered = bytes.get(..body.len() + 12).ok_or(DecodeError::CutOff)?;
    if fields.u32()? != crc32fast::hash(covered) {
        return Err(DecodeError::Checksum);
    }
    if found != version {
        return Err(DecodeError::Version { found: found.into(), known: version.into() });
    }
    Ok(body)
}

/// A record of `kind` with a correct checksum, from the bytes in `fields`: a log id, and the
/// payload.
#[cfg(test)]
pub(super) fn forge_record(kind: u8, fields: &[u8], out: &mut Vec<u8>) {
    const LOG_ID_BYTES: usize = 24;
    let mut fields = fields.to_vec();
    fields.resize(fields.len().max(LOG_ID_BYTES), 0);
    let (log_id, payload) = fields.split_at(LOG_ID_BYTES);
    let mut header = [&RECORD_MAGIC[..], &[RECORD_VERSION, kind], log_id].concat();
    put_length(payload.len(), &mut header);
    let crc = record_crc(&header, payload);
    out.extend_from_slice(&header);
    out.extend_from_slice(&crc.to_be_bytes());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::super::writer::encode_vote;
    use super::*;

    fn group() -> Vec<u8> {
        let mut bytes = Vec::new();
        for index in 7..10 {
            let log_id = LogId { term: 3, node_id: 2, index };
            let payload = Bytes::from(vec![0x5a; 20]);
            encode_record(&Record { log_id, kind: RecordKind::Batch, payload }, &mut bytes);
        }
        bytes
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_group_is_found() {
        let good = group();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_group(&Bytes::from(bytes)).is_err(), "bit {bit}");
        }
    }

    /// A cut between two records is not visible here: the next group, or the guard, shows the gap.
    #[test]
    fn a_group_that_ends_inside_a_record_is_found() {
        let good = group();
        let record = RECORD_HEADER + 20;
        for length in (1..good.len()).filter(|length| !length.is_multiple_of(record)) {
            let cut = Bytes::copy_from_slice(&good[..length]);
            assert_eq!(decode_group(&cut), Err(DecodeError::CutOff), "{length}");
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_told_by_its_version() {
        let mut bytes = group();
        bytes[2] = 2;
        let crc = record_crc(&bytes[..CRC_AT], &[0x5a; 20]);
        bytes[CRC_AT..RECORD_HEADER].copy_from_slice(&crc.to_be_bytes());
        let error = decode_group(&Bytes::from(bytes));
        assert_eq!(error, Err(DecodeError::Version { found: 2, known: 1 }));
    }

    #[test]
    fn a_group_with_a_hole_is_refused() {
        let mut bytes = group();
        let record = RECORD_HEADER + 20;
        bytes.drain(record..2 * record);
        let error = decode_group(&Bytes::from(bytes));
        assert_eq!(error, Err(DecodeError::Gap { expected: 8, found: 9 }));
    }

    /// Each kind of record, and the frame around a vote, as earlier releases stored them.
    #[test]
    fn what_earlier_releases_stored_is_read_and_written_as_the_same_bytes() {
        let kinds = [RecordKind::Blank, RecordKind::Batch, RecordKind::Membership];
        let mut records = Vec::new();
        for (index, kind) in (7..).zip(kinds) {
            let payload = if kind == RecordKind::Blank { "" } else { "payload" };
            let log_id = LogId { term: 3, node_id: 2, index };
            records.push(Record { log_id, kind, payload: Bytes::from(payload) });
        }
        let mut now = Vec::new();
        for record in &records {
            encode_record(record, &mut now);
        }
        let vote = encode_vote(StoredVote { term: 9, node_id: Some(2), committed: true });

        let now = format!("group of records: {}\nvote: {}\n", hex::encode(&now), hex::encode(vote));
        assert_eq!(include_str!("../../../../tests/fixtures/0.1/stored.txt"), now);
        assert_eq!(include_str!("../../../../tests/fixtures/0.2/stored.txt"), now);
        let kept = now.lines().next().and_then(|line| line.rsplit(' ').next());
        let kept = Bytes::from(hex::decode(kept.unwrap()).unwrap());
        assert_eq!(decode_group(&kept), Ok(records));
    }

    fn vote(term: u64, node_id: u64, committed: bool) -> StoredVote {
        StoredVote { term, node_id: Some(node_id), committed }
    }

    #[test]
    fn within_a_term_a_second_vote_is_refused_and_an_election_by_others_is_noted() {
        assert!(!vote(3, 2, false).covers(&vote(3, 1, false)), "a second vote");
        assert!(vote(3, 2, true).covers(&vote(3, 1, false)), "the others elected node 2");
        assert!(!vote(3, 1, false).covers(&vote(3, 2, true)), "a vote after the election");
        assert!(!vote(3, 1, true).covers(&vote(3, 2, true)), "a second leader of the term");
        assert!(!vote(2, 2, true).covers(&vote(3, 1, false)), "an earlier term");
    }
}
