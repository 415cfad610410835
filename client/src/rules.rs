//! Who may do what: roles, identities and tokens, for operators.

use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::change_rules_request::Change;

use crate::transport::operator::Services;
use crate::{Admin, Result};

/// A right: a verb, for the names that begin with a prefix.
///
/// The verbs are `acquire`, `read`, `import`, `scope` and `force`, and without a prefix `status`, `metrics`,
/// `reflect`, `members`, `rules`, `revoke` and `now`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// What is allowed.
    pub verb: String,
    /// To which names; empty: to all.
    pub prefix: String,
}

/// A role, with all that it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Role {
    /// Its name.
    pub name: String,
    /// Its rights.
    pub rights: Vec<Right>,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenInfo {
    /// Its name; its owner is the identity `token:NAME`.
    pub name: String,
    /// Unix milliseconds from which it is not taken; `None`: it has no end.
    pub ends_ms: Option<u64>,
}

/// The rules of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Every role, by its name.
    pub roles: Vec<Role>,
    /// Every identity that has roles, with their names.
    pub identities: Vec<(String, Vec<String>)>,
    /// Every token.
    pub tokens: Vec<TokenInfo>,
}

/// Who asks, and whether rules count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuthStatus {
    /// Whether the rules are on. Off, everybody who can connect may do everything.
    pub on: bool,
    /// The identity that the servers know this caller by.
    pub identity: String,
    /// The leader's settings name the caller among the administrators.
    pub is_admin: bool,
    /// All of them, for a caller with the verb `rules`.
    pub admins: Vec<String>,
    /// The leader's port for members takes connections without TLS: whoever reaches it acts past all rules.
    /// For a caller with the verb `rules`; any other, and a server of an older release, says false.
    pub members_without_tls: bool,
}

impl Admin {
    /// Whether the rules are on, and who this caller is.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn auth_status(&self) -> Result<AuthStatus> {
        let ask =
            |mut at: Services| async move { at.auth.auth_status(v1::AuthStatusRequest {}).await };
        let v1::AuthStatusResponse { on, identity, is_admin, admins, members_without_tls } =
            self.ask("the state of the rules", false, ask).await?;
        Ok(AuthStatus { on, identity, is_admin, admins, members_without_tls })
    }

    /// All roles, identities and tokens; never a token itself.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn rules(&self) -> Result<Rules> {
        let ask =
            |mut at: Services| async move { at.auth.list_rules(v1::ListRulesRequest {}).await };
        let listed = self.ask("the rules", false, ask).await?;
        let right = |right: v1::Right| Right { verb: right.verb, prefix: right.prefix };
        let role = |role: v1::Role| Role {
            name: role.name,
            rights: role.rights.into_iter().map(right).collect(),
        };
        let identity = |one: v1::IdentityRoles| (one.identity, one.roles);
        let token = |token: v1::TokenInfo| TokenInfo { name: token.name, ends_ms: token.ends_ms };
        Ok(Rules {
            roles: listed.roles.into_iter().map(role).collect(),
            identities: listed.identities.into_iter().map(identity).collect(),
            tokens: listed.tokens.into_iter().map(token).collect(),
        })
    }

    /// Turns the rules on or off. Off, everybody who can connect may do everything.
    ///
    /// # Errors
    ///
    /// As of [`Admin`]; refused if this caller could not change the rules after that.
    pub async fn turn_rules(&self, on: bool) -> Result<()> {
        self.change_rules(Change::On(on)).await
    }

    /// Makes a role, or gives one other rights; `rights` are all that it allows.
    ///
    /// # Errors
    ///
    /// As of [`Admin::turn_rules`].
    pub async fn set_role(&self, role: &str, rights: &[Right]) -> Result<()> {
        let right =
            |right: &Right| v1::Right { verb: right.verb.clone(), prefix: right.prefix.clone() };
        let rights = rights.iter().map(right).collect();
        self.change_rules(Change::SetRole(v1::Role { name: role.to_owned(), rights })).await
    }

    /// Removes a role that no identity has.
    ///
    /// # Errors
    ///
    /// As of [`Admin::turn_rules`].
    pub async fn remove_role(&self, role: &str) -> Result<()> {
        self.change_rules(Change::RemoveRole(role.to_owned())).await
    }

    /// Gives an identity these roles and no others; none: it has no right any more. What it holds or waits
    /// for stays.
    ///
    /// # Errors
    ///
    /// As of [`Admin::turn_rules`].
    pub async fn set_roles(&self, identity: &str, roles: &[String]) -> Result<()> {
        let (identity, roles) = (identity.to_owned(), roles.to_vec());
        self.change_rules(Change::SetRoles(v1::IdentityRoles { identity, roles })).await
    }

    /// Makes a token whose owner has these roles, and returns it, this once: the servers keep its hash only.
    /// Its end goes by the servers' clocks.
    ///
    /// # Errors
    ///
    /// As of [`Admin::turn_rules`]. A name that is taken is refused; also after an answer that was lost, of
    /// a token that nobody has: [`Admin::revoke_token`] makes room.
    pub async fn create_token(
        &self,
        name: &str,
        roles: &[String],
        lasts: Option<Duration>,
    ) -> Result<String> {
        let lasts_ms = lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
        let request =
            v1::CreateTokenRequest { name: name.to_owned(), roles: roles.to_vec(), lasts_ms };
        let create = |mut at: Services| {
            let request = request.clone();
            async move { at.auth.create_token(request).await }
        };
        Ok(self.ask("making a token", true, create).await?.token)
    }

    /// Removes a token and the roles of its owner. Requests with it are refused from then on, and streams
    /// that showed it end. Its sessions live as long as their leases: [`Admin::revoke`] ends them too.
    ///
    /// # Errors
    ///
    /// As of [`Admin::turn_rules`].
    pub async fn revoke_token(&self, name: &str) -> Result<()> {
        self.change_rules(Change::RevokeToken(name.to_owned())).await
    }

    /// Which right an identity lacks for `verb` on a name or prefix; `None`: it may.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn test_right(
        &self,
        identity: &str,
        verb: &str,
        name: Option<&str>,
    ) -> Result<Option<String>> {
        let request = v1::TestRightRequest {
            identity: identity.to_owned(),
            verb: verb.to_owned(),
            name: name.map(str::to_owned),
        };
        let test = |mut at: Services| {
            let request = request.clone();
            async move { at.auth.test_right(request).await }
        };
        let tested = self.ask("a right", false, test).await?;
        Ok((!tested.allowed).then_some(tested.missing))
    }

    pub(crate) async fn change_rules(&self, change: Change) -> Result<()> {
        let request = v1::ChangeRulesRequest { change: Some(change) };
        let change = |mut at: Services| {
            let request = request.clone();
            async move { at.auth.change_rules(request).await }
        };
        self.ask("a change of the rules", true, change).await.map(drop)
    }
}
