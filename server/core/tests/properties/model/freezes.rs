//! Freezes in the model.

use holdfast_core::{
    Answer, Caller, Event, Label, LockName, NamePrefix, Outcome, Rejection, ScopePrefix,
};

use super::bounds::in_the_way;
use super::{Asked, Model};

pub(crate) struct Frozen {
    pub(crate) prefix: NamePrefix,
    pub(crate) message: Label,
    pub(crate) caller: Caller,
}

impl Model {
    pub(super) fn freeze(
        &mut self,
        caller: &Caller,
        prefix: &NamePrefix,
        message: &Label,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let scopes = self.scopes.iter().map(|(scope, _)| scope);
        let mut inside: Vec<&ScopePrefix> =
            scopes.filter(|scope| prefix.as_str().starts_with(scope.as_str())).collect();
        inside.sort();
        if let Some(scope) = inside.first() {
            return Err(Rejection::FreezeInScope { scope: (*scope).clone() });
        }
        let known = self.freezes.iter().position(|frozen| frozen.prefix == *prefix);
        if let Some(known) = known.map(|at| &self.freezes[at])
            && known.message == *message
            && known.caller.identity == caller.identity
        {
            return Ok(Answer::FreezesSet);
        }
        self.freezes.retain(|frozen| frozen.prefix != *prefix);
        let (prefix, message, caller) = (prefix.clone(), message.clone(), caller.clone());
        events.push(Event::FreezeChanged { prefix: prefix.clone(), frozen: true });
        self.freezes.push(Frozen { prefix, message, caller });
        Ok(Answer::FreezesSet)
    }

    pub(super) fn thaw(&mut self, prefix: &NamePrefix, events: &mut Vec<Event>) -> Outcome {
        if self.freezes.iter().all(|frozen| frozen.prefix != *prefix) {
            return Err(Rejection::NotFrozen { prefix: prefix.clone() });
        }
        self.freezes.retain(|frozen| frozen.prefix != *prefix);
        events.push(Event::FreezeChanged { prefix: prefix.clone(), frozen: false });
        self.hand_on(events);
        Ok(Answer::FreezesSet)
    }

    pub(crate) fn is_frozen(&self, lock: &LockName) -> bool {
        let covers = |text: &str| lock.as_str().starts_with(text);
        self.scope_of(lock).is_none()
            && self.freezes.iter().any(|frozen| covers(frozen.prefix.as_str()))
    }

    pub(super) fn refuse_frozen_scope(&self, scope: &ScopePrefix) -> Result<(), Rejection> {
        let prefixes = self.freezes.iter().map(|frozen| &frozen.prefix);
        let inside = prefixes.filter(|prefix| prefix.as_str().starts_with(scope.as_str()));
        match inside.min_by_key(|prefix| prefix.as_str()) {
            Some(prefix) => {
                Err(Rejection::ScopeHasFreeze { scope: scope.clone(), prefix: prefix.clone() })
            }
            None => Ok(()),
        }
    }

    /// The frozen lock that keeps a try from being granted.
    pub(super) fn frozen_of(&self, asked: &Asked) -> Option<LockName> {
        in_the_way(asked, |lock| self.is_frozen(lock))
    }
}
