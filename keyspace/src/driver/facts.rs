//! What a cluster says of itself, as far as it matters to locks.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_runtime::{Clock, Runtime};
use scylla::client::session::Session;
use scylla::cluster::metadata::Strategy;
use scylla::value::{CqlValue, Row};

use super::SerialScope;
use super::asked::{Asked, text};
use super::connect::check_keyspace;
use crate::statement::Ident;

/// The settings that are asked for.
const SETTINGS: [&str; 8] = [
    "paxos_variant",
    "commitlog_sync",
    "commitlog_sync_period",
    "commitlog_sync_period_in_ms",
    "tombstone_failure_threshold",
    "authenticator",
    "authorizer",
    "partitioner",
];
/// How often a node is asked for its time; the quickest answer tells it most exactly.
const CLOCK_READINGS: usize = 5;
/// How long a node may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Why something is not known.
pub type NotTold = String;

/// What a cluster says of itself.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its nodes, up or down.
    pub nodes: Vec<NodeFacts>,
    /// The keyspace; `None` if it is not there.
    pub keyspace: Option<KeyspaceFacts>,
    /// Why the keyspace cannot keep locks that are decided in the scope; `None` if it can.
    pub unfit: Option<String>,
    /// What the role may do in the keyspace; `None` if no role was named.
    pub role: Option<RoleFacts>,
}

/// A keyspace.
#[derive(Clone, Debug)]
pub struct KeyspaceFacts {
    /// Where its replicas are.
    pub replicas: Replicas,
    /// Whether an acknowledged write is in the commit log.
    pub durable_writes: Result<bool, NotTold>,
    /// Whether `ScyllaDB` keeps its tables as tablets; `None` on Cassandra.
    pub tablets: Option<bool>,
    /// The columns of its tables.
    pub tables: BTreeMap<String, Vec<String>>,
}

/// Where the replicas of a keyspace are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// So many on any nodes.
    Anywhere(usize),
    /// So many in each of these datacenters.
    In(BTreeMap<String, usize>),
    /// In a way that is not known here.
    Other(String),
}

/// A node.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Its address and port.
    pub name: String,
    /// Its datacenter.
    pub datacenter: Option<String>,
    /// What it says; `None` if there is no connection to it.
    pub says: Option<NodeSays>,
}

/// What a node says of itself.
#[derive(Clone, Debug)]
pub struct NodeSays {
    /// Its version, as `5.0.9`.
    pub release: Result<String, NotTold>,
    /// Whether it is `ScyllaDB`.
    pub is_scylla: bool,
    /// The settings that it told, by name.
    pub settings: Result<BTreeMap<String, String>, NotTold>,
    /// How far its clock is ahead of this machine's.
    pub clock: Result<ClockAhead, NotTold>,
    /// The table of the keyspace of which a read walked most tombstones lately, and how many.
    pub most_tombstones: Result<Option<(String, i64)>, NotTold>,
    /// The drivers of its clients with their versions, and how many connections of each.
    pub drivers: Result<BTreeMap<String, usize>, NotTold>,
}

/// How far a node's clock is ahead of this machine's: at least and at most. Milliseconds; behind is below zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockAhead {
    /// At least.
    pub least_ms: i64,
    /// At most.
    pub most_ms: i64,
}

impl ClockAhead {
    /// By one answer: the node read its clock between sending and receiving. All three are cut to whole milliseconds.
    fn of(sent_ms: i64, node_ms: i64, received_ms: i64) -> Self {
        Self {
            least_ms: node_ms.saturating_sub(received_ms).saturating_sub(1),
            most_ms: node_ms.saturating_sub(sent_ms).saturating_add(1),
        }
    }

    /// What both say; the exacter one if they contradict each other, because a clock was set in between.
    fn and(self, other: Self) -> Self {
        let both = Self {
            least_ms: self.least_ms.max(other.least_ms),
            most_ms: self.most_ms.min(other.most_ms),
        };
        let width = |of: &Self| of.most_ms.saturating_sub(of.least_ms);
        if both.least_ms <= both.most_ms {
            both
        } else if width(&self) <= width(&other) {
            self
        } else {
            other
        }
    }
}

/// What a role may do.
#[derive(Clone, Debug)]
pub struct RoleFacts {
    /// Its name.
    pub name: String,
    /// What it was granted.
    pub may: Result<Granted, NotTold>,
}

/// The permissions of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// It, or a role that it was granted, is a superuser.
    All,
    /// Of each resource (`table ks.t`, `keyspace ks`, `all keyspaces`) the permissions.
    Only(BTreeMap<String, Vec<String>>),
}

impl Granted {
    /// Whether it may do this with a table: by the table, its keyspace, or all of them.
    pub fn has(&self, permission: &str, keyspace: &str, table: &str) -> bool {
        let Self::Only(granted) = self else { return true };
        let on = [
            format!("table {keyspace}.{table}"),
            format!("keyspace {keyspace}"),
            "all keyspaces".to_owned(),
        ];
        let has = |of: &Vec<String>| of.iter().any(|one| one == permission);
        on.iter().any(|resource| granted.get(resource).is_some_and(has))
    }
}

/// Asks every node that is up. What a node does not tell, for want of a permission or because its version does not know it, stands in
/// the facts as what it said.
pub async fn facts(
    session: &Session,
    keyspace: &Ident,
    scope: &SerialScope,
    role: Option<&str>,
) -> Facts {
    let state = session.get_cluster_state();
    let nodes = state.get_nodes_info().iter().map(|node| async {
        let asked = Asked { session, node };
        let says = if node.is_connected() { Some(says(asked, keyspace).await) } else { None };
        NodeFacts { name: asked.name(), datacenter: node.datacenter.clone(), says }
    });
    let nodes = join_all(nodes).await;
    let up = state.get_nodes_info().iter().find(|node| node.is_connected());
    let up = up.map(|node| Asked { session, node });
    let there = state.get_keyspace(keyspace.as_str());
    let keyspace_facts = match (there, up) {
        (Some(there), Some(up)) => Some(KeyspaceFacts {
            replicas: replicas(&there.strategy),
            durable_writes: durable_writes(up, keyspace).await,
            tablets: tablets(up, keyspace).await,
            tables: (there.tables.iter())
                .map(|(name, table)| (name.clone(), table.columns.keys().cloned().collect()))
                .collect(),
        }),
        _ => None,
    };
    let role = match (role, up) {
        (Some(role), Some(up)) => {
            Some(RoleFacts { name: role.to_owned(), may: granted(up, role).await })
        }
        _ => None,
    };
    let unfit = check_keyspace(session, keyspace.as_str(), scope).err().map(|why| why.to_string());
    Facts { nodes, keyspace: keyspace_facts, unfit, role }
}

fn replicas(strategy: &Strategy) -> Replicas {
    match strategy {
        Strategy::SimpleStrategy { replication_factor } => Replicas::Anywhere(*replication_factor),
        Strategy::NetworkTopologyStrategy { datacenter_repfactors } => {
            let each = datacenter_repfactors.iter();
            Replicas::In(each.map(|(name, replicas)| (name.clone(), *replicas)).collect())
        }
        Strategy::LocalStrategy => Replicas::Other("LocalStrategy".to_owned()),
        Strategy::Other { name, .. } => Replicas::Other(name.clone()),
        _ => Replicas::Other("an unknown strategy".to_owned()),
    }
}

/// Asks within a limit: a node that hangs is one that does not tell.
async fn within<T>(asked: impl Future<Output = Result<T, NotTold>>) -> Result<T, NotTold> {
    let answer = Runtime::system().timeout(ANSWER_LIMIT, asked).await;
    answer.unwrap_or_else(|_| Err(format!("no answer in {ANSWER_LIMIT:?}")))
}

async fn says(node: Asked<'_>, keyspace: &Ident) -> NodeSays {
    let is_scylla = node.node.sharder().is_some();
    let settings = within(node.settings(&SETTINGS)).await;
    NodeSays {
        release: within(release(node)).await,
        is_scylla,
        settings: settings.map(|settings| settings.into_iter().collect()),
        clock: within(clock(node)).await,
        most_tombstones: within(most_tombstones(node, keyspace)).await,
        drivers: within(drivers(node)).await,
    }
}

async fn release(node: Asked<'_>) -> Result<String, NotTold> {
    let rows = node.rows("SELECT release_version FROM system.local").await?;
    let told = rows.first().and_then(|row| text(row, 0)).map(str::to_owned);
    told.ok_or_else(|| "it has no release_version".to_owned())
}

async fn clock(node: Asked<'_>) -> Result<ClockAhead, NotTold> {
    let clock = Runtime::system().clock;
    let mut ahead: Option<ClockAhead> = None;
    for _ in 0..CLOCK_READINGS {
        let sent_ms = wall_ms(&*clock);
        let rows = node.rows("SELECT toUnixTimestamp(now()) FROM system.local").await?;
        let received_ms = wall_ms(&*clock);
        let node_ms = rows.first().and_then(|row| number(row, 0)).ok_or("it has no time")?;
        let one = ClockAhead::of(sent_ms, node_ms, received_ms);
        ahead = Some(ahead.map_or(one, |before| before.and(one)));
    }
    ahead.ok_or_else(|| "it was not asked".to_owned())
}

fn wall_ms(clock: &dyn Clock) -> i64 {
    i64::try_from(clock.wall_ms()).unwrap_or(i64::MAX)
}

async fn most_tombstones(
    node: Asked<'_>,
    keyspace: &Ident,
) -> Result<Option<(String, i64)>, NotTold> {
    let rows =
        node.rows("SELECT keyspace_name, table_name, max FROM system_views.tombstones_per_read");
    let rows = rows.await?;
    let of_ours = rows.iter().filter(|row| text(row, 0) == Some(keyspace.as_str()));
    let tables = of_ours.filter_map(|row| Some((text(row, 1)?.to_owned(), number(row, 2)?)));
    Ok(tables.max_by_key(|(_, most)| *most).filter(|(_, most)| *most > 0))
}

async fn drivers(node: Asked<'_>) -> Result<BTreeMap<String, usize>, NotTold> {
    let rows = node.rows("SELECT driver_name, driver_version FROM system_views.clients").await?;
    let mut drivers = BTreeMap::new();
    for row in &rows {
        let name = [text(row, 0), text(row, 1)].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let name =
            if name.is_empty() { "a driver that does not say its name".into() } else { name };
        *drivers.entry(name).or_default() += 1;
    }
    Ok(drivers)
}

async fn durable_writes(node: Asked<'_>, keyspace: &Ident) -> Result<bool, NotTold> {
    let name = keyspace.as_str().replace('\'', "''");
    let asked = format!(
        "SELECT durable_writes FROM system_schema.keyspaces WHERE keyspace_name = '{name}'"
    );
    let rows = within(node.rows(asked)).await?;
    match rows.first().and_then(|row| row.columns.first()) {
        Some(Some(CqlValue::Boolean(durable))) => Ok(*durable),
        _ => Err("the keyspace is not listed".to_owned()),
    }
}

/// `ScyllaDB` alone has this table; a keyspace without tablets has no number there.
async fn tablets(node: Asked<'_>, keyspace: &Ident) -> Option<bool> {
    node.node.sharder()?;
    let name = keyspace.as_str().replace('\'', "''");
    let asked = format!(
        "SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = '{name}'"
    );
    let rows = within(node.rows(asked)).await.ok()?;
    Some(rows.first().is_some_and(|row| matches!(row.columns.first(), Some(Some(_)))))
}

async fn granted(node: Asked<'_>, role: &str) -> Result<Granted, NotTold> {
    let role = Ident::new(role);
    let roles = within(node.rows(format!("LIST ROLES OF {role}"))).await?;
    let is_superuser =
        |row: &Row| matches!(row.columns.get(1), Some(Some(CqlValue::Boolean(true))));
    if roles.iter().any(is_superuser) {
        return Ok(Granted::All);
    }
    let mut granted: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // Rows of: role, user name, resource, permission.
    for row in within(node.rows(format!("LIST ALL PERMISSIONS OF {role}"))).await? {
        let (Some(on), Some(permission)) = (text(&row, 2), text(&row, 3)) else { continue };
        let on = on.trim_matches(['<', '>']).to_owned();
        granted.entry(on).or_default().push(permission.to_owned());
    }
    Ok(Granted::Only(granted))
}

fn number(row: &Row, at: usize) -> Option<i64> {
    match row.columns.get(at)?.as_ref()? {
        CqlValue::BigInt(number) => Some(*number),
        CqlValue::Int(number) => Some(i64::from(*number)),
        CqlValue::Timestamp(time) => Some(time.0),
        // As some versions have it in the table of tombstones: a whole number with a fraction of zero.
        CqlValue::Double(number) => format!("{number:.0}").parse().ok(),
        _ => None,
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere(replicas) => write!(f, "{replicas} on any nodes (SimpleStrategy)"),
            Self::In(each) => {
                let each: Vec<String> =
                    each.iter().map(|(name, replicas)| format!("{replicas} in {name}")).collect();
                f.write_str(&each.join(", "))
            }
            Self::Other(strategy) => write!(f, "by {strategy}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_known_as_exactly_as_its_quickest_answer() {
        // Asked at 10.000 s, answered at 10.030 s, with 12.010 s.
        let slow = ClockAhead::of(10_000, 12_010, 10_030);
        assert_eq!(slow, ClockAhead { least_ms: 1_979, most_ms: 2_011 });
        let quick = ClockAhead::of(11_000, 13_001, 11_002);
        assert_eq!(slow.and(quick), ClockAhead { least_ms: 1_998, most_ms: 2_002 });
        let set_since = ClockAhead::of(12_000, 19_000, 12_001);
        assert_eq!(quick.and(set_since), set_since);
        assert_eq!(set_since.and(slow), set_since);
    }

    #[test]
    fn a_permission_counts_on_the_table_its_keyspace_and_all_keyspaces() {
        let only =
            |on: &str| Granted::Only(BTreeMap::from([(on.to_owned(), vec!["SELECT".to_owned()])]));
        for on in ["table locks.leases", "keyspace locks", "all keyspaces"] {
            assert!(only(on).has("SELECT", "locks", "leases"), "{on}");
            assert!(!only(on).has("MODIFY", "locks", "leases"), "{on}");
        }
        assert!(!only("table locks.leases").has("SELECT", "locks", "tokens"));
        assert!(!only("keyspace lock").has("SELECT", "locks", "leases"));
        assert!(Granted::All.has("MODIFY", "locks", "leases"));
    }
}
