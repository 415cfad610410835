//! The locks that matter most, and the sessions that are open: what a screen shows.

use holdfast_proto::v1;

use crate::transport::operator::Services;
use crate::{Admin, LockInfo, Result, SessionInfo};

/// By which measure locks matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusyOrder {
    /// Most grants and requests in the last seconds; where there are none, longest queues.
    #[default]
    Hottest,
    /// Most waiters.
    LongestQueue,
    /// Held by one holder for the longest time.
    LongestHeld,
}

/// The locks that matter most.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Busiest {
    /// The first one matters most.
    pub locks: Vec<BusyLock>,
    /// All locks of the prefix were looked at since somebody began to ask; until then some may be missing.
    pub is_complete: bool,
    /// Of the whole cluster; only for a caller that may read all names.
    pub totals: Option<Totals>,
}

/// A lock, and how much happens to it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BusyLock {
    /// The lock, as of [`Reader::list`](crate::Reader::list).
    pub lock: LockInfo,
    /// Grants a second, over the last 5 to 10 seconds.
    pub grants_per_second: f64,
    /// Requests that had to wait, a second.
    pub waits_per_second: f64,
}

/// How much there is, and happens, in the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Totals {
    /// Sessions that are open.
    pub sessions: u64,
    /// Locks that are held.
    pub locks_held: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// Grants a second, over the last 5 to 10 seconds.
    pub grants_per_second: f64,
    /// Requests that had to wait, a second.
    pub waits_per_second: f64,
}

/// Some of the open sessions.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionPage {
    /// Without their requests; [`SessionInfo::request_count`] counts those that the store keeps.
    pub sessions: Vec<SessionInfo>,
    /// For the page after this one, if there is one.
    pub next: Option<String>,
}

impl Admin {
    /// The locks whose names begin with `prefix` and that matter most by a measure, as they are; at most `limit` (1 to 200).
    /// The leader begins to count when somebody asks, and goes on for half a minute: of a large store the first answers
    /// know only a part. Needs the verb `read` on the prefix.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn busiest(&self, prefix: &str, order: BusyOrder, limit: u32) -> Result<Busiest> {
        let order = match order {
            BusyOrder::Hottest => v1::BusiestOrder::Hottest,
            BusyOrder::LongestQueue => v1::BusiestOrder::LongestQueue,
            BusyOrder::LongestHeld => v1::BusiestOrder::LongestHeld,
        };
        let request = v1::BusiestRequest { prefix: prefix.to_owned(), order: order.into(), limit };
        let read = |mut at: Services| {
            let request = request.clone();
            async move { at.locks.busiest(request).await }
        };
        let found = self.ask("reading the busiest locks", false, read).await?;
        Ok(Busiest {
            locks: found.locks.into_iter().filter_map(BusyLock::from_wire).collect(),
            is_complete: found.complete,
            totals: found.totals.map(Totals::from_wire),
        })
    }

    /// One page of the open sessions: at most `size` (1 to 1,000), after the page whose [`SessionPage::next`] is passed.
    /// Needs the verb `read` on all names.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn sessions(&self, size: u32, after: Option<&str>) -> Result<SessionPage> {
        let page_token = after.unwrap_or_default().to_owned();
        let request = v1::ListSessionsRequest { page_size: Some(size), page_token };
        let read = |mut at: Services| {
            let request = request.clone();
            async move { at.locks.list_sessions(request).await }
        };
        let page = self.ask("listing sessions", false, read).await?;
        Ok(SessionPage {
            sessions: page.sessions.into_iter().map(SessionInfo::from_wire).collect(),
            next: Some(page.next_page_token).filter(|token| !token.is_empty()),
        })
    }
}

impl BusyLock {
    fn from_wire(busy: v1::BusyLock) -> Option<Self> {
        Some(Self {
            lock: LockInfo::from_wire(busy.lock?),
            grants_per_second: busy.grants_per_second,
            waits_per_second: busy.waits_per_second,
        })
    }
}

impl Totals {
    fn from_wire(totals: v1::Totals) -> Self {
        Self {
            sessions: totals.sessions,
            locks_held: totals.locks_held,
            waiters: totals.waiters,
            grants_per_second: totals.grants_per_second,
            waits_per_second: totals.waits_per_second,
        }
    }
}
