//! Rules in the model.

use std::collections::BTreeSet;

use holdfast_core::{
    AccessName, Answer, Ask, Caller, Command, Deed, Event, FencingToken, Identity, LockName,
    Missing, Outcome, Quota, Rejection, RequestId, Right, RuleChange, RulesError, SessionId, Token,
    Verb,
};

use super::Model;

/// The verbs that are about names.
const NAMED: [Verb; 9] = [
    Verb::Acquire,
    Verb::Read,
    Verb::Import,
    Verb::Scope,
    Verb::Force,
    Verb::Limit,
    Verb::Freeze,
    Verb::Sequence,
    Verb::History,
];

#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(crate) on: bool,
    pub(crate) roles: Vec<(AccessName, BTreeSet<Right>)>,
    pub(crate) identities: Vec<(Identity, BTreeSet<AccessName>)>,
    pub(crate) tokens: Vec<(AccessName, Token)>,
    pub(crate) quotas: Vec<(Identity, Quota)>,
    pub(crate) quota_of_all: Quota,
}

impl Rules {
    fn has_role(&self, name: &AccessName) -> bool {
        self.roles.iter().any(|(role, _)| role == name)
    }

    fn has_token(&self, name: &str) -> bool {
        self.tokens.iter().any(|(token, _)| token.as_str() == name)
    }

    fn rights(&self, identity: &Identity) -> Vec<&Right> {
        let of = self.identities.iter().filter(|(known, _)| known == identity);
        let names: Vec<_> = of.flat_map(|(_, roles)| roles).collect();
        let roles = self.roles.iter().filter(|(role, _)| names.contains(&role));
        roles.flat_map(|(_, rights)| rights).collect()
    }

    /// The first right that is missing.
    fn missing(&self, caller: &Caller, verb: Verb, names: &[&str]) -> Option<Missing> {
        if !self.on || caller.is_admin {
            return None;
        }
        let of_verb: Vec<&str> = self
            .rights(&caller.identity)
            .into_iter()
            .filter(|right| right.verb == verb)
            .map(|right| right.prefix.as_str())
            .collect();
        if names.is_empty() {
            return (of_verb.is_empty() || NAMED.contains(&verb))
                .then_some(Missing::Whole { verb });
        }
        let uncovered = |name: &&&str| {
            let bytes = name.as_bytes();
            !of_verb.iter().any(|prefix| bytes.iter().take(prefix.len()).eq(prefix.as_bytes()))
        };
        let name = names.iter().find(uncovered)?;
        Some(if name.is_empty() {
            Missing::Whole { verb }
        } else {
            Missing::On { verb, name: (*name).to_owned() }
        })
    }
}

impl Model {
    pub(super) fn do_for(
        &mut self,
        caller: &Caller,
        deed: Deed,
        events: &mut Vec<Event>,
    ) -> Outcome {
        match deed {
            Deed::OpenSession { ttl_ms, label, knows_closed, .. } => {
                self.open(caller, ttl_ms, &label, knows_closed, events)
            }
            Deed::Import { owner, ttl_ms, rows } => self.import(&owner, ttl_ms, &rows, events),
            Deed::SetScope { scope } => self.set_scope(&scope, events),
            Deed::RemoveScope { scope } => self.remove_scope(&scope, events),
            Deed::Rule { change } => self.rule(caller, change, events),
            Deed::EndSession { session, reason, now } => {
                self.end_session(session, &reason, now, events)
            }
            Deed::CutOff { identity, reason, now } => {
                self.cut_off(caller, &identity, (&reason, now), events)
            }
            Deed::CloseHolds { lock, token, reason, now } => {
                self.close_holds((&lock, token), (&reason, now), events)
            }
            Deed::OwnSession { session } => self.own(caller, session),
            Deed::Freeze { prefix, message } => self.freeze(caller, &prefix, &message, events),
            Deed::Thaw { prefix } => self.thaw(&prefix, events),
            Deed::Advance { sequence, by } => self.advance(caller, &sequence, by),
            Deed::BeginSequence { sequence, at } => self.begin_sequence(caller, &sequence, at),
            Deed::LengthenImports { owner, ttl_ms, locks } => {
                self.lengthen_imports(&owner, ttl_ms, &locks, events)
            }
            Deed::SetLimit { lock, limit } => {
                let set = self.set_limit(caller, lock, limit.map(std::num::NonZeroU32::get));
                self.hand_on(events);
                set
            }
        }
    }

    pub(super) fn refuse_forbidden(&self, command: &Command) -> Result<(), Rejection> {
        let nobody = Caller::default();
        let deed = |deed: &Deed| (nobody.clone(), deed.clone());
        let (caller, deed) = match command.clone() {
            Command::Acquire { session, request, items, .. }
            | Command::AcquireOn(Ask { session, request, items, .. }) => {
                let names: Vec<&str> = items.iter().map(|item| item.lock.as_str()).collect();
                return self.may_request(session, request, &names);
            }
            Command::SetValue { session, request, lock, .. }
            | Command::Claim { session, request, lock, .. } => {
                return self.may_request(session, request, &[lock.as_str()]);
            }
            Command::By { caller, deed } => (caller, deed),
            Command::OpenSession { ttl_ms, label, secret_hash } => {
                deed(&Deed::OpenSession { ttl_ms, label, secret_hash, knows_closed: false })
            }
            Command::Import { owner, ttl_ms, rows } => deed(&Deed::Import { owner, ttl_ms, rows }),
            Command::SetScope { scope } => deed(&Deed::SetScope { scope }),
            Command::RemoveScope { scope } => deed(&Deed::RemoveScope { scope }),
            _ => return Ok(()),
        };
        match deed {
            Deed::OpenSession { .. } => {
                let Self { rules, .. } = self;
                if rules.on && !caller.is_admin && rules.rights(&caller.identity).is_empty() {
                    return Err(Rejection::Forbidden(Missing::Any));
                }
                Ok(())
            }
            Deed::Import { rows, .. } => {
                let names: Vec<&str> = rows.iter().map(|row| row.lock.as_str()).collect();
                self.may(&caller, Verb::Import, &names)
            }
            Deed::LengthenImports { locks, .. } => {
                let names: Vec<&str> = locks.iter().map(LockName::as_str).collect();
                self.may(&caller, Verb::Import, &names)
            }
            Deed::SetScope { scope } | Deed::RemoveScope { scope } => {
                self.may(&caller, Verb::Scope, &[scope.as_str()])
            }
            Deed::Rule { .. } => self.may(&caller, Verb::Rules, &[]),
            Deed::EndSession { now, .. } | Deed::CutOff { now, .. } => {
                self.may(&caller, Verb::Revoke, &[])?;
                self.may_hurry(&caller, now)
            }
            Deed::Freeze { prefix, .. } | Deed::Thaw { prefix } => {
                self.may(&caller, Verb::Freeze, &[prefix.as_str()])
            }
            Deed::SetLimit { lock, .. } => self.may(&caller, Verb::Limit, &[lock.as_str()]),
            Deed::Advance { sequence, .. } | Deed::BeginSequence { sequence, .. } => {
                self.may(&caller, Verb::Sequence, &[sequence.as_str()])
            }
            Deed::CloseHolds { lock, token, now, .. } => {
                self.may_force(&caller, &lock, token)?;
                self.may_hurry(&caller, now)
            }
            Deed::OwnSession { .. } => Ok(()),
        }
    }

    /// Whether the caller may end those holds of a lock, with every name of each.
    fn may_force(
        &self,
        caller: &Caller,
        lock: &LockName,
        token: Option<FencingToken>,
    ) -> Result<(), Rejection> {
        let verb = Verb::Force;
        self.may(caller, verb, &[lock.as_str()])?;
        for (grant, _) in self.holders(lock) {
            let meant = token.is_none_or(|token| grant.token == token);
            let holds = self.request(grant.session, grant.request).unwrap().holds();
            let names: Vec<&str> = holds.iter().map(|item| item.lock.as_str()).collect();
            if meant && self.may(caller, verb, &names).is_err() {
                return Err(Rejection::Forbidden(Missing::Whole { verb }));
            }
        }
        Ok(())
    }

    fn may_hurry(&self, caller: &Caller, now: bool) -> Result<(), Rejection> {
        if now { self.may(caller, Verb::Now, &[]) } else { Ok(()) }
    }

    fn may_request(
        &self,
        session: SessionId,
        request: RequestId,
        names: &[&str],
    ) -> Result<(), Rejection> {
        match self.session(session) {
            Some(open) if self.request(session, request).is_none() => {
                self.may(&open.caller, Verb::Acquire, names)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn may(&self, caller: &Caller, verb: Verb, names: &[&str]) -> Result<(), Rejection> {
        match self.rules.missing(caller, verb, names) {
            Some(missing) => Err(Rejection::Forbidden(missing)),
            None => Ok(()),
        }
    }

    fn rule(&mut self, caller: &Caller, change: RuleChange, events: &mut Vec<Event>) -> Outcome {
        let before = self.rules.clone();
        let changed = self.carry_out(change);
        let locked_out = self.rules.missing(caller, Verb::Rules, &[]).is_some();
        let identity = caller.identity.clone();
        let refused = match changed {
            Err(error) => Some(error),
            Ok(()) if locked_out => Some(RulesError::LocksOut { caller: identity }),
            Ok(()) => None,
        };
        if let Some(error) = refused {
            self.rules = before;
            return Err(Rejection::Rules(error));
        }
        self.rules.roles.sort();
        self.rules.identities.sort();
        self.rules.quotas.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.rules.tokens.sort_by(|(a, _), (b, _)| a.cmp(b));
        let same = before.on == self.rules.on
            && before.roles == self.rules.roles
            && before.identities == self.rules.identities
            && before.tokens == self.rules.tokens
            && before.quotas == self.rules.quotas
            && before.quota_of_all == self.rules.quota_of_all;
        if !same {
            events.push(Event::RulesChanged);
        }
        Ok(Answer::RulesChanged)
    }

    fn carry_out(&mut self, change: RuleChange) -> Result<(), RulesError> {
        let rules = &mut self.rules;
        match change {
            RuleChange::Turn { on } => rules.on = on,
            RuleChange::SetRole { role, rights } => {
                for Right { verb, prefix } in &rights {
                    if !NAMED.contains(verb) && !prefix.as_str().is_empty() {
                        return Err(RulesError::NoNames { verb: *verb });
                    }
                }
                rules.roles.retain(|(known, _)| *known != role);
                rules.roles.push((role, rights));
            }
            RuleChange::RemoveRole { role } => {
                let has = rules.identities.iter().find(|(_, roles)| roles.contains(&role));
                if let Some((identity, _)) = has {
                    let identity = identity.clone();
                    return Err(RulesError::RoleInUse { role, identity });
                }
                rules.roles.retain(|(known, _)| *known != role);
            }
            RuleChange::SetRoles { identity, roles } => return self.give(identity, roles),
            RuleChange::CreateToken { name, token, roles } => {
                let same = rules.tokens.iter().find(|(known, _)| *known == name);
                if let Some((_, known)) = same {
                    let taken = RulesError::TokenTaken { name };
                    return if *known == token { Ok(()) } else { Err(taken) };
                }
                let secret = rules.tokens.iter().find(|(_, known)| known.hash == token.hash);
                if let Some((other, _)) = secret {
                    return Err(RulesError::TokenTaken { name: other.clone() });
                }
                let owner = Identity::parse(&format!("token:{name}")).unwrap();
                rules.tokens.push((name, token));
                return self.give(owner, roles);
            }
            RuleChange::RevokeToken { name } => {
                let owner = format!("token:{name}");
                rules.tokens.retain(|(known, _)| *known != name);
                rules.identities.retain(|(identity, _)| identity.as_str() != owner);
            }
            RuleChange::SetQuota { quota: Quota { connections: Some(0), .. }, .. } => {
                return Err(RulesError::NoConnection);
            }
            RuleChange::SetQuota { identity: None, quota } => rules.quota_of_all = quota,
            RuleChange::SetQuota { identity: Some(identity), quota } => {
                rules.quotas.retain(|(known, _)| *known != identity);
                if quota != Quota::default() {
                    rules.quotas.push((identity, quota));
                }
            }
        }
        Ok(())
    }

    fn give(&mut self, identity: Identity, roles: BTreeSet<AccessName>) -> Result<(), RulesError> {
        let own = &mut self.rules;
        if let Some(role) = roles.iter().find(|role| !own.has_role(role)) {
            return Err(RulesError::UnknownRole { role: role.clone() });
        }
        if roles.len() > 16 {
            return Err(RulesError::TooMany { what: "roles of one identity".to_owned(), max: 16 });
        }
        let token = identity.as_str().strip_prefix("token:");
        if let Some(token) = token.filter(|token| !own.has_token(token)) {
            return Err(RulesError::UnknownToken { name: AccessName::parse(token).unwrap() });
        }
        own.identities.retain(|(known, _)| *known != identity);
        if !roles.is_empty() {
            own.identities.push((identity, roles));
        }
        Ok(())
    }
}
