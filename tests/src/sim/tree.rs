//! The marks of a simulated node: what sled is on a real machine, in one file of a virtual disk.
//!
//! Commits follow each other in the file. Only keys and lengths have a checksum here: the store's
//! own checksums verify the values. The first commit that does not fit ends the file, as with sled,
//! and whatever opens the store has to find out whether something is missing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes};
use holdfast_server::storage::{Change, Disk, DiskFile, Items, Tree};

use super::trace::digest_of;

/// Marks that were opened.
pub(super) struct FileTree {
    file: Arc<dyn DiskFile>,
    end: u64,
    values: BTreeMap<Vec<u8>, Bytes>,
}

impl FileTree {
    /// Opens the marks in the file at `path`, or begins one there.
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let old = if disk.exists(path)? { read(&*disk.open(path)?)? } else { Bytes::new() };
        let (values, _) = replay(&old);
        // Bytes that do not fit must not precede new commits; replaced values are left out.
        let live = values.iter().map(|(key, value)| (key.clone(), Some(value.to_vec())));
        let bytes = encode(&live.collect::<Vec<_>>());
        let file = rewrite(disk, path, &bytes)?;
        Ok(Self { file, end: bytes.len() as u64, values })
    }
}

fn read(file: &dyn DiskFile) -> io::Result<Bytes> {
    let length = usize::try_from(file.length()?).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes.into())
}

fn rewrite(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<Arc<dyn DiskFile>> {
    let temporary = path.with_extension("new");
    let file = disk.create(&temporary)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()?;
    disk.rename(&temporary, path)?;
    if let Some(folder) = path.parent() {
        disk.sync_folder(folder)?;
    }
    Ok(file)
}

impl Tree for FileTree {
    fn get(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.values.get(key).cloned())
    }

    fn scan(&self, prefix: &[u8]) -> Items<'_> {
        let prefix = prefix.to_vec();
        let from = self.values.range(prefix.clone()..);
        let inside = from.take_while(move |(key, _)| key.starts_with(&prefix));
        Box::new(inside.map(|(key, value)| Ok((Bytes::copy_from_slice(key), value.clone()))))
    }

    fn write(&mut self, changes: Vec<Change>) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let commit = encode(&changes);
        self.file.write_all_at(&commit, self.end)?;
        self.end += commit.len() as u64;
        for (key, value) in changes {
            set(&mut self.values, key, value.map(Bytes::from));
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn set(values: &mut BTreeMap<Vec<u8>, Bytes>, key: Vec<u8>, value: Option<Bytes>) {
    match value {
        Some(value) => drop(values.insert(key, value)),
        None => drop(values.remove(&key)),
    }
}

/// Length of the head, the head, its digest, the values.
fn encode(changes: &[Change]) -> Vec<u8> {
    let mut head = Vec::new();
    for (key, value) in changes {
        head.put_u32(length_of(key));
        head.put_slice(key);
        head.put_u32(value.as_ref().map_or(u32::MAX, |value| length_of(value)));
    }
    let mut commit = Vec::new();
    commit.put_u32(length_of(&head));
    commit.put_slice(&head);
    commit.put_u64(digest_of(&head));
    changes
        .iter()
        .filter_map(|(_, value)| value.as_ref())
        .for_each(|value| commit.put_slice(value));
    commit
}

fn length_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("what a store writes is far smaller")
}

/// The values up to the first commit that does not fit, and where that commit begins.
fn replay(bytes: &Bytes) -> (BTreeMap<Vec<u8>, Bytes>, usize) {
    let mut values = BTreeMap::new();
    let mut rest = bytes.clone();
    let mut end = 0;
    while let Some(commit) = decode(&mut rest) {
        for (key, value) in commit {
            set(&mut values, key, value);
        }
        end = bytes.len() - rest.len();
    }
    (values, end)
}

fn decode(rest: &mut Bytes) -> Option<Vec<(Vec<u8>, Option<Bytes>)>> {
    let length = take_length(rest)?;
    let mut head = take(rest, length)?;
    let digest = take(rest, 8)?.get_u64();
    if digest != digest_of(&head) {
        return None;
    }
    let mut changes = Vec::new();
    while !head.is_empty() {
        let length = take_length(&mut head)?;
        let key = take(&mut head, length)?.to_vec();
        let value = match take(&mut head, 4)?.get_u32() {
            u32::MAX => None,
            length => Some(take(rest, usize::try_from(length).ok()?)?),
        };
        changes.push((key, value));
    }
    Some(changes)
}

fn take_length(from: &mut Bytes) -> Option<usize> {
    usize::try_from(take(from, 4)?.get_u32()).ok()
}

fn take(from: &mut Bytes, length: usize) -> Option<Bytes> {
    (from.len() >= length).then(|| from.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_ends_anywhere_before_its_end_counts_for_nothing() {
        let first = encode(&[(b"a".to_vec(), Some(vec![1; 30]))]);
        let second = encode(&[(b"a".to_vec(), None), (b"b".to_vec(), Some(vec![2; 30]))]);
        for cut in 0..second.len() {
            let bytes = [&first[..], &second[..cut]].concat();
            let (values, end) = replay(&Bytes::from(bytes));
            assert_eq!((values.len(), end), (1, first.len()));
            assert!(values.contains_key(&b"a"[..]));
        }

        let (values, _) = replay(&Bytes::from([first, second].concat()));

        assert_eq!(values.into_keys().collect::<Vec<_>>(), [b"b".to_vec()]);
    }
}
