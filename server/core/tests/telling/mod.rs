//! The output of the scripts: events, outcomes and views as text for a reviewer.

#![expect(clippy::unwrap_used, reason = "what cannot be written fails the test")]

use std::fmt::Write as _;

use holdfast_core::{
    Acquired, Answer, Applied, Event, Fate, FencingToken, HolderView, Item, LockName, Mode,
    Outcome, Rejection, RequestId, RequestState, RequestView, ScopePrefix, ScopeState, SessionId,
    Value, Was,
};

pub(crate) fn who(session: SessionId, request: RequestId) -> String {
    format!("s{session}#{request}")
}

pub(crate) fn holder(held: &HolderView<'_>) -> String {
    let (sign, holder) = (sign(held.mode), who(held.grant.session, held.grant.request));
    let (token, since) = (number(held.grant.token), held.since_ms);
    let imported = if held.imported { ", imported" } else { "" };
    let ending = if held.is_ending { ", ending" } else { "" };
    let label = held.label.as_str();
    format!("{sign}{holder} ({label}{imported}{ending}) token={token} since={since}")
}

pub(crate) fn sign(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => "~".into(),
        Mode::Permits { count, limit } => format!("{count}/{limit}*"),
    }
}

/// A token; one of epoch 1 as its counter alone.
fn number(token: FencingToken) -> String {
    match token.epoch() {
        1 => token.counter().to_string(),
        epoch => format!("{epoch}:{}", token.counter()),
    }
}

pub(crate) fn scope_line(scope: &ScopePrefix, now: Option<ScopeState>) -> String {
    match now {
        Some(ScopeState { epoch, suspended, fresh }) => {
            let suspended = if suspended { ", suspended" } else { "" };
            let fresh = if fresh { ", and fresh" } else { "" };
            format!("scope {scope} is in epoch {epoch}{suspended}{fresh}")
        }
        None => format!("{scope} is no scope"),
    }
}

fn names(items: &[Item]) -> String {
    let names = items.iter().map(|item| format!("{}{}", sign(item.mode), item.lock));
    names.collect::<Vec<_>>().join(",")
}

pub(crate) fn value(value: &Value) -> String {
    let text = match str::from_utf8(&value.bytes) {
        Ok(text) if text.len() <= 32 => format!("{text:?}"),
        _ => format!("{} bytes", value.bytes.len()),
    };
    let suspect = if value.suspect { ", suspect" } else { "" };
    format!("{text} set_by={}{suspect}", number(value.set_by))
}

fn granted(token: FencingToken, items: &[Item], values: &[(LockName, Value)]) -> String {
    let values =
        values.iter().map(|(lock, carried)| format!(" ({lock} carries {})", value(carried)));
    format!("holds {} token={}{}", names(items), number(token), values.collect::<String>())
}

/// The suffix of a grant that still holds locks.
fn rest(over: bool) -> &'static str {
    if over { "" } else { ", and holds the rest" }
}

pub(crate) fn standing(request: &RequestView) -> String {
    match &request.state {
        RequestState::Waiting { place, .. } => format!("waits place={place}"),
        RequestState::Held { token, items, .. } if *items == request.items => {
            format!("holds token={}", number(*token))
        }
        RequestState::Held { token, items, .. } => {
            format!("holds {} of {} token={}", names(items), names(&request.items), number(*token))
        }
        RequestState::Denied { rejection: Rejection::LockHeld { holder, .. } } => {
            format!("denied by s{holder}")
        }
        RequestState::Denied { rejection } => format!("denied: {rejection}"),
        RequestState::Wrote => "wrote".into(),
        RequestState::Ended => "ended".into(),
    }
}

pub(crate) fn tell(applied: &Applied, output: &mut String) {
    for event in &applied.events {
        writeln!(output, "{}", event_line(event)).unwrap();
    }
    if let Some(line) = outcome_line(&applied.outcome) {
        writeln!(output, "{line}").unwrap();
    }
}

fn event_line(event: &Event) -> String {
    match event {
        Event::SessionOpened { session } => format!("s{session} opened"),
        Event::SessionEnded { session, cause } => format!("s{session} {cause:?}").to_lowercase(),
        Event::Queued { session, request, items, place } => {
            format!("{} waits for {} place={place}", who(*session, *request), names(items))
        }
        Event::Granted { session, request, token, items, values } => {
            format!("{} {}", who(*session, *request), granted(*token, items, values))
        }
        Event::Denied { session, request, items, .. } => {
            format!("{} is denied {}", who(*session, *request), names(items))
        }
        Event::Left { session, request, items } => {
            format!("{} no longer waits for {}", who(*session, *request), names(items))
        }
        Event::Released { session, request, token, items, over } => {
            let (who, names) = (who(*session, *request), names(items));
            format!("{who} gave back {names} token={}{}", number(*token), rest(*over))
        }
        Event::Lost { session, request, token, items, over, .. } => {
            let (who, names) = (who(*session, *request), names(items));
            format!("{who} lost {names} token={}{}", number(*token), rest(*over))
        }
        Event::Contended { session, request, lock, .. } => {
            format!("{} is told that others wait for {lock}", who(*session, *request))
        }
        Event::ValueChanged { lock, value: Some(now) } => format!("{lock} carries {}", value(now)),
        Event::ValueChanged { lock, value: None } => format!("{lock} carries no value"),
        Event::FreezeChanged { prefix, frozen } => {
            let now = if *frozen { "frozen" } else { "thawed" };
            format!("{:?} is {now}", prefix.as_str())
        }
        Event::LockClosed { lock, token, hold_at_least_ms } => {
            format!("{lock} is closed token={} least={hold_at_least_ms}", number(*token))
        }
        Event::LockOpened { lock, token } => format!("{lock} is open token={}", number(*token)),
        Event::ImportLengthened { session, ttl_ms } => format!("s{session} lasts {ttl_ms} more"),
        Event::ScopeChanged { scope, now } => scope_line(scope, *now),
        Event::RulesChanged => "the rules changed".into(),
        Event::SessionRevoked { session, reason } => {
            format!("s{session} is revoked: {}", reason.as_str())
        }
        Event::HoldClosed { session, request, token, reason } => {
            let (who, token) = (who(*session, *request), number(*token));
            format!("{who} has to give up token={token}: {}", reason.as_str())
        }
    }
}

/// The part of an outcome that the events do not show.
fn outcome_line(outcome: &Outcome) -> Option<String> {
    match outcome {
        Err(rejection) => Some(format!("rejected: {}", without_epochs(&rejection.to_string()))),
        Ok(Answer::Configured) => Some("limits set".into()),
        Ok(Answer::Advanced { first }) => Some(format!("from {first} on")),
        Ok(Answer::CarriedOn { more: true }) => Some("more is left".into()),
        Ok(Answer::Acquired { request, state, fresh: false }) => {
            Some(format!("again: #{request} {}", acquired(state)))
        }
        Ok(Answer::ValueSet { request, fresh: false }) => {
            Some(format!("again: #{request} wrote the value"))
        }
        Ok(Answer::Cancelled { request, was }) => Some(match was {
            Was::Waiting => format!("#{request} was waiting"),
            Was::Held { token } => format!("#{request} was held token={}", number(*token)),
            Was::Ended => format!("#{request} had ended"),
            Was::Unknown => format!("#{request} was never seen"),
        }),
        Ok(Answer::Imported { fates, .. }) => {
            Some(format!("imported: {}", fates.iter().map(fate).collect::<Vec<_>>().join(", ")))
        }
        Ok(Answer::ImportsLengthened { imports }) => {
            let import = |session: &Option<SessionId>| {
                session.map_or_else(|| "unknown".to_owned(), |session| format!("s{session}"))
            };
            Some(format!("imports: {}", imports.iter().map(import).collect::<Vec<_>>().join(", ")))
        }
        // The events show everything.
        Ok(_) => None,
    }
}

fn fate(fate: &Fate) -> String {
    match fate {
        Fate::Held { token } => format!("holds token={}", number(*token)),
        Fate::Queued { place } => format!("waits place={place}"),
        Fate::Known => "known".into(),
        Fate::Refused(rejection) => {
            format!("refused, {}", without_epochs(&rejection.to_string()))
        }
    }
}

fn acquired(state: &Acquired) -> String {
    match state {
        Acquired::Granted { token, items, values } => granted(*token, items, values),
        Acquired::Queued { place, holder: Some(holder) } => {
            format!("waits place={place} behind {}", who(holder.session, holder.request))
        }
        Acquired::Queued { place, holder: None } => {
            format!("waits place={place}, held by nobody")
        }
    }
}

/// Shows each token in the form that the rest of a script uses.
fn without_epochs(text: &str) -> String {
    let epoch = FencingToken::new(1, 0).unwrap().get();
    let shorten = |word: &str| {
        let (digits, comma) = word.strip_suffix(',').map_or((word, ""), |digits| (digits, ","));
        match digits.parse::<u64>() {
            Ok(raw) if raw >= epoch && i64::try_from(raw).is_ok() => {
                format!("{}{comma}", number(FencingToken::from_raw(raw)))
            }
            Ok(_) | Err(_) => word.to_string(),
        }
    };
    text.split(' ').map(shorten).collect::<Vec<_>>().join(" ")
}
