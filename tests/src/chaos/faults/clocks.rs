//! Nodes whose clocks are wrong, by libfaketime.
//!
//! Clients read no node's clock, and no client's clock is changed: safety is promised for rates
//! within the allowance (DESIGN §5.4), and a wall clock decides nothing at all (I8).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Broken, Undo};
use crate::chaos::stage::Stage;

/// A day, seconds: the farthest that a wall clock jumps.
const DAY_S: u64 = 86_400;
/// The rate error of a clock at most, in thousandths. The allowance is a tenth, for two clocks.
const RATE_ERROR: u64 = 40;

/// The clocks that a node's process sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's; its wall clock can be made to jump.
    Right,
    /// All of them run at this rate, in thousandths.
    Rate(u64),
}

impl Clock {
    /// The environment of the node for libfaketime and for the shim of the power cuts.
    pub fn variables(self, folder: &Path, node: usize) -> Vec<(String, String)> {
        let owned = |(key, value): (&str, String)| (key.to_owned(), value);
        let clock = match self {
            Self::Right => vec![
                ("FAKETIME_TIMESTAMP_FILE", wall_clock(folder, node).display().to_string()),
                // Monotonic clocks are left alone: they cannot go back.
                ("DONT_FAKE_MONOTONIC", "1".into()),
                ("FAKETIME_CACHE_DURATION", "1".into()),
            ],
            Self::Rate(thousandths) => {
                let (whole, part) = (thousandths / 1_000, thousandths % 1_000);
                vec![("FAKETIME", format!("+0 x{whole}.{part:03}"))]
            }
        };
        let disk = super::disks::disk_file(folder, node).display().to_string();
        let others = [("NO_FAKE_STAT", "1".to_owned()), ("LOSTWRITE_DISK", disk)];
        clock.into_iter().chain(others).map(owned).collect()
    }
}

/// The file that says how far the wall clock of a node's machine has jumped.
fn wall_clock(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("wall-clock-{}", node + 1))
}

/// Before the first start: the wall clock is right.
pub(in crate::chaos) fn set_wall_clock(folder: &Path, node: usize, seconds: i64) {
    std::fs::write(wall_clock(folder, node), format!("{seconds:+}\n")).unwrap();
}

pub(super) fn step(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let node = stage.draw.one_of(&idle)?;
    let seconds = i64::try_from(stage.draw.between(1, DAY_S)).unwrap_or(0);
    let seconds = if stage.draw.below(2) == 0 { seconds } else { -seconds };
    set_wall_clock(&stage.folder, node, seconds);
    let lasts = Duration::from_millis(stage.draw.between(2_000, 10_000));
    let what = format!("{}: {seconds:+} s", stage.name(node));
    Some(Broken::new(what, lasts, Undo::StepBack(node)))
}

pub(super) fn step_back(stage: &Stage, node: usize) {
    set_wall_clock(&stage.folder, node, 0);
}

pub(super) fn rate(stage: &mut Stage) -> Option<Broken> {
    let idle = stage.idle_nodes();
    let node = stage.draw.one_of(&idle)?;
    let thousandths = stage.draw.between(1_000 - RATE_ERROR, 1_000 + RATE_ERROR);
    stage.busy.insert(node);
    restart(stage, node, Clock::Rate(thousandths));
    let lasts = Duration::from_millis(stage.draw.between(4_000, 15_000));
    let what = format!("{}: {thousandths} thousandths", stage.name(node));
    Some(Broken::new(what, lasts, Undo::SetRight(node)))
}

pub(super) fn set_right(stage: &mut Stage, node: usize) {
    restart(stage, node, Clock::Right);
    stage.busy.remove(&node);
}

/// A process cannot get another clock while it runs.
fn restart(stage: &mut Stage, node: usize, clock: Clock) {
    stage.cluster.kill(node);
    stage.cluster.set_variables(node, clock.variables(&stage.folder, node));
    stage.cluster.start_node(node);
}
