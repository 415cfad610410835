//! What `holdfast top` asks of the servers.

use std::time::Duration;

use holdfast::{Admin, Ending, HistoryQuery, Reader};

use super::app::{Answer, Ask, LockPage};
use crate::args::Global;
use crate::failure::Failure;
use crate::show;

/// How long an answer may take: the screen says so then, and goes on.
const LIMIT: Duration = Duration::from_secs(3);
/// Rows of the screen.
const ROWS: u32 = 100;
/// Things that happened to a lock.
const PAST: u32 = 50;

/// The servers.
pub(super) struct Store {
    admin: Admin,
    reader: Reader,
}

impl Store {
    pub(super) fn open(global: &Global) -> Result<Self, Failure> {
        let reader = global.builder()?.connect_timeout(LIMIT).reader()?;
        Ok(Self { admin: global.builder()?.admin(LIMIT)?, reader })
    }

    pub(super) async fn answer(&self, ask: Ask) -> Answer {
        match ask {
            Ask::Locks { prefix, order } => {
                let found = self.admin.busiest(&prefix, order, ROWS).await;
                // Whoever may see locks need not see members.
                let cluster = self.admin.cluster().await.ok();
                Answer::Locks(found.map(|found| (found, cluster)).map_err(|error| why(&error)))
            }
            Ask::Lock { name } => Answer::Lock(self.page(name).await),
            Ask::Force { name, reason } => {
                let ended = self.admin.force_release(&name, None, &Ending::safely(reason)).await;
                Answer::Done(ended.map_err(|error| why(&error)).map(|holds| {
                    let within = holds.iter().map(|hold| hold.within).max().unwrap_or_default();
                    let within = show::length(within);
                    format!("{} passes on within {within} at most", show::escaped(&name))
                }))
            }
            Ask::Freeze { name, message } => {
                let frozen = self.admin.freeze(&name, &message).await;
                let news = format!("names that begin with {} are frozen", show::escaped(&name));
                Answer::Done(frozen.map(|()| news).map_err(|error| why(&error)))
            }
            Ask::Thaw { name } => {
                let thawed = self.admin.thaw(&name).await;
                let news = format!("{} is thawed", show::escaped(&name));
                Answer::Done(thawed.map(|()| news).map_err(|error| why(&error)))
            }
            Ask::Leave => Answer::Done(Ok(String::new())),
        }
    }

    async fn page(&self, name: String) -> Result<Box<LockPage>, String> {
        let lock = self.reader.inspect(&name).await.map_err(|error| why(&error))?;
        let past = self.admin.history(HistoryQuery::lock(&name).limit(PAST)).await;
        let past = past.map(|page| page.entries).map_err(|error| why(&error));
        Ok(Box::new(LockPage { name, lock, past }))
    }
}

/// An error on one line.
fn why(error: &holdfast::Error) -> String {
    show::escaped(&error.to_string())
}
