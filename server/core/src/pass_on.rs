//! How locks pass from one to the next: whoever is next and fits is granted, in the command that
//! made room (I15).

use std::collections::BTreeSet;

use crate::LockTable;
use crate::answer::Grant;
use crate::event::Event;
use crate::ids::{FencingToken, LockName, RequestId, SessionId, Ticket};
use crate::session::Record;
use crate::wish::{Part, Wish};

/// Locks to be looked at, each once, in the order of their names: the same on every replica.
///
/// A single one, the common case, takes no memory of its own.
#[derive(Default)]
struct ToLookAt {
    one: Option<LockName>,
    more: BTreeSet<LockName>,
}

impl ToLookAt {
    fn add(&mut self, name: &LockName) {
        if self.one.is_none() && self.more.is_empty() {
            self.one = Some(name.clone());
        } else if self.one.as_ref() != Some(name) {
            self.more.insert(name.clone());
        }
    }

    fn next(&mut self) -> Option<LockName> {
        if let Some(one) = self.one.take() {
            if self.more.first().is_none_or(|first| one < *first) {
                return Some(one);
            }
            self.more.insert(one);
        }
        self.more.pop_first()
    }
}

/// A waiter that can be granted.
struct Ready {
    session: SessionId,
    request: RequestId,
    ticket: Ticket,
    wish: Wish,
    /// What it is granted.
    part: Part,
}

/// A grant to be made.
pub(crate) struct Entering<'a> {
    pub(crate) grant: Grant,
    pub(crate) wish: &'a Wish,
    pub(crate) part: Part,
}

impl LockTable {
    /// Grants to the heads of these queues for as long as they can be granted: first the one with
    /// the smallest ticket, then the next, so that adjacent readers enter together and nobody is
    /// overtaken (I9). Nobody can slip between the end of a hold and the next grant.
    ///
    /// A waiter that leaves its other queues may make room there: those are looked at in the same
    /// command, until nothing more can be granted (I15). An `any` takes whatever is free to it at
    /// the moment it is looked at, so of two locks that one grant gives back it gets both.
    ///
    /// Locks are looked at in the order of their names. One that nothing keeps leaves the table
    /// (I33). Without tokens the waiters keep their places (I10).
    ///
    /// A new holder is told of those who still wait once all grants are made: readers do not hear
    /// of readers that enter with them.
    pub(crate) fn pass_on<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a LockName>,
        events: &mut Vec<Event>,
    ) {
        let mut moved = ToLookAt::default();
        names.into_iter().for_each(|name| moved.add(name));
        let before = events.len();
        while let Some(name) = moved.next() {
            while let Some(ready) = self.ready_head(&name) {
                let Ok(token) = self.counters.next_token() else { break };
                let others = ready.wish.iter().filter(|&(other, _)| *other != name);
                others.for_each(|(other, _)| moved.add(other));
                self.grant_waiting(&ready, token, events);
            }
            self.tidy(&name);
        }
        self.tell_contended(before, events);
    }

    /// The head of a queue, if it can be granted now.
    fn ready_head(&self, name: &LockName) -> Option<Ready> {
        let lock = self.locks.get(name)?;
        let (ticket, head) = lock.queue.first()?;
        // Whatever it needs besides, this lock is its turn now or not at all.
        if !lock.holders.fits(head.mode) || !self.counters.has_tokens() {
            return None;
        }
        let found = self.sessions.get(head.session)?;
        let Some(Record::Asked { wish, .. }) = found.records.get(&head.request) else {
            return None;
        };
        let part = wish.takes(self.free_to(ticket, wish))?;
        let (session, request) = (head.session, head.request);
        Some(Ready { session, request, ticket, wish: wish.clone(), part })
    }

    fn grant_waiting(&mut self, ready: &Ready, token: FencingToken, events: &mut Vec<Event>) {
        let Ready { session, request, ticket, wish, part } = ready;
        let (session, request, part) = (*session, *request, *part);
        self.leave_queues(wish, *ticket);
        if let Some(found) = self.sessions.get_mut(session) {
            found.hold(request, token, part, self.stamp_ms);
        }
        let grant = Grant { session, request, token };
        self.enter(&Entering { grant, wish, part }, events);
        let elsewhere = wish.items_of(wish.whole().without(part));
        if !elsewhere.is_empty() {
            events.push(Event::Left { session, request, items: elsewhere });
        }
    }

    /// Makes a recorded request a holder of all that it is granted, under one token (I14).
    pub(crate) fn enter(&mut self, entering: &Entering<'_>, events: &mut Vec<Event>) {
        let Entering { grant, wish, part } = *entering;
        let mut values = Vec::new();
        for (name, mode) in wish.iter_part(part) {
            self.put_holder(name, grant, mode);
            let value = self.locks.get(name).and_then(|lock| lock.value.clone());
            values.extend(value.map(|value| (name.clone(), value)));
        }
        let Grant { session, request, token } = grant;
        events.push(Event::Granted { session, request, token, items: wish.items_of(part), values });
    }

    /// Tells each new holder of each of its locks that others wait for: for it that queue was
    /// never empty.
    fn tell_contended(&self, before: usize, events: &mut Vec<Event>) {
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
    fn locks_are_looked_at_in_the_order_of_their_names_each_once() {
        let name = |text: &str| LockName::parse(text).expect("a name");
        let mut moved = ToLookAt::default();
        for text in ["c", "a", "c", "b", "a"] {
            moved.add(&name(text));
        }
        assert_eq!(moved.next(), Some(name("a")));
        moved.add(&name("a"));
        let rest: Vec<LockName> = std::iter::from_fn(|| moved.next()).collect();
        assert_eq!(rest, [name("a"), name("b"), name("c")]);
    }
}
