//! A file that records which ranges of the tables are done.
//!
//! It saves work and nothing else: without it an import sends every row again, which changes
//! nothing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::scan::Identity;

/// The version of the file.
const VERSION: u32 = 1;

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
    done: BTreeSet<usize>,
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
                let content = Content { version: VERSION, job, done: BTreeSet::new() };
                return Ok(Self { path, content });
            }
            Err(error) => return Err(CheckpointError::File { path, error }),
        };
        let content: Content = match serde_json::from_slice(&text) {
            Ok(content) => content,
            Err(error) => {
                let reason = error.to_string();
                return Err(CheckpointError::Unreadable { path, reason });
            }
        };
        if content.version != VERSION {
            let reason =
                format!("it has version {}, this program knows {VERSION}", content.version);
            return Err(CheckpointError::Unreadable { path, reason });
        }
        match difference(&content.job, &job) {
            Some((what, was, is)) => Err(CheckpointError::OtherJob { path, what, was, is }),
            None => Ok(Self { path, content }),
        }
    }

    /// Whether a range is done.
    pub fn is_done(&self, range: usize) -> bool {
        self.content.done.contains(&range)
    }

    /// Marks a range as done, and replaces the file by a new, synced one, so that it is whole
    /// whenever this process ends.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::File`]; the previous file stands.
    pub fn note_done(&mut self, range: usize) -> Result<(), CheckpointError> {
        self.content.done.insert(range);
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
        checkpoint.note_done(2).unwrap();
        checkpoint.note_done(0).unwrap();

        let again = Checkpoint::open(&path, job()).unwrap();
        assert_eq!([0, 1, 2, 3].map(|range| again.is_done(range)), [true, false, true, false]);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");
    }

    /// A table that was dropped and created again has another id.
    #[test]
    fn a_checkpoint_of_another_job_is_refused_and_says_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        Checkpoint::open(&path, job()).unwrap().note_done(1).unwrap();
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
        for text in ["buy milk", "", "{\"version\":1}", "[]"] {
            fs::write(&path, text).unwrap();
            let refused = Checkpoint::open(&path, job()).unwrap_err().to_string();
            assert!(refused.contains("is no checkpoint of holdfast-migrate"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let content = Content { version: 9, job: job(), done: BTreeSet::new() };
        fs::write(&path, serde_json::to_vec(&content).unwrap()).unwrap();
        let refused = Checkpoint::open(&path, job()).unwrap_err().to_string();
        assert!(refused.contains("it has version 9, this program knows 1"), "{refused}");
    }
}
