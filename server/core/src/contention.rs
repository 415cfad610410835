//! Telling holders that others wait.
//!
//! Each holder of a lock is told when a queue begins, and when somebody comes with a larger head start than
//! all who wait; a new holder if others still wait once all grants of that turn are made. There may be 100,000 readers, so within a limit of work they are told in
//! the order of their tokens by as many commands as that takes (`work.rs`).
//!
//! A lock with many holders remembers up to which token it has told them, until it has few: there each
//! holder is told once. Otherwise whoever asks for such a lock and cancels, again and again, would have
//! every reader told each time.

use holdfast_mutants::mutant;

use crate::LockTable;
use crate::answer::Grant;
use crate::event::Event;
use crate::ids::{FencingToken, LockName};
use crate::lock_set::{LockSet, Part};
use crate::work::MANY_HOLDERS;

/// Who waits for a lock, as its holders are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// How many requests wait for it.
    pub waiting: u64,
    /// The largest head start among them, milliseconds; 0 if none has one.
    pub head_start_ms: u32,
}

impl LockTable {
    /// Who waits for that lock now.
    pub fn contention(&self, name: &LockName) -> Contention {
        let queue = self.locks.get(name).map(|lock| &lock.queue);
        queue.map_or_else(Contention::default, |queue| Contention {
            waiting: queue.len(),
            head_start_ms: queue.largest_head_start_ms(),
        })
    }

    /// The locks of a request about to wait whose holders are to be told of it: there it is the first to wait, or the
    /// one with the largest head start.
    pub(crate) fn news_to_holders(&self, lock_set: &LockSet, head_start_ms: u32) -> Part {
        self.part_where(lock_set, |lock, _| {
            let is_more_urgent = head_start_ms > lock.queue.largest_head_start_ms();
            lock.queue.is_empty() || is_more_urgent && !mutant!(MoreUrgentUntold)
        })
    }

    /// Tells the holders of an awaited lock, but for those of many that were told before, as far as the
    /// command goes.
    pub(crate) fn tell_all_of(&mut self, name: &LockName, events: &mut Vec<Event>) {
        let told = self.work.pending().told.get(name).copied();
        let Some(lock) = self.locks.get(name) else { return };
        let (many, awaited) = (lock.holders.len() > MANY_HOLDERS, !lock.queue.is_empty());
        let (mut steps, most, mut last) = (0, self.work.looks_left(), told);
        let mut untold = lock.holders.after(told).filter(|_| awaited);
        for holder in untold.by_ref().take(most) {
            events.push(contended(holder.grant, name));
            (steps, last) = (steps + 1, Some(holder.grant.token));
        }
        let rest = untold.next().is_some();
        drop(untold);
        self.work.charge(steps);
        self.note_told(name, last.filter(|_| rest || many), rest);
    }

    /// Tells the holders that earlier commands have left, as far as the command goes.
    pub(crate) fn tell_further(&mut self, events: &mut Vec<Event>) {
        while !self.work.is_spent()
            && let Some(name) = self.work.pending().untold.first().cloned()
        {
            self.tell_all_of(&name, events);
        }
    }

    /// Reports `Contended` to each holder granted since `before` for each of its locks with waiters: for
    /// that holder the queue was never empty. Where more grants may follow, or the command has done its
    /// share, a later one tells it.
    pub(crate) fn tell_contended(&mut self, before: usize, events: &mut Vec<Event>) {
        let granted = events.get(before..).unwrap_or_default().iter();
        let granted: Vec<(Grant, LockName)> = granted
            .filter_map(|event| match event {
                Event::Granted { session, request, token, items, .. } => {
                    let grant = Grant { session: *session, request: *request, token: *token };
                    Some(items.iter().map(move |item| (grant, &item.lock)))
                }
                _ => None,
            })
            .flatten()
            .filter(|(_, name)| self.locks.get(*name).is_some_and(|lock| !lock.queue.is_empty()))
            .map(|(grant, name)| (grant, name.clone()))
            .collect();
        for (grant, name) in granted {
            if self.is_told_later(&name) {
                self.tell_later(&name, grant.token);
            } else {
                self.work.charge(1);
                events.push(contended(grant, &name));
                if self.work.pending().told.contains_key(&name) {
                    self.work.pending_mut().told.insert(name, grant.token);
                }
            }
        }
    }

    /// Whether a new holder of that lock has to wait to be told.
    fn is_told_later(&self, name: &LockName) -> bool {
        self.work.is_spent()
            || self.work.pending().untold.contains(name)
            || self.locks.get(name).is_some_and(|lock| self.is_head_left(name, lock))
    }

    /// Leaves the holders of a lock from that token on to a later command. Tokens of one name rise, so
    /// those before it are told, or left already.
    fn tell_later(&mut self, name: &LockName, from: FencingToken) {
        if !self.work.pending().untold.contains(name) {
            let told = FencingToken::from_raw(from.get().saturating_sub(1));
            self.note_told(name, Some(told), true);
        }
    }

    /// Notes up to which token the holders of a lock have been told, if that is to be remembered, and
    /// whether there are more.
    fn note_told(&mut self, name: &LockName, told: Option<FencingToken>, rest: bool) {
        // Without a limit nothing is left, and members of an older release remember nothing.
        let told = told.filter(|_| self.work.is_limited());
        if told.is_none() && !self.work.pending().told.contains_key(name) {
            return;
        }
        let pending = self.work.pending_mut();
        match told {
            Some(told) => {
                pending.told.insert(name.clone(), told);
            }
            None => {
                pending.told.remove(name);
            }
        }
        if rest {
            pending.untold.insert(name.clone());
        } else {
            pending.untold.remove(name);
        }
    }
}

fn contended(holder: Grant, lock: &LockName) -> Event {
    let Grant { session, request, token } = holder;
    Event::Contended { session, request, lock: lock.clone(), token }
}
