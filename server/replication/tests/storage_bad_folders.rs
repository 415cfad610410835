//! Bad data folders: each is refused with a message that names the cause and says what to do, or
//! opens with everything that was acknowledged. Never a silent loss (I21).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy's allowance for tests does not reach helper functions"
)]

mod storage_support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use bytes::Bytes;
use holdfast_replication::storage::{
    ClusterId, Fault, KeptSnapshot, LogId, Member, OpenError, PromiseError, ReplicaStore,
    SNAPSHOT_CHUNK, SnapshotDraft, Stage, Store, StoreOptions, StoredVote,
};
use sha2::{Digest, Sha256};
use storage_support::folders::{
    CLUSTER, Image, RECORDS, VOTE, assert_whole, filled, filled_and_open, open, snapshot,
};
use storage_support::{Draw, ignore, options, options_with, record, wait};
use tempfile::TempDir;

/// The refusal of a folder, with its message; if the folder opens, it must be whole.
fn refused(folder: &Path, case: &str) -> OpenError {
    match open(folder) {
        Err(error) => error,
        Ok(_) => panic!("{case}: opened"),
    }
}

fn assert_tells_of_damage(error: &OpenError, case: &str) {
    use OpenError::{BehindGuard, Damaged, Emptied, GuardDamaged};
    let right =
        matches!(error, Damaged { .. } | BehindGuard { .. } | Emptied { .. } | GuardDamaged { .. });
    assert!(right, "{case}: {error}");
    assert!(error.to_string().contains("joins as a learner"), "{case}: {error}");
}

/// The guard, the newest snapshot and the log after it, byte by byte as earlier releases left them.
#[test]
fn the_folders_that_earlier_releases_left_open_with_their_snapshot_and_the_log_after_it() {
    for release in ["0.1", "0.2", "0.3"] {
        for (folder, node_id) in [("one-node", 1), ("node-1", 1), ("node-2", 2), ("node-3", 3)] {
            let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
            let copy = Image::of(&fixtures.join(release).join(folder)).restore();

            let store = Store::open(copy.path(), StoreOptions { node_id, ..options() }).unwrap();

            let identity = store.identity();
            assert_eq!(
                (identity.node_id, identity.stage),
                (node_id, Stage::Initialised),
                "{folder}"
            );
            let snapshot = store.snapshots().newest().unwrap();
            let snapshot_at = snapshot.last.unwrap().index;
            let last = store.log().last().unwrap().index;
            assert!(50 < snapshot_at && snapshot_at < last, "{folder}: {snapshot_at}, {last}");
            let after = store.log().entries(snapshot_at + 1..u64::MAX, usize::MAX);
            assert_eq!(after.len() as u64, last - snapshot_at, "{release}, {folder}");
        }
    }
}

#[test]
fn a_folder_in_use_is_refused_and_its_holder_named() {
    let folder = filled();
    let _held = open(folder.path()).unwrap();
    let error = refused(folder.path(), "in use");
    assert!(matches!(error, OpenError::InUse { pid: Some(pid), .. } if pid == std::process::id()));
    let message = error.to_string();
    assert!(message.contains("LOCK is in use by process"), "{message}");
}

#[test]
fn a_folder_that_cannot_be_read_or_written_is_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let error = Store::open(&file.join("data"), options()).unwrap_err();
    assert!(matches!(error, OpenError::Inaccessible { .. }), "{error}");
    assert!(error.to_string().contains("cannot create"), "{error}");

    // Permissions do not bind root, under which tests may run: a folder in the file's place does.
    let folder = filled();
    fs::remove_file(folder.path().join("guard")).unwrap();
    fs::create_dir(folder.path().join("guard")).unwrap();
    let error = refused(folder.path(), "unreadable");
    assert!(matches!(error, OpenError::Inaccessible { action: "open", .. }), "{error}");
    assert!(error.to_string().contains("/guard"), "{error}");
}

#[test]
fn a_folder_of_another_node_or_cluster_is_refused() {
    let folder = filled();
    let other_node = StoreOptions { node_id: 2, ..options() };
    let error = Store::open(folder.path(), other_node).unwrap_err();
    assert!(matches!(error, OpenError::OtherNode { found: 1, expected: 2, .. }), "{error}");

    let expected = ClusterId([4; 16]);
    let other_cluster = StoreOptions { cluster: Some(expected), ..options() };
    let error = Store::open(folder.path(), other_cluster).unwrap_err();
    assert!(matches!(error, OpenError::OtherCluster { .. }), "{error}");
    assert!(error.to_string().contains(&expected.to_string()), "{error}");

    let same = StoreOptions { cluster: Some(CLUSTER), ..options() };
    assert_whole(&Store::open(folder.path(), same).unwrap(), "the right cluster");
}

/// The version is changed in an otherwise intact slot, with a correct checksum.
#[test]
fn a_newer_format_is_refused_by_number() {
    let folder = filled();
    let path = folder.path().join("guard");
    let mut bytes = fs::read(&path).unwrap();
    let length = u32::from_be_bytes(bytes[8..12].try_into().unwrap()) as usize;
    bytes[7] = 3;
    let crc = crc32fast::hash(&bytes[..12 + length]);
    bytes[12 + length..16 + length].copy_from_slice(&crc.to_be_bytes());
    fs::write(&path, bytes).unwrap();
    let error = refused(folder.path(), "newer");
    assert!(matches!(error, OpenError::NewerFormat { found: 3, known: 2, .. }), "{error}");
}

#[test]
fn a_store_without_its_guard_is_refused() {
    let folder = filled();
    fs::remove_file(folder.path().join("guard")).unwrap();
    let error = refused(folder.path(), "guard missing");
    assert!(matches!(error, OpenError::GuardMissing { .. }), "{error}");
    assert!(error.to_string().contains("under a new node id"), "{error}");
}

#[test]
fn a_guard_with_both_slots_damaged_is_refused_and_with_one_the_other_counts() {
    let folder = filled();
    let path = folder.path().join("guard");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 100], 20).unwrap();
    assert_whole(&open(folder.path()).unwrap(), "one slot left");
    // Opening and closing has rewritten that slot.
    file.write_all_at(&[0xff; 100], 20).unwrap();
    file.write_all_at(&[0xff; 100], (32 << 10) + 20).unwrap();
    let error = refused(folder.path(), "both slots");
    assert!(matches!(error, OpenError::GuardDamaged { .. }), "{error}");
}

#[test]
fn an_emptied_store_is_refused() {
    for gone in ["sled", "sled/db", "log"] {
        let folder = filled();
        let path = folder.path().join(gone);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::write(path, "") }.unwrap();
        let error = refused(folder.path(), gone);
        assert!(matches!(error, OpenError::Emptied { .. }), "{gone}: {error}");
    }
}

/// Replaces this folder's log and marks by those of another folder.
fn replace_store(folder: &Path, by: &Path) {
    for part in ["sled", "log"] {
        fs::remove_dir_all(folder.join(part)).unwrap();
        fs::rename(by.join(part), folder.join(part)).unwrap();
    }
}

/// The hint makes a shortened file longer again: a slot after the cut, once skipped, must not count
/// again with its older bound, whichever slot is the newer.
#[test]
fn a_guard_that_was_cut_tells_all_the_same_that_its_store_is_older() {
    let append = |store: &Store, index| {
        wait(|done| store.log().append(vec![record(2, index, 10)], done)).unwrap();
    };
    let cuts = [300, 20_000, 33_500, 40_000, 65_540];
    for (cut, closed_again) in cuts.into_iter().flat_map(|cut| [(cut, 0), (cut, 1)]) {
        let folder = filled();
        for index in RECORDS..RECORDS + closed_again {
            append(&open(folder.path()).unwrap(), index);
        }
        let older = Image::of(folder.path()).restore();
        let guard = OpenOptions::new().write(true).open(folder.path().join("guard")).unwrap();
        guard.set_len(cut).unwrap();
        let store = open(folder.path()).unwrap();
        append(&store, RECORDS + closed_again);
        // As a kill leaves it: a close would write the hint's bound into a slot.
        let killed = Image::of(folder.path()).restore();
        replace_store(killed.path(), older.path());
        let error = refused(killed.path(), &format!("cut at {cut}"));
        assert!(matches!(error, OpenError::BehindGuard { .. }), "cut at {cut}: {error}");
    }
}

/// The second slot of a file that was cut in the middle of it counts if its content is before the
/// cut.
#[test]
fn a_slot_that_was_cut_behind_its_content_counts() {
    let folder = filled();
    let guard = folder.path().join("guard");
    let whole = fs::read(&guard).unwrap();
    for (cut, harmed) in [(40_000, 0), (whole.len(), 32 << 10)] {
        let mut bytes = whole[..cut].to_vec();
        bytes[harmed + 20..harmed + 120].fill(0xff);
        fs::write(&guard, &bytes).unwrap();
        assert_whole(&open(folder.path()).unwrap(), &format!("slot at {harmed} harmed"));
        assert_eq!(fs::metadata(&guard).unwrap().len(), whole.len() as u64);
    }
}

/// The store of another folder under this guard, or an older copy of this one.
#[test]
fn a_store_that_is_not_the_guards_is_refused() {
    let folder = filled();
    let other = TempDir::new().unwrap();
    drop(Store::open(other.path(), StoreOptions { new_store_id: [8; 16], ..options() }).unwrap());
    replace_store(folder.path(), other.path());
    let error = refused(folder.path(), "another store");
    assert!(error.to_string().contains("the store of another folder"), "{error}");

    let folder = filled();
    let older = Image::of(folder.path()).restore();
    let store = open(folder.path()).unwrap();
    wait(|done| store.log().append(vec![record(2, RECORDS, 10)], done)).unwrap();
    drop(store);
    replace_store(folder.path(), older.path());
    let error = refused(folder.path(), "older copy");
    assert!(matches!(error, OpenError::BehindGuard { .. }), "{error}");
    assert!(error.to_string().contains("log ends at index 399"), "{error}");
}

/// I20: the log is whole, only the vote is older.
#[test]
fn a_vote_older_than_the_guards_is_refused() {
    let folder = filled();
    let older = Image::of(folder.path()).restore();
    let store = open(folder.path()).unwrap();
    let later = StoredVote { term: 10, ..VOTE };
    wait(|done| store.log().save_vote(later, done)).unwrap();
    drop(store);
    fs::remove_dir_all(folder.path().join("sled")).unwrap();
    fs::rename(older.path().join("sled"), folder.path().join("sled")).unwrap();
    let error = refused(folder.path(), "older vote");
    assert!(matches!(error, OpenError::BehindGuard { .. }), "{error}");
    assert!(error.to_string().contains("term 9, the guard has for node 1 in term 10"), "{error}");
}

/// Cut off at every scale, from one byte to all: refused, or nothing acknowledged is missing.
#[test]
fn a_file_cut_off_anywhere_is_refused_or_whole() {
    let (folder, _killed) = filled_and_open();
    let image = Image::of(folder.path());
    let names: Vec<PathBuf> = image.0.iter().map(|(path, _)| path.clone()).collect();
    let (mut refusals, mut whole) = (0, 0);
    for name in names.iter().filter(|name| name.as_path() != Path::new("LOCK")) {
        let length = image.bytes(name.to_str().unwrap()).len() as u64;
        let cuts = [1, 100, 5_000, 70_000, 100_000, 1 << 20, 3 << 20, length / 2, length];
        for cut in cuts.into_iter().filter(|cut| *cut <= length) {
            let folder = image.restore();
            let file = OpenOptions::new().write(true).open(folder.path().join(name)).unwrap();
            file.set_len(length - cut).unwrap();
            let case = format!("{} shortened by {cut} of {length}", name.display());
            match open(folder.path()) {
                Ok(store) => {
                    assert_whole(&store, &case);
                    whole += 1;
                }
                Err(error) => {
                    assert_tells_of_damage(&error, &case);
                    refusals += 1;
                }
            }
        }
    }
    println!("cut off: {refusals} refused, {whole} whole");
    assert!(refusals >= 10);
}

/// One bit, anywhere in the folder but mostly in the data.
#[test]
fn a_flipped_bit_is_refused_or_harmless() {
    let seed = std::env::var("HOLDFAST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let flips = std::env::var("HOLDFAST_BIT_FLIPS").map_or(80, |flips| flips.parse().unwrap());
    let (folder, _killed) = filled_and_open();
    let image = Image::of(folder.path());
    let files: Vec<&(PathBuf, Vec<u8>)> = image
        .0
        .iter()
        .filter(|(path, bytes)| path != Path::new("LOCK") && !bytes.is_empty())
        .collect();
    let mut draw = Draw(seed);
    let (mut refusals, mut whole) = (0, 0);
    for flip in 0..flips {
        // Two in three hit the store's large file, the rest the small ones.
        let large = files.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let (path, bytes) = if flip % 3 < 2 {
            large
        } else {
            &files[draw.size(u32::try_from(files.len()).unwrap())]
        };
        let mut at = draw.size(u32::try_from(bytes.len()).unwrap());
        while bytes[at] == 0 {
            at = draw.size(u32::try_from(bytes.len()).unwrap());
        }
        let bit = 1_u8 << draw.below(8);
        let folder = image.restore();
        let file = OpenOptions::new().write(true).open(folder.path().join(path)).unwrap();
        file.write_all_at(&[bytes[at] ^ bit], at as u64).unwrap();
        let case = format!("seed {seed}, flip {flip}: {} at {at}, bit {bit:#x}", path.display());
        match open(folder.path()) {
            Ok(store) => {
                assert_whole(&store, &case);
                whole += 1;
            }
            Err(error) => {
                assert_tells_of_damage(&error, &case);
                refusals += 1;
            }
        }
    }
    println!("flipped bits from seed {seed}: {refusals} refused, {whole} harmless");
    assert!(refusals > 0 && refusals + whole == flips);
}

/// A snapshot that the log was purged below is the only copy of its contents.
#[test]
fn a_lost_or_damaged_snapshot_below_the_purged_log_is_refused() {
    let folder = filled();
    let file = fs::read_dir(folder.path().join("snapshots")).unwrap().next().unwrap().unwrap();
    fs::remove_file(file.path()).unwrap();
    let error = refused(folder.path(), "snapshot missing");
    assert!(matches!(error, OpenError::BehindGuard { .. }), "{error}");
}

/// A follower far behind has acknowledged a snapshot beyond the end of its log, and not yet purged.
#[test]
fn a_lost_snapshot_beyond_the_end_of_the_log_is_refused() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).unwrap();
    wait(|done| store.log().append(vec![record(1, 0, 10)], done)).unwrap();
    snapshot(&store, LogId { term: 1, node_id: 2, index: 50 }, b"from the leader");
    drop(store);
    let folder_of_snapshots = folder.path().join("snapshots");
    let file = fs::read_dir(folder_of_snapshots).unwrap().next().unwrap().unwrap();
    fs::remove_file(file.path()).unwrap();
    let error = refused(folder.path(), "snapshot missing");
    assert!(matches!(error, OpenError::BehindGuard { .. }), "{error}");
    assert!(error.to_string().contains("one up to 50 was kept"), "{error}");
}

#[test]
fn a_snapshot_travels_in_chunks_and_arrives_equal() {
    let (leader, follower) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let leader = open(leader.path()).unwrap();
    let last = LogId { term: 1, node_id: 1, index: 3 };
    let body = record(1, 3, 300_000).payload;
    snapshot(&leader, last, &body);
    let announced = leader.snapshots().newest().unwrap();
    let source = leader.snapshots().read(&announced).unwrap();

    let store = open(follower.path()).unwrap();
    let mut target = store.snapshots().begin(announced.last, announced.meta.clone()).unwrap();
    let mut received = 0;
    while received < source.info().length {
        let chunk = source.chunk(received).unwrap();
        assert!(!chunk.is_empty() && chunk.len() <= SNAPSHOT_CHUNK);
        target.write_all(&chunk).unwrap();
        received += chunk.len() as u64;
    }
    assert!(source.chunk(received).unwrap().is_empty());
    assert!(target.is_whole(announced.length, &announced.sha256));
    let arrived = target.finish().unwrap();
    let arrived = arrived.info().clone();
    assert_eq!((arrived.last, arrived.sha256), (announced.last, announced.sha256));
    drop(store);
    assert_eq!(open(follower.path()).unwrap().snapshots().newest(), Some(arrived));
}

#[test]
fn a_damaged_newest_snapshot_is_passed_over_while_the_log_reaches_past_it() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).unwrap();
    let log = store.log();
    wait(|done| log.append((0..30).map(|index| record(1, index, 10)).collect(), done)).unwrap();
    let id = |index| LogId { term: 1, node_id: 1, index };
    snapshot(&store, id(9), b"older");
    snapshot(&store, id(19), b"newer");
    wait(|done| log.purge(id(5), done)).unwrap();
    drop((log, store));
    let damage = |index: u64| {
        let path = folder.path().join(format!("snapshots/{index:020}-1-1.snap"));
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        file.write_all_at(b"!", length - 60).unwrap();
    };
    damage(19);
    let store = open(folder.path()).unwrap();
    assert_eq!(store.snapshots().newest().unwrap().last, Some(id(9)));
    drop(store);
    damage(9);
    let error = refused(folder.path(), "both snapshots");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(".snap is damaged"), "{error}");
}

#[test]
fn a_snapshot_that_is_not_what_the_peer_announced_is_refused_and_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).unwrap();
    let last = LogId { term: 1, node_id: 2, index: 7 };
    let mut writer = store.snapshots().begin(Some(last), Bytes::new()).unwrap();
    writer.write_all(b"body").unwrap();
    assert!(!writer.is_whole(4, &[0; 32]));
    assert!(!writer.is_whole(5, &Sha256::digest(b"body")));
    assert!(writer.is_whole(4, &Sha256::digest(b"body")));
    drop(writer);
    assert_eq!(store.snapshots().newest(), None);
    assert_eq!(fs::read_dir(folder.path().join("snapshots")).unwrap().count(), 0);
}

#[test]
fn a_promised_node_agrees_to_no_other_cluster_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).unwrap();
    assert_eq!(store.identity().stage, Stage::Fresh);
    assert!(matches!(store.set_initialised(), Err(PromiseError::NotPromised { node_id: 1 })));
    let members = vec![Member { id: 1, address: b"a".to_vec() }, Member { id: 2, address: vec![] }];
    store.promise(CLUSTER, 0, members.clone()).unwrap();
    store.promise(CLUSTER, 0, vec![]).unwrap();
    drop(store);

    let store = open(folder.path()).unwrap();
    let identity = store.identity();
    assert_eq!((identity.stage, identity.members), (Stage::Promised, members));
    let other = store.promise(ClusterId([9; 16]), 0, vec![]);
    assert!(matches!(other, Err(PromiseError::Taken { cluster: CLUSTER, .. })));
    store.set_initialised().unwrap();
    drop(store);
    assert_eq!(open(folder.path()).unwrap().identity().stage, Stage::Initialised);
}

/// sled takes the left-over of its own interrupted start for its newest note and fails.
#[test]
fn a_folder_whose_restart_was_interrupted_opens_whole() {
    let folder = filled();
    fs::write(folder.path().join("sled/snap.00000000FFFFFFFF.generating"), "").unwrap();
    assert_whole(&open(folder.path()).unwrap(), "restart interrupted");
}

/// A creation that a power cut interrupted before anything was acknowledged is repeated.
#[test]
fn a_folder_whose_creation_was_interrupted_is_made_anew() {
    let folder = TempDir::new().unwrap();
    drop(open(folder.path()).unwrap());
    let made = Image::of(folder.path());
    // As it was when only the guard existed: the first slot it ever had, and half a store.
    let fresh = TempDir::new().unwrap();
    let mut guard = made.bytes("guard").to_vec();
    guard[..32 << 10].fill(0);
    let slot = &mut guard[32 << 10..];
    let length = u32::from_be_bytes(slot[8..12].try_into().unwrap()) as usize;
    slot[20] = 0;
    let crc = crc32fast::hash(&slot[..12 + length]);
    slot[12 + length..16 + length].copy_from_slice(&crc.to_be_bytes());
    fs::write(fresh.path().join("guard"), guard).unwrap();
    fs::create_dir(fresh.path().join("sled")).unwrap();
    fs::write(fresh.path().join("sled/db"), "half").unwrap();
    let store = open(fresh.path()).unwrap();
    wait(|done| store.log().append(vec![record(1, 0, 10)], done)).unwrap();
}

/// On a separate file system that fills up. Nothing is acknowledged after the fault, and everything
/// acknowledged before is there once there is room again.
#[test]
fn a_full_disk_stops_the_store_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount(24 << 20) else {
        println!("skipped: a tmpfs cannot be mounted here");
        return;
    };
    let folder = disk.path().join("data");
    let (send, faults) = mpsc::channel::<Fault>();
    let send = Mutex::new(send);
    let store =
        Store::open(&folder, options_with(move |fault| drop(send.lock().unwrap().send(fault))))
            .unwrap();
    let acknowledged = fill_until_refused(&store);
    let fault = faults.recv().unwrap();
    assert!(fault.space_needed.is_some(), "{fault}");
    assert!(fault.to_string().contains(&*folder.to_string_lossy()), "{fault}");
    let late = wait(|done| store.log().save_vote(VOTE, done));
    assert!(late.is_err(), "nothing is acknowledged after a fault");
    // A process would end now; here its lock has to be released.
    std::mem::forget(store);
    fs::remove_file(folder.join("LOCK")).unwrap();

    disk.resize(96 << 20);
    let image = Image::of(&folder).restore();
    assert_holds_what_filled(&open(image.path()).unwrap(), acknowledged);
}

/// Not a test: a process whose files may not grow beyond a limit. Does nothing unless started by
/// the test below.
#[test]
#[ignore = "started by a test as a process of its own"]
fn limited_process() {
    let Ok(root) = std::env::var("HOLDFAST_LIMITED_ROOT") else { return };
    let told = Arc::new(Mutex::new(String::new()));
    let on_fault = {
        let told = Arc::clone(&told);
        move |fault: Fault| *told.lock().unwrap() = fault.to_string()
    };
    let store = Store::open(&Path::new(&root).join("data"), options_with(on_fault)).unwrap();
    let acknowledged = fill_until_refused(&store);
    let report = format!("{acknowledged}\n{}", told.lock().unwrap());
    fs::write(Path::new(&root).join("report"), report).unwrap();
}

/// As on a full disk, where no file system can be mounted: the limit on the size of a file.
#[test]
fn a_file_that_may_not_grow_stops_the_store_and_loses_nothing() {
    let root = TempDir::new().unwrap();
    let status = std::process::Command::new("sh")
        .args(["-c", r#"trap "" XFSZ; ulimit -f 16384; exec "$0" "$@""#])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "limited_process", "--ignored"])
        .env("HOLDFAST_LIMITED_ROOT", root.path())
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    let report = fs::read_to_string(root.path().join("report")).unwrap();
    let (acknowledged, fault) = report.split_once('\n').unwrap();
    assert!(fault.contains("/log") && fault.contains("free at least"), "{fault}");
    let store = open(&root.path().join("data")).unwrap();
    assert_holds_what_filled(&store, acknowledged.parse().unwrap());
}

fn assert_holds_what_filled(store: &Store, acknowledged: u64) {
    let found = store.log().entries(0..u64::MAX, usize::MAX);
    assert!(acknowledged > 50, "{acknowledged}");
    assert!(found.len() as u64 >= acknowledged, "{} of {acknowledged}", found.len());
    for (index, found) in (0..).zip(&found) {
        assert_eq!(*found, record(1, index, 60_000));
    }
}

/// At whichever step room runs out, the message says how much to free, and the same folder opens
/// once there is room.
#[test]
fn a_disk_too_full_to_open_on_is_told_and_opens_when_there_is_room() {
    let mut told = 0;
    for kilobytes in (4..=120).step_by(4) {
        let Some(disk) = SmallDisk::mount(kilobytes << 10) else {
            println!("skipped: a tmpfs cannot be mounted here");
            return;
        };
        let folder = disk.path().join("data");
        if let Err(error) = open(&folder) {
            assert!(matches!(error, OpenError::DiskFull { .. }), "{kilobytes} KiB: {error}");
            assert!(error.to_string().contains("Free at least"), "{error}");
            told += 1;
        }
        disk.resize(64 << 20);
        let store = open(&folder).unwrap_or_else(|error| panic!("{kilobytes} KiB: {error}"));
        wait(|done| store.log().append(vec![record(1, 0, 10)], done)).unwrap();
    }
    println!("too full to open on: told {told} times");
    assert!(told > 10);
}

/// Appends until one is not acknowledged; returns how many were.
fn fill_until_refused(store: &Store) -> u64 {
    let log = store.log();
    for index in 0..10_000 {
        let appended = wait(|done| log.append(vec![record(1, index, 60_000)], done));
        if appended.is_err() {
            return index;
        }
    }
    panic!("the disk does not fill up");
}

/// A tmpfs of a given size; unmounted when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "holdfast-test"])
            .arg(folder.path())
            .output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn resize(&self, bytes: u64) {
        let resized = std::process::Command::new("mount")
            .args(["-o", &format!("remount,size={bytes}")])
            .arg(self.0.path())
            .status();
        assert!(resized.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the store of a test that ended in a fault still has files open.
        let unmounted = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
        drop(unmounted);
    }
}

#[test]
fn what_is_queued_when_the_store_is_dropped_is_durable() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).unwrap();
    let answered = Arc::new(Mutex::new(0));
    for index in 0..100 {
        let answered = Arc::clone(&answered);
        let done = move |outcome: std::io::Result<()>| {
            outcome.unwrap();
            *answered.lock().unwrap() += 1;
        };
        store.log().append(vec![record(1, index, 1000)], Box::new(done)).unwrap();
    }
    store.log().append(vec![record(1, 100, 1000)], ignore()).unwrap();
    drop(store);
    assert_eq!(*answered.lock().unwrap(), 100);
    assert_eq!(open(folder.path()).unwrap().log().len(), 101);
}
