//! Replicas that went apart are found out, those that did not are left alone; a frozen table stays
//! as it was; what is read is read in pages.

use holdfast_core::{
    Batch, Label, Limits, LockName, LockTable, LogIndex, ReplicaFault, SessionId, Tenure,
    WITNESS_EVERY, Witness,
};

mod support;
use support::{TENURE, acquire, apply, batch, busy_table, bytes_of, name, open, release};

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

/// I16: one node applied something else long ago. The next batch with a witness stops it, before
/// anything of that batch is applied.
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

/// Blank and membership entries take indexes. Where they lie, and whether somebody noted them, does
/// not change any witness.
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
    for index in [0, 1, 2] {
        let index = LogIndex::new(index);
        let fault = table.apply_batch(index, TENURE, &batch(vec![open()]), &mut Vec::new());
        let applied = LogIndex::new(2);
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
    let base = hash(3, 1, batch(vec![open()]));
    assert_eq!(base, hash(3, 1, batch(vec![open()])));
    assert_ne!(base, hash(4, 1, batch(vec![open()])));
    assert_ne!(base, hash(3, 2, batch(vec![open()])));
    assert_ne!(base, hash(3, 1, batch(vec![open(), open()])));
    assert_ne!(base, hash(3, 1, Batch { stamp_ms: 1_001, ..batch(vec![open()]) }));
}

/// Two tables that differ in nothing but a limit answer the same batch differently; the hash says
/// so, though the entry was the same.
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

    apply(&mut table, 3, vec![release(1, 1), open(), acquire(4, 1, "a")]);

    let mut written = Vec::new();
    frozen.write_to(&mut written).unwrap();
    assert_eq!(written, before);
    assert_ne!(bytes_of(&table), before);
    assert_eq!(frozen.applied_index(), LogIndex::new(2));
}

/// The bytes are written by another thread while the table goes on.
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
fn a_lock_shows_who_holds_it_and_who_waits_in_order() {
    let table = busy_table();
    let view = table.lock(&name("a")).unwrap();
    let holder = view.holders().next().unwrap();
    assert_eq!(holder.grant.session, SessionId::new(1));
    assert_eq!((holder.label, holder.since_ms), (&Label::parse("test").unwrap(), 1_000));
    assert_eq!(view.waiting, 2);
    let waiters: Vec<_> = view.waiters().map(|waiter| waiter.session.get()).collect();
    assert_eq!(waiters, [2, 3]);
    assert!(table.lock(&name("c")).is_none());
}

#[test]
fn a_new_table_has_the_default_limits() {
    assert_eq!(LockTable::new().limits(), Limits::default());
}
