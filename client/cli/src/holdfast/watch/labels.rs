//! The labels of sessions, for changes that come without one: a session that has ended has no label any more.

use std::collections::BTreeMap;

use holdfast::{ChangeKind, Holder, Waiter, WatchEvent};

/// So many are remembered; after that all are forgotten, and changes show the numbers of sessions.
const REMEMBERED: usize = 100_000;

/// What the watch has shown of each session: its label and its identity.
#[derive(Debug, Default)]
pub(super) struct Labels(BTreeMap<u64, (String, String)>);

impl Labels {
    /// The same event with the labels that are missing, where they were seen before.
    pub(super) fn complete(&mut self, mut event: WatchEvent) -> WatchEvent {
        match &mut event {
            WatchEvent::Lock(lock) => {
                lock.holders.iter_mut().for_each(|holder| self.holder(holder));
            }
            WatchEvent::Change(change) => match &mut change.what {
                ChangeKind::Queued(waiter) | ChangeKind::Left(waiter) => self.waiter(waiter),
                ChangeKind::Granted(holder)
                | ChangeKind::Released(holder)
                | ChangeKind::Lost(holder, _) => self.holder(holder),
                _ => {}
            },
            _ => {}
        }
        event
    }

    fn waiter(&mut self, waiter: &mut Waiter) {
        self.known(waiter.session, &mut waiter.label, &mut waiter.identity);
    }

    fn holder(&mut self, holder: &mut Holder) {
        self.known(holder.session, &mut holder.label, &mut holder.identity);
    }

    fn known(&mut self, session: u64, label: &mut String, identity: &mut String) {
        if label.is_empty() {
            if let Some((seen, as_whom)) = self.0.get(&session) {
                label.clone_from(seen);
                identity.clone_from(as_whom);
            }
            return;
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        self.0.insert(session, (label.clone(), identity.clone()));
    }
}
