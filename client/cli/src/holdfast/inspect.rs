//! `holdfast list`, `inspect`, `session` and `check-token`: what the store says, once.

use std::time::Duration;

use holdfast::{
    ClosedLock, Holder, LockInfo, Mode, PermitLimit, Reader, RequestState, SessionInfo,
    SessionRequest, Waiter,
};
use holdfast_cli::block_on;
use serde_json::{Value, json};

use crate::args::Global;
use crate::failure::{Failure, REFUSED};
use crate::{freeze, show};

/// Locks in one page.
const PAGE_SIZE: u32 = 1_000;
/// The token is not that of a current grant of the lock.
const NOT_CURRENT: u8 = 1;

/// `holdfast list`.
pub(crate) fn list(global: &Global, prefix: &str) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    block_on(async {
        if global.json {
            print_json(&reader, prefix).await
        } else {
            print_table(&reader, prefix).await
        }
    })??;
    Ok(0)
}

/// Prints one line for each lock, page by page, so that a program can read them as they come.
async fn print_json(reader: &Reader, prefix: &str) -> Result<(), Failure> {
    let mut after = None;
    loop {
        let page = reader.page(prefix, PAGE_SIZE, after.as_deref()).await?;
        for lock in &page.locks {
            show::line(json!({
                "name": lock.name,
                "held_by": lock.held_by,
                "holders": lock.holders.iter().map(show::holder).collect::<Vec<_>>(),
                "waiting": lock.waiting,
                "has_value": lock.has_value,
                "limit": lock.limit.map(limit_json),
            }));
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

async fn print_table(reader: &Reader, prefix: &str) -> Result<(), Failure> {
    let locks = reader.list(prefix).await?;
    if locks.is_empty() {
        let about = if prefix.is_empty() {
            String::new()
        } else {
            format!(" below {}", show::escaped(prefix))
        };
        show::line(format!("no lock{about} is held, waited for, or has a value or a limit"));
        return Ok(());
    }
    let header = ["LOCK", "HELD BY", "MODE", "FOR", "TOKEN", "WAITING", "VALUE"];
    show::line(show::table(&header, locks.iter().map(row)));
    Ok(())
}

fn row(lock: &LockInfo) -> [String; 7] {
    let holder = lock.holders.first();
    let of_holder = |show: &dyn Fn(&Holder) -> String| holder.map(show).unwrap_or_default();
    let others = match lock.held_by {
        0 | 1 => String::new(),
        number => format!(" and {} more", number - 1),
    };
    [
        show::escaped(&lock.name),
        match &lock.closed {
            Some(closed) => format!("closed for another {}", show::length(closed.left)),
            None => of_holder(&|holder| {
                let label = show::label(&holder.label, &holder.identity, holder.is_imported);
                format!("{label}{others}{}", show::note(&holder.note))
            }),
        },
        match lock.limit {
            Some(PermitLimit { permits, used, .. }) => format!("{used} of {permits} permits"),
            None => of_holder(&|holder| holder.mode.to_string()),
        },
        of_holder(&|holder| show::length(holder.held)),
        of_holder(&|holder| holder.token.to_string()),
        lock.waiting.to_string(),
        if lock.has_value { "yes".into() } else { String::new() },
    ]
}

/// `holdfast inspect`.
pub(crate) fn lock(global: &Global, name: &str) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    let lock = block_on(reader.inspect(name))??;
    let mut lock = lock.unwrap_or_default();
    name.clone_into(&mut lock.name);
    if global.json {
        show::line(lock_json(&lock));
    } else {
        print_lock(&lock);
    }
    Ok(0)
}

fn lock_json(lock: &LockInfo) -> Value {
    json!({
        "name": lock.name,
        "held_by": lock.held_by,
        "holders": lock.holders.iter().map(show::holder).collect::<Vec<_>>(),
        "waiting": lock.waiting,
        "queue": lock.queue.iter().map(show::waiter).collect::<Vec<_>>(),
        "value": lock.value.as_ref().map(show::value),
        "limit": lock.limit.map(limit_json),
        "frozen": lock.frozen.as_ref().map(freeze::as_json),
        "closed": lock.closed.as_ref().map(closed_json),
        "scope": lock.scope.as_ref().map(|scope| {
            json!({
                "prefix": scope.prefix,
                "epoch": scope.epoch,
                "suspended": scope.suspended,
            })
        }),
    })
}

fn closed_json(closed: &ClosedLock) -> Value {
    json!({
        "token": closed.token.to_string(),
        "label": closed.label,
        "identity": closed.identity,
        "closed_ms": show::millis(closed.closed),
        "left_ms": show::millis(closed.left),
        "hold_at_least_ms": show::millis(closed.hold_at_least),
    })
}

/// `closed for another 40 s: host:1 held it and asked for 60 s at least`.
fn closed_text(closed: &ClosedLock) -> String {
    let label = show::label(&closed.label, &closed.identity, false);
    let (left, least) = (show::length(closed.left), show::length(closed.hold_at_least));
    format!("closed for another {left}: {label} held it, for {least} at least")
}

fn limit_json(limit: PermitLimit) -> Value {
    json!({
        "permits": limit.permits,
        "used": limit.used,
        "for_good": limit.is_for_good,
    })
}

fn print_lock(lock: &LockInfo) {
    let name = show::escaped(&lock.name);
    let suspended = lock.scope.as_ref().is_some_and(|scope| scope.suspended);
    if lock.holders.is_empty() && suspended && lock.waiting > 0 {
        show::line(format!("{name} is not held, and waits for the scope's authority"));
    } else if let Some(closed) = &lock.closed {
        show::line(format!("{name} is {}", closed_text(closed)));
    } else if lock.holders.is_empty() && lock.frozen.is_some() {
        show::line(format!("{name} is not held"));
    } else if lock.holders.is_empty() {
        show::line(format!("{name} is free"));
    }
    for holder in &lock.holders {
        show::line(held(&name, holder));
    }
    more(lock.held_by, lock.holders.len());
    for (place, waiter) in (0_u64..).zip(&lock.queue) {
        show::line(format!("  {}: {}", show::place(place), waits(waiter)));
    }
    more(lock.waiting, lock.queue.len());
    if let Some(limit) = &lock.limit {
        let PermitLimit { permits, used, is_for_good, .. } = limit;
        let for_good = if *is_for_good { "; the limit is for good" } else { "" };
        show::line(format!("  {used} of {permits} permits are held{for_good}"));
    }
    if let Some(frozen) = &lock.frozen {
        show::line(format!("  {}", freeze::text(frozen)));
    }
    if let Some(value) = &lock.value {
        let suspect = if value.is_suspect { "; suspect: the grant was lost" } else { "" };
        let text = show::value_text(value);
        show::line(format!("  value {text}, set under token {}{suspect}", value.token));
    }
    if let Some(scope) = &lock.scope {
        let suspended = if scope.suspended { "; suspended: nobody is granted it now" } else { "" };
        let prefix = show::escaped(&scope.prefix);
        show::line(format!("  in the scope {prefix}, epoch {}{suspended}", scope.epoch));
    }
}

/// Prints how many of `all` are not shown.
fn more(all: u64, shown: usize) {
    let shown = u64::try_from(shown).unwrap_or(u64::MAX);
    if all > shown {
        show::line(format!("  and {} more", all - shown));
    }
}

/// `jobs is held by host:1, session 7, for 3 s under token 5`.
fn held(name: &str, holder: &Holder) -> String {
    let how = match holder.mode {
        Mode::Shared => "shared".to_owned(),
        Mode::Exclusive => "held".to_owned(),
        Mode::Permits { .. } => format!("held ({})", holder.mode),
    };
    let (label, token) =
        (show::label(&holder.label, &holder.identity, holder.is_imported), holder.token);
    let ending = if holder.is_ending { ", and was taken away: it ends soon" } else { "" };
    let held = show::length(holder.held);
    // Another store has no sessions.
    let session = match holder.session {
        0 => String::new(),
        id => format!(", session {id},"),
    };
    let note = show::note(&holder.note);
    let bounds = bounds(holder);
    format!(
        "{name} is {how} by {label}{session} for {held}{bounds} under token {token}{ending}{note}"
    )
}

/// ` (at least 60 s, at most 10 min)`.
fn bounds(holder: &Holder) -> String {
    let least = holder.hold_at_least.map(|least| format!("at least {}", show::length(least)));
    let most = holder.max_hold.map(|most| format!("at most {}", show::length(most)));
    let both: Vec<String> = least.into_iter().chain(most).collect();
    if both.is_empty() { String::new() } else { format!(" ({})", both.join(", ")) }
}

/// `host:1, waiting for 3 s to share it and 2 more locks`.
fn waits(waiter: &Waiter) -> String {
    let label = show::label(&waiter.label, &waiter.identity, waiter.is_imported);
    let length = show::length(waiter.waiting);
    let share = match waiter.mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => " to share it".to_owned(),
        Mode::Permits { .. } => format!(" for {}", waiter.mode),
    };
    let others = match waiter.names {
        0 | 1 => String::new(),
        2 => ", and 1 other lock".to_owned(),
        names => format!(", and {} other locks", names - 1),
    };
    let ahead = match waiter.head_start {
        Duration::ZERO => String::new(),
        ahead => format!(", with a head start of {}", show::length(ahead)),
    };
    let note = show::note(&waiter.note);
    format!("{label}, waiting for {length}{share}{others}{ahead}{note}")
}

/// `holdfast session`.
pub(crate) fn session(global: &Global, id: u64) -> Result<u8, Failure> {
    let admin = global.builder()?.admin(Global::connect_limit(None))?;
    let session = block_on(admin.session(id))??;
    let Some(session) = session else {
        let message = format!("there is no session {id}: it was never opened, or has ended");
        return Err(Failure::new(REFUSED, message));
    };
    if global.json {
        show::line(session_json(&session));
    } else {
        print_session(&session);
    }
    Ok(0)
}

fn session_json(session: &SessionInfo) -> Value {
    let of = |request: &SessionRequest| {
        let (held, place) = match request.state {
            RequestState::Held { token } => (Some(token.to_string()), None),
            RequestState::Waits { place } => (None, Some(place)),
        };
        json!({ "names": request.names, "names_in_all": request.name_count, "token": held,
                "place": place, "since_ms": show::millis(request.since), "ending": request.is_ending })
    };
    json!({
        "session": session.session.to_string(),
        "label": session.label,
        "ttl_ms": show::millis(session.ttl),
        "age_ms": show::millis(session.age),
        "left_ms": session.left.map(show::millis),
        "imported": session.is_imported,
        "identity": session.identity,
        "revoked": session.revoked,
        "requests": session.requests.iter().map(of).collect::<Vec<_>>(),
        "requests_in_all": session.request_count,
    })
}

fn print_session(session: &SessionInfo) {
    let SessionInfo { session: id, requests, request_count, .. } = session;
    let (ttl, age) = (show::length(session.ttl), show::length(session.age));
    let label = show::label(&session.label, &session.identity, false);
    let left = session.left.map(show::length);
    show::line(match (session.is_imported, left) {
        (true, Some(left)) => {
            format!("session {id} was imported for {label} {age} ago, and ends in {left}")
        }
        (true, None) => {
            format!("session {id} was imported for {label} {age} ago, for {ttl} at least")
        }
        (false, Some(left)) => {
            format!("session {id} of {label}, opened {age} ago, lease {ttl}, {left} of it left")
        }
        (false, None) => format!("session {id} of {label}, opened {age} ago, lease {ttl}"),
    });
    if let Some(reason) = &session.revoked {
        show::line(format!(
            "  ended by an operator: {}; its lease runs out",
            show::escaped(reason)
        ));
    }
    for request in requests {
        let ending = if request.is_ending { ", and has to give it up" } else { "" };
        let names: Vec<String> = request.names.iter().map(|name| show::escaped(name)).collect();
        let (names, since) = (names.join(", "), show::length(request.since));
        show::line(match request.state {
            RequestState::Held { token } => {
                format!("  holds {names} for {since} under token {token}{ending}")
            }
            RequestState::Waits { place } => {
                format!("  waits for {names} for {since}, {}", show::place(place))
            }
        });
    }
    if *request_count == 0 {
        show::line("  holds nothing and waits for nothing");
    }
    more(*request_count, requests.len());
}

/// `holdfast check-token`.
pub(crate) fn check_token(global: &Global, name: &str, token: u64) -> Result<u8, Failure> {
    let reader = global.builder()?.reader()?;
    let current = block_on(reader.check_token(name, token))??;
    let json = json!({ "name": name, "token": token.to_string(), "current": current });
    let is = if current { "is" } else { "is not" };
    let text = format!("{} {is} held under token {token}", show::escaped(name));
    show::either(global.json, json, text);
    Ok(if current { 0 } else { NOT_CURRENT })
}
