//! Quotas in the model: what an identity has is counted anew each time.

use holdfast_core::{Identity, LockName, Quantity, Rejection, SessionId, Usage};

use super::{Model, Session, State, cost, permits};

impl Model {
    pub(crate) fn usage(&self, identity: &Identity) -> Usage {
        let mut usage = Usage::default();
        let own = |open: &&Session| open.caller.identity == *identity && open.stands_for.is_none();
        for open in self.sessions.iter().filter(own) {
            usage.sessions += 1;
            for request in self.requests.iter().filter(|request| request.session == open.id) {
                match &request.state {
                    State::Held { holds, .. } => usage.holds += holds.len() as u64,
                    State::Waiting { .. } => {
                        usage.holds += request.items().len() as u64;
                        usage.waits += 1;
                    }
                    State::Over | State::Denied(_) => {}
                }
            }
        }
        let values = self.values.iter().filter(|(_, value)| value.owner.as_ref() == Some(identity));
        let limits = self.kept_limits.iter().filter(|kept| kept.owner == *identity);
        let limits = limits.map(|kept| permits::cost(&kept.lock));
        let sequences = self.sequences.iter().filter(|sequence| sequence.owner == *identity);
        let sequences = sequences.map(|sequence| permits::cost(&sequence.name));
        let closed = self.closed_locks.iter().filter(|closed| closed.owner == *identity);
        let closed = closed.map(|closed| permits::cost(&closed.lock));
        usage.value_bytes = values.map(cost).chain(limits).chain(sequences).chain(closed).sum();
        usage
    }

    /// The identities that have something.
    pub(crate) fn usages(&self) -> Vec<(Identity, Usage)> {
        let opened = self.sessions.iter().map(|open| open.caller.identity.clone());
        let owners = self.values.iter().filter_map(|(_, value)| value.owner.clone());
        let limits = self.kept_limits.iter().map(|kept| kept.owner.clone());
        let sequences = self.sequences.iter().map(|sequence| sequence.owner.clone());
        let closed = self.closed_locks.iter().map(|closed| closed.owner.clone());
        let kept = limits.chain(sequences).chain(closed);
        let mut all: Vec<Identity> = opened.chain(owners).chain(kept).collect();
        all.sort();
        all.dedup();
        let all = all.into_iter().map(|identity| (identity.clone(), self.usage(&identity)));
        all.filter(|(_, usage)| *usage != Usage::default()).collect()
    }

    pub(super) fn refuse_over_quota_of(
        &self,
        session: SessionId,
        what: Quantity,
        more: u64,
    ) -> Result<(), Rejection> {
        let identity = self.session(session).unwrap().caller.identity.clone();
        self.refuse_over_quota(&identity, what, more)
    }

    pub(super) fn refuse_over_quota(
        &self,
        identity: &Identity,
        what: Quantity,
        more: u64,
    ) -> Result<(), Rejection> {
        let of = |quota: holdfast_core::Quota| match what {
            Quantity::Sessions => quota.sessions,
            Quantity::Holds => quota.holds,
            Quantity::Waits => quota.waits,
            Quantity::ValueBytes => quota.value_bytes,
            Quantity::Connections => quota.connections,
        };
        let usage = self.usage(identity);
        let has = match what {
            Quantity::Sessions => usage.sessions,
            Quantity::Holds => usage.holds,
            Quantity::Waits => usage.waits,
            Quantity::ValueBytes => usage.value_bytes,
            Quantity::Connections => 0,
        };
        let own = self.rules.quotas.iter().find(|(known, _)| known == identity);
        let limit = own.and_then(|(_, quota)| of(*quota)).or(of(self.rules.quota_of_all));
        match limit {
            Some(limit) if has + more > limit => {
                Err(Rejection::OverQuota { identity: identity.clone(), what, limit })
            }
            _ => Ok(()),
        }
    }

    /// By how much the values of an identity grow when it sets that one.
    pub(super) fn growth_for(&self, lock: &LockName, bytes: usize, owner: &Identity) -> u64 {
        let after = 256 + lock.as_str().len() as u64 + bytes as u64;
        let own = self.value(lock).filter(|value| value.owner.as_ref() == Some(owner));
        let before = own.map_or(0, |value| cost(&(lock.clone(), value.clone())));
        after.saturating_sub(before)
    }
}
