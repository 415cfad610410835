//! Looks for clients of somebody else that still write, before anything is imported.

use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::mpsc;

use crate::plan::{Rules, changed_by_strangers};
use crate::scan::{News, Range, Scan, ScanError};

/// News that wait to be looked at.
const NEWS_WAITING: usize = 4;

/// A row that somebody else's client changed lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Its lock, as it can be shown.
    pub lock: String,
    /// Its owner, as it can be shown.
    pub owner: String,
}

/// The first row found that a client other than ours changed within its last two TTLs; see
/// [`changed_by_strangers`]. Names that do not begin with the rules' prefix are not looked at. Cancel safe.
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
        // It ends early only if it has found one.
        Either::Right((found, _)) => Ok(found),
    }
}
