//! What nodes remember of locks: who held them, from when to when, and why that ended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_proto::v1;
use holdfast_proto::v1::history_entry::What as Wire;

use crate::transport::operator::Services;
use crate::{Admin, FencingToken, LostReason, Mode, Result, wire};

/// What is asked of a history: which locks, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    request: v1::HistoryRequest,
}

impl HistoryQuery {
    /// Everything: all locks, acts of operators, elections, members. Needs the verb `history` on all names.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// One lock, and acts about it. Needs `history` on the name.
    #[must_use]
    pub fn lock(name: &str) -> Self {
        let name = Some(name.to_owned());
        Self { request: v1::HistoryRequest { name, ..v1::HistoryRequest::default() } }
    }

    /// The locks whose names begin with `prefix`, and acts about them. Needs `history` on the prefix.
    #[must_use]
    pub fn prefix(prefix: &str) -> Self {
        let prefix = prefix.to_owned();
        Self { request: v1::HistoryRequest { prefix, ..v1::HistoryRequest::default() } }
    }

    /// What one session held. Needs `history` on all names.
    #[must_use]
    pub fn session(id: u64) -> Self {
        let session_id = Some(id);
        Self { request: v1::HistoryRequest { session_id, ..v1::HistoryRequest::default() } }
    }

    /// Only what happened at this time or later, by the leaders' wall clocks.
    #[must_use]
    pub fn since(mut self, time: SystemTime) -> Self {
        self.request.since_ms = unix_ms(time);
        self
    }

    /// Only what happened before this time.
    #[must_use]
    pub fn until(mut self, time: SystemTime) -> Self {
        // 0 means no such time.
        self.request.until_ms = unix_ms(time).max(1);
        self
    }

    /// No more than so many entries, the last ones that match: 1 to 10,000. A page may have fewer. Default: 1,000.
    #[must_use]
    pub fn limit(mut self, entries: u32) -> Self {
        self.request.limit = entries;
        self
    }

    /// Those before the ones of an earlier answer: its [`HistoryPage::earlier`].
    #[must_use]
    pub fn before(mut self, page: &str) -> Self {
        page.clone_into(&mut self.request.page_token);
        self
    }
}

/// Some of what a node remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The node that answered.
    pub node_id: u64,
    /// It remembers up to this entry of the log; 0: nothing yet.
    pub through_index: u64,
    /// In the order of the log.
    pub entries: Vec<HistoryEntry>,
    /// For [`HistoryQuery::before`], if there are earlier ones.
    pub earlier: Option<String>,
    /// On the last page, unless it ends at the time of [`HistoryQuery::since`]: what happened up to this entry of the log is
    /// not remembered; 0: everything is there from the beginning.
    pub begins_after: Option<u64>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The entry of the log in which it happened.
    pub index: u64,
    /// When, by the leader's wall clock; not known of a gap.
    pub at: Option<SystemTime>,
    /// What.
    pub event: HistoryEvent,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// A request was granted locks.
    Held {
        /// The holder.
        session: u64,
        /// The grant.
        token: FencingToken,
        /// Those of its locks that were asked for.
        locks: Vec<(String, Mode)>,
        /// The session's own name for itself. Proves nothing.
        label: String,
        /// Who opened the session, as of [`Holder::identity`](crate::Holder::identity).
        identity: String,
        /// What the request says for people. Proves nothing.
        note: String,
        /// Whether the session stands for an owner in another store.
        is_imported: bool,
    },
    /// Locks are not held any more under a grant.
    Over {
        /// The former holder.
        session: u64,
        /// The grant.
        token: FencingToken,
        /// The locks.
        locks: Vec<(String, Mode)>,
        /// Why; `None`: they were released.
        lost: Option<LostReason>,
    },
    /// A hold was closed from outside: its client has to give it up, and its end follows.
    Closed {
        /// The holder.
        session: u64,
        /// The grant.
        token: FencingToken,
        /// The locks.
        locks: Vec<(String, Mode)>,
        /// For people.
        reason: String,
    },
    /// An administrative act was done.
    Act {
        /// Who did it, as of [`Holder::identity`](crate::Holder::identity).
        identity: String,
        /// The verb that it took.
        verb: String,
        /// To which lock, prefix, session, role or identity.
        on: String,
        /// What was done, for people.
        detail: String,
    },
    /// A leader was elected.
    Elected {
        /// Its tenure.
        tenure: u64,
    },
    /// The members of the cluster are these from here on.
    Members {
        /// Node ids of those that vote.
        voters: Vec<u64>,
        /// Of those that do not.
        learners: Vec<u64>,
    },
    /// What happened after one entry of the log, up to and with another, is not known to the node.
    Gap {
        /// The one before.
        after: u64,
        /// The last of them.
        through: u64,
    },
}

impl Admin {
    /// What the node that answers remembers: the last entries that match, in the order of the log. Any node answers, from
    /// what it has applied, and without a quorum. Nodes remember as much as their settings allow.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]. A node that keeps no history refuses.
    pub async fn history(&self, query: HistoryQuery) -> Result<HistoryPage> {
        let read = |mut at: Services| {
            let request = query.request.clone();
            async move { at.locks.history(request).await }
        };
        let page = self.ask("reading the history", false, read).await?;
        Ok(HistoryPage {
            node_id: page.node_id,
            through_index: page.through_index,
            // What a later release says of kinds that this one does not know is left out.
            entries: page.entries.into_iter().filter_map(entry).collect(),
            earlier: Some(page.earlier_page_token).filter(|token| !token.is_empty()),
            begins_after: page.begins_after,
        })
    }
}

fn entry(entry: v1::HistoryEntry) -> Option<HistoryEntry> {
    let v1::HistoryEntry { index, at_ms, what } = entry;
    let event = event(what?);
    let has_time = !matches!(event, HistoryEvent::Gap { .. });
    let at = has_time.then(|| UNIX_EPOCH.checked_add(Duration::from_millis(at_ms))).flatten();
    Some(HistoryEntry { index, at, event })
}

fn event(what: Wire) -> HistoryEvent {
    match what {
        Wire::Held(held) => HistoryEvent::Held {
            session: held.session_id,
            token: FencingToken::from_raw(held.token),
            locks: locks(held.locks),
            label: held.label,
            identity: held.identity,
            note: held.note,
            is_imported: held.imported,
        },
        Wire::Over(over) => {
            let lost = Some(over.reason()).filter(|it| *it != v1::LostReason::Unspecified);
            HistoryEvent::Over {
                session: over.session_id,
                token: FencingToken::from_raw(over.token),
                locks: locks(over.locks),
                lost: lost.map(wire::lost_reason),
            }
        }
        Wire::Closed(closed) => HistoryEvent::Closed {
            session: closed.session_id,
            token: FencingToken::from_raw(closed.token),
            locks: locks(closed.locks),
            reason: closed.reason,
        },
        Wire::Act(v1::HistoryAct { identity, verb, on, detail }) => {
            HistoryEvent::Act { identity, verb, on, detail }
        }
        Wire::Elected(v1::HistoryElection { tenure }) => HistoryEvent::Elected { tenure },
        Wire::Members(v1::HistoryMembers { voters, learners }) => {
            HistoryEvent::Members { voters, learners }
        }
        Wire::Gap(v1::HistoryGap { after, through }) => HistoryEvent::Gap { after, through },
    }
}

fn locks(locks: Vec<v1::HistoryLock>) -> Vec<(String, Mode)> {
    let lock = |lock: v1::HistoryLock| {
        let mode = wire::mode(lock.mode(), lock.permits);
        (lock.name, mode)
    };
    locks.into_iter().map(lock).collect()
}

fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
