//! Backups, and the tables that are restored from them: tokens rise, nothing is granted too early, and a
//! damaged file is refused by name.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what cannot be unwrapped fails the test")]

use holdfast_core::{
    Acquired, Answer, Applied, Backup, BackupError, BackupOrigin, Caller, Command, Deed, Event,
    FencingToken, Item, LEASE_PARTS, Label, LimitView, Limits, LockTable, Need, RESTORED_INDEX,
    Rejection, RequestId, RestoreError, RestorePlan, RuleChange, SCOPE_EPOCH_MAX, SessionId,
    tokens_begin_at,
};
use holdfast_mutants::{Mutant, while_armed};
use sha2::{Digest, Sha256};
use std::panic::catch_unwind;
use std::path::PathBuf;

mod support;
use support::{
    acquire, acquire_many, apply, busy_table, bytes_of, exclusive, import, name, open, scope,
    set_value, table_before_limit, table_before_permits,
};

const DAY_MS: u64 = 86_400_000;
/// 2026-01-01.
const NEW_YEAR_MS: u64 = 1_767_225_600_000;
/// Some day of 2026, number 331 of it.
const NOW_MS: u64 = NEW_YEAR_MS + 331 * DAY_MS + 5_000;
const TTL_MAX_MS: u64 = 900_000;

fn plan(now_ms: u64) -> RestorePlan {
    RestorePlan { now_ms, epoch: None, ttl_max_ms: TTL_MAX_MS, now: false }
}

fn backup_of(table: &LockTable) -> Vec<u8> {
    let label = |text| Label::parse(text).unwrap();
    let (cluster_name, written_by) = (label("prod"), label("test"));
    let origin = BackupOrigin { cluster_id: [5; 16], cluster_name, written_by, taken_ms: NOW_MS };
    let mut bytes = Vec::new();
    let backup = Backup::new(origin, table.freeze());
    backup.write_to(&mut bytes).unwrap();
    bytes
}

/// A restored table and its log so far.
struct Run {
    table: LockTable,
    index: u64,
}

impl Run {
    fn of(table: LockTable) -> Self {
        Self { index: table.applied_index().get(), table }
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        apply(&mut self.table, self.index, vec![command]).pop().unwrap()
    }

    fn open(&mut self) -> u64 {
        match self.apply(open()).outcome {
            Ok(Answer::SessionOpened { session }) => session.get(),
            other => panic!("{other:?}"),
        }
    }

    /// Opens a session and takes a lock at once.
    fn take(&mut self, lock: &str) -> FencingToken {
        let session = self.open();
        granted(&self.apply(acquire(session, 1, lock)))
    }
}

fn granted(applied: &Applied) -> FencingToken {
    match &applied.outcome {
        Ok(Answer::Acquired { state: Acquired::Granted { token, .. }, .. }) => *token,
        other => panic!("not granted: {other:?}"),
    }
}

fn waits(applied: &Applied) -> bool {
    matches!(applied.outcome, Ok(Answer::Acquired { state: Acquired::Queued { .. }, .. }))
}

#[test]
fn a_backup_comes_back_as_the_table_that_it_was() {
    let table = busy_table();
    let (header, read) = Backup::read_from(&mut backup_of(&table).as_slice()).unwrap();
    assert_eq!(bytes_of(&read), bytes_of(&table));
    assert_eq!((header.origin.cluster_id, header.origin.taken_ms), ([5; 16], NOW_MS));
    assert_eq!(header.origin.cluster_name.as_str(), "prod");
    assert_eq!((header.index, header.state_hash), (table.applied_index(), table.state_hash()));
    assert_eq!((header.sessions, header.values), (table.counts().sessions, table.counts().values));
    assert_eq!(header.counters, table.counters());
    let scopes: Vec<_> =
        header.scopes.iter().map(|(scope, epoch)| (scope.as_str(), *epoch)).collect();
    assert_eq!(scopes, [("u/", 5), ("v/", 1)]);
}

/// The backup of each release with every kind of entry, which a later release restores.
#[test]
fn what_earlier_releases_backed_up_is_read_and_restored() {
    let of_0_3 = include_bytes!("../../../tests/fixtures/0.3/backup.hfb");
    let (header, read) = Backup::read_from(&mut of_0_3.as_slice()).unwrap();
    let same = table_before_permits();
    assert!(bytes_of(&read) == bytes_of(&same));
    assert_eq!((header.origin.cluster_name.as_str(), header.counters), ("prod", same.counters()));
    read.restored(&plan(NOW_MS + 1_000)).unwrap().check().unwrap();
}

/// Those that holders brought along are over with them.
#[test]
fn limits_for_good_are_restored_and_no_others() {
    let restored = busy_table().restored(&plan(NOW_MS + 1_000)).unwrap();
    let limit = |lock| restored.lock(&name(lock)).and_then(|lock| lock.limit);
    let free = |permits| Some(LimitView { permits, used: 0, for_good: true });
    assert_eq!([limit("gpu"), limit("idle"), limit("pool")], [free(4), free(9), None]);
}

/// DESIGN §16: the old cluster may have given out numbers after the backup, and an earlier restore of it too.
#[test]
fn no_number_of_a_sequence_is_repeated_by_a_restore() {
    let orders = name("orders");
    let admin = Caller { is_admin: true, ..Caller::default() };
    let next =
        |run: &mut Run| match run.apply(support::advance("orders", 1 << 16).by(&admin)).outcome {
            Ok(Answer::Advanced { first }) => first,
            other => panic!("{other:?}"),
        };
    let last_of = |table: &LockTable| table.sequence(&orders).unwrap();
    let backup = busy_table();
    let mut last = last_of(&backup);
    assert_eq!(last, 104);
    // Some goes on at a full block in each millisecond, and then the next restore comes.
    for seconds in 1..4 {
        let plan = plan(backup.stamp_ms() + NOW_MS + seconds * 1_000);
        let mut run = Run::of(backup.restored(&plan).unwrap());
        for _ in 0..1_000 {
            let first = next(&mut run);
            assert!(first > last, "restore {seconds}: {first} after {last}");
            last = first + (1 << 16) - 1;
        }
        assert_eq!(run.table.sequences_after("i", None).count(), 1);
    }

    // A backup of the same second, or of a clock that is ahead, counts as one second old.
    for now_ms in [backup.stamp_ms(), 0] {
        let plan = RestorePlan { epoch: Some(400), ..plan(now_ms) };
        assert_eq!(last_of(&backup.restored(&plan).unwrap()), 104 + (1 << 32));
    }
    // It never wraps.
    let mut run = Run::of(backup);
    let begun = run.apply(support::begin_sequence("orders", u64::MAX).by(&admin)).outcome;
    assert_eq!(begun, Ok(Answer::SequenceBegun));
    let mut run = Run::of(run.table.restored(&plan(NOW_MS)).unwrap());
    let outcome = run.apply(support::advance("orders", 1).by(&admin)).outcome;
    assert_eq!(outcome, Err(Rejection::SequenceExhausted { sequence: orders, left: 0 }));
}

/// I37: numbers follow the time of a restore, whichever backup it is, and whether it knows the sequence.
#[test]
fn numbers_rise_over_restores_of_any_backups_in_any_order() {
    let admin = Caller { is_admin: true, ..Caller::default() };
    let take = |run: &mut Run, by| match run.apply(support::advance("late", by).by(&admin)).outcome
    {
        Ok(Answer::Advanced { first }) => first,
        other => panic!("{other:?}"),
    };
    let mut run = Run::of(busy_table());
    // Of Monday, before anybody begins the sequence, and of Tuesday; then numbers that no backup knows.
    let mut backups = vec![run.table.clone()];
    assert_eq!(take(&mut run, 1 << 16), 1);
    backups.push(run.table.clone());
    let mut last = take(&mut run, 1 << 16) + (1 << 16) - 1;

    // Each restored cluster is backed up too, as bytes. The n-th restore takes the backup of that place.
    for (seconds, backup) in (1..).zip([1, 0, 1, 2, 5, 3, 0, 4]) {
        let restored = backups[backup].restored(&plan(NOW_MS + seconds * 1_000)).unwrap();
        assert!(restored.sequence(&name("late")).is_none_or(|known| known > last), "{backup}");
        let mut run = Run::of(restored);
        for block in 0..3 {
            let first = take(&mut run, 1 << 16);
            assert!(first > last, "restore {seconds} of {backup}: {first} after {last}");
            last = first + (1 << 16) - 1;
            if block == 0 {
                let bytes = bytes_of(&run.table);
                backups.push(LockTable::read_from(&mut bytes.as_slice()).unwrap());
            }
        }
        // Where nobody has begun it, none of its numbers may have been given out.
        let low = run.apply(support::begin_sequence("other", last >> 1).by(&admin)).outcome;
        assert!(matches!(low, Err(Rejection::SequenceNotAbove { .. })), "{low:?}");
    }
}

#[test]
fn freezes_are_restored() {
    let restored = busy_table().restored(&plan(NOW_MS)).unwrap();
    let frozen: Vec<_> = restored.freezes().map(|(prefix, _)| prefix.as_str()).collect();
    assert_eq!(frozen, ["f/"]);
}

/// Their leader counts their times in full: a hold that began before the backup closes its lock as if it had ended then.
#[test]
fn closed_locks_and_those_held_for_a_least_time_are_closed_after_a_restore() {
    let mut restored = busy_table().restored(&plan(NOW_MS)).unwrap();
    let closed: Vec<_> = restored
        .locks_after("cron/", None, 9)
        .map(|lock| (lock.name.as_str().to_owned(), lock.closed.unwrap().hold_at_least_ms))
        .collect();
    assert_eq!(closed, ["cron/a", "cron/b", "cron/c"].map(|name| (name.to_owned(), 60_000)));
    let parts = (0..LEASE_PARTS).flat_map(|part| restored.closed_locks_in(part));
    let open =
        parts.map(|(lock, closed)| Command::OpenLock { lock: lock.clone(), token: closed.token });
    let open: Vec<_> = open.collect();
    let index = restored.applied_index().get() + 1;
    let opened = support::apply(&mut restored, index, open);
    assert!(opened.iter().all(|one| one.outcome == Ok(Answer::LockOpened)));
    assert_eq!(restored.locks_after("cron/", None, 9).count(), 0);
}

#[test]
fn a_sequence_that_goes_on_with_the_number_of_the_backup_is_found() {
    let found = while_armed(Mutant::RestoreRepeatsNumbers, || {
        catch_unwind(no_number_of_a_sequence_is_repeated_by_a_restore)
    });
    assert!(found.is_err());
}

/// Makes the backup among a release's fixtures (`tests/fixtures/README.md`) in the folder that `HOLDFAST_FIXTURES` names.
#[test]
#[expect(clippy::disallowed_methods, reason = "run by hand, once for a release")]
#[ignore = "makes fixtures of the release it is built from; only with HOLDFAST_FIXTURES"]
fn backup_of_this_release_is_left() {
    let Some(folder) = std::env::var_os("HOLDFAST_FIXTURES").map(PathBuf::from) else { return };
    std::fs::write(folder.join("backup.hfb"), backup_of(&busy_table())).unwrap();
}

#[test]
fn a_backup_cut_off_anywhere_is_cut_off() {
    let bytes = backup_of(&busy_table());
    for len in 0..bytes.len() {
        let read = Backup::read_from(&mut &bytes[..len]);
        assert!(matches!(read, Err(BackupError::CutOff)), "{len} bytes: {read:?}");
    }
}

#[test]
fn a_backup_with_any_byte_changed_is_refused() {
    let bytes = backup_of(&busy_table());
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(Backup::read_from(&mut bytes.as_slice()).is_err(), "byte {at}");
    }
}

#[test]
fn foreign_files_and_those_of_newer_builds_are_refused_by_name() {
    let sound = backup_of(&busy_table());
    let mut newer = sound.clone();
    newer[8] = 2;
    let mut longer = sound.clone();
    longer.push(0);
    let cases = [
        (bytes_of(&busy_table()), "not a backup of a Holdfast cluster"),
        (b"PK\x03\x04 a zip archive".to_vec(), "not a backup of a Holdfast cluster"),
        (newer, "a backup of version 2; this build reads versions up to 1"),
        (longer, "the backup is damaged: there is more behind its end"),
    ];
    for (bytes, text) in cases {
        let error = Backup::read_from(&mut bytes.as_slice()).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}

/// Every byte is as it was written; only the header is that of another backup.
#[test]
fn a_backup_put_together_from_two_is_refused() {
    let (one, other) = (busy_table(), table_before_limit());
    let put_together = |header: &LockTable, table: &LockTable| {
        let (header, _) = Backup::read_from(&mut backup_of(header).as_slice()).unwrap();
        let content = [borsh::to_vec(&header).unwrap(), bytes_of(table)].concat();
        let len = u32::try_from(content.len()).unwrap().to_le_bytes();
        let crc = crc32fast::hash(&content).to_le_bytes();
        let parts: [&[u8]; 7] = [b"HFBACKUP", &[1, 0], &len, &crc, &content, &[0; 4], &crc];
        let front = parts.concat();
        let hash = Sha256::digest(&front);
        [front, hash.to_vec()].concat()
    };
    assert_eq!(put_together(&one, &one), backup_of(&one));
    let read = Backup::read_from(&mut put_together(&one, &other).as_slice());
    assert!(matches!(read, Err(BackupError::Inconsistent { .. })), "{read:?}");
}

/// I3: whichever of two backups is restored, and however often, each later token is larger.
#[test]
fn tokens_rise_over_restores_in_any_order() {
    let mut run = Run::of(LockTable::new());
    let mut last = run.take("a");
    let older = run.table.clone();
    (0..50).for_each(|lock| last = last.max(run.take(&format!("b/{lock}"))));
    let newer = run.table;
    let restores = [&newer, &older, &older, &newer, &older];
    for (table, seconds) in restores.into_iter().zip(1..) {
        let plan = RestorePlan { now: true, ..plan(NOW_MS + seconds * 1_000) };
        let mut run = Run::of(table.restored(&plan).unwrap());
        for lock in ["a", "b/1", "c"] {
            let token = run.take(lock);
            assert!(token > last, "restore {seconds}: {token} after {last}");
            last = token;
        }
        assert_eq!(token_parts(last).0, 331);
    }
}

fn token_parts(token: FencingToken) -> (u64, u64) {
    (token.epoch(), token.counter())
}

/// I3: a clock that is known to be wrong, or tokens that ran ahead of it.
#[test]
fn a_clock_that_cannot_make_tokens_rise_is_refused_unless_an_epoch_is_given() {
    let table = table_before_limit();
    let restore = |now_ms, epoch| table.restored(&RestorePlan { epoch, ..plan(now_ms) });
    let refused = |now_ms, epoch| restore(now_ms, epoch).unwrap_err();
    assert_eq!(
        refused(999, None),
        RestoreError::ClockBeforeBackup { behind_ms: 1, epoch: 5 },
        "the stamp of every batch is 1,000"
    );
    let before_2026 = NEW_YEAR_MS - 1;
    let out = RestoreError::ClockOutOfRange { now_ms: before_2026, epoch: 5 };
    assert_eq!(refused(before_2026, None), out);
    let far = NEW_YEAR_MS + 69 * 365 * DAY_MS;
    assert_eq!(refused(far, None), RestoreError::ClockOutOfRange { now_ms: far, epoch: 5 });
    let counter = table.counters().token;
    let ahead = RestoreError::TokensAheadOfClock { counter, start: 0, epoch: 5 };
    assert_eq!(refused(NEW_YEAR_MS, None), ahead);

    assert_eq!(refused(0, Some(5)), RestoreError::EpochNotAbove { epoch: 5, now: 5 });
    let max = SCOPE_EPOCH_MAX;
    let high = max + 1;
    assert_eq!(refused(0, Some(high)), RestoreError::EpochTooHigh { epoch: high, max });
    let restored = restore(0, Some(6)).unwrap();
    assert_eq!((restored.counters().epoch, restored.counters().token), (6, counter));
    assert!(restored.scopes().all(|view| view.state.epoch == 6));
}

/// A new cluster begins where a restored one would: so do its tokens rise if all volumes of the one before
/// it were lost.
#[test]
fn tokens_of_a_new_cluster_begin_at_the_time() {
    let (epoch, counter) = tokens_begin_at(NOW_MS).unwrap();
    assert_eq!((epoch, counter), (331, (331 * 86_400 + 5) << 17));
    assert_eq!(tokens_begin_at(NEW_YEAR_MS), Some((1, 0)), "epoch 0 is that of other stores");
    assert_eq!(tokens_begin_at(NEW_YEAR_MS - 1), None);
    let mut run = Run::of(LockTable::new());
    assert!(run.table.may_begin_tokens());
    let begin = Command::BeginTokens { epoch, counter };
    assert_eq!(run.apply(begin.clone()).outcome, Ok(Answer::Configured));
    assert_eq!(token_parts(run.take("a")), (331, counter + 1));
    // A late copy, and that of a leader whose clock is wrong, change nothing.
    assert!(!run.table.may_begin_tokens());
    for (epoch, counter) in [(1, 0), (epoch, counter), (400, 1 << 47)] {
        run.apply(Command::BeginTokens { epoch, counter }).outcome.unwrap();
    }
    assert_eq!(token_parts(run.take("b")).1, (token_parts(run.take("c")).1) - 1);
    let unusable = Command::BeginTokens { epoch: SCOPE_EPOCH_MAX + 1, counter: 0 };
    assert!(matches!(run.apply(unusable).outcome, Err(Rejection::UnusableLimits { .. })));
}

#[test]
fn a_restored_table_has_nothing_of_a_session_and_all_else() {
    let table = busy_table();
    let restored = table.restored(&plan(NOW_MS)).unwrap();
    restored.check().unwrap();
    let counts = restored.counts();
    assert_eq!((counts.sessions, counts.held, counts.waiting), (0, 0, 0));
    assert_eq!(counts.values, table.counts().values);
    // The hold of `cron/c` has become one more that is closed.
    assert_eq!(counts.value_bytes, table.counts().value_bytes + 256 + 6);
    for lock in ["y", "z", "app/1"] {
        let was = table.lock(&name(lock)).unwrap().value.cloned().unwrap();
        let now = restored.lock(&name(lock)).unwrap().value.cloned().unwrap();
        assert!(now.suspect, "{lock}");
        assert_eq!((now.bytes, now.set_by, now.owner), (was.bytes, was.set_by, was.owner));
    }
    assert_eq!(restored.rules(), table.rules());
    assert_eq!(restored.limits(), table.limits());
    assert_eq!(restored.max_table_bytes(), table.max_table_bytes());
    assert_eq!(restored.work_limit(), table.work_limit());
    assert_eq!(restored.stamp_ms(), table.stamp_ms());
    assert_eq!(restored.applied_index(), RESTORED_INDEX);
    // Sessions and tickets go on, so that no old number means something new.
    assert_eq!(restored.counters().session, table.counters().session);
    assert_eq!(restored.counters().ticket, table.counters().ticket);
    let bytes = bytes_of(&restored);
    assert_eq!(bytes_of(&LockTable::read_from(&mut bytes.as_slice()).unwrap()), bytes);
}

/// I6: clients of the old cluster may rely on their holds for the longest lease there could be.
#[test]
fn nothing_is_granted_before_the_wait_is_over() {
    let mut run = Run::of(busy_table().restored(&plan(NOW_MS)).unwrap());
    let ops = Caller { identity: support::identity("cn:ops"), is_admin: true };
    let turn_off = Deed::Rule { change: RuleChange::Turn { on: false } };
    run.apply(turn_off.by(&ops)).outcome.unwrap();
    assert_eq!(run.table.grants_after_ms(), Some(TTL_MAX_MS));
    let sessions = [(); 3].map(|()| run.open());
    for (session, lock) in sessions.into_iter().zip(["y", "y", "free"]) {
        assert!(waits(&run.apply(acquire(session, 1, lock))), "{lock}");
    }
    assert!(waits(&run.apply(acquire_many(
        sessions[2],
        2,
        exclusive(&["free", "p", "q"]),
        Need::Any { min: 1 }
    ))));
    let denied = Command::Acquire {
        session: SessionId::new(sessions[0]),
        done_below: RequestId::new(0),
        request: RequestId::new(9),
        items: vec![Item::shared(name("other"))],
        need: Need::All,
        wait: false,
    };
    assert_eq!(run.apply(denied.clone()).outcome, Err(Rejection::Restored));
    assert_eq!(run.apply(import("old/1", &["k"], &[])).outcome, Err(Rejection::Restored));
    // Also over a snapshot, and a second restore of the same.
    let bytes = bytes_of(&run.table);
    run.table = LockTable::read_from(&mut bytes.as_slice()).unwrap();
    let again = run.table.restored(&plan(NOW_MS + 1_000)).unwrap();
    assert_eq!(again.grants_after_ms(), Some(TTL_MAX_MS));

    let applied = run.apply(Command::GrantAgain);
    assert_eq!(applied.outcome, Ok(Answer::CarriedOn { more: false }));
    let of = |event: &Event| match event {
        Event::Granted { session, request, token, .. } => {
            Some((session.get(), request.get(), *token))
        }
        _ => None,
    };
    let granted: Vec<_> = applied.events.iter().filter_map(of).collect();
    let order: Vec<_> = granted.iter().map(|&(session, request, _)| (session, request)).collect();
    assert_eq!(order, [(sessions[0], 1), (sessions[2], 1), (sessions[2], 2)]);
    assert!(granted.is_sorted_by_key(|&(.., token)| token));
    assert_eq!(run.table.grants_after_ms(), None);
    // A retry of what was denied gets that again; another copy of the command changes nothing.
    assert_eq!(run.apply(denied).outcome, Err(Rejection::Restored));
    assert_eq!(run.apply(Command::GrantAgain).events, []);
    run.take("other");
}

#[test]
fn the_wait_is_as_long_as_the_longest_lease_anybody_knows_of() {
    let of = |ttl_ms, ttl_max_ms| {
        let mut run = Run::of(LockTable::new());
        let limits = Limits { ttl_max_ms: 4_000_000, ..run.table.limits() };
        run.apply(Command::Configure { limits });
        let label = Label::parse("long").unwrap();
        run.apply(Command::OpenSession { ttl_ms, label, secret_hash: [0; 32] }).outcome.unwrap();
        let limits = Limits { ttl_max_ms: 2_000_000, ..limits };
        run.apply(Command::Configure { limits });
        let plan = RestorePlan { ttl_max_ms, ..plan(NOW_MS) };
        run.table.restored(&plan).unwrap().grants_after_ms()
    };
    assert_eq!(of(3_000_000, 1_000_000), Some(3_000_000), "an open session");
    assert_eq!(of(1_000, 1_000_000), Some(2_000_000), "what the old cluster allowed");
    assert_eq!(of(1_000, 5_000_000), Some(5_000_000), "what the restoring node allows");
}

/// I6: the clients of the cluster before the last one, whose longest lease no later table has.
#[test]
fn a_backup_of_a_cluster_that_still_waits_waits_as_long_again() {
    let long = RestorePlan { ttl_max_ms: 80_000_000, ..plan(NOW_MS) };
    let first = LockTable::new().restored(&long).unwrap();
    let (header, read) = Backup::read_from(&mut backup_of(&first).as_slice()).unwrap();
    assert_eq!(header.largest_ttl_ms, 80_000_000);
    let again = read.restored(&plan(NOW_MS + 1_000)).unwrap();
    assert_eq!(again.grants_after_ms(), Some(80_000_000));
}

#[test]
fn many_waiters_are_granted_in_parts_once_the_wait_is_over() {
    const STEPS: u64 = 60;
    const MANY: u64 = 500;
    let mut before = Run::of(LockTable::new());
    before.apply(Command::LimitWork { steps: STEPS });
    let mut run = Run::of(before.table.restored(&plan(NOW_MS)).unwrap());
    let sessions = [(); 4].map(|()| run.open());
    for lock in 0..MANY {
        let session = sessions[usize::try_from(lock).unwrap() % sessions.len()];
        assert!(waits(&run.apply(acquire(session, lock, &format!("lock/{lock:05}")))));
    }
    let mut commands = 0;
    let mut next = Command::GrantAgain;
    loop {
        let before = run.table.steps_done();
        let applied = run.apply(next);
        let steps = run.table.steps_done() - before;
        assert!(steps <= 2 * STEPS, "{steps} steps");
        commands += 1;
        if applied.outcome == Ok(Answer::CarriedOn { more: false }) {
            break;
        }
        // Over a snapshot in between, nothing is forgotten (I17).
        let bytes = bytes_of(&run.table);
        run.table = LockTable::read_from(&mut bytes.as_slice()).unwrap();
        next = Command::CarryOn;
    }
    assert_eq!((run.table.counts().held, run.table.counts().waiting), (MANY, 0));
    assert!(commands > 20, "{commands} commands");
}

/// I24: the row of the other store may have a later epoch than the backup.
#[test]
fn a_restored_scope_is_marked_until_its_epoch_is_raised() {
    let table = table_before_limit();
    let mut run = Run::of(table.restored(&plan(NOW_MS)).unwrap());
    let (u, v) = (scope("u/"), scope("v/"));
    assert!(run.table.is_scope_restored(&u) && run.table.is_scope_restored(&v));
    let states: Vec<_> =
        run.table.scopes().map(|view| (view.state.epoch, view.state.suspended)).collect();
    assert_eq!(states, [(331, true), (331, true)]);
    run.apply(Command::RaiseEpoch { scope: u.clone(), epoch: 400 }).outcome.unwrap();
    assert!(!run.table.is_scope_restored(&u) && run.table.is_scope_restored(&v));
    run.apply(Command::RemoveScope { scope: v.clone() }).outcome.unwrap();
    run.apply(Command::SetScope { scope: v.clone() }).outcome.unwrap();
    assert!(!run.table.is_scope_restored(&v), "it is another scope of that name");
    // While the table waits, a scope that is resumed grants nothing either.
    let session = run.open();
    assert!(waits(&run.apply(acquire(session, 1, "u/1"))));
    let resumed = run.apply(Command::Resume { scope: u, epoch: 400 });
    assert!(resumed.events.iter().all(|event| !matches!(event, Event::Granted { .. })));
    let again = run.apply(Command::GrantAgain);
    assert!(again.events.iter().any(|event| matches!(event, Event::Granted { .. })));
}

/// A holder of the old cluster shows a session and a token that the new one does not know.
#[test]
fn holders_of_the_old_cluster_are_refused() {
    let table = table_before_limit();
    let mut run = Run::of(table.restored(&plan(NOW_MS)).unwrap());
    for command in [support::release(3, 6), set_value(3, 20, 6, "y", b"late"), acquire(3, 21, "b")]
    {
        let outcome = run.apply(command).outcome;
        assert!(matches!(outcome, Err(Rejection::UnknownSession { .. })), "{outcome:?}");
    }
    let claim = support::claim(run.open(), 1, "i", "old/1");
    assert!(matches!(run.apply(claim).outcome, Err(Rejection::NotImported { .. })));
}

/// The tests above see each rule that is broken.
#[test]
fn each_rule_of_a_restore_is_missed_when_it_is_broken() {
    let rules: [(Mutant, fn()); 4] = [
        (Mutant::RestoreRepeatsTokens, tokens_rise_over_restores_in_any_order),
        (Mutant::RestoreGrantsAtOnce, nothing_is_granted_before_the_wait_is_over),
        (Mutant::RestoredScopeUnmarked, a_restored_scope_is_marked_until_its_epoch_is_raised),
        (Mutant::RestoredValueTrusted, a_restored_table_has_nothing_of_a_session_and_all_else),
    ];
    for (mutant, test) in rules {
        let seen = while_armed(mutant, || catch_unwind(test));
        assert!(seen.is_err(), "{} is not seen", mutant.name());
    }
}
