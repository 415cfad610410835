//! Damaged folders by the hundred: each is refused with a named error, or opens with everything
//! that was acknowledged and goes on to serve (I19, I20, I21).
//!
//! Bits flipped, files cut, zeroed or gone, files of another node's folder, files of an older copy of
//! the folder itself. `HOLDFAST_DAMAGED_STORES` sets how many (60), `HOLDFAST_SEED` the first seed (1);
//! the seed of a case repeats that case.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "clippy's allowance for tests does not reach helper functions"
)]

mod storage_support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use holdfast_replication::storage::{OpenError, ReplicaStore, Store, StoreOptions};
use storage_support::folders::{Image, RECORDS, assert_whole, filled_and_open, filled_by, open};
use storage_support::{Draw, options, record, wait};

/// Longest run of bytes that is overwritten with zeros.
const ZEROED_MAX: u32 = 64 << 10;

const KINDS: [&str; 7] =
    ["flipped", "cut", "zeroed", "gone", "another node's", "older", "guard missing"];

/// The folder that is damaged, and the sources of foreign files.
struct Suite {
    sound: Image,
    other_node: Image,
    older: Image,
    /// The items that can be damaged: files, and the folders that can be swapped whole.
    files: Vec<PathBuf>,
}

impl Suite {
    fn new() -> Self {
        let (folder, _killed) = filled_and_open();
        let sound = Image::of(folder.path());
        let (other, _killed) =
            filled_by(StoreOptions { node_id: 2, new_store_id: [8; 16], ..options() }, |_| ());
        let half = Mutex::new(None);
        let keep = |folder: &Path| *half.lock().unwrap() = Some(Image::of(folder));
        drop(filled_by(options(), keep));
        let older = half.into_inner().unwrap().unwrap();
        let harmable = |(path, bytes): &(PathBuf, Vec<u8>)| {
            (path != Path::new("LOCK") && !bytes.is_empty()).then(|| path.clone())
        };
        let files = sound.0.iter().filter_map(harmable).collect();
        Self { sound, other_node: Image::of(other.path()), older, files }
    }

    /// Damages a copy of the folder; returns a description.
    fn harm(&self, kind: &str, folder: &Path, draw: &mut Draw) -> String {
        if kind == "guard missing" {
            fs::remove_file(folder.join("guard")).unwrap();
            return String::new();
        }
        if kind == "another node's" || kind == "older" {
            let from = if kind == "older" { &self.older } else { &self.other_node };
            return swap(from, folder, draw);
        }
        let name = &self.files[draw.size(u32::try_from(self.files.len()).unwrap())];
        let path = folder.join(name);
        let mut bytes = fs::read(&path).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        let at = match kind {
            "cut" => {
                let at = draw.size(len);
                bytes.truncate(at);
                at
            }
            "zeroed" => {
                let at = draw.size(len);
                let end = bytes.len().min(at + 1 + draw.size(ZEROED_MAX));
                bytes[at..end].fill(0);
                at
            }
            "gone" => {
                fs::remove_file(&path).unwrap();
                return name.display().to_string();
            }
            _ => flip(&mut bytes, draw),
        };
        fs::write(&path, bytes).unwrap();
        format!("{} at {at} of {len}", name.display())
    }
}

/// Puts files of `from` in the place of ours: one, or a folder of them, but never all. An old copy
/// of a whole folder cannot be told from the folder, see
/// `an_old_copy_of_a_whole_folder_opens_as_what_it_was`.
fn swap(from: &Image, folder: &Path, draw: &mut Draw) -> String {
    let mut places = ["sled", "log", "snapshots"].map(PathBuf::from).to_vec();
    places.extend(from.0.iter().map(|(path, _)| path.clone()).filter(|path| {
        // Of the files in `sled`, only the one with the data makes a difference.
        path != Path::new("LOCK") && (!path.starts_with("sled") || path.ends_with("db"))
    }));
    let place = &places[draw.size(u32::try_from(places.len()).unwrap())];
    if ["sled", "log", "snapshots"].iter().any(|part| place.ends_with(part)) {
        fs::remove_dir_all(folder.join(place)).unwrap();
        fs::create_dir_all(folder.join("sled/blobs")).unwrap();
        fs::create_dir_all(folder.join("log")).unwrap();
        fs::create_dir_all(folder.join("snapshots")).unwrap();
    }
    for (path, bytes) in from.0.iter().filter(|(path, _)| path.starts_with(place)) {
        fs::write(folder.join(path), bytes).unwrap();
    }
    place.display().to_string()
}

/// Flips up to eight bits close to each other, where there is data.
fn flip(bytes: &mut [u8], draw: &mut Draw) -> usize {
    let len = u32::try_from(bytes.len()).unwrap();
    let mut at = draw.size(len);
    while bytes[at] == 0 {
        at = draw.size(len);
    }
    for _ in 0..=draw.size(8) {
        let near = (at + draw.size(16)).min(bytes.len() - 1);
        bytes[near] ^= 1 << draw.below(8);
    }
    at
}

/// The name of a refusal; the error must also name a place in this folder.
fn name_of(error: &OpenError, folder: &Path, case: &str) -> &'static str {
    let name = match error {
        OpenError::Damaged { .. } => "damaged",
        OpenError::BehindGuard { .. } => "behind its guard",
        OpenError::Emptied { .. } => "emptied",
        OpenError::GuardDamaged { .. } => "guard damaged",
        OpenError::GuardMissing { .. } => "guard missing",
        OpenError::OtherNode { .. } => "another node's",
        OpenError::OtherCluster { .. } => "another cluster's",
        other => panic!("{case}: not refused by what was done to it: {other}"),
    };
    assert!(error.to_string().contains(&*folder.to_string_lossy()), "{case}: {error}");
    name
}

/// Checks that an opened store has everything, and takes more.
fn assert_serves(store: &Store, case: &str) {
    assert_whole(store, case);
    let appended = wait(|done| store.log().append(vec![record(9, RECORDS, 10)], done));
    assert!(appended.is_ok(), "{case}: {appended:?}");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[test]
fn a_damaged_store_is_refused_by_name_or_has_all_that_was_acknowledged() {
    let (first, count) = (number("HOLDFAST_SEED", 1), number("HOLDFAST_DAMAGED_STORES", 60));
    let suite = Suite::new();
    let mut tally: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (seed, kind) in (first..first + count).zip(KINDS.iter().cycle()) {
        let mut draw = Draw(seed);
        let folder = suite.sound.restore();
        let how = suite.harm(kind, folder.path(), &mut draw);
        let case = format!("seed {seed}: {kind} {how}");
        let outcome = match open(folder.path()) {
            Ok(store) => {
                assert_serves(&store, &case);
                "whole"
            }
            Err(error) => name_of(&error, folder.path(), &case),
        };
        *tally.entry((kind, outcome)).or_default() += 1;
    }
    for ((kind, outcome), count) in &tally {
        println!("{kind}: {count} {outcome}");
    }
    let whole: u64 =
        tally.iter().filter(|((_, outcome), _)| *outcome == "whole").map(|(_, n)| n).sum();
    println!("{count} damaged stores from seed {first}: {} refused, {whole} whole", count - whole);
    assert!(whole < count, "nothing was refused");
}

/// No node can detect this by itself: the copy is in order, only old. It serves what it held then.
/// So an operator must never put one back (I22): a restore is a new incarnation, and a node whose
/// data is lost comes back under a new id.
#[test]
fn an_old_copy_of_a_whole_folder_opens_as_what_it_was() {
    let suite = Suite::new();
    let folder = suite.older.restore();
    let store = open(folder.path()).unwrap();
    let last = store.log().last().unwrap().index;
    assert!(last < RECORDS - 1, "{last}");
    assert_eq!(store.log().vote(), None);
}
