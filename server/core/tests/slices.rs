//! One command does a bounded amount of work, however much there is to do; the rest is carried on, and
//! comes to the same. Work is counted in steps, without a clock.

#![expect(clippy::unwrap_used, reason = "what cannot be unwrapped fails the test")]

use std::collections::BTreeMap;

use holdfast_core::{
    Acquired, Answer, Applied, Command, Deed, Event, FencingToken, Item, LEASE_PARTS, Label,
    LockTable, LogIndex, LossCause, Need, Outcome, Rejection, RequestId, SessionId, TTL_CEILING_MS,
    Tenure,
};
use holdfast_mutants::{Mutant, while_armed};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

mod support;
use support::{
    TENURE, acquire, acquire_many, batch, by, bytes_of, cancel, exclusive, identity, name, open,
    release, scope, set_value, share,
};

/// As many as a test has of what one command could concern.
const MANY: u64 = 5_000;
/// The limit of these tests.
const STEPS: u64 = 500;
/// The largest single piece of work here, which a command may do beyond its limit: the end of a session
/// or a hold.
const PIECE: u64 = 200;

/// A table and its log so far.
#[derive(Clone)]
struct Run {
    table: LockTable,
    index: u64,
    /// Most steps of one command.
    bound: u64,
}

impl Run {
    fn new() -> Self {
        Self { table: LockTable::new(), index: 0, bound: u64::MAX }
    }

    /// With that limit of steps.
    fn limited(steps: u64) -> Self {
        let mut run = Self { bound: steps + PIECE, ..Self::new() };
        run.apply(Command::LimitWork { steps });
        run
    }

    fn with_sessions(mut self, number: u64) -> Self {
        (0..number).for_each(|_| drop(self.apply(open())));
        self
    }

    fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        let mut applied = Vec::new();
        let index = LogIndex::new(self.index);
        self.table.apply_batch(index, TENURE, &batch(vec![command]), &mut applied).unwrap();
        applied.pop().unwrap()
    }

    /// Applies a command, and returns its steps as well.
    fn counted(&mut self, command: Command) -> (Applied, u64) {
        let before = self.table.steps_done();
        let applied = self.apply(command);
        (applied, self.table.steps_done() - before)
    }

    /// Applies a command, which has to stay within the limit.
    #[track_caller]
    fn bounded(&mut self, command: Command) -> Applied {
        let (applied, steps) = self.counted(command);
        assert!(steps <= self.bound, "{steps} steps");
        applied
    }

    /// Carries on until nothing is left, each time within the limit. Returns all events.
    #[track_caller]
    fn carry_on(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.table.has_work_left() {
            let applied = self.bounded(Command::CarryOn);
            let more = self.table.has_work_left();
            assert_eq!(applied.outcome, Ok(Answer::CarriedOn { more }));
            events.extend(applied.events);
        }
        self.table.check().unwrap();
        events
    }

    /// The same from its own snapshot.
    fn restored(&self) -> Self {
        let bytes = bytes_of(&self.table);
        let table = LockTable::read_from(&mut bytes.as_slice()).unwrap();
        Self { table, index: self.index, bound: self.bound }
    }
}

fn token(epoch: u16, counter: u64) -> FencingToken {
    FencingToken::new(epoch, counter).unwrap()
}

/// The tokens of the holders that are told that others wait.
fn told(events: &[Event]) -> Vec<FencingToken> {
    let told = events.iter().filter_map(|event| match event {
        Event::Contended { token, .. } => Some(*token),
        _ => None,
    });
    told.collect()
}

fn granted(events: &[Event]) -> Vec<SessionId> {
    let granted = events.iter().filter_map(|event| match event {
        Event::Granted { session, .. } => Some(*session),
        _ => None,
    });
    granted.collect()
}

fn lost(events: &[Event]) -> Vec<FencingToken> {
    let lost = events.iter().filter_map(|event| match event {
        Event::Lost { token, cause: LossCause::EpochRaised, .. } => Some(*token),
        _ => None,
    });
    lost.collect()
}

fn end_all_of(who: &str) -> Command {
    let (identity, reason) = (identity(who), Label::parse("gone").unwrap());
    by("cn:ops", Deed::CutOff { identity, reason, now: false })
}

fn close(lock: &str, token: Option<FencingToken>) -> Command {
    let (lock, reason) = (name(lock), Label::parse("gone").unwrap());
    by("cn:ops", Deed::CloseHolds { lock, token, reason, now: false })
}

/// Session 1 holds `config`, and all others wait for it to read it.
fn readers_behind_a_writer(run: Run) -> Run {
    let mut run = run.with_sessions(MANY + 1);
    run.apply(acquire(1, 1, "config"));
    (2..=MANY + 1).for_each(|session| drop(run.apply(share(session, 1, "config"))));
    run
}

/// So many sessions read `config`.
fn readers(run: Run, number: u64) -> Run {
    let mut run = run.with_sessions(number);
    (1..=number).for_each(|session| drop(run.apply(share(session, 1, "config"))));
    run
}

/// Locks of a scope that serves, each held by one of a few sessions and awaited by another one.
fn held_in_a_scope(run: Run) -> Run {
    let mut run = run.with_sessions(20);
    run.apply(Command::SetScope { scope: scope("s/") });
    run.apply(Command::Resume { scope: scope("s/"), epoch: 1 });
    for number in 0..MANY {
        let lock = format!("s/{number:05}");
        run.apply(acquire(1 + number % 10, 1 + number / 10, &lock));
        run.apply(acquire(11 + number % 10, 1 + number / 10, &lock));
    }
    run
}

#[test]
fn every_reader_behind_a_writer_is_let_in_by_commands_that_stay_small() {
    let mut run = readers_behind_a_writer(Run::limited(STEPS));
    let first = run.bounded(release(1, 1));
    assert!(run.table.has_work_left());
    let at_once = granted(&first.events).len() as u64;
    assert!((1..MANY).contains(&at_once), "{at_once}");
    let mut sessions = granted(&first.events);
    sessions.extend(granted(&run.carry_on()));
    // In the order in which they came (I9).
    assert!(sessions.iter().map(|session| session.get()).eq(2..=MANY + 1));

    let mut all_at_once = readers_behind_a_writer(Run::new());
    let (applied, steps) = all_at_once.counted(release(1, 1));
    assert_eq!(granted(&applied.events), sessions);
    assert!(steps > MANY && !all_at_once.table.has_work_left());
}

/// A batch is applied as a whole: many commands that could do much each do little.
#[test]
fn the_commands_of_a_batch_are_bounded_together() {
    const LOCKS: u64 = 200;
    const READERS: u64 = 50;
    let mut run = Run::limited(STEPS).with_sessions(READERS + 1);
    for lock in 0..LOCKS {
        run.apply(acquire(1, 1 + lock, &format!("{lock}")));
        for session in 2..READERS + 2 {
            run.apply(share(session, 1 + lock, &format!("{lock}")));
        }
    }
    let before = run.table.steps_done();
    run.index += 1;
    let releases = (1..=LOCKS).map(|counter| release(1, counter)).collect();
    let (index, mut applied) = (LogIndex::new(run.index), Vec::new());
    run.table.apply_batch(index, TENURE, &batch(releases), &mut applied).unwrap();

    let steps = run.table.steps_done() - before;
    assert!(steps <= 4 * (STEPS + PIECE) + LOCKS * (STEPS / 16 + PIECE / 2), "{steps} steps");
    assert!(applied.iter().all(|one| !granted(&one.events).is_empty()), "each let somebody in");
    let now = applied.iter().map(|one| granted(&one.events).len() as u64).sum::<u64>();
    assert!(now < LOCKS * READERS / 2, "{now} of {}", LOCKS * READERS);
    assert_eq!(now + granted(&run.carry_on()).len() as u64, LOCKS * READERS);
}

/// A client that comes while readers are still let in does not overtake them (I9), nor does it hold beside
/// a writer (I2).
#[test]
fn nobody_gets_in_between_the_parts_of_the_work() {
    let mut run = readers_behind_a_writer(Run::limited(STEPS));
    run.apply(open());
    run.bounded(release(1, 1));
    let reader = run.bounded(share(MANY + 2, 1, "config"));
    let writer = run.bounded(acquire(1, 2, "config"));
    for late in [&reader, &writer] {
        let state = match &late.outcome {
            Ok(Answer::Acquired { state, .. }) => state,
            other => panic!("{other:?}"),
        };
        assert!(matches!(state, Acquired::Queued { .. }), "{state:?}");
    }
    let rest = granted(&run.carry_on());
    assert_eq!(rest.last(), Some(&SessionId::new(MANY + 2)));
    assert!(!rest.contains(&SessionId::new(1)));
}

/// Readers that enter together do not cause it for each other, also if they enter in several parts;
/// those behind whom a writer waits are told once all have entered, each once.
#[test]
fn readers_that_enter_in_parts_are_told_of_a_writer_and_not_of_each_other() {
    let mut run = readers_behind_a_writer(Run::limited(STEPS));
    let first = run.bounded(release(1, 1));
    assert_eq!(told(&first.events), []);
    assert_eq!(told(&run.clone().carry_on()), []);

    run.bounded(acquire(1, 2, "config"));
    let mut all = told(&run.carry_on());
    assert!(all.is_sorted(), "in the order of their grants");
    all.dedup();
    assert_eq!(all.len() as u64, MANY);
}

#[test]
fn all_readers_are_told_of_a_writer_by_commands_that_stay_small() {
    let mut run = readers(Run::limited(STEPS), MANY);
    let first = run.bounded(acquire(1, 2, "config"));
    let mut all = told(&first.events);
    assert!((1..MANY).contains(&(all.len() as u64)), "{} at once", all.len());
    all.extend(told(&run.carry_on()));
    assert!(all.iter().map(|token| token.counter()).eq(1..=MANY));
}

/// Otherwise 5,000 frames would go out each time.
#[test]
fn whoever_asks_and_cancels_again_and_again_has_each_of_many_readers_told_once() {
    let mut run = readers(Run::limited(STEPS), MANY);
    let mut all = Vec::new();
    for request in 2..200 {
        all.extend(told(&run.bounded(acquire(1, request, "config")).events));
        if request % 50 == 0 {
            all.extend(told(&run.carry_on()));
        }
        run.bounded(cancel(1, request));
    }
    let told_in_all = all.len() as u64;
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len() as u64, told_in_all), (MANY, MANY));
    // A reader that came later is told too.
    run.bounded(share(1, 900, "config"));
    let late = run.bounded(acquire(2, 900, "config"));
    assert_eq!(told(&late.events).len() + told(&run.carry_on()).len(), 1);
}

/// As before there was a limit.
#[test]
fn few_holders_are_told_each_time_that_a_queue_begins() {
    let mut run = readers(Run::limited(STEPS), 3);
    for request in 2..5 {
        assert_eq!(told(&run.bounded(acquire(1, request, "config")).events).len(), 3);
        run.bounded(cancel(1, request));
    }
}

#[test]
fn an_epoch_ends_every_hold_of_its_scope_by_commands_that_stay_small() {
    let mut run = held_in_a_scope(Run::limited(STEPS));
    let raised = run.bounded(Command::RaiseEpoch { scope: scope("s/"), epoch: 7 });
    assert!(run.table.has_work_left());
    let mut ended = lost(&raised.events);
    let events = run.carry_on();
    assert_eq!(granted(&events), []);
    ended.extend(lost(&events));
    ended.sort_unstable();
    assert!(ended.iter().map(|token| token.counter()).eq(1..=MANY));
    assert_eq!(run.table.counts().held, 0);
    assert_eq!(run.table.counts().waiting, MANY);

    let resumed = run.bounded(Command::Resume { scope: scope("s/"), epoch: 7 });
    let at_once = granted(&resumed.events).len() as u64;
    assert!((1..MANY).contains(&at_once), "{at_once}");
    assert_eq!(at_once + granted(&run.carry_on()).len() as u64, MANY);
    assert_eq!((run.table.counts().held, run.table.counts().waiting), (MANY, 0));
}

/// I6: the other store may have served the scope. So no hold of before counts for anything once the
/// epoch is raised, although most have not had their turn.
#[test]
fn a_hold_of_an_earlier_epoch_is_over_before_its_turn() {
    let mut run = held_in_a_scope(Run::limited(STEPS));
    let last = format!("s/{:05}", MANY - 1);
    let (session, request) = (SessionId::new(10), RequestId::new(MANY / 10));
    let holder = run.table.lock(&name(&last)).unwrap().holders().next().unwrap();
    let old = holder.grant.token;
    assert!(run.table.grant_is_current(&name(&last), old));
    run.bounded(Command::RaiseEpoch { scope: scope("s/"), epoch: 2 });
    run.bounded(Command::Resume { scope: scope("s/"), epoch: 2 });

    let holder = run.table.lock(&name(&last)).unwrap().holders().next().unwrap();
    assert_eq!(holder.grant.token, old, "it has not had its turn");
    assert!(holder.is_ending && !run.table.grant_is_current(&name(&last), old));
    let write = run.bounded(set_value(10, 9_999, old.counter(), &last, b"late"));
    assert_eq!(write.outcome, Err(Rejection::NotHolder { session, token: old }));
    let retry = run.bounded(acquire(10, request.get(), &last));
    assert_eq!(retry.outcome, Err(Rejection::RequestEnded { request }));
    // Its lock is not free before its turn (I2), and goes to its waiter then.
    assert_eq!(run.table.lock(&name(&last)).unwrap().held_by, 1);
    run.carry_on();
    let holder = run.table.lock(&name(&last)).unwrap().holders().next().unwrap();
    assert_eq!((holder.grant.session.get(), holder.grant.token.epoch()), (20, 2));
}

#[test]
fn a_scope_is_not_removed_before_its_old_holds_are_over() {
    let mut run = held_in_a_scope(Run::limited(STEPS));
    run.bounded(Command::RaiseEpoch { scope: scope("s/"), epoch: 2 });
    let remove = || Command::RemoveScope { scope: scope("s/") };
    let unfinished = Err(Rejection::Unfinished { scope: scope("s/") });
    assert_eq!(run.bounded(remove()).outcome, unfinished);
    run.carry_on();
    let removed = run.bounded(remove());
    assert_eq!(removed.outcome, Ok(Answer::Scope { now: None }));
    let rest = granted(&run.carry_on()).len();
    assert_eq!((granted(&removed.events).len() + rest) as u64, MANY);
}

/// A scope that is suspended in the middle of its resumption grants nothing more, and everything when it
/// is resumed once more.
#[test]
fn a_scope_that_is_suspended_while_it_is_resumed_grants_nothing_more() {
    let mut run = held_in_a_scope(Run::limited(STEPS));
    run.bounded(Command::RaiseEpoch { scope: scope("s/"), epoch: 2 });
    run.carry_on();
    let resume = || Command::Resume { scope: scope("s/"), epoch: 2 };
    let mut all = granted(&run.bounded(resume()).events).len() as u64;
    run.bounded(Command::Suspend { scope: scope("s/") });
    assert_eq!(granted(&run.carry_on()), []);
    all += granted(&run.bounded(resume()).events).len() as u64;
    assert_eq!(all + granted(&run.carry_on()).len() as u64, MANY);
}

/// Sets the scope with as many copies of the command as that takes.
fn set_scope(run: &mut Run, prefix: &str) -> (u64, Outcome) {
    let mut copies = 0;
    loop {
        copies += 1;
        let applied = run.bounded(Command::SetScope { scope: scope(prefix) });
        let unfinished = Err(Rejection::Unfinished { scope: scope(prefix) });
        if applied.outcome != unfinished {
            return (copies, applied.outcome);
        }
        assert_eq!(applied.events, []);
        assert!(!run.table.has_work_left() && run.table.scopes().next().is_none());
    }
}

fn locks_without_a_scope(run: Run) -> Run {
    let mut run = run.with_sessions(10);
    for number in 0..MANY {
        run.apply(acquire(1 + number % 10, 1 + number / 10, &format!("s/{number:05}")));
    }
    run
}

#[test]
fn a_scope_is_set_over_many_locks_by_commands_that_stay_small() {
    let mut run = locks_without_a_scope(Run::limited(STEPS));
    let (copies, outcome) = set_scope(&mut run, "s/");
    assert!(matches!(outcome, Ok(Answer::Scope { now: Some(_) })), "{outcome:?}");
    assert!(copies > MANY / STEPS, "{copies} copies");
    assert_eq!(run.table.scopes().count(), 1);
}

#[test]
fn a_scope_is_set_over_one_lock_with_many_readers_by_commands_that_stay_small() {
    let mut run = readers(Run::limited(STEPS), MANY);
    let (copies, outcome) = set_scope(&mut run, "conf");
    assert!(outcome.is_ok() && copies > MANY / STEPS, "{copies} copies, {outcome:?}");
}

#[test]
fn what_cannot_be_in_a_scope_is_found_by_whichever_copy_comes_to_it() {
    let mut run = locks_without_a_scope(Run::limited(STEPS));
    let set = acquire_many(1, 9_000, exclusive(&["s/99999", "t"]), Need::All);
    run.apply(set);
    let (copies, outcome) = set_scope(&mut run, "s/");
    assert!(matches!(outcome, Err(Rejection::ScopeCutsRequest { .. })), "{outcome:?}");
    assert!(copies > 1);
    // The next try begins anew, and finds the same.
    assert!(set_scope(&mut run, "s/").0 > 1);
}

/// The part that was looked at is not looked at again: a request that would not fit there ends the look.
#[test]
fn a_request_that_comes_while_a_scope_is_looked_at_is_found() {
    let mut run = locks_without_a_scope(Run::limited(STEPS));
    let set = || Command::SetScope { scope: scope("s/") };
    let unfinished = Err(Rejection::Unfinished { scope: scope("s/") });
    assert_eq!(run.bounded(set()).outcome, unfinished);
    run.apply(acquire_many(1, 9_000, exclusive(&["s/", "t"]), Need::All));
    let (_, outcome) = set_scope(&mut run, "s/");
    assert!(matches!(outcome, Err(Rejection::ScopeCutsRequest { .. })), "{outcome:?}");
}

/// The same for a hold under a token of another epoch than that in which the look began.
#[test]
fn an_epoch_that_rises_while_a_scope_is_looked_at_begins_the_look_anew() {
    let mut run = locks_without_a_scope(Run::limited(STEPS));
    run.apply(Command::SetScope { scope: scope("other/") });
    let set = || Command::SetScope { scope: scope("s/") };
    assert!(matches!(run.bounded(set()).outcome, Err(Rejection::Unfinished { .. })));
    run.apply(Command::RemoveScope { scope: scope("other/") });
    let (_, outcome) = set_scope(&mut run, "s/");
    assert!(matches!(outcome, Err(Rejection::HeldInOtherEpoch { .. })), "{outcome:?}");
}

fn sessions_of(run: Run, who: &str, number: u64) -> Run {
    let mut run = run;
    for _ in 0..number {
        let label = Label::parse("test").unwrap();
        let deed =
            Deed::OpenSession { ttl_ms: 10_000, label, secret_hash: [7; 32], knows_closed: true };
        run.apply(by(who, deed));
    }
    run
}

#[test]
fn the_sessions_of_an_identity_end_by_commands_that_stay_small() {
    let run = sessions_of(Run::limited(STEPS), "cn:app", MANY);
    let mut run = sessions_of(run, "cn:other", 10);
    let cut = run.bounded(end_all_of("cn:app"));
    assert_eq!(cut.outcome, Ok(Answer::Revoked { sessions: MANY }));
    assert!(run.table.has_work_left());
    let later = run.bounded(sessions_command("cn:app"));
    let Ok(Answer::SessionOpened { session: later }) = later.outcome else { panic!("{later:?}") };

    // The last one has not had its turn, and can do nothing any more (I35).
    let last =
        run.table.sessions().filter(|view| view.session < later && view.session.get() <= MANY);
    let last =
        last.filter(|view| view.revoked.is_none()).map(|view| view.session.get()).max().unwrap();
    let refused = run.bounded(acquire(last, 1, "a")).outcome;
    assert!(matches!(refused, Err(Rejection::SessionRevoked { .. })), "{refused:?}");

    let events = run.carry_on();
    let revoked = |event: &&Event| matches!(event, Event::SessionRevoked { .. });
    let all = cut.events.iter().chain(&events).filter(revoked).count() as u64;
    assert_eq!(all, MANY);
    let spared = run.table.sessions().filter(|view| view.revoked.is_none()).count();
    assert_eq!(spared, 11, "of others, and of the one that came later");
}

fn sessions_command(who: &str) -> Command {
    let label = Label::parse("test").unwrap();
    by(
        who,
        Deed::OpenSession {
            ttl_ms: TTL_CEILING_MS / 1_000,
            label,
            secret_hash: [7; 32],
            knows_closed: true,
        },
    )
}

/// A session that is to be ended gets nothing more, though its turn comes later.
#[test]
fn nothing_is_granted_to_a_session_that_is_to_end() {
    let mut run = Run::limited(STEPS).with_sessions(1);
    run = sessions_of(run, "cn:app", MANY);
    run = run.with_sessions(1);
    let (last, other) = (MANY + 1, MANY + 2);
    run.apply(acquire(1, 1, "a"));
    run.apply(acquire(last, 1, "a"));
    run.apply(acquire(other, 1, "a"));
    run.bounded(end_all_of("cn:app"));
    let view = run.table.session(SessionId::new(last)).unwrap();
    assert!(view.revoked.is_none(), "it has not had its turn");
    assert_eq!(granted(&run.bounded(release(1, 1)).events), []);
    assert_eq!(granted(&run.carry_on()), [SessionId::new(other)]);
}

/// I15, I31: a session that goes from an identity, or comes to one, while that is cut off would be passed over as one that ends, and
/// then not end; nobody would look at its queue again.
#[test]
fn no_session_changes_hands_while_its_owner_or_its_new_one_is_cut_off() {
    for (waiter, cut, taker) in [
        ("anonymous", "anonymous", "cn:new"),
        ("anonymous", "cn:app", "cn:app"),
        ("cn:app", "cn:app", "cn:app"),
    ] {
        let holds_on = a_waiter_that_is_to_end(waiter, cut, taker);
        assert!(!holds_on, "{waiter}, taken by {taker} while {cut} is cut off");
    }
}

/// Whether the lock is left to nobody in the end.
fn a_waiter_that_is_to_end(waiter: &str, cut: &str, taker: &str) -> bool {
    let opened_by = |run: Run, who: &str, number| match who {
        "anonymous" => run.with_sessions(number),
        who => sessions_of(run, who, number),
    };
    let run = sessions_of(Run::limited(STEPS), "cn:holder", 1);
    let run = opened_by(opened_by(run, cut, MANY), waiter, 1);
    let mut run = sessions_of(run, "cn:other", 1);
    // The rule holds from the first command of this version on.
    run.apply(Command::OpenLock { lock: name("none"), token: token(1, 1) });
    let (last, other) = (MANY + 2, MANY + 3);
    run.apply(acquire(1, 1, "a"));
    run.apply(acquire(last, 1, "a"));
    run.apply(acquire(other, 1, "a"));
    run.bounded(end_all_of(cut));
    assert!(run.table.has_work_left());
    run.bounded(release(1, 1));
    run.bounded(by(taker, Deed::OwnSession { session: SessionId::new(last) }));
    run.carry_on();
    run.table.lock(&name("a")).unwrap().held_by == 0
}

/// Session 1 holds 40 sets of 64 locks, for which 2 waits, and waits for 20 that 2 holds.
fn large_sessions(steps: u64) -> Run {
    let mut run = Run::limited(steps).with_sessions(2);
    // A piece is the end of a set, and its grant to the next.
    run.bound = steps + 1_500;
    for set in 0..60 {
        let names: Vec<String> = (0..64).map(|number| format!("{set:02}/{number:02}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (first, second) = if set < 40 { (1, 2) } else { (2, 1) };
        for session in [first, second] {
            run.apply(acquire_many(session, 1 + set, exclusive(&names), Need::All));
        }
    }
    run
}

/// I5, I11: it is over with the first command, and nothing of it is left in the end.
#[test]
fn a_session_with_very_many_locks_ends_by_commands_that_stay_small() {
    let mut run = large_sessions(2_000);
    let session = SessionId::new(1);
    let (last, lock) = (token(1, 40), name("39/00"));
    assert!(run.table.grant_is_current(&lock, last));
    let closed = run.bounded(Command::CloseSession { session });
    assert_eq!(closed.outcome, Ok(Answer::SessionEnded));
    let ended = |event: &&Event| matches!(event, Event::SessionEnded { .. });
    assert_eq!(closed.events.iter().filter(ended).count(), 1);
    assert!(run.table.has_work_left() && run.table.session(session).is_none());
    let mut leases = (0..LEASE_PARTS).flat_map(|part| run.table.leases_in(part));
    assert!(leases.all(|lease| lease.session != session));
    drop(leases);
    assert!(!run.table.grant_is_current(&lock, last), "it has not had its turn");
    assert_eq!(run.table.lock(&lock).unwrap().held_by, 1);
    for command in [
        acquire(1, 900, "free"),
        release(1, 40),
        Command::CloseSession { session },
        Command::ExpireSession { session, tenure: TENURE },
    ] {
        let refused = run.bounded(command).outcome;
        assert_eq!(refused, Err(Rejection::UnknownSession { session }));
    }

    let events = run.carry_on();
    assert_eq!(events.iter().filter(ended).count(), 0);
    let counts = run.table.counts();
    assert_eq!((counts.sessions, counts.held, counts.waiting), (1, 60 * 64, 0));
}

#[test]
fn a_revoked_session_with_very_many_waits_leaves_its_queues_by_commands_that_stay_small() {
    let mut run = large_sessions(100);
    let reason = Label::parse("gone").unwrap();
    let session = SessionId::new(1);
    let end = Deed::EndSession { session, reason, now: false };
    assert_eq!(run.bounded(by("cn:ops", end)).outcome, Ok(Answer::Revoked { sessions: 1 }));
    assert!(run.table.has_work_left());
    run.bounded(release(2, 41));
    assert_eq!(granted(&run.carry_on()), [], "nothing is granted to it");
    let counts = run.table.counts();
    assert_eq!((counts.sessions, counts.held, counts.waiting), (2, 59 * 64, 40));
}

#[test]
fn many_holders_are_closed_one_by_one() {
    let mut run = readers(Run::limited(STEPS), MANY);
    let refused = run.bounded(close("config", None)).outcome;
    assert!(matches!(refused, Err(Rejection::TooManyHolders { holders: MANY, .. })), "{refused:?}");
    let closed = run.bounded(close("config", Some(token(1, MANY / 2))));
    assert!(closed.outcome.is_ok(), "{closed:?}");
}

/// Members of an older release leave nothing, so nobody does before all have agreed to.
#[test]
fn without_a_limit_each_command_does_everything() {
    let mut run = held_in_a_scope(readers_behind_a_writer(Run::new()));
    for command in [
        release(1, 1),
        acquire(1, 9_000, "config"),
        Command::RaiseEpoch { scope: scope("s/"), epoch: 7 },
        Command::Resume { scope: scope("s/"), epoch: 7 },
        Command::SetScope { scope: scope("c") },
        close("config", None),
        end_all_of("anonymous"),
    ] {
        let applied = run.apply(command.clone());
        assert!(applied.outcome.is_ok(), "{command:?}: {:?}", applied.outcome);
        assert!(!run.table.has_work_left(), "{command:?}");
    }
    assert!(run.table.applied_version() < 7);
    run.table.check().unwrap();
}

#[test]
fn a_limit_of_no_steps_is_refused_and_carrying_on_nothing_is_harmless() {
    let mut run = Run::new();
    let refused = run.apply(Command::LimitWork { steps: 0 }).outcome;
    assert!(matches!(refused, Err(Rejection::UnusableLimits { .. })), "{refused:?}");
    for _ in 0..2 {
        let applied = run.apply(Command::CarryOn);
        assert_eq!(applied.outcome, Ok(Answer::CarriedOn { more: false }));
        assert_eq!(applied.events, []);
    }
}

/// Commands over a few names, sessions and scopes.
fn random_command(rng: &mut Xoshiro256PlusPlus, run: &Run) -> Command {
    let open_ones: Vec<u64> = run.table.sessions().map(|view| view.session.get()).collect();
    if open_ones.len() < 6 {
        return open();
    }
    let session = open_ones[rng.random_range(0..open_ones.len())];
    let request = rng.random_range(1..60);
    let lock = |rng: &mut Xoshiro256PlusPlus| {
        ["s/a", "s/b", "s/c", "a", "b"][rng.random_range(0..5)].to_owned()
    };
    let one = lock(rng);
    let tokens: Vec<(u64, FencingToken)> = run
        .table
        .locks_after("", None, 99)
        .flat_map(|view| view.holders())
        .map(|held| (held.grant.session.get(), held.grant.token))
        .collect();
    let held = (!tokens.is_empty()).then(|| tokens[rng.random_range(0..tokens.len())]);
    let epoch = run.table.scope(&scope("s/")).map_or(1, |state| state.epoch);
    match (rng.random_range(0..100), held) {
        (0..4, _) => open(),
        (4..30, _) => share(session, request, &one),
        (30..42, _) => acquire(session, request, &one),
        (42..50, _) => {
            let mut items = vec![Item::shared(name("s/a")), Item::exclusive(name("s/c"))];
            items.truncate(rng.random_range(1..=2));
            let need = if rng.random_bool(0.5) { Need::All } else { Need::Any { min: 1 } };
            acquire_many(session, request, items, need)
        }
        (50..70, Some((session, token))) => Command::Release {
            session: SessionId::new(session),
            done_below: RequestId::new(0),
            token,
            locks: Vec::new(),
        },
        (50..75, _) => cancel(session, request),
        (75..79, _) => Command::SetScope { scope: scope("s/") },
        (79..81, _) => Command::RemoveScope { scope: scope("s/") },
        (81..84, _) => Command::Suspend { scope: scope("s/") },
        (84..90, _) => Command::Resume { scope: scope("s/"), epoch },
        (90..92, _) => Command::RaiseEpoch { scope: scope("s/"), epoch: epoch + 1 },
        (92, _) => end_all_of("anonymous"),
        (93..95, _) => {
            Command::ExpireSession { session: SessionId::new(session), tenure: Tenure::new(1) }
        }
        _ => Command::CarryOn,
    }
}

/// The queue of each lock by the events alone: whoever is granted a lock is the first in its queue, or
/// finds it empty (I9).
#[derive(Default)]
struct Arrivals {
    /// Who waits for each lock, in the order of arrival.
    waiting: BTreeMap<String, Vec<(SessionId, RequestId)>>,
}

impl Arrivals {
    fn note(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Queued { session, request, items, .. } => {
                    for item in items.iter() {
                        let queue = self.waiting.entry(item.lock.to_string()).or_default();
                        queue.push((*session, *request));
                    }
                }
                Event::Left { session, request, items } => {
                    for item in items.iter() {
                        let queue = self.waiting.entry(item.lock.to_string()).or_default();
                        queue.retain(|one| *one != (*session, *request));
                    }
                }
                Event::Granted { session, request, items, .. } => {
                    for item in items.iter() {
                        let queue = self.waiting.entry(item.lock.to_string()).or_default();
                        if let Some(at) = queue.iter().position(|one| *one == (*session, *request))
                        {
                            assert_eq!(at, 0, "s{session}#{request} overtook {queue:?}");
                            queue.remove(at);
                        } else {
                            assert!(queue.is_empty(), "s{session}#{request} barged past {queue:?}");
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// Random histories with limits down to a single step: every invariant holds after every command (I2,
/// I3, I9, I10, I11, I15 …), a second replica that is replaced by a snapshot again and again applies the
/// same (I16, I17), and in the end nothing is left (I31).
#[test]
fn random_histories_in_small_parts_keep_every_invariant_and_end() {
    let mut left = 0;
    for seed in 0..120 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut run = Run::limited(rng.random_range(1..30)).with_sessions(8);
        let mut replica = run.clone();
        let mut arrivals = Arrivals::default();
        for _ in 0..250 {
            let command = random_command(&mut rng, &run);
            let applied = run.apply(command.clone());
            assert_eq!(replica.apply(command), applied, "seed {seed}");
            arrivals.note(&applied.events);
            run.table.check().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
            left += u64::from(run.table.has_work_left());
            if rng.random_bool(0.1) {
                replica = replica.restored();
                assert_eq!(bytes_of(&replica.table), bytes_of(&run.table), "seed {seed}");
            }
        }
        let mut commands = 0;
        while run.table.has_work_left() {
            arrivals.note(&run.apply(Command::CarryOn).events);
            commands += 1;
            assert!(commands < 10_000, "seed {seed}: it does not end");
        }
        run.table.check().unwrap();
    }
    assert!(left > 3_000, "work was left after {left} commands only");
}

/// A member that gets a snapshot in the middle of the work carries on as the others do: it has the same
/// state, to the byte, and reports the same.
#[test]
fn a_snapshot_in_the_middle_of_the_work_is_carried_on_alike() {
    let scoped = held_in_a_scope(Run::limited(STEPS));
    for (run, command) in [
        (readers_behind_a_writer(Run::limited(STEPS)), release(1, 1)),
        (readers(Run::limited(STEPS), MANY), acquire(1, 2, "config")),
        (scoped, Command::RaiseEpoch { scope: scope("s/"), epoch: 7 }),
        (sessions_of(Run::limited(STEPS), "cn:app", MANY), end_all_of("cn:app")),
        (large_sessions(500), Command::CloseSession { session: SessionId::new(1) }),
        (locks_without_a_scope(Run::limited(STEPS)), Command::SetScope { scope: scope("s/") }),
    ] {
        let mut run = run;
        run.apply(command.clone());
        let mut installed = run.restored();
        for number in 0..8 {
            let next = if number == 3 { command.clone() } else { Command::CarryOn };
            assert_eq!(run.apply(next.clone()), installed.apply(next), "{command:?}");
        }
        assert_eq!(run.table.state_hash(), installed.table.state_hash());
        assert_eq!(bytes_of(&run.table), bytes_of(&installed.table), "{command:?}");
    }
}

#[test]
fn each_rule_of_work_that_is_left_is_missed_when_it_is_broken() {
    let cases: [(Mutant, fn()); 4] = [
        (
            Mutant::OwnedWhileCutOff,
            no_session_changes_hands_while_its_owner_or_its_new_one_is_cut_off,
        ),
        (Mutant::OverSessionActs, a_session_with_very_many_locks_ends_by_commands_that_stay_small),
        (Mutant::OutdatedHoldCurrent, a_hold_of_an_earlier_epoch_is_over_before_its_turn),
        (
            Mutant::LeftHeadsForgotten,
            every_reader_behind_a_writer_is_let_in_by_commands_that_stay_small,
        ),
    ];
    for (mutant, scenario) in cases {
        let run = while_armed(mutant, || std::panic::catch_unwind(scenario));
        assert!(run.is_err(), "nothing showed that {mutant} was armed");
    }
}
