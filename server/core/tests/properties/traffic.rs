//! Random commands drawn from the model's state: mostly sensible, often late, doubled or wrong.

use std::num::NonZeroU32;

use holdfast_core::{
    Command, Deed, FencingToken, Has, ImportRow, Item, Label, Limits, LockName, Mode, NamePrefix,
    Need, RequestId, ScopePrefix, ScopeState, SessionId, Tenure, Terms, ValueChange,
};
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::model::{Asked, Model, Request, Session, What};
use crate::rule_traffic;

const NAMES: [&str; 8] = ["a", "b", "c", "d", "s/a", "s/b", "s/c", "t/a"];
const SCOPES: [&str; 8] = ["s/", "s/", "s/", "t/", "s/a", "s", "a", "more/"];
/// The most sessions that a history allows: low, so that it reaches the limit.
const SESSIONS_MAX: u64 = 12;

/// Draws the next command for the present state.
pub(crate) fn draw(rng: &mut Xoshiro256PlusPlus, model: &Model, tenure: Tenure) -> Command {
    if model.rules.roles.is_empty() {
        return draw_any(rng, model, tenure);
    }
    if rng.random_bool(0.03) {
        return rule_traffic::change(rng, model);
    }
    let command = draw_any(rng, model, tenure);
    // Old leaders do not say who it was.
    if rng.random_bool(0.05) { command } else { rule_traffic::by_somebody(rng, command) }
}

fn draw_any(rng: &mut Xoshiro256PlusPlus, model: &Model, tenure: Tenure) -> Command {
    match rng.random_range(0..1_000) {
        0..12 => Command::Configure { limits: limits(rng) },
        12..15 => Command::LimitTable { max_bytes: table_bytes(rng) },
        15..95 => open(rng),
        95..115 => Command::CloseSession { session: session(rng, model) },
        115..145 => expire(rng, model, tenure),
        145..155 => Command::SetScope { scope: prefix(rng) },
        155..205 if !has_scopes(model) => Command::SetScope { scope: prefix(rng) },
        155..160 => Command::RemoveScope { scope: scope(rng, model).0 },
        160..170 => Command::Suspend { scope: scope(rng, model).0 },
        170..195 => resume(rng, model),
        195..205 => raise(rng, model),
        205..542 => acquire(rng, model),
        542..560 => open_lock(rng, model),
        560..580 => import(rng),
        580..585 => lengthen(rng),
        585..600 => claim(rng, model),
        600..670 => cancel(rng, model),
        670..800 => set_value(rng, model),
        800..830 => rule_traffic::from_outside(rng, model, tenure),
        830..868 => set_limit(rng, model),
        868..880 => freeze(rng, model),
        880..896 => sequence(rng, model),
        896..900 => end_long_hold(rng, model),
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
        max_value_bytes: rng.random_range(0..6_000),
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

fn prefix(rng: &mut Xoshiro256PlusPlus) -> ScopePrefix {
    ScopePrefix::parse(SCOPES.choose(rng).unwrap()).unwrap()
}

/// Scopes without requests, so that a history reaches the most scopes allowed.
pub(crate) fn idle_scopes() -> Vec<Command> {
    let idle = |number| ScopePrefix::parse(&format!("idle/{number:02}")).unwrap();
    (0..15).map(|number| Command::SetScope { scope: idle(number) }).collect()
}

fn has_scopes(model: &Model) -> bool {
    scopes(model).next().is_some()
}

/// The scopes that have requests.
fn scopes(model: &Model) -> impl Iterator<Item = &(ScopePrefix, ScopeState)> {
    model.scopes.iter().filter(|(scope, _)| !scope.as_str().starts_with("idle/"))
}

/// Mostly an existing scope, with its epoch.
fn scope(rng: &mut Xoshiro256PlusPlus, model: &Model) -> (ScopePrefix, u16) {
    let used: Vec<_> = scopes(model).collect();
    match used.choose(rng) {
        Some((scope, state)) if rng.random_bool(0.95) => (scope.clone(), state.epoch),
        _ => (prefix(rng), 1),
    }
}

/// Mostly with the scope's epoch.
fn resume(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let (scope, epoch) = scope(rng, model);
    let epoch = if rng.random_bool(0.9) { epoch } else { rng.random_range(0..5) };
    Command::Resume { scope, epoch }
}

fn raise(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let (scope, now) = scope(rng, model);
    let epoch = match rng.random_range(0..20) {
        0..14 => now.saturating_add(rng.random_range(1..4)),
        14..16 => now,
        16..18 => now.saturating_sub(1),
        18 => rng.random_range(32_001..=u16::MAX),
        _ => rng.random_range(31_990..=32_000),
    };
    Command::RaiseEpoch { scope, epoch }
}

/// Mostly a limit that a busy table reaches, at times one below its size.
fn table_bytes(rng: &mut Xoshiro256PlusPlus) -> u64 {
    match rng.random_range(0..20) {
        0 => 0,
        1 => u64::MAX,
        2..6 => rng.random_range(1..10_000),
        _ => rng.random_range(10_000..40_000),
    }
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
    let mut asked = asked(rng, model);
    let mut request = next(model, session);
    match rng.random_range(0..100) {
        // A retry: the same payload under the same id, if it was an acquire.
        0..8 => {
            if let Some(Request { id, what, .. }) = known.choose(rng) {
                request = *id;
                if let What::Asked(before) = what {
                    asked = before.clone();
                    asked.items.shuffle(rng);
                }
            }
        }
        // Anything under an id that is in use, was in use, or was skipped.
        8..14 => request = RequestId::new(rng.random_range(0..=request.get())),
        14 => request = RequestId::new(request.get().saturating_add(3)),
        _ => {}
    }
    let Asked { items, need, wait, terms } = asked;
    // The older form of the command, which knows no such number.
    if matches!(need, Need::Any { min: 2.. }) && rng.random_bool(0.3) {
        return Command::Acquire { session, done_below, request, items, need, wait };
    }
    Command::acquire((session, done_below, request), items, (need, wait), terms)
}

/// One lock, a set, or an `any` of several; sometimes a senseless request.
fn asked(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Asked {
    let names = match rng.random_range(0..100) {
        0..50 => 1,
        50..75 => 2,
        75..97 => rng.random_range(2..=4),
        97 => 0,
        _ => rng.random_range(5..=70),
    };
    // A set mostly keeps to names that rarely lie in a scope, or to names that often do.
    let from = match rng.random_range(0..10) {
        0..4 => &NAMES[..4],
        4..8 => &NAMES[4..7],
        _ => &NAMES[..],
    };
    let mut chosen: Vec<LockName> = from.iter().map(|text| name(text)).collect();
    chosen.extend((from.len()..names).map(|number| name(&format!("more/{number}"))));
    chosen.shuffle(rng);
    chosen.truncate(names);
    // A request mostly asks for all its locks in one mode, or for permits of some names.
    let shared = if rng.random_bool(0.4) { 0.9 } else { 0.05 };
    let mut items = Vec::new();
    for lock in chosen {
        let permits = match lock.as_str() {
            "c" | "d" => 0.9,
            // A lock with a limit keeps its name from being in a scope.
            text if text.contains('/') => 0.01,
            _ => 0.05,
        };
        let shared = shared * (1.0 - permits);
        items.push(match rng.random_range(0.0..1.0) {
            drawn if drawn < shared => Item::shared(lock),
            drawn if drawn < shared + permits => permits_of(rng, model, lock),
            _ => Item::exclusive(lock),
        });
    }
    if rng.random_bool(0.005) {
        items.extend(items.first().cloned());
    }
    let need = match rng.random_range(0..100) {
        0..60 => Need::All,
        60..78 => Need::Any { min: 0 },
        78..90 => Need::Any { min: 1 },
        _ => Need::Any { min: rng.random_range(2..=3) },
    };
    let waits = if matches!(need, Need::Any { min: 2.. }) { 0.4 } else { 0.75 };
    let mut terms = terms(rng);
    // A hold with bounds, and a closed lock, keep their names from being in a scope, as a limit does.
    if items.iter().any(|item| item.lock.as_str().contains('/')) && rng.random_bool(0.9) {
        (terms.max_hold_ms, terms.hold_at_least_ms) = (0, 0);
    }
    if items.iter().any(|item| item.mode != Mode::Exclusive) && rng.random_bool(0.8) {
        terms.hold_at_least_ms = 0;
    }
    Asked { items, need, wait: rng.random_bool(waits), terms }
}

/// Mostly nothing. Head starts are about as long as it takes until a few more come, and now and then impossible.
fn terms(rng: &mut Xoshiro256PlusPlus) -> Terms {
    let head_start_ms = match rng.random_range(0..100) {
        0..70 => 0,
        70..90 => rng.random_range(1..2_000),
        90..98 => rng.random_range(0..=600_000),
        _ => rng.random_range(600_001..=u32::MAX),
    };
    let owner = if rng.random_bool(0.4) { rng.random_range(1..=2) } else { 0 };
    let note = if rng.random_bool(0.05) { "nightly import" } else { "" };
    let (max_hold_ms, hold_at_least_ms) = match rng.random_range(0..200) {
        0..115 => (0, 0),
        115..132 => (rng.random_range(1..100_000), 0),
        132..190 => (0, rng.random_range(1..100_000)),
        190..193 => (80_000, rng.random_range(1..=80_000)),
        193..196 => (rng.random_range(1..1_000), 1_000),
        _ => (0, rng.random_range(86_400_001..=u32::MAX)),
    };
    let note = Label::parse(note).unwrap();
    Terms { head_start_ms, owner, note, max_hold_ms, hold_at_least_ms }
}

/// Mostly few of the four that a lock has unless its limit was set, and now and then impossible.
fn permits_of(rng: &mut Xoshiro256PlusPlus, model: &Model, lock: LockName) -> Item {
    let limit = match rng.random_range(0..20) {
        0..15 => model.limit(&lock).unwrap_or(4),
        15..18 => 0,
        18 => rng.random_range(1..6),
        _ => u32::MAX,
    };
    let count = match rng.random_range(0..60) {
        0 => 0,
        1 => u32::MAX,
        2..45 => rng.random_range(1..=2),
        _ => rng.random_range(1..=4),
    };
    Item::permits(lock, count, limit)
}

/// Mostly of a lock of which permits are held, and others waited for.
fn set_limit(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let from = if rng.random_bool(0.97) { &NAMES[2..4] } else { &NAMES[..] };
    let mut lock = name(from.choose(rng).unwrap());
    let is_full = |lock: &LockName| {
        let is_for_permits = |item: &Item| item.lock == *lock && item.mode.is_permits();
        model.holders(lock).first().is_some_and(|(_, mode)| mode.is_permits())
            && model.queue(lock).first().is_some_and(|r| r.items().iter().any(is_for_permits))
    };
    let full = model.permit_limits.iter().map(|(lock, _)| lock).filter(|lock| is_full(lock));
    let mut limit = NonZeroU32::new(rng.random_range(1..=8));
    if let Some(full) = full.collect::<Vec<_>>().choose(rng) {
        lock = (*full).clone();
        limit = NonZeroU32::new(model.limit(&lock).unwrap_or(1).saturating_add(2));
    }
    let limit = match rng.random_range(0..20) {
        0..3 => None,
        3..6 => NonZeroU32::new(1),
        6 => NonZeroU32::new(u32::MAX),
        _ => limit,
    };
    let caller = rule_traffic::somebody(rng, "cn:ops");
    Command::By { caller, deed: Deed::SetLimit { lock, limit } }
}

/// Mostly lifted again soon: little is granted meanwhile.
fn freeze(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let caller = rule_traffic::somebody(rng, "cn:ops");
    let some = ["a", "b", "s/a", "t/", "", "c", "more/1"];
    let prefix = NamePrefix::parse(some.choose(rng).unwrap()).unwrap();
    let deed = match model.freezes.choose(rng) {
        Some(frozen) if rng.random_bool(0.7) => Deed::Thaw { prefix: frozen.prefix.clone() },
        _ if rng.random_bool(0.1) => Deed::Thaw { prefix },
        _ => Deed::Freeze { prefix, message: Label::parse("backup").unwrap() },
    };
    Command::By { caller, deed }
}

/// Mostly of a hold that there is; the table does not know how long it lasts.
fn end_long_hold(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let held =
        model.requests.iter().filter_map(|request| Some((request.session, request.token()?)));
    let (session, token) = match held.collect::<Vec<_>>().choose(rng) {
        Some(held) => *held,
        None => (session(rng, model), FencingToken::from_raw(1)),
    };
    Command::EndLongHold { session, token }
}

/// Mostly one that is closed: little is granted meanwhile.
fn open_lock(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    if model.closed_locks.is_empty() && rng.random_bool(0.9) {
        return acquire(rng, model);
    }
    let any = (name(NAMES.choose(rng).unwrap()), FencingToken::from_raw(7));
    let closed = model.closed_locks.choose(rng).map(|closed| (closed.lock.clone(), closed.token));
    let (lock, token) = closed.filter(|_| rng.random_bool(0.95)).unwrap_or(any);
    Command::OpenLock { lock, token }
}

/// Few names, because sequences never go. Many come to their end, and the rest of their history is refused.
fn sequence(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let sequence = LockName::parse(["a", "b", "d", "s/a"].choose(rng).unwrap()).unwrap();
    let known = model.sequences.iter().find(|known| known.name == sequence);
    let last = known.map_or(0, |known| known.last);
    let deed = match rng.random_range(0..20) {
        0..4 => {
            let at = last.saturating_add(rng.random_range(0..3));
            Deed::BeginSequence { sequence, at }
        }
        4..8 => Deed::BeginSequence { sequence, at: u64::MAX - rng.random_range(0..99_999) },
        8 => Deed::Advance { sequence, by: *[0, 65_537].choose(rng).unwrap() },
        9..15 => Deed::Advance { sequence, by: rng.random_range(1..=65_536) },
        _ => Deed::Advance { sequence, by: 1 },
    };
    Command::By { caller: rule_traffic::somebody(rng, "cn:ops"), deed }
}

/// Few owners, so that one appears again; sometimes a senseless import.
fn import(rng: &mut Xoshiro256PlusPlus) -> Command {
    let rows = match rng.random_range(0..100) {
        0 => 0,
        1 => 65,
        _ => rng.random_range(1..=4),
    };
    let row = |number: usize| {
        let lock = match number {
            0..=4 => name(NAMES.choose(rng).unwrap()),
            _ => name(&format!("more/{number}")),
        };
        let has = match rng.random_range(0..10) {
            0..4 => Has::Place,
            4..8 => Has::Hold(None),
            _ => Has::Hold(Some(bytes(rng))),
        };
        ImportRow { lock, has }
    };
    let rows = (0..rows).map(row).collect();
    let ttl_ms = match rng.random_range(0..30) {
        0 => 0,
        1 => u64::MAX,
        _ => rng.random_range(1..100_000),
    };
    Command::Import { owner: owner(rng), ttl_ms, rows }
}

/// Few owners and names, so that some have imports; sometimes senseless.
fn lengthen(rng: &mut Xoshiro256PlusPlus) -> Command {
    let owner = owner(rng);
    let locks = (0..rng.random_range(0..4)).map(|_| name(NAMES.choose(rng).unwrap())).collect();
    let ttl_ms = match rng.random_range(0..20) {
        0 => 0,
        _ => rng.random_range(1..200_000),
    };
    Command::By {
        caller: rule_traffic::somebody(rng, "cn:ops"),
        deed: Deed::LengthenImports { owner, ttl_ms, locks },
    }
}

fn owner(rng: &mut Xoshiro256PlusPlus) -> Label {
    Label::parse(["hf1:pay/7", "old/1", "old/2", "old/3"].choose(rng).unwrap()).unwrap()
}

/// Mostly an import that still waits or holds; sometimes the same id again.
fn claim(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let session = session(rng, model);
    let done_below = done_below(rng, model, session);
    let stands_for = |session| model.session(session)?.stands_for.clone();
    let imported = model.requests.iter().filter_map(|r| Some((r, stands_for(r.session)?)));
    let imported: Vec<_> = imported.collect();
    let mut request = next(model, session);
    let (mut lock, mut of) = (name(NAMES.choose(rng).unwrap()), owner(rng));
    if let Some((found, owner)) = imported.choose(rng)
        && rng.random_bool(0.9)
    {
        (lock, of) = (found.items()[0].lock.clone(), owner.clone());
    }
    let own = model.requests.iter().filter(|r| r.session == session && r.items().len() == 1);
    if let Some(known) = own.collect::<Vec<_>>().choose(rng)
        && rng.random_bool(0.2)
    {
        (request, lock) = (known.id, known.items()[0].lock.clone());
    }
    Command::Claim { session, done_below, request, lock, owner: of }
}

fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

fn cancel(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let session = session(rng, model);
    let done_below = done_below(rng, model, session);
    let beyond = next(model, session).get().saturating_add(2);
    let near = beyond.saturating_sub(10);
    let request = RequestId::new(rng.random_range(near..=beyond));
    // A server proposes this one when a wait limit passes: it ends no hold.
    if rng.random_bool(0.3) {
        return Command::StopWaiting { session, request };
    }
    Command::Cancel { session, done_below, request }
}

/// Mostly a hold of that session, in whole or in part; else the token of another session, an old
/// one, or one never given out.
fn release(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let (session, token, holds) = held(rng, model);
    let mut locks: Vec<LockName> = Vec::new();
    if rng.random_bool(0.3) {
        locks.extend(holds.into_iter().map(|item| item.lock));
        locks.shuffle(rng);
        locks.truncate(rng.random_range(0..=locks.len()));
        match rng.random_range(0..20) {
            0 => locks.push(name(NAMES.choose(rng).unwrap())),
            1 => locks.extend(locks.first().cloned()),
            2 => locks.extend((0..70).map(|number| name(&format!("more/{number}")))),
            _ => {}
        }
    }
    let done_below = done_below(rng, model, session);
    // Some clients had lost it by then.
    if rng.random_bool(0.2) {
        return Command::ReleaseLost { session, done_below, token, locks };
    }
    Command::Release { session, done_below, token, locks }
}

/// A session, a token and its locks: mostly ones that belong together.
pub(crate) fn held(
    rng: &mut Xoshiro256PlusPlus,
    model: &Model,
) -> (SessionId, FencingToken, Vec<Item>) {
    let held: Vec<&Request> = model.requests.iter().filter(|r| r.token().is_some()).collect();
    let Some(one) = held.choose(rng) else {
        return (session(rng, model), FencingToken::from_raw(rng.random()), Vec::new());
    };
    let (token, holds) = (one.token().unwrap(), one.holds().to_vec());
    match rng.random_range(0..100) {
        0..85 => (one.session, token, holds),
        85..92 => (session(rng, model), token, holds),
        92..97 => (one.session, FencingToken::from_raw(token.get().saturating_sub(1)), holds),
        _ => (session(rng, model), FencingToken::from_raw(rng.random()), holds),
    }
}

/// Mostly a change of the value of a held lock; often a copy of an earlier one. The holder of a
/// lock with a suspect value often confirms it.
fn set_value(rng: &mut Xoshiro256PlusPlus, model: &Model) -> Command {
    let suspect = |item: &Item| model.value(&item.lock).is_some_and(|value| value.suspect);
    let heirs = model.requests.iter().filter(|r| r.holds().iter().any(suspect));
    let heirs: Vec<&Request> = heirs.collect();
    let (session, mut token, holds) = match heirs.choose(rng) {
        Some(heir) if rng.random_bool(0.5) => {
            (heir.session, heir.token().unwrap(), heir.holds().to_vec())
        }
        _ => held(rng, model),
    };
    let done_below = done_below(rng, model, session);
    let held = holds.choose(rng).map(|item| item.lock.clone());
    let mut lock = match held {
        Some(held) if rng.random_bool(0.9) => held,
        _ => name(NAMES.choose(rng).unwrap()),
    };
    let is_suspect = model.value(&lock).is_some_and(|value| value.suspect);
    let mut change = match rng.random_range(0..100) {
        0..70 if is_suspect => ValueChange::Confirm,
        0..55 => ValueChange::Set(bytes(rng)),
        55..65 => ValueChange::Clear,
        _ => ValueChange::Confirm,
    };
    let mut request = next(model, session);
    let own = |r: &&Request| r.session == session;
    let writes = model.requests.iter().filter(own).filter_map(|r| match &r.what {
        What::Write { token, lock, change } => Some((r.id, *token, lock, change)),
        What::Nothing | What::Asked(_) => None,
    });
    let writes: Vec<_> = writes.collect();
    match (rng.random_range(0..100), writes.choose(rng)) {
        (0..12, Some(&(id, under, of, made))) => {
            (request, token, lock, change) = (id, under, of.clone(), made.clone());
        }
        (12..18, _) => request = RequestId::new(rng.random_range(0..=request.get())),
        _ => {}
    }
    Command::SetValue { session, done_below, request, token, lock, change }
}

/// Mostly short; sometimes the longest allowed, or too long.
fn bytes(rng: &mut Xoshiro256PlusPlus) -> Vec<u8> {
    let len = match rng.random_range(0..100) {
        0..92 => rng.random_range(0..20),
        92..96 => 4_096,
        _ => rng.random_range(4_097..5_000),
    };
    vec![rng.random(); len]
}

/// Mostly an open session; else one that has ended or never existed.
pub(crate) fn session(rng: &mut Xoshiro256PlusPlus, model: &Model) -> SessionId {
    match model.sessions.choose(rng) {
        Some(open) if rng.random_bool(0.96) => open.id,
        Some(open) => SessionId::new(open.id.get().saturating_sub(rng.random_range(0..5))),
        None => SessionId::new(rng.random_range(0..9)),
    }
}

/// Mostly 0, which confirms nothing; often an id near those in use; rarely nonsense.
fn done_below(rng: &mut Xoshiro256PlusPlus, model: &Model, session: SessionId) -> RequestId {
    let next = next(model, session).get();
    RequestId::new(match rng.random_range(0..1_000) {
        0..700 => 0,
        700..998 => rng.random_range(next.saturating_sub(8)..=next),
        998 => next.saturating_add(5),
        _ => rng.random(),
    })
}

/// The id that a sensible client would use next.
fn next(model: &Model, session: SessionId) -> RequestId {
    let mark = model.session(session).map_or(0, |Session { done_below, .. }| done_below.get());
    let own = model.requests.iter().filter(|request| request.session == session);
    let last = own.map(|request| request.id.get()).max().unwrap_or(0);
    RequestId::new(mark.max(last.saturating_add(1)))
}
