//! The invariants of the table as code.

use std::num::NonZeroU32;

use crate::LockTable;
use crate::VALUE_BYTES_MAX;
use crate::acquire::Denial;
use crate::answer::Grant;
use crate::command::{COMMAND_VERSION_OLDEST, TERMS_SINCE};
use crate::freeze::FREEZES_MAX;
use crate::hold_bounds::HOLD_BOUND_MAX_MS;
use crate::holders::Holder;
use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::lock::Lock;
use crate::lock_set::{LockSet, Mode, Part};
use crate::queue::Waiter;
use crate::quota::{Usage, Usages};
use crate::rank::{HEAD_START_MAX_MS, Rank};
use crate::scope::{SCOPE_EPOCH_MAX, SCOPES_MAX};
use crate::session::{Record, Session, State};
use crate::table::Counts;
use crate::terms::Terms;
use crate::value::kept_cost;
use crate::work::Pending;

/// A broken invariant: a bug in this crate, or a snapshot that no table wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {what}")]
pub struct Violation {
    /// The invariant's number in DESIGN §12, or `index` for two parts that contradict each other.
    pub invariant: &'static str,
    /// What the check found.
    pub what: String,
}

/// A hold of one lock or a place in one queue, as one side lists it: the sessions' records, or the
/// locks.
///
/// `number` is the token or the ticket. It comes first, because lists are sorted by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Told<'a> {
    number: u64,
    session: SessionId,
    request: RequestId,
    lock: &'a LockName,
    mode: Mode,
}

impl Told<'_> {
    /// Two requests cannot share a number; one request has its number at each of its locks.
    fn clashes_with(&self, other: &Self) -> bool {
        self.number == other.number
            && (self.session, self.request) != (other.session, other.request)
    }
}

/// Everything that one side lists.
#[derive(Default)]
struct Side<'a> {
    holds: Vec<Told<'a>>,
    waits: Vec<Told<'a>>,
    counts: Counts,
}

impl Side<'_> {
    fn sort(&mut self) {
        self.holds.sort_unstable();
        self.waits.sort_unstable();
    }
}

/// Compares both lists, sorted by number: they have to be equal, and no two requests may share a
/// number.
///
/// `missing`: the invariant broken if a record is in no lock. `repeats`: broken if two requests
/// share a number.
fn compare(
    records: &[Told<'_>],
    locks: &[Told<'_>],
    missing: &'static str,
    repeats: &'static str,
) -> Check {
    let twice = records.windows(2).find(|pair| matches!(pair, [a, b] if a.clashes_with(b)));
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

/// Whether a request for these locks may have been denied for that.
fn is_sound_denial(denial: Denial, lock_set: &LockSet) -> bool {
    let names_one = denial.at().is_some_and(|at| at < lock_set.len());
    let claim = denial == Denial::NotImported;
    let above = matches!(denial, Denial::AboveLimit { .. });
    let outside = matches!(denial, Denial::Suspended | Denial::Restored | Denial::Frozen { .. })
        || matches!(denial, Denial::Closed { .. });
    let of_its_kind = names_one == lock_set.needs_all() || above || outside;
    (claim || above || !lock_set.waits()) && of_its_kind && (names_one || denial.at().is_none())
}

impl LockTable {
    /// Checks every invariant that shows in one state. Looks at everything: O(n log n).
    ///
    /// | invariant | as checked here |
    /// |---|---|
    /// | I2 | the holders of a lock fit together, and every request that holds is among them |
    /// | I3 | no two grants have one token; no token lies above the last one for its name; in a scope each has the scope's epoch, or a later one has ended it |
    /// | I5, I11 | every holder and waiter is a request of an open session, in that very state |
    /// | I9 | queues are in the order of ranks, each as it follows from when its request came; no ticket repeats, none lies above the last given out |
    /// | I10, I12 | every request that waits has its one place in the queue of each of its locks |
    /// | I14 | a request holds nothing while it waits, and a grant holds something of what it asked |
    /// | I15 | the head of a queue could not be granted now, or no token can be drawn, or its scope or the table grants nothing and looks at it when it does, or it is left for a later command |
    /// | I25 | the index has each imported row once, where the session of the import says |
    /// | I27 | values are no longer than allowed |
    /// | I35 | a revoked session waits for nothing; a closed hold is that of its request |
    /// | I33 | a lock is in the table only while it is held, waited for, closed, or carries a value |
    /// | closed | a closed lock has no holder, was held under a token that was given out, and lies in no scope |
    /// | value | a value was set under a token that was given out, below those of its lock's holders, and is not suspect to the holder that set it |
    /// | scope | no two scopes overlap, their epochs are within bounds, and a request waits for or holds locks of one scope only, or of none |
    /// | terms | what requests say is said by requests that are there, and within its bounds |
    /// | freeze | freezes lie inside of no scope, and are not too many |
    /// | rules | roles and tokens of identities are there, the index of tokens agrees, none is above its bound |
    /// | work | what is left for later commands is bounded, and about scopes and locks that are there |
    /// | index | counts, bytes, holds by token, marks, awaited locks and the values at their locks agree with the records |
    ///
    /// `tests/properties` checks against its model what needs two states: stamps, order of
    /// grants, answers to retries, what makes a value suspect.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the first found. This replica must stop.
    pub fn check(&self) -> Result<(), Violation> {
        let (mut records, mut locks) = (Side::default(), Side::default());
        let mut usages = Usages::default();
        for (&id, session) in self.sessions.iter() {
            if !session.imported {
                usages.change(
                    &session.caller.identity,
                    Usage::default(),
                    session.recount_load().usage(),
                );
            }
            records.counts.sessions += 1;
            records.counts.table_bytes =
                records.counts.table_bytes.saturating_add(session.recount());
            self.check_session(id, session, &mut records)?;
        }
        self.check_scopes()?;
        self.rules.check()?;
        self.check_imports()?;
        self.check_values(&mut records.counts, &mut usages)?;
        self.check_limits(&mut records.counts, &mut usages)?;
        self.check_sequences(&mut records.counts, &mut usages)?;
        self.check_closed(&mut records.counts, &mut usages)?;
        self.check_work()?;
        for (name, lock) in &self.locks {
            self.check_lock(name, lock, &mut locks)?;
        }
        records.sort();
        locks.sort();
        compare(&records.holds, &locks.holds, "I2", "I3")?;
        compare(&records.waits, &locks.waits, "I10", "I9")?;
        // Each side has the count that it knows best: the locks know which of them are held.
        let counts = Counts { held: locks.counts.held, ..records.counts };
        ensure(counts == self.counts && counts.values == locks.counts.values, "index", || {
            format!("counted {counts:?} and {:?}, kept {:?}", locks.counts, self.counts)
        })?;
        ensure(usages == self.usages, "index", || {
            format!("identities have {usages:?}, kept {:?}", self.usages)
        })?;
        let awaited = self.locks.iter().filter(|(_, lock)| !lock.queue.is_empty());
        ensure(awaited.map(|(name, _)| name).eq(&self.awaited), "index", || {
            format!("{:?} are listed as awaited", self.awaited)
        })?;
        self.check_numbers(&records)
    }

    /// Checks that every number in use was given out, and that the limits and versions make sense.
    fn check_numbers(&self, records: &Side<'_>) -> Check {
        let counters = self.counters;
        let last = FencingToken::new(counters.epoch, counters.token);
        ensure(last.is_some(), "I3", || format!("{counters:?} makes no token"))?;
        let ticket = records.waits.last().map_or(0, |wait| wait.number);
        ensure(ticket <= counters.ticket, "I9", || format!("ticket {ticket} was never given out"))?;
        let version = self.applied_version;
        let has_none = self.freezes.len() == 0 && self.sequence_names.is_empty();
        let known = version >= TERMS_SINCE || (self.age_ms == 0 && has_none);
        ensure(version >= COMMAND_VERSION_OLDEST && known, "I29", || {
            format!("version {version} was applied, and never was one")
        })?;
        let usable = self.limits.check().is_ok() && self.max_table_bytes != Some(0);
        ensure(usable, "I27", || {
            format!("unusable {:?}, {:?} bytes", self.limits, self.max_table_bytes)
        })?;
        ensure(self.chain.is_well_formed(), "I16", || "the witnesses are out of order".into())
    }

    /// The last token that a grant of that name may have.
    fn last_token(&self, name: &LockName) -> Option<FencingToken> {
        let epoch = self.scopes.of(name).map_or(self.counters.epoch, |(_, state)| state.epoch);
        FencingToken::new(epoch, self.counters.token)
    }

    fn check_scopes(&self) -> Check {
        let count = self.scopes.len();
        ensure(count <= SCOPES_MAX, "scope", || format!("{count} scopes"))?;
        // In sorted order, a scope that overlaps with any other overlaps with its neighbour.
        let next = self.scopes.iter().skip(1);
        for ((scope, state), (other, _)) in self.scopes.iter().zip(next) {
            ensure(!scope.overlaps(other), "scope", || {
                format!("{scope}, {state:?}, overlaps with {other}")
            })?;
        }
        let high = self.scopes.iter().find(|(_, state)| state.epoch > SCOPE_EPOCH_MAX);
        ensure(high.is_none(), "scope", || format!("{high:?} has an epoch that is none"))?;
        let frozen = self.freezes().map(|(prefix, _)| prefix.as_str());
        let scope_of =
            |text: &str| self.scopes.iter().any(|(scope, _)| text.starts_with(scope.as_str()));
        let inside = frozen.filter(|text| scope_of(text)).count();
        ensure(inside == 0 && self.freezes.len() <= FREEZES_MAX, "freeze", || {
            format!("{} freezes, of which {inside} lie in scopes", self.freezes.len())
        })?;
        let gone = self.restored.scopes().find(|scope| self.scopes.get(scope).is_none());
        ensure(gone.is_none(), "scope", || format!("{gone:?} is restored, and no scope"))?;
        self.check_restored()
    }

    /// A table that was restored and grants nothing yet has no holder (I6).
    fn check_restored(&self) -> Check {
        let held = self
            .grants_after_ms()
            .and(self.locks.iter().find(|(_, lock)| !lock.holders.is_empty()));
        ensure(held.is_none(), "I6", || format!("{held:?} is held, and nothing is granted yet"))
    }

    /// Whether that part of a request lies in one scope, or in none.
    fn is_of_one_scope(&self, lock_set: &LockSet, part: Part) -> bool {
        let mut scopes = lock_set.iter_part(part).map(|(name, _)| self.scopes.of(name));
        scopes.next().is_none_or(|first| scopes.all(|other| other == first))
    }

    fn check_session<'a>(&self, id: SessionId, session: &'a Session, told: &mut Side<'a>) -> Check {
        ensure(id.get() <= self.counters.session, "index", || {
            format!("session {id} was never given out")
        })?;
        ensure(session.bytes == session.recount(), "index", || {
            format!("session {id} counts {} bytes, and takes {}", session.bytes, session.recount())
        })?;
        let mut held = 0;
        for (&request, record) in &session.records {
            ensure(request >= session.done_below || record.is_live(), "index", || {
                format!("request {request} of session {id} is finished, confirmed and still kept")
            })?;
            let Record::Asked { lock_set, state } = record else { continue };
            let tell = |number, (lock, mode)| Told { number, session: id, request, lock, mode };
            match *state {
                State::Held { token, part, .. } => {
                    held += 1;
                    told.holds.extend(lock_set.iter_part(part).map(|item| tell(token.get(), item)));
                    ensure(!part.is_empty() && part.is_within(lock_set.whole()), "I14", || {
                        format!("request {request} of session {id} holds {part:?} of {lock_set:?}")
                    })?;
                    ensure(session.holds.get(&token) == Some(&request), "index", || {
                        format!("session {id} does not find its token {token}")
                    })?;
                    ensure(self.is_of_one_scope(lock_set, part), "scope", || {
                        format!("request {request} of session {id} holds {part:?} of {lock_set:?}")
                    })?;
                }
                State::Waiting { rank, .. } => {
                    told.counts.waiting += 1;
                    let ticket = rank.ticket.get();
                    told.waits.extend(lock_set.iter().map(|item| tell(ticket, item)));
                    let last = self.rank_now(rank.ticket, session.said.head_start_ms(request));
                    ensure(rank <= last, "I9", || format!("{rank:?} lies behind {last:?}"))?;
                    ensure(lock_set.waits(), "I10", || format!("{request} of session {id} waits"))?;
                    ensure(self.is_of_one_scope(lock_set, lock_set.whole()), "scope", || {
                        format!("request {request} of session {id} waits for {lock_set:?}")
                    })?;
                }
                State::Denied(denial) => {
                    ensure(is_sound_denial(denial, lock_set), "index", || {
                        format!("request {request} of session {id} was denied by {denial:?}")
                    })?;
                }
                State::Ended => {}
            }
        }
        self.check_said(id, session)?;
        self.check_cut(id, session)?;
        ensure(session.holds.len() == held, "index", || {
            format!("session {id} lists {} holds, and has {held}", session.holds.len())
        })
    }

    fn check_cut(&self, id: SessionId, session: &Session) -> Check {
        let leaves = self.work.pending().ends.contains_key(&id);
        let idle = session.cut.revoked.is_none() || session.waits().is_empty();
        ensure(idle || leaves, "I35", || format!("session {id} was revoked, and waits"))?;
        for (token, closed) in session.cut.closed.iter() {
            let own = session.holds.get(&token).is_none_or(|request| *request == closed.request);
            ensure(own, "I35", || format!("session {id} lists {token} as closed: {closed:?}"))?;
        }
        Ok(())
    }

    /// Requests say something only where every member knows that (I29), and owners have what the records say.
    fn check_said(&self, id: SessionId, session: &Session) -> Check {
        for (request, terms) in session.said.iter() {
            let asked = matches!(session.records.get(&request), Some(Record::Asked { .. }));
            let says =
                *terms != Terms::default() && u64::from(terms.head_start_ms) <= HEAD_START_MAX_MS;
            let known = self.applied_version >= TERMS_SINCE;
            ensure(asked && says && known, "terms", || {
                format!("request {request} of session {id} says {terms:?}")
            })?;
        }
        let owned = session.recount_owned();
        ensure(session.said.owned().cloned().unwrap_or_default() == owned, "index", || {
            format!("owners of session {id} have {owned:?}, kept {:?}", session.said)
        })
    }

    /// Checks that the index of imports lists exactly the rows of the sessions, each once.
    fn check_imports(&self) -> Check {
        let mut told = 0;
        for (&id, session) in self.sessions.iter() {
            for (lock, request) in session.imports() {
                told += 1;
                let found = self.imports.get(&(lock.clone(), session.label.clone()));
                ensure(found == Some(&(id, request)), "I25", || {
                    format!("{lock}, imported as request {request} of session {id}: {found:?}")
                })?;
            }
        }
        let kept = self.imports.len();
        ensure(kept == told, "I25", || format!("{kept} imports are kept, and {told} are there"))
    }

    fn check_lock<'a>(&self, name: &'a LockName, lock: &Lock, told: &mut Side<'a>) -> Check {
        let is_limited = self.kept_limits.get(name).is_some();
        let is_used = !lock.holders.is_empty() || !lock.queue.is_empty();
        let is_closed = self.closed_locks.get(name).is_some();
        let needed = is_used || lock.value.is_some() || is_limited || is_closed;
        ensure(needed, "I33", || {
            format!("{name} is not held, waited for or closed, and has no value or limit")
        })?;
        told.counts.held += u64::from(!lock.holders.is_empty());
        told.counts.values += u64::from(lock.value.is_some());
        let alone = lock.holders.len() <= 1;
        for holder in lock.holders.iter() {
            let Grant { session, request, token } = holder.grant;
            let mode = holder.mode;
            told.holds.push(Told { number: token.get(), session, request, lock: name, mode });
            ensure(alone || mode == Mode::Shared || mode.is_permits(), "I2", || {
                format!("{name} is held by several, and by {holder:?}")
            })?;
            self.check_token(name, token)?;
        }
        for (rank, Waiter { session, request, mode, head_start_ms }) in lock.queue.iter() {
            let number = rank.ticket.get();
            told.waits.push(Told { number, session, request, lock: name, mode });
            let said = self.sessions.get(&session).map(|found| found.said.head_start_ms(request));
            ensure(said.is_none_or(|said| said == head_start_ms), "I9", || {
                format!("s{session}#{request} waits for {name} with a head start that it has not")
            })?;
        }
        self.check_permits_of(name, lock)?;
        let in_order = lock.queue.iter().is_sorted_by_key(|(rank, _)| rank);
        ensure(in_order, "I9", || format!("the queue of {name} is out of order"))?;
        let stuck = lock.queue.iter().next().filter(|head| self.could_be_granted(*head));
        let stuck = stuck.filter(|head| !self.is_looked_at_later(*head));
        ensure(stuck.is_none() || !self.counters.has_tokens(), "I15", || {
            format!("{stuck:?} is at the head of {name}, and could be granted")
        })
    }

    /// Checks the limit of a lock. One that was set for good may have been lowered since permits were granted.
    fn check_permits_of(&self, name: &LockName, lock: &Lock) -> Check {
        let kept = self.kept_limits.get(name);
        ensure(kept.is_none_or(|kept| lock.limit == Some(kept.permits)), "permits", || {
            format!("{name} is limited to {:?}, and not to {kept:?}", lock.limit)
        })?;
        let holders = || lock.holders.iter().map(|holder| holder.mode);
        let mut modes = holders().chain(lock.queue.iter().map(|(_, waiter)| waiter.mode));
        let waiters = lock.queue.iter().map(|(_, waiter)| waiter.mode);
        let requests = holders().chain(waiters).filter(|mode| mode.is_permits()).count();
        ensure(requests == lock.permit_requests as usize, "permits", || {
            format!("{requests} requests are for permits of {name}, not {}", lock.permit_requests)
        })?;
        let has_limit = requests > 0 || kept.is_some_and(|kept| !kept.goes);
        ensure(has_limit == lock.limit.is_some(), "permits", || {
            format!("{name} is limited to {:?}, for {requests} requests and {kept:?}", lock.limit)
        })?;
        let limit = lock.limit.map(NonZeroU32::get);
        let agrees = |mode| match mode {
            Mode::Permits { limit: asked, .. } => limit == Some(asked) || kept.is_some(),
            Mode::Exclusive | Mode::Shared => true,
        };
        ensure(modes.all(agrees), "permits", || format!("not all of {name} ask with {limit:?}"))?;
        let held: u64 = holders().map(|mode| u64::from(mode.permits())).sum();
        ensure(kept.is_some() || held <= limit.unwrap_or(0).into(), "I2", || {
            format!("{held} permits of {name} are held, and the limit is {limit:?}")
        })
    }

    /// Checks that a grant of that name may have that token now.
    fn check_token(&self, name: &LockName, token: FencingToken) -> Check {
        let last = self.last_token(name);
        let scope = self.scopes.of(name);
        let of_scope = scope.is_none_or(|(_, state)| token.epoch() == u64::from(state.epoch))
            || self.is_outdated(name, token);
        ensure(of_scope && Some(token) <= last, "I3", || {
            format!("{name} of {scope:?} is held under {token:?}, and the last is {last:?}")
        })
    }

    /// Whether a waiter is at the head of a queue that resuming its scope looks at, or a later command
    /// that carries on what is left; or its session has to end first.
    fn is_looked_at_later(&self, (rank, waiter): (Rank, Waiter)) -> bool {
        let record = self.sessions.get(&waiter.session).map(|found| &found.records);
        let record = record.and_then(|records| records.get(&waiter.request));
        let Some(Record::Asked { lock_set, .. }) = record else { return false };
        let Pending { looks, thaws, .. } = self.work.pending();
        let is_looked_at = |name: &LockName| {
            let is_ahead =
                |after: &Option<LockName>| after.as_ref().is_none_or(|after| after < name);
            looks.iter().any(|(scope, after)| scope.contains(name) && is_ahead(after))
                || thaws
                    .iter()
                    .any(|(prefix, after)| prefix.covers(name.as_str()) && is_ahead(after))
        };
        self.is_ending(waiter.session)
            || lock_set.iter().any(|(name, _)| {
                let lock = self.locks.get(name);
                let next = lock.and_then(|lock| lock.queue.iter().next()).map(|(rank, _)| rank);
                let left = lock.is_some_and(|lock| self.is_head_left(name, lock));
                let later = is_looked_at(name) || self.restored.will_look_at(name);
                next == Some(rank) && (self.scopes.is_suspended(name) || later || left)
            })
    }

    /// Checks what commands have left for later ones.
    fn check_work(&self) -> Check {
        let limited =
            self.work.limit() != Some(0) && (self.work.is_limited() || !self.has_work_left());
        ensure(limited, "work", || format!("{:?}", self.work))?;
        let Pending { ends, sweeps, looks, told, untold, checks, .. } = self.work.pending();
        let gone = ends.keys().find(|session| self.sessions.get(session).is_none());
        ensure(gone.is_none(), "work", || format!("{gone:?} is ending, and not there"))?;
        for (scope, sweep) in sweeps {
            let epoch = self.scopes.get(scope).map(|state| state.epoch);
            ensure(epoch == Some(sweep.below), "work", || {
                format!("{scope}, in epoch {epoch:?}, is swept below {}", sweep.below)
            })?;
        }
        let bound = |count: usize| count <= 2 * SCOPES_MAX;
        ensure(bound(looks.len()) && checks.len() <= SCOPES_MAX, "work", || {
            format!("{} looks and {} checks are left", looks.len(), checks.len())
        })?;
        let gone = told.keys().find(|name| !self.locks.contains_key(*name));
        ensure(gone.is_none(), "work", || format!("{gone:?} is told, and not there"))?;
        let lost = untold.iter().find(|name| !told.contains_key(*name));
        ensure(lost.is_none(), "work", || format!("who is told of {lost:?} is not known"))
    }

    /// Whether a waiter could hold enough of its locks now, without regard to suspension. Written
    /// independently of the code that grants.
    fn could_be_granted(&self, (rank, waiter): (Rank, Waiter)) -> bool {
        let record = self.sessions.get(&waiter.session).map(|found| &found.records);
        let record = record.and_then(|records| records.get(&waiter.request));
        let Some(Record::Asked { lock_set, .. }) = record else { return false };
        let is_free = |(name, mode): (&LockName, Mode)| {
            self.locks.get(name).filter(|_| !self.is_kept_back(name)).is_some_and(|lock| {
                let next = lock.queue.iter().next().map(|(rank, _)| rank);
                let alike = |holder: Holder| match mode {
                    Mode::Exclusive => false,
                    Mode::Shared => holder.mode == Mode::Shared,
                    Mode::Permits { .. } => holder.mode.is_permits(),
                };
                let held = lock.holders.iter().map(|holder| u64::from(holder.mode.permits()));
                let limit = lock.limit.map_or(u64::MAX, |limit| limit.get().into());
                let has_room =
                    !mode.is_permits() || held.sum::<u64>() + u64::from(mode.permits()) <= limit;
                next == Some(rank) && lock.holders.iter().all(alike) && has_room
            })
        };
        lock_set.iter().filter(|item| is_free(*item)).count() >= lock_set.least() as usize
    }

    fn check_limits(&self, counts: &mut Counts, usages: &mut Usages) -> Check {
        for (name, kept) in self.kept_limits.iter() {
            let cost = kept_cost(name);
            usages.change(&kept.owner, Usage::default(), Usage::of_value(cost));
            counts.value_bytes = counts.value_bytes.saturating_add(cost);
            counts.table_bytes = counts.table_bytes.saturating_add(cost);
            let is_there = self.locks.contains_key(name);
            ensure(is_there, "permits", || format!("{name} is not there, and has {kept:?}"))?;
            ensure(self.scopes.of(name).is_none(), "permits", || {
                format!("{name} is in a scope, and has {kept:?}")
            })?;
        }
        Ok(())
    }

    fn check_sequences(&self, counts: &mut Counts, usages: &mut Usages) -> Check {
        let mut names = 0;
        for (name, sequence) in self.sequences.iter() {
            let cost = kept_cost(name);
            usages.change(&sequence.owner, Usage::default(), Usage::of_value(cost));
            counts.value_bytes = counts.value_bytes.saturating_add(cost);
            counts.table_bytes = counts.table_bytes.saturating_add(cost);
            names += usize::from(self.sequence_names.contains(name));
        }
        let all = self.sequences.iter().count();
        ensure(names == all && self.sequence_names.len() == all, "index", || {
            format!("{:?} are listed as sequences, and {all} are there", self.sequence_names)
        })
    }

    fn check_closed(&self, counts: &mut Counts, usages: &mut Usages) -> Check {
        let mut count = 0;
        for (name, closed) in self.closed_locks.iter() {
            let cost = kept_cost(name);
            usages.change(&closed.identity, Usage::default(), Usage::of_value(cost));
            counts.value_bytes = counts.value_bytes.saturating_add(cost);
            counts.table_bytes = counts.table_bytes.saturating_add(cost);
            count += 1;
            let lock = self.locks.get(name);
            ensure(lock.is_some_and(|lock| lock.holders.is_empty()), "closed", || {
                format!("{name} is closed, and is not there, or is held: {closed:?}")
            })?;
            let is_bound = (1..=HOLD_BOUND_MAX_MS).contains(&closed.hold_at_least_ms);
            let was_given = Some(closed.token) <= self.last_token(name);
            ensure(is_bound && was_given && self.scopes.of(name).is_none(), "closed", || {
                format!("{name} cannot be closed, or not with {closed:?}")
            })?;
        }
        ensure(count == self.closed_count, "index", || {
            format!("{count} locks are closed, counted {}", self.closed_count)
        })?;
        let pending = self.work.pending();
        ensure(
            pending.ends_now.iter().all(|session| pending.ends.contains_key(session)),
            "work",
            || format!("{:?} end at once, and are not among {:?}", pending.ends_now, pending.ends),
        )
    }

    fn check_values(&self, counts: &mut Counts, usages: &mut Usages) -> Check {
        for (name, value) in self.values.iter() {
            if let Some(owner) = &value.owner {
                usages.change(owner, Usage::default(), Usage::of_value(value.cost(name)));
            }
            counts.values += 1;
            counts.value_bytes = counts.value_bytes.saturating_add(value.cost(name));
            counts.table_bytes = counts.table_bytes.saturating_add(value.cost(name));
            let at_lock = self.locks.get(name).filter(|lock| lock.value.as_ref() == Some(value));
            let Some(lock) = at_lock else {
                return violated("index", format!("{name} does not carry its value, {value:?}"));
            };
            ensure(value.bytes.len() <= VALUE_BYTES_MAX, "I27", || {
                format!("{name} has a value of {} bytes", value.bytes.len())
            })?;
            ensure(Some(value.set_by) <= self.last_token(name), "value", || {
                format!("the value of {name} was set under {}, never given out", value.set_by)
            })?;
            for holder in lock.holders.iter() {
                let own = holder.grant.token == value.set_by;
                let sound = holder.mode == Mode::Exclusive && !value.suspect;
                ensure(value.set_by < holder.grant.token || own && sound, "value", || {
                    format!("{name} is held by {holder:?}, and has {value:?}")
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
