//! Imports from another store in the model, and claims of them.

use holdfast_core::{
    Acquired, Answer, Event, Fate, Has, ImportRow, Item, Label, LockName, Need, Outcome, Quantity,
    Rejection, RequestId, SessionId, Terms, Value,
};

use super::grants::told_contended;
use super::size::{of_request, of_session};
use super::values::cost;
use super::{Asked, Model, Request, State, What};

impl Model {
    pub(super) fn import(
        &mut self,
        owner: &Label,
        ttl_ms: u64,
        rows: &[ImportRow],
        events: &mut Vec<Event>,
    ) -> Outcome {
        check(ttl_ms, rows.len())?;
        let mut opened = None;
        let mut fates = Vec::new();
        for (number, row) in (1..).zip(rows) {
            let fate = if let Some(objection) = self.objection(owner, row, opened.is_some()) {
                objection
            } else {
                if opened.is_none() {
                    opened = Some(self.new_session(None, ttl_ms, owner, events)?);
                }
                self.take_in(opened.unwrap(), RequestId::new(number), row, events)
            };
            fates.push(fate);
        }
        Ok(Answer::Imported { session: opened, fates })
    }

    /// The rows of an owner that still stand have at least so long from now on.
    pub(super) fn lengthen_imports(
        &mut self,
        owner: &Label,
        ttl_ms: u64,
        locks: &[LockName],
        events: &mut Vec<Event>,
    ) -> Outcome {
        check(ttl_ms, locks.len())?;
        let mut imports = Vec::new();
        let mut longer = Vec::new();
        for lock in locks {
            let known = self.imported(lock, owner).map(|request| (request.session, request.id));
            imports.push(known.map(|(session, _)| session));
            let Some((session, request)) = known else { continue };
            if self.is_open_import(session, request) && !longer.contains(&session) {
                longer.push(session);
                let own = self.sessions.iter_mut().find(|one| one.id == session).unwrap();
                own.ttl_ms = own.ttl_ms.max(ttl_ms);
                events.push(Event::ImportLengthened { session, ttl_ms });
            }
        }
        Ok(Answer::ImportsLengthened { imports })
    }

    /// Whether it still waits, or holds what its client may rely on.
    fn is_open_import(&self, session: SessionId, request: RequestId) -> bool {
        let known = self.request(session, request);
        known.is_some_and(|known| match known.state {
            State::Waiting { .. } => true,
            State::Held { token, .. } => !self.is_ending(session, token),
            State::Denied(_) | State::Over => false,
        })
    }

    fn objection(&self, owner: &Label, row: &ImportRow, opened: bool) -> Option<Fate> {
        if self.imported(&row.lock, owner).is_some() {
            return Some(Fate::Known);
        }
        let held = !self.holders(&row.lock).is_empty();
        let waiting = self.queue(&row.lock).len() as u64;
        let asked = asked(&row.lock);
        let refused = match &row.has {
            Has::Hold(_)
                if held
                    || waiting > 0
                    || self.is_suspended(&asked.items)
                    || self.is_frozen(&row.lock)
                    || self.is_shut(&row.lock) =>
            {
                Some(self.why_denied(&asked))
            }
            Has::Hold(_) if !self.has_tokens() => {
                Some(Rejection::TokensExhausted { epoch: self.epoch_for(&asked.items) })
            }
            Has::Hold(None) => None,
            Has::Hold(Some(value)) => self.no_room(&row.lock, value),
            Has::Place if !held && waiting == 0 => {
                Some(Rejection::NothingToWaitFor { lock: row.lock.clone() })
            }
            Has::Place => {
                let limit = self.limits.max_waiters_per_lock;
                let full = Rejection::TooManyWaiters { lock: row.lock.clone(), limit };
                (waiting >= limit).then_some(full)
            }
        };
        refused.or_else(|| self.no_table_room_for_row(owner, row, opened)).map(Fate::Refused)
    }

    fn no_table_room_for_row(
        &self,
        owner: &Label,
        row: &ImportRow,
        opened: bool,
    ) -> Option<Rejection> {
        let label = owner.as_str().len() as u64;
        let session = if opened { 0 } else { of_session(label) };
        let index = 128 + label + row.lock.as_str().len() as u64;
        let value = match &row.has {
            Has::Hold(Some(value)) => self.value_growth(&row.lock, value.len()),
            Has::Hold(None) | Has::Place => 0,
        };
        self.no_table_room(session + of_request([&row.lock].into_iter()) + index + value)
    }

    fn no_room(&self, lock: &LockName, value: &[u8]) -> Option<Rejection> {
        if value.len() > 4_096 {
            return Some(Rejection::ValueTooLarge { len: value.len() as u64, max: 4_096 });
        }
        let grows = self.value(lock).is_none_or(|before| before.bytes.len() < value.len());
        let own = self.values.iter().find(|(name, _)| name == lock).map_or(0, cost);
        let others = self.value_bytes() - own;
        let own = 256 + lock.as_str().len() as u64 + value.len() as u64;
        let limit = self.limits.max_value_bytes;
        (grows && others + own > limit).then_some(Rejection::TooManyValueBytes { limit })
    }

    fn take_in(
        &mut self,
        session: SessionId,
        request: RequestId,
        row: &ImportRow,
        events: &mut Vec<Event>,
    ) -> Fate {
        let asked = asked(&row.lock);
        let Has::Hold(value) = &row.has else {
            let waits = self.wait(session, request, &asked, events);
            let Ok(Answer::Acquired { state: Acquired::Queued { place, .. }, .. }) = waits else {
                unreachable!("it waits")
            };
            return Fate::Queued { place };
        };
        self.keep(session, request, What::Asked(asked.clone()), State::Over);
        let Acquired::Granted { token, .. } = self.grant(session, request, asked.items, events)
        else {
            unreachable!("it was granted")
        };
        if let Some(bytes) = value {
            let lock = row.lock.clone();
            let value = Value {
                bytes: bytes.as_slice().into(),
                set_by: token,
                suspect: false,
                owner: None,
            };
            self.values.retain(|(name, _)| *name != lock);
            self.values.push((lock.clone(), value.clone()));
            events.push(Event::ValueChanged { lock, value: Some(value) });
        }
        Fate::Held { token }
    }

    /// An owner's import of a lock, as long as the session that stands for the owner is open.
    pub(crate) fn imported(&self, lock: &LockName, owner: &Label) -> Option<&Request> {
        let mut stand_ins = self.sessions.iter().filter(|s| s.stands_for.as_ref() == Some(owner));
        stand_ins.find_map(|session| {
            let mut own = self.requests.iter().filter(|r| r.session == session.id);
            own.find(|r| r.items().iter().any(|item| item.lock == *lock))
        })
    }

    pub(super) fn claim(
        &mut self,
        mark: RequestId,
        (session, request): (SessionId, RequestId),
        lock: &LockName,
        owner: &Label,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let asked = asked(lock);
        let what = What::Asked(asked.clone());
        if let Some(known) = self.seen(mark, session, request, &what)? {
            return self.again(known);
        }
        if let Some(full) = self.no_table_room_for(&what) {
            return Err(full);
        }
        self.refuse_over_quota_of(session, Quantity::Holds, 1)?;
        let items = asked.items.iter().cloned().collect();
        let imported = self.imported(lock, owner).cloned();
        match imported.filter(|r| r.token().is_none_or(|token| !self.is_ending(r.session, token))) {
            Some(Request {
                session: from, id, state: State::Held { token, holds, .. }, ..
            }) => {
                if !self.has_tokens() {
                    let epoch = self.epoch_for(&asked.items);
                    return Err(Rejection::TokensExhausted { epoch });
                }
                self.request_mut(from, id).state = State::Over;
                let released =
                    Event::Released { session: from, request: id, token, items, over: true };
                events.push(released);
                self.keep(session, request, what, State::Over);
                let state = self.grant(session, request, holds, events);
                if !self.queue(lock).is_empty() {
                    let (grant, _) = self.holders(lock)[0];
                    events.push(told_contended(grant, lock));
                }
                Ok(Answer::Acquired { request, state, fresh: true })
            }
            Some(Request { session: from, id, state: State::Waiting { arrival, .. }, .. }) => {
                self.refuse_over_quota_of(session, Quantity::Waits, 1)?;
                self.request_mut(from, id).state = State::Over;
                let state = State::Waiting { arrival, since_ms: self.stamp_ms };
                self.keep(session, request, what, state);
                let known = self.request(session, request).unwrap();
                let (place, holder) = (self.place(known), self.first_holder(known));
                let left = Event::Left { session: from, request: id, items };
                let items = asked.items.iter().cloned().collect();
                events.extend([left, Event::Queued { session, request, items, place }]);
                let state = Acquired::Queued { place, holder };
                Ok(Answer::Acquired { request, state, fresh: true })
            }
            Some(_) | None => {
                let rejection = Rejection::NotImported { lock: lock.clone() };
                self.keep(session, request, what, State::Denied(rejection.clone()));
                let told = rejection.clone();
                events.push(Event::Denied { session, request, items, rejection: told });
                Err(rejection)
            }
        }
    }

    fn request_mut(&mut self, session: SessionId, id: RequestId) -> &mut Request {
        let mut all = self.requests.iter_mut();
        all.find(|r| (r.session, r.id) == (session, id)).unwrap()
    }
}

fn check(ttl_ms: u64, rows: usize) -> Result<(), Rejection> {
    if rows == 0 {
        return Err(Rejection::NoNames);
    }
    if rows > 64 {
        return Err(Rejection::TooManyNames { names: rows as u64, max: 64 });
    }
    let max_ms = 366 * 24 * 60 * 60 * 1_000;
    if ttl_ms == 0 || ttl_ms > max_ms {
        return Err(Rejection::TtlOutOfRange { ttl_ms, min_ms: 1, max_ms });
    }
    Ok(())
}

fn asked(lock: &LockName) -> Asked {
    Asked {
        items: vec![Item::exclusive(lock.clone())],
        need: Need::All,
        wait: true,
        terms: Terms::default(),
    }
}
