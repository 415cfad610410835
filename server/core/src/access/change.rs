//! Changes of the rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};

use super::{AccessName, Caller, Identity, Right, Rules, Token, Verb};
use crate::answer::{Answer, Outcome};
use crate::command::RULES_SINCE;
use crate::event::Event;
use crate::quota::Quota;
use crate::{LockTable, Rejection};

/// Most roles.
pub const ROLES_MAX: u64 = 1_000;
/// Most rights of all roles together.
///
/// Source: a decision looks at all rights of its caller's roles.
pub const RIGHTS_MAX: u64 = 10_000;
/// Most identities with roles.
pub const IDENTITIES_MAX: u64 = 10_000;
/// Most tokens.
pub const TOKENS_MAX: u64 = 10_000;
/// Most identities with a quota of their own.
pub const QUOTAS_MAX: u64 = 10_000;
/// Most roles of one identity.
pub const ROLES_OF_ONE_MAX: u64 = 16;

/// A change of the rules. A second copy of each changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum RuleChange {
    /// Turns the rules on or off.
    Turn {
        /// Whether they count from then on.
        on: bool,
    },
    /// Makes a role, or gives one other rights.
    SetRole {
        /// Its name.
        role: AccessName,
        /// All that it allows.
        rights: BTreeSet<Right>,
    },
    /// Removes a role that no identity has. One that is not there stays so.
    RemoveRole {
        /// Its name.
        role: AccessName,
    },
    /// Gives an identity these roles and no others.
    SetRoles {
        /// Whom.
        identity: Identity,
        /// Their names; none: the identity has no right any more.
        roles: BTreeSet<AccessName>,
    },
    /// Makes a token, whose owner has the identity `token:NAME` and these roles.
    CreateToken {
        /// Its name, which no other token has.
        name: AccessName,
        /// Its hash, and its end.
        token: Token,
        /// The roles of its owner.
        roles: BTreeSet<AccessName>,
    },
    /// Removes a token and the roles of its owner. One that is not there stays so.
    RevokeToken {
        /// Its name.
        name: AccessName,
    },
    /// Sets how much an identity may have. Nothing ends because of it.
    SetQuota {
        /// Whom; `None`: every identity, where its own quota says nothing.
        identity: Option<Identity>,
        /// All that is said; an empty one: nothing.
        quota: Quota,
    },
}

impl RuleChange {
    /// The version of commands that first knew all that it says.
    pub(crate) fn version(&self) -> u16 {
        match self {
            Self::SetRole { rights, .. } => {
                rights.iter().map(|right| right.verb.version()).fold(RULES_SINCE, u16::max)
            }
            _ => RULES_SINCE,
        }
    }
}

/// Why a change of the rules was refused. They are as before.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum RulesError {
    /// No role has that name.
    #[error("there is no role {role}; make it first")]
    UnknownRole {
        /// The name.
        role: AccessName,
    },
    /// An identity has the role.
    #[error("{identity} has the role {role}; take it away first")]
    RoleInUse {
        /// The role.
        role: AccessName,
        /// The first identity that has it.
        identity: Identity,
    },
    /// No token has that name.
    #[error("there is no token {name}")]
    UnknownToken {
        /// The name.
        name: AccessName,
    },
    /// Another token has that name, or that secret.
    #[error("there is another token {name}; revoke it first, or choose another name")]
    TokenTaken {
        /// The name of the one that is there.
        name: AccessName,
    },
    /// A right for names, of a verb that has none.
    #[error("{verb} is about no names: it takes no prefix")]
    NoNames {
        /// The verb.
        verb: Verb,
    },
    /// The caller could not change the rules any more, nor take this back.
    #[error(
        "after this, {caller} could not change the rules any more; give it a role with `rules` first, \
         or let a configured administrator do it"
    )]
    LocksOut {
        /// The caller.
        caller: Identity,
    },
    /// More than allowed.
    #[error("there may be {max} {what} at most")]
    TooMany {
        /// What there would be too many of.
        what: String,
        /// How many there may be.
        max: u64,
    },
    /// A quota of no connection: nobody could take it back over one.
    #[error("a quota of 0 connections keeps out whoever could change it; take roles away instead")]
    NoConnection,
}

impl Rules {
    pub(super) fn is_within_bounds(&self) -> bool {
        self.check_bounds().is_ok()
    }

    fn check_bounds(&self) -> Result<(), RulesError> {
        let rights = self.roles.values().map(|rights| rights.len() as u64).sum::<u64>();
        for (what, count, max) in [
            ("roles", self.roles.len() as u64, ROLES_MAX),
            ("rights of all roles together", rights, RIGHTS_MAX),
            ("identities", self.identities.len() as u64, IDENTITIES_MAX),
            ("tokens", self.tokens.len() as u64, TOKENS_MAX),
            ("identities with a quota of their own", self.quotas.len() as u64, QUOTAS_MAX),
        ] {
            if count > max {
                return Err(RulesError::TooMany { what: what.to_owned(), max });
            }
        }
        Ok(())
    }

    /// The rules after a change by `caller`.
    fn changed(&self, caller: &Caller, change: &RuleChange) -> Result<Self, RulesError> {
        let mut rules = self.clone();
        rules.carry_out(change)?;
        rules.check_bounds()?;
        rules.leaves_the_way_back(caller)?;
        Ok(rules)
    }

    fn leaves_the_way_back(&self, caller: &Caller) -> Result<(), RulesError> {
        let can_change = self.allows(caller, Verb::Rules, []);
        can_change.map_err(|_| RulesError::LocksOut { caller: caller.identity.clone() })
    }

    fn carry_out(&mut self, change: &RuleChange) -> Result<(), RulesError> {
        match change {
            RuleChange::Turn { on } => self.on = *on,
            RuleChange::SetRole { role, rights } => {
                let odd = rights.iter().find(|right| !right.fits());
                if let Some(Right { verb, .. }) = odd {
                    return Err(RulesError::NoNames { verb: *verb });
                }
                self.roles.insert(role.clone(), rights.clone());
            }
            RuleChange::RemoveRole { role } => {
                let mut owners = self.identities.iter();
                if let Some((identity, _)) = owners.find(|(_, roles)| roles.contains(role)) {
                    let (role, identity) = (role.clone(), identity.clone());
                    return Err(RulesError::RoleInUse { role, identity });
                }
                self.roles.remove(role);
            }
            RuleChange::SetRoles { identity, roles } => self.give(identity, roles)?,
            RuleChange::CreateToken { name, token, roles } => self.create(name, token, roles)?,
            RuleChange::RevokeToken { name } => {
                self.take_all(&Identity::of_token(name));
            }
            RuleChange::SetQuota { quota: Quota { connections: Some(0), .. }, .. } => {
                return Err(RulesError::NoConnection);
            }
            RuleChange::SetQuota { identity: None, quota } => self.quota_of_all = *quota,
            RuleChange::SetQuota { identity: Some(identity), quota } => {
                if *quota == Quota::default() {
                    self.quotas.remove(identity);
                } else {
                    self.quotas.insert(identity.clone(), *quota);
                }
            }
        }
        Ok(())
    }

    /// Takes everything from an identity: its roles, and its token if it is one of that kind.
    fn take_all(&mut self, identity: &Identity) {
        self.identities.remove(identity);
        if let Some(token) = identity.token().and_then(|name| self.tokens.remove(&name)) {
            self.owners.remove(&token.hash);
        }
    }

    fn give(
        &mut self,
        identity: &Identity,
        roles: &BTreeSet<AccessName>,
    ) -> Result<(), RulesError> {
        if let Some(role) = roles.iter().find(|role| !self.roles.contains_key(*role)) {
            return Err(RulesError::UnknownRole { role: role.clone() });
        }
        if roles.len() as u64 > ROLES_OF_ONE_MAX {
            let what = "roles of one identity".to_owned();
            return Err(RulesError::TooMany { what, max: ROLES_OF_ONE_MAX });
        }
        if let Some(name) = identity.token().filter(|name| !self.tokens.contains_key(name)) {
            return Err(RulesError::UnknownToken { name });
        }
        if roles.is_empty() {
            self.identities.remove(identity);
        } else {
            self.identities.insert(identity.clone(), roles.clone());
        }
        Ok(())
    }

    fn create(
        &mut self,
        name: &AccessName,
        token: &Token,
        roles: &BTreeSet<AccessName>,
    ) -> Result<(), RulesError> {
        let clash = |name: &AccessName| RulesError::TokenTaken { name: name.clone() };
        match (self.tokens.get(name), self.owners.get(&token.hash)) {
            // A copy: its owner's roles may have changed since.
            (Some(there), _) if there == token => return Ok(()),
            (Some(_), _) => return Err(clash(name)),
            (None, Some(other)) => return Err(clash(other)),
            (None, None) => {}
        }
        self.tokens.insert(name.clone(), token.clone());
        self.owners.insert(token.hash, name.clone());
        self.give(&Identity::of_token(name), roles)
    }
}

impl Right {
    /// Whether its verb can have its prefix.
    fn fits(&self) -> bool {
        self.verb.has_names() || self.prefix.as_str().is_empty()
    }
}

impl LockTable {
    /// Changes the rules.
    ///
    /// # Errors
    ///
    /// [`Rejection::Rules`]: the state is unchanged.
    pub(crate) fn change_rules(
        &mut self,
        caller: &Caller,
        change: &RuleChange,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let changed = self.rules.changed(caller, change).map_err(Rejection::Rules)?;
        self.put_rules(changed, events);
        Ok(Answer::RulesChanged)
    }

    fn put_rules(&mut self, changed: Rules, events: &mut Vec<Event>) {
        if *self.rules != changed {
            self.rules = Arc::new(changed);
            events.push(Event::RulesChanged);
        }
    }

    /// Takes everything from an identity.
    ///
    /// # Errors
    ///
    /// [`RulesError::LocksOut`] if the caller can change the rules, and could not any more; the state
    /// is unchanged.
    pub(crate) fn take_rights(
        &mut self,
        caller: &Caller,
        identity: &Identity,
        events: &mut Vec<Event>,
    ) -> Result<(), Rejection> {
        let mut changed = (*self.rules).clone();
        changed.take_all(identity);
        if self.rules.leaves_the_way_back(caller).is_ok() {
            changed.leaves_the_way_back(caller).map_err(Rejection::Rules)?;
        }
        self.put_rules(changed, events);
        Ok(())
    }
}
