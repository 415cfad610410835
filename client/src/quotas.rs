//! How much an identity may have, for operators.

use holdfast_proto::v1;
use holdfast_proto::v1::change_rules_request::Change;

use crate::transport::operator::Services;
use crate::{Admin, Result};

/// How much an identity may have; `None`: no more is said about it.
///
/// What would be more is refused with [`RefusalReason::Limit`](crate::RefusalReason::Limit), and the name of the
/// quota as the limit: `quota_sessions` and so on. Nothing that is there ends because of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Open sessions.
    pub sessions: Option<u64>,
    /// Locks that it holds or waits for, each once for each request.
    pub holds: Option<u64>,
    /// Requests that wait.
    pub waits: Option<u64>,
    /// Bytes of the values that it has set, each with its lock's name and 256 bytes more.
    pub value_bytes: Option<u64>,
    /// Connections to one node.
    pub connections: Option<u64>,
}

impl Quota {
    /// What it says, and what `below` says where it is silent.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            sessions: self.sessions.or(below.sessions),
            holds: self.holds.or(below.holds),
            waits: self.waits.or(below.waits),
            value_bytes: self.value_bytes.or(below.value_bytes),
            connections: self.connections.or(below.connections),
        }
    }
}

/// What an identity may have, and has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentityUsage {
    /// The identity.
    pub identity: String,
    /// Its own quota, as it was set.
    pub quota: Option<Quota>,
    /// What it has of each; connections to the node that answered.
    pub has: Quota,
}

/// The quotas of a cluster, and what identities have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quotas {
    /// What counts for every identity, where its own quota says nothing.
    pub of_all: Quota,
    /// The identities with a quota of their own, or with anything that quotas limit, by name.
    pub identities: Vec<IdentityUsage>,
    /// How many identities the server left out of its answer.
    pub left_out: u64,
}

impl Admin {
    /// Every quota, and what each identity has.
    ///
    /// # Errors
    ///
    /// As of [`Admin`].
    pub async fn quotas(&self) -> Result<Quotas> {
        let ask =
            |mut at: Services| async move { at.auth.list_quotas(v1::ListQuotasRequest {}).await };
        let listed = self.ask("the quotas", false, ask).await?;
        let identity = |one: v1::IdentityUsage| IdentityUsage {
            identity: one.identity,
            quota: one.quota.map(read),
            has: read(one.has.unwrap_or_default()),
        };
        Ok(Quotas {
            of_all: read(listed.of_all.unwrap_or_default()),
            identities: listed.identities.into_iter().map(identity).collect(),
            left_out: listed.left_out,
        })
    }

    /// Sets how much an identity may have; `None`: every identity, where its own quota says nothing. `quota` is
    /// all that is said; an empty one says nothing any more.
    ///
    /// # Errors
    ///
    /// As of [`Admin::turn_rules`].
    pub async fn set_quota(&self, identity: Option<&str>, quota: Quota) -> Result<()> {
        let Quota { sessions, holds, waits, value_bytes, connections } = quota;
        let quota = v1::Quota { sessions, holds, waits, value_bytes, connections };
        let identity = identity.map(str::to_owned);
        let set = v1::IdentityQuota { identity, quota: Some(quota) };
        self.change_rules(Change::SetQuota(set)).await
    }
}

fn read(quota: v1::Quota) -> Quota {
    let v1::Quota { sessions, holds, waits, value_bytes, connections } = quota;
    Quota { sessions, holds, waits, value_bytes, connections }
}
