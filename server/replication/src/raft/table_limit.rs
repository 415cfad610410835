//! Makes the leader's limit of table bytes the cluster's, once all members know the command for it.
//!
//! The other limits go into the log with the first command of a tenure. This one is younger: as long as
//! a member runs a release that does not know it, it is not proposed (I29), no member has it, and all
//! refuse alike. So this task checks again until the table has the limit of the leader's settings.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Command;
use holdfast_runtime::Runtime;
use tokio::sync::watch;

use super::machine::Replicated;
use super::proposer::Proposer;
use crate::consensus::Role;

/// Time between two tries of a leader whose table has another limit: the members report their versions
/// as often.
const TRY_EVERY: Duration = Duration::from_secs(1);

pub(super) struct TableLimit {
    /// As configured here; the leader's applies to the whole cluster.
    pub(super) max_table_bytes: u64,
    pub(super) role: watch::Receiver<Role>,
    pub(super) proposer: Arc<Proposer>,
    pub(super) shared: Arc<Replicated>,
    pub(super) runtime: Runtime,
}

impl TableLimit {
    /// Maintains the limit until the task is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let leads = self.role.borrow_and_update().tenure().is_some();
            let unset = leads && !self.is_set();
            if unset {
                self.propose();
            }
            let again = async {
                if unset {
                    self.runtime.sleep(TRY_EVERY).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            holdfast_runtime::select! {
                changed = self.role.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }

    fn is_set(&self) -> bool {
        self.shared.look(|table, _| table.max_table_bytes()) == Some(self.max_table_bytes)
    }

    /// A repeated proposal is harmless: it changes nothing.
    fn propose(&self) {
        let max_bytes = self.max_table_bytes;
        let done = Box::new(move |result| match result {
            Ok(_) => {
                tracing::info!(max_bytes, "the configured max_table_bytes applies from here on");
            }
            Err(error) => tracing::debug!(%error, "max_table_bytes is not set yet"),
        });
        self.proposer.submit(Command::LimitTable { max_bytes }, done);
    }
}
