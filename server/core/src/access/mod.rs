//! Who may do what (DESIGN §14): identities, roles and tokens as replicated state, and one decision.
//!
//! # Invariants
//!
//! - [`Rules::allows`] is the only decision, and [`LockTable::allows`] asks it for a command. The
//!   leader asks before it proposes; the table asks again when it applies, so a right is what the
//!   rules say at the command's own place in the log (I34).
//! - Nothing is allowed but by a grant, once the rules are on. Off, everything is.
//! - A change of the rules never takes from its own caller the right to change them.
//! - Each role of an identity is there, and so is the token of each identity of that kind.

mod change;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_mutants::mutant;

pub use change::{
    IDENTITIES_MAX, QUOTAS_MAX, RIGHTS_MAX, ROLES_MAX, ROLES_OF_ONE_MAX, RuleChange, RulesError,
    TOKENS_MAX,
};
pub use names::{
    ACCESS_NAME_BYTES_MAX, AccessName, AccessNameError, IDENTITY_BYTES_MAX, Identity, NamePrefix,
};

use crate::LockTable;
use crate::check::Violation;
use crate::command::{
    Ask, Command, Deed, PERMITS_SINCE, RESTORES_SINCE, RULES_SINCE, SEQUENCES_SINCE, TERMS_SINCE,
};
use crate::ids::{FencingToken, LockName, RequestId, SessionId};
use crate::quota::Quota;

/// What a right allows. The order of the variants is part of the stored encoding: new ones go to the
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum Verb {
    /// Requesting locks, claiming imports, changing values.
    Acquire,
    /// Inspecting, listing, watching, checking tokens.
    Read,
    /// Importing from another store.
    Import,
    /// Setting and removing scopes.
    Scope,
    /// The state of nodes and cluster.
    Status,
    /// The metrics.
    Metrics,
    /// The descriptors of the protocol.
    Reflect,
    /// Adding, promoting and removing members, and moving the leadership.
    Members,
    /// Roles, identities and tokens, and whether they count.
    Rules,
    /// Ending sessions of others, and cutting identities off.
    Revoke,
    /// Closing holds of others.
    Force,
    /// Doing either without the wait after which no client relies on a hold (I6).
    Now,
    /// Taking a backup: every value, and the hash of every token.
    Backup,
    /// Setting the limits of permits.
    Limit,
    /// Freezing and thawing names.
    Freeze,
    /// Taking the next numbers of a sequence, and having it begin at one.
    Sequence,
    /// Reading what a node remembers of locks: who held them, and why that ended.
    History,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Acquire,
        Self::Read,
        Self::Import,
        Self::Scope,
        Self::Status,
        Self::Metrics,
        Self::Reflect,
        Self::Members,
        Self::Rules,
        Self::Revoke,
        Self::Force,
        Self::Now,
        Self::Backup,
        Self::Limit,
        Self::Freeze,
        Self::Sequence,
        Self::History,
    ];

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Import => "import",
            Self::Scope => "scope",
            Self::Status => "status",
            Self::Metrics => "metrics",
            Self::Reflect => "reflect",
            Self::Members => "members",
            Self::Rules => "rules",
            Self::Revoke => "revoke",
            Self::Force => "force",
            Self::Now => "now",
            Self::Backup => "backup",
            Self::Limit => "limit",
            Self::Freeze => "freeze",
            Self::Sequence => "sequence",
            Self::History => "history",
        }
    }

    /// The verb of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == text)
    }

    /// The version of commands that first knew it.
    pub(crate) const fn version(self) -> u16 {
        match self {
            Self::Backup => RESTORES_SINCE,
            Self::Limit => PERMITS_SINCE,
            Self::Freeze => TERMS_SINCE,
            Self::Sequence | Self::History => SEQUENCES_SINCE,
            _ => RULES_SINCE,
        }
    }

    /// Whether it is about names of locks, or prefixes of them.
    pub const fn has_names(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::Read
                | Self::Import
                | Self::Scope
                | Self::Force
                | Self::Limit
                | Self::Freeze
                | Self::Sequence
                | Self::History
        )
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A verb, for the names that begin with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub struct Right {
    /// What.
    pub verb: Verb,
    /// To which names. Empty for a verb that has none.
    pub prefix: NamePrefix,
}

/// Who sent a command.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize,
)]
pub struct Caller {
    /// Who they have proved to be.
    pub identity: Identity,
    /// The leader's settings name it among the administrators, who have every right. No table can know
    /// that.
    pub is_admin: bool,
}

/// A right that is missing.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum Missing {
    /// For one name.
    #[error("{verb} on {name}")]
    On {
        /// The verb.
        verb: Verb,
        /// The first name, or prefix, that no right covers.
        name: String,
    },
    /// Of a verb without names, or for the empty prefix.
    #[error("{verb}{}", if verb.has_names() { " on all names" } else { "" })]
    Whole {
        /// The verb.
        verb: Verb,
    },
    /// Any right at all.
    #[error("any verb")]
    Any,
}

/// A token as the table keeps it.
#[derive(Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Token {
    /// SHA-256 of the token; the token itself is nowhere.
    pub hash: [u8; 32],
    /// Unix milliseconds from which no node takes it. The table compares it with nothing: no clock is
    /// part of a decision of the log.
    pub ends_ms: Option<u64>,
}

/// Without the hash, which is nobody's to see.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("ends_ms", &self.ends_ms).finish_non_exhaustive()
    }
}

/// Roles, identities and tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Rules {
    on: bool,
    roles: BTreeMap<AccessName, BTreeSet<Right>>,
    identities: BTreeMap<Identity, BTreeSet<AccessName>>,
    tokens: BTreeMap<AccessName, Token>,
    quotas: BTreeMap<Identity, Quota>,
    /// Of every identity, where its own says nothing.
    quota_of_all: Quota,
    /// Follows from the tokens; not stored.
    #[borsh(skip)]
    owners: BTreeMap<[u8; 32], AccessName>,
}

impl Rules {
    /// Whether they count.
    pub fn are_on(&self) -> bool {
        self.on
    }

    /// Each role with its rights.
    pub fn roles(&self) -> impl Iterator<Item = (&AccessName, &BTreeSet<Right>)> {
        self.roles.iter()
    }

    /// Each identity that has roles, with their names.
    pub fn identities(&self) -> impl Iterator<Item = (&Identity, &BTreeSet<AccessName>)> {
        self.identities.iter()
    }

    /// Each token by its name.
    pub fn tokens(&self) -> impl Iterator<Item = (&AccessName, &Token)> {
        self.tokens.iter()
    }

    /// The token with that SHA-256, and its name.
    pub fn token_of(&self, hash: &[u8; 32]) -> Option<(&AccessName, &Token)> {
        self.tokens.get_key_value(self.owners.get(hash)?)
    }

    /// Each identity that has a quota of its own, and that quota as it was set.
    pub fn quotas(&self) -> impl Iterator<Item = (&Identity, Quota)> {
        self.quotas.iter().map(|(identity, quota)| (identity, *quota))
    }

    /// What counts for every identity, where its own quota says nothing.
    pub fn quota_of_all(&self) -> Quota {
        self.quota_of_all
    }

    /// What counts for an identity. Quotas count with the rules on and off.
    pub fn quota_of(&self, identity: &Identity) -> Quota {
        self.quotas.get(identity).copied().unwrap_or_default().over(self.quota_of_all)
    }

    /// Whether `caller` may do `verb` to all of `names`, each the name of a lock, or a prefix that
    /// stands for all names that begin with it. A verb without names is asked with none.
    ///
    /// This is the one decision (I36). It looks at the rules alone.
    ///
    /// # Errors
    ///
    /// [`Missing`] tells the first right that is missing; nothing else, least of all whether such a
    /// lock exists.
    pub fn allows<'a>(
        &self,
        caller: &Caller,
        verb: Verb,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Missing> {
        if self.asks_nothing_of(caller) {
            return Ok(());
        }
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            let any = self.rights_of(caller).any(|right| right.verb == verb);
            let missing = Missing::Whole { verb };
            return if any && !verb.has_names() { Ok(()) } else { Err(missing) };
        }
        let covered = |name: &&str| {
            self.rights_of(caller).any(|right| right.verb == verb && right.prefix.covers(name))
        };
        match names.find(|name| !covered(name)) {
            None => Ok(()),
            Some("") => Err(Missing::Whole { verb }),
            Some(name) => Err(Missing::On { verb, name: name.to_owned() }),
        }
    }

    /// Whether `caller` may do anything at all, as the owner of a session has to.
    ///
    /// # Errors
    ///
    /// [`Missing::Any`].
    pub fn allows_any(&self, caller: &Caller) -> Result<(), Missing> {
        let allowed = self.asks_nothing_of(caller) || self.rights_of(caller).next().is_some();
        if allowed { Ok(()) } else { Err(Missing::Any) }
    }

    /// Whether a caller needs no right for anything.
    fn asks_nothing_of(&self, caller: &Caller) -> bool {
        !self.on || caller.is_admin || mutant!(RulesAllowAll)
    }

    fn rights_of(&self, caller: &Caller) -> impl Iterator<Item = &Right> {
        let roles = self.identities.get(&caller.identity).into_iter().flatten();
        let roles = roles.filter(|_| !mutant!(RulesAllowNothing));
        roles.filter_map(|role| self.roles.get(role)).flatten()
    }

    /// Fills what is not stored.
    ///
    /// # Errors
    ///
    /// [`Violation`]: no table wrote them.
    pub(crate) fn restore(&mut self) -> Result<(), Violation> {
        let hashes = self.tokens.iter().map(|(name, token)| (token.hash, name.clone()));
        self.owners = hashes.collect();
        self.check()
    }

    /// The invariants above, and the bounds of [`RuleChange`].
    pub(crate) fn check(&self) -> Result<(), Violation> {
        let ensure = |holds: bool, what: &str| {
            let violation = || Violation { invariant: "rules", what: what.to_owned() };
            if holds { Ok(()) } else { Err(violation()) }
        };
        let roles = self.identities.values().flatten();
        ensure(
            roles.into_iter().all(|role| self.roles.contains_key(role)),
            "an identity has a role that is not there",
        )?;
        let owners = self.identities.keys().filter(|identity| identity.token().is_some());
        ensure(
            owners
                .into_iter()
                .all(|owner| owner.token().is_some_and(|token| self.tokens.contains_key(&token))),
            "an identity has a token that is not there",
        )?;
        ensure(
            self.owners.len() == self.tokens.len()
                && self.owners.iter().all(|(hash, name)| {
                    self.tokens.get(name).is_some_and(|token| token.hash == *hash)
                }),
            "the index of tokens is not that of the tokens",
        )?;
        ensure(
            self.identities
                .values()
                .all(|roles| !roles.is_empty() && roles.len() as u64 <= ROLES_OF_ONE_MAX),
            "an identity has no role, or too many",
        )?;
        ensure(
            self.quotas.values().all(|quota| *quota != Quota::default()),
            "a quota says nothing",
        )?;
        ensure(self.is_within_bounds(), "there are more than allowed")
    }
}

impl LockTable {
    /// Whether the rules let a command through. What the leader does itself asks for no right, nor
    /// does what gains nothing: an end, and a copy of a request that the table knows, which is
    /// answered from its record (DESIGN §14).
    ///
    /// A leader asks before it proposes (I26), the table before it applies (I34). O(log n), and one
    /// look at each right of the caller.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the first right that is missing.
    pub fn allows(&self, command: &Command) -> Result<(), Missing> {
        if !self.rules.on {
            return Ok(());
        }
        let nobody = &Caller::default();
        match command {
            Command::Acquire { session, request, items, .. }
            | Command::AcquireOn(Ask { session, request, items, .. }) => {
                let names = items.iter().map(|item| item.lock.as_str());
                self.allows_request(*session, *request, names)
            }
            Command::SetValue { session, request, lock, .. }
            | Command::Claim { session, request, lock, .. } => {
                self.allows_request(*session, *request, [lock.as_str()])
            }
            Command::OpenSession { .. } => self.rules.allows_any(nobody),
            Command::Import { rows, .. } => {
                let names = rows.iter().map(|row| row.lock.as_str());
                self.rules.allows(nobody, Verb::Import, names)
            }
            Command::SetScope { scope } | Command::RemoveScope { scope } => {
                self.rules.allows(nobody, Verb::Scope, [scope.as_str()])
            }
            Command::By { caller, deed } => self.allows_deed(caller, deed),
            Command::CloseSession { .. }
            | Command::Cancel { .. }
            | Command::Release { .. }
            | Command::ReleaseLost { .. }
            | Command::Configure { .. }
            | Command::LimitTable { .. }
            | Command::LimitWork { .. }
            | Command::CarryOn
            | Command::GrantAgain
            | Command::BeginTokens { .. }
            | Command::ExpireSession { .. }
            | Command::EndClosed { .. }
            | Command::EndLongHold { .. }
            | Command::OpenLock { .. }
            | Command::StopWaiting { .. }
            | Command::Suspend { .. }
            | Command::Resume { .. }
            | Command::RaiseEpoch { .. } => Ok(()),
        }
    }

    fn allows_deed(&self, caller: &Caller, deed: &Deed) -> Result<(), Missing> {
        match deed {
            Deed::OpenSession { .. } => self.rules.allows_any(caller),
            Deed::Import { rows, .. } => {
                let names = rows.iter().map(|row| row.lock.as_str());
                self.rules.allows(caller, Verb::Import, names)
            }
            Deed::LengthenImports { locks, .. } => {
                self.rules.allows(caller, Verb::Import, locks.iter().map(LockName::as_str))
            }
            Deed::SetScope { scope } | Deed::RemoveScope { scope } => {
                self.rules.allows(caller, Verb::Scope, [scope.as_str()])
            }
            Deed::Rule { .. } => self.rules.allows(caller, Verb::Rules, []),
            Deed::EndSession { now, .. } | Deed::CutOff { now, .. } => {
                self.rules.allows(caller, Verb::Revoke, [])?;
                self.allows_haste(caller, *now)
            }
            Deed::CloseHolds { lock, token, now, .. } => {
                self.rules.allows(caller, Verb::Force, [lock.as_str()])?;
                self.allows_closing(caller, lock, *token)?;
                self.allows_haste(caller, *now)
            }
            Deed::SetLimit { lock, .. } => self.rules.allows(caller, Verb::Limit, [lock.as_str()]),
            Deed::Advance { sequence, .. } | Deed::BeginSequence { sequence, .. } => {
                self.rules.allows(caller, Verb::Sequence, [sequence.as_str()])
            }
            Deed::Freeze { prefix, .. } | Deed::Thaw { prefix } => {
                self.rules.allows(caller, Verb::Freeze, [prefix.as_str()])
            }
            Deed::OwnSession { .. } => Ok(()),
        }
    }

    fn allows_haste(&self, caller: &Caller, now: bool) -> Result<(), Missing> {
        if now { self.rules.allows(caller, Verb::Now, []) } else { Ok(()) }
    }

    /// A hold ends with all locks of its grant, so the right has to cover them all. A name that it does
    /// not cover is not told: the caller may not know who holds it.
    fn allows_closing(
        &self,
        caller: &Caller,
        lock: &LockName,
        token: Option<FencingToken>,
    ) -> Result<(), Missing> {
        if token.is_none() && self.are_too_many_to_close(lock).is_some() {
            // The command is refused for that, whoever asks.
            return Ok(());
        }
        for (_, lock_set, part) in self.holds_of(lock, token) {
            let names = lock_set.iter_part(part).map(|(name, _)| name.as_str());
            let all = self.rules.allows(caller, Verb::Force, names);
            all.map_err(|_| Missing::Whole { verb: Verb::Force })?;
        }
        Ok(())
    }

    /// Of a session that is not open it says nothing: the command is refused for that.
    fn allows_request<'a>(
        &self,
        session: SessionId,
        request: RequestId,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Missing> {
        match self.sessions.get(&session) {
            Some(found) if !found.records.contains_key(&request) => {
                self.rules.allows(&found.caller, Verb::Acquire, names)
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
