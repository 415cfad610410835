//! Looks for foreign clients that still write, before anything is imported.

use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::mpsc;

use crate::plan::{Rules, changed_by_strangers};
use crate::scan::{News, Range, Scan, ScanError};

/// Messages of the scan that wait for this task.
const NEWS_WAITING: usize = 4;

/// A row that a client which is not of our library changed lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// The lock's name, printable.
    pub lock: String,
    /// The owner's id, printable.
    pub owner: String,
}

/// Finds a row that a client which is not of our library changed within its last two TTLs; see
/// [`changed_by_strangers`]. It skips names without the rules' prefix. Cancel safe.
///
/// # Errors
///
/// [`ScanError`] if the tables could not be read.
pub async fn first_stranger(
    scan: &Scan,
    ranges: &[Range],
    at_once: usize,
    rules: &Rules,
) -> Result<Option<Stranger>, ScanError> {
    let now_us = scan.now_us().await?;
    let (tell, mut told) = mpsc::channel(NEWS_WAITING);
    let looking = pin!(async move {
        while let Some(news) = told.recv().await {
            let News::Locks { locks, .. } = news else { continue };
            for rows in locks {
                let lock = rows.lock.to_string();
                if !lock.starts_with(&rules.prefix) {
                    continue;
                }
                if let Some(owner) = changed_by_strangers(&rows, rules, now_us) {
                    return Some(Stranger { lock, owner });
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
