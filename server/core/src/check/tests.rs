//! The check finds every damage to a sound table, and reports the number of the broken invariant.

use super::*;
use crate::command::{Batch, Command};
use crate::holders::Holders;
use crate::ids::{Label, LogIndex, ScopePrefix, Tenure, Ticket};
use crate::lock_set::{Item, Need, Part};
use crate::scope::ScopeState;
use crate::value::{Value, ValueChange};
use crate::work::Sweep;

const S1: SessionId = SessionId::new(1);
const S2: SessionId = SessionId::new(2);
const R1: RequestId = RequestId::new(1);

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a name")
}

/// Session 1 holds `a` by its request 1, session 2 waits for it by its request 1; session 2
/// holds `b` by its request 2.
fn table() -> LockTable {
    let acquire = |session, request, text| acquire(session, request, &[text], Item::exclusive);
    applied(vec![open(), open(), acquire(S1, 1, "a"), acquire(S2, 1, "a"), acquire(S2, 2, "b")])
}

/// Session 1 and 2 share `r` by their requests 1. Session 2 holds `x` and `y` by its request 2,
/// under token 3, and has set the value of `x`; session 1 waits for `f`, which is free, and `x` by
/// its request 2, and for any of `x` and `y` by its request 3.
fn table_of_sets() -> LockTable {
    let set = |session, request, names: &[&str]| acquire(session, request, names, Item::exclusive);
    let mut any = set(S1, 3, &["x", "y"]);
    if let Command::Acquire { need, .. } = &mut any {
        *need = Need::Any { min: 1 };
    }
    let write = Command::SetValue {
        session: S2,
        done_below: RequestId::new(0),
        request: RequestId::new(3),
        token: token(3),
        lock: name("x"),
        change: ValueChange::Set(b"note".to_vec()),
    };
    applied(vec![
        open(),
        open(),
        acquire(S1, 1, &["r"], Item::shared),
        acquire(S2, 1, &["r"], Item::shared),
        set(S2, 2, &["x", "y"]),
        write,
        set(S1, 2, &["f", "x"]),
        any,
    ])
}

fn open() -> Command {
    let label = Label::parse("").expect("a label");
    Command::OpenSession { ttl_ms: 10_000, label, secret_hash: [0; 32] }
}

fn acquire(
    session: SessionId,
    request: u64,
    names: &[&str],
    held: fn(LockName) -> Item,
) -> Command {
    Command::Acquire {
        session,
        done_below: RequestId::new(0),
        request: RequestId::new(request),
        items: names.iter().map(|text| held(name(text))).collect(),
        need: Need::All,
        wait: true,
    }
}

fn applied(commands: Vec<Command>) -> LockTable {
    let batch = Batch { commands, ..Batch::default() };
    let mut table = LockTable::new();
    table
        .apply_batch(LogIndex::new(1), Tenure::new(1), &batch, &mut Vec::new())
        .expect("a first entry");
    table
}

fn token(counter: u64) -> FencingToken {
    FencingToken::new(1, counter).expect("a token")
}

/// The invariant that the check reports after `harm` to a sound table.
fn found(harm: impl FnOnce(&mut LockTable)) -> &'static str {
    found_in(table(), harm)
}

/// As [`found`], for a table with readers, sets and values.
fn found_in_sets(harm: impl FnOnce(&mut LockTable)) -> &'static str {
    found_in(table_of_sets(), harm)
}

fn found_in(mut table: LockTable, harm: impl FnOnce(&mut LockTable)) -> &'static str {
    assert_eq!(table.check(), Ok(()));
    harm(&mut table);
    table.check().expect_err("the harm was not seen").invariant
}

fn session(table: &mut LockTable, id: SessionId) -> &mut Session {
    table.sessions.get_mut(&id).expect("an open session")
}

fn set_state(table: &mut LockTable, id: SessionId, new: State) {
    let record = session(table, id).records.get_mut(&R1);
    let Some(Record::Asked { state, .. }) = record else { panic!("no such request") };
    *state = new;
}

fn lock<'a>(table: &'a mut LockTable, text: &str) -> &'a mut Lock {
    table.locks.get_mut(&name(text)).expect("a lock")
}

/// Makes the holder of `x` and `y` hold another part of them.
fn set_part(table: &mut LockTable, new: Part) {
    let record = session(table, S2).records.get_mut(&RequestId::new(2));
    let Some(Record::Asked { state: State::Held { part, .. }, .. }) = record else {
        panic!("no such hold")
    };
    *part = new;
}

/// Replaces the value of `x` at both its places.
fn set_x(table: &mut LockTable, set_by: u64, suspect: bool) {
    let value =
        Value { bytes: b"note".as_slice().into(), set_by: token(set_by), suspect, owner: None };
    table.keep_value(&name("x"), Some(value));
}

fn pop_first(lock: &mut Lock) {
    let (rank, _) = lock.queue.first().expect("somebody waits");
    lock.queue.remove(rank);
}

#[test]
fn a_second_holder_is_seen() {
    let token = FencingToken::new(1, 2).expect("a token");
    let second = |table: &mut LockTable| {
        table.counters.token = 9;
        let token = FencingToken::new(1, 9).expect("a token");
        pop_first(lock(table, "a"));
        table.counts.waiting -= 1;
        table.counts.held += 1;
        set_state(table, S2, State::Held { token, since_ms: 0, part: Part::whole(1) });
        session(table, S2).holds.insert(token, R1);
    };
    assert_eq!(found(second), "I2");
    assert_eq!(
        found(|table| {
            session(table, S2).holds.remove(&token);
        }),
        "index"
    );
}

#[test]
fn a_hold_or_a_place_of_a_session_that_is_gone_is_seen() {
    assert_eq!(found(|table| drop(table.sessions.remove(&S1))), "I11");
    let waits_only = |table: &mut LockTable| {
        drop(table.sessions.remove(&S2));
        table.locks.remove(&name("b"));
    };
    assert_eq!(found(waits_only), "I11");
}

#[test]
fn a_waiter_without_its_place_is_seen() {
    let left = |table: &mut LockTable| pop_first(lock(table, "a"));
    assert_eq!(found(left), "I10");
    let elsewhere = State::Waiting { rank: Rank { at_ms: 0, ticket: Ticket::new(7) }, since_ms: 0 };
    assert_eq!(found(|table| set_state(table, S2, elsewhere)), "I11");
}

#[test]
fn a_free_lock_that_is_waited_for_is_seen() {
    let freed = |table: &mut LockTable| lock(table, "a").holders = Holders::Nobody;
    assert_eq!(found(freed), "I15");
}

#[test]
fn a_lock_without_a_reason_is_seen() {
    assert_eq!(found(|table| drop(table.locks.insert(name("c"), Lock::default()))), "I33");
}

#[test]
fn a_number_that_was_never_given_out_is_seen() {
    assert_eq!(found(|table| table.counters.token = 1), "I3");
    assert_eq!(found(|table| table.counters.ticket = 0), "I9");
    assert_eq!(found(|table| table.counters.session = 1), "index");
    assert_eq!(found(|table| table.counters.epoch = u16::MAX), "I3");
}

#[test]
fn a_token_given_out_twice_is_seen() {
    let twice = |table: &mut LockTable| {
        let token = FencingToken::new(1, 1).expect("a token");
        let request = RequestId::new(2);
        let own = session(table, S2);
        own.holds = [(token, request)].into();
        let Some(Record::Asked { state, .. }) = own.records.get_mut(&request) else {
            panic!("no such request")
        };
        *state = State::Held { token, since_ms: 0, part: Part::whole(1) };
        let grant = Grant { session: S2, request, token };
        lock(table, "b").holders = Holders::Alone(grant);
    };
    assert_eq!(found(twice), "I3");
}

#[test]
fn a_wrong_count_and_a_finished_record_below_the_mark_are_seen() {
    assert_eq!(found(|table| table.counts.waiting += 1), "index");
    let finished = |table: &mut LockTable| {
        session(table, S1).records.insert(RequestId::new(2), Record::Spent);
        session(table, S1).done_below = RequestId::new(3);
    };
    assert_eq!(found(finished), "index");
}

#[test]
fn unusable_limits_are_seen() {
    assert_eq!(found(|table| table.limits.max_sessions = 0), "I27");
}

#[test]
fn a_reader_that_is_none_is_seen() {
    let writes = |table: &mut LockTable| {
        let record = session(table, S2).records.get_mut(&R1);
        let Some(Record::Asked { lock_set: LockSet::One { shares, .. }, .. }) = record else {
            panic!("no such request")
        };
        *shares = false;
    };
    assert_eq!(found_in_sets(writes), "I2");
}

#[test]
fn a_set_that_is_held_in_part_is_seen() {
    let other = |table: &mut LockTable| {
        let grant = Grant { session: S2, request: R1, token: token(2) };
        lock(table, "y").holders = Holders::Alone(grant);
    };
    assert_eq!(found_in_sets(other), "I11");
    assert_eq!(found_in_sets(|table| set_part(table, Part::default())), "I14");
    assert_eq!(found_in_sets(|table| set_part(table, Part::whole(3))), "I14");
    let forgotten = |table: &mut LockTable| set_part(table, Part::whole(1));
    assert_eq!(found_in_sets(forgotten), "I11");
}

#[test]
fn a_set_that_lost_one_of_its_places_is_seen() {
    assert_eq!(found_in_sets(|table| pop_first(lock(table, "x"))), "I10");
    assert_eq!(found_in_sets(|table| drop(table.locks.remove(&name("f")))), "I10");
}

fn give_back_silently(table: &mut LockTable, text: &str) {
    table.take_holder(&name(text), token(3));
}

/// After a release of `x` that bypasses the table, the set could have `f` and `x`; after one of
/// `y`, the `any` could have `y`.
#[test]
fn a_set_and_an_any_that_could_be_granted_are_seen() {
    let freed = |text: &str| found_in_sets(|table| give_back_silently(table, text));
    assert_eq!(freed("x"), "I15");
    assert_eq!(freed("y"), "I15");
}

#[test]
fn a_value_that_contradicts_the_grants_is_seen() {
    assert_eq!(found_in_sets(|table| set_x(table, 4, false)), "value");
    assert_eq!(found_in_sets(|table| set_x(table, 3, true)), "value");
    let later = |table: &mut LockTable| {
        table.counters.token = 9;
        set_x(table, 9, false);
    };
    assert_eq!(found_in_sets(later), "value");
    let mut older = table_of_sets();
    set_x(&mut older, 2, true);
    assert_eq!(older.check(), Ok(()));
}

#[test]
fn a_value_that_is_not_where_it_belongs_is_seen() {
    assert_eq!(found_in_sets(|table| lock(table, "x").value = None), "index");
    let only_there = |table: &mut LockTable| drop(table.values.remove(&name("x")));
    assert_eq!(found_in_sets(only_there), "index");
    assert_eq!(found_in_sets(|table| table.counts.value_bytes -= 1), "index");
}

fn scope(text: &str) -> ScopePrefix {
    ScopePrefix::parse(text).expect("a prefix")
}

/// Session 1 holds `s/a` by its request 1 in epoch 2; then the scope is suspended, and session 2
/// waits for `s/b`, which has no holder, by its request 1.
fn table_of_scopes() -> LockTable {
    let acquire = |session, text| acquire(session, 1, &[text], Item::exclusive);
    applied(vec![
        open(),
        open(),
        Command::SetScope { scope: scope("s/") },
        Command::RaiseEpoch { scope: scope("s/"), epoch: 2 },
        Command::Resume { scope: scope("s/"), epoch: 2 },
        acquire(S1, "s/a"),
        Command::Suspend { scope: scope("s/") },
        acquire(S2, "s/b"),
    ])
}

fn found_in_scopes(harm: impl FnOnce(&mut LockTable)) -> &'static str {
    found_in(table_of_scopes(), harm)
}

fn put(table: &mut LockTable, text: &str, epoch: u16, suspended: bool) {
    table.scopes.put(scope(text), ScopeState { epoch, suspended, fresh: false });
}

#[test]
fn a_token_of_another_epoch_than_its_scope_is_seen() {
    assert_eq!(found_in_scopes(|table| put(table, "s/", 1, true)), "I3");
    assert_eq!(found_in_scopes(|table| put(table, "s/", 3, true)), "I3");
    let removed = |table: &mut LockTable| assert!(table.scopes.remove(&scope("s/")).is_some());
    assert_eq!(found_in_scopes(removed), "I3");
}

/// A scope that grants again has to have its locks with waiters looked at.
#[test]
fn a_waiter_that_nobody_will_look_at_is_seen() {
    let resumed = |table: &mut LockTable| put(table, "s/", 2, false);
    assert_eq!(found_in_scopes(resumed), "I15");
}

#[test]
fn work_that_is_left_for_nothing_is_seen() {
    let sweep = |below| Sweep { below, after: None };
    let swept = |table: &mut LockTable| {
        table.limit_work(9).expect("a limit");
        table.work.pending_mut().sweeps.insert(scope("s/"), sweep(9));
    };
    assert_eq!(found_in_scopes(swept), "work");
    let gone = |table: &mut LockTable| {
        let token = FencingToken::from_raw(1);
        table.work.pending_mut().told.insert(name("gone"), token);
    };
    assert_eq!(found(gone), "work");
    let untold = |table: &mut LockTable| {
        table.limit_work(9).expect("a limit");
        table.work.pending_mut().untold.insert(name("a"));
    };
    assert_eq!(found(untold), "work");
    let unlimited = |table: &mut LockTable| {
        table.work.pending_mut().looks.insert(scope("s/"), None);
    };
    assert_eq!(found(unlimited), "work");
    assert_eq!(found(|table| drop(table.awaited.pop_first())), "index");
}

#[test]
fn scopes_that_cannot_be_are_seen() {
    assert_eq!(found_in_scopes(|table| put(table, "s", 1, false)), "scope");
    assert_eq!(found_in_scopes(|table| put(table, "s/a", 1, false)), "scope");
    assert_eq!(found_in_scopes(|table| put(table, "t", 32_001, false)), "scope");
    let many = |table: &mut LockTable| {
        (0..SCOPES_MAX).for_each(|number| put(table, &format!("x{number:02}"), 1, true));
    };
    assert_eq!(found_in_scopes(many), "scope");
}

#[test]
fn a_request_that_is_half_in_a_scope_is_seen() {
    assert_eq!(found_in_sets(|table| put(table, "x", 1, false)), "scope");
    assert_eq!(found_in_sets(|table| put(table, "f", 1, false)), "scope");
}
