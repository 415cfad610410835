//! The invariants of the table as code.

use crate::LockTable;
use crate::answer::Grant;
use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::lock::Lock;
use crate::session::{Record, Session, State};
use crate::table::Counts;

/// An invariant that does not hold: a flaw of this crate, or a snapshot that no table wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {what}")]
pub struct Violation {
    /// The invariant's number in DESIGN §12, or `index` for two parts that contradict each other.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

/// A hold or a wait as it is told by one side: the sessions' records, or the locks.
///
/// `number` is the token or the ticket. It comes first: lists of them are compared in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told<'a> {
    number: u64,
    session: SessionId,
    request: RequestId,
    lock: &'a LockName,
}

/// All that one side tells.
#[derive(Default)]
struct Side<'a> {
    holds: Vec<Told<'a>>,
    waits: Vec<Told<'a>>,
}

impl Side<'_> {
    fn sort(&mut self) {
        self.holds.sort_unstable();
        self.waits.sort_unstable();
    }
}

/// Both lists, in order of their numbers, have to be the same and hold no number twice.
///
/// `missing`: broken if a record is in no lock. `repeats`: broken if a number is there twice.
fn compare(
    records: &[Told<'_>],
    locks: &[Told<'_>],
    missing: &'static str,
    repeats: &'static str,
) -> Check {
    let twice = records.windows(2).find(|pair| matches!(pair, [a, b] if a.number == b.number));
    ensure(twice.is_none(), repeats, || format!("one number twice: {twice:?}"))?;
    let first = records.iter().zip(locks).find(|(record, lock)| record != lock);
    match first {
        Some((record, lock)) if record < lock => {
            violated(missing, format!("in no lock: {record:?}"))
        }
        Some((_, lock)) => violated("I11", format!("in no open session: {lock:?}")),
        None => match (records.get(locks.len()), locks.get(records.len())) {
            (Some(record), _) => violated(missing, format!("in no lock: {record:?}")),
            (None, Some(lock)) => violated("I11", format!("in no open session: {lock:?}")),
            (None, None) => Ok(()),
        },
    }
}

type Check = Result<(), Violation>;

fn ensure(holds: bool, invariant: &'static str, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { violated(invariant, what()) }
}

fn violated(invariant: &'static str, what: String) -> Check {
    Err(Violation { invariant, what })
}

impl LockTable {
    /// Whether every invariant that one state can show holds. Looks at everything: O(n log n).
    ///
    /// | invariant | as checked here |
    /// |---|---|
    /// | I2, I12 | every request that holds is the one holder of its lock |
    /// | I3 | no two holds have one token; none lies above the last given out |
    /// | I5, I11 | whatever holds or waits is a request of an open session, in that very state |
    /// | I9 | queues are in ticket order; no ticket repeats, none lies above the last given out |
    /// | I10, I12 | every request that waits has its one place in its lock's queue |
    /// | I15 | a lock is waited for only while it is held, or no token can be drawn |
    /// | I33 | a lock is in the table only while it is held or waited for |
    /// | index | counts, holds by token and marks agree with the records |
    ///
    /// What needs two states (stamps, order of grants, answers to retries) is checked by
    /// `tests/properties.rs` against its model.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the first found. This replica must not go on.
    pub fn check(&self) -> Result<(), Violation> {
        let (mut records, mut locks) = (Side::default(), Side::default());
        let mut sessions = 0;
        for (id, session) in self.sessions.iter() {
            sessions += 1;
            self.check_session(id, session, &mut records)?;
        }
        for (name, lock) in &self.locks {
            self.check_lock(name, lock, &mut locks)?;
        }
        records.sort();
        locks.sort();
        compare(&records.holds, &locks.holds, "I2", "I3")?;
        compare(&records.waits, &locks.waits, "I10", "I9")?;
        let (held, waiting) = (records.holds.len() as u64, records.waits.len() as u64);
        let counts = Counts { sessions, held, waiting };
        ensure(counts == self.counts, "index", || {
            format!("counted {counts:?}, kept {:?}", self.counts)
        })?;
        self.check_numbers(&records)
    }

    /// Nothing carries a number that was not given out, and the numbers make sense.
    fn check_numbers(&self, records: &Side<'_>) -> Check {
        let counters = self.counters;
        let last = FencingToken::new(counters.epoch, counters.token).map(FencingToken::get);
        ensure(last.is_some(), "I3", || format!("{counters:?} makes no token"))?;
        let token = records.holds.last().map(|hold| hold.number);
        ensure(token <= last, "I3", || format!("{token:?} lies above the last token, {last:?}"))?;
        let ticket = records.waits.last().map_or(0, |wait| wait.number);
        ensure(ticket <= counters.ticket, "I9", || format!("ticket {ticket} was never given out"))?;
        ensure(self.limits.check().is_ok(), "I27", || format!("unusable {:?}", self.limits))?;
        ensure(self.chain.is_well_formed(), "I16", || "the witnesses are out of order".into())
    }

    fn check_session<'a>(&self, id: SessionId, session: &'a Session, told: &mut Side<'a>) -> Check {
        ensure(id.get() <= self.counters.session, "index", || {
            format!("session {id} was never given out")
        })?;
        let holds = told.holds.len();
        for (&request, record) in &session.records {
            ensure(request >= session.done_below || record.is_live(), "index", || {
                format!("request {request} of session {id} is finished, confirmed and still kept")
            })?;
            let Record::Asked { lock, wait, state } = record else { continue };
            match *state {
                State::Held { token, .. } => {
                    told.holds.push(Told { number: token.get(), session: id, request, lock });
                    ensure(session.holds.get(&token) == Some(&request), "index", || {
                        format!("session {id} does not find its token {token}")
                    })?;
                }
                State::Waiting { ticket, .. } => {
                    told.waits.push(Told { number: ticket.get(), session: id, request, lock });
                    ensure(*wait, "I10", || format!("{request} of session {id} would not wait"))?;
                }
                State::Denied { .. } | State::Ended => {}
            }
        }
        let held = told.holds.len() - holds;
        ensure(session.holds.len() == held, "index", || {
            format!("session {id} lists {} holds, and has {held}", session.holds.len())
        })
    }

    fn check_lock<'a>(&self, name: &'a LockName, lock: &Lock, told: &mut Side<'a>) -> Check {
        ensure(lock.holder.is_some() || !lock.queue.is_empty(), "I33", || {
            format!("{name} is neither held nor waited for")
        })?;
        let granted = lock.holder.is_some() || !self.counters.has_tokens();
        ensure(granted, "I15", || format!("{name} is free, and waited for"))?;
        if let Some(Grant { session, request, token }) = lock.holder {
            told.holds.push(Told { number: token.get(), session, request, lock: name });
        }
        for (ticket, (session, request)) in lock.queue.iter() {
            told.waits.push(Told { number: ticket.get(), session, request, lock: name });
        }
        let in_order = lock.queue.iter().is_sorted_by_key(|(ticket, _)| ticket);
        ensure(in_order, "I9", || format!("the queue of {name} is out of order"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Batch, Command};
    use crate::ids::{Label, LogIndex, Tenure, Ticket};

    const S1: SessionId = SessionId::new(1);
    const S2: SessionId = SessionId::new(2);
    const R1: RequestId = RequestId::new(1);

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("a name")
    }

    /// Session 1 holds `a` by its request 1, session 2 waits for it by its request 1; session 2
    /// holds `b` by its request 2.
    fn table() -> LockTable {
        let open = || Command::OpenSession {
            ttl_ms: 10_000,
            label: Label::parse("").expect("a label"),
            secret_hash: [0; 32],
        };
        let acquire = |session, request, lock| Command::Acquire {
            session,
            done_below: RequestId::new(0),
            request: RequestId::new(request),
            lock: name(lock),
            wait: true,
        };
        let commands =
            vec![open(), open(), acquire(S1, 1, "a"), acquire(S2, 1, "a"), acquire(S2, 2, "b")];
        let batch = Batch { stamp_ms: 0, witness: None, commands };
        let mut table = LockTable::new();
        table
            .apply_batch(LogIndex::new(1), Tenure::new(1), &batch, &mut Vec::new())
            .expect("a first entry");
        table
    }

    /// What the check says once `harm` was done to a sound table.
    fn found(harm: impl FnOnce(&mut LockTable)) -> &'static str {
        let mut table = table();
        assert_eq!(table.check(), Ok(()));
        harm(&mut table);
        table.check().expect_err("the harm was not seen").invariant
    }

    fn session(table: &mut LockTable, id: SessionId) -> &mut Session {
        table.sessions.get_mut(id).expect("an open session")
    }

    fn set_state(table: &mut LockTable, id: SessionId, new: State) {
        let record = session(table, id).records.get_mut(&R1);
        let Some(Record::Asked { state, .. }) = record else { panic!("no such request") };
        *state = new;
    }

    fn lock<'a>(table: &'a mut LockTable, text: &str) -> &'a mut Lock {
        table.locks.get_mut(&name(text)).expect("a lock")
    }

    #[test]
    fn a_second_holder_is_seen() {
        let token = FencingToken::new(1, 2).expect("a token");
        let second = |table: &mut LockTable| {
            table.counters.token = 9;
            let token = FencingToken::new(1, 9).expect("a token");
            lock(table, "a").queue.pop_first();
            table.counts.waiting -= 1;
            table.counts.held += 1;
            set_state(table, S2, State::Held { token, since_ms: 0 });
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
        assert_eq!(found(|table| drop(table.sessions.remove(S1))), "I11");
        let waits_only = |table: &mut LockTable| {
            drop(table.sessions.remove(S2));
            table.locks.remove(&name("b"));
        };
        assert_eq!(found(waits_only), "I11");
    }

    #[test]
    fn a_waiter_without_its_place_is_seen() {
        let left = |table: &mut LockTable| assert!(lock(table, "a").queue.pop_first().is_some());
        assert_eq!(found(left), "I10");
        let elsewhere = State::Waiting { ticket: Ticket::new(7), since_ms: 0 };
        assert_eq!(found(|table| set_state(table, S2, elsewhere)), "I11");
    }

    #[test]
    fn a_free_lock_that_is_waited_for_is_seen() {
        assert_eq!(found(|table| lock(table, "a").holder = None), "I15");
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
            *state = State::Held { token, since_ms: 0 };
            lock(table, "b").holder = Some(Grant { session: S2, request, token });
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
}
