//! The first page: how the cluster is, and which locks matter.

use askama::Template;
use axum::http::StatusCode;
use holdfast_proto::v1;

use super::locks::{FreezeRow, LockRow, freeze_row, lock_row};
use super::{Main, Order, Problem, encoded};
use crate::calls::Client;
use crate::words::{count, length, rate};

/// Rows of the busiest locks.
const BUSIEST: u32 = 50;

/// The state of a cluster, on one line and member by member.
#[derive(Template)]
#[template(path = "now.html")]
struct NowPage {
    health: Health,
    totals: Vec<Total>,
    orders: Vec<OrderTab>,
    order: &'static str,
    prefix: String,
    is_whole: bool,
    locks: Vec<LockRow>,
    has_rates: bool,
    freezes: Vec<FreezeRow>,
}

struct Health {
    /// `good`, `caution` or `wrong`.
    tone: &'static str,
    said: String,
    members: Vec<MemberRow>,
}

struct MemberRow {
    id: u64,
    address: String,
    tone: &'static str,
    said: String,
}

struct Total {
    name: &'static str,
    number: String,
}

struct OrderTab {
    name: &'static str,
    href: String,
    is_here: bool,
}

pub(super) async fn page(client: &Client, order: Order, prefix: &str) -> Result<Main, Problem> {
    let (order_key, request) = (
        order,
        v1::BusiestRequest {
            prefix: prefix.to_owned(),
            order: order.on_the_wire().into(),
            limit: BUSIEST,
        },
    );
    let health = health(client).await;
    let found = client.busiest(request).await?;
    // Whoever may see these locks may not see all freezes.
    let freezes = client.list_freezes(v1::ListFreezesRequest {}).await.ok();
    let most = found.locks.iter().filter_map(|busy| busy.lock.as_ref());
    let most = most.map(|lock| lock.waiting).max().unwrap_or(0);
    let tabs = Order::ALL.into_iter().map(|(order, key, name)| OrderTab {
        name,
        href: format!("/?order={key}&prefix={}", encoded(prefix)),
        is_here: order == order_key,
    });
    let page = NowPage {
        health,
        totals: totals(found.totals.as_ref()),
        orders: tabs.collect(),
        order: Order::ALL.into_iter().find(|(it, ..)| *it == order).map_or("", |(_, key, _)| key),
        prefix: prefix.to_owned(),
        is_whole: found.complete,
        locks: found.locks.iter().filter_map(|busy| busy_row(busy, most)).collect(),
        has_rates: true,
        freezes: freezes.iter().flat_map(|found| &found.freezes).map(freeze_row).collect(),
    };
    Ok(Main::of("Now", &page))
}

fn totals(totals: Option<&v1::Totals>) -> Vec<Total> {
    let Some(totals) = totals else { return Vec::new() };
    let a_second = |number: f64| match rate(number) {
        nothing if nothing.is_empty() => "0".to_owned(),
        number => number,
    };
    let total = |name, number| Total { name, number };
    vec![
        total("held", count(totals.locks_held)),
        total("waiting", count(totals.waiters)),
        total("sessions", count(totals.sessions)),
        total("grants/s", a_second(totals.grants_per_second)),
        total("waits/s", a_second(totals.waits_per_second)),
    ]
}

async fn health(client: &Client) -> Health {
    match client.cluster_status(v1::ClusterStatusRequest {}).await {
        Ok(cluster) => cluster_health(&cluster),
        Err(problem) if problem.status() == StatusCode::FORBIDDEN => Health {
            tone: "good",
            said: "members are not shown to you".into(),
            members: Vec::new(),
        },
        Err(problem) => Health { tone: "wrong", said: problem.why, members: Vec::new() },
    }
}

/// A leader that a quorum answered within this time serves.
const QUORUM_WITHIN_MS: u64 = 1_000;

fn cluster_health(cluster: &v1::ClusterStatusResponse) -> Health {
    let silent = cluster.members.iter().filter(|member| !member.answers).count();
    let serves = cluster.quorum_ms.is_some_and(|ago| ago < QUORUM_WITHIN_MS);
    let (leader, term, all) = (cluster.leader_id, cluster.term, cluster.members.len());
    let members = if all == 1 { "one member".to_owned() } else { format!("{all} members") };
    let serving = format!("Node {leader} leads, term {term}, {members}");
    let (tone, said) = match (serves, cluster.grants_in_ms, silent) {
        (false, ..) => {
            ("wrong", format!("Not serving: node {leader} leads, but no quorum answers it"))
        }
        (true, Some(ms), _) => {
            ("wrong", format!("Restored from a backup: nothing is granted for {} more", length(ms)))
        }
        (true, None, 0) => ("good", format!("Serving. {serving}")),
        (true, None, 1) => ("caution", format!("Serving. {serving}, one of them silent")),
        (true, None, silent) => ("caution", format!("Serving. {serving}, {silent} of them silent")),
    };
    Health { tone, said, members: cluster.members.iter().map(member_row).collect() }
}

fn member_row(member: &v1::ClusterMember) -> MemberRow {
    let (tone, said) = match member {
        member if member.leads => ("good", "leads".to_owned()),
        member if !member.answers => {
            let silent = member.silent_ms.map(length).map(|it| format!("silent for {it}"));
            ("wrong", silent.unwrap_or_else(|| "silent".to_owned()))
        }
        member if !member.votes => ("caution", "learns".to_owned()),
        member if member.lag > 1_000 => {
            ("caution", format!("follows, {} entries behind", count(member.lag)))
        }
        _ => ("good", "follows".to_owned()),
    };
    MemberRow { id: member.node_id, address: member.advertise.clone(), tone, said }
}

fn busy_row(busy: &v1::BusyLock, most: u64) -> Option<LockRow> {
    let lock = busy.lock.as_ref()?;
    Some(LockRow {
        grants_rate: rate(busy.grants_per_second),
        waits_rate: rate(busy.waits_per_second),
        ..lock_row(lock, most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_called_by_its_name() {
        let member = |node_id, answers| v1::ClusterMember {
            node_id,
            answers,
            votes: true,
            leads: node_id == 1,
            ..v1::ClusterMember::default()
        };
        let mut cluster = v1::ClusterStatusResponse {
            leader_id: 1,
            term: 4,
            quorum_ms: Some(20),
            members: vec![member(1, true), member(2, true), member(3, true)],
            ..v1::ClusterStatusResponse::default()
        };
        assert_eq!(cluster_health(&cluster).said, "Serving. Node 1 leads, term 4, 3 members");
        cluster.members[2].answers = false;
        assert_eq!(cluster_health(&cluster).tone, "caution");
        cluster.quorum_ms = Some(9_000);
        assert_eq!(cluster_health(&cluster).tone, "wrong");
    }
}
