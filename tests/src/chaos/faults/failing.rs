//! Disks that hang, or fail an operation: a node has to end by itself, with the exit code for it, within a stated time (`disk_stall_ms`),
//! and has lost nothing when it is started again.
//!
//! Until the fault is over, a check a few times a second follows it.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime};

use super::disks::disk_file;
use super::{Broken, Undo};
use crate::chaos::kind::Kind;
use crate::chaos::stage::Stage;

/// The exit code of a node whose disk hangs (`server/src/exit.rs`).
const HANGS: i32 = 75;
/// The exit codes of a node for which a write failed, also while it opened its folder.
const FAILED: [i32; 2] = [73, 74];
/// How long a disk may hang, in the setting of the nodes (`disk_stall_ms`).
const STALLS_AFTER: Duration = Duration::from_secs(10);
/// A node counts ten looks, a tenth of that time apart: the first comes up to one interval after the hang began, and a loaded machine makes
/// each of them late.
const STALL_SEEN_WITHIN: Duration = Duration::from_secs(5);
/// No disk that hangs for less than this ends its node.
const NO_STALL: Duration = Duration::from_secs(8);
/// Longest time from a failed write to the end of the node.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// A node that writes nothing for so long, because there is no leader, gets no fault.
const WRITES_WITHIN: Duration = Duration::from_secs(20);
/// A node that was about to end when its disk was mended has ended after this: its last log lines may take a second.
const HAS_ENDED_AFTER: Duration = Duration::from_millis(1_500);
/// The interval between two checks.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A node whose disk hangs or fails.
#[derive(Debug)]
pub(super) struct Ill {
    node: usize,
    how: How,
    /// The end of the fault if the node still runs.
    until: Instant,
    /// When the first call was found to hang or to have failed.
    struck: Option<Instant>,
    /// The disk works again.
    is_healed: bool,
    /// How the node has ended, if it has.
    ended: Option<ExitStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Hangs,
    Fails,
}

/// For a node that has opened its folder: reading the log may rightly take 60 times `disk_stall_ms`.
pub(super) fn hang(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other().filter(|node| stage.has_opened(*node))?;
    let lasts = Duration::from_millis(stage.draw.between(5_000, 40_000));
    let words = format!("{}: for {} ms", stage.name(node), lasts.as_millis());
    Some(Ill::begin(stage, node, How::Hangs, "hang", lasts, words))
}

pub(super) fn fail(stage: &mut Stage) -> Option<Broken> {
    let node = stage.idle_leader_or_other()?;
    let what = if stage.draw.below(2) == 0 { "eio write" } else { "eio sync" };
    let words = format!("{}: {what}", stage.name(node));
    Some(Ill::begin(stage, node, How::Fails, what, WRITES_WITHIN, words))
}

/// Checks once; returns the fault if it is not over yet.
pub(super) fn look(stage: &mut Stage, mut ill: Ill, note: String) -> Option<Broken> {
    let now = Runtime::system().clock.now();
    // In this order: a node that has ended was hit before.
    let ended = ill.ended.is_none().then(|| stage.cluster.exited(ill.node)).flatten();
    if ill.struck.is_none() && struck(&stage.folder, ill.node).exists() {
        ill.struck = Some(now);
    }
    if let Some(status) = ended {
        ill.has_ended(stage, status, now);
    }
    if ill.is_healed {
        ill.give_back(stage);
        return None;
    }
    if ill.ended.is_none() {
        ill.should_have_ended(stage, now);
    }
    if !ill.is_over(now) && !stage.is_ending {
        return Some(Broken::new(note, LOOK_AGAIN, Undo::LookAtDisk(ill)));
    }
    std::fs::write(disk_file(&stage.folder, ill.node), "0\n").unwrap();
    ill.is_healed = true;
    Some(Broken::new(note, HAS_ENDED_AFTER, Undo::LookAtDisk(ill)))
}

impl Ill {
    fn begin(
        stage: &mut Stage,
        node: usize,
        how: How,
        what: &str,
        lasts: Duration,
        words: String,
    ) -> Broken {
        stage.busy.insert(node);
        // The file exists only if a disk had a fault before.
        let _ = std::fs::remove_file(struck(&stage.folder, node));
        std::fs::write(disk_file(&stage.folder, node), what).unwrap();
        let until = Runtime::system().clock.now() + lasts;
        let ill = Self { node, how, until, struck: None, is_healed: false, ended: None };
        Broken::new(words, LOOK_AGAIN, Undo::LookAtDisk(ill))
    }

    fn kind(&self) -> Kind {
        match self.how {
            How::Hangs => Kind::HungDisk,
            How::Fails => Kind::FailedWrite,
        }
    }

    /// How long ago the first call hung or failed.
    fn struck_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_since(self.struck?))
    }

    /// A node may not end for another reason, nor for a stall that is too short.
    fn has_ended(&mut self, stage: &mut Stage, status: ExitStatus, now: Instant) {
        let code = status.code().unwrap_or_default();
        let struck_for = self.struck_for(now);
        let right = match self.how {
            How::Hangs => code == HANGS && struck_for.is_some_and(|length| length >= NO_STALL),
            How::Fails => FAILED.contains(&code) && struck_for.is_some(),
        };
        if !right {
            let log = stage.cluster.log(self.node);
            let last = log.lines().last().unwrap_or_default();
            let (name, kind) = (stage.name(self.node), self.kind().name());
            stage.wrong.push(format!(
                "{kind}: {name} ended with {status}, {struck_for:?} after it was struck: {last}"
            ));
        }
        stage.came_of(self.kind(), &format!("the node ended with {status}"));
        self.ended = Some(status);
    }

    /// A node that goes on without its disk counts as alive and is not.
    fn should_have_ended(&mut self, stage: &mut Stage, now: Instant) {
        let within = match self.how {
            How::Hangs => STALLS_AFTER + STALL_SEEN_WITHIN,
            How::Fails => ENDS_WITHIN,
        };
        if self.struck_for(now).is_some_and(|length| length > within) {
            let (name, kind) = (stage.name(self.node), self.kind().name());
            stage.wrong.push(format!("{kind}: {name} has not ended within {within:?}"));
            self.until = now;
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        match self.how {
            How::Hangs => now >= self.until,
            How::Fails => self.ended.is_some() || self.struck.is_none() && now >= self.until,
        }
    }

    /// Removes every trace of the fault.
    fn give_back(self, stage: &mut Stage) {
        stage.busy.remove(&self.node);
        if self.ended.is_some() {
            stage.cluster.start_node(self.node);
        } else {
            let what =
                if self.struck.is_some() { "the node went on" } else { "nothing was written" };
            stage.came_of(self.kind(), what);
        }
    }
}

/// The file that the shim makes when the first call hangs or fails.
fn struck(folder: &Path, node: usize) -> PathBuf {
    disk_file(folder, node).with_added_extension("struck")
}
