//! Linearizable reads of the lock table (I18). One that fails changes nothing either.

use std::collections::BTreeSet;

use holdfast_core::{
    Caller, FencingToken, LockName, LockTable, LockView, LogIndex, RequestState, RequestView,
    SessionId, SessionView, Verb, WaiterView,
};
use holdfast_mutants::mutant;
use holdfast_proto::v1::{
    self, CheckTokenRequest, CheckTokenResponse, InspectRequest, InspectResponse,
    InspectSessionRequest, InspectSessionResponse, ListFreezesResponse, ListRequest, ListResponse,
    ListSequencesRequest, ListSequencesResponse, LockInfo, SessionInfo, SessionRequest, WaiterInfo,
    session_request,
};
use tonic::Status;

use super::access::forbidden;
use super::status;
use crate::session::Hub;
use crate::session::answers::{
    HOLDERS_SHOWN, closed_lock, freeze_of, holder_of, identity_of, limit_of, mode_of, now_ms,
    scope_of, value_of,
};
use crate::session::busy::heat::Rates;
use crate::session::busy::{Busiest, Order};

/// Most waiters that Inspect lists.
const WAITERS_SHOWN: usize = 100;
/// Most requests that are shown of a session.
const REQUESTS_SHOWN: usize = 1_000;
/// Most names that are shown of each request.
const NAMES_SHOWN: usize = 100;
/// Bytes of names after which no further request of a session is shown: the answer is made under the
/// table's lock, and has to stay below what a client takes.
const NAME_BYTES_SHOWN: usize = 1 << 20;
/// Most holders that List shows of each lock: a page of them stays well below a message's limit.
const HOLDERS_LISTED: usize = 4;
/// Locks on a page of List, if the caller names no number.
const PAGE_DEFAULT: u32 = 100;
/// Most locks on a page of List.
const PAGE_MAX: u32 = 1_000;
/// Locks that Busiest shows, if the caller names no number, and at most.
const BUSIEST_DEFAULT: u32 = 50;
const BUSIEST_MAX: u32 = 200;
/// The first part of a page token; another layout of tokens will begin otherwise.
const TOKEN_VERSION: &str = "1";

/// One lock as of a linearizable read.
pub(super) async fn inspect(
    hub: &Hub,
    caller: &Caller,
    request: &InspectRequest,
) -> Result<InspectResponse, Status> {
    let name = LockName::parse(&request.name)
        .map_err(|error| status::of_text_error("lock name", &error))?;
    linearizable(hub, (caller, name.as_str()), |table, index, now_ms| {
        let lock = table.lock(&name).map(|lock| {
            let queue = waiters(table, &lock, now_ms);
            let value = lock.value.map(value_of);
            LockInfo { queue, value, ..info(hub, &lock, HOLDERS_SHOWN, now_ms) }
        });
        let lock = lock.or_else(|| frozen_and_free(table, &name, now_ms));
        InspectResponse { index: index.get(), lock }
    })
    .await
}

/// A lock of which the table has nothing, if a freeze lies over its name: nobody is granted it all the same.
fn frozen_and_free(table: &LockTable, name: &LockName, now_ms: u64) -> Option<LockInfo> {
    let (prefix, freeze) = table.freeze_over(name)?;
    let frozen = Some(freeze_of(prefix, freeze, now_ms));
    Some(LockInfo { name: name.as_str().to_owned(), frozen, ..LockInfo::default() })
}

/// One page of locks as of a linearizable read.
pub(super) async fn list(
    hub: &Hub,
    caller: &Caller,
    request: &ListRequest,
) -> Result<ListResponse, Status> {
    let prefix = &request.prefix;
    check_prefix(prefix)?;
    let size = page_size(request.page_size)?;
    let after = after(&request.page_token, prefix)?;
    linearizable(hub, (caller, prefix), |table, index, now_ms| {
        let locks = table.locks_after(prefix, after.as_ref(), size + 1);
        let locks = locks.map(|lock| info(hub, &lock, HOLDERS_LISTED, now_ms));
        let (locks, next_page_token) = page(locks, size, |lock| &lock.name);
        ListResponse { index: index.get(), locks, next_page_token }
    })
    .await
}

/// The busiest locks of a prefix, as of a linearizable read.
pub(super) async fn busiest(
    hub: &Hub,
    caller: &Caller,
    request: &v1::BusiestRequest,
) -> Result<v1::BusiestResponse, Status> {
    let prefix = &request.prefix;
    check_prefix(prefix)?;
    let limit = match request.limit {
        0 => BUSIEST_DEFAULT,
        limit if limit <= BUSIEST_MAX => limit,
        limit => return Err(status::invalid(format!("limit {limit} is above {BUSIEST_MAX}"))),
    };
    let order = match request.order() {
        v1::BusiestOrder::Unspecified | v1::BusiestOrder::Hottest => Order::Hottest,
        v1::BusiestOrder::LongestQueue => Order::LongestQueue,
        v1::BusiestOrder::LongestHeld => Order::LongestHeld,
    };
    // Whoever may not read, or asks a node that does not lead, has nothing looked at.
    linearizable(hub, (caller, prefix), |_, _, _| ()).await?;
    let found = hub.busiest(prefix, order).await;
    linearizable(hub, (caller, prefix), |table, index, now_ms| {
        let may_read_all = table.rules().allows(caller, Verb::Read, [""]).is_ok();
        v1::BusiestResponse {
            index: index.get(),
            locks: ranked(hub, table, &found, (order, limit as usize), now_ms),
            complete: found.is_whole,
            totals: may_read_all.then(|| totals(table, &found.rates)),
        }
    })
    .await
}

fn totals(table: &LockTable, rates: &Rates) -> v1::Totals {
    let (counts, rate) = (table.counts(), rates.total());
    v1::Totals {
        sessions: counts.sessions,
        locks_held: counts.held,
        waiters: counts.waiting,
        grants_per_second: rate.grants,
        waits_per_second: rate.waits,
    }
}

/// The candidates that are busy as the table is now, the busiest first.
fn ranked(
    hub: &Hub,
    table: &LockTable,
    found: &Busiest,
    (order, limit): (Order, usize),
    now_ms: u64,
) -> Vec<v1::BusyLock> {
    let names: BTreeSet<&LockName> = found.names.iter().collect();
    let mut ranked: Vec<_> = names
        .into_iter()
        .filter_map(|name| {
            let (lock, rate) = (table.lock(name)?, found.rates.of(name));
            let since_ms = lock.holders().next().map(|holder| holder.since_ms);
            let weight = match order {
                Order::Hottest => (rate.grants + rate.waits, lock.waiting),
                Order::LongestQueue if lock.waiting > 0 => (0.0, lock.waiting),
                Order::LongestHeld => (0.0, u64::MAX - since_ms?),
                Order::LongestQueue => return None,
            };
            Some((weight, rate, lock))
        })
        .collect();
    let busier =
        |one: &(f64, u64), other: &(f64, u64)| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1));
    // Where they are alike, in the order of their names: sorting is stable.
    ranked.sort_by(|(one, ..), (other, ..)| busier(one, other));
    let shown = ranked.iter().take(limit).map(|(_, rate, lock)| v1::BusyLock {
        lock: Some(info(hub, lock, HOLDERS_LISTED, now_ms)),
        grants_per_second: rate.grants,
        waits_per_second: rate.waits,
    });
    shown.collect()
}

/// One page of sessions as of a linearizable read. Each may name any lock: only a caller that may read all of them sees
/// them.
pub(super) async fn list_sessions(
    hub: &Hub,
    caller: &Caller,
    request: &v1::ListSessionsRequest,
) -> Result<v1::ListSessionsResponse, Status> {
    let size = page_size(request.page_size)?;
    let after = match request.page_token.as_str() {
        "" => None,
        token => {
            let id = token.strip_prefix(TOKEN_VERSION).and_then(|id| id.parse().ok());
            let bad = "the page_token is not one that ListSessions gave; begin without one";
            Some(SessionId::new(id.ok_or_else(|| status::invalid(bad.to_owned()))?))
        }
    };
    let answer = linearizable(hub, (caller, ""), |table, index, now_ms| {
        let mut found = table.sessions_after(after.as_ref());
        let sessions: Vec<_> =
            found.by_ref().take(size).map(|session| session_head(&session, now_ms)).collect();
        let last = sessions.last().filter(|_| found.next().is_some());
        let next = last.map(|last: &SessionInfo| format!("{TOKEN_VERSION}{}", last.session_id));
        v1::ListSessionsResponse {
            index: index.get(),
            next_page_token: next.unwrap_or_default(),
            sessions,
        }
    });
    let mut answer = answer.await?;
    answer.sessions.iter_mut().for_each(|session| add_left(hub, session));
    Ok(answer)
}

/// The leases are known to the leader alone, and not as of an index.
fn add_left(hub: &Hub, session: &mut SessionInfo) {
    let left = hub.lease_left(SessionId::new(session.session_id));
    session.left_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
}

/// One page of sequences as of a linearizable read.
pub(super) async fn list_sequences(
    hub: &Hub,
    caller: &Caller,
    request: &ListSequencesRequest,
) -> Result<ListSequencesResponse, Status> {
    let prefix = &request.prefix;
    check_prefix(prefix)?;
    let size = page_size(request.page_size)?;
    let after = after(&request.page_token, prefix)?;
    linearizable(hub, (caller, prefix), |table, index, _| {
        let shown = |(name, last): (&LockName, u64)| v1::Sequence { name: name.to_string(), last };
        let sequences = table.sequences_after(prefix, after.as_ref()).map(shown);
        let (sequences, next_page_token) = page(sequences, size, |sequence| &sequence.name);
        ListSequencesResponse { index: index.get(), sequences, next_page_token }
    })
    .await
}

/// One session as of a linearizable read. It may name any lock: only a caller that may read all of them sees it.
pub(super) async fn inspect_session(
    hub: &Hub,
    caller: &Caller,
    request: &InspectSessionRequest,
) -> Result<InspectSessionResponse, Status> {
    let id = SessionId::new(request.session_id);
    let answer = linearizable(hub, (caller, ""), |table, index, now_ms| {
        let session = table.session(id).map(|found| session_info(table, &found, now_ms));
        InspectSessionResponse { index: index.get(), session }
    });
    let mut answer = answer.await?;
    answer.session.iter_mut().for_each(|session| add_left(hub, session));
    Ok(answer)
}

/// Every freeze as of a linearizable read. Any name may lie under one: only a caller that may read all of them is answered.
pub(super) async fn list_freezes(
    hub: &Hub,
    caller: &Caller,
) -> Result<ListFreezesResponse, Status> {
    linearizable(hub, (caller, ""), |table, index, now_ms| {
        let freezes = table.freezes().map(|(prefix, freeze)| freeze_of(prefix, freeze, now_ms));
        ListFreezesResponse { index: index.get(), freezes: freezes.collect() }
    })
    .await
}

fn session_info(table: &LockTable, found: &SessionView<'_>, now_ms: u64) -> SessionInfo {
    let (mut request_count, mut name_bytes) = (0, 0);
    let mut requests = Vec::new();
    for request in table.requests(found.session) {
        let has_room = requests.len() < REQUESTS_SHOWN && name_bytes < NAME_BYTES_SHOWN;
        let names_shown = if has_room { NAMES_SHOWN } else { 0 };
        let Some(shown) = session_request(&request, names_shown, now_ms) else { continue };
        request_count += 1;
        if has_room {
            name_bytes += shown.names.iter().map(String::len).sum::<usize>();
            requests.push(shown);
        }
    }
    SessionInfo { requests, request_count, ..session_head(found, now_ms) }
}

/// A session without its requests.
fn session_head(found: &SessionView<'_>, now_ms: u64) -> SessionInfo {
    SessionInfo {
        session_id: found.session.get(),
        label: found.label.as_str().to_owned(),
        ttl_ms: found.ttl_ms,
        age_ms: now_ms.saturating_sub(found.opened_ms),
        imported: found.imported,
        requests: Vec::new(),
        request_count: found.requests,
        identity: identity_of(found.caller),
        revoked: found.revoked.map(|reason| reason.as_str().to_owned()),
        left_ms: None,
    }
}

/// The request as it is shown; `None` if it neither holds nor waits.
fn session_request(
    request: &RequestView,
    names_shown: usize,
    now_ms: u64,
) -> Option<SessionRequest> {
    let (items, since_ms, state, ending) = match &request.state {
        RequestState::Held { token, items, since_ms, is_ending } => {
            (items, since_ms, session_request::State::Held(token.get()), *is_ending)
        }
        RequestState::Waiting { place, since_ms } => {
            (&request.items, since_ms, session_request::State::Place(*place), false)
        }
        RequestState::Denied { .. } | RequestState::Wrote | RequestState::Ended => return None,
    };
    let names = items.iter().take(names_shown).map(|item| item.lock.as_str().to_owned());
    Some(SessionRequest {
        request_id: request.request.get(),
        names: names.collect(),
        name_count: items.len() as u64,
        since_ms: now_ms.saturating_sub(*since_ms),
        state: Some(state),
        ending,
    })
}

/// Whether exactly this grant holds a lock, as of a linearizable read.
pub(super) async fn check_token(
    hub: &Hub,
    caller: &Caller,
    request: &CheckTokenRequest,
) -> Result<CheckTokenResponse, Status> {
    let name = LockName::parse(&request.name)
        .map_err(|error| status::of_text_error("lock name", &error))?;
    let token = FencingToken::from_raw(request.token);
    linearizable(hub, (caller, name.as_str()), |table, index, _| {
        let current = table.grant_is_current(&name, token);
        CheckTokenResponse { index: index.get(), current }
    })
    .await
}

/// Reads a state that holds everything that was committed when this was called; the last argument of
/// `look` is the time for people, Unix milliseconds.
///
/// # Errors
///
/// `PERMISSION_DENIED` if the caller may not read that name, or all that begin with that prefix; the status
/// of a read that was not answered.
pub(super) async fn linearizable<T>(
    hub: &Hub,
    (caller, name): (&Caller, &str),
    look: impl FnOnce(&LockTable, LogIndex, u64) -> T,
) -> Result<T, Status> {
    let (consensus, clock) = (hub.consensus(), &hub.runtime().clock);
    if !mutant!(ReadWithoutQuorum) {
        consensus.confirm().await.map_err(|error| status::of_propose_error(&error))?;
    }
    let mut look = Some(look);
    let mut seen = None;
    consensus.read(&mut |table, index| {
        if let Some(look) = look.take() {
            let allowed = table.rules().allows(caller, Verb::Read, [name]);
            seen = Some(allowed.map(|()| look(table, index, now_ms(table, &**clock))));
        }
    });
    let seen = seen.ok_or_else(|| Status::internal("the table was not read"))?;
    seen.map_err(|missing| forbidden(hub, caller, missing))
}

/// Checks that a prefix is empty or a valid name.
///
/// # Errors
///
/// `INVALID_ARGUMENT` with the rule it breaks.
pub(super) fn check_prefix(prefix: &str) -> Result<(), Status> {
    if prefix.is_empty() {
        return Ok(());
    }
    let parsed = LockName::parse(prefix);
    parsed.map(drop).map_err(|error| status::of_text_error("prefix", &error))
}

fn page_size(asked: Option<u32>) -> Result<usize, Status> {
    let size = asked.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&size) {
        let message = format!("page_size {size} is outside 1 to {PAGE_MAX}");
        return Err(status::invalid(message));
    }
    Ok(size as usize)
}

/// The first `size` of what is listed, and the token for the page after them; empty if there is none.
fn page<T>(
    listed: impl Iterator<Item = T>,
    size: usize,
    name: impl Fn(&T) -> &str,
) -> (Vec<T>, String) {
    // One more than a page has shows whether there is a next one.
    let mut page: Vec<T> = listed.take(size + 1).collect();
    let more = page.len() > size;
    page.truncate(size);
    let last = page.last().filter(|_| more);
    let next = last.map(|last| token(name(last))).unwrap_or_default();
    (page, next)
}

/// The token for the page after the lock `last`.
pub(super) fn token(last: &str) -> String {
    format!("{TOKEN_VERSION}{}", hex::encode(last))
}

/// The lock after which a page begins; `None` for the first page.
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
    name.map(Some).ok_or_else(|| status::invalid(bad.to_owned()))
}

fn info(hub: &Hub, lock: &LockView<'_>, holders_shown: usize, now_ms: u64) -> LockInfo {
    let holders = lock.holders().take(holders_shown);
    LockInfo {
        name: lock.name.as_str().to_owned(),
        holders: holders.map(|holder| holder_of(&holder, now_ms)).collect(),
        held_by: lock.held_by,
        waiting: lock.waiting,
        has_value: lock.value.is_some(),
        scope: scope_of(lock),
        limit: limit_of(lock),
        frozen: lock.frozen().map(|(prefix, freeze)| freeze_of(prefix, freeze, now_ms)),
        closed: lock
            .closed
            .map(|closed| closed_lock(closed, hub.closed_for(lock.name, closed), now_ms)),
        ..LockInfo::default()
    }
}

fn waiters(table: &LockTable, lock: &LockView<'_>, now_ms: u64) -> Vec<WaiterInfo> {
    let shown = lock.waiters().take(WAITERS_SHOWN).map(|waiter| WaiterInfo {
        session_id: waiter.session.get(),
        label: waiter.label.as_str().to_owned(),
        request_id: waiter.request.get(),
        waiting_ms: now_ms.saturating_sub(waiter.since_ms),
        mode: mode_of(waiter.mode).into(),
        permits: waiter.mode.permits(),
        names: names_asked_for(table, &waiter),
        imported: waiter.imported,
        identity: identity_of(waiter.caller),
        note: waiter.note.to_owned(),
        head_start_ms: waiter.head_start_ms.into(),
    });
    shown.collect()
}

fn names_asked_for(table: &LockTable, waiter: &WaiterView<'_>) -> u32 {
    let asked = table.request(waiter.session, waiter.request);
    asked.map_or(0, |asked| u32::try_from(asked.items.len()).unwrap_or(u32::MAX))
}
