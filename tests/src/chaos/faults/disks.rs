//! Disks that are full or slow.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

use super::{Broken, Undo};
use crate::chaos::stage::Stage;

/// The exit codes of a node whose disk fails (`server/src/exit.rs`).
const DISK_EXITS: [i32; 2] = [73, 74];
/// The space left on a disk that is filled to below the reserve.
const LEFT_BYTES: u64 = 8 << 20;
/// How long a sync takes on a healthy disk.
const USUAL_SYNC_MS: u64 = 10;

/// The file that says what is wrong with the disk of a node's machine.
pub(super) fn disk_file(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("ill-disk-{}", node + 1))
}

fn ballast(disk: &Path) -> PathBuf {
    disk.join("ballast")
}

pub(super) fn fill(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let node = stage.draw.one_of(&idle)?;
    stage.busy.insert(node);
    let left = if stage.draw.below(2) == 0 { 0 } else { LEFT_BYTES };
    let disk = &stage.cluster.nodes()[node].disk;
    let free = statvfs(disk).map(|disk| disk.blocks_available() * disk.fragment_size()).unwrap();
    let file = File::create(ballast(disk)).unwrap();
    let take = i64::try_from(free.saturating_sub(left)).unwrap();
    if take > 0 {
        // The node may take some of the space meanwhile; then less fills the disk.
        let _ = fallocate(&file, FallocateFlags::empty(), 0, take);
    }
    let lasts = Duration::from_millis(stage.draw.between(2_000, 8_000));
    let what = format!("{}: {left} bytes left", stage.name(node));
    Some(Broken::new(what, lasts, Undo::Empty(node)))
}

pub(super) fn empty(stage: &mut Stage, node: usize) {
    std::fs::remove_file(ballast(&stage.cluster.nodes()[node].disk)).unwrap();
    stage.busy.remove(&node);
    if let Some(status) = stage.cluster.exited(node) {
        if !status.code().is_some_and(|code| DISK_EXITS.contains(&code)) {
            let name = stage.name(node);
            stage.wrong.push(format!("{name} ended on a full disk with {status}"));
        }
        stage.cluster.start_node(node);
    }
}

pub(super) fn slow(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let node = stage.draw.one_of(&idle)?;
    let millis = stage.draw.between(10, 400);
    let lasts = Duration::from_millis(stage.draw.between(2_000, 10_000));
    Some(sync_within(stage, node, millis, lasts))
}

pub(super) fn crawl(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other()?;
    let millis = USUAL_SYNC_MS * stage.draw.one_of(&[10, 100])?;
    let lasts = Duration::from_millis(stage.draw.between(10_000, 30_000));
    Some(sync_within(stage, node, millis, lasts))
}

fn sync_within(stage: &Stage, node: usize, millis: u64, lasts: Duration) -> Broken {
    std::fs::write(disk_file(&stage.folder, node), format!("{millis}\n")).unwrap();
    let what = format!("{}: {millis} ms", stage.name(node));
    Broken::new(what, lasts, Undo::Quicken(node))
}

pub(super) fn quicken(stage: &Stage, node: usize) {
    std::fs::write(disk_file(&stage.folder, node), "0\n").unwrap();
}
