//! Mutated segments: whatever stands in the file, the log is read or refused by a named error.

use holdfast_fuzz::{Outcome, Target, script};

use super::frame::{Name, encode_head};
use super::*;
use crate::storage::record::{RecordKind, forge_record, put_log_id};

const NAME: Name = Name { store: [5; 16], number: 1 };
const LENGTH: usize = 2048;

fn id(index: u64) -> LogId {
    LogId { term: 3, node_id: 1, index }
}

fn segment(frames: &[u8]) -> Vec<u8> {
    let mut bytes = encode_head(NAME, LENGTH as u64);
    bytes.extend_from_slice(frames);
    bytes.resize(LENGTH, 0);
    bytes
}

/// The records of a log of this segment alone, which follow each other.
fn read_log(bytes: &[u8], purged: Option<LogId>) -> Result<(), String> {
    let frames = read(NAME, bytes).map_err(|harm| harm.to_string())?;
    let mut log = Replay::new(purged);
    log.ended = false;
    for frame in &frames.frames {
        log.replay(frame).map_err(|error| error.to_string())?;
    }
    let records = log.needed(Path::new("log")).map_err(|error| error.to_string())?;
    let first = purged.map_or(0, |purged| purged.index + 1);
    for (expected, record) in (first..).zip(records) {
        assert_eq!(record.log_id.index, expected);
    }
    Ok(())
}

fn outcome(bytes: &[u8]) -> Outcome {
    Outcome::of(&read_log(bytes, None).and_then(|()| read_log(bytes, Some(id(1)))))
}

/// The bytes after a head that is right.
#[test]
fn no_segment_brings_a_reader_down() {
    let records: Vec<_> = (0..4)
        .map(|index| Record {
            log_id: id(index),
            kind: RecordKind::Batch,
            payload: Bytes::from_static(b"some commands"),
        })
        .collect();
    let entries = [Entry::Append(&records), Entry::Truncate(Some(2)), Entry::Append(&records[3..])];
    let mut frames = Vec::new();
    for entry in entries {
        let at = HEAD_BYTES + frames.len() as u64;
        frames.extend(encode_frame(NAME, at, entry.kind(), |out| entry.encode(out)));
    }
    Target::new("segments", [frames])
        .memory(16, 64 << 10)
        .run(|bytes| outcome(&segment(bytes.get(..LENGTH - 64).unwrap_or(bytes))));
}

/// Each step is a frame with correct checksums: a record, a truncation, anything, or the end.
#[test]
fn no_forged_frame_brings_a_reader_down() {
    let mut seed = Vec::new();
    for index in 0..3 {
        let mut fields = Vec::new();
        put_log_id(id(index), &mut fields);
        script::push(&mut seed, 0, &[&fields[..], b"payload"].concat());
    }
    script::push(&mut seed, 1, &[1, 0, 0, 0, 0, 0, 0, 0, 2]);
    script::push(&mut seed, 3, b"");
    Target::new("forged-frames", [seed]).memory(32, 64 << 10).run(|bytes| {
        let mut frames = Vec::new();
        for (kind, body) in script::steps(bytes) {
            let at = HEAD_BYTES + frames.len() as u64;
            frames.extend(match kind % 4 {
                0 => encode_frame(NAME, at, Kind::Append, |out| forge_record(1, body, out)),
                1 => encode_frame(NAME, at, Kind::Truncate, |out| out.extend_from_slice(body)),
                2 => encode_frame(NAME, at, Kind::Append, |out| out.extend_from_slice(body)),
                _ => encode_frame(NAME, at, Kind::End, |_| ()),
            });
        }
        frames.truncate(LENGTH - 64);
        outcome(&segment(&frames))
    });
}
