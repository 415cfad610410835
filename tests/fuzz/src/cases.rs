//! Inputs that brought a target down: one file each, kept in the repository and tried first.

use std::fs;
use std::path::{Path, PathBuf};

/// `tests/fuzz/cases/<target>`.
fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(target)
}

/// What was kept, in the order of the names.
pub(crate) fn read(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder(target)) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).expect("a case can be read");
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// Keeps an input, under the same name every time.
pub(crate) fn keep(target: &str, bytes: &[u8]) -> PathBuf {
    let folder = folder(target);
    let path = folder.join(format!("{:08x}.bin", crc32fast::hash(bytes)));
    fs::create_dir_all(&folder).expect("the folder of cases can be made");
    fs::write(&path, bytes).expect("a case can be kept");
    path
}
