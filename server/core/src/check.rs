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
