//! The claims on the locks of a recipe: the holder of each and the clients that want it, read from the recipe's tables, for people.
//!
//! The reads are at QUORUM, of one table after the other, so what they show may be over, and two tables may show two instants. They decide
//! nothing. Foreign clients are shown as they name themselves.

mod judged;

use std::collections::BTreeMap;
use std::time::Duration;

use super::cassandra::Cassandra;
use super::database::Row;
use super::locker_base::Tries;
use super::owner::service_of;
use super::recipe::Recipe;
use super::schema::Layout;
use super::statement::{Action, Ident, Statement, Value};
use crate::{Result, check_lock_name};

/// What a client wants of a lock, as its row says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// How the client calls itself.
    pub name: String,
    /// The id in the row.
    pub owner: String,
    /// What it has.
    pub state: ClaimState,
    /// When the row ends unless it is renewed, by a node's clock; `None`: it has no TTL, or one that cannot be read.
    pub left: Option<Duration>,
    /// Since when, Unix milliseconds by the client's clock, where the recipe keeps it.
    pub since_ms: Option<i64>,
}

/// What a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ClaimState {
    /// It holds the lock.
    Holds,
    /// It is in line.
    Waits,
    /// It tries, beside others, in a recipe without a line.
    Tries,
}

impl ClaimState {
    /// For programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Waits => "waits",
            Self::Tries => "tries",
        }
    }
}

/// A lock with rows in the tables of its recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimedLock {
    /// The lock.
    pub lock: String,
    /// The holder first, if there is one; then those in line, in order; then those that try.
    pub claims: Vec<Claim>,
}

/// How long the reads of a table are tried without an answer, and the longest pause between two tries.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What a table of a recipe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// A row for the holder; several rows: clients that try.
    Holder,
    /// A row for each client, in line behind the holder, whom another table shows.
    Line,
    /// A row for each client, in line by its number; the first has the lock.
    Numbers,
    /// A row for each client that tries.
    Tries,
}

/// A table of a recipe, as it is read here.
struct Source {
    says: Says,
    table: Ident,
    lock: Ident,
    /// The column with the client's id.
    id: Ident,
    /// The column by which clients are in line.
    order: Option<Ident>,
    /// A column with the TTL of the row.
    ends: Option<Ident>,
    since: Option<Ident>,
}

/// A row, as it was read.
#[derive(Clone, Debug)]
struct Told {
    says: Says,
    owner: String,
    /// Its place in line: a number, or a name that sorts.
    order: (i64, String),
    left: Option<Duration>,
    since_ms: Option<i64>,
}

impl Recipe {
    /// The locks whose names begin with `prefix`, in order. It reads the recipe's tables as a whole, page by page.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if a page has no answer in time, [`Error::Refused`](crate::Error::Refused) if
    /// Cassandra refuses it, for example because there is no such table.
    pub async fn claimed(
        self,
        cassandra: &Cassandra,
        layout: &Layout,
        prefix: &str,
    ) -> Result<Vec<ClaimedLock>> {
        let mut told = BTreeMap::new();
        for source in sources(self, layout) {
            read(cassandra, &source, None, prefix, &mut told).await?;
        }
        Ok(judged::locks(told))
    }

    /// What there is of one lock.
    ///
    /// # Errors
    ///
    /// As of [`Recipe::claimed`]; [`Error::Refused`](crate::Error::Refused) also if it is no name.
    pub async fn claims_of(
        self,
        cassandra: &Cassandra,
        layout: &Layout,
        lock: &str,
    ) -> Result<ClaimedLock> {
        check_lock_name(lock)?;
        let mut told = BTreeMap::new();
        for source in sources(self, layout) {
            read(cassandra, &source, Some(lock), "", &mut told).await?;
        }
        let none = ClaimedLock { lock: lock.to_owned(), claims: Vec::new() };
        Ok(judged::locks(told).pop().unwrap_or(none))
    }
}

fn sources(recipe: Recipe, layout: &Layout) -> Vec<Source> {
    let Layout { lease, queue, tokens, bakery, shadow, optimistic, .. } = layout;
    let source = |says, table: &Ident, lock: &Ident, id: &Ident, ends: Option<&Ident>| Source {
        says,
        table: table.clone(),
        lock: lock.clone(),
        id: id.clone(),
        order: None,
        ends: ends.cloned(),
        since: None,
    };
    match recipe {
        Recipe::Lease => {
            let owner = &lease.owner;
            vec![source(Says::Holder, &lease.table, &lease.name, owner, Some(owner))]
        }
        Recipe::Queue => {
            let (key, column, value) = (&queue.key, &queue.column, &queue.value);
            let line = source(Says::Line, &queue.queue, key, value, Some(value));
            let line = Source { order: Some(column.clone()), ..line };
            vec![source(Says::Holder, &queue.main, key, column, Some(value)), line]
        }
        Recipe::TokensLwt => {
            let held = source(Says::Holder, &tokens.tokens, &tokens.token, &tokens.session, None);
            vec![Source { since: Some(tokens.timestamp.clone()), ..held }]
        }
        Recipe::Bakery => {
            let (key, column, value) = (&bakery.key, &bakery.column, &bakery.value);
            let line = source(Says::Numbers, &bakery.numbers, key, column, Some(value));
            vec![Source { order: Some(value.clone()), ..line }]
        }
        Recipe::Shadow => {
            let (key, column, value) = (&shadow.key, &shadow.column, &shadow.value);
            vec![
                source(Says::Holder, &shadow.main, key, column, Some(value)),
                source(Says::Tries, &shadow.shadow, key, column, Some(value)),
            ]
        }
        Recipe::TokensOptimistic => {
            let (token, session) = (&optimistic.token, &optimistic.session);
            vec![source(Says::Holder, &optimistic.tokens, token, session, None)]
        }
    }
}

async fn read(
    cassandra: &Cassandra,
    source: &Source,
    lock: Option<&str>,
    prefix: &str,
    told: &mut BTreeMap<String, Vec<Told>>,
) -> Result<()> {
    let others = [&Some(source.id.clone()), &source.order, &source.ends, &source.since];
    let mut columns = vec![source.lock.clone()];
    for column in others.into_iter().flatten() {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    let key: Vec<_> =
        lock.map(|lock| (source.lock.clone(), Value::from(lock))).into_iter().collect();
    let mut from = None;
    let mut tries = Tries::new(cassandra, ANSWERED_WITHIN, PAUSE_MAX);
    loop {
        let page = || {
            let (columns, ttl_of) = (columns.clone(), source.ends.clone());
            let action = Action::Page { columns, ttl_of, range: None, from: from.clone() };
            cassandra.tables().page(Statement::new(source.table.clone(), key.clone(), action))
        };
        let (rows, next) = tries.until_answered(page).await?;
        for row in &rows {
            let Some(name) = row.text(&source.lock).filter(|name| name.starts_with(prefix)) else {
                continue;
            };
            told.entry(name.to_owned()).or_default().extend(source.told(row));
        }
        match next {
            Some(next) => from = Some(next),
            None => return Ok(()),
        }
    }
}

impl Source {
    /// `None` for a row without an owner.
    fn told(&self, row: &Row) -> Option<Told> {
        let owner = row.text(&self.id)?.to_owned();
        let order = self.order.as_ref().map_or((0, String::new()), |column| {
            (row.long(column).unwrap_or(0), row.text(column).unwrap_or_default().to_owned())
        });
        // Lamport's value for a process that does not compete.
        let is_in_line = self.says != Says::Numbers || order.0 != 0;
        let ttl_s = self.ends.as_ref().and_then(|column| row.ttl_s(column));
        let left = ttl_s.and_then(|left| u64::try_from(left).ok()).map(Duration::from_secs);
        let since_ms = self.since.as_ref().and_then(|column| row.time_ms(column));
        is_in_line.then_some(Told { says: self.says, owner, order, left, since_ms })
    }
}
