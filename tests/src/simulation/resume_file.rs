//! Counts of simulated runs over several invocations, in a file: for a long run that is interrupted, for
//! days too, while builds follow each other that behave the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::counts::Counts;
use super::many::{Failed, Many, Outcome, run_many};
use super::{Clocks, Plan, SimulatedRun, run_traced};

/// The number of runs between two writes of the file.
const CHUNK: u64 = 100;
/// The runs that two builds have to make alike, step by step.
const SAMPLE: std::ops::Range<u64> = 31_000_000_000..31_000_000_040;

/// Why a long run cannot continue an earlier one. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeFileError {
    /// Runs of builds that behave differently, or from two first seeds, are not added up: the figure
    /// would stand for neither.
    #[error(
        "{} counts runs of a build that behaves differently, or from another first seed; name another file to begin anew",
        path.display()
    )]
    OfAnother {
        /// The file.
        path: PathBuf,
    },
    /// The file was not written for this.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// An error of the system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The counts so far, as they are in the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResumeFile {
    #[serde(skip)]
    path: PathBuf,
    /// SHA-256 of the digests of the runs of [`SAMPLE`]: a figure belongs to one behaviour. A build
    /// that differs from an earlier one where none of these runs comes is not told from it.
    behaviour: String,
    first_seed: u64,
    counts: Counts,
    failed: Vec<Failed>,
    took: Duration,
}

impl ResumeFile {
    /// The file at `path`, or a new one that begins with `first_seed()`; `asked` is the first
    /// seed that the caller asked for. Makes the runs of the sample first, as `drawn` draws them,
    /// on `jobs` threads.
    ///
    /// # Errors
    ///
    /// [`ResumeFileError`].
    pub fn open(
        path: &Path,
        asked: Option<u64>,
        first_seed: impl FnOnce() -> u64,
        jobs: usize,
        drawn: fn(u64, Clocks) -> Plan,
    ) -> Result<Self, ResumeFileError> {
        Self::of_behaviour(path, behaviour_of_sample(jobs, drawn), asked, first_seed)
    }

    fn of_behaviour(
        path: &Path,
        behaviour: String,
        asked: Option<u64>,
        first_seed: impl FnOnce() -> u64,
    ) -> Result<Self, ResumeFileError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let first_seed = asked.unwrap_or_else(first_seed);
                let (counts, failed, took) = Default::default();
                let path = path.to_path_buf();
                return Ok(Self { path, behaviour, first_seed, counts, failed, took });
            }
            Err(source) => return Err(ResumeFileError::Io { path: path.to_path_buf(), source }),
        };
        let found: Self = serde_json::from_str(&text)
            .map_err(|source| ResumeFileError::Unreadable { path: path.to_path_buf(), source })?;
        if found.behaviour != behaviour || asked.is_some_and(|asked| asked != found.first_seed) {
            return Err(ResumeFileError::OfAnother { path: path.to_path_buf() });
        }
        Ok(Self { path: path.to_path_buf(), ..found })
    }

    /// The seed of its first run.
    pub fn first_seed(&self) -> u64 {
        self.first_seed
    }

    /// Continues until `many.runs` runs have been made in all, or until `many` ends it earlier;
    /// the file is written after each hundred. `many.first_seed` does not count. `tell` sees each
    /// run, `so_far` the sums after each hundred.
    ///
    /// # Errors
    ///
    /// The file could not be written: the runs since the last write are not in it.
    pub fn run(
        mut self,
        many: &Many,
        tell: impl Fn(&SimulatedRun) + Sync,
        so_far: impl Fn(&Outcome),
    ) -> Result<Outcome, ResumeFileError> {
        let mut left = many.within;
        loop {
            let runs = many.runs.unwrap_or(u64::MAX).saturating_sub(self.counts.runs);
            let failures = many.failures.saturating_sub(self.failed.len() as u64);
            if runs == 0 || failures == 0 || left.is_some_and(|left| left.is_zero()) {
                return Ok(self.outcome());
            }
            let chunk = Many {
                first_seed: self.first_seed.wrapping_add(self.counts.runs),
                runs: Some(runs.min(CHUNK)),
                within: left,
                failures,
                ..many.clone()
            };
            let outcome = run_many(&chunk, || (), |run, _| tell(run));
            left = left.map(|left| left.saturating_sub(outcome.took));
            self.take(outcome);
            self.save()?;
            so_far(&self.outcome());
        }
    }

    fn take(&mut self, outcome: Outcome) {
        self.counts.add(&outcome.counts);
        self.failed.extend(outcome.failed);
        self.took += outcome.took;
    }

    fn outcome(&self) -> Outcome {
        let (counts, failed) = (self.counts.clone(), self.failed.clone());
        Outcome { counts, failed, took: self.took }
    }

    /// Writes the file whole: a run that is killed meanwhile leaves it as it was.
    fn save(&self) -> Result<(), ResumeFileError> {
        let new = self.path.with_extension("new");
        let text = serde_json::to_string_pretty(self)
            .map_err(|source| ResumeFileError::Unreadable { path: self.path.clone(), source })?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &self.path))
            .map_err(|source| ResumeFileError::Io { path: self.path.clone(), source })
    }
}

/// What this build does in the runs of [`SAMPLE`], every step of which goes into a run's digest.
fn behaviour_of_sample(jobs: usize, drawn: fn(u64, Clocks) -> Plan) -> String {
    let digest_of = |seed| run_traced(&drawn(seed, Clocks::Within), false).digest;
    let seeds: Vec<u64> = SAMPLE.collect();
    let digests: Vec<u64> = std::thread::scope(|scope| {
        let parts = seeds.chunks(seeds.len().div_ceil(jobs.max(1)));
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(|&seed| digest_of(seed)).collect()))
            .collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.flat_map(|part: Result<Vec<u64>, _>| part.unwrap_or_default()).collect()
    });
    let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_be_bytes()).collect();
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(runs: u64) -> Outcome {
        let counts = Counts { runs, grants: 7, ..Counts::default() };
        let failed = vec![Failed { seed: 3, violations: vec!["I6: too long".to_owned()] }];
        Outcome { counts, failed, took: Duration::from_secs(2) }
    }

    #[test]
    fn a_ledger_goes_on_where_it_stopped_with_the_same_behaviour_and_seed_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.json");
        let open = |behaviour: &str, asked| {
            ResumeFile::of_behaviour(&path, behaviour.into(), asked, || 40)
        };
        let mut resume_file = open("one", None).unwrap();
        resume_file.take(ran(100));
        resume_file.save().unwrap();

        let again = open("one", Some(40)).unwrap();
        assert_eq!((again.first_seed, again.counts.runs, again.counts.grants), (40, 100, 7));
        assert_eq!(again.outcome().violations(), 1);
        assert_eq!(again.took, Duration::from_secs(2));
        for other in [open("another", None), open("one", Some(41))] {
            assert!(matches!(other, Err(ResumeFileError::OfAnother { .. })), "{other:?}");
        }
        fs::write(&path, "{").unwrap();
        assert!(matches!(open("one", None), Err(ResumeFileError::Unreadable { .. })));
    }
}
