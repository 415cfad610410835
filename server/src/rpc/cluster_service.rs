//! `holdfast.v1.ClusterService`: the members of the cluster, for operators.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use holdfast_core::Verb;
use holdfast_proto::v1;
use holdfast_proto::v1::ClusterRefusalReason as Reason;
use holdfast_proto::v1::cluster_service_server::ClusterService;
use tonic::{Request, Response, Status};

use super::access::{By, Door, token_of};
use super::acts::Act;
use super::backup::Backups;
use super::status;
use crate::config::Advertised;
use crate::lengths::millis;
use crate::members::{Change, ClusterStatus, Member, MemberStatus, Members};
use crate::session::Hub;

/// The service.
#[derive(Debug)]
pub(super) struct ClusterApi {
    members: Arc<dyn Members>,
    hub: Arc<Hub>,
    backups: Backups,
    door: Door,
}

impl ClusterApi {
    pub(super) fn new(
        members: Arc<dyn Members>,
        hub: Arc<Hub>,
        door: Door,
        cluster_name: &str,
    ) -> Self {
        let backups = Backups::new(hub.clone(), cluster_name);
        Self { members, hub, backups, door }
    }

    /// Each change is logged with its caller, and with what came of it.
    async fn change(&self, by: By, change: Change) -> Result<(), Status> {
        let act = Act::asked(by, &change);
        let changed = self.members.change(change).await;
        let changed = changed.map_err(|error| status::of_membership_error(&error));
        act.end(changed.map(|()| (None, ())))
    }
}

#[tonic::async_trait]
impl ClusterService for ClusterApi {
    type BackupStream = BoxStream<'static, Result<v1::BackupResponse, Status>>;

    async fn cluster_status(
        &self,
        request: Request<v1::ClusterStatusRequest>,
    ) -> Result<Response<v1::ClusterStatusResponse>, Status> {
        self.door.admit(&request, Verb::Status).await?;
        let status = self.members.members();
        let status = status.map_err(|error| status::of_membership_error(&error))?;
        Ok(Response::new(cluster(&status, self.hub.grants_in())))
    }

    async fn add_learner(
        &self,
        request: Request<v1::AddLearnerRequest>,
    ) -> Result<Response<v1::AddLearnerResponse>, Status> {
        let by = self.door.admit_by(&request, Verb::Members).await?;
        let v1::AddLearnerRequest { node_id, advertise, peer_advertise } = request.into_inner();
        let member = Member {
            node_id: id(node_id)?,
            advertise: address("advertise", &advertise)?,
            peer_advertise: address("peer_advertise", &peer_advertise)?,
        };
        if member.advertise == member.peer_advertise {
            return Err(invalid("clients and members need an address each"));
        }
        self.change(by, Change::AddLearner(member)).await?;
        Ok(Response::new(v1::AddLearnerResponse {}))
    }

    async fn promote(
        &self,
        request: Request<v1::PromoteRequest>,
    ) -> Result<Response<v1::PromoteResponse>, Status> {
        let by = self.door.admit_by(&request, Verb::Members).await?;
        let node_id = id(request.into_inner().node_id)?;
        self.change(by, Change::Promote { node_id }).await?;
        Ok(Response::new(v1::PromoteResponse {}))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveRequest>,
    ) -> Result<Response<v1::RemoveResponse>, Status> {
        let by = self.door.admit_by(&request, Verb::Members).await?;
        let node_id = id(request.into_inner().node_id)?;
        self.change(by, Change::Remove { node_id }).await?;
        Ok(Response::new(v1::RemoveResponse {}))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Result<Response<v1::TransferLeadershipResponse>, Status> {
        let by = self.door.admit_by(&request, Verb::Members).await?;
        let to = request.into_inner().to.map(id).transpose()?;
        self.change(by, Change::TransferLeader { to }).await?;
        Ok(Response::new(v1::TransferLeadershipResponse {}))
    }

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let by = self.door.admit_by(&request, Verb::Backup).await?;
        let act = Act::asked(by, &"Backup");
        match self.backups.begin().await {
            Ok((chunks, sent)) => {
                let counts = self.door.while_it_counts(token_of(&request), chunks);
                Ok(Response::new(self.backups.stream(act, counts, sent)))
            }
            Err(status) => act.end(Err(status)),
        }
    }
}

/// A node id within the bounds of the setting `node_id`.
fn id(node_id: u64) -> Result<u64, Status> {
    if (1..=i64::MAX.unsigned_abs()).contains(&node_id) {
        return Ok(node_id);
    }
    Err(invalid(&format!("{node_id} is no node id; they go from 1 to {}", i64::MAX)))
}

/// An address in the form that the settings accept.
fn address(field: &str, text: &str) -> Result<String, Status> {
    match text.parse::<Advertised>() {
        Ok(address) => Ok(address.to_string()),
        Err(problem) => Err(invalid(&format!("the {field} address is not usable: {problem}"))),
    }
}

fn invalid(message: &str) -> Status {
    status::of_cluster_refusal(Reason::Invalid, message)
}

fn cluster(status: &ClusterStatus, grants_in: Option<Duration>) -> v1::ClusterStatusResponse {
    v1::ClusterStatusResponse {
        cluster_id: status.cluster.map(|id| id.0.to_vec().into()).unwrap_or_default(),
        leader_id: status.leader,
        term: status.term,
        quorum_ms: status.millis_since_quorum,
        changing: status.changing,
        highest_node_id: status.highest_node_id,
        members: status.members.iter().map(|member| of_member(member, status.leader)).collect(),
        grants_in_ms: grants_in.map(millis),
    }
}

fn of_member(status: &MemberStatus, leader: u64) -> v1::ClusterMember {
    let Member { node_id, advertise, peer_advertise } = status.member.clone();
    v1::ClusterMember {
        node_id,
        advertise,
        peer_advertise,
        votes: status.votes,
        leads: node_id == leader,
        last_log_index: status.last_log,
        applied_index: status.applied,
        snapshot_index: status.snapshot,
        lag: status.lag,
        silent_ms: status.silent_ms,
        answers: status.answers,
        version: status.version.clone(),
    }
}
