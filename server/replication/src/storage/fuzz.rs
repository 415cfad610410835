//! Mutated bytes for everything that is read from a data folder. Each yields a named error or what
//! was written, and no memory is allocated for sizes that bytes only claim. Checksums keep blind
//! damage out, so the bytes behind them are forged as well.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_fuzz::{Outcome, Target, script};

use super::guard::{self, ClusterId, GuardState, Identity, Member, Stage};
use super::record::{
    DecodeError, Fields, LogId, Record, RecordKind, StoredVote, decode_group, encode_record,
    forge_record, put_log_id, put_vote, seal, take_log_id, take_vote, unseal,
};
use super::snapshot;

const ID: LogId = LogId { term: 3, node_id: 0, index: 7 };
const VOTE: StoredVote = StoredVote { term: 3, node_id: Some(2), committed: true };

fn record(index: u64, kind: RecordKind, payload: &'static [u8]) -> Record {
    Record { log_id: LogId { index, ..ID }, kind, payload: Bytes::from_static(payload) }
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        encode_record(record, &mut bytes);
    }
    bytes
}

fn records() -> Vec<Record> {
    vec![
        record(7, RecordKind::Blank, b""),
        record(8, RecordKind::Batch, b"some commands"),
        record(9, RecordKind::Membership, b"three members"),
    ]
}

/// What is read is written back as the same bytes.
fn read_group(bytes: &[u8]) -> Outcome {
    let group = decode_group(&Bytes::copy_from_slice(bytes));
    if let Ok(records) = &group {
        assert_eq!(encoded(records), bytes);
    }
    Outcome::of(&group)
}

#[test]
fn no_group_of_records_brings_a_reader_down() {
    let seeds = [encoded(&records()), encoded(&records()[1..2])];
    Target::new("record-groups", seeds).memory(16, 4 << 10).run(read_group);
}

/// Each step is a record with a correct checksum: its kind, then its fields and its payload.
#[test]
fn no_forged_record_brings_a_reader_down() {
    let mut seed = Vec::new();
    for (index, kind) in [(7, 0), (8, 1), (9, 2)] {
        let mut fields = Vec::new();
        put_log_id(LogId { index, ..ID }, &mut fields);
        script::push(&mut seed, kind, &[&fields[..], b"payload"].concat());
    }
    Target::new("forged-records", [seed]).memory(16, 16 << 10).run(|bytes| {
        let mut group = Vec::new();
        for (kind, fields) in script::steps(bytes) {
            forge_record(kind, fields, &mut group);
        }
        read_group(&group)
    });
}

/// The marks in sled: a vote, a log id, each with its own frame.
#[test]
fn no_mark_brings_a_reader_down() {
    const MAGIC: [u8; 4] = *b"HFMT";
    let (mut vote, mut id) = (Vec::new(), Vec::new());
    put_vote(VOTE, &mut vote);
    put_log_id(ID, &mut id);
    let seeds = [vote.clone(), id, seal(MAGIC, 1, &vote)];
    Target::new("marks", seeds).memory(4, 4 << 10).run(|bytes| {
        let whole = unseal(MAGIC, 1, bytes);
        let sealed = seal(MAGIC, 1, bytes);
        let body = unseal(MAGIC, 1, &sealed).unwrap();
        assert_eq!(body, bytes);
        let vote = take_vote(&mut Fields(body));
        let _ = take_log_id(&mut Fields(body));
        if let Ok(vote) = vote {
            let mut again = Vec::new();
            put_vote(vote, &mut again);
            assert_eq!(take_vote(&mut Fields(&again)), Ok(vote));
        }
        Outcome::of(&whole.and_then(|body| take_vote(&mut Fields(body))).or(vote))
    });
}

fn guard_state() -> GuardState {
    let member = |id| Member { id, address: format!("node-{id}:7421").into_bytes() };
    let identity = Identity {
        node_id: 2,
        stage: Stage::Initialised,
        cluster: Some(ClusterId([9; 16])),
        incarnation: 0,
        members: (1..=3).map(member).collect(),
    };
    GuardState {
        created: true,
        has_segments: true,
        store_id: [5; 16],
        identity,
        vote: Some(VOTE),
        durable: Some(ID),
        snapshot: None,
    }
}

/// A guard file as it is written, and one with a correct frame around a forged first slot.
#[test]
fn no_guard_file_brings_a_reader_down() {
    let fresh = GuardState { vote: None, durable: None, ..guard_state() };
    let seeds = [guard::encode(4, &guard_state()), guard::encode(1, &fresh)];
    let bodies = seeds.clone().map(|slot| guard::body(&slot).unwrap().to_vec());
    let path = Path::new("guard");
    let seeds = seeds.into_iter().chain(bodies);
    Target::new("guard-files", seeds).memory(16, 128 << 10).run(|bytes| {
        let _ = guard::choose_slot(bytes, path);
        let forged = guard::forge(bytes);
        let chosen = guard::choose_slot(&forged, path);
        if let Ok((sequence, state)) = &chosen {
            let again = guard::encode(*sequence, state);
            let (_, read) = guard::choose_slot(&again, path).unwrap();
            assert_eq!(read, *state);
        }
        Outcome::of(&chosen.map(drop).or_else(|error| match guard::choose_slot(bytes, path) {
            Ok(_) => Ok(()),
            Err(_) => Err(error),
        }))
    });
}

/// A whole snapshot file as it is written, and one whose head is forged.
#[test]
fn no_snapshot_file_brings_a_reader_down() {
    let head = snapshot::encode_header(Some(ClusterId([9; 16])), 0, Some(ID), b"three members");
    let whole = snapshot::forge(&head, b"the table, as bytes");
    let body = snapshot::header_body(&head).unwrap().to_vec();
    let file = tempfile::tempfile().unwrap();
    Target::new("snapshot-files", [whole, body]).memory(16, 512 << 10).run(|bytes| {
        let forged_head = snapshot::forge(&snapshot::seal_header(bytes), b"the table, as bytes");
        let read = |bytes: &[u8]| {
            file.set_len(0).unwrap();
            file.write_all_at(bytes, 0).unwrap();
            snapshot::check_file(Arc::new(file.try_clone().unwrap()), Path::new("a.snap")).map(drop)
        };
        let as_it_is = read(bytes);
        let forged = read(&forged_head);
        Outcome::of(&as_it_is.or(forged))
    });
}

/// Every frame distinguishes an unknown version from damage.
#[test]
fn a_newer_frame_is_told_from_a_damaged_one() {
    let newer = seal(*b"HFMT", 2, b"something");
    let told = unseal(*b"HFMT", 1, &newer);
    assert_eq!(told, Err(DecodeError::Version { found: 2, known: 1 }));
}
