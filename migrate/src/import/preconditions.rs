//! What has to hold before anything is imported: the scopes below the prefix lock in this cluster
//! and by these tables, none of them is native already, and no foreign client still writes.

use std::collections::BTreeSet;
use std::pin::pin;

use futures_util::future::{Either, select};
use holdfast_recipes::{Stage, Writer};
use tokio::sync::mpsc;

use super::Importer;
use super::import_all::ImportError;
use crate::plan::{Rules, changed_by_foreign_writer};
use crate::scan::{Range, Scan, ScanError, ScanMessage};

/// Messages of the scan that wait for this task.
const MESSAGES_WAITING: usize = 4;

/// A row that a client which is not of our library changed lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignWriter {
    /// The lock's name, printable.
    pub lock: String,
    /// The owner's id, printable.
    pub owner: String,
}

/// Finds a row that a client which is not of our library changed within its last two TTLs; see
/// [`changed_by_foreign_writer`]. It skips names without the rules' prefix. Cancel safe.
///
/// # Errors
///
/// [`ScanError`] if the tables could not be read.
pub async fn first_foreign_writer(
    scan: &Scan,
    ranges: &[Range],
    at_once: usize,
    rules: &Rules,
) -> Result<Option<ForeignWriter>, ScanError> {
    let now_us = scan.now_us().await?;
    let (tell, mut told) = mpsc::channel(MESSAGES_WAITING);
    let looking = pin!(async move {
        while let Some(news) = told.recv().await {
            let ScanMessage::Locks { locks, .. } = news else { continue };
            for rows in locks {
                let lock = rows.lock.to_string();
                if !lock.starts_with(&rules.prefix) {
                    continue;
                }
                if let Some(owner) = changed_by_foreign_writer(&rows, rules, now_us) {
                    return Some(ForeignWriter { lock, owner });
                }
            }
        }
        None
    });
    let reading = pin!(scan.run(ranges, at_once, tell));
    match select(reading, looking).await {
        Either::Left((read, looking)) => {
            read?;
            Ok(looking.await)
        }
        // The search ends before the read only if it has found a row.
        Either::Right((found, _)) => Ok(found),
    }
}

/// A scope is tied to another recipe or cluster than this import or move uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "scope {scope:?} is tied to {what} \"{tied}\", and this is \"{own}\": look whether --scope, --from, the names of tables, \
     --keyspace and --endpoints are those that its processes have"
)]
pub struct OtherTie {
    /// The scope.
    pub scope: String,
    /// `recipe`, or `cluster`.
    pub what: &'static str,
    /// What the scope's processes recorded.
    pub tied: String,
    /// What this import or move uses.
    pub own: String,
}

impl OtherTie {
    /// Checks that a scope is tied to `own`, or to nothing yet.
    ///
    /// # Errors
    ///
    /// [`OtherTie`] if it is tied to something else.
    pub fn check(
        scope: &str,
        what: &'static str,
        tied: Option<&str>,
        own: &str,
    ) -> Result<(), Self> {
        match tied {
            Some(tied) if tied != own => {
                let (scope, tied, own) = (scope.to_owned(), tied.to_owned(), own.to_owned());
                Err(Self { scope, what, tied, own })
            }
            _ => Ok(()),
        }
    }
}

/// The writers of processes that hold natively what they hold in the tables. Fails if a scope below
/// the prefix is native already, or is tied to other tables or another cluster.
pub(super) async fn registered(
    scan: &Scan,
    importer: &impl Importer,
    table: &str,
    prefix: &str,
) -> Result<BTreeSet<Writer>, ImportError> {
    let mut writers = BTreeSet::new();
    for seen in scan.scopes(table).await?.into_iter().filter(|seen| seen.meets(prefix)) {
        OtherTie::check(&seen.scope, "recipe", seen.recipe.as_deref(), &scan.named())?;
        if seen.cluster.is_some() {
            let own = importer.cluster().await.map_err(ImportError::Target)?;
            OtherTie::check(&seen.scope, "cluster", seen.cluster.as_deref(), &own)?;
        }
        if let Some(process) = seen.older.into_iter().next() {
            return Err(ImportError::Older { scope: seen.scope, process });
        }
        match seen.stage {
            Some(Stage::Cassandra | Stage::Both) => writers.extend(seen.writers),
            stage => return Err(ImportError::AlreadyNative { scope: seen.scope, stage }),
        }
    }
    Ok(writers)
}
