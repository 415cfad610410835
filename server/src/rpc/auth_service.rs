//! `holdfast.v1.AuthService`: who may do what, for operators.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{
    AccessName, Answer, Caller, Command, Deed, FencingToken, Grant, Identity, Label, LockName,
    LogIndex, NamePrefix, Right, RuleChange, Rules, SessionId, Token, Verb,
};
use holdfast_proto::v1;
use holdfast_proto::v1::auth_service_server::AuthService;
use holdfast_proto::v1::change_rules_request::Change;
use tonic::{Request, Response, Status};

use super::access::{By, Door, TOKEN_BYTES, hash_of, token_text, unusable};
use super::acts::Act;
use super::{quotas, status};
use crate::consensus::{Committed, propose_when_known};
use crate::error::ProposeError;
use crate::lengths::millis;
use crate::session::error::CallError;
use crate::session::outside::Ending;
use crate::session::{Hub, refusals};

/// The service.
#[derive(Debug)]
pub(super) struct AuthApi {
    hub: Arc<Hub>,
    door: Door,
    members_without_tls: bool,
}

impl AuthApi {
    pub(super) fn new(hub: Arc<Hub>, door: Door, members_without_tls: bool) -> Self {
        Self { hub, door, members_without_tls }
    }

    /// Only a leader with a quorum answers questions about rules.
    async fn lead(&self) -> Result<(), Status> {
        let confirmed = self.hub.consensus().confirm().await;
        confirmed.map(drop).map_err(|error| status::of_propose_error(&error))
    }

    fn read<T>(&self, look: impl Fn(&Rules) -> T) -> Result<T, Status> {
        let mut seen = None;
        self.hub.consensus().read(&mut |table, _| seen = Some(look(table.rules())));
        seen.ok_or_else(|| Status::internal("the table was not read"))
    }

    /// The caller of an administrative act, with every right that `rights` names. It is asked here, before
    /// anything is logged, and again where the act is proposed and applied.
    async fn admit<T>(&self, request: &Request<T>, rights: &[Verb]) -> Result<By, Status> {
        let by = self.door.by(request).await?;
        self.lead().await?;
        for verb in rights {
            self.door.allow(&by.caller, *verb)?;
        }
        Ok(by)
    }

    /// Each change of the rules is logged with its caller; it holds no secret.
    async fn change(&self, by: By, change: RuleChange) -> Result<(), Status> {
        let (caller, deed) = (by.caller.clone(), Deed::Rule { change });
        let act = Act::asked(by, &deed);
        let command = Command::By { caller, deed };
        let consensus = &**self.hub.consensus();
        let committed = propose_when_known(consensus, self.hub.runtime(), command).await;
        act.end(changed(committed))
    }

    /// Whether an identity may be cut off. The core keeps only the caller from losing its own way back, so
    /// a caller without the verb `rules` could take the last one (DESIGN §14). Two such calls at one time
    /// may pass both: the administrators of the settings are the way back then.
    ///
    /// # Errors
    ///
    /// `FAILED_PRECONDITION`, with the reason.
    fn may_be_cut_off(&self, identity: &Identity) -> Result<(), Status> {
        let admins = self.door.admins();
        if admins.contains(identity) {
            return Err(status::of_refusal(&admin_stays(identity)));
        }
        let now_ms = self.hub.runtime().clock.wall_ms();
        if admins.is_empty() && self.read(|rules| is_last(rules, identity, now_ms))? {
            return Err(status::of_refusal(&last_one_stays(identity)));
        }
        Ok(())
    }
}

fn changed(committed: Result<Committed, ProposeError>) -> Result<(Option<LogIndex>, ()), Status> {
    let committed = committed.map_err(|error| status::of_propose_error(&error))?;
    match committed.outcome {
        Ok(Answer::RulesChanged) => Ok((Some(committed.index), ())),
        Ok(_) => Err(status::of_refusal(&refusals::odd_answer())),
        Err(rejection) => Err(status::of_refusal(&refusals::of_rejection(&rejection))),
    }
}

/// What came of an ending, as [`Act::end`] takes it.
fn ended<T>(result: Result<(LogIndex, T), CallError>) -> Result<(Option<LogIndex>, T), Status> {
    let (index, done) = result.map_err(|error| status::of_call_error(&error))?;
    Ok((Some(index), done))
}

/// The rights that an ending needs beside `verb`, which is its own.
fn with_haste(verb: Verb, now: bool) -> Vec<Verb> {
    if now { vec![verb, Verb::Now] } else { vec![verb] }
}

#[tonic::async_trait]
impl AuthService for AuthApi {
    async fn auth_status(
        &self,
        request: Request<v1::AuthStatusRequest>,
    ) -> Result<Response<v1::AuthStatusResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        self.lead().await?;
        self.door.allow_any(&caller)?;
        let sees_all = self.door.allow(&caller, Verb::Rules).is_ok();
        let admins = self.door.admins().iter().filter(|_| sees_all);
        Ok(Response::new(v1::AuthStatusResponse {
            on: self.read(Rules::are_on)?,
            identity: caller.identity.to_string(),
            is_admin: caller.is_admin,
            admins: admins.map(ToString::to_string).collect(),
            members_without_tls: sees_all && self.members_without_tls,
        }))
    }

    async fn list_rules(
        &self,
        request: Request<v1::ListRulesRequest>,
    ) -> Result<Response<v1::ListRulesResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        self.lead().await?;
        self.door.allow(&caller, Verb::Rules)?;
        self.read(listed).map(Response::new)
    }

    async fn list_quotas(
        &self,
        request: Request<v1::ListQuotasRequest>,
    ) -> Result<Response<v1::ListQuotasResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        self.lead().await?;
        self.door.allow(&caller, Verb::Rules)?;
        let mut listed = None;
        let connections = self.hub.connections();
        self.hub
            .consensus()
            .read(&mut |table, _| listed = Some(quotas::listed(table, connections)));
        let listed = listed.ok_or_else(|| Status::internal("the table was not read"))?;
        Ok(Response::new(listed))
    }

    async fn change_rules(
        &self,
        request: Request<v1::ChangeRulesRequest>,
    ) -> Result<Response<v1::ChangeRulesResponse>, Status> {
        let by = self.admit(&request, &[Verb::Rules]).await?;
        let change = read_change(request.into_inner())?;
        self.change(by, change).await?;
        Ok(Response::new(v1::ChangeRulesResponse {}))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let by = self.admit(&request, &[Verb::Rules]).await?;
        let v1::CreateTokenRequest { name, roles, lasts_ms } = request.into_inner();
        let (name, roles) = (read_name("name", &name)?, read_roles(&roles)?);
        let mut secret = [0; TOKEN_BYTES];
        self.hub.runtime().rng.fill(&mut secret);
        let text = token_text(&secret);
        let hash = hash_of(&text).ok_or_else(|| Status::internal("a token has no hash"))?;
        let now_ms = self.hub.runtime().clock.wall_ms();
        let ends_ms = lasts_ms.map(|lasts_ms| now_ms.saturating_add(lasts_ms));
        let token = Token { hash, ends_ms };
        self.change(by, RuleChange::CreateToken { name, token, roles: roles.collect() }).await?;
        Ok(Response::new(v1::CreateTokenResponse { token: text }))
    }

    async fn test_right(
        &self,
        request: Request<v1::TestRightRequest>,
    ) -> Result<Response<v1::TestRightResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        self.lead().await?;
        self.door.allow(&caller, Verb::Rules)?;
        let v1::TestRightRequest { identity, verb, name } = request.into_inner();
        let verb = read_verb(&verb)?;
        let identity = Identity::parse(&identity).map_err(|error| unusable("identity", &error))?;
        let is_admin = self.door.admins().contains(&identity);
        let tested = Caller { identity, is_admin };
        let tested = self.read(|rules| rules.allows(&tested, verb, name.as_deref()))?;
        Ok(Response::new(match tested {
            Ok(()) => v1::TestRightResponse { allowed: true, missing: String::new() },
            Err(missing) => v1::TestRightResponse { allowed: false, missing: missing.to_string() },
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        let rights = with_haste(Verb::Revoke, request.get_ref().now);
        let by = self.admit(&request, &rights).await?;
        let v1::RevokeRequest { identity, reason, now } = request.into_inner();
        let identity = Identity::parse(&identity).map_err(|error| unusable("identity", &error))?;
        self.may_be_cut_off(&identity)?;
        let ending = read_ending(&reason, now)?;
        let (caller, reason) = (by.caller.clone(), ending.reason.clone());
        let act = Act::asked(by, &Deed::CutOff { identity: identity.clone(), reason, now });
        let sessions = self.hub.cut_off(&caller, identity, ending).await;
        let sessions = act.end(ended(sessions))?;
        Ok(Response::new(v1::RevokeResponse { sessions }))
    }

    async fn end_session(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> Result<Response<v1::EndSessionResponse>, Status> {
        let rights = with_haste(Verb::Revoke, request.get_ref().now);
        let by = self.admit(&request, &rights).await?;
        let v1::EndSessionRequest { session_id, reason, now } = request.into_inner();
        let ending = read_ending(&reason, now)?;
        let (caller, reason) = (by.caller.clone(), ending.reason.clone());
        let session = SessionId::new(session_id);
        let act = Act::asked(by, &Deed::EndSession { session, reason, now });
        let within = self.hub.end_session(&caller, session, ending).await;
        let within = act.end(ended(within))?;
        Ok(Response::new(v1::EndSessionResponse { within_ms: millis(within) }))
    }

    async fn close_holds(
        &self,
        request: Request<v1::CloseHoldsRequest>,
    ) -> Result<Response<v1::CloseHoldsResponse>, Status> {
        let by = self.admit(&request, &[]).await?;
        let v1::CloseHoldsRequest { name, token, reason, now } = request.into_inner();
        // Before the rights are asked: what is refused is logged with its name.
        let lock = LockName::parse(&name);
        let lock = lock.map_err(|error| status::of_text_error("lock name", &error))?;
        // The hold may have other names, which the right has to cover too: that is decided with the act.
        self.door.allow_on(&by.caller, Verb::Force, lock.as_str())?;
        if now {
            self.door.allow(&by.caller, Verb::Now)?;
        }
        let ending = read_ending(&reason, now)?;
        let (caller, reason) = (by.caller.clone(), ending.reason.clone());
        let token = token.map(FencingToken::from_raw);
        let act = Act::asked(by, &Deed::CloseHolds { lock: lock.clone(), token, reason, now });
        let holds = self.hub.close_holds(&caller, (lock, token), ending).await;
        let holds = act.end(ended(holds))?;
        let hold = |(grant, within): (Grant, Duration)| v1::ClosingHold {
            session_id: grant.session.get(),
            token: grant.token.get(),
            within_ms: millis(within),
        };
        Ok(Response::new(v1::CloseHoldsResponse { holds: holds.into_iter().map(hold).collect() }))
    }
}

/// A configured administrator gets in again with every restart of a node, so it cannot be cut off.
fn admin_stays(identity: &Identity) -> v1::Refusal {
    let message = format!(
        "{identity} is an administrator in the settings of this node (`admins`); take it out there, \
         and start the nodes again"
    );
    refusals::refusal(v1::RefusalReason::Rules, message)
}

/// Whether the rules are on, and nobody else could change them any more. An identity whose token has ended
/// cannot.
fn is_last(rules: &Rules, identity: &Identity, now_ms: u64) -> bool {
    let grants = |rights: &BTreeSet<Right>| rights.iter().any(|right| right.verb == Verb::Rules);
    let changing: BTreeSet<&AccessName> =
        rules.roles().filter(|(_, rights)| grants(rights)).map(|(role, _)| role).collect();
    let has_ended = |token: &Token| token.ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms);
    let ended: BTreeSet<Identity> = rules
        .tokens()
        .filter(|(_, token)| has_ended(token))
        .map(|(name, _)| Identity::of_token(name))
        .collect();
    let mut can_change = rules
        .identities()
        .filter(|(owner, has)| {
            has.iter().any(|role| changing.contains(role)) && !ended.contains(*owner)
        })
        .map(|(owner, _)| owner)
        .peekable();
    rules.are_on() && can_change.peek().is_some() && can_change.all(|owner| owner == identity)
}

fn last_one_stays(identity: &Identity) -> v1::Refusal {
    let message = format!(
        "after this nobody could change the rules any more: {identity} is the last with the verb `rules`, and the \
         settings name no `admins`; give the verb to somebody else first"
    );
    refusals::refusal(v1::RefusalReason::Rules, message)
}

fn read_ending(reason: &str, now: bool) -> Result<Ending, Status> {
    if reason.is_empty() {
        return Err(status::invalid(
            "say for what reason: the clients are told, and it is logged".to_owned(),
        ));
    }
    let reason = Label::parse(reason).map_err(|error| unusable("reason", &error))?;
    Ok(Ending { reason, now })
}

fn listed(rules: &Rules) -> v1::ListRulesResponse {
    let right = |right: &Right| v1::Right {
        verb: right.verb.name().to_owned(),
        prefix: right.prefix.to_string(),
    };
    let all_roles = rules.roles().map(|(name, rights)| v1::Role {
        name: name.to_string(),
        rights: rights.iter().map(right).collect(),
    });
    let identities = rules.identities().map(|(identity, roles)| v1::IdentityRoles {
        identity: identity.to_string(),
        roles: roles.iter().map(ToString::to_string).collect(),
    });
    let tokens = rules
        .tokens()
        .map(|(name, token)| v1::TokenInfo { name: name.to_string(), ends_ms: token.ends_ms });
    v1::ListRulesResponse {
        roles: all_roles.collect(),
        identities: identities.collect(),
        tokens: tokens.collect(),
    }
}

fn read_change(request: v1::ChangeRulesRequest) -> Result<RuleChange, Status> {
    Ok(match request.change {
        Some(Change::On(on)) => RuleChange::Turn { on },
        Some(Change::SetRole(v1::Role { name, rights })) => {
            let rights = rights.iter().map(read_right);
            RuleChange::SetRole {
                role: read_name("role", &name)?,
                rights: rights.collect::<Result<_, _>>()?,
            }
        }
        Some(Change::RemoveRole(role)) => {
            RuleChange::RemoveRole { role: read_name("role", &role)? }
        }
        Some(Change::SetRoles(v1::IdentityRoles { identity, roles })) => {
            let identity =
                Identity::parse(&identity).map_err(|error| unusable("identity", &error))?;
            RuleChange::SetRoles { identity, roles: read_roles(&roles)?.collect() }
        }
        Some(Change::RevokeToken(name)) => {
            RuleChange::RevokeToken { name: read_name("name", &name)? }
        }
        Some(Change::SetQuota(v1::IdentityQuota { identity, quota })) => {
            let identity = identity.map(|identity| {
                Identity::parse(&identity).map_err(|error| unusable("identity", &error))
            });
            let quota = quotas::read(quota.unwrap_or_default());
            RuleChange::SetQuota { identity: identity.transpose()?, quota }
        }
        None => {
            return Err(status::invalid(
                "the change says nothing that this server knows".to_owned(),
            ));
        }
    })
}

fn read_right(right: &v1::Right) -> Result<Right, Status> {
    let prefix = NamePrefix::parse(&right.prefix);
    let prefix = prefix.map_err(|error| status::of_text_error("prefix", &error))?;
    Ok(Right { verb: read_verb(&right.verb)?, prefix })
}

fn read_verb(text: &str) -> Result<Verb, Status> {
    Verb::parse(text).ok_or_else(|| {
        let known: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
        status::invalid(format!("{text:?} is no verb; they are {}", known.join(", ")))
    })
}

fn read_name(field: &str, text: &str) -> Result<AccessName, Status> {
    AccessName::parse(text).map_err(|error| unusable(field, &error))
}

fn read_roles(roles: &[String]) -> Result<impl Iterator<Item = AccessName>, Status> {
    let roles = roles.iter().map(|role| read_name("role", role));
    Ok(roles.collect::<Result<Vec<_>, _>>()?.into_iter())
}
