//! `LockService/History`: pages of what this node remembers.

use std::sync::Arc;

use holdfast_core::{Identity, Item, LockName, SessionId};
use holdfast_history::{
    Act, Cursor, Found, Hold, Names, Over, PAGE_RECORDS_MAX, Page, Query, Record, Stretch, What,
    Why,
};
use holdfast_proto::v1::history_entry::What as WireWhat;
use holdfast_proto::v1::{
    HistoryAct, HistoryClosed, HistoryElection, HistoryEnd, HistoryEntry, HistoryGap, HistoryHold,
    HistoryLock, HistoryMembers, HistoryRequest, HistoryResponse, LostReason,
};
use tokio::sync::Semaphore;
use tonic::Status;

use super::reads::check_prefix;
use super::status;
use crate::session::Hub;
use crate::session::answers::mode_of;

/// Entries of a page, if the caller names no number.
const LIMIT_DEFAULT: u32 = 1_000;
/// How many read at once: each takes a core and tens of mebibytes while it looks for a lock that is seldom held.
const READERS: usize = 2;
/// The first part of a page token; another layout of tokens will begin otherwise.
const TOKEN_VERSION: &str = "1.";

/// The history of this node, for callers.
#[derive(Debug)]
pub(super) struct Past {
    hub: Arc<Hub>,
    readers: Arc<Semaphore>,
}

impl Past {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self { hub, readers: Arc::new(Semaphore::new(READERS)) }
    }

    /// A page, read on a thread that may block. Dropping the future leaves the reading to its end.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION`: this node keeps no history. `RESOURCE_EXHAUSTED`: others read it. `INTERNAL`: the disk fails.
    pub(super) async fn read(&self, query: Query) -> Result<HistoryResponse, Status> {
        let Some(history) = self.hub.history().cloned() else {
            return Err(Status::failed_precondition(
                "this node keeps no history: its setting history_bytes is 0, or the files could not be opened when it \
                 started; ask another node",
            ));
        };
        let Ok(turn) = self.readers.clone().try_acquire_owned() else {
            return Err(Status::resource_exhausted(
                "others read the history of this node; try again in a moment",
            ));
        };
        let reading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            history.read(&query).map(on_the_wire)
        });
        match reading.await {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the history cannot be read");
                Err(Status::internal(format!("the history of this node cannot be read: {error}")))
            }
            Err(_) => Err(Status::cancelled("this node stops")),
        }
    }
}

/// What is asked for.
///
/// # Errors
///
/// `INVALID_ARGUMENT`.
pub(super) fn read_request(request: &HistoryRequest) -> Result<Query, Status> {
    let HistoryRequest { name, prefix, session_id, since_ms, until_ms, limit, page_token } =
        request;
    check_prefix(prefix)?;
    let names = match name {
        Some(_) if !prefix.is_empty() => {
            return Err(status::invalid("either a name or a prefix, not both".to_owned()));
        }
        Some(name) => {
            let name = LockName::parse(name);
            Names::One(name.map_err(|error| status::of_text_error("lock name", &error))?)
        }
        None if prefix.is_empty() => Names::All,
        None => Names::Prefix(prefix.clone()),
    };
    if session_id.is_some() && names != Names::All {
        let message = "a session's history is that of all its locks: neither name nor prefix";
        return Err(status::invalid(message.to_owned()));
    }
    let limit = if *limit == 0 { LIMIT_DEFAULT } else { *limit };
    let limit = usize::try_from(limit).ok().filter(|limit| *limit <= PAGE_RECORDS_MAX);
    let too_many = || status::invalid(format!("limit is at most {PAGE_RECORDS_MAX}"));
    Ok(Query {
        names,
        session: session_id.map(SessionId::new),
        since_ms: *since_ms,
        until_ms: (*until_ms > 0).then_some(*until_ms),
        before: before(page_token)?,
        limit: limit.ok_or_else(too_many)?,
    })
}

/// The name, or the prefix of names, that a caller needs the right on.
pub(super) fn names(query: &Query) -> &str {
    match &query.names {
        Names::All => "",
        Names::One(name) => name.as_str(),
        Names::Prefix(prefix) => prefix,
    }
}

fn before(token: &str) -> Result<Option<Cursor>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let place = token.strip_prefix(TOKEN_VERSION).and_then(|place| place.split_once('.'));
    let cursor = place.and_then(|(index, nth)| {
        Some(Cursor { index: index.parse().ok()?, nth: nth.parse().ok()? })
    });
    let bad = "the page_token is not one that History gave; begin without one";
    cursor.map(Some).ok_or_else(|| status::invalid(bad.to_owned()))
}

fn on_the_wire(page: Page) -> HistoryResponse {
    let token = |Cursor { index, nth }: Cursor| format!("{TOKEN_VERSION}{index}.{nth}");
    HistoryResponse {
        node_id: 0,
        through_index: page.through.unwrap_or_default(),
        entries: page.found.into_iter().map(entry).collect(),
        earlier_page_token: page.earlier.map(token).unwrap_or_default(),
        begins_after: page.begins_after,
    }
}

fn entry(found: Found) -> HistoryEntry {
    match found {
        Found::Record(Record { index, at_ms, what }) => {
            HistoryEntry { index, at_ms, what: Some(what_of(what)) }
        }
        Found::Gap(Stretch { after, through }) => HistoryEntry {
            index: through,
            at_ms: 0,
            what: Some(WireWhat::Gap(HistoryGap { after, through })),
        },
    }
}

fn what_of(what: What) -> WireWhat {
    match what {
        What::Held(hold) => WireWhat::Held(held(&hold)),
        What::Over(Over { session, token, items, why }) => WireWhat::Over(HistoryEnd {
            session_id: session.get(),
            token: token.get(),
            locks: locks(&items),
            reason: reason(why).into(),
        }),
        What::Closed { session, token, items, reason } => WireWhat::Closed(HistoryClosed {
            session_id: session.get(),
            token: token.get(),
            locks: locks(&items),
            reason: reason.as_str().to_owned(),
        }),
        What::Act(Act { by, verb, on, detail }) => {
            WireWhat::Act(HistoryAct { identity: identity(&by), verb, on, detail })
        }
        What::Elected { tenure } => WireWhat::Elected(HistoryElection { tenure }),
        What::Members { voters, learners } => {
            WireWhat::Members(HistoryMembers { voters, learners })
        }
    }
}

fn held(hold: &Hold) -> HistoryHold {
    HistoryHold {
        session_id: hold.session.get(),
        request_id: hold.request.get(),
        token: hold.token.get(),
        locks: locks(&hold.items),
        label: hold.label.as_str().to_owned(),
        note: hold.note.as_str().to_owned(),
        identity: identity(&hold.identity),
        imported: hold.imported,
    }
}

fn identity(identity: &Identity) -> String {
    if identity.is_anonymous() { String::new() } else { identity.to_string() }
}

fn locks(items: &[Item]) -> Vec<HistoryLock> {
    let lock = |item: &Item| HistoryLock {
        name: item.lock.as_str().to_owned(),
        mode: mode_of(item.mode).into(),
        permits: item.mode.permits(),
    };
    items.iter().map(lock).collect()
}

fn reason(why: Why) -> LostReason {
    match why {
        Why::Released => LostReason::Unspecified,
        Why::Closed => LostReason::SessionClosed,
        Why::Expired => LostReason::SessionExpired,
        Why::EpochRaised => LostReason::EpochRaised,
        Why::Revoked => LostReason::Revoked,
        Why::Forced => LostReason::Forced,
    }
}
