//! Replicas that diverged stop, and others do not; a frozen table stays as it was; listings come in
//! pages.

use holdfast_core::{
    Batch, Command, FencingToken, Label, Limits, LockName, LockTable, LogIndex, Mode, Need,
    ReplicaFault, RequestId, SessionId, Tenure, Value, WITNESS_EVERY, Witness,
};

mod support;
use support::{
    TENURE, acquire, acquire_many, apply, batch, busy_table, bytes_of, exclusive, name, open,
    release, scope, set_value, share, table_before_imports,
};

fn with_witness(witness: Option<Witness>) -> Batch {
    Batch { witness, ..batch(vec![open()]) }
}

/// A table that applied `first` at index 1, and entries up to the first witness and beyond.
fn grown(first: &str) -> LockTable {
    let mut table = LockTable::new();
    apply(&mut table, 1, vec![open(), acquire(1, 1, first)]);
    for index in 2..=WITNESS_EVERY + 10 {
        apply(&mut table, index, Vec::new());
    }
    table
}

/// I16: one node applied something else long ago. The next batch with a witness stops it, before it
/// applies anything of that batch.
#[test]
fn a_replica_that_differs_from_the_leader_stops() {
    let leader = grown("a");
    let mut astray = grown("b");
    let (witness, own) = (leader.latest_witness().unwrap(), astray.latest_witness().unwrap());
    assert_eq!(witness.index, LogIndex::new(WITNESS_EVERY));
    let before = bytes_of(&astray);

    let mut applied = Vec::new();
    let index = LogIndex::new(WITNESS_EVERY + 11);
    let fault = astray.apply_batch(index, TENURE, &with_witness(Some(witness)), &mut applied);

    assert_eq!(fault, Err(ReplicaFault::Diverged { leader: witness, own }));
    assert_eq!(applied, []);
    assert_eq!(bytes_of(&astray), before);
}

#[test]
fn a_replica_that_agrees_with_the_leader_goes_on() {
    let leader = grown("a");
    let mut replica = grown("a");
    let batch = with_witness(leader.latest_witness());
    let index = LogIndex::new(WITNESS_EVERY + 11);
    assert_eq!(replica.apply_batch(index, TENURE, &batch, &mut Vec::new()), Ok(()));
}

#[test]
fn a_witness_of_an_index_that_is_not_kept_is_not_compared() {
    let mut table = grown("a");
    for index in [0, 7, 2 * WITNESS_EVERY, u64::MAX] {
        let witness = Witness { index: LogIndex::new(index), hash: [9; 32] };
        let next = LogIndex::new(table.applied_index().get() + 1);
        let batch = with_witness(Some(witness));
        assert_eq!(table.apply_batch(next, TENURE, &batch, &mut Vec::new()), Ok(()));
    }
}

/// Blank and membership entries take indexes. Neither their positions nor whether a replica notes
/// them changes any witness.
#[test]
fn entries_without_a_batch_leave_every_witness_alone() {
    let mut noted = LockTable::new();
    let mut silent = LockTable::new();
    for index in [1, 1_000, 1_025, 2_048, 2_049, 5_000, 20_000, 20_480] {
        for blank in noted.applied_index().get() + 1..index {
            noted.note_index(LogIndex::new(blank));
        }
        apply(&mut noted, index, vec![open()]);
        apply(&mut silent, index, vec![open()]);
        assert_eq!(noted.latest_witness(), silent.latest_witness());
        assert_eq!(bytes_of(&noted), bytes_of(&silent));
    }
    assert_eq!(noted.latest_witness().unwrap().index, LogIndex::new(20_480));
}

#[test]
fn a_noted_index_that_is_not_new_changes_nothing() {
    let mut table = grown("a");
    let before = bytes_of(&table);
    table.note_index(LogIndex::new(5));
    assert_eq!(bytes_of(&table), before);
}

#[test]
fn an_entry_is_never_applied_a_second_time() {
    let mut table = busy_table();
    let before = bytes_of(&table);
    for index in [0, 1, 2, 3, 4] {
        let index = LogIndex::new(index);
        let fault = table.apply_batch(index, TENURE, &batch(vec![open()]), &mut Vec::new());
        let applied = LogIndex::new(4);
        assert_eq!(fault, Err(ReplicaFault::AppliedBefore { index, applied }));
    }
    assert_eq!(bytes_of(&table), before);
}

#[test]
fn the_state_hash_covers_index_tenure_batch_and_what_came_before() {
    let hash = |index, tenure, batch: Batch| {
        let mut table = busy_table();
        let (index, tenure) = (LogIndex::new(index), Tenure::new(tenure));
        table.apply_batch(index, tenure, &batch, &mut Vec::new()).unwrap();
        table.state_hash()
    };
    let base = hash(5, 1, batch(vec![open()]));
    assert_eq!(base, hash(5, 1, batch(vec![open()])));
    assert_ne!(base, hash(6, 1, batch(vec![open()])));
    assert_ne!(base, hash(5, 2, batch(vec![open()])));
    assert_ne!(base, hash(5, 1, batch(vec![open(), open()])));
    assert_ne!(base, hash(5, 1, Batch { stamp_ms: 1_001, ..batch(vec![open()]) }));
}

/// Two tables that differ only in their token counter answer the same batch differently; their
/// hashes differ, though the entry was the same.
#[test]
fn the_state_hash_covers_the_outcomes() {
    let hash = |counter| {
        let counters = holdfast_core::Counters { token: counter, ..Default::default() };
        let mut table = LockTable::with_counters(counters);
        apply(&mut table, 1, vec![open(), acquire(1, 1, "a")]);
        table.state_hash()
    };
    assert_ne!(hash(0), hash(1));
}

#[test]
fn a_frozen_table_stays_as_it_was_while_the_table_goes_on() {
    let mut table = busy_table();
    let frozen = table.freeze();
    let before = bytes_of(&table);

    apply(&mut table, 5, vec![release(1, 1), open(), acquire(5, 1, "a")]);

    let mut written = Vec::new();
    frozen.write_to(&mut written).unwrap();
    assert_eq!(written, before);
    assert_ne!(bytes_of(&table), before);
    assert_eq!(frozen.applied_index(), LogIndex::new(4));
}

/// Another thread writes the bytes while the table goes on.
#[test]
fn a_frozen_table_can_be_sent_to_another_thread() {
    fn is_sent<T: Send + 'static>(_: &T) {}
    is_sent(&busy_table().freeze());
}

/// More than one block of 64 KiB, and sessions in every shard.
#[test]
fn a_large_table_comes_back_from_its_snapshot_byte_for_byte() {
    let mut table = LockTable::new();
    apply(&mut table, 1, (0..2_000).map(|_| open()).collect());
    let acquires = (1..=2_000).map(|session| acquire(session, 1, &format!("lock/{}", session / 3)));
    apply(&mut table, 2, acquires.collect());

    let bytes = bytes_of(&table);
    let restored = LockTable::read_from(&mut bytes.as_slice()).unwrap();

    assert!(bytes.len() > 2 * 65_536);
    assert_eq!(bytes_of(&restored), bytes);
    assert_eq!(restored.counts(), table.counts());
    assert_eq!(restored.state_hash(), table.state_hash());
}

#[test]
fn locks_are_listed_in_pages_in_the_order_of_their_names() {
    let mut table = LockTable::new();
    let names = ["b/2", "a", "b/10", "c", "b/1", "b"];
    let acquires = (1..).zip(names).map(|(request, name)| acquire(1, request, name));
    apply(&mut table, 1, std::iter::once(open()).chain(acquires).collect());

    let page = |prefix, after: Option<&LockName>, limit| {
        let views = table.locks_after(prefix, after, limit);
        views.map(|view| view.name.as_str().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(page("", None, 9), ["a", "b", "b/1", "b/10", "b/2", "c"]);
    assert_eq!(page("b/", None, 2), ["b/1", "b/10"]);
    assert_eq!(page("b/", Some(&name("b/10")), 2), ["b/2"]);
    assert_eq!(page("b/", Some(&name("b/11")), 2), ["b/2"]);
    assert_eq!(page("b/", Some(&name("a")), 1), ["b/1"]);
    assert_eq!(page("b/", Some(&name("z")), 9), [""; 0]);
    assert_eq!(page("x", None, 9), [""; 0]);
}

#[test]
fn queues_are_listed_with_their_lengths_from_behind_any_name_on_and_no_lock_without_one() {
    let mut table = LockTable::new();
    apply(&mut table, 1, (0..3).map(|_| open()).collect());
    for (at, lock) in (2..).zip(["b", "a", "c"]) {
        let holders = if lock == "c" { 1 } else { 3 };
        apply(&mut table, at, (1..=holders).map(|session| acquire(session, at, lock)).collect());
    }
    let cancel = Command::Cancel {
        session: SessionId::new(3),
        done_below: RequestId::new(0),
        request: RequestId::new(2),
    };
    apply(&mut table, 5, vec![cancel]);

    let after = |after: Option<&str>| {
        let after = after.map(name);
        let queues = table.queues_after(after.as_ref());
        queues.map(|(name, waiting)| format!("{name}={waiting}")).collect::<Vec<_>>()
    };
    assert_eq!(after(None), ["a=2", "b=1"]);
    assert_eq!(after(Some("a")), ["b=1"]);
    assert_eq!(after(Some("aa")), ["b=1"]);
    assert_eq!(after(Some("b")), [""; 0]);
}

#[test]
fn a_lock_shows_who_holds_it_and_who_waits_in_order() {
    let table = table_before_imports();
    let view = table.lock(&name("a")).unwrap();
    let holder = view.holders().next().unwrap();
    assert_eq!(holder.grant.session, SessionId::new(1));
    assert_eq!((holder.label, holder.since_ms), (&Label::parse("test").unwrap(), 1_000));
    assert_eq!(view.waiting, 2);
    let waiters: Vec<_> = view.waiters().map(|waiter| waiter.session.get()).collect();
    assert_eq!(waiters, [2, 3]);
    assert!(table.lock(&name("c")).is_none());
}

/// What `CheckToken` needs: exactly this grant, exactly this lock, now.
#[test]
fn a_grant_is_current_for_each_of_its_locks_until_that_lock_is_given_back() {
    let mut table = table_before_imports();
    let token = |counter| FencingToken::new(1, counter).unwrap();
    let current = |table: &LockTable, text: &str, counter| {
        table.grant_is_current(&name(text), token(counter))
    };
    assert!(current(&table, "a", 1) && current(&table, "s", 4) && current(&table, "s", 5));
    assert!(current(&table, "y", 6));
    assert!(!current(&table, "x", 6), "given back before");
    assert!(!current(&table, "a", 2) && !current(&table, "b", 1), "of another lock");
    assert!(!current(&table, "d", 6) && !current(&table, "unknown", 1));
    apply(&mut table, 3, vec![release(1, 1)]);
    assert!(!current(&table, "a", 1) && current(&table, "a", 7));
}

/// A lock without holder or waiter is listed too, for as long as it carries a value.
#[test]
fn a_lock_shows_its_readers_and_its_value() {
    let table = table_before_imports();
    let shared = table.lock(&name("s")).unwrap();
    let readers: Vec<_> =
        shared.holders().map(|held| (held.grant.session.get(), held.mode)).collect();
    assert_eq!(readers, [(2, Mode::Shared), (3, Mode::Shared)]);
    assert_eq!((shared.held_by, shared.waiting, shared.value), (2, 1, None));
    let left = table.lock(&name("z")).unwrap();
    assert_eq!((left.held_by, left.waiting), (0, 0));
    let set_by = FencingToken::new(1, 6).unwrap();
    let empty = Value { bytes: [].into(), set_by, suspect: false, owner: None };
    assert_eq!(left.value, Some(&empty));
    let listed: Vec<_> =
        table.locks_after("", None, 99).map(|lock| lock.name.as_str().to_owned()).collect();
    assert_eq!(listed, ["a", "b", "d", "s", "y", "z"]);
}

/// Each of 20,000 readers leaves without a look at the others: looking at them would take 400
/// million steps, and the test minutes.
#[test]
fn each_of_many_readers_leaves_by_itself() {
    let mut table = LockTable::new();
    apply(&mut table, 1, (0..40).map(|_| open()).collect());
    let share = |number: u64| share(1 + number % 40, 1 + number / 40, "config");
    apply(&mut table, 2, (0..20_000).map(share).collect());
    assert_eq!(table.lock(&name("config")).unwrap().held_by, 20_000);
    apply(&mut table, 3, vec![acquire(1, 9_999, "config")]);
    let leave = |number: u64| release(1 + number % 40, number + 1);
    apply(&mut table, 4, (0..19_999).map(leave).collect());
    assert_eq!(table.lock(&name("config")).unwrap().waiting, 1);
    apply(&mut table, 5, vec![leave(19_999)]);
    let holders: Vec<_> = table.lock(&name("config")).unwrap().holders().collect();
    assert_eq!(holders.iter().map(|held| held.mode).collect::<Vec<_>>(), [Mode::Exclusive]);
}

/// Many values, in every shard and over many blocks.
#[test]
fn values_come_back_from_a_snapshot_byte_for_byte() {
    let mut table = LockTable::new();
    let names: Vec<String> = (0..2_000).map(|number| format!("value/{number}")).collect();
    let mut commands = vec![open()];
    for (at, lock) in (1..).zip(&names) {
        commands.push(acquire(1, 2 * at, lock));
        commands.push(set_value(1, 2 * at + 1, at, lock, lock.repeat(20).as_bytes()));
        commands.push(release(1, at));
        commands.push(confirm_below(1, 2 * at + 2));
    }
    apply(&mut table, 1, commands);
    let bytes = bytes_of(&table);
    let restored = LockTable::read_from(&mut bytes.as_slice()).unwrap();
    assert_eq!((table.counts().values, table.counts().held), (2_000, 0));
    assert_eq!(restored.counts(), table.counts());
    assert_eq!(bytes_of(&restored), bytes);
    let view = restored.lock(&name("value/77")).unwrap();
    assert_eq!(&*view.value.unwrap().bytes, "value/77".repeat(20).as_bytes());
}

/// Confirms the requests below an id, with a cancel that is refused.
fn confirm_below(session: u64, below: u64) -> Command {
    let (session, below) = (SessionId::new(session), RequestId::new(below));
    Command::Cancel { session, done_below: below, request: RequestId::new(0) }
}

/// A name that many requests share is kept once, even after a restore, and whether they name it
/// alone or in a set: otherwise 64 names of 512 bytes in each of 1,000 waiting sets would take 32
/// MB.
#[test]
fn a_name_is_kept_once_for_all_that_ask_for_it() {
    let names: Vec<String> = (0..64).map(|number| format!("{number:0512}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut table = LockTable::new();
    let ask = |session| acquire_many(session, 1, exclusive(&names), Need::All);
    let one = |session| acquire(session, 2, names[7]);
    // The last session holds: a restore reads the waiting sessions before it.
    let asked = vec![open(), open(), open(), ask(3), ask(1), ask(2), one(3), one(1), one(2)];
    apply(&mut table, 1, asked);
    let bytes = bytes_of(&table);
    let restored = LockTable::read_from(&mut bytes.as_slice()).unwrap();
    for table in [&table, &restored] {
        for (session, request) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)] {
            let asked = table.request(SessionId::new(session), RequestId::new(request)).unwrap();
            for item in asked.items.iter() {
                let kept = table.lock(&item.lock).unwrap().name.as_str();
                assert!(std::ptr::eq(kept, item.lock.as_str()), "s{session}#{request}");
            }
        }
    }
}

#[test]
fn a_new_table_has_the_default_limits() {
    assert_eq!(LockTable::new().limits(), Limits::default());
}

/// A restore of a suspended scope finds its waiters again: it puts their locks off, and resuming
/// the scope grants in the order of the tickets.
#[test]
fn a_suspended_scope_that_comes_back_from_a_snapshot_is_resumed_as_it_was() {
    let mut table = busy_table();
    let bytes = bytes_of(&table);
    let mut restored = LockTable::read_from(&mut bytes.as_slice()).unwrap();
    let resume = || Command::Resume { scope: scope("v/"), epoch: 1 };
    let applied = apply(&mut table, 5, vec![resume()]);
    assert_eq!(apply(&mut restored, 5, vec![resume()]), applied);
    assert_eq!(restored.lock(&name("v/1")).unwrap().held_by, 1);
}

/// Locks that are held in a scope cost nothing when it is suspended and resumed: only locks put off
/// are looked at. Looking at all 20,000 locks in 3,000 rounds would take minutes.
#[test]
fn only_what_was_put_off_is_looked_at_when_a_scope_is_resumed() {
    let mut table = LockTable::new();
    apply(&mut table, 1, (0..40).map(|_| open()).collect());
    let ask = |number: u64| acquire(1 + number % 40, 1 + number / 40, &format!("s/{number}"));
    apply(&mut table, 2, (0..20_000).map(ask).collect());
    let scope = || scope("s/");
    apply(&mut table, 3, vec![Command::SetScope { scope: scope() }]);
    let round =
        |_| [Command::Resume { scope: scope(), epoch: 1 }, Command::Suspend { scope: scope() }];
    let mut applied = Vec::new();
    let rounds = batch((0..3_000).flat_map(round).collect());
    table.apply_batch(LogIndex::new(4), TENURE, &rounds, &mut applied).unwrap();
    assert!(applied.iter().all(|one| one.events.len() == 1));
}
