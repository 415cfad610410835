//! Random commands that know what is going on: mostly sensible, often late, doubled or wrong.

use holdfast_core::{
    Command, FencingToken, Item, Label, Limits, LockName, Need, RequestId, SessionId, Tenure,
};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;

use crate::model::{Model, Request, Session};

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Least limits a history runs under, so that each is reached.
const SESSIONS_MAX: u64 = 12;

/// Draws the next command, knowing the state it will meet.
pub(crate) fn draw(rng: &mut Xoshiro256PlusPlus, model: &Model, tenure: Tenure) -> Command {
    match rng.random_range(0..1_000) {
        0..15 => Command::Configure { limits: limits(rng) },
        15..95 => open(rng),
        95..115 => Command::CloseSession { session: session(rng, model) },
        115..145 => expire(rng, model, tenure),
        145..690 => acquire(rng, model),
        690..790 => cancel(rng, model),
        _ => release(rng, model),
    }
}

/// Small limits, seldom unusable ones.
pub(crate) fn limits(rng: &mut Xoshiro256PlusPlus) -> Limits {
    let mut limits = Limits {
        max_sessions: rng.random_range(4..=SESSIONS_MAX),
        max_requests_per_session: rng.random_range(4..=24),
        max_waiters_per_lock: rng.random_range(2..=12),
        ttl_min_ms: rng.random_range(1..=1_000),
        ttl_max_ms: rng.random_range(10_000..=86_400_000),
        ..Limits::default()
    };
    match rng.random_range(0..20) {
        0 => limits.max_sessions = 0,
        1 => limits.max_requests_per_session = 0,
        2 => limits.max_waiters_per_lock = 0,
        3 => limits.ttl_min_ms = 0,
        4 => limits.ttl_max_ms = limits.ttl_min_ms - 1,
        5 => limits.ttl_max_ms = 86_400_001,
        _ => {}
    }
    limits
}

fn open(rng: &mut Xoshiro256PlusPlus) -> Command {
    let ttl_ms = match rng.random_range(0..20) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.random_range(0..100_000_000),
        _ => 5_000,
    };
    let label = Label::parse(["", "worker", "host:17"].choose(rng).unwrap()).unwrap();
    Command::OpenSession { ttl_ms, label, secret_hash: rng.random() }
}

fn expire(rng: &mut Xoshiro256PlusPlus, model: &Model, tenure: Tenure) -> Command {
    let heard_in = if rng.random_bool(0.4) { rng.random_range(0..9) } else { tenure.get() };
    Command::ExpireSession { session: session(rng, model), tenure: Tenure::new(heard_in) }
}

fn acquire(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let session = session(rng, model);
    let done_below = done_below(rng, model, session);
    let known: Vec<&Request> = model.requests.iter().filter(|r| r.session == session).collect();
    let mut lock = LockName::parse(NAMES.choose(rng).unwrap()).unwrap();
    let mut wait = rng.random_bool(0.75);
    let mut request = next(model, session);
    match rng.random_range(0..100) {
        // A retry: the same payload under the same id.
        0..8 => {
            if let Some(Request { id, asked, .. }) = known.choose(rng) {
                request = *id;
                if let Some(asked) = asked {
                    (lock, wait) = asked.clone();
                }
            }
        }
        // Anything under an id that is in use, was in use, or was skipped.
        8..14 => request = RequestId::new(rng.random_range(0..=request.get())),
        14 => request = RequestId::new(request.get().saturating_add(3)),
        _ => {}
    }
    let items = vec![Item::exclusive(lock)];
    Command::Acquire { session, done_below, request, items, need: Need::All, wait }
}

fn cancel(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let session = session(rng, model);
    let done_below = done_below(rng, model, session);
    let beyond = next(model, session).get().saturating_add(2);
    let near = beyond.saturating_sub(10);
    let request = RequestId::new(rng.random_range(near..=beyond));
    Command::Cancel { session, done_below, request }
}

/// Mostly a hold of that session; else a token of anybody, of the past, or never given out.
fn release(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let held: Vec<(SessionId, FencingToken)> =
        model.requests.iter().filter_map(|r| Some((r.session, r.token()?))).collect();
    let (session, token) = match (held.choose(rng), rng.random_range(0..100)) {
        (Some(&held), 0..80) => held,
        (Some(&(_, token)), 80..90) => (session(rng, model), token),
        (Some(&(session, token)), 90..96) => {
            (session, FencingToken::from_raw(token.get().saturating_sub(1)))
        }
        _ => (session(rng, model), FencingToken::from_raw(rng.random())),
    };
    Command::Release {
        session,
        done_below: done_below(rng, model, session),
        token,
        locks: Vec::new(),
    }
}

/// Mostly an open session; else one that has ended or never was.
fn session(rng: &mut Xoshiro256PlusPlus, model: &Model) -> SessionId {
    match model.sessions.choose(rng) {
        Some(open) if rng.random_bool(0.96) => open.id,
        Some(open) => SessionId::new(open.id.get().saturating_sub(rng.random_range(0..5))),
        None => SessionId::new(rng.random_range(0..9)),
    }
}

/// Mostly no news; often something around the ids in use; hardly ever nonsense.
fn done_below(rng: &mut Xoshiro256PlusPlus, model: &Model, session: SessionId) -> RequestId {
    let next = next(model, session).get();
    RequestId::new(match rng.random_range(0..1_000) {
        0..700 => 0,
        700..998 => rng.random_range(next.saturating_sub(8)..=next),
        998 => next.saturating_add(5),
        _ => rng.random(),
    })
}

/// The id a sensible client would use next.
fn next(model: &Model, session: SessionId) -> RequestId {
    let mark = model.session(session).map_or(0, |Session { done_below, .. }| done_below.get());
    let own = model.requests.iter().filter(|request| request.session == session);
    let last = own.map(|request| request.id.get()).max().unwrap_or(0);
    RequestId::new(mark.max(last.saturating_add(1)))
}
