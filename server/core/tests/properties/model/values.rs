//! The values of locks in the model.

use holdfast_core::{
    Answer, Event, Item, LockName, Mode, Outcome, Quantity, Rejection, RequestId, SessionId, Value,
    ValueChange,
};

use super::{Model, State, What};

pub(super) fn refuse_long(change: &ValueChange) -> Result<(), Rejection> {
    match change {
        ValueChange::Set(bytes) if bytes.len() > 4_096 => {
            Err(Rejection::ValueTooLarge { len: bytes.len() as u64, max: 4_096 })
        }
        _ => Ok(()),
    }
}

impl Model {
    pub(super) fn write(
        &mut self,
        mark: RequestId,
        session: SessionId,
        request: RequestId,
        what: What,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if self.seen(mark, session, request, &what)?.is_some() {
            return Ok(Answer::ValueSet { request, fresh: false });
        }
        let What::Write { token, lock, change } = what.clone() else { unreachable!("a write") };
        let holds = self.held(session, token)?.holds();
        if self.is_ending(session, token) {
            return Err(Rejection::NotHolder { session, token });
        }
        match holds.iter().find(|item| item.lock == lock).map(|item| item.mode) {
            None => return Err(Rejection::NotHeldUnder { session, token, lock }),
            Some(Mode::Shared | Mode::Permits { .. }) => {
                return Err(Rejection::NotExclusive { lock, token });
            }
            Some(Mode::Exclusive) => {}
        }
        if let Some(full) = self.no_table_room_for(&what) {
            return Err(full);
        }
        let before = self.value(&lock).cloned();
        let after = match change {
            ValueChange::Clear => None,
            ValueChange::Confirm => match &before {
                None => return Err(Rejection::NoValue { lock }),
                Some(value) => Some(Value { suspect: false, ..value.clone() }),
            },
            ValueChange::Set(bytes) => {
                let identity = self.session(session).unwrap().caller.identity.clone();
                let more = self.growth_for(&lock, bytes.len(), &identity);
                let owner = self.knows_owners.then(|| identity.clone());
                let after = Value { bytes: bytes.into(), set_by: token, suspect: false, owner };
                let grows = before.as_ref().is_none_or(|b| b.bytes.len() < after.bytes.len());
                let others = self.values.iter().filter(|(name, _)| *name != lock);
                let total = others.map(cost).sum::<u64>()
                    + self.kept_bytes()
                    + cost(&(lock.clone(), after.clone()));
                let limit = self.limits.max_value_bytes;
                if grows && total > limit {
                    return Err(Rejection::TooManyValueBytes { limit });
                }
                if more > 0 {
                    self.refuse_over_quota(&identity, Quantity::ValueBytes, more)?;
                }
                Some(after)
            }
        };
        // Setting a value makes an event even if the value is the same.
        if before != after || matches!(what, What::Write { change: ValueChange::Set(_), .. }) {
            self.values.retain(|(name, _)| *name != lock);
            self.values.extend(after.clone().map(|value| (lock.clone(), value)));
            events.push(Event::ValueChanged { lock, value: after });
        }
        self.keep(session, request, what, State::Over);
        Ok(Answer::ValueSet { request, fresh: true })
    }

    pub(super) fn suspect(&mut self, lost: &[Item], events: &mut Vec<Event>) {
        for item in lost.iter().filter(|item| item.mode == Mode::Exclusive) {
            let lock = item.lock.clone();
            let Some(value) = self.value_mut(&lock).filter(|value| !value.suspect) else {
                continue;
            };
            value.suspect = true;
            let value = Some(value.clone());
            events.push(Event::ValueChanged { lock, value });
        }
    }

    pub(crate) fn value(&self, lock: &LockName) -> Option<&Value> {
        self.values.iter().find(|(name, _)| name == lock).map(|(_, value)| value)
    }

    /// All that counts as values.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.values.iter().map(cost).sum::<u64>() + self.kept_bytes()
    }

    pub(super) fn value_mut(&mut self, lock: &LockName) -> Option<&mut Value> {
        self.values.iter_mut().find(|(name, _)| name == lock).map(|(_, value)| value)
    }
}

/// The count of a value: its bytes, those of its name, and 256.
pub(crate) fn cost((name, value): &(LockName, Value)) -> u64 {
    256 + name.as_str().len() as u64 + value.bytes.len() as u64
}
