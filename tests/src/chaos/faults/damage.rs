//! A store that is damaged while its node is dead (I21): either the node reports the damage and
//! does not start, or the damaged place contained nothing that it had acknowledged.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Broken, Undo};
use crate::chaos::stage::{OPENED, Stage};

/// The exit code of a node that cannot use its data folder (`server/src/exit.rs`).
const REFUSED: i32 = 73;
/// The interval between two checks whether the node has opened its folder or refused it.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A node with a damaged folder.
#[derive(Debug)]
pub(super) struct Damaged {
    node: usize,
    /// The folder as it was.
    kept: PathBuf,
    /// How much the node had logged before.
    logged: usize,
}

pub(super) fn flip_a_bit(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let node = stage.draw.one_of(&idle)?;
    stage.busy.insert(node);
    stage.cluster.kill(node);
    let data = stage.cluster.nodes()[node].data.clone();
    let kept = data.with_extension("kept");
    copy(&data, &kept);
    let files = log_files(&data);
    let numbers: Vec<_> = (0..files.len()).collect();
    let file = &files[stage.draw.one_of(&numbers)?];
    let at = flip(file, stage.draw.below(u64::MAX));
    let logged = stage.cluster.log(node).len();
    stage.cluster.start_node(node);
    let what = format!("{}: a bit of byte {at} of its log", stage.name(node));
    Some(Broken::new(what, LOOK_AGAIN, Undo::Restore(Damaged { node, kept, logged })))
}

/// The files of a node's log, and that of its marks.
fn log_files(data: &Path) -> Vec<PathBuf> {
    let segments = std::fs::read_dir(data.join("log")).unwrap();
    let mut files: Vec<_> = segments.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.push(data.join("sled").join("db"));
    files
}

/// Flips one bit of the file, in a place that was written; returns the number of its byte.
fn flip(file: &Path, draw: u64) -> usize {
    let bytes = std::fs::read(file).unwrap();
    let written: Vec<usize> =
        bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
    let at = usize::try_from(draw % written.len().max(1) as u64).unwrap_or(0);
    let at = written.get(at).copied().unwrap_or(0);
    let open = OpenOptions::new().write(true).open(file).unwrap();
    open.write_all_at(&[bytes[at] ^ 1 << (draw % 8)], at as u64).unwrap();
    at
}

pub(super) fn restore(stage: &mut Stage, damaged: Damaged) -> Option<Broken> {
    let Damaged { node, ref kept, logged } = damaged;
    let log = stage.cluster.log(node);
    let said = log.get(logged..).unwrap_or_default();
    let Some(status) = stage.cluster.exited(node) else {
        if said.contains(OPENED) {
            std::fs::remove_dir_all(kept).unwrap();
            stage.busy.remove(&node);
            return None;
        }
        let what = format!("{}: still opening", stage.name(node));
        return Some(Broken::new(what, LOOK_AGAIN, Undo::Restore(damaged)));
    };
    let data = stage.cluster.nodes()[node].data.clone();
    if status.code() != Some(REFUSED) || !said.contains(&*data.to_string_lossy()) {
        let last = said.lines().last().unwrap_or_default();
        stage.wrong.push(format!(
            "{} did not refuse its damaged folder by name (I21), it ended with {status}: {last}",
            stage.name(node)
        ));
    }
    stage.note(&format!("{} refuses its damaged folder", stage.name(node)));
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(kept, &data).unwrap();
    stage.busy.remove(&node);
    stage.cluster.start_node(node);
    None
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success(), "{} cannot be copied", from.display());
}
