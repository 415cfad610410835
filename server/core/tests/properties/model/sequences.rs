//! Sequences in the model.

use holdfast_core::{Answer, Caller, Identity, LockName, Outcome, Quantity, Rejection};

use super::{Model, permits};

pub(crate) struct Sequence {
    pub(crate) name: LockName,
    pub(crate) last: u64,
    /// Who began it.
    pub(crate) owner: Identity,
}

impl Model {
    pub(super) fn advance(&mut self, caller: &Caller, name: &LockName, by: u32) -> Outcome {
        if by == 0 || by > 65_536 {
            return Err(Rejection::SequenceStep { by, max: 65_536 });
        }
        let last = self.last_of(caller, name)?;
        let left = u64::MAX - last;
        if u64::from(by) > left {
            return Err(Rejection::SequenceExhausted { sequence: name.clone(), left });
        }
        self.set_sequence(caller, name, last + u64::from(by));
        Ok(Answer::Advanced { first: last + 1 })
    }

    pub(super) fn begin_sequence(&mut self, caller: &Caller, name: &LockName, at: u64) -> Outcome {
        let last = self.last_of(caller, name)?;
        if at <= last {
            return Err(Rejection::SequenceNotAbove { sequence: name.clone(), at, last });
        }
        self.set_sequence(caller, name, at - 1);
        Ok(Answer::SequenceBegun)
    }

    fn last_of(&self, caller: &Caller, name: &LockName) -> Result<u64, Rejection> {
        if self.scope_of(name).is_some() {
            return Err(Rejection::SequenceInScope { sequence: name.clone() });
        }
        if let Some(known) = self.sequences.iter().find(|sequence| sequence.name == *name) {
            return Ok(known.last);
        }
        let limit = self.limits.max_value_bytes;
        if self.value_bytes() + permits::cost(name) > limit {
            return Err(Rejection::TooManyValueBytes { limit });
        }
        if let Some(full) = self.no_table_room(permits::cost(name)) {
            return Err(full);
        }
        self.refuse_over_quota(&caller.identity, Quantity::ValueBytes, permits::cost(name))?;
        Ok(0)
    }

    fn set_sequence(&mut self, caller: &Caller, name: &LockName, last: u64) {
        let mut known = self.sequences.iter_mut();
        if let Some(known) = known.find(|sequence| sequence.name == *name) {
            known.last = last;
            return;
        }
        let (name, owner) = (name.clone(), caller.identity.clone());
        self.sequences.push(Sequence { name, last, owner });
    }

    /// What limits for good, sequences and closed locks count, each as a value without bytes.
    pub(super) fn kept_bytes(&self) -> u64 {
        let limits = self.kept_limits.iter().map(|kept| &kept.lock);
        let sequences = self.sequences.iter().map(|sequence| &sequence.name);
        let closed = self.closed_locks.iter().map(|closed| &closed.lock);
        limits.chain(sequences).chain(closed).map(permits::cost).sum()
    }
}
