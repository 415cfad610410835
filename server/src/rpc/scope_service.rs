//! `holdfast.v1.ScopeService`: scopes with fallback, for operators.

use std::sync::Arc;

use holdfast_core::{Answer, Deed, LogIndex, ScopePrefix, ScopeState, Verb};
use holdfast_proto::v1;
use holdfast_proto::v1::RefusalReason;
use holdfast_proto::v1::scope_service_server::ScopeService;
use tonic::{Request, Response, Status};

use super::access::{By, Door};
use super::acts::Act;
use super::status;
use crate::authority::{AuthorityStatus, NotRetired, ScopeAuthorities};
use crate::consensus::{Committed, propose_until_finished};
use crate::error::ProposeError;
use crate::lengths::millis;
use crate::session::{Hub, refusals};

/// The service.
#[derive(Debug)]
pub(super) struct ScopeApi {
    hub: Arc<Hub>,
    door: Door,
}

impl ScopeApi {
    pub(super) fn new(hub: Arc<Hub>, door: Door) -> Self {
        Self { hub, door }
    }

    /// Only a leader with a quorum answers questions about scopes.
    async fn lead(&self) -> Result<(), Status> {
        let confirmed = self.hub.consensus().confirm().await;
        confirmed.map(drop).map_err(|error| status::of_propose_error(&error))
    }

    /// The authorities of the scopes, if this node has settings for fallback.
    fn authorities(&self) -> Result<&ScopeAuthorities, Status> {
        let authorities = self.hub.authorities().filter(|authorities| authorities.has_fallback());
        authorities.ok_or_else(|| refused(&NotRetired::NoFallback))
    }

    /// Each change is logged with its caller, and with what came of it.
    async fn change(&self, by: By, deed: Deed) -> Result<Option<ScopeState>, Status> {
        let caller = by.caller.clone();
        let act = Act::asked(by, &deed);
        let command = deed.by(&caller);
        let consensus = &**self.hub.consensus();
        let committed = propose_until_finished(consensus, self.hub.runtime(), command).await;
        act.end(changed(committed))
    }

    fn scopes(&self) -> Vec<v1::ScopeInfo> {
        let mut scopes = Vec::new();
        self.hub.consensus().read(&mut |table, _| {
            scopes = table.scopes().map(|view| (view.scope.clone(), view.state)).collect();
        });
        let authorities = self.hub.authorities();
        let status =
            |scope: &ScopePrefix| authorities.and_then(|authorities| authorities.status(scope));
        scopes.iter().map(|(scope, state)| info(scope, *state, status(scope))).collect()
    }
}

#[tonic::async_trait]
impl ScopeService for ScopeApi {
    async fn set_scope(
        &self,
        request: Request<v1::SetScopeRequest>,
    ) -> Result<Response<v1::SetScopeResponse>, Status> {
        let by = self.door.by(&request).await?;
        let scope = prefix(&request.get_ref().scope)?;
        self.lead().await?;
        self.door.allow_on(&by.caller, Verb::Scope, scope.as_str())?;
        self.authorities()?;
        let now = self.change(by, Deed::SetScope { scope }).await?;
        let epoch = now.map_or(0, |now| now.epoch).into();
        Ok(Response::new(v1::SetScopeResponse { epoch }))
    }

    /// Retires the row before it removes the scope: a removed scope has no authority, and a client that
    /// took it over would hold beside the clients that hold here.
    async fn remove_scope(
        &self,
        request: Request<v1::RemoveScopeRequest>,
    ) -> Result<Response<v1::RemoveScopeResponse>, Status> {
        let by = self.door.by(&request).await?;
        let scope = prefix(&request.get_ref().scope)?;
        self.lead().await?;
        // Before the row is retired, which no command does.
        self.door.allow_on(&by.caller, Verb::Scope, scope.as_str())?;
        let mut known = false;
        self.hub.consensus().read(&mut |table, _| known = table.scope(&scope).is_some());
        if known {
            let retired = self.authorities()?.retire(&scope).await;
            retired.map_err(|error| refused(&error))?;
            self.change(by, Deed::RemoveScope { scope }).await?;
        }
        Ok(Response::new(v1::RemoveScopeResponse {}))
    }

    async fn list_scopes(
        &self,
        request: Request<v1::ListScopesRequest>,
    ) -> Result<Response<v1::ListScopesResponse>, Status> {
        let caller = self.door.caller(&request).await?;
        self.lead().await?;
        self.door.allow(&caller, Verb::Status)?;
        let has_fallback = self.hub.authorities().is_some_and(ScopeAuthorities::has_fallback);
        Ok(Response::new(v1::ListScopesResponse { scopes: self.scopes(), has_fallback }))
    }
}

/// The state of the scope after its change, as [`Act::end`] takes it.
fn changed(
    committed: Result<Committed, ProposeError>,
) -> Result<(Option<LogIndex>, Option<ScopeState>), Status> {
    let committed = committed.map_err(|error| status::of_propose_error(&error))?;
    match committed.outcome {
        Ok(Answer::Scope { now }) => Ok((Some(committed.index), now)),
        Ok(_) => Err(status::of_refusal(&refusals::odd_answer())),
        Err(rejection) => Err(status::of_refusal(&refusals::of_rejection(&rejection))),
    }
}

fn prefix(text: &str) -> Result<ScopePrefix, Status> {
    ScopePrefix::parse(text).map_err(|error| status::of_text_error("prefix", &error))
}

fn refused(why: &NotRetired) -> Status {
    status::of_refusal(&refusals::refusal(RefusalReason::Scope, why.to_string()))
}

fn info(scope: &ScopePrefix, state: ScopeState, status: Option<AuthorityStatus>) -> v1::ScopeInfo {
    let told = v1::ScopeInfo {
        scope: scope.as_str().to_owned(),
        epoch: state.epoch.into(),
        suspended: state.suspended,
        ..v1::ScopeInfo::default()
    };
    let Some(status) = status else { return told };
    v1::ScopeInfo {
        row: status.row.map(|row| v1::AuthorityRow {
            mode: row.mode.to_string(),
            epoch: row.epoch.into(),
            take_over_ms: millis(row.durations.take_over_wait()),
            hold_ms: millis(row.durations.v()),
        }),
        authority_ms: status.authority.map(millis),
        beat_age_ms: status.beat_age.map(millis),
        switches: status.switches,
        refused_switches: status.refused_switches,
        trouble: status.trouble.unwrap_or_default().to_owned(),
        ..told
    }
}
