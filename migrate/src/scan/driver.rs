//! Reads tables through the driver: the only module that names `scylla`, besides the type of its
//! session.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::driver::{Partitioner, SerialScope};
use holdfast_runtime::{BoxFuture, Runtime};
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::cluster::metadata::{Column, ColumnKind, ColumnType, NativeType, Table};
use scylla::errors::{DbError, ExecutionError, PrepareError, RequestAttemptError};
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::row::SerializeRow;
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, CqlValue, CqlVarint, Row as DriverRow};

use super::Identity;
use super::error::ScanError;
use super::scopes::ModeRow;
use super::tables::{Page, Range, Readable, Row, Tables, of_keyspace};
use crate::layout::{Actual, ActualColumn, Cell, Expected, Raw, Role, Type};

/// How long a page may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Rows in a page: some hundred kilobytes, a few milliseconds of a node's time.
const PAGE_ROWS: i32 = 1_000;
/// Pauses before a page is requested again: long enough for a node to restart.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1_600),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// The tables of a recipe, with prepared reads.
pub(super) struct Driver {
    session: Arc<Session>,
    keyspace: String,
    /// How rows of locks are read.
    reads: ExecutionProfileHandle,
    tables: Vec<Prepared>,
    partitioner: Partitioner,
    runtime: Runtime,
}

struct Prepared {
    readable: Readable,
    range: PreparedStatement,
    key: PreparedStatement,
}

impl Driver {
    /// Reads where the locks were decided: in the datacenter of `scope`, if it names one.
    pub(super) async fn open(
        session: Arc<Session>,
        (keyspace, scope): (&str, &SerialScope),
        expected: Vec<Expected>,
        runtime: Runtime,
    ) -> Result<Self, ScanError> {
        let readable = look(&session, keyspace, &expected)?;
        let profile = ExecutionProfile::builder()
            .load_balancing_policy(scope.load_balancing())
            .consistency(scope.quorum())
            .request_timeout(Some(REQUEST_LIMIT))
            .build()
            .into_handle();
        let mut driver = Self {
            session,
            keyspace: keyspace.to_owned(),
            reads: profile.clone(),
            tables: Vec::new(),
            partitioner: Partitioner::Murmur3,
            runtime,
        };
        driver.partitioner = driver.find_partitioner().await?;
        for readable in readable {
            let prepare = async |text: String| {
                let prepared = driver.session.prepare(text).await;
                let mut read = prepared.map_err(|error| of_preparation(&readable.table, &error))?;
                read.set_execution_profile_handle(Some(profile.clone()));
                read.set_is_idempotent(true);
                read.set_page_size(PAGE_ROWS);
                Ok(read)
            };
            let range = prepare(readable.select_range(keyspace)).await?;
            let key = prepare(readable.select_key(keyspace)).await?;
            driver.tables.push(Prepared { readable, range, key });
        }
        Ok(driver)
    }

    async fn find_partitioner(&self) -> Result<Partitioner, ScanError> {
        let name = shown(self.one("local", "SELECT partitioner FROM system.local", ()).await?);
        Partitioner::named(&name).ok_or(ScanError::Partitioner { name })
    }

    /// The first column of the first row that this statement reads.
    async fn one(
        &self,
        table: &str,
        text: &str,
        values: impl SerializeRow,
    ) -> Result<Option<CqlValue>, ScanError> {
        let read = self.session.query_unpaged(text, values).await;
        let read = read.map_err(|error| of_execution(table, 1, &error))?;
        let rows = read.into_rows_result().map_err(|error| unreadable(table, &error))?;
        let row = rows.first_row::<DriverRow>().map_err(|error| unreadable(table, &error))?;
        Ok(row.columns.into_iter().next().flatten())
    }

    fn table(&self, table: usize) -> Result<&Prepared, ScanError> {
        let missing = || unreadable("?", &format!("table {table} of this recipe is not known"));
        self.tables.get(table).ok_or_else(missing)
    }

    /// Reads one page; repeats the request after a fault that may pass.
    async fn read(
        &self,
        readable: &Readable,
        read: &PreparedStatement,
        values: Vec<CqlValue>,
        from: Option<Vec<u8>>,
    ) -> Result<Page, ScanError> {
        let mut pauses = PAUSES.iter();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let from = from.as_deref();
            let from = from.map_or_else(PagingState::start, PagingState::new_from_raw_bytes);
            let page = self.session.execute_single_page(read, values.clone(), from).await;
            let (result, next) = match page {
                Ok(page) => page,
                Err(error) => {
                    let error = of_execution(&readable.table, attempts, &error);
                    let Some(pause) = pauses.next().filter(|_| !error.is_refusal()) else {
                        return Err(error);
                    };
                    self.runtime.sleep(*pause).await;
                    continue;
                }
            };
            let rows = rows_of(&readable.table, result, |row| self.cells(row, readable))?;
            return Ok(Page { rows, next: next_of(next) });
        }
    }

    /// Reads a row: its place on the ring, then the columns of `readable`.
    fn cells(&self, row: DriverRow, readable: &Readable) -> (i64, Row) {
        let mut values = row.columns.into_iter();
        let place = self.partitioner.place(values.next().flatten().as_ref());
        let cell = |(_, detail): &(String, bool)| {
            let value = values.next().flatten().and_then(raw);
            let (left_s, written_us) = if *detail {
                (values.next().flatten(), values.next().flatten())
            } else {
                (None, None)
            };
            let left_s = left_s.and_then(|left| left.as_int());
            let written_us = written_us.and_then(|written| written.as_bigint());
            value.map(|value| Cell { value, left_s, written_us })
        };
        (place, readable.columns.iter().map(cell).collect())
    }
}

impl Tables for Driver {
    fn page(
        &self,
        table: usize,
        range: Range,
        from: Option<Vec<u8>>,
    ) -> BoxFuture<'_, Result<Page, ScanError>> {
        Box::pin(async move {
            let table = self.table(table)?;
            let values = [range.after, range.upto].map(|at| self.partitioner.token(at)).to_vec();
            self.read(&table.readable, &table.range, values, from).await
        })
    }

    fn rows<'a>(
        &'a self,
        table: usize,
        key: &'a Raw,
    ) -> BoxFuture<'a, Result<Vec<Row>, ScanError>> {
        Box::pin(async move {
            let table = self.table(table)?;
            let mut specs = table.key.get_variable_col_specs().iter();
            let is = specs.next().map(|spec| spec.typ().clone());
            let Some(key) = is.and_then(|is| bound(key, &is)) else { return Ok(Vec::new()) };
            let (mut rows, mut from) = (Vec::new(), None);
            loop {
                let page = self.read(&table.readable, &table.key, vec![key.clone()], from).await?;
                rows.extend(page.rows.into_iter().map(|(_, row)| row));
                if page.next.is_none() {
                    return Ok(rows);
                }
                from = page.next;
            }
        })
    }

    fn keyspace(&self) -> String {
        self.keyspace.clone()
    }

    fn now_us(&self) -> BoxFuture<'_, Result<i64, ScanError>> {
        Box::pin(async {
            let text = "SELECT toUnixTimestamp(now()) FROM system.local";
            match self.one("local", text, ()).await? {
                Some(CqlValue::BigInt(milliseconds)) => Ok(milliseconds.saturating_mul(1_000)),
                other => Err(unreadable("local", &format!("now() is {other:?}"))),
            }
        })
    }

    fn identity(&self) -> BoxFuture<'_, Result<Identity, ScanError>> {
        Box::pin(async {
            let cluster = self.one("local", "SELECT cluster_name FROM system.local", ()).await?;
            let text =
                "SELECT id FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
            let mut tables = Vec::new();
            for Prepared { readable: Readable { table, .. }, .. } in &self.tables {
                let id = self.one("tables", text, (&self.keyspace, table)).await?;
                tables.push((table.clone(), shown(id)));
            }
            Ok(Identity { cluster: shown(cluster), keyspace: self.keyspace.clone(), tables })
        })
    }

    fn modes<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<Vec<ModeRow>, ScanError>> {
        Box::pin(async move {
            let state = self.session.get_cluster_state();
            let there = state.get_keyspace(&self.keyspace);
            if there.is_none_or(|keyspace| !keyspace.tables.contains_key(table)) {
                return Ok(Vec::new());
            }
            let place = of_keyspace(&self.keyspace, table);
            let mut read = Statement::new(format!(
                "SELECT \"scope\", \"process\", \"mode\", \"stage\", \"recipe\", \"cluster\" FROM {place}"
            ));
            read.set_execution_profile_handle(Some(self.reads.clone()));
            let rows = self.session.query_unpaged(read, ()).await;
            let rows = rows.map_err(|error| of_execution(table, 1, &error))?;
            rows_of(table, rows, |row| {
                let mut columns = row.columns.into_iter();
                let mut next =
                    || columns.next().flatten().and_then(raw).map(|value| value.to_string());
                [next(), next(), next(), next(), next(), next()]
            })
        })
    }
}

/// Reads the rows of an answer.
fn rows_of<T>(
    table: &str,
    answer: QueryResult,
    read: impl Fn(DriverRow) -> T,
) -> Result<Vec<T>, ScanError> {
    let rows = answer.into_rows_result().map_err(|error| unreadable(table, &error))?;
    let rows = rows.rows::<DriverRow>().map_err(|error| unreadable(table, &error))?;
    let rows: Result<Vec<_>, _> = rows.map(|row| row.map(&read)).collect();
    rows.map_err(|error| unreadable(table, &error))
}

/// Finds the tables and checks their columns.
fn look(
    session: &Session,
    keyspace: &str,
    expected: &[Expected],
) -> Result<Vec<Readable>, ScanError> {
    let state = session.get_cluster_state();
    let listed = |names: Vec<&str>| {
        let mut names: Vec<&str> =
            names.into_iter().filter(|name| !name.starts_with("system")).collect();
        names.sort_unstable();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let Some(there) = state.get_keyspace(keyspace) else {
        let has = listed(state.keyspaces_iter().map(|(name, _)| name).collect());
        return Err(ScanError::NoKeyspace { keyspace: keyspace.to_owned(), has });
    };
    let find = |expected: &Expected| {
        let Some(table) = there.tables.get(&expected.table) else {
            let has = listed(there.tables.keys().map(String::as_str).collect());
            let (keyspace, table) = (keyspace.to_owned(), expected.table.clone());
            return Err(ScanError::NoTable { keyspace, table, has });
        };
        let actual = actual(table);
        let checked = expected.check(&actual);
        let table = expected.table.clone();
        checked.map_err(|mismatch| ScanError::OtherTable { table, mismatch })?;
        Ok(Readable::of(expected, &actual))
    };
    expected.iter().map(find).collect()
}

fn actual(table: &Table) -> Actual {
    let column = |(name, column): (&String, &Column)| {
        let role = match column.kind {
            ColumnKind::PartitionKey => Role::Partition,
            ColumnKind::Clustering => Role::Clustering,
            // A static column has one value for all rows of a partition, and is read like any
            // other.
            _ => Role::Regular,
        };
        (name.clone(), ActualColumn { role, is: type_of(&column.typ) })
    };
    Actual { columns: table.columns.iter().map(column).collect() }
}

fn type_of(is: &ColumnType<'_>) -> Type {
    match is {
        ColumnType::Native(NativeType::Text | NativeType::Ascii) => Type::Text,
        ColumnType::Native(NativeType::Blob) => Type::Blob,
        ColumnType::Native(
            NativeType::Int
            | NativeType::BigInt
            | NativeType::SmallInt
            | NativeType::TinyInt
            | NativeType::Varint,
        ) => Type::Number,
        ColumnType::Native(NativeType::Uuid | NativeType::Timeuuid) => Type::Uuid,
        ColumnType::Native(NativeType::Boolean) => Type::Flag,
        ColumnType::Native(NativeType::Timestamp) => Type::Time,
        ColumnType::Native(other) => Type::Other(format!("{other:?}").to_lowercase()),
        ColumnType::Collection { .. } => Type::Other("a list, a set or a map".into()),
        ColumnType::Tuple(_) => Type::Other("a tuple".into()),
        ColumnType::UserDefinedType { .. } => Type::Other("a type of the user's".into()),
        _ => Type::Other("a type that is not known".into()),
    }
}

/// Converts a value; `None` for null, and for types that the check of the table has refused.
fn raw(value: CqlValue) -> Option<Raw> {
    Some(match value {
        CqlValue::Text(text) | CqlValue::Ascii(text) => Raw::Text(text),
        CqlValue::Blob(bytes) => Raw::Bytes(bytes),
        CqlValue::Int(number) => Raw::Number(number.into()),
        CqlValue::BigInt(number) => Raw::Number(number),
        CqlValue::SmallInt(number) => Raw::Number(number.into()),
        CqlValue::TinyInt(number) => Raw::Number(number.into()),
        CqlValue::Varint(number) => {
            whole(number.as_signed_bytes_be_slice()).map_or(Raw::Bytes(Vec::new()), Raw::Number)
        }
        CqlValue::Boolean(flag) => Raw::Flag(flag),
        CqlValue::Timestamp(CqlTimestamp(milliseconds)) => Raw::Time(milliseconds),
        CqlValue::Uuid(id) => Raw::Text(id.to_string()),
        CqlValue::Timeuuid(id) => Raw::Text(id.to_string()),
        _ => return None,
    })
}

/// A big-endian number of any length, if it fits.
fn whole(bytes: &[u8]) -> Option<i64> {
    let (first, rest) = bytes.split_at_checked(bytes.len().saturating_sub(8))?;
    let sign = if rest.first().or(first.first())? & 0x80 == 0 { 0 } else { 0xff };
    let mut number = [sign; 8];
    number.get_mut(8 - rest.len()..)?.copy_from_slice(rest);
    first.iter().all(|byte| *byte == sign).then(|| i64::from_be_bytes(number))
}

/// A key as a value of its column's type.
fn bound(key: &Raw, is: &ColumnType<'_>) -> Option<CqlValue> {
    let ColumnType::Native(is) = is else { return None };
    Some(match is {
        NativeType::Text => CqlValue::Text(key.text().ok()?.into_owned()),
        NativeType::Ascii => CqlValue::Ascii(key.text().ok()?.into_owned()),
        NativeType::Blob => CqlValue::Blob(key.clone().into_bytes()?),
        NativeType::BigInt => CqlValue::BigInt(key.number()?),
        NativeType::Int => CqlValue::Int(key.number()?.try_into().ok()?),
        NativeType::SmallInt => CqlValue::SmallInt(key.number()?.try_into().ok()?),
        NativeType::TinyInt => CqlValue::TinyInt(key.number()?.try_into().ok()?),
        NativeType::Varint => {
            let bytes = key.number()?.to_be_bytes();
            CqlValue::Varint(CqlVarint::from_signed_bytes_be_slice(&bytes))
        }
        _ => return None,
    })
}

fn next_of(next: PagingStateResponse) -> Option<Vec<u8>> {
    match next {
        PagingStateResponse::HasMorePages { state } => {
            state.as_bytes_slice().map(|bytes| bytes.to_vec())
        }
        PagingStateResponse::NoMorePages => None,
    }
}

fn shown(value: Option<CqlValue>) -> String {
    value.and_then(raw).map(|value| value.to_string()).unwrap_or_default()
}

fn unreadable(table: &str, error: &dyn Display) -> ScanError {
    failed(table, 1, &format_args!("unreadable answer: {error}"))
}

fn failed(table: &str, attempts: u32, last: &dyn Display) -> ScanError {
    ScanError::Unreadable { table: table.to_owned(), attempts, last: last.to_string() }
}

fn of_preparation(table: &str, error: &PrepareError) -> ScanError {
    match error {
        PrepareError::AllAttemptsFailed { first_attempt } => of_attempt(table, 1, first_attempt),
        _ => failed(table, 1, error),
    }
}

fn of_execution(table: &str, attempts: u32, error: &ExecutionError) -> ScanError {
    match error {
        ExecutionError::LastAttemptError(error) => of_attempt(table, attempts, error),
        ExecutionError::BadQuery(error) => {
            ScanError::Refused { table: table.to_owned(), message: error.to_string() }
        }
        _ => failed(table, attempts, error),
    }
}

fn of_attempt(table: &str, attempts: u32, error: &RequestAttemptError) -> ScanError {
    match error {
        RequestAttemptError::DbError(
            DbError::SyntaxError | DbError::Invalid | DbError::Unauthorized | DbError::ConfigError,
            message,
        ) => ScanError::Refused { table: table.to_owned(), message: message.clone() },
        _ => failed(table, attempts, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_varint_is_a_number_if_it_fits() {
        let cases: [(&[u8], Option<i64>); 7] = [
            (&[0], Some(0)),
            (&[5], Some(5)),
            (&[0xff], Some(-1)),
            (&[0, 0x80], Some(128)),
            (&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Some(i64::MAX)),
            (&[0, 0x80, 0, 0, 0, 0, 0, 0, 0], None),
            (&[], None),
        ];
        for (bytes, number) in cases {
            assert_eq!(whole(bytes), number, "{bytes:?}");
        }
    }
}
