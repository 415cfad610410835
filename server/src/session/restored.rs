//! The wait of a restored cluster: it grants nothing until no client of the old one relies on a hold
//! (DESIGN §15, I6).

use std::time::Duration;

use holdfast_core::{Command, Tenure};
use holdfast_runtime::Instant;
use tokio::sync::oneshot;

use super::lead::{Lead, RETRY};
use crate::consensus::Committed;
use crate::error::ProposeError;

impl Lead {
    /// Has a restored table grant again: the longest lease and the margin after `begun`, an instant of this
    /// tenure. A tenure that ends earlier has not waited: the next one begins anew, because no node
    /// compares its clock with another's. Never ends by itself.
    pub(super) async fn end_wait_after_restore(&self, tenure: Tenure, begun: Instant) {
        if let Some(wait) = self.wait_after_restore() {
            tracing::warn!(
                term = tenure.get(),
                seconds = wait.as_secs(),
                "this cluster was restored from a backup, and grants nothing until no client of the old \
                 one can rely on a hold"
            );
            self.registry.set_grants_at(Some(begun + wait));
            self.registry.runtime.clock.sleep_until(begun + wait).await;
            while !self.propose_grants().await {
                self.registry.runtime.sleep(RETRY).await;
            }
            self.registry.set_grants_at(None);
            tracing::info!(term = tenure.get(), "the restored cluster grants locks from here on");
        }
        std::future::pending::<()>().await;
    }

    fn wait_after_restore(&self) -> Option<Duration> {
        let mut wait_ms = None;
        self.consensus.read(&mut |table, _| wait_ms = table.grants_after_ms());
        let margin_ms = self.registry.settings.margin_ms;
        wait_ms.map(|wait_ms| Duration::from_millis(wait_ms.saturating_add(margin_ms)))
    }

    /// Whether the command was applied. A repeated one is harmless.
    async fn propose_grants(&self) -> bool {
        let (tell, told) = oneshot::channel();
        let done = move |result: Result<Committed, ProposeError>| {
            if let Err(error) = &result {
                tracing::debug!(%error, "the restored cluster does not grant yet");
            }
            // Nobody waits any more if the tenure is over.
            let _ = tell.send(result.is_ok());
        };
        self.consensus.submit(Command::GrantAgain, Box::new(done));
        told.await.unwrap_or(false)
    }
}
