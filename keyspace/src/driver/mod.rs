//! The driver behind the recipes: the one place that names `scylla`.
//!
//! It prepares statements once and executes them once: no retries, no speculative execution (a
//! repeated LWT that was applied the first time would report that it was not). It commits
//! everything at QUORUM and decides at SERIAL, or both within one datacenter, through its nodes alone.

mod asked;
mod connect;
mod facts;
mod fault;
mod ring;
mod roles;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::cluster::metadata::{ColumnType, NativeType};
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlTimestamp, CqlValue, Row as DriverRow};

use crate::database::{Answer, Cell, Database, Fault, Row};
use crate::statement::{Action, Bind, Ident, NODE_TIME, Statement, Value};
use connect::check_keyspace;
pub use connect::{Contact, Credentials, NotOpen, open};
pub use facts::{
    ClockAhead, Facts, Granted, KeyspaceFacts, NodeFacts, NodeSays, NotTold, Replicas, RoleFacts,
    facts,
};
pub use ring::Partitioner;
pub use roles::{NotRevoked, revoked};

/// How long one statement may take. Longer than a coordinator tries (its time-out for writes and
/// that for contention are 2 s each by default), so that no coordinator still works on a statement
/// that was given up.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Where a lock is exclusive, and which nodes are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SerialScope {
    /// All datacenters: SERIAL and QUORUM, through any node.
    #[default]
    Cluster,
    /// The same, through nodes of this datacenter as long as one of them is up.
    Near(String),
    /// This datacenter alone: `LOCAL_SERIAL` and `LOCAL_QUORUM`, through no node of another one. Clients of another datacenter are
    /// not excluded.
    Datacenter(String),
}

impl SerialScope {
    /// The datacenter whose nodes are asked; `None`: those of any.
    pub fn datacenter(&self) -> Option<&str> {
        match self {
            Self::Cluster => None,
            Self::Near(name) | Self::Datacenter(name) => Some(name),
        }
    }

    /// The level at which everything that was decided there is read.
    pub fn quorum(&self) -> Consistency {
        match self {
            Self::Cluster | Self::Near(_) => Consistency::Quorum,
            Self::Datacenter(_) => Consistency::LocalQuorum,
        }
    }

    /// Which nodes are asked. `LOCAL_QUORUM` counts the replicas in the datacenter of the node that is asked: to ask one of another datacenter is to
    /// decide elsewhere, so nothing is sent when no node of this one is up.
    pub fn load_balancing(&self) -> Arc<dyn LoadBalancingPolicy> {
        let policy = DefaultPolicy::builder();
        match self {
            Self::Cluster => policy.build(),
            Self::Near(name) => {
                policy.prefer_datacenter(name.clone()).permit_dc_failover(true).build()
            }
            Self::Datacenter(name) => {
                policy.prefer_datacenter(name.clone()).permit_dc_failover(false).build()
            }
        }
    }

    /// For statements that all datacenters decide on.
    fn everywhere(&self) -> Self {
        self.datacenter().map_or(Self::Cluster, |name| Self::Near(name.to_owned()))
    }
}

/// Uses the keyspace `keyspace`, by its exact name, over the caller's own session, for example the one it uses for its
/// data. This neither uses nor changes the session's execution profile. It sends nothing: it checks what the session
/// knows of the cluster.
///
/// # Errors
///
/// [`NotOpen::Refused`] if there is no such keyspace, if the keyspace has fewer nodes, up or down, than replicas (the
/// nodes present would decide an LWT, and nodes that join later would not know it), if no node is in the datacenter of
/// `scope`, if a lock is to be decided in a datacenter of which the keyspace does not say how many replicas it has, or if the session
/// does not fetch its schema and so cannot tell.
pub fn keyspace(
    session: Arc<Session>,
    keyspace: &str,
    scope: &SerialScope,
) -> Result<Arc<dyn Database>, NotOpen> {
    check_keyspace(&session, keyspace, scope)?;
    Ok(Arc::new(Driver::new(session, keyspace, scope)))
}

/// Executes a statement that makes or changes a keyspace or a table, once.
///
/// # Errors
///
/// [`Fault`]; after [`Fault::Unknown`] the cluster may do it, or may have done it.
pub async fn define(session: &Session, text: &str) -> Result<(), Fault> {
    let defined = session.query_unpaged(text, ()).await;
    defined.map(drop).map_err(|error| fault::of_definition(&error))
}

/// Whether the cluster is `ScyllaDB`, as far as the session has met its nodes.
pub fn is_scylla(session: &Session) -> bool {
    let state = session.get_cluster_state();
    state.get_nodes_info().iter().any(|node| node.sharder().is_some())
}

/// The addresses of the nodes of a cluster.
pub fn nodes(session: &Session) -> Vec<String> {
    let state = session.get_cluster_state();
    state.get_nodes_info().iter().map(|node| node.address.to_string()).collect()
}

/// A session, as the recipes use it.
struct Driver(Arc<Prepared>);

type PreparedKey = (String, bool, bool);

struct Prepared {
    session: Arc<Session>,
    keyspace: Ident,
    within: Decision,
    everywhere: Decision,
    /// By text, by [`Statement::everywhere`], and by whether it is read at SERIAL; as many as the recipes have statements.
    statements: Mutex<BTreeMap<PreparedKey, PreparedStatement>>,
}

impl Driver {
    fn new(session: Arc<Session>, keyspace: &str, scope: &SerialScope) -> Self {
        Self(Arc::new(Prepared {
            session,
            keyspace: Ident::new(keyspace),
            within: Decision::within(scope),
            everywhere: Decision::within(&scope.everywhere()),
            statements: Mutex::default(),
        }))
    }
}

/// Which replicas have to agree to a statement.
struct Decision {
    profile: ExecutionProfileHandle,
    /// For reads at SERIAL.
    read: Consistency,
}

impl Decision {
    fn within(scope: &SerialScope) -> Self {
        let (serial, read) = match scope {
            SerialScope::Cluster | SerialScope::Near(_) => {
                (SerialConsistency::Serial, Consistency::Serial)
            }
            SerialScope::Datacenter(_) => {
                (SerialConsistency::LocalSerial, Consistency::LocalSerial)
            }
        };
        let profile = ExecutionProfile::builder()
            .load_balancing_policy(scope.load_balancing())
            .consistency(scope.quorum())
            .serial_consistency(Some(serial))
            .request_timeout(Some(REQUEST_LIMIT))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            .speculative_execution_policy(None)
            .build();
        Self { profile: profile.into_handle(), read }
    }
}

impl Prepared {
    async fn execute(&self, statement: &Statement) -> Result<Answer, Fault> {
        let prepared = self.prepare(statement).await?;
        let columns = prepared.get_variable_col_specs();
        let values = statement.binds().into_iter().zip(columns.iter());
        let values: Vec<Option<CqlValue>> =
            values.map(|(bind, column)| bound(bind, column.typ())).collect();
        if let Action::Page { columns, ttl_of, from, .. } = &statement.action {
            let from = from.as_ref().map_or_else(PagingState::start, |from| {
                PagingState::new_from_raw_bytes(from.as_slice())
            });
            let read = self.session.execute_single_page(&prepared, values, from).await;
            let (result, next) = read.map_err(|error| fault::of_execution(&error, statement))?;
            return page(result, next, columns, ttl_of.as_ref());
        }
        let executed = self.session.execute_unpaged(&prepared, values).await;
        let result = executed.map_err(|error| fault::of_execution(&error, statement))?;
        answer(result, &statement.action)
    }

    async fn prepare(&self, statement: &Statement) -> Result<PreparedStatement, Fault> {
        let (everywhere, serial) = (statement.everywhere, statement.is_serial_read());
        let key = (statement.text(&self.keyspace), everywhere, serial);
        if let Some(prepared) = self.lock().get(&key) {
            return Ok(prepared.clone());
        }
        let decision = if everywhere { &self.everywhere } else { &self.within };
        let prepared = self.session.prepare(key.0.as_str()).await;
        let mut prepared = prepared.map_err(|error| fault::of_preparation(&error, statement))?;
        prepared.set_execution_profile_handle(Some(decision.profile.clone()));
        prepared.set_is_idempotent(false);
        if serial {
            prepared.set_consistency(decision.read);
        }
        self.lock().insert(key, prepared.clone());
        Ok(prepared)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PreparedKey, PreparedStatement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Database for Driver {
    fn execute(&self, statement: Statement) -> BoxFuture<'static, Result<Answer, Fault>> {
        let prepared = self.0.clone();
        Box::pin(async move { prepared.execute(&statement).await })
    }

    fn endpoints(&self) -> Vec<String> {
        nodes(&self.0.session)
    }

    fn keyspace(&self) -> String {
        self.0.keyspace.as_str().to_owned()
    }
}

/// A value for a column of this type. Tables that were made through Thrift have columns of bytes where ours have text.
fn bound(bind: Bind, column: &ColumnType<'_>) -> Option<CqlValue> {
    let is_bytes = matches!(column, ColumnType::Native(NativeType::Blob));
    match bind {
        Bind::Value(value) => value.map(|value| match value {
            Value::Text(text) if is_bytes => CqlValue::Blob(text.into_bytes()),
            Value::Text(text) => CqlValue::Text(text),
            Value::Long(number) => CqlValue::BigInt(number),
            Value::Time(milliseconds) => CqlValue::Timestamp(CqlTimestamp(milliseconds)),
            Value::Flag(flag) => CqlValue::Boolean(flag),
            Value::Texts(texts) => CqlValue::List(texts.into_iter().map(CqlValue::Text).collect()),
        }),
        Bind::Int(number) => Some(CqlValue::Int(number)),
        Bind::Token(at) => {
            let is_large = matches!(column, ColumnType::Native(NativeType::Varint));
            let ring = if is_large { Partitioner::Random } else { Partitioner::Murmur3 };
            Some(ring.token(at))
        }
    }
}

/// Reads an answer by the names of its columns: an LWT that was not applied returns more columns,
/// and those of Cassandra differ from those of `ScyllaDB`.
fn answer(result: QueryResult, action: &Action) -> Result<Answer, Fault> {
    if let Action::Put { .. } | Action::Erase { .. } = action {
        return Ok(Answer::Written);
    }
    if let Action::First { columns, .. }
    | Action::FirstFrom { columns, .. }
    | Action::AllSerial { columns } = action
    {
        return plain_rows(result, columns).map(Answer::Rows);
    }
    if let Action::NodeTime = action {
        return plain_rows(result, &[Ident::new(NODE_TIME)]).map(Answer::Rows);
    }
    let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
    let names: Vec<String> =
        rows.column_specs().iter().map(|column| column.name().to_owned()).collect();
    let first = rows.maybe_first_row::<DriverRow>().map_err(|error| unreadable(&error))?;
    if let Action::SelectSerial { columns } | Action::Select { columns } = action {
        return Ok(Answer::Read(first.map(|row| read_row(row, columns))));
    }
    let Some(first) = first else { return Err(unreadable(&"an LWT without a row")) };
    let mut cells = names.into_iter().zip(first.columns);
    match cells.next() {
        Some((_, Some(CqlValue::Boolean(true)))) => Ok(Answer::Applied),
        Some((_, Some(CqlValue::Boolean(false)))) => {
            let cells: BTreeMap<String, Cell> =
                cells.filter_map(|(name, value)| Some((name, cell(value?, None)?))).collect();
            // An existing row has at least one non-null cell here: the condition compared one.
            Ok(Answer::NotApplied((!cells.is_empty()).then_some(Row(cells))))
        }
        _ => Err(unreadable(&"an LWT that does not say whether it was applied")),
    }
}

/// The statement was executed; an unreadable answer leaves its outcome open.
fn unreadable(error: &dyn fmt::Display) -> Fault {
    Fault::Unknown(format!("unreadable answer: {error}"))
}

fn page(
    result: QueryResult,
    next: PagingStateResponse,
    columns: &[Ident],
    ttl_of: Option<&Ident>,
) -> Result<Answer, Fault> {
    let next = match next {
        PagingStateResponse::HasMorePages { state } => {
            state.as_bytes_slice().map(|bytes| bytes.to_vec())
        }
        PagingStateResponse::NoMorePages => None,
    };
    Ok(Answer::Page(rows_with_ttl(result, columns, ttl_of)?, next))
}

fn plain_rows(result: QueryResult, columns: &[Ident]) -> Result<Vec<Row>, Fault> {
    rows_with_ttl(result, columns, None)
}

/// Reads rows in which the TTL of one column stands behind all columns.
fn rows_with_ttl(
    result: QueryResult,
    columns: &[Ident],
    ttl_of: Option<&Ident>,
) -> Result<Vec<Row>, Fault> {
    let rows = result.into_rows_result().map_err(|error| unreadable(&error))?;
    let rows = rows.rows::<DriverRow>().map_err(|error| unreadable(&error))?;
    let row = |row: Result<DriverRow, _>| row.map(|row| plain_row(row, columns, ttl_of));
    rows.map(row).collect::<Result<_, _>>().map_err(|error| unreadable(&error))
}

fn plain_row(row: DriverRow, columns: &[Ident], ttl_of: Option<&Ident>) -> Row {
    let ttl_s = match row.columns.get(columns.len()) {
        Some(Some(CqlValue::Int(seconds))) => Some(*seconds),
        _ => None,
    };
    let cells = columns.iter().zip(row.columns);
    let cells = cells.filter_map(|(column, value)| {
        let ttl_s = ttl_s.filter(|_| ttl_of == Some(column));
        Some((column.as_str().to_owned(), cell(value?, ttl_s)?))
    });
    Row(cells.collect())
}

/// Reads a row in which each column is followed by its TTL.
fn read_row(row: DriverRow, columns: &[Ident]) -> Row {
    let mut values = row.columns.into_iter();
    let mut cells = BTreeMap::new();
    for column in columns {
        let value = values.next().flatten();
        let ttl_s = match values.next().flatten() {
            Some(CqlValue::Int(seconds)) => Some(seconds),
            _ => None,
        };
        if let Some(cell) = value.and_then(|value| cell(value, ttl_s)) {
            cells.insert(column.as_str().to_owned(), cell);
        }
    }
    Row(cells)
}

/// Bytes as text; in hexadecimal digits where they are none, as CQL writes them. It is no owner of ours then, and a row with it counts
/// as everybody's does.
fn readable(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| format!("0x{}", hex::encode(error.as_bytes())))
}

/// `None` for types that no recipe uses.
fn cell(value: CqlValue, ttl_s: Option<i32>) -> Option<Cell> {
    let value = match value {
        CqlValue::Text(text) | CqlValue::Ascii(text) => Value::Text(text),
        CqlValue::Blob(bytes) => Value::Text(readable(bytes)),
        CqlValue::BigInt(number) => Value::Long(number),
        CqlValue::Timestamp(CqlTimestamp(milliseconds)) => Value::Time(milliseconds),
        CqlValue::Boolean(flag) => Value::Flag(flag),
        _ => return None,
    };
    Some(Cell { value, ttl_s })
}
