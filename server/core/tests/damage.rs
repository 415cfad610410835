//! Damaged and forged bytes: an error that names the damage, never a panic, never a table that did
//! not exist.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::PathBuf;

use holdfast_core::{
    Batch, COMMAND_VERSION, COMMAND_VERSION_OLDEST, Command, DecodeError, LockTable, RequestId,
    SNAPSHOT_VERSION, SessionId, SnapshotError,
};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

mod support;
use support::{
    MAGIC_AND_VERSION, TENURE, apply, batch, busy_table, bytes_of, content_of, forge, identity,
    put_to_work, some_batch, table_before_imports, table_before_limit, table_before_permits,
    table_before_restores, table_before_rules, table_before_scopes, table_before_work,
};

/// Reads a batch. An accepted one must encode to the same bytes, and apply to a busy table without
/// a panic (I28).
fn read_batch(bytes: &[u8]) -> Result<(), DecodeError> {
    let read = Batch::decode(bytes)?;
    assert_eq!(read.encode(), bytes);
    apply(&mut busy_table(), 5, read.commands);
    Ok(())
}

#[test]
fn a_batch_cut_off_anywhere_is_damaged() {
    let bytes = some_batch().encode();
    assert_eq!(read_batch(&bytes), Ok(()));
    for len in 0..bytes.len() {
        let read = read_batch(&bytes[..len]);
        assert!(matches!(read, Err(DecodeError::Damaged { .. })), "{len} bytes: {read:?}");
    }
}

#[test]
fn a_batch_with_any_bit_flipped_is_refused_or_is_another_batch() {
    let bytes = some_batch().encode();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let _ = read_batch(&bytes);
    }
}

#[test]
fn a_batch_with_bytes_left_over_is_damaged() {
    let mut bytes = some_batch().encode();
    bytes.push(0);
    assert!(matches!(read_batch(&bytes), Err(DecodeError::Damaged { .. })));
}

#[test]
fn random_bytes_are_never_read_as_a_batch_with_a_panic() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for _ in 0..20_000 {
        let len = rng.random_range(0..200);
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
        if let [low, high, ..] = bytes.as_mut_slice() {
            // A known version, so that the test reaches the rest.
            (*low, *high) = (2, 0);
        }
        let _ = read_batch(&bytes);
    }
}

#[test]
fn a_batch_that_claims_four_billion_commands_is_damaged() {
    let mut bytes = batch(Vec::new()).encode();
    let len = bytes.len();
    bytes[len - 4..].fill(0xff);
    assert!(matches!(read_batch(&bytes), Err(DecodeError::Damaged { .. })));
}

/// I29: a version that this build does not know is refused before it guesses at a single byte.
#[test]
fn a_batch_of_an_unknown_version_is_named_as_such() {
    let mut bytes = some_batch().encode();
    let found = COMMAND_VERSION + 1;
    bytes[..2].copy_from_slice(&found.to_le_bytes());
    let unknown = DecodeError::UnknownVersion { found, known: COMMAND_VERSION };
    assert_eq!(read_batch(&bytes), Err(unknown));
    bytes[..2].copy_from_slice(&[0, 0]);
    assert!(matches!(read_batch(&bytes), Err(DecodeError::Damaged { .. })));
}

/// Version 1 was never released: this build does not know its form, and the message names its
/// number.
#[test]
fn a_batch_from_before_the_first_release_is_named_as_such() {
    let mut bytes = some_batch().encode();
    bytes[..2].copy_from_slice(&[1, 0]);
    let old = DecodeError::OldVersion { found: 1, oldest: COMMAND_VERSION_OLDEST };
    let text = old.to_string();
    assert_eq!(read_batch(&bytes), Err(old));
    assert!(text.contains("version 1, written by a version before the first release"), "{text}");
}

#[test]
fn a_snapshot_cut_off_anywhere_is_cut_off() {
    let bytes = bytes_of(&busy_table());
    for len in 0..bytes.len() {
        let read = LockTable::read_from(&mut &bytes[..len]);
        assert!(matches!(read, Err(SnapshotError::CutOff)), "{len} bytes: {read:?}");
    }
}

#[test]
fn a_snapshot_with_any_bit_flipped_is_refused() {
    let bytes = bytes_of(&busy_table());
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(LockTable::read_from(&mut bytes.as_slice()).is_err(), "bit {bit}");
    }
}

#[test]
fn a_snapshot_with_bytes_behind_its_end_is_damaged() {
    let mut bytes = bytes_of(&busy_table());
    bytes.push(0);
    let read = LockTable::read_from(&mut bytes.as_slice());
    assert!(matches!(read, Err(SnapshotError::Damaged { .. })), "{read:?}");
}

#[test]
fn a_snapshot_of_an_unknown_version_is_named_as_such() {
    let mut bytes = bytes_of(&busy_table());
    bytes[8..10].copy_from_slice(&(SNAPSHOT_VERSION + 1).to_le_bytes());
    let read = LockTable::read_from(&mut bytes.as_slice());
    let known = SNAPSHOT_VERSION;
    let unknown = |found, build| found == known + 1 && build == known;
    assert!(
        matches!(read, Err(SnapshotError::UnknownVersion { found, known }) if unknown(found, known)),
        "{read:?}"
    );
}

/// The form of earlier builds, without imports (2), scopes (3), a limit of the table's bytes (4), rules (5),
/// work that is left (6), what a restore has left (7), or permits (8): an updated member continues from it.
#[test]
fn snapshots_of_earlier_versions_are_read() {
    let version_2 = include_bytes!("snapshots/version_2.bin").as_slice();
    let version_3 = include_bytes!("snapshots/version_3.bin").as_slice();
    let version_4 = include_bytes!("snapshots/version_4.bin").as_slice();
    let version_5 = include_bytes!("snapshots/version_5.bin").as_slice();
    let version_6 = include_bytes!("snapshots/version_6.bin").as_slice();
    let version_7 = include_bytes!("snapshots/version_7.bin").as_slice();
    let version_8 = include_bytes!("../../../tests/fixtures/0.3/table.snapshot").as_slice();
    for (mut before, same) in [
        (version_2, table_before_imports()),
        (version_3, table_before_scopes()),
        (version_4, table_before_limit()),
        (version_5, table_before_rules()),
        (version_6, table_before_work()),
        (version_7, table_before_restores()),
        (version_8, table_before_permits()),
    ] {
        let table = LockTable::read_from(&mut before).unwrap();
        assert_eq!(table.counts(), same.counts());
        assert_eq!(table.max_table_bytes(), same.max_table_bytes());
        assert!(table.session(SessionId::new(3)).is_some_and(|session| !session.imported));
        assert_eq!(table.scopes().count(), same.scopes().count());
        let now = bytes_of(&table);
        assert_eq!(now, bytes_of(&same));
        assert!(LockTable::read_from(&mut now.as_slice()).is_ok());
        put_to_work(table);
    }
}

/// Each command of the log and a table with every kind of entry, as earlier releases wrote them (I17,
/// I29).
#[test]
fn what_earlier_releases_wrote_is_read_and_means_the_same() {
    let of_0_1 = include_str!("../../../tests/fixtures/0.1/commands.txt");
    let of_0_2 = include_str!("../../../tests/fixtures/0.2/commands.txt");
    let of_0_3 = include_str!("../../../tests/fixtures/0.3/commands.txt");
    // The versions of commands that they knew.
    for (written, known) in [(of_0_1, 4), (of_0_2, 7), (of_0_3, 8)] {
        assert_means_the_same(written, known);
    }
    let of_0_1 = include_bytes!("../../../tests/fixtures/0.1/table.snapshot").as_slice();
    let of_0_2 = include_bytes!("../../../tests/fixtures/0.2/table.snapshot").as_slice();
    let of_0_3 = include_bytes!("../../../tests/fixtures/0.3/table.snapshot").as_slice();
    for (mut written, same) in [
        (of_0_1, table_before_limit()),
        (of_0_2, table_before_restores()),
        (of_0_3, table_before_permits()),
    ] {
        let table = LockTable::read_from(&mut written).unwrap();
        assert!(bytes_of(&table) == bytes_of(&same));
        put_to_work(table);
    }
}

/// Makes these among a release's fixtures (`tests/fixtures/README.md`) in the folder that `HOLDFAST_FIXTURES` names.
#[test]
#[expect(clippy::disallowed_methods, reason = "run by hand, once for a release")]
#[ignore = "makes fixtures of the release it is built from; only with HOLDFAST_FIXTURES"]
fn commands_and_table_of_this_release_are_left() {
    let Some(folder) = std::env::var_os("HOLDFAST_FIXTURES").map(PathBuf::from) else { return };
    let lines = lines_of_commands(u16::MAX).join("\n") + "\n";
    std::fs::write(folder.join("commands.txt"), lines).unwrap();
    std::fs::write(folder.join("table.snapshot"), bytes_of(&busy_table())).unwrap();
}

/// Each command of a version that was `known`.
fn lines_of_commands(known: u16) -> Vec<String> {
    let session = SessionId::new(1);
    let others = [
        Command::CloseSession { session },
        Command::ExpireSession { session, tenure: TENURE },
        Command::StopWaiting { session, request: RequestId::new(1) },
    ];
    let commands = some_batch().commands.into_iter();
    let known = commands.filter(|command| command.version() <= known);
    known.chain(others).map(line_of).collect()
}

#[expect(clippy::unwrap_used, reason = "a fixture that cannot be read fails its test")]
fn assert_means_the_same(written: &str, known: u16) {
    let kept: Vec<&str> = written.lines().filter(|line| !line.starts_with('#')).collect();
    let now = lines_of_commands(known);
    assert_eq!(kept, now, "the lines of today are:\n{}", now.join("\n"));
    for line in kept {
        let pairs = line.rsplit(' ').next().unwrap().as_bytes().chunks(2);
        let digits = pairs.map(|pair| std::str::from_utf8(pair).unwrap());
        let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        assert_eq!(Batch::decode(&bytes).unwrap().encode(), bytes, "{line}");
    }
}

/// A batch of one command as text: the command's name, and the bytes.
fn line_of(command: Command) -> String {
    let said = format!("{command:?}");
    let name = said.split([' ', '{']).next().unwrap_or_default().to_owned();
    let mut line = format!("{name}: ");
    for byte in batch(vec![command]).encode() {
        // Writing to a String cannot fail.
        let _ = write!(line, "{byte:02x}");
    }
    line
}

/// A member that does not know the commands for the limits or the rules does not know the version that stores
/// them, and may need a snapshot from a member that does (I29).
#[test]
fn a_table_is_written_as_the_first_version_knew_it_that_has_room_for_it() {
    assert_eq!(bytes_of(&table_before_limit()), include_bytes!("snapshots/version_4.bin"));
    assert_eq!(bytes_of(&table_before_rules()), include_bytes!("snapshots/version_5.bin"));
    assert_eq!(bytes_of(&table_before_work()), include_bytes!("snapshots/version_6.bin"));
    assert_eq!(bytes_of(&table_before_restores()), include_bytes!("snapshots/version_7.bin"));
    let of_0_3 = include_bytes!("../../../tests/fixtures/0.3/table.snapshot").as_slice();
    assert_eq!(bytes_of(&table_before_permits()), of_0_3);
    let with = bytes_of(&busy_table());
    assert_eq!(with[8..10], [9, 0]);
    let read = LockTable::read_from(&mut with.as_slice()).unwrap();
    assert_eq!(read.max_table_bytes(), Some(1 << 20));
    assert!(read.rules().are_on() && read.rules().tokens().count() == 1);
    let caller = read.session(SessionId::new(5)).map(|session| session.caller.identity.clone());
    assert_eq!(caller, Some(identity("cn:app")));
}

/// No table writes scopes twice or out of order.
#[test]
fn scopes_out_of_order_are_damage() {
    let content = content_of(&bytes_of(&busy_table()));
    let at = |text: &[u8]| content.windows(text.len()).position(|bytes| bytes == text).unwrap();
    let (of_u, of_v) = (at(b"\x02\0\0\0u/\x05\0\0\0"), at(b"\x02\0\0\0v/\x01\0\x01\x01"));
    let end = of_v + (of_v - of_u);
    let (u, v) = (&content[of_u..of_v], &content[of_v..end]);
    for harmed in [[v, u], [u, u]] {
        let content = [&content[..of_u], harmed[0], harmed[1], &content[end..]].concat();
        let read = LockTable::read_from(&mut forge(&content).as_slice());
        assert!(matches!(read, Err(SnapshotError::Damaged { .. })), "{read:?}");
    }
}

#[test]
fn a_snapshot_from_before_the_first_release_is_named_as_such() {
    let mut bytes = bytes_of(&busy_table());
    bytes[8..10].copy_from_slice(&[1, 0]);
    let read = LockTable::read_from(&mut bytes.as_slice());
    let old = matches!(read, Err(SnapshotError::OldVersion { found: 1, oldest: 2 }));
    assert!(old, "{read:?}");
    bytes[8..10].copy_from_slice(&[0, 0]);
    let read = LockTable::read_from(&mut bytes.as_slice());
    assert!(matches!(read, Err(SnapshotError::Damaged { .. })), "{read:?}");
}

#[test]
fn something_else_is_not_a_snapshot() {
    let read = LockTable::read_from(&mut b"#!/bin/sh\necho hello\n".as_slice());
    assert!(matches!(read, Err(SnapshotError::NotASnapshot)), "{read:?}");
}

#[test]
fn a_block_that_claims_four_gigabytes_is_refused_before_it_is_allocated() {
    let mut bytes = bytes_of(&busy_table());
    bytes[MAGIC_AND_VERSION..MAGIC_AND_VERSION + 4].fill(0xff);
    let read = LockTable::read_from(&mut bytes.as_slice());
    assert!(matches!(read, Err(SnapshotError::Damaged { .. })), "{read:?}");
}

#[test]
fn a_failing_disk_is_told_from_a_damaged_snapshot() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("input/output error"))
        }
    }
    let bytes = bytes_of(&busy_table());
    let read = LockTable::read_from(&mut bytes[..20].chain(Failing));
    assert!(matches!(read, Err(SnapshotError::Io(_))), "{read:?}");
}

/// Every checksum is right, but one byte of the content is not what a table wrote. Either an
/// invariant is found broken, or it is a table: then it is written as the same bytes, and still
/// works without a panic.
#[test]
fn forged_content_is_refused_or_is_a_table_that_works() {
    let content = content_of(&bytes_of(&busy_table()));
    let (mut inconsistent, mut accepted) = (0, 0);
    for at in 0..content.len() {
        for change in [1, 2, 0x80, 0xff] {
            let mut content = content.clone();
            content[at] ^= change;
            let bytes = forge(&content);
            match LockTable::read_from(&mut bytes.as_slice()) {
                Ok(table) => {
                    accepted += 1;
                    assert_eq!(bytes_of(&table), bytes);
                    put_to_work(table);
                }
                Err(SnapshotError::Inconsistent(_)) => inconsistent += 1,
                Err(SnapshotError::CutOff | SnapshotError::Damaged { .. }) => {}
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }
    assert!(inconsistent > 50 && accepted > 50, "{inconsistent} inconsistent, {accepted} accepted");
}

/// There is one way to write a table: values in another order, or twice, are refused (I17).
#[test]
fn values_out_of_order_are_damage() {
    let content = content_of(&bytes_of(&busy_table()));
    // A name, the bytes, a token, whether it is suspect, and an owner if it has one. The last two of them.
    let of =
        |name: &str, bytes: &[u8], owner: usize| 4 + name.len() + 4 + bytes.len() + 9 + 1 + owner;
    let sizes = [
        ("app/1", of("app/1", b"theirs", 4 + "cn:app".len())),
        ("y", of("y", b"half way", 0)),
        ("z", of("z", b"", 0)),
        ("i", of("i", b"v", 0)),
        ("j", of("j", b"v", 0)),
    ];
    let (mut rest, limits) = content.split_at(limits_at(&content));
    let mut last = || {
        let ends = sizes.iter().find_map(|(name, size)| {
            let (before, value) = rest.split_at_checked(rest.len() - size)?;
            let named = [&u32::try_from(name.len()).unwrap().to_le_bytes()[..], name.as_bytes()];
            value.starts_with(&named.concat()).then_some((before, value))
        });
        let (before, value) = ends.unwrap();
        rest = before;
        value
    };
    let (second, first) = (last(), last());
    assert!(LockTable::read_from(&mut forge(&content).as_slice()).is_ok());
    for harmed in [[rest, second, first, limits].concat(), [rest, first, first, limits].concat()] {
        let read = LockTable::read_from(&mut forge(&harmed).as_slice());
        assert!(matches!(read, Err(SnapshotError::Damaged { .. })), "{read:?}");
    }
}

/// Where the sequences begin: their number, and each with its name first.
#[expect(clippy::unwrap_used, reason = "a snapshot without them fails its test")]
fn closed_at(content: &[u8]) -> usize {
    let number = 2_u64.to_le_bytes();
    content.windows(number.len()).rposition(|bytes| bytes == number).unwrap()
}

/// Where the sequences begin, as the closed locks do.
fn sequences_at(content: &[u8]) -> usize {
    closed_at(&content[..closed_at(content)])
}

/// Where the limits of permits begin that were set for good, as the sequences do.
fn limits_at(content: &[u8]) -> usize {
    closed_at(&content[..sequences_at(content)])
}

/// As values are.
#[test]
fn limits_out_of_order_are_damage() {
    let content = content_of(&bytes_of(&busy_table()));
    let (kept, sequences) = content.split_at(sequences_at(&content));
    let (rest, limits) = kept.split_at(limits_at(&content) + 8);
    // The name, the limit, whether it goes, and whose it is.
    let of = |name: &str| 4 + name.len() + 4 + 1 + 4 + "cn:root".len();
    let first = if limits[4..].starts_with(b"gpu") { of("gpu") } else { of("idle") };
    let (first, second) = limits.split_at(first);
    out_of_order_is_damage(rest, (first, second), sequences);
}

/// As values are.
#[test]
fn sequences_out_of_order_are_damage() {
    let content = content_of(&bytes_of(&busy_table()));
    let (kept, closed) = content.split_at(closed_at(&content));
    let (rest, sequences) = kept.split_at(sequences_at(&content) + 8);
    // The name, the last number, and whose it is, which is nobody's.
    let of = |name: &str| 4 + name.len() + 8 + 4;
    let begins_with_orders = sequences[4..].starts_with(b"orders");
    let first = if begins_with_orders { of("orders") } else { of("invoices") };
    out_of_order_is_damage(rest, sequences.split_at(first), closed);
}

/// As values are.
#[test]
fn closed_locks_out_of_order_are_damage() {
    let content = content_of(&bytes_of(&busy_table()));
    let (rest, closed) = content.split_at(closed_at(&content) + 8);
    // As long as each other.
    out_of_order_is_damage(rest, closed.split_at(closed.len() / 2), &[]);
}

/// One before the other is sound; the other way round, and the first one twice, is damage.
fn out_of_order_is_damage(before: &[u8], (first, second): (&[u8], &[u8]), after: &[u8]) {
    let read = |entries: [&[u8]; 4]| LockTable::read_from(&mut forge(&entries.concat()).as_slice());
    assert!(read([before, first, second, after]).is_ok());
    for harmed in [[before, second, first, after], [before, first, first, after]] {
        let read = read(harmed);
        assert!(matches!(read, Err(SnapshotError::Damaged { .. })), "{read:?}");
    }
}
