//! Linearizable reads of the lock table (I18).

use holdfast_core::{LockName, LockTable, LockView, LogIndex};
use holdfast_proto::v1::{
    InspectRequest, InspectResponse, ListRequest, ListResponse, LockInfo, WaiterInfo,
};
use tonic::Status;

use super::status;
use crate::session::Hub;
use crate::session::answers::{holder_of, now_ms};

/// Waiters that Inspect names.
const WAITERS_SHOWN: usize = 100;
/// Locks on a page of List, if the caller does not say.
const PAGE_DEFAULT: u32 = 100;
/// Most locks on a page of List.
const PAGE_MAX: u32 = 1_000;
/// What a page token begins with; another layout of tokens will begin otherwise.
const TOKEN_VERSION: &str = "1";

/// One lock as of a linearizable read.
///
/// # Errors
///
/// A status; nothing changes in any case.
pub(super) async fn inspect(
    hub: &Hub,
    request: &InspectRequest,
) -> Result<InspectResponse, Status> {
    let name = LockName::parse(&request.name)
        .map_err(|error| status::of_text_error("lock name", &error))?;
    linearizable(hub, |table, index, now_ms| {
        let lock = table.lock(&name).map(|lock| {
            let queue = waiters(&lock, now_ms);
            LockInfo { queue, ..info(&lock, now_ms) }
        });
        InspectResponse { index: index.get(), lock }
    })
    .await
}

/// One page of locks as of a linearizable read.
///
/// # Errors
///
/// A status; nothing changes in any case.
pub(super) async fn list(hub: &Hub, request: &ListRequest) -> Result<ListResponse, Status> {
    let prefix = &request.prefix;
    if !prefix.is_empty() {
        LockName::parse(prefix).map_err(|error| status::of_text_error("prefix", &error))?;
    }
    let size = page_size(request.page_size)?;
    let after = after(&request.page_token, prefix)?;
    linearizable(hub, |table, index, now_ms| {
        // One more than a page tells whether there is a next one.
        let mut locks: Vec<LockInfo> = table
            .locks_after(prefix, after.as_ref(), size + 1)
            .map(|lock| info(&lock, now_ms))
            .collect();
        let more = locks.len() > size;
        locks.truncate(size);
        let last = locks.last().filter(|_| more);
        let next_page_token = last.map(|last| token(&last.name)).unwrap_or_default();
        ListResponse { index: index.get(), locks, next_page_token }
    })
    .await
}

/// Looks at a state that holds everything that was committed when this was called; the last
/// argument of `look` is the time for people, Unix milliseconds.
async fn linearizable<T>(
    hub: &Hub,
    look: impl FnOnce(&LockTable, LogIndex, u64) -> T,
) -> Result<T, Status> {
    let (consensus, clock) = (hub.consensus(), &hub.seams().clock);
    consensus.confirm().await.map_err(|error| status::of_propose_error(&error))?;
    let mut look = Some(look);
    let mut seen = None;
    consensus.read(&mut |table, index| {
        if let Some(look) = look.take() {
            seen = Some(look(table, index, now_ms(table, &**clock)));
        }
    });
    seen.ok_or_else(|| Status::internal("the table was not read"))
}

fn page_size(asked: Option<u32>) -> Result<usize, Status> {
    let size = asked.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&size) {
        let message = format!("page_size {size} is outside 1 to {PAGE_MAX}");
        return Err(Status::invalid_argument(message));
    }
    Ok(size as usize)
}

/// The token for the page behind the lock `last`.
pub(super) fn token(last: &str) -> String {
    format!("{TOKEN_VERSION}{}", hex::encode(last))
}

/// The lock behind which a page begins; `None` for the first page.
fn after(token: &str, prefix: &str) -> Result<Option<LockName>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let name = token
        .strip_prefix(TOKEN_VERSION)
        .and_then(|digits| hex::decode(digits).ok())
        .and_then(|name| LockName::parse_bytes(&name).ok())
        .filter(|name| name.as_str().starts_with(prefix));
    let bad = "the page_token is not one that List gave for this prefix; begin without one";
    name.map(Some).ok_or_else(|| Status::invalid_argument(bad))
}

fn info(lock: &LockView<'_>, now_ms: u64) -> LockInfo {
    LockInfo {
        name: lock.name.as_str().to_owned(),
        holders: lock.holders().map(|holder| holder_of(&holder, now_ms)).collect(),
        waiting: lock.waiting,
        queue: Vec::new(),
    }
}

fn waiters(lock: &LockView<'_>, now_ms: u64) -> Vec<WaiterInfo> {
    let shown = lock.waiters().take(WAITERS_SHOWN).map(|waiter| WaiterInfo {
        session_id: waiter.session.get(),
        label: waiter.label.as_str().to_owned(),
        request_id: waiter.request.get(),
        waiting_ms: now_ms.saturating_sub(waiter.since_ms),
    });
    shown.collect()
}
