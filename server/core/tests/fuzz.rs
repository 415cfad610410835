//! Mutated bytes for everything that the core decodes: an error, or what was written, never a panic
//! (I28), and never memory for what the bytes only claim.

use holdfast_core::{
    ACCESS_NAME_BYTES_MAX, AccessName, Applied, Batch, Command, Identity, Label, LockName,
    LockTable, LogIndex, NAME_BYTES_MAX, NamePrefix, Need, SNAPSHOT_VERSION, SessionId,
};
use holdfast_fuzz::{Outcome, Target};

mod support;
use support::{
    TENURE, acquire, acquire_many, batch, busy_table, bytes_of, cancel, claim, content_of,
    exclusive, forge, import, open, put_to_work, release, release_some, scope, set_value, share,
    some_batch,
};

/// A decoded command takes more room than its bytes, and a growing vector twice that for a moment;
/// applying the command writes to a copy of the shards it touches.
const PER_BYTE: u64 = 128;
const BESIDES: u64 = 512 << 10;

fn batches() -> Vec<Vec<u8>> {
    let busy = vec![
        vec![claim(2, 11, "a", "old/1"), import("old/1", &["i", "n"], &["y"])],
        vec![acquire(3, 9, "a"), release_some(3, 6, &["y"]), set_value(3, 10, 6, "y", b"done")],
        vec![acquire_many(1, 9, exclusive(&["s", "y", "n"]), Need::Any { min: 0 }), cancel(1, 1)],
        vec![share(1, 7, "s"), cancel(2, 6), release(2, 4), release(3, 2)],
        vec![Command::ExpireSession { session: SessionId::new(3), tenure: TENURE }],
        vec![
            Command::Resume { scope: scope("v/"), epoch: 1 },
            Command::RaiseEpoch { scope: scope("u/"), epoch: 6 },
            Command::Suspend { scope: scope("v/") },
            acquire_many(1, 13, exclusive(&["v/1", "v/3"]), Need::All),
        ],
        vec![
            Command::RemoveScope { scope: scope("u/") },
            Command::SetScope { scope: scope("u/") },
            Command::SetScope { scope: scope("w") },
        ],
        vec![Command::CloseSession { session: SessionId::new(1) }, open(), acquire(5, 1, "a")],
    ];
    let busy = busy.into_iter().map(|commands| batch(commands).encode());
    busy.chain([some_batch().encode(), batch(Vec::new()).encode()]).collect()
}

/// The kinds of the last outcomes, without names and numbers.
fn kinds(applied: &[Applied]) -> String {
    const LAST: usize = 2;
    let kind = |one: &Applied| match &one.outcome {
        Ok(answer) => format!("{answer:?}").chars().take_while(char::is_ascii_alphabetic).collect(),
        Err(rejection) => format!("{:?}", std::mem::discriminant(rejection)),
    };
    applied.iter().rev().take(LAST).map(kind).collect::<Vec<String>>().join(" ")
}

/// A batch that decodes encodes to the same bytes, gets an outcome for each command, and leaves a
/// consistent table (I16, I28).
#[test]
fn no_batch_brings_a_table_down() {
    let table = busy_table();
    Target::new("batches", batches()).memory(PER_BYTE, BESIDES).run(|bytes| {
        let batch = match Batch::decode(bytes) {
            Ok(batch) => batch,
            Err(error) => return Outcome::refused(&error),
        };
        assert_eq!(batch.encode(), bytes);
        let (mut table, mut applied) = (table.clone(), Vec::new());
        match table.apply_batch(LogIndex::new(5), TENURE, &batch, &mut applied) {
            Ok(()) => assert_eq!(applied.len(), batch.commands.len()),
            Err(fault) => return Outcome::refused(&fault),
        }
        table.check().unwrap();
        Outcome::came_to(kinds(&applied))
    });
}

#[test]
fn no_snapshot_brings_a_reader_down() {
    let seeds = [bytes_of(&busy_table()), bytes_of(&LockTable::new())];
    Target::new("snapshots", seeds).memory(PER_BYTE, BESIDES).run(|bytes| {
        let read = LockTable::read_from(&mut &*bytes);
        if let Ok(table) = &read {
            let written = bytes_of(table);
            // The table writes an older form as the present one.
            let same = if is_of_this_version(bytes) { bytes.to_vec() } else { again(&written) };
            assert_eq!(written, same);
        }
        Outcome::of(&read)
    });
}

fn is_of_this_version(snapshot: &[u8]) -> bool {
    snapshot.get(8..10) == Some(&SNAPSHOT_VERSION.to_le_bytes()[..])
}

fn again(snapshot: &[u8]) -> Vec<u8> {
    LockTable::read_from(&mut &*snapshot).map(|table| bytes_of(&table)).unwrap_or_default()
}

/// Every checksum is right, whatever the content. A forged snapshot is refused, or it is a table
/// that is written as the same bytes and still works (I17).
#[test]
fn no_forged_snapshot_brings_a_table_down() {
    let seeds = [&busy_table(), &LockTable::new()].map(|table| content_of(&bytes_of(table)));
    Target::new("snapshot-contents", seeds).memory(PER_BYTE, BESIDES).run(|content| {
        if content.is_empty() {
            // An empty block is the end of the blocks.
            return Outcome::refused(&"empty");
        }
        let bytes = forge(content);
        let read = LockTable::read_from(&mut bytes.as_slice());
        let outcome = Outcome::of(&read);
        if let Ok(table) = read {
            assert_eq!(bytes_of(&table), bytes);
            put_to_work(table);
        }
        outcome
    });
}

/// The rule for the name of a role or a token, said once more.
fn is_access_name(text: &str) -> bool {
    (1..=ACCESS_NAME_BYTES_MAX).contains(&text.len()) && Label::parse(text).is_ok()
}

/// A parsed name has exactly the given bytes, or parsing fails (DESIGN §6).
#[test]
fn no_name_is_taken_that_breaks_a_rule() {
    let seeds = ["orders/42", "a", "ключ/🔑", "jobs\u{202e}", "a\nb", "cn:ops", "uri:spiffe://a/b"]
        .map(Into::into);
    Target::new("names", seeds).memory(PER_BYTE, 4 << 10).run(|bytes| {
        let name = LockName::parse_bytes(bytes);
        if let Ok(name) = &name {
            assert_eq!(name.as_str().as_bytes(), bytes);
            assert!((1..=NAME_BYTES_MAX).contains(&bytes.len()));
            assert!(!name.as_str().chars().any(char::is_control));
        }
        if let Ok(text) = std::str::from_utf8(bytes) {
            let _ = Label::parse(text);
            if let Ok(identity) = Identity::parse(text) {
                assert_eq!(identity.as_str(), text);
            }
            if let Ok(prefix) = NamePrefix::parse(text) {
                assert!(prefix.as_str() == text && prefix.covers(text));
            }
            assert_eq!(AccessName::parse(text).is_ok(), is_access_name(text));
        }
        Outcome::of(&name)
    });
}
