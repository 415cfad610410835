//! What has to hold before anything is imported: the scopes below the prefix lock in this cluster
//! and by these tables, none of them is native already, and no foreign client still writes.

use std::collections::BTreeSet;

use holdfast_mutants::mutant;
use holdfast_recipes::{Stage, Writer};

use super::Importer;
use super::import_all::ImportError;
use crate::layout::LockRows;
use crate::plan::{Rules, changed_by_foreign_writer};
use crate::scan::{Range, Scan};

/// Fails if a client which is not of our library changed a row within its last two TTLs; see
/// [`changed_by_foreign_writer`]. It skips names without the rules' prefix.
pub(super) async fn check_foreign_writers(
    scan: &Scan,
    read: (&[Range], usize),
    rules: &Rules,
) -> Result<(), ImportError> {
    let now_us = scan.now_us().await?;
    scan.each(read, async |rows: LockRows| {
        let lock = rows.lock.to_string();
        if !lock.starts_with(&rules.prefix) {
            return Ok(());
        }
        match changed_by_foreign_writer(&rows, rules, now_us) {
            Some(owner) => Err(ImportError::ForeignWriter { lock, owner }),
            None => Ok(()),
        }
    })
    .await
}

/// A scope is tied to another recipe or cluster than this import or move uses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "scope {scope:?} is tied to the {what} \"{tied}\", and this is \"{own}\": look whether --scope, --from, the names of tables, \
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
            Some(tied) if tied != own && !mutant!(TiesNotCompared) => {
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
