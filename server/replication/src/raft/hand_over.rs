//! Hands leadership to another voter: before a node stops, and when an operator asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_mutants::mutant;
use holdfast_runtime::Runtime;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::watch;

use super::confirm::Confirmer;
use super::handler::Raft;
use super::proposer::Proposer;
use crate::consensus::Role;

/// Time between two checks whether everything under way is finished and a voter has caught up.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The outcome of handing over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandedOver {
    /// This node no longer leads, or never did.
    LeadsNoLonger,
    /// It still leads: no voter had caught up in time, and none was asked to take over.
    NobodyCaughtUp,
    /// A voter was asked to take over and has not done so in time. It, or another, will: this node
    /// confirms and commits nothing more in its tenure.
    NotInTime,
}

#[derive(Clone)]
pub(super) struct HandOver {
    pub(super) node_id: u64,
    pub(super) raft: Raft,
    pub(super) role: watch::Receiver<Role>,
    pub(super) proposer: Arc<Proposer>,
    pub(super) confirmer: Arc<Confirmer>,
    pub(super) runtime: Runtime,
}

impl HandOver {
    /// Hands leadership to voter `to`, or to one that has every entry, and waits until this node no
    /// longer leads, at most for `within`.
    ///
    /// From the call on, new commands are refused; those under way are finished first. If the
    /// hand-over fails, commands are accepted again.
    pub(super) async fn run(&self, to: Option<u64>, within: Duration) -> HandedOver {
        if self.role.borrow().tenure().is_none() {
            return HandedOver::LeadsNoLonger;
        }
        self.proposer.pause(true);
        // Resumes also if this future is dropped on the way.
        let _resume = Resume(&self.proposer);
        let asked = AtomicBool::new(false);
        let passed = self.runtime.timeout(within, self.pass_leadership(to, &asked)).await;
        match passed {
            Ok(()) => HandedOver::LeadsNoLonger,
            Err(_) if asked.load(Ordering::Relaxed) => HandedOver::NotInTime,
            Err(_) => HandedOver::NobodyCaughtUp,
        }
    }

    async fn pass_leadership(&self, to: Option<u64>, asked: &AtomicBool) {
        let mut metrics = self.raft.metrics();
        loop {
            let Some(tenure) = self.role.borrow().tenure() else { return };
            let quiet = self.proposer.in_flight() == 0 && self.proposer.waiting() == 0;
            if let Some(target) = self.successor(to).filter(|_| quiet) {
                tracing::info!(member = target, "handing leadership over");
                asked.store(true, Ordering::Relaxed);
                self.confirmer.give_up(tenure);
                if self.raft.trigger().transfer_leader(target).await.is_err() {
                    return;
                }
                let mut role = self.role.clone();
                // Ends also when the role's sender is gone: then this node no longer leads.
                let _ = role.wait_for(|role| role.tenure().is_none()).await;
                return;
            }
            holdfast_runtime::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                () = self.runtime.sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// A voter that has every entry: another would refuse to take over.
    fn successor(&self, to: Option<u64>) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let voter = |id: u64| metrics.membership_config.voter_ids().any(|voter| voter == id);
        let mut followers = metrics.replication.iter().flatten();
        let caught_up = followers.find(|(id, matched)| {
            **id != self.node_id
                && to.is_none_or(|to| to == **id)
                && voter(**id)
                && (matched.map(|id| id.index) == metrics.last_log_index
                    || mutant!(HandOverToWhoLags))
        });
        caught_up.map(|(id, _)| *id)
    }
}

struct Resume<'a>(&'a Proposer);

impl Drop for Resume<'_> {
    fn drop(&mut self) {
        self.0.pause(false);
    }
}
