//! A file that records which ranges of the tables are done.
//!
//! It saves work and nothing else: without it an import sends every row again, which changes
//! nothing. A range that was done too long ago is not done any more: what was imported then has run out, and its rows were
//! renewed since, or are others (B18).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scan::Identity;

/// The version of the file. Version 1 does not say when a range was done.
const VERSION: u32 = 2;
const WITHOUT_TIMES: u32 = 1;
/// How long a range counts as done: less than the usual TTL of a row, 180 s.
const DONE_FOR: Duration = Duration::from_mins(2);

/// What is imported into what. Two runs with one job are one import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The recipe.
    pub recipe: String,
    /// The tables that are read.
    pub source: Identity,
    /// The cluster that is written to.
    pub target: String,
    /// Only locks whose names begin with this.
    pub prefix: String,
    /// Into how many ranges the tables are cut.
    pub ranges: usize,
}

/// The ranges of a job that are done.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    content: Content,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    job: Job,
    /// When each was done, Unix milliseconds.
    done: BTreeMap<usize, u64>,
}

/// What every version has.
#[derive(Deserialize)]
struct Head {
    version: u32,
    job: Job,
}

/// Why a checkpoint cannot be used. The file stays unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read or written.
    #[error("checkpoint {path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is no checkpoint.
    #[error(
        "{path} is no checkpoint of holdfast-migrate: {reason}; name another file with --resume"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The checkpoint belongs to another import.
    #[error(
        "checkpoint {path} is of another import: its {what} is {was}, that of this one {is}; name \
         another file with --resume, or remove it to import everything"
    )]
    OtherJob {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// The value in the file.
        was: String,
        /// The value of this import.
        is: String,
    },
}

impl Checkpoint {
    /// Opens the checkpoint of a job, or begins one without writing the file.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`] if the file is no checkpoint, or belongs to another job.
    pub fn open(path: &Path, job: Job) -> Result<Self, CheckpointError> {
        let path = path.to_owned();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { path, content: Content::new(job) });
            }
            Err(error) => return Err(CheckpointError::File { path, error }),
        };
        let content = match Content::read(&text) {
            Ok(content) => content,
            Err(reason) => return Err(CheckpointError::Unreadable { path, reason }),
        };
        match difference(&content.job, &job) {
            Some((what, was, is)) => Err(CheckpointError::OtherJob { path, what, was, is }),
            None => Ok(Self { path, content }),
        }
    }

    /// Whether a range is done, and not too long ago.
    pub fn is_done(&self, range: usize, now_ms: u64) -> bool {
        let Some(done_ms) = self.content.done.get(&range) else { return false };
        let ago = now_ms.checked_sub(*done_ms).map(Duration::from_millis);
        ago.is_some_and(|ago| ago <= DONE_FOR)
    }

    /// How many ranges were done too long ago, and have to be read again.
    pub fn stale(&self, now_ms: u64) -> usize {
        self.content.done.keys().filter(|range| !self.is_done(**range, now_ms)).count()
    }

    /// Marks a range as done now, and replaces the file by a new, synced one, so that it is whole
    /// whenever this process ends.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::File`]; the previous file stands.
    pub fn note_done(&mut self, range: usize, now_ms: u64) -> Result<(), CheckpointError> {
        self.content.done.insert(range, now_ms);
        self.write().map_err(|error| CheckpointError::File { path: self.path.clone(), error })
    }

    fn write(&self) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let mut file = File::create(&beside)?;
        serde_json::to_writer(&mut file, &self.content)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)
    }
}

impl Content {
    fn new(job: Job) -> Self {
        Self { version: VERSION, job, done: BTreeMap::new() }
    }

    /// # Errors
    ///
    /// Why it is no checkpoint.
    fn read(text: &[u8]) -> Result<Self, String> {
        let head: Head = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match head.version {
            VERSION => serde_json::from_slice(text).map_err(|error| error.to_string()),
            WITHOUT_TIMES => Ok(Self::new(head.job)),
            other => Err(format!("it has version {other}, this program knows {VERSION}")),
        }
    }
}

/// The first field that differs: its name, its value in the file, and its value now.
fn difference(was: &Job, is: &Job) -> Option<(&'static str, String, String)> {
    let tables = |job: &Job| {
        let tables = job.source.tables.iter().map(|(name, id)| format!("{name} ({id})"));
        tables.collect::<Vec<_>>().join(", ")
    };
    let all = |job: &Job| {
        [
            ("recipe", job.recipe.clone()),
            ("Cassandra cluster", job.source.cluster.clone()),
            ("keyspace", job.source.keyspace.clone()),
            ("tables", tables(job)),
            ("Holdfast cluster", job.target.clone()),
            ("prefix", format!("\"{}\"", job.prefix)),
            ("number of ranges", job.ranges.to_string()),
        ]
    };
    let mut compared = all(was).into_iter().zip(all(is));
    let ((what, was), (_, is)) = compared.find(|((_, was), (_, is))| was != is)?;
    Some((what, was, is))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let source = Identity {
            cluster: "locks".into(),
            keyspace: "k".into(),
            tables: vec![("leases".into(), "a1".into())],
        };
        let (recipe, target) = ("lease".into(), "c0ffee".into());
        Job { recipe, source, target, prefix: String::new(), ranges: 4 }
    }

    #[test]
    fn what_was_done_is_done_when_it_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let mut checkpoint = Checkpoint::open(&path, job()).unwrap();
        assert!(!path.exists(), "opening writes nothing");
        checkpoint.note_done(2, 5_000).unwrap();
        checkpoint.note_done(0, 60_000).unwrap();

        let again = Checkpoint::open(&path, job()).unwrap();
        let done = |now_ms| [0, 1, 2, 3].map(|range| again.is_done(range, now_ms));
        assert_eq!((done(70_000), again.stale(70_000)), ([true, false, true, false], 0));
        // B18: two minutes later the first of them counts no more.
        assert_eq!((done(126_000), again.stale(126_000)), ([true, false, false, false], 1));
        // The clock was set back since.
        assert_eq!((done(1_000), again.stale(1_000)), ([false; 4], 2));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");
    }

    /// A table that was dropped and created again has another id.
    #[test]
    fn a_checkpoint_of_another_job_is_refused_and_says_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        Checkpoint::open(&path, job()).unwrap().note_done(1, 0).unwrap();
        let written = fs::read(&path).unwrap();

        let table = ("leases".to_owned(), "b2".to_owned());
        let source = Identity { tables: vec![table], ..job().source };
        let cases = [
            (
                Job { target: "other".into(), ..job() },
                "its Holdfast cluster is c0ffee, that of this one other",
            ),
            (Job { source, ..job() }, "its tables is leases (a1), that of this one leases (b2)"),
            (Job { ranges: 8, ..job() }, "its number of ranges is 4, that of this one 8"),
            (Job { prefix: "a".into(), ..job() }, "its prefix is \"\", that of this one \"a\""),
            (
                Job { recipe: "queue".into(), ..job() },
                "its recipe is lease, that of this one queue",
            ),
        ];
        for (job, says) in cases {
            let refused = Checkpoint::open(&path, job).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        assert_eq!(fs::read(&path).unwrap(), written);
    }

    #[test]
    fn a_file_that_is_no_checkpoint_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        for text in ["buy milk", "", "{\"version\":2}", "[]"] {
            fs::write(&path, text).unwrap();
            let refused = Checkpoint::open(&path, job()).unwrap_err().to_string();
            assert!(refused.contains("is no checkpoint of holdfast-migrate"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let content = Content { version: 9, ..Content::new(job()) };
        fs::write(&path, serde_json::to_vec(&content).unwrap()).unwrap();
        let refused = Checkpoint::open(&path, job()).unwrap_err().to_string();
        assert!(refused.contains("it has version 9, this program knows 2"), "{refused}");
    }

    #[test]
    fn a_checkpoint_that_does_not_say_when_has_nothing_done() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let mut content = serde_json::to_value(Content::new(job())).unwrap();
        (content["version"], content["done"]) = (1.into(), serde_json::json!([0, 1]));
        fs::write(&path, content.to_string()).unwrap();
        let opened = Checkpoint::open(&path, job()).unwrap();
        assert!((0..4).all(|range| !opened.is_done(range, 0)));
    }
}
