//! A whole import, from opening the checkpoint to the last answer.

use std::path::PathBuf;

use futures_util::future::try_join3;
use holdfast_recipes::Stage;
use holdfast_runtime::Runtime;
use tokio::sync::mpsc;

use super::preconditions::{OtherTie, check_foreign_writers, registered};
use super::{
    Checkpoint, CheckpointError, Fault, Import, ImportReport, Importer, Job, Pace, SendError, Sum,
};
use crate::layout::LockRows;
use crate::plan::Rules;
use crate::scan::{MESSAGES_WAITING, Range, Scan, ScanError, ScanMessage};

/// The options of an import.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which locks are imported, and by which rules.
    pub rules: Rules,
    /// The number of ranges that the tables are split into.
    pub ranges: usize,
    /// Ranges that are read at once.
    pub reads_at_once: usize,
    /// Requests that may be under way at once.
    pub requests_at_once: usize,
    /// The limit of rows per second.
    pub pace: Pace,
    /// The file that records the ranges that are done.
    pub checkpoint: Option<PathBuf>,
    /// The operator states that all foreign clients are stopped.
    pub writers_stopped: bool,
    /// The table of modes, from which the import reads the registered writers; `None`: `rules` has
    /// them.
    pub modes_table: Option<String>,
}

/// Why an import ended early, or did not begin.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A foreign client still writes. Nothing was imported.
    #[error(
        "\"{owner}\" changed the row of \"{lock}\" within its last two TTLs, and is no client of \
         ours: it would not see what is imported; stop those clients and say --writers-stopped, or \
         move them to mode both first"
    )]
    ForeignWriter {
        /// The lock.
        lock: String,
        /// The row's owner.
        owner: String,
    },
    /// The scope's processes lock natively alone, so rows that are left say nothing about its
    /// locks. Nothing was imported.
    #[error(
        "scope {scope:?} is at {}, where its processes lock natively alone: rows that are left there \
         would hold locks that nobody has; name another --prefix, or go back first (holdfast-migrate \
         rollback)", .stage.map_or("a stage that is not known here", |stage| stage.as_str())
    )]
    AlreadyNative {
        /// The scope.
        scope: String,
        /// Its stage.
        stage: Option<Stage>,
    },
    /// The scope's processes lock by another recipe, other tables, or in another cluster. Nothing
    /// was imported.
    #[error("{0}")]
    OtherTie(#[from] OtherTie),
    /// A process of version 0.1 is in the scope, and its rows cannot be distinguished. Nothing was
    /// imported.
    #[error(
        "{process} of scope {scope:?} is of version 0.1, whose rows cannot be told from those of other clients with its service \
         name; update it first"
    )]
    Older {
        /// The scope.
        scope: String,
        /// The process.
        process: String,
    },
    /// The checkpoint cannot be used. This run imported nothing.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The tables could not be read. What was imported stands.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The store did not accept the import. What was imported stands.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The store did not return its cluster id. Nothing was imported.
    #[error("the store was not asked which cluster it is: {0}")]
    Target(Fault),
}

/// Imports all rows of the tables, without the ranges that an earlier run has done, and shows to `watch`
/// what it reads.
///
/// Dropping the future, or ending the process, at any point is harmless: what was imported stands,
/// and the same call goes on from there.
///
/// # Errors
///
/// [`ImportError`]; each variant says whether anything was imported.
pub async fn import_all<I: Importer>(
    scan: &Scan,
    importer: I,
    options: Options,
    runtime: Runtime,
    tell: &mut impl FnMut(ImportReport),
    watch: &mut impl FnMut(&LockRows),
) -> Result<Sum, ImportError> {
    let Options { mut rules, ranges, reads_at_once, requests_at_once, pace, .. } = options;
    if let Some(table) = &options.modes_table {
        rules.registered = registered(scan, &importer, table, &rules.prefix).await?;
    }
    let all = Range::split(ranges);
    let mut checkpoint = match options.checkpoint {
        None => None,
        Some(path) => {
            let target = importer.cluster().await.map_err(ImportError::Target)?;
            let (recipe, source) = (scan.recipe().family().to_owned(), scan.identity().await?);
            let prefix = rules.prefix.clone();
            let job = Job { recipe, source, target, prefix, ranges: all.len() };
            Some(Checkpoint::open(&path, job)?)
        }
    };
    if !options.writers_stopped {
        check_foreign_writers(scan, (&all, reads_at_once), &rules).await?;
    }
    let now_ms = runtime.clock.wall_ms();
    let stale = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.stale(now_ms));
    let is_done =
        |range: &Range| checkpoint.as_ref().is_some_and(|it| it.is_done(range.index, now_ms));
    let open: Vec<Range> = all.iter().filter(|range| !is_done(range)).copied().collect();
    tell(ImportReport::Resumed { ranges: all.len() - open.len(), stale });
    let (send, mut read) = mpsc::channel(MESSAGES_WAITING);
    let (forward, news) = mpsc::channel(1);
    let reading = async { scan.run(&open, reads_at_once, send).await.map_err(ImportError::from) };
    let watching = async move {
        while let Some(news) = read.recv().await {
            if let ScanMessage::Locks { locks, .. } = &news {
                locks.iter().for_each(&mut *watch);
            }
            if forward.send(news).await.is_err() {
                break;
            }
        }
        Ok(())
    };
    let clock = runtime.clock.clone();
    let import = Import::new(importer, rules, pace, requests_at_once, runtime);
    let mut note = |report| {
        if let (ImportReport::Range { index }, Some(checkpoint)) = (report, &mut checkpoint) {
            let noted = checkpoint.note_done(index, clock.wall_ms());
            noted.map_err(|error| error.to_string())?;
        }
        tell(report);
        Ok(())
    };
    let importing = async { import.run(news, &mut note).await.map_err(ImportError::from) };
    let ((), (), sum) = try_join3(reading, watching, importing).await?;
    Ok(sum)
}
