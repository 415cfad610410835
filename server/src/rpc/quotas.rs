//! Quotas in their form on the wire.

use std::collections::BTreeMap;

use holdfast_core::{Identity, LockTable, Quota, Usage};
use holdfast_proto::v1;

use crate::incoming::ConnectionCounts;

/// Most identities in one answer.
const LISTED_MAX: usize = 10_000;

/// Every quota, and what each identity has.
pub(super) fn listed(table: &LockTable, connections: &ConnectionCounts) -> v1::ListQuotasResponse {
    let rules = table.rules();
    let mut all: BTreeMap<&Identity, (Option<Quota>, Usage)> = BTreeMap::new();
    for (identity, quota) in rules.quotas() {
        all.entry(identity).or_default().0 = Some(quota);
    }
    for (identity, usage) in table.usages() {
        all.entry(identity).or_default().1 = usage;
    }
    let left_out = all.len().saturating_sub(LISTED_MAX) as u64;
    let identities = all.into_iter().take(LISTED_MAX).map(|(identity, (quota, usage))| {
        let Usage { sessions, holds, waits, value_bytes } = usage;
        v1::IdentityUsage {
            identity: identity.to_string(),
            quota: quota.map(told),
            has: Some(v1::Quota {
                sessions: Some(sessions),
                holds: Some(holds),
                waits: Some(waits),
                value_bytes: Some(value_bytes),
                connections: Some(connections.of(identity)),
            }),
        }
    });
    v1::ListQuotasResponse {
        of_all: Some(told(rules.quota_of_all())),
        identities: identities.collect(),
        left_out,
    }
}

fn told(quota: Quota) -> v1::Quota {
    let Quota { sessions, holds, waits, value_bytes, connections } = quota;
    v1::Quota { sessions, holds, waits, value_bytes, connections }
}

pub(super) fn read(quota: v1::Quota) -> Quota {
    let v1::Quota { sessions, holds, waits, value_bytes, connections } = quota;
    Quota { sessions, holds, waits, value_bytes, connections }
}
