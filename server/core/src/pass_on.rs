//! How locks pass on: the next waiter that fits is granted, in the command that made room (I15).

use std::collections::BTreeSet;

use holdfast_mutants::mutant;

use crate::LockTable;
use crate::answer::{Acquired, Grant};
use crate::event::Event;
use crate::ids::{FencingToken, LockName, RequestId, SessionId, Ticket};
use crate::lock_set::{LockSet, Part};
use crate::session::Record;

/// Heads of queues to look at, each with its lock: the smallest ticket first.
///
/// A single one, the common case, takes no memory of its own.
#[derive(Default)]
struct Heads {
    one: Option<(Ticket, LockName)>,
    more: BTreeSet<(Ticket, LockName)>,
}

impl Heads {
    fn add(&mut self, ticket: Ticket, name: &LockName) {
        let head = (ticket, name.clone());
        if self.one.is_none() && self.more.is_empty() {
            self.one = Some(head);
        } else {
            self.more.extend(self.one.take());
            self.more.insert(head);
        }
    }

    fn next(&mut self) -> Option<(Ticket, LockName)> {
        self.one.take().or_else(|| self.more.pop_first())
    }
}

/// A waiter that can be granted now.
struct Ready {
    session: SessionId,
    request: RequestId,
    ticket: Ticket,
    lock_set: LockSet,
    /// The locks that it is granted.
    part: Part,
}

impl LockTable {
    /// Grants to the heads of these queues for as long as one can be granted: always the one with
    /// the smallest ticket (I9). So adjacent readers enter together, and no request overtakes
    /// another or slips in between the end of a hold and the next grant.
    ///
    /// A waiter that is granted leaves its other queues too, which may make room there: the same
    /// command looks at their heads, until nothing more can be granted (I15). An `any` takes all
    /// locks that are free to it at its turn, so of two locks that one grant gives back it gets
    /// both.
    ///
    /// A lock that nothing keeps leaves the table (I33). Without tokens the waiters keep their
    /// places (I10). So do those of a suspended scope: its locks are looked at again when it is
    /// resumed.
    ///
    /// A new holder gets `Contended` for the requests that still wait once all grants are made:
    /// readers that enter together do not cause it for each other.
    pub(crate) fn pass_on<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a LockName>,
        events: &mut Vec<Event>,
    ) {
        let mut heads = Heads::default();
        let before = events.len();
        names.into_iter().for_each(|name| self.look_at(name, &mut heads));
        while let Some((ticket, name)) = heads.next() {
            let Some(ready) = self.ready_head(&name, ticket) else { continue };
            let epoch = self.epoch_of(&ready.lock_set);
            let Ok(token) = self.counters.next_token(epoch) else { break };
            self.grant_waiting(&ready, token, events);
            let left = if mutant!(AnyQueueUnlooked) { ready.part } else { ready.lock_set.whole() };
            ready.lock_set.iter_part(left).for_each(|(name, _)| self.look_at(name, &mut heads));
        }
        self.tell_contended(before, events);
    }

    /// Notes the head of a queue, or puts it off until the scope is resumed, or removes the lock if
    /// nothing keeps it.
    fn look_at(&mut self, name: &LockName, heads: &mut Heads) {
        match self.locks.get(name).map(|lock| lock.queue.first()) {
            Some(Some(_)) if self.scopes.put_off(name) => {}
            Some(Some((ticket, _))) => heads.add(ticket, name),
            Some(None) => self.tidy(name),
            None => {}
        }
    }

    /// The head of a queue, if it still has that ticket and can be granted now.
    fn ready_head(&self, name: &LockName, ticket: Ticket) -> Option<Ready> {
        let lock = self.locks.get(name)?;
        let (_, head) = lock.queue.first().filter(|&(first, _)| first == ticket)?;
        // A head that does not fit here needs no look at its other locks: a set needs this one too,
        // and an `any` is looked at for each of its locks.
        if !lock.holders.fits(head.mode) {
            return None;
        }
        let found = self.sessions.get(&head.session)?;
        let Some(Record::Asked { lock_set, .. }) = found.records.get(&head.request) else {
            return None;
        };
        let part = lock_set.takes(self.free_to(ticket, lock_set))?;
        let (session, request) = (head.session, head.request);
        Some(Ready { session, request, ticket, lock_set: lock_set.clone(), part })
    }

    fn grant_waiting(&mut self, ready: &Ready, token: FencingToken, events: &mut Vec<Event>) {
        let Ready { session, request, ticket, lock_set, part } = ready;
        let (session, request, part) = (*session, *request, *part);
        self.leave_queues(lock_set, *ticket);
        let since_ms = self.stamp_ms;
        self.change_session(session, |found| found.hold(request, token, part, since_ms));
        let grant = Grant { session, request, token };
        self.enter(grant, lock_set, part, events);
        let elsewhere = lock_set.whole().without(part);
        if !elsewhere.is_empty() {
            events.push(Event::Left { session, request, items: lock_set.items_of(elsewhere) });
        }
    }

    /// Makes a request a holder of all that it is granted, under one token (I14).
    pub(crate) fn enter(
        &mut self,
        grant: Grant,
        lock_set: &LockSet,
        part: Part,
        events: &mut Vec<Event>,
    ) -> Acquired {
        let mut values = Vec::new();
        for (name, mode) in lock_set.iter_part(part) {
            let value = self.put_holder(name, grant, mode);
            values.extend(value.map(|value| (name.clone(), value)));
        }
        let Grant { session, request, token } = grant;
        let items = lock_set.items_of(part);
        let told = (items.clone(), values.clone());
        events.push(Event::Granted { session, request, token, items: told.0, values: told.1 });
        Acquired::Granted { token, items, values }
    }

    /// Reports `Contended` to each new holder for each of its locks with waiters: for that holder
    /// the queue was never empty.
    pub(crate) fn tell_contended(&self, before: usize, events: &mut Vec<Event>) {
        let granted = events.get(before..).unwrap_or_default().iter();
        let contended: Vec<Event> = granted
            .filter_map(|event| match event {
                Event::Granted { session, request, token, items, .. } => {
                    let grant = Grant { session: *session, request: *request, token: *token };
                    Some(items.iter().map(move |item| (grant, &item.lock)))
                }
                _ => None,
            })
            .flatten()
            .filter(|(_, name)| self.locks.get(*name).is_some_and(|lock| !lock.queue.is_empty()))
            .map(|(grant, name)| contended(grant, name))
            .collect();
        events.extend(contended);
    }
}

pub(crate) fn contended(holder: Grant, lock: &LockName) -> Event {
    let Grant { session, request, token } = holder;
    Event::Contended { session, request, lock: lock.clone(), token }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_ticket_is_looked_at_first_and_each_once() {
        let head = |ticket, text: &str| (Ticket::new(ticket), LockName::parse(text).expect("name"));
        let mut heads = Heads::default();
        for (ticket, name) in [head(3, "a"), head(1, "c"), head(3, "a"), head(2, "b"), head(1, "a")]
        {
            heads.add(ticket, &name);
        }
        assert_eq!(heads.next(), Some(head(1, "a")));
        heads.add(Ticket::new(2), &head(2, "a").1);
        let rest: Vec<_> = std::iter::from_fn(|| heads.next()).collect();
        assert_eq!(rest, [head(1, "c"), head(2, "a"), head(2, "b"), head(3, "a")]);
    }
}
