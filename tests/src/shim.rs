//! Small libraries in C that are loaded into programs of a run (`LD_PRELOAD`): faults that need no rights on the machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use holdfast_runtime::{Instant, Runtime};
use sha2::{Digest as _, Sha256};

use crate::cluster::beside_this_test;

const MILLION: u32 = 1_000_000;
const RATE: &str = "CLOCK_RATE_PPM";
const ANCHOR: &str = "CLOCK_RATE_ANCHOR_NS";

/// The library of `source`, a C file in this package; built unless there is one of exactly this text.
pub fn built(source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let name = source.file_stem().unwrap().to_string_lossy();
    let digest = hex::encode(&Sha256::digest(std::fs::read(&source).unwrap())[..8]);
    let library = beside_this_test().join(format!("{name}-{digest}.so"));
    if !library.exists() {
        build(&source, &library);
    }
    library
}

/// Another process may build the same library now: each has a file of its own until it is whole.
fn build(source: &Path, library: &Path) {
    let folder = tempfile::tempdir_in(library.parent().unwrap()).unwrap();
    let fresh = folder.path().join("shim.so");
    let status = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&fresh)
        .arg(source)
        .args(["-ldl", "-lpthread"])
        .status()
        .unwrap_or_else(|error| panic!("a C compiler is needed (cc): {error}"));
    assert!(status.success(), "cc cannot build {}", source.display());
    std::fs::rename(fresh, library).unwrap();
}

/// The clocks of a process that runs with `shims/clockrate.c`, relative to those of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRate {
    /// Parts per million of true time.
    ppm: u32,
    /// The moment at which they were right.
    anchor: Instant,
}

impl ClockRate {
    /// Right now, and at this rate from here on.
    pub fn from_now(ppm: u32) -> Self {
        Self { ppm, anchor: Runtime::system().clock.now() }
    }

    /// The clock rate that this process was started with, if its clocks are not the machine's.
    pub fn of_this_process() -> Option<Self> {
        let ppm = std::env::var(RATE).ok()?.parse().unwrap();
        let anchor_ns = std::env::var(ANCHOR).unwrap().parse().unwrap();
        let anchor = Instant::from_origin(Duration::from_nanos(anchor_ns));
        Some(Self { ppm, anchor })
    }

    /// The environment of a process for the shim.
    pub fn variables(self) -> Vec<(String, String)> {
        let anchor_ns = self.anchor.since_origin().as_nanos();
        vec![(RATE.into(), self.ppm.to_string()), (ANCHOR.into(), anchor_ns.to_string())]
    }

    /// A moment of the process's clock, converted to the machine's. Before the anchor both were equal.
    pub fn true_moment(self, moment: Instant) -> Instant {
        match moment.saturating_since(self.anchor) {
            Duration::ZERO => moment,
            since => self.anchor + self.true_length(since),
        }
    }

    /// How much true time passes while the process's clock shows `length` more.
    pub fn true_length(self, length: Duration) -> Duration {
        let ns = length.as_nanos() * u128::from(MILLION) / u128::from(self.ppm);
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_a_fast_clock_comes_sooner() {
        let at = |seconds| Instant::from_origin(Duration::from_secs(seconds));
        let rate = ClockRate { ppm: 1_250_000, anchor: at(100) };
        assert_eq!(rate.true_moment(at(110)), at(108));
        assert_eq!(rate.true_moment(at(100)), at(100));
        assert_eq!(rate.true_length(Duration::from_secs(5)), Duration::from_secs(4));
    }
}
