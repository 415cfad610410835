//! Scopes with fallback: set, remove and list, for operators.

use std::time::Duration;

use holdfast_proto::v1;

use crate::transport::operator::Services;
use crate::{Admin, Result};

/// A scope, as its leader reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeStatus {
    /// The prefix of its names.
    pub prefix: String,
    /// The upper part of its tokens.
    pub epoch: u32,
    /// The scope grants nothing at the moment.
    pub suspended: bool,
    /// The mode and epoch of its row in Cassandra, if the leader knows them.
    pub row: Option<(String, u32)>,
    /// W of that row: how long the row has to stay unchanged before clients take the scope over.
    pub take_over: Option<Duration>,
    /// V of that row: how long a hold in Cassandra lasts after a read of the row, less a tenth.
    pub hold: Option<Duration>,
    /// The rest of the leader's authority over it; `None`: the leader has none.
    pub authority: Option<Duration>,
    /// The time since the leader's last bump of the row in Cassandra.
    pub beat_age: Option<Duration>,
    /// Changes of the mode that this leader has seen.
    pub switches: u64,
    /// Changes that it refused, because the epochs are used up.
    pub refused_switches: u64,
    /// A problem that needs an operator.
    pub trouble: Option<String>,
}

/// Every scope, and whether scopes are possible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scopes {
    /// In the order of their prefixes.
    pub scopes: Vec<ScopeStatus>,
    /// Whether the leader has settings for a fallback.
    pub has_fallback: bool,
}

impl Admin {
    /// Makes the names of a prefix a scope with fallback, which Cassandra serves while no server can
    /// be reached; returns the epoch of its tokens.
    ///
    /// Before a scope is set, every client of its names has to support scopes: a client of an earlier
    /// release goes on to trust its lease alone while other clients hold the lock in Cassandra.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn set_scope(&self, prefix: &str) -> Result<u32> {
        let request = v1::SetScopeRequest { scope: prefix.to_owned() };
        let set = |mut at: Services| {
            let request = request.clone();
            async move { at.scopes.set_scope(request).await }
        };
        Ok(self.ask("setting a scope", true, set).await?.epoch)
    }

    /// Turns the names of a scope back into ordinary names. The store has to serve the scope at
    /// that time.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn remove_scope(&self, prefix: &str) -> Result<()> {
        let request = v1::RemoveScopeRequest { scope: prefix.to_owned() };
        let remove = |mut at: Services| {
            let request = request.clone();
            async move { at.scopes.remove_scope(request).await }
        };
        self.ask("removing a scope", true, remove).await.map(drop)
    }

    /// Every scope and its state.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn scopes(&self) -> Result<Scopes> {
        let request = v1::ListScopesRequest {};
        let list = |mut at: Services| async move { at.scopes.list_scopes(request).await };
        let listed = self.ask("the scopes", false, list).await?;
        let scopes = listed.scopes.into_iter().map(ScopeStatus::from_wire).collect();
        Ok(Scopes { scopes, has_fallback: listed.has_fallback })
    }
}

impl ScopeStatus {
    pub(crate) fn from_wire(scope: v1::ScopeInfo) -> Self {
        let length = |of: fn(&v1::AuthorityRow) -> u64| {
            scope.row.as_ref().map(|row| Duration::from_millis(of(row)))
        };
        Self {
            take_over: length(|row| row.take_over_ms),
            hold: length(|row| row.hold_ms),
            prefix: scope.scope,
            epoch: scope.epoch,
            suspended: scope.suspended,
            row: scope.row.map(|row| (row.mode, row.epoch)),
            authority: scope.authority_ms.map(Duration::from_millis),
            beat_age: scope.beat_age_ms.map(Duration::from_millis),
            switches: scope.switches,
            refused_switches: scope.refused_switches,
            trouble: Some(scope.trouble).filter(|trouble| !trouble.is_empty()),
        }
    }
}
