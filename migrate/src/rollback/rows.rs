//! Writes rows of a recipe for native holds, so that clients that know only the recipe are kept
//! out.
//!
//! A row is written where there is none, or renewed for the same owner: by LWT where the recipe
//! locks by LWT. In the other recipes (queue, shadow) a cell in the main row is enough: a client
//! that finds a cell beside its own deletes its own and waits. Every client at work is kept out
//! natively as well, so a cell that is written beside another one makes no second hold.
//!
//! Such a row has an owner's id that names the native grant: `StandIn`.

use std::sync::Arc;
use std::time::Duration;

use holdfast_keyspace::database::{Conditional, Database, Fault, Tables};
use holdfast_keyspace::statement::{Action, Cells, Ident, Statement, Value};
use holdfast_recipes::{Recipe, is_ours};
use holdfast_runtime::Runtime;

use crate::import;
use crate::layout::Layout;

/// How often a statement is sent that gets no answer.
const ATTEMPTS: u32 = 5;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// The prefix of the attempt in the id of a [`StandIn`].
const MARK: &str = "native-";

/// A row to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRow {
    /// The lock.
    pub lock: String,
    /// The owner's id, in the form of the recipe.
    pub owner: String,
    /// Its TTL, seconds.
    pub ttl_s: i32,
    /// The lock's value.
    pub value: Option<String>,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// The row is there.
    Written,
    /// The lock has a row of another owner.
    Taken {
        /// The owner of that row.
        by: String,
    },
    /// The recipe allows no such row.
    Impossible {
        /// Why.
        why: String,
    },
}

/// A native client's hold, with its id in Cassandra: `hf1:LABEL/native-TOKEN`. The id has our
/// prefix, so that it does not count as a foreign client's; the label is for people; the token
/// shows whether the grant has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StandIn {
    pub(crate) label: String,
    pub(crate) token: u64,
}

impl StandIn {
    /// The owner's id; it ends with the term in seconds if the recipe's ids do.
    pub(crate) fn owner(&self, term: Option<Duration>) -> String {
        let term = term.map(|term| format!(":{}", term.as_secs())).unwrap_or_default();
        format!("hf1:{}/{MARK}{}{term}", self.label, self.token)
    }

    /// Parses the owner's id of a row; `None` if the row stands in for no native hold.
    pub(crate) fn of(owner: &str) -> Option<Self> {
        if !is_ours(owner) {
            return None;
        }
        let (label, attempt) = owner.strip_prefix("hf1:")?.rsplit_once('/')?;
        let token = attempt.strip_prefix(MARK)?.split(':').next()?.parse().ok()?;
        // A native client chooses its label freely, so the end of the label is not parsed as a
        // writer.
        Some(Self { label: label.to_owned(), token })
    }
}

/// The tables of a recipe, for writing.
pub struct Rows {
    tables: Tables,
    layout: Layout,
    runtime: Runtime,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Rows {
    /// The tables of a keyspace. Nothing is sent yet.
    pub fn new(database: Arc<dyn Database>, layout: Layout, runtime: Runtime) -> Self {
        Self { tables: Tables::new(database, runtime.clock.clone()), layout, runtime }
    }

    /// The recipe of the tables.
    pub fn recipe(&self) -> Recipe {
        self.layout.recipe
    }

    /// Writes a row, or renews it. Repeating it is harmless.
    ///
    /// # Errors
    ///
    /// The statement was refused or got no answer; the row may exist or not.
    pub async fn put(&self, row: &NewRow) -> Result<Put, import::Fault> {
        match self.layout.recipe {
            Recipe::Lease => self.put_lease(row).await,
            Recipe::Queue | Recipe::Shadow => self.put_cell(row).await,
            Recipe::TokensLwt | Recipe::TokensOptimistic => self.put_token(row).await,
            Recipe::Bakery => {
                let why = "a number of the bakery cannot be drawn for somebody else".to_owned();
                Ok(Put::Impossible { why })
            }
        }
    }

    /// Removes the row of that owner, if it exists.
    ///
    /// # Errors
    ///
    /// As [`Rows::put`].
    pub async fn take_back(&self, lock: &str, owner: &str) -> Result<(), import::Fault> {
        let (table, [key, column]) = self.layout.table(0);
        match self.layout.recipe {
            Recipe::Lease => self.delete_if(table, (key, lock), Some((column, owner))).await,
            Recipe::Queue | Recipe::Shadow => {
                let key = vec![text(key, lock), text(column, owner)];
                let action = Action::Erase { at_us: self.now_us() };
                self.write(Statement::new(Ident::new(table), key, action)).await
            }
            Recipe::TokensLwt | Recipe::TokensOptimistic => {
                self.delete_if(table, (key, lock), Some((column, owner))).await?;
                let (times, [session]) = self.layout.table(1);
                self.delete_if(times, (session, owner), None).await
            }
            Recipe::Bakery => Ok(()),
        }
    }

    /// "INSERT INTO leases … IF NOT EXISTS", and then "UPDATE … IF owner" (lease article).
    async fn put_lease(&self, row: &NewRow) -> Result<Put, import::Fault> {
        let (table, [name, owner, value]) = self.layout.table(0);
        let cells: Cells = vec![
            (Ident::new(owner), Some(Value::from(row.owner.as_str()))),
            (Ident::new(value), row.value.as_deref().map(Value::from)),
        ];
        self.put_if_free(table, (name, &row.lock), owner, &row.owner, cells, Some(row.ttl_s)).await
    }

    /// Writes the token's session first: a housekeeper of our library lets it stand for as long as
    /// its id states.
    async fn put_token(&self, row: &NewRow) -> Result<Put, import::Fault> {
        let (table, [token, session, since]) = self.layout.table(0);
        let (times, [beating, held, beat]) = self.layout.table(1);
        let now = Value::Time(self.now_us() / 1_000);
        let beats: Cells = vec![
            (Ident::new(held), Some(Value::Texts(vec![row.lock.clone()]))),
            (Ident::new(beat), Some(now.clone())),
        ];
        let insert = Action::InsertIfAbsent { cells: beats, ttl_s: None };
        let key = vec![text(beating, &row.owner)];
        // If the session exists, its heartbeat stands.
        self.conditional(Statement::new(Ident::new(times), key, insert)).await?;
        let cells: Cells = vec![
            (Ident::new(session), Some(Value::from(row.owner.as_str()))),
            (Ident::new(since), Some(now)),
        ];
        self.put_if_free(table, (token, &row.lock), session, &row.owner, cells, None).await
    }

    /// Listing 6, step 3.
    async fn put_cell(&self, row: &NewRow) -> Result<Put, import::Fault> {
        let (main, [key, column, value]) = self.layout.table(0);
        let key = vec![text(key, &row.lock), text(column, &row.owner)];
        let cells = vec![(Ident::new(value), Some(Value::from(row.owner.as_str())))];
        let action = Action::Put { cells, ttl_s: row.ttl_s, at_us: self.now_us() };
        self.write(Statement::new(Ident::new(main), key, action)).await?;
        Ok(Put::Written)
    }

    async fn put_if_free(
        &self,
        table: &str,
        (key, lock): (&str, &str),
        owner: &str,
        own: &str,
        cells: Cells,
        ttl_s: Option<i32>,
    ) -> Result<Put, import::Fault> {
        let at = |action| Statement::new(Ident::new(table), vec![text(key, lock)], action);
        let insert = Action::InsertIfAbsent { cells: cells.clone(), ttl_s };
        let there = match self.conditional(at(insert)).await? {
            Conditional::Applied => return Ok(Put::Written),
            Conditional::NotApplied(row) => row,
        };
        let by = there.as_ref().and_then(|row| row.text(&Ident::new(owner)));
        // A row whose owner's cell has ended before the value's belongs to no client.
        if let Some(by) = by.filter(|by| *by != own) {
            return Ok(Put::Taken { by: by.to_owned() });
        }
        let only_if: Cells = vec![(Ident::new(owner), by.map(Value::from))];
        match self.conditional(at(Action::UpdateIf { cells, ttl_s, only_if })).await? {
            Conditional::Applied => Ok(Put::Written),
            Conditional::NotApplied(_) => {
                let why = "the row changed while it was written; ask again";
                Err(import::Fault::Unknown(why.to_owned()))
            }
        }
    }

    async fn delete_if(
        &self,
        table: &str,
        (key, at): (&str, &str),
        owner: Option<(&str, &str)>,
    ) -> Result<(), import::Fault> {
        let only_if =
            owner.into_iter().map(|(column, owner)| (Ident::new(column), Some(Value::from(owner))));
        let action = Action::DeleteIf { only_if: only_if.collect() };
        self.conditional(Statement::new(Ident::new(table), vec![text(key, at)], action)).await?;
        Ok(())
    }

    async fn conditional(&self, statement: Statement) -> Result<Conditional, import::Fault> {
        self.answered(async || self.tables.conditional(statement.clone()).await.1).await
    }

    async fn write(&self, statement: Statement) -> Result<(), import::Fault> {
        self.answered(async || self.tables.write(statement.clone()).await).await
    }

    /// Sends a statement until it is answered. Each of these statements may be applied twice.
    async fn answered<T>(
        &self,
        send: impl AsyncFn() -> Result<T, Fault>,
    ) -> Result<T, import::Fault> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match send().await {
                Ok(answer) => return Ok(answer),
                Err(Fault::Refused(why)) => return Err(import::Fault::Refused(why)),
                Err(fault) if attempts >= ATTEMPTS => {
                    return Err(import::Fault::Unknown(fault.message().to_owned()));
                }
                Err(_) => self.runtime.sleep(PAUSE).await,
            }
        }
    }

    /// The time of this machine's clock, like that of every client of these recipes.
    fn now_us(&self) -> i64 {
        let now_ms = i64::try_from(self.runtime.clock.wall_ms()).unwrap_or(i64::MAX);
        now_ms.saturating_mul(1_000)
    }
}

fn text(column: &str, value: &str) -> (Ident, Value) {
    (Ident::new(column), Value::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_says_which_grant_it_stands_for_and_others_say_none() {
        let stand_in = StandIn { label: "host/a:7".into(), token: 42 };
        assert_eq!(stand_in.owner(None), "hf1:host/a:7/native-42");
        for term in [None, Some(Duration::from_mins(10))] {
            assert_eq!(StandIn::of(&stand_in.owner(term)), Some(stand_in.clone()), "{term:?}");
        }
        for other in ["a/native-42", "hf1:a/0123", "hf1:a/native-x", "hf1:native-4", ""] {
            assert_eq!(StandIn::of(other), None, "{other}");
        }
    }
}
