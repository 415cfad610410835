//! What a cluster has to be like for locks: each thing that matters is looked at, and what is not as it should be is said with what to do.

mod checks;
#[cfg(test)]
mod tests;

use std::time::Duration;

use holdfast_keyspace::driver::{self, Facts};

use crate::Result;
use crate::opening::{Contact, SerialScope, open};
use crate::schema::{Need, Schema};
use crate::statement::Ident;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, in a word or two.
    pub check: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found, for people.
    pub says: String,
    /// What to do about it; `None` if there is nothing to do.
    pub remedy: Option<String>,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Worth knowing; nothing is wrong.
    Note,
    /// Locks are slower, or end sooner than they need to, or it is not known whether they do.
    Caution,
    /// Locks cannot be had, or two clients may have one.
    Wrong,
}

impl Verdict {
    /// For programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Caution => "caution",
            Self::Wrong => "wrong",
        }
    }
}

/// What is looked at, and what is expected of it.
#[derive(Clone, Debug)]
pub struct Doctor {
    schema: Schema,
    scope: SerialScope,
    max_skew: Duration,
    role: Option<String>,
}

/// What was found out, to be judged.
struct Case<'a> {
    keyspace: &'a Ident,
    scope: &'a SerialScope,
    max_skew: Duration,
    facts: Facts,
    /// The recipes' tables, with what each keeps of deleted rows and should keep at most, seconds; `None` where it is not there.
    tables: Result<Vec<TableCase>, String>,
    /// The columns that tables of older versions lack.
    lacking: Vec<String>,
    needs: Vec<Need>,
}

/// A table of the recipes.
struct TableCase {
    name: String,
    /// For how long it keeps tombstones, seconds; `None` if it is not there.
    kept_s: Option<i32>,
    keeps_too_long: bool,
}

impl Doctor {
    /// Looks at the keyspace and the tables of `schema`, for locks that are decided in `scope` and whose clients count on clocks that
    /// differ by at most `max_skew`.
    #[must_use]
    pub fn new(schema: Schema, scope: SerialScope, max_skew: Duration) -> Self {
        Self { schema, scope, max_skew, role: None }
    }

    /// Looks also at what this role may do.
    #[must_use]
    pub fn role(self, role: Option<String>) -> Self {
        Self { role, ..self }
    }

    /// Asks every node, reads no row of a lock, and changes nothing. What a node does not tell is a finding too.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`](crate::Error::Unreachable) if no contact point answered, [`Error::Refused`](crate::Error::Refused) if the
    /// cluster rejected the login, [`Error::InvalidConfig`](crate::Error::InvalidConfig) for a setting that makes no sense.
    pub async fn examine(&self, contact: &Contact) -> Result<Vec<Finding>> {
        let session = open(contact).await?;
        let keyspace = self.schema.keyspace();
        let facts = driver::facts(&session, keyspace, &self.scope, self.role.as_deref()).await;
        let kept = self.schema.kept(&session).await.map_err(|error| error.to_string());
        let tables = kept.map(|tables| {
            let case = |(name, kept_s, keeps_too_long)| TableCase { name, kept_s, keeps_too_long };
            tables.into_iter().map(case).collect()
        });
        let has = |table: &str, column: &str| {
            let tables = facts.keyspace.as_ref().map(|keyspace| &keyspace.tables);
            let columns = tables.and_then(|tables| tables.get(table));
            columns.is_none_or(|columns| columns.iter().any(|one| one == column))
        };
        let added = self.schema.added().into_iter();
        let lacking = added.filter(|(table, column, _)| !has(table, column));
        let lacking = lacking.map(|(table, column, _)| format!("{table}.{column}")).collect();
        let (scope, max_skew, needs) = (&self.scope, self.max_skew, self.schema.needs());
        Ok(Case { keyspace, scope, max_skew, facts, tables, lacking, needs }.findings())
    }
}
